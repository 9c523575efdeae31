from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from kubevirt_csi.domain.machines import Machine, PluggedVolume, VolumeStatus
from kubevirt_csi.infra.virtualmachines import instance, join, virtual_machine


def vm(**more: Any) -> dict[str, Any]:
    devices = {
        "disks": [
            {"name": "root", "disk": {"bus": "virtio"}},
            {"name": "pvc-1", "disk": {"bus": "scsi"}, "serial": "abc"},
            {"name": "data", "lun": {"bus": "scsi"}},
        ]
    }
    volumes = [
        {"name": "root", "containerDisk": {"image": "x"}},
        {"name": "pvc-1", "dataVolume": {"name": "pvc-1", "hotpluggable": True}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "pvc-2"}},
        {"name": "scratch", "ephemeral": {"persistentVolumeClaim": {"claimName": "pvc-3"}}},
        {"name": "dump", "memoryDump": {"claimName": "pvc-4", "hotpluggable": True}},
    ]
    spec = {"template": {"spec": {"domain": {"devices": devices}, "volumes": volumes}}}
    return {"metadata": {"name": "worker-1", "uid": "u1", "labels": {"a": "b"}}, "spec": spec, **more}


def test_every_volume_that_stands_for_a_claim_is_seen_with_its_disk() -> None:
    assert virtual_machine(vm()).volumes == {
        "pvc-1": PluggedVolume(name="pvc-1", claim="pvc-1", hotpluggable=True, serial="abc", bus="scsi"),
        "data": PluggedVolume(name="data", claim="pvc-2", hotpluggable=False, bus="scsi"),
        "scratch": PluggedVolume(name="scratch", claim="pvc-3", hotpluggable=False),
        "dump": PluggedVolume(name="dump", claim="pvc-4", hotpluggable=True),
    }


def queued_add(name: str = "pvc-9") -> dict[str, Any]:
    disk = {"name": name, "disk": {"bus": "virtio"}, "serial": "s9"}
    source = {"dataVolume": {"name": name, "hotpluggable": True}}
    return {"addVolumeOptions": {"name": name, "disk": disk, "volumeSource": source}}


def queued_remove(name: str) -> dict[str, Any]:
    return {"removeVolumeOptions": {"name": name}}


def test_an_add_that_still_waits_in_the_queue_counts_as_part_of_the_spec_and_is_told_from_it() -> None:
    found = virtual_machine(vm(status={"volumeRequests": [queued_add(), queued_remove("data")]}))
    assert found.volumes["pvc-9"] == PluggedVolume(
        name="pvc-9", claim="pvc-9", hotpluggable=True, serial="s9", bus="virtio", queued=True
    )
    assert found.leaving == frozenset({"data"})
    assert "data" in found.volumes


def test_an_add_that_was_carried_out_and_is_still_in_the_queue_is_in_the_spec() -> None:
    found = virtual_machine(vm(status={"volumeRequests": [queued_add("pvc-1")]}))
    assert found.volumes["pvc-1"] == PluggedVolume(
        name="pvc-1", claim="pvc-1", hotpluggable=True, serial="abc", bus="scsi"
    )


def test_the_last_of_several_requests_for_a_volume_counts() -> None:
    assert virtual_machine(vm(status={"volumeRequests": [queued_add(), queued_remove("pvc-9")]})).leaving == {"pvc-9"}
    assert not virtual_machine(vm(status={"volumeRequests": [queued_remove("pvc-9"), queued_add()]})).leaving


def test_what_keeps_a_vm_from_taking_disks_is_seen() -> None:
    found = virtual_machine(vm())
    assert (found.deleting, found.migrates_volumes) == (False, False)
    odd = vm()
    odd["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    odd["spec"]["updateVolumesStrategy"] = "Migration"
    found = virtual_machine(odd)
    assert (found.deleting, found.migrates_volumes) == (True, True)
    machine = join("m", found, None)
    assert machine is not None
    assert (machine.deleting, machine.migrates_volumes) == (True, True)


def test_an_instance_that_was_started_without_hotplug_is_told() -> None:
    spec = {"domain": {"devices": {"disableHotplug": True}}}
    assert instance({"metadata": {}, "spec": spec}).hotplug_disabled
    assert not instance({"metadata": {}, "spec": {"domain": {"devices": {}}}}).hotplug_disabled


def test_the_overhead_of_a_filesystem_claim_is_read_exactly() -> None:
    def overhead(**info: str) -> Fraction | None:
        status = {"volumeStatus": [{"name": "v", "persistentVolumeClaimInfo": info}]}
        return instance({"metadata": {}, "status": status}).statuses["v"].overhead

    assert overhead(filesystemOverhead="0.055") == Fraction(55, 1000)
    assert overhead(filesystemOverhead="0") == 0
    assert overhead() is None


def test_the_failure_condition_tells_why_changes_do_not_get_through() -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "Failure", "status": "True", "reason": "HotPlugVolumeError", "message": "bus sata"},
    ]
    assert virtual_machine(vm(status={"conditions": conditions})).failure == "bus sata"
    conditions[1]["status"] = "False"
    assert virtual_machine(vm(status={"conditions": conditions})).failure == ""


def test_the_status_of_an_instance_is_read_as_kubevirt_writes_it() -> None:
    statuses = [
        {"name": "root", "target": "vda"},
        {
            "name": "pvc-1",
            "target": "",
            "phase": "Bound",
            "reason": "PVCNotReady",
            "message": "PVC is in phase Bound",
            "hotplugVolume": {},
            "persistentVolumeClaimInfo": {"claimName": "pvc-1"},
        },
    ]
    found = instance({"metadata": {"uid": "i1"}, "status": {"phase": "Running", "volumeStatus": statuses}})
    assert (found.uid, found.phase, found.deleting, found.migrating) == ("i1", "Running", False, False)
    assert found.statuses["pvc-1"] == VolumeStatus(
        name="pvc-1",
        phase="Bound",
        reason="PVCNotReady",
        message="PVC is in phase Bound",
        claim="pvc-1",
        hotplug=True,
    )
    assert not found.statuses["root"].hotplug


@pytest.mark.parametrize(
    ("migration", "migrating"),
    [
        (None, False),
        ({"startTimestamp": "t"}, True),
        ({"startTimestamp": "t", "endTimestamp": "t"}, False),
        ({"startTimestamp": "t", "completed": True}, False),
        ({"startTimestamp": "t", "failed": True}, False),
    ],
)
def test_a_migration_lasts_until_it_ended_in_some_way(migration: dict[str, Any] | None, migrating: bool) -> None:
    assert instance({"metadata": {}, "status": {"migrationState": migration}}).migrating is migrating


def test_a_deleted_instance_is_on_its_way_out() -> None:
    assert instance({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}).deleting


def test_objects_with_hardly_anything_in_them_are_read() -> None:
    machine = join("m", virtual_machine({"metadata": {}, "spec": None, "status": None}), instance({"metadata": {}}))
    assert machine is not None
    assert not machine.volumes


def test_half_a_machine_is_a_machine_and_none_is_none() -> None:
    vmi = instance({"metadata": {"uid": "i1"}})
    assert join("m", None, None) is None
    assert join("m", None, vmi) == Machine(name="m", uid=None, instance=vmi)
