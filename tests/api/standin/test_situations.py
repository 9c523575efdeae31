"""Special situations of a machine and what they do to its volumes, one row a test."""

from __future__ import annotations

from tests.api.standin.entries import (
    bare_volume,
    condition_in,
    held_by,
    in_spec,
    order,
    phase_in,
    plug_until,
    pod_in,
    pod_of,
    step_in,
    target_in,
    unplug,
    version_of,
)
from tests.api.standin.modes import KubeVirt
from tests.api.standin.site import Site, add_options, entry_of, hotplug, phase_of
from tests.api.standin.talking import Object
from tests.api.standin.volumes import bare_claim

VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
VMI_FINALIZER = "kubevirt.io/foregroundDeleteVirtualMachine"
VMI_ENDPOINT = "virtualmachineinstances"


def uid_of(obj: Object | None) -> str:
    uid: str = (obj or {"metadata": {"uid": ""}})["metadata"]["uid"]
    return uid


async def shared_volume(site: Site, name: str) -> str:
    """A bound claim that several nodes may use; returns its name."""
    await site.client.create(site.claims, bare_claim(name, accessModes=["ReadWriteMany"]))
    await site.claim_seen(name)
    return name


async def launcher_of(site: Site, vm: str) -> Object:
    """The one launcher pod of the VM."""
    (pod,) = await launchers_of(site, vm)
    return pod


async def launchers_of(site: Site, vm: str) -> list[Object]:
    items = (await site.client.get(f"{site.pods}?labelSelector=kubevirt.io%3Dvirt-launcher"))["items"]
    return [pod for pod in items if pod["metadata"]["labels"]["vm.kubevirt.io/name"] == vm]


async def kill_launcher(site: Site, vm: str) -> None:
    """Deletes the launcher pod with force."""
    pod = await launcher_of(site, vm)
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    assert (await site.client.call("DELETE", f"{site.pods}/{pod['metadata']['name']}", body)).code == 200


# VM restart


async def test_a_restarted_vm_waits_in_scheduled_until_its_volumes_are_mounted_again(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    first = await plug_until(site, vm, "data", "Ready")
    await order(site, f"{site.vms}/{vm}", restart="true")
    states = await site.vmi_until(
        vm,
        lambda vmi: uid_of(vmi) != uid_of(first) and phase_of(vmi) == "Running",
        since=first["metadata"]["resourceVersion"],
    )
    second = [state for state in states if uid_of(state) != uid_of(first)]
    # Another UID that knows nothing of before.
    assert "status" not in second[0] or "volumeStatus" not in second[0]["status"]
    assert "Scheduled" in {phase_of(state) for state in second if phase_in(state, "data") == "AttachedToNode"}
    assert phase_in(second[-1], "data") in ("MountedToPod", "Ready")
    launcher = await launcher_of(site, vm)
    assert [volume["name"] for volume in launcher["spec"].get("volumes", [])] == []
    # It was ordered once.
    assert "lab.csi.kubevirt.io/restart" not in (await site.vm(vm))["metadata"].get("annotations", {})
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready")
    assert uid_of(states[-1]) == uid_of(second[-1])


async def test_a_left_entry_whose_claim_was_deleted_keeps_the_vm_from_booting(site: Site) -> None:
    vm = await site.create_vm(volumes=(hotplug("deleted"), hotplug("data")))
    await bare_volume(site, "data")
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "deleted") and phase_in(vmi, "data") == "Bound")
    assert step_in(states[-1], "deleted") == ("Pending", "FailedPvcNotFound", "PVC deleted not found")
    # In the time that another VM takes to boot it does not come any further.
    await site.running_vm()
    vmi = await site.vmi(vm)
    assert (phase_of(vmi), phase_in(vmi, "data")) == ("Scheduled", "Bound")
    await site.client.create(site.claims, bare_claim("deleted"))
    await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Running")


async def test_up_to_v1_5_the_vm_boots_first_and_its_disks_follow(site: Site, kubevirt: KubeVirt) -> None:
    await kubevirt.configure(version="v1.5.0", enabled=["HotplugVolumes"])
    vm = await site.create_vm(volumes=(hotplug("data"),))
    states = await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Running")
    assert phase_in(states[-1], "data") == "Pending"
    await site.client.create(site.claims, bare_claim("data"))
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready")


# Live migration


async def test_a_volume_that_is_added_during_a_migration_is_attached_when_it_has_ended(site: Site) -> None:
    vm, elsewhere = await site.running_vm(), await site.running_vm()
    for name in ("old", "new", "other"):
        await shared_volume(site, name)
    await plug_until(site, vm, "old", "Ready")
    await order(site, f"{site.vms}/{vm}", migration="true")
    await site.vmi_until(vm, lambda vmi: migration_of(vmi).get("targetNode"))
    vmi = await plug_until(site, vm, "new", "AttachedToNode")
    assert "new" in in_spec(vmi)
    await site.vmi_until(vm, lambda vmi: pod_in(vmi, "new").get("attachPodUID"))
    # In the time that an attach takes elsewhere nothing happens here.
    await plug_until(site, elsewhere, "other", "Ready")
    assert phase_in(await site.vmi(vm), "new") == "AttachedToNode"
    await order(site, f"{site.vms}/{vm}", migration=None)
    since = vmi["metadata"]["resourceVersion"]
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "new") == "Ready", since=since)
    assert migration_of(states[-1])["completed"] is True
    assert {phase_in(state, "old") for state in states} == {"Ready"}
    assert uid_of(states[-1]) == uid_of(vmi)


async def test_a_migration_has_a_target_attachment_pod_and_ends_on_the_other_node(site: Site) -> None:
    vm = await site.running_vm()
    await shared_volume(site, "data")
    vmi = await plug_until(site, vm, "data", "Ready")
    source = await pod_of(site, vmi, "data")
    await order(site, f"{site.vms}/{vm}", migration="true")
    states = await site.vmi_until(vm, lambda vmi: migration_of(vmi).get("targetAttachmentPodUID"))
    state = migration_of(states[-1])
    assert (state["sourceNode"], state["targetNode"]) == ("infra-1", "infra-2")
    assert not {"endTimestamp", "completed", "failed"} & state.keys()
    assert {"startTimestamp", "migrationUid"} <= state.keys()
    pods = {pod["spec"]["nodeName"]: pod for pod in await site.attachment_pods() if "nodeName" in pod["spec"]}
    assert {node: held_by(pod) for node, pod in pods.items()}["infra-1"] == {"data"}
    assert pod_in(states[-1], "data")["attachPodUID"] == uid_of(source)
    await order(site, f"{site.vms}/{vm}", migration=None)
    states = await site.vmi_until(
        vm, lambda vmi: pod_in(vmi, "data").get("attachPodUID") == state["targetAttachmentPodUID"]
    )
    moved = states[-1]
    assert (moved["status"]["nodeName"], moved["metadata"]["labels"]["kubevirt.io/nodeName"]) == ("infra-2", "infra-2")
    assert migration_of(moved)["completed"] is True
    assert (phase_in(moved, "data"), target_in(moved, "data")) == ("Ready", "sdb")
    # What was at the source goes: the launcher pod, and with it its attachment pod.
    await site.pods_until(1)
    (pod,) = await site.attachment_pods()
    assert pod["spec"]["nodeName"] == "infra-2"
    await site.client.follow_count(site.pods, "kubevirt.io=virt-launcher", 1)


async def test_a_volume_for_one_node_makes_the_vm_immovable_until_it_is_detached(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    await site.vmi_until(vm, lambda vmi: condition_in(vmi, "LiveMigratable").get("status") == "True")
    await plug_until(site, vm, "data", "Ready")
    states = await site.vmi_until(vm, lambda vmi: condition_in(vmi, "LiveMigratable").get("status") == "False")
    assert condition_in(states[-1], "LiveMigratable")["reason"] == "DisksNotLiveMigratable"
    await order(site, f"{site.vms}/{vm}", migration="true")
    await site.event_until(vm, "FailedMigration")
    assert migration_of(await site.vmi(vm)) == {}
    await unplug(site, vm, "data")
    await site.vmi_until(vm, lambda vmi: condition_in(vmi, "LiveMigratable").get("status") == "True")
    await site.vmi_until(vm, lambda vmi: migration_of(vmi).get("sourceNode") == "infra-1")


# VM paused


async def test_volumes_of_a_paused_vm_come_and_go(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    await order(site, f"{site.vms}/{vm}", paused="true")
    await site.vmi_until(vm, lambda vmi: condition_in(vmi, "Paused").get("status") == "True")
    await site.client.follow(site.vms, vm, lambda vm: (vm or {})["status"]["printableStatus"] == "Paused")
    vmi = await plug_until(site, vm, "data", "Ready")
    assert phase_of(vmi) == "Running"
    await unplug(site, vm, "data")
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {})
    await order(site, f"{site.vms}/{vm}", paused=None)
    await site.vmi_until(vm, lambda vmi: condition_in(vmi, "Paused") == {})


# VM and VMI deleted


async def test_a_deleted_vm_keeps_its_finalizer_until_its_vmi_is_gone(site: Site) -> None:
    vm = await site.running_vm()
    await order(site, f"{site.vms}/{vm}", virt_handler_down="true")
    await site.client.delete(f"{site.vms}/{vm}")
    await site.vmi_until(vm, lambda vmi: "deletionTimestamp" in (vmi or {})["metadata"])
    assert VM_FINALIZER in (await site.vm(vm))["metadata"]["finalizers"]
    await order(site, f"{site.vms}/{vm}", virt_handler_down=None)
    await site.client.follow(site.vms, vm, lambda vm: vm is None)
    assert (await site.client.call("GET", f"{site.vmis}/{vm}")).code == 404


async def test_orphan_deletion_leaves_a_vmi_without_owner_whose_volumes_can_be_removed_at_its_endpoint(
    site: Site,
) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    vmi = await plug_until(site, vm, "data", "Ready")
    await site.client.delete(f"{site.vms}/{vm}?propagationPolicy=Orphan")
    await site.client.follow(site.vms, vm, lambda vm: vm is None)
    orphan = await site.vmi(vm)
    assert (uid_of(orphan), orphan["metadata"].get("ownerReferences", [])) == (uid_of(vmi), [])
    assert (phase_of(orphan), phase_in(orphan, "data")) == ("Running", "Ready")
    assert (await site.remove(vm, {"name": "data"}, kind=VMI_ENDPOINT)).code == 202
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {})


async def test_a_vmi_that_is_being_deleted_keeps_its_finalizer_and_tells_nothing_new_of_its_volumes(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    vmi = await plug_until(site, vm, "data", "Ready")
    assert vmi["metadata"]["finalizers"] == [VMI_FINALIZER]
    await unplug(site, vm, "data")
    await site.client.patch(f"{site.vms}/{vm}", {"spec": {"runStrategy": "Halted"}})
    states = await site.client.follow(site.vmis, vm, lambda vmi: vmi is None, since=vmi["metadata"]["resourceVersion"])
    deleting = [state for state in states if state is not None and "deletionTimestamp" in state["metadata"]]
    told = {str(entry_of(state, "data")) for state in deleting}
    assert len(told) == 1
    await site.pods_until(0)


# Handler and node


async def test_without_virt_handler_attaching_is_stuck_attached_to_node_and_detaching_ready(site: Site) -> None:
    vm = await site.running_vm()
    for name in ("leaving", "coming"):
        await bare_volume(site, name)
    await plug_until(site, vm, "leaving", "Ready")
    await order(site, f"{site.vms}/{vm}", virt_handler_down="true")
    await unplug(site, vm, "leaving")
    await plug_until(site, vm, "coming", "AttachedToNode")
    states = await site.vmi_until(vm, lambda vmi: pod_in(vmi, "coming").get("attachPodUID"))
    assert (phase_of(states[-1]), phase_in(states[-1], "leaving")) == ("Running", "Ready")
    assert target_in(states[-1], "leaving") == "sdb"
    await order(site, f"{site.vms}/{vm}", virt_handler_down=None)
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "coming") == "Ready" and not entry_of(vmi, "leaving"))


async def test_a_lost_node_leaves_the_vmi_running_until_its_pod_is_gone_and_then_failed(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    vmi = await plug_until(site, vm, "data", "Ready")
    await order(site, f"{site.vms}/{vm}", virt_handler_down="true")
    assert phase_of(await site.vmi(vm)) == "Running"
    await kill_launcher(site, vm)
    states = await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Failed", since=vmi["metadata"]["resourceVersion"])
    assert states[-1]["status"]["reason"] == "NodeUnresponsive"
    await order(site, f"{site.vms}/{vm}", virt_handler_down=None)
    states = await site.vmi_until(vm, lambda vmi: uid_of(vmi) != uid_of(states[-1]) and phase_of(vmi) == "Running")


async def test_a_guest_that_shuts_down_leaves_a_succeeded_vmi_and_free_volumes(site: Site) -> None:
    vm = await site.running_vm()
    await bare_volume(site, "data")
    vmi = await plug_until(site, vm, "data", "Ready")
    await order(site, f"{site.vms}/{vm}", guest_shutdown="true")
    states = await site.client.follow(
        site.vmis, vm, lambda new: uid_of(new) != uid_of(vmi), since=vmi["metadata"]["resourceVersion"]
    )
    ended = [state for state in states if uid_of(state) == uid_of(vmi)]
    assert "Succeeded" in {phase_of(state) for state in ended}
    assert "Failed" not in {phase_of(state) for state in ended}
    pods = {uid_of(pod) for pod in await site.attachment_pods()}
    assert pod_in(vmi, "data")["attachPodUID"] not in pods


async def test_a_launcher_pod_that_is_deleted_with_force_fails_the_vmi_and_takes_the_attachment_pod_along(
    site: Site,
) -> None:
    vm = await site.running_vm()
    for name in ("first", "data"):
        await bare_volume(site, name)
        await plug_until(site, vm, name, "Ready")
    await unplug(site, vm, "first")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "first") == {})
    vmi = states[-1]
    assert target_in(vmi, "data") == "sdc"
    pod = await pod_of(site, vmi, "data")
    await kill_launcher(site, vm)
    states = await site.vmi_until(vm, lambda vmi: phase_of(vmi) == "Failed", since=vmi["metadata"]["resourceVersion"])
    assert "reason" not in states[-1]["status"]
    await site.client.follow(site.pods, pod["metadata"]["name"], lambda pod: pod is None)
    # The new machine is another run of the guest: its disks are plugged anew.
    states = await site.vmi_until(vm, lambda new: uid_of(new) != uid_of(vmi) and phase_in(new, "data") == "Ready")
    assert target_in(states[-1], "data") == "sdb"


# Lost status


async def test_a_target_that_was_ordered_to_be_lost_leaves_the_volume_ready_without_one(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await order(site, f"{site.claims}/data", lost_status="target")
    states = await site.vmi_until(vm, lambda vmi: target_in(vmi, "data") == "")
    assert phase_in(states[-1], "data") == "Ready"
    await order(site, f"{site.claims}/data", lost_status=None)
    await site.vmi_until(vm, lambda vmi: target_in(vmi, "data") == "sdb")


async def test_an_entry_that_was_ordered_to_be_lost_is_gone_though_the_disk_is_there(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await order(site, f"{site.claims}/data", lost_status="entry")
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {})
    assert "data" in in_spec(states[-1])
    assert (site.machines / vm / "data").exists()
    await order(site, f"{site.claims}/data", lost_status=None)
    await site.vmi_until(vm, lambda vmi: phase_in(vmi, "data") == "Ready")


async def test_a_volume_without_entry_is_still_unplugged_when_it_leaves_the_spec(site: Site) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "data")
    await bare_volume(site, "other")
    await order(site, f"{site.claims}/data", lost_status="entry")
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data") == {})
    await unplug(site, vm, "data")
    await plug_until(site, vm, "other", "Ready")
    assert not (site.machines / vm / "data").exists()


async def test_an_entry_is_never_reported_while_its_loss_is_ordered(site: Site) -> None:
    vm = await site.running_vm()
    for name in ("data", "other"):
        await bare_volume(site, name)
    await order(site, f"{site.claims}/data", lost_status="entry")
    since = await version_of(site, vm)
    assert (await site.add(vm, add_options("data"))).code == 202
    assert (await site.add(vm, add_options("other"))).code == 202
    states = await site.vmi_until(vm, lambda vmi: phase_in(vmi, "other") == "Ready", since=since)
    assert {str(entry_of(state, "data")) for state in states} == {"{}"}


def migration_of(vmi: Object | None) -> Object:
    state: Object = (vmi or {}).get("status", {}).get("migrationState", {})
    return state
