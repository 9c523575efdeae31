"""A machine: who holds what, what is attached, and what is still under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubevirt_csi.domain.machines import Instance, Machine, PluggedVolume, VolumeStatus

DISK = PluggedVolume(name="pvc-1", claim="pvc-1", hotpluggable=True)
READY = VolumeStatus(name="pvc-1", phase="Ready", target="sda", claim="pvc-1", hotplug=True)


def machine(
    *,
    spec: tuple[PluggedVolume, ...] = (),
    vmi: tuple[PluggedVolume, ...] = (),
    status: tuple[VolumeStatus, ...] = (),
    phase: str = "Running",
    uid: str | None = "vm",
    deleting: bool = False,
) -> Machine:
    instance = Instance(
        uid="vmi",
        phase=phase,
        volumes={v.name: v for v in vmi},
        statuses={s.name: s for s in status},
        deleting=deleting,
    )
    return Machine(name="vm1", uid=uid, volumes={v.name: v for v in spec}, instance=instance)


@pytest.mark.parametrize(
    "holder",
    [
        pytest.param(machine(spec=(DISK,)), id="VM spec"),
        pytest.param(machine(vmi=(DISK,)), id="VMI spec"),
        pytest.param(machine(status=(READY,)), id="VMI status"),
        pytest.param(machine(spec=(PluggedVolume(name="data", claim="pvc-1", hotpluggable=False),)), id="by claim"),
        pytest.param(machine(status=(VolumeStatus(name="data", claim="pvc-1"),)), id="by claim in status"),
    ],
)
def test_a_volume_is_held_wherever_it_is(holder: Machine) -> None:
    assert holder.holds("pvc-1")
    assert not holder.holds("pvc-2")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_instance_that_has_ended_holds_nothing_and_has_nothing(phase: str) -> None:
    ended = machine(vmi=(DISK,), status=(READY,), phase=phase)
    assert not ended.holds("pvc-1")
    assert not ended.attached("pvc-1")
    assert ended.unsettled() == frozenset()


def test_ready_without_target_and_target_without_ready_are_not_attached() -> None:
    for status in (VolumeStatus(name="pvc-1", phase="Ready"), VolumeStatus(name="pvc-1", phase="Bound", target="sda")):
        assert not machine(spec=(DISK,), vmi=(DISK,), status=(status,)).attached("pvc-1")
    assert machine(vmi=(DISK,), status=(READY,)).attached("pvc-1")


def test_a_disk_that_has_left_the_instances_spec_or_is_queued_to_leave_is_not_attached_any_more() -> None:
    assert not machine(spec=(DISK,), status=(READY,)).attached("pvc-1")
    attached = machine(spec=(DISK,), vmi=(DISK,), status=(READY,))
    assert attached.attached("pvc-1")
    leaving = replace(attached, leaving=frozenset({"pvc-1"}))
    assert not leaving.attached("pvc-1")
    assert leaving.holds("pvc-1")
    assert leaving.unsettled() == {"pvc-1"}


@pytest.mark.parametrize(
    ("changing", "names"),
    [
        pytest.param(machine(spec=(DISK,), vmi=(DISK,), status=(READY,)), set(), id="attached"),
        pytest.param(machine(spec=(DISK,)), {"pvc-1"}, id="just asked for"),
        pytest.param(machine(vmi=(DISK,), status=(READY,)), {"pvc-1"}, id="just taken out"),
        pytest.param(machine(status=(READY,)), {"pvc-1"}, id="still in status"),
        pytest.param(machine(vmi=(DISK,), status=(READY,), uid=None), set(), id="VM gone, attached"),
        pytest.param(machine(spec=(DISK,), phase="Scheduled"), set(), id="no guest"),
        pytest.param(machine(status=(VolumeStatus(name="root", phase="Ready", target="vda"),)), set(), id="permanent"),
    ],
)
def test_what_is_under_way_is_told(changing: Machine, names: set[str]) -> None:
    assert changing.unsettled() == names


@pytest.mark.parametrize(("phase", "deleting"), [("Scheduled", False), ("Running", True), ("Unknown", False)])
def test_only_a_running_guest_that_stays_takes_disks(phase: str, deleting: bool) -> None:
    assert not machine(phase=phase, deleting=deleting).running
    assert machine().running


def test_a_vm_that_is_being_deleted_holds_its_volumes_until_its_instance_has_ended() -> None:
    going = replace(machine(spec=(DISK,), vmi=(DISK,), status=(READY,)), deleting=True)
    assert going.holds("pvc-1")
    assert not replace(going, instance=None).holds("pvc-1")
    assert replace(going, instance=None, deleting=False).holds("pvc-1")


def test_where_a_volume_is_and_what_may_hold_it_up_is_told_in_words() -> None:
    queued = replace(DISK, queued=True)
    odd = replace(
        machine(spec=(queued,), status=(READY,), phase="Scheduled"),
        leaving=frozenset({"pvc-1"}),
        deleting=True,
        migrates_volumes=True,
        failure="no luck",
    )
    text = odd.whereabouts("pvc-1")
    for words in (
        "waiting to be added",
        "waiting to be removed",
        "VMI status (Ready",
        "VM is being deleted",
        "VMI phase Scheduled",
        "updateVolumesStrategy is Migration",
        "VM reports: no luck",
    ):
        assert words in text
    assert machine().whereabouts("pvc-1") == "in neither spec nor status"
