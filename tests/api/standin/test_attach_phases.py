"""The phases of a volume on its way into a VM, as ``VMI.status.volumeStatus`` and events tell them; one row a test."""

from __future__ import annotations

from tests.api.standin.entries import (
    BOUND,
    PENDING_CLAIM,
    attached_by,
    bare_volume,
    held_by,
    mounted,
    order,
    phase_in,
    phases_in,
    plug_until,
    pod_in,
    pod_of,
    ready,
    step_in,
    steps_of,
    target_in,
    version_of,
)
from tests.api.standin.site import Site, add_options, datavolume, entry_of, phase_of
from tests.api.standin.volumes import VOLUMES, bare_claim, blank, made

BLOCK_INFO = {
    "claimName": "data",
    "accessModes": ["ReadWriteMany"],
    "volumeMode": "Block",
    "capacity": {"storage": "16Mi"},
    "requests": {"storage": "16Mi"},
    "filesystemOverhead": "0",
}


# 1 Pending


async def test_a_claim_that_is_missing_is_pending_for_failed_pvc_not_found(site: Site) -> None:
    vm = await site.running_vm()
    vmi = await plug_until(site, vm, "data", "Pending")
    assert entry_of(vmi, "data") == {
        "name": "data",
        "target": "",
        "phase": "Pending",
        "reason": "FailedPvcNotFound",
        "message": "PVC data not found",
        "hotplugVolume": {},
    }
    await site.event_until(vm, "FailedPvcNotFound")


async def test_a_claim_that_is_unbound_is_pending_for_pvc_not_ready(site: Site) -> None:
    vm = await site.running_vm()
    body = blank("data", storageClassName="none", accessModes=["ReadWriteOnce"], volumeMode="Block")
    await site.client.create(site.datavolumes, body)
    await site.client.follow(site.claims, "data", lambda claim: claim is not None)
    vmi = await plug_until(site, vm, "data", "Pending")
    assert step_in(vmi, "data") == ("Pending", "PVCNotReady", "PVC is in phase ClaimPending")
    info = entry_of(vmi, "data")["persistentVolumeClaimInfo"]
    assert (info["capacity"], info["requests"]) == ({}, {"storage": "16Mi"})


async def test_a_claim_that_has_lost_its_volume_is_pending_for_pvc_not_ready(site: Site) -> None:
    vm = await site.running_vm()
    await site.unready_volume("data")
    volume = (await site.client.get(f"{site.claims}/data"))["spec"]["volumeName"]
    await site.client.delete(f"{VOLUMES}/{volume}")
    # In this order: kube-controller-manager gives a volume that is not being deleted its finalizer again.
    await site.client.patch(f"{VOLUMES}/{volume}", {"metadata": {"finalizers": None}})
    await site.client.follow(site.claims, "data", lambda claim: phase_of(claim) == "Lost")
    vmi = await plug_until(site, vm, "data", "Pending")
    assert step_in(vmi, "data") == ("Pending", "PVCNotReady", "PVC is in phase Lost")


# 2 Bound


async def test_a_bound_claim_without_an_attachment_pod_is_bound_for_pvc_not_ready(site: Site) -> None:
    vm = await site.running_vm()
    await site.unready_volume("data")
    vmi = await plug_until(site, vm, "data", "Bound")
    assert entry_of(vmi, "data") == {
        "name": "data",
        "target": "",
        "phase": "Bound",
        "reason": "PVCNotReady",
        "message": "PVC is in phase Bound",
        "hotplugVolume": {},
        "persistentVolumeClaimInfo": BLOCK_INFO,
    }


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


# 3 to 5 AttachedToNode, MountedToPod, Ready


async def test_a_ready_volume_skips_pending_and_bound_and_goes_from_its_pod_to_the_guest(site: Site) -> None:
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
        "persistentVolumeClaimInfo": BLOCK_INFO,
    }
    assert all(entry["target"] == "" for entry in attached)


async def test_every_change_of_phase_is_an_event_with_the_same_reason_and_message(site: Site) -> None:
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


async def test_a_ready_volume_keeps_its_phase_when_its_disk_leaves_the_domain_and_loses_its_target(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    since = await version_of(site, vm)
    (site.machines / vm / "data").unlink()
    states = await site.vmi_until(vm, lambda vmi: target_in(vmi, "data") == "", since=since)
    assert step_in(states[-1], "data") == ready("data")
    states = await site.vmi_until(vm, lambda vmi: target_in(vmi, "data") == "sdb")
    assert phases_in(states, "data") == ["Ready"]


async def test_a_slow_attach_stays_mounted_to_pod_while_others_go_on_and_ends_with_its_order(site: Site) -> None:
    vm = await site.running_vm()
    for name in ("slow", "data"):
        await bare_volume(site, name)
    await order(site, f"{site.claims}/slow", slow_attach="1h")
    assert (await site.add(vm, add_options("slow"))).code == 202
    vmi = await plug_until(site, vm, "data", "Ready")
    assert (step_in(vmi, "slow"), target_in(vmi, "slow")) == (mounted("slow"), "")
    assert not (site.machines / vm / "slow").exists()
    await order(site, f"{site.claims}/slow", slow_attach=None)
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "slow") == "Ready")


# Back-steps


async def test_an_attached_volume_goes_back_to_bound_when_another_is_not_ready(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await site.unready_volume("importing")
    await order(site, f"{site.claims}/data", stuck_attach="AttachedToNode")
    since = (await plug_until(site, vm, "data", "AttachedToNode"))["metadata"]["resourceVersion"]
    assert (await site.add(vm, add_options("importing"))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Bound", since=since)
    assert step_in(states[-1], "data") == BOUND
    assert pod_in(states[-1], "data") == {}


async def test_a_mounted_volume_goes_back_to_bound_when_another_is_not_ready(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await site.unready_volume("importing")
    await order(site, f"{site.claims}/data", stuck_attach="MountedToPod")
    vmi = await plug_until(site, vm, "data", "MountedToPod")
    assert step_in(vmi, "data") == mounted("data")
    assert (await site.add(vm, add_options("importing"))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Bound")
    assert pod_in(states[-1], "data") == {}


async def test_a_volume_with_an_unbound_claim_goes_back_to_pending_when_another_is_not_ready(site: Site) -> None:
    vm = await site.running_vm()
    await site.client.create(site.claims, bare_claim("data", storageClassName="none"))
    await site.client.follow(site.claims, "data", lambda claim: phase_of(claim) == "Pending")
    vmi = await plug_until(site, vm, "data", "AttachedToNode")
    assert step_in(vmi, "data") == attached_by(await pod_of(site, vmi, "data"), "data")
    await site.unready_volume("importing")
    assert (await site.add(vm, add_options("importing"))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Pending")
    assert step_in(states[-1], "data") == PENDING_CLAIM


# The fields of the status


async def test_what_others_write_into_the_status_of_a_vmi_is_put_back(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    before = await site.vmi(vm)
    written = {"metadata": {"labels": {"written": "yes"}}, "status": {"volumeStatus": [], "phase": "Failed"}}
    after = await site.client.patch(f"{site.vmis}/{vm}", written)
    assert after["metadata"]["labels"]["written"] == "yes"
    assert after["status"]["phase"] == "Running"
    assert entry_of(after, "data") == entry_of(before, "data") != {}


# Attachment pods and claims of file systems


async def test_one_pod_on_the_machines_node_holds_all_volumes_and_counts_against_quotas(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "one")
    await site.attached_volume(vm, "two")
    await site.pods_until(1)
    (pod,) = await site.attachment_pods()
    assert (held_by(pod), pod["spec"]["nodeName"]) == ({"one", "two"}, "infra-1")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["name"].startswith(f"virt-launcher-{vm}-")
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "10m", "memory": "2M"},
        "limits": {"cpu": "100m", "memory": "80M"},
    }
    statuses = (await site.vmi(vm))["status"]["volumeStatus"]
    assert [entry["name"] for entry in statuses] == ["one", "root", "two"]
    assert {entry["phase"] for entry in statuses if "hotplugVolume" in entry} == {"Ready"}


async def test_a_quota_that_has_no_room_for_the_pod_is_the_event_failed_create(site: Site) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await site.quota({"count/pods": "1"})
    vmi = await plug_until(site, vm, "data", "Bound")
    assert step_in(vmi, "data") == BOUND
    await site.event_until(vm, "FailedCreate")
    assert "exceeded quota: quota" in dict(await site.events_of(vm))["FailedCreate"]


async def test_a_populated_filesystem_claim_is_attached_and_tells_its_overhead(site: Site) -> None:
    vm = await site.running_vm()
    await made(site, blank("data", storageClassName="local-filesystem"))
    vmi = await plug_until(site, vm, "data", "Ready")
    info = entry_of(vmi, "data")["persistentVolumeClaimInfo"]
    assert (info["volumeMode"], info["filesystemOverhead"]) == ("Filesystem", "0.06")
    pod = await pod_of(site, vmi, "data")
    (container,) = pod["spec"]["containers"]
    assert "data" in [mount["name"] for mount in container["volumeMounts"]]
    assert "volumeDevices" not in container


async def test_a_bare_empty_filesystem_claim_stays_attached_to_node_with_the_event_hotplug_failed(site: Site) -> None:
    vm = await site.running_vm()
    claim = bare_claim("data", storageClassName="local-filesystem", volumeMode="Filesystem")
    await site.client.create(site.claims, claim)
    await site.claim_seen("data")
    assert (await site.add(vm, add_options("data"))).code == 202
    await site.event_until(vm, "HotplugFailed")
    vmi = await site.vmi(vm)
    pod = await pod_of(site, vmi, "data")
    assert step_in(vmi, "data") == attached_by(pod, "data")
    assert pod_in(vmi, "data") == {"attachPodName": pod["metadata"]["name"], "attachPodUID": pod["metadata"]["uid"]}


async def test_a_preallocated_claim_is_told_to_be_so(site: Site) -> None:
    vm = await site.running_vm()
    body = bare_claim("data")
    body["metadata"]["annotations"] = {"cdi.kubevirt.io/storage.preallocation": "true"}
    await site.client.create(site.claims, body)
    await site.claim_seen("data")
    vmi = await plug_until(site, vm, "data", "Ready")
    assert entry_of(vmi, "data")["persistentVolumeClaimInfo"]["preallocated"] is True
