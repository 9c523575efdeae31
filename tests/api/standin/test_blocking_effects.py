"""What one volume or one change does to the other volumes of the VM: effects a to e of attachment pods."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.api.standin.entries import (
    attached_by,
    bare_volume,
    held_by,
    in_spec,
    order,
    phase_in,
    phases_in,
    plug_until,
    pod_in,
    pod_of,
    running_with,
    step_in,
    target_in,
    unplug,
    version_of,
)
from tests.api.standin.site import Site, add_options, entry_of, phase_of
from tests.api.standin.talking import Object
from tests.api.standin.volumes import VOLUMES, bare_claim, blank

TRIGGER = "kubevirt.io/ephemeral-provisioning"


async def distant_volume(site: Site, name: str) -> str:
    """A bound Block claim whose volume can be used only on a node that this cluster does not have."""
    full = f"{name}-{site.namespace}"
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "16Mi"},
        "volumeMode": "Block",
        "storageClassName": full,
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": "elsewhere.example.com", "volumeHandle": full},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": full}, "spec": spec}
    await site.client.create(VOLUMES, body)
    await site.client.create(site.claims, bare_claim(name, storageClassName=full, volumeName=full))
    await site.claim_seen(name)
    return name


# a: a DataVolume that is not ready


async def test_a_a_volume_that_is_not_ready_holds_up_the_others_but_for_those_attached(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "attached")
    await site.ready_volume("ready")
    await site.unready_volume("importing")
    await plug_until(site, vm, "importing", "Bound")
    assert (await site.add(vm, add_options("ready"))).code == 202
    # A pod of the two ready volumes comes to run, and still the second is not attached.
    await site.client.follow_any(site.pods, lambda pod: running_with(pod, "attached", "ready"))
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "ready") == "Bound")
    assert phase_in(states[-1], "attached") == "Ready"
    assert step_in(states[-1], "ready") == ("Bound", "PVCNotReady", "PVC is in phase Bound")
    assert pod_in(states[-1], "ready") == {}
    # It is attached as soon as the one that blocks has gone.
    await unplug(site, vm, "importing")
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "ready") == "Ready")
    assert target_in(states[-1], "ready") == "sdc"


# b: a pod that stays pending


async def test_b_an_unschedulable_pod_leaves_all_new_volumes_attached_to_node_without_its_uid(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "attached")
    await distant_volume(site, "distant")
    await bare_volume(site, "ready")
    await plug_until(site, vm, "distant", "AttachedToNode")
    assert (await site.add(vm, add_options("ready"))).code == 202
    together = {"attached", "distant", "ready"}
    pod = await site.client.follow_any(site.pods, lambda pod: held_by(pod) == together and scheduled(pod) == "False")
    assert reason_of(pod) == (
        "Unschedulable",
        (
            "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, "
            "1 node(s) didn't match Pod's node affinity/selector."
        ),
    )
    vmi = await site.vmi(vm)
    assert phase_in(vmi, "attached") == "Ready"
    assert [step_in(vmi, name) for name in ("distant", "ready")] == [attached_by(pod, n) for n in ("distant", "ready")]
    assert pod_in(vmi, "ready") == {"attachPodName": pod["metadata"]["name"]}
    # The old pod serves on, and there is only one that is pending.
    assert sorted(phase_of(each) for each in await site.attachment_pods()) == ["Pending", "Running"]
    await unplug(site, vm, "distant")
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "ready") == "Ready" and not entry_of(vmi, "distant"))


async def test_b_a_pod_that_waits_for_population_holds_up_the_others_until_it_is_done(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "ready")
    await site.client.create(site.datavolumes, blank("late", storageClassName="local-block-wffc"))
    await site.client.follow(site.datavolumes, "late", lambda volume: phase_of(volume) == "PendingPopulation")
    await order(site, f"{site.claims}/late", importing="stuck")
    await plug_until(site, vm, "late", "AttachedToNode")
    await site.client.follow(site.claims, "late", lambda claim: selected_node(claim) == "infra-1")
    vmi = await plug_until(site, vm, "ready", "AttachedToNode")
    assert set(pod_in(vmi, "ready")) == {"attachPodName"}
    await site.client.follow(site.datavolumes, "late", lambda volume: phase_of(volume) == "ImportInProgress")
    vmi = await site.vmi(vm)
    assert [phase_in(vmi, name) for name in ("late", "ready")] == ["AttachedToNode", "AttachedToNode"]
    assert "attachPodUID" not in pod_in(vmi, "ready")
    await order(site, f"{site.claims}/late", importing=None)
    await site.vmi_until(vm, lambda vmi: {phase_in(vmi, "late"), phase_in(vmi, "ready")} == {"Ready"})


async def test_b_a_pod_whose_volume_cannot_be_mounted_holds_up_the_others(site: Site) -> None:
    vm = await site.running_vm()
    for name in ("stuck", "ready"):
        await bare_volume(site, name)
    await order(site, f"{site.claims}/stuck", stuck_attach="AttachedToNode")
    await plug_until(site, vm, "stuck", "AttachedToNode")
    assert (await site.add(vm, add_options("ready"))).code == 202
    pod = await site.client.follow_any(site.pods, lambda pod: held_by(pod) == {"stuck", "ready"} and scheduled(pod))
    await site.vmi_until(vm, lambda vmi: pod_in(vmi, "ready") == {"attachPodName": pod["metadata"]["name"]})
    await order(site, f"{site.claims}/stuck", stuck_attach=None)
    await site.vmi_until(vm, lambda vmi: {phase_in(vmi, "stuck"), phase_in(vmi, "ready")} == {"Ready"})


# c: a claim that does not exist


async def test_c_a_claim_that_does_not_exist_stops_attaching_and_the_end_of_detaching(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "leaving")
    await site.ready_volume("coming")
    await plug_until(site, vm, "missing", "Pending")
    assert (await site.add(vm, add_options("coming"))).code == 202
    await unplug(site, vm, "leaving")
    states = await site.vmi_until(
        vm,
        lambda vmi: phase_in(vmi, "leaving") == "UnMountedFromPod" and phase_in(vmi, "coming") == "Bound",
    )
    assert step_in(states[-1], "missing") == ("Pending", "FailedPvcNotFound", "PVC missing not found")
    assert "Error determining volume status didn't find PVC missing" in [
        message for _, message in await site.events_of(vm)
    ]
    # With the claim's name out of the spec both go on.
    since = states[-1]["metadata"]["resourceVersion"]
    await unplug(site, vm, "missing")
    states = await site.vmi_until(
        vm, lambda vmi: phase_in(vmi, "coming") == "Ready" and not entry_of(vmi, "leaving"), since=since
    )
    assert all(phase_in(state, "leaving") == "UnMountedFromPod" for state in states if "missing" in in_spec(state))


# d: changes that come faster than a pod is replaced


async def test_d_each_change_invalidates_the_pod_in_flight_and_none_completes_before_they_end(site: Site) -> None:
    vm = await site.running_vm()
    names = [await bare_volume(site, name) for name in ("one", "two", "three", "four")]
    await order(site, f"{site.vms}/{vm}", slow_attach="1h")
    since = await version_of(site, vm)
    pods: list[Object] = []
    for count, name in enumerate(names, start=1):
        assert (await site.add(vm, add_options(name))).code == 202
        pods.append(await pod_holding(site, *names[:count]))
        await site.vmi_until(vm, partial(attaching_by, pod=pods[-1], volume="one"))
    states = await site.vmi_until(vm, lambda vmi: pod_in(vmi, "four").get("attachPodUID"), since=since)
    assert "Ready" not in {phase_in(state, name) for state in states for name in names}
    # The first volume was given to one pod after the other, and none of them came to serve it.
    assert {pod["metadata"]["name"] for pod in pods} <= {pod_in(state, "one").get("attachPodName") for state in states}
    # With the changes at an end all of them complete, in the last pod; the others have gone.
    await order(site, f"{site.vms}/{vm}", slow_attach=None)
    states = await site.vmi_until(vm, lambda vmi: {phase_in(vmi, name) for name in names} == {"Ready"})
    assert {pod_in(states[-1], name)["attachPodUID"] for name in names} == {pods[-1]["metadata"]["uid"]}
    await site.pods_until(1)


# e: a disk that the hypervisor refuses


async def test_e_a_disk_without_a_free_port_stays_mounted_and_holds_up_those_after_it(site: Site) -> None:
    vm = await site.running_vm()
    virtio = ("one", "two", "three")
    for name in (*virtio, "last"):
        await site.ready_volume(name)
        bus = "virtio" if name in virtio else "scsi"
        assert (await site.add(vm, add_options(name, disk={"bus": bus}))).code == 202
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "two") == "Ready" and phase_in(vmi, "last") == "MountedToPod")
    await site.event_until(vm, "SyncFailed")
    vmi = await site.vmi(vm)
    assert (phase_in(vmi, "three"), target_in(vmi, "three")) == ("MountedToPod", "")
    assert phase_in(vmi, "last") == "MountedToPod"
    await unplug(site, vm, "one")
    # The new attachment pod, without the first disk, has both that wait: either may be mounted in it before the other.
    states = await site.vmi_until(vm, lambda vmi: {phase_in(vmi, "three"), phase_in(vmi, "last")} == {"Ready"})
    assert target_in(states[-1], "three") == "vdb"


async def test_e_a_disk_that_was_ordered_to_be_refused_holds_up_those_after_it_and_not_those_before(site: Site) -> None:
    vm = await site.running_vm()
    for name in ("before", "refused", "after"):
        await bare_volume(site, name)
    await order(site, f"{site.claims}/refused", stuck_attach="MountedToPod")
    for name in ("before", "refused", "after"):
        assert (await site.add(vm, add_options(name))).code == 202
    await site.vmi_until(
        vm, lambda vmi: phase_in(vmi, "before") == "Ready" and phase_in(vmi, "after") == "MountedToPod"
    )
    await site.event_until(vm, "SyncFailed")
    assert phase_in(await site.vmi(vm), "after") == "MountedToPod"
    await order(site, f"{site.claims}/refused", stuck_attach=None)
    await site.vmi_until(vm, lambda vmi: {phase_in(vmi, "refused"), phase_in(vmi, "after")} == {"Ready"})


def attaching_by(vmi: Object | None, *, pod: Object, volume: str) -> bool:
    return bool(pod_in(vmi, volume).get("attachPodName") == pod["metadata"]["name"])


async def pod_holding(site: Site, *volumes: str) -> Object:
    """The attachment pod that holds exactly these volumes, as soon as there is one."""
    return await site.client.follow_any(site.pods, lambda pod: held_by(pod) == set(volumes))


# The first consumer


async def test_a_data_volume_that_waits_for_its_first_consumer_gets_a_trigger_pod(site: Site) -> None:
    vm = await site.running_vm()
    annotations = {"cdi.kubevirt.io/storage.usePopulator": "false"}
    body = blank("late", annotations=annotations, storageClassName="local-block-wffc")
    await site.client.create(site.datavolumes, body)
    await site.client.follow(site.datavolumes, "late", lambda volume: phase_of(volume) == "WaitForFirstConsumer")
    watching = asyncio.ensure_future(site.client.follow_any(site.pods, is_trigger))
    try:
        since = await version_of(site, vm)
        assert (await site.add(vm, add_options("late"))).code == 202
        trigger = await watching
    finally:
        watching.cancel()
    assert held_by(trigger) == {"late"}
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "late") == "Ready", since=since)
    assert phases_in(states, "late")[0] == "Pending"
    assert pod_in(states[-1], "late")["attachPodName"] != trigger["metadata"]["name"]
    await site.pods_until(1)


async def test_the_attachment_pod_is_the_first_consumer_of_a_bare_claim(site: Site) -> None:
    vm = await site.running_vm()
    await site.client.create(site.claims, bare_claim("late", storageClassName="local-block-wffc"))
    await site.client.follow(site.claims, "late", lambda claim: phase_of(claim) == "Pending")
    vmi = await plug_until(site, vm, "late", "Ready")
    assert selected_node(await site.client.get(f"{site.claims}/late")) == vmi["status"]["nodeName"]
    assert held_by(await pod_of(site, vmi, "late")) == {"late"}


def scheduled(pod: Object) -> str:
    conditions = pod.get("status", {}).get("conditions", [])
    return next((str(each["status"]) for each in conditions if each["type"] == "PodScheduled"), "")


def reason_of(pod: Object) -> tuple[str, str]:
    condition = next(each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
    return condition["reason"], condition["message"]


def selected_node(claim: Object | None) -> str | None:
    annotations = (claim or {})["metadata"].get("annotations", {})
    selected: str | None = annotations.get("volume.kubernetes.io/selected-node")
    return selected


def is_trigger(pod: Object) -> bool:
    return TRIGGER in pod["metadata"].get("annotations", {})
