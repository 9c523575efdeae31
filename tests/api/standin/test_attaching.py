"""The life of a hot-plugged volume in ``VMI.status.volumeStatus``, as a watch sees it: attach, detach, what blocks."""

from __future__ import annotations

from itertools import pairwise

from tests.api.standin.site import Site, add_options, datavolume, entry_of, phase_of
from tests.api.standin.talking import Object

CLAIM_INFO = {
    "claimName": "data",
    "accessModes": ["ReadWriteMany"],
    "volumeMode": "Block",
    "capacity": {"storage": "16Mi"},
    "requests": {"storage": "16Mi"},
    "filesystemOverhead": "0",
}


def steps_of(states: list[Object], volume: str) -> list[tuple[str, str, str]]:
    """Phase, reason and message of the volume, each change once; states without it are left out."""
    steps = [
        (entry["phase"], entry["reason"], entry["message"]) for state in states if (entry := entry_of(state, volume))
    ]
    return steps[:1] + [after for before, after in pairwise(steps) if before != after]


async def version_of(site: Site, vm: str) -> str:
    version: str = (await site.vmi(vm))["metadata"]["resourceVersion"]
    return version


# Attach


async def test_a_ready_volume_goes_from_its_pod_to_the_guest(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    since = await version_of(site, vm)
    assert (await site.add(vm, add_options("data"))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready", since=since)
    (pod,) = await site.attachment_pods()
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    assert steps_of(states, "data") == [
        ("AttachedToNode", "SuccessfulCreate", f"Created hotplug attachment pod {name}, for volume data"),
        ("MountedToPod", "VolumeMountedToPod", "Volume data has been mounted in virt-launcher pod"),
        ("Ready", "VolumeReady", "Successfully attach hotplugged volume data to VM"),
    ]
    attached = [entry for state in states if (entry := entry_of(state, "data")).get("phase") == "AttachedToNode"]
    assert attached[0]["hotplugVolume"] == {"attachPodName": name}
    assert attached[-1]["hotplugVolume"] == {"attachPodName": name, "attachPodUID": uid}
    assert entry_of(states[-1], "data") == {
        "name": "data",
        "target": "sdb",
        "phase": "Ready",
        "reason": "VolumeReady",
        "message": "Successfully attach hotplugged volume data to VM",
        "hotplugVolume": {"attachPodName": name, "attachPodUID": uid},
        "persistentVolumeClaimInfo": CLAIM_INFO,
    }
    assert all(entry["target"] == "" for entry in attached)


async def test_every_phase_is_an_event_too(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    assert (await site.remove(vm, {"name": "data"})).code == 202
    await site.event_until(vm, "VolumeUnplugged")
    events = dict(await site.events_of(vm))
    assert events["VolumeMountedToPod"] == "Volume data has been mounted in virt-launcher pod"
    assert events["VolumeReady"] == "Successfully attach hotplugged volume data to VM"
    assert events["VolumeUnMountedFromPod"] == "Volume data has been unmounted from virt-launcher pod"
    assert events["SuccessfulCreate"].startswith("Created hotplug attachment pod hp-volume-")
    assert events["SuccessfulDelete"].startswith("Deleted hotplug attachment pod hp-volume-")


async def test_a_volume_on_virtio_gets_a_virtio_target(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("data", disk={"bus": "virtio"}))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready")
    assert entry_of(states[-1], "data")["target"] == "vdb"


async def test_an_unpopulated_volume_waits_first_pending_then_bound(site: Site) -> None:
    vm = await site.running_vm()
    since = await version_of(site, vm)
    await site.client.create(site.datavolumes, datavolume("data"))
    await site.client.follow(site.claims, "data", lambda claim: claim is not None)
    assert (await site.add(vm, add_options("data"))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready", since=since)
    steps = steps_of(states, "data")
    assert steps[0] == ("Pending", "PVCNotReady", "PVC is in phase ClaimPending")
    assert [phase for phase, _, _ in steps if phase != "Bound"] == [
        "Pending",
        "AttachedToNode",
        "MountedToPod",
        "Ready",
    ]
    assert all(step[1:] == ("PVCNotReady", "PVC is in phase Bound") for step in steps if step[0] == "Bound")


async def test_one_pod_on_the_infra_node_holds_all_volumes(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "one")
    await site.attached_volume(vm, "two")
    await site.pods_until(1)
    (pod,) = await site.attachment_pods()
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in claims_in(pod)]
    assert (sorted(claims), pod["spec"]["nodeName"]) == (["one", "two"], "infra-1")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["name"].startswith(f"virt-launcher-{vm}-")
    statuses = (await site.vmi(vm))["status"]["volumeStatus"]
    assert [entry["name"] for entry in statuses] == ["one", "root", "two"]
    assert {entry["phase"] for entry in statuses if "hotplugVolume" in entry} == {"Ready"}


# Detach


async def test_a_volume_is_unplugged_before_its_pod_goes(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    (pod,) = await site.attachment_pods()
    since = await version_of(site, vm)
    assert (await site.remove(vm, {"name": "data"})).code == 202
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {}, since=since)
    name = pod["metadata"]["name"]
    assert steps_of(states, "data") == [
        ("Ready", "VolumeReady", "Successfully attach hotplugged volume data to VM"),
        ("UnMountedFromPod", "VolumeUnMountedFromPod", "Volume data has been unmounted from virt-launcher pod"),
        ("Detaching", "SuccessfulDelete", f"Deleted hotplug attachment pod {name}, for volume data"),
    ]
    entries = [entry for state in states if (entry := entry_of(state, "data"))]
    assert [(entry["phase"], entry["target"]) for entry in entries[:2]] == [("Ready", "sdb"), ("Ready", "")]
    assert all("data" not in in_spec(state) for state in states)
    assert await site.attachment_pods() == []


async def test_the_claim_of_an_attached_volume_stays_until_the_pod_is_gone(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await site.client.delete(f"{site.claims}/data")
    claim = await site.client.get(f"{site.claims}/data")
    assert "deletionTimestamp" in claim["metadata"]
    assert (await site.remove(vm, {"name": "data"})).code == 202
    await site.client.follow(site.claims, "data", lambda claim: claim is None)
    assert await site.attachment_pods() == []


async def test_the_others_stay_ready_while_one_is_detached(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "one")
    await site.attached_volume(vm, "two")
    since = await version_of(site, vm)
    assert (await site.remove(vm, {"name": "one"})).code == 202
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "one") == {}, since=since)
    assert {phase_in(state, "two") for state in states} == {"Ready"}
    assert {entry_of(state, "two")["target"] for state in states} == {"sdc"}
    await site.pods_until(1)
    (pod,) = await site.attachment_pods()
    assert [volume["name"] for volume in claims_in(pod)] == ["two"]


# What blocks


async def test_a_volume_that_is_not_ready_holds_up_the_others_but_for_those_attached(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "attached")
    await site.ready_volume("ready")
    await site.unready_volume("importing")
    assert (await site.add(vm, add_options("importing"))).code == 202
    await site.vmi_until(vm, lambda vmi: "importing" in in_spec(vmi))
    assert (await site.add(vm, add_options("ready"))).code == 202
    # A pod of the two ready volumes comes to run, and still the second is not attached.
    await site.client.follow_any(site.pods, lambda pod: running_with(pod, {"attached", "ready"}))
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "ready") == "Bound")
    assert phase_in(states[-1], "attached") == "Ready"
    waiting = entry_of(states[-1], "ready")
    assert (waiting["reason"], waiting["message"]) == ("PVCNotReady", "PVC is in phase Bound")
    assert waiting["hotplugVolume"] == {}
    # It is attached as soon as the one that blocks has gone.
    assert (await site.remove(vm, {"name": "importing"})).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "ready") == "Ready")
    assert entry_of(states[-1], "ready")["target"] == "sdc"


async def test_a_claim_that_does_not_exist_stops_attaching_and_the_end_of_detaching(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "leaving")
    await site.ready_volume("coming")
    assert (await site.add(vm, add_options("missing"))).code == 202
    await site.vmi_until(vm, lambda vmi: "missing" in in_spec(vmi))
    assert (await site.add(vm, add_options("coming"))).code == 202
    assert (await site.remove(vm, {"name": "leaving"})).code == 202
    states = await site.vmi_until(
        vm,
        lambda vmi: phase_in(vmi, "leaving") == "UnMountedFromPod" and phase_in(vmi, "coming") == "Bound",
    )
    missing = entry_of(states[-1], "missing")
    assert (missing["phase"], missing["reason"], missing["message"]) == (
        "Pending",
        "FailedPvcNotFound",
        "PVC missing not found",
    )
    assert "Error determining volume status didn't find PVC missing" in [
        message for _, message in await site.events_of(vm)
    ]
    # With the claim's name out of the spec both go on.
    since = states[-1]["metadata"]["resourceVersion"]
    assert (await site.remove(vm, {"name": "missing"})).code == 202
    states = await site.vmi_until(
        vm, lambda vmi: phase_in(vmi, "coming") == "Ready" and not entry_of(vmi, "leaving"), since=since
    )
    assert all(phase_in(state, "leaving") == "UnMountedFromPod" for state in states if "missing" in in_spec(state))


async def test_a_disk_without_a_free_port_stays_mounted_and_holds_up_those_after_it(site: Site) -> None:
    vm = await site.running_vm()
    virtio = ("one", "two", "three")
    for name in (*virtio, "last"):
        await site.ready_volume(name)
        bus = "virtio" if name in virtio else "scsi"
        assert (await site.add(vm, add_options(name, disk={"bus": bus}))).code == 202
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "two") == "Ready" and phase_in(vmi, "last") == "MountedToPod")
    await site.event_until(vm, "SyncFailed")
    vmi = await site.vmi(vm)
    assert (phase_in(vmi, "three"), entry_of(vmi, "three")["target"]) == ("MountedToPod", "")
    assert phase_in(vmi, "last") == "MountedToPod"
    assert (await site.remove(vm, {"name": "one"})).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "last") == "Ready")
    assert entry_of(states[-1], "three")["target"] == "vdb"


# Several volumes in one VM spec, and its VMI's webhook


async def test_one_refused_entry_holds_up_all_changes_of_the_vm_and_is_told_in_a_condition(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    assert (await site.add(vm, add_options("bad", disk={"bus": "sata"}))).code == 202
    states = await site.client.follow(site.vms, vm, lambda vm: condition_of(vm, "Failure"))
    failure = condition_of(states[-1], "Failure")
    assert (failure["status"], failure["reason"]) == ("True", "HotPlugVolumeError")
    assert failure["message"] == (
        "Error encountered while handling declarative hotplug volumes: admission webhook"
        ' "virtualmachineinstances-update-validator.kubevirt.io" denied the request: '
        "Hotplug configuration for disk [bad] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted."
    )
    assert (await site.add(vm, add_options("data"))).code == 202
    version = (await site.vm(vm))["metadata"]["generation"]
    await site.client.follow(site.vms, vm, lambda vm: (vm or {})["status"].get("observedGeneration") == version)
    assert in_spec(await site.vmi(vm)) == ["root"]
    assert (await site.remove(vm, {"name": "bad"})).code == 202
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready")
    await site.client.follow(site.vms, vm, lambda vm: not condition_of(vm, "Failure"))


async def test_a_volume_added_again_waits_until_its_old_status_has_gone(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    since = await version_of(site, vm)
    assert (await site.remove(vm, {"name": "data"})).code == 202
    assert (await site.add(vm, add_options("data", serial="new"))).code == 202
    states = await site.vmi_until(
        vm, lambda vmi: phase_in(vmi, "data") == "Ready" and serial_in(vmi, "data") == "new", since=since
    )
    seen = [(bool(entry_of(state, "data")), serial_in(state, "data")) for state in states]
    gone = seen.index((False, None))
    assert all(serial != "new" for _, serial in seen[:gone])


def phase_in(vmi: Object | None, volume: str) -> str:
    return str(entry_of(vmi, volume).get("phase", ""))


def in_spec(vmi: Object | None) -> list[str]:
    return [volume["name"] for volume in (vmi or {}).get("spec", {}).get("volumes", [])]


def serial_in(vmi: Object | None, volume: str) -> str | None:
    disks = (vmi or {}).get("spec", {}).get("domain", {}).get("devices", {}).get("disks", [])
    return next((disk.get("serial", "") for disk in disks if disk["name"] == volume), None)


def claims_in(pod: Object) -> list[Object]:
    return [volume for volume in pod["spec"].get("volumes", []) if "persistentVolumeClaim" in volume]


def running_with(pod: Object, volumes: set[str]) -> bool:
    return {volume["name"] for volume in claims_in(pod)} == volumes and phase_of(pod) == "Running"


def condition_of(obj: Object | None, kind: str) -> Object:
    conditions = (obj or {}).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})
