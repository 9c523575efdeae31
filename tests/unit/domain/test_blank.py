"""The decision whether a disk may be formatted, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from kubevirt_csi.domain.blank import Evidence, Format, Probe, Probed, Refuse, UseAsIs, decide
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext

GIB = 1024**3
NOTHING = Probe(result=Probed.NOTHING)
EXT4 = Probe(result=Probed.FOUND, kind="ext4", is_file_system=True)


def evidence(*, disk: dict[str, Any] | None = None, context: dict[str, Any] | None = None, **changes: Any) -> Evidence:
    """A blank disk of a fresh volume, with changes."""
    shown: dict[str, Any] = {
        "name": "vdb",
        "path": "/dev/vdb",
        "number": DeviceNumber(253, 1),
        "size_bytes": GIB,
        "serial": "s1",
    }
    told: dict[str, Any] = {"serial": "s1", "bus": Bus.VIRTIO, "size_bytes": GIB, "content": Content.NONE}
    plain: dict[str, Any] = {
        "volume_id": "pvc-1",
        "probe": NOTHING,
        "edges_zero": True,
        "mark": None,
        "recorded": False,
        "requested": "",
    }
    return Evidence(
        **(plain | changes), disk=Disk(**(shown | (disk or {}))), context=PublishContext(**(told | (context or {})))
    )


def refusal(of: Evidence) -> str:
    decision = decide(of)
    assert isinstance(decision, Refuse), decision
    return decision.reason


def test_a_blank_disk_of_a_fresh_volume_is_formatted_at_once() -> None:
    assert decide(evidence()) == Format(after_zero_read=False, reason="the disk is blank")


@pytest.mark.parametrize(
    "used",
    [
        pytest.param({"context": {"content": Content.USED}}, id="by the controller's word"),
        pytest.param({"recorded": True}, id="by this node's record"),
    ],
)
def test_a_blank_disk_of_a_used_volume_is_read_first(used: dict[str, Any]) -> None:
    decision = decide(evidence(**used))
    assert isinstance(decision, Format)
    assert decision.after_zero_read


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param({"probe": Probe(result=Probed.FOUND, kind="LVM2_member")}, "LVM2_member", id="lvm"),
        pytest.param({"probe": Probe(result=Probed.FOUND, kind="dos")}, "dos", id="partition table"),
        pytest.param(
            {"probe": Probe(result=Probed.FOUND, kind="btrfs", is_file_system=True)}, "btrfs", id="other file system"
        ),
        pytest.param({"probe": Probe(result=Probed.AMBIVALENT)}, "contradict", id="several"),
        pytest.param({"edges_zero": False}, "first or last MiB", id="dirty edges"),
        pytest.param({"mark": "pvc-9", "edges_zero": False}, "'pvc-9'", id="another volume's mark"),
        pytest.param({"mark": "", "edges_zero": False}, "mark", id="damaged mark"),
        pytest.param({"context": {"content": Content.SOURCE}}, "snapshot or a clone", id="source"),
    ],
)
def test_what_is_not_provably_blank_is_refused_unless_an_operator_permits_it(found: dict[str, Any], words: str) -> None:
    reason = refusal(evidence(**found))
    assert words in reason
    assert "csi.kubevirt.io/format-override=s1" in reason
    permitted = found | {"context": found.get("context", {}) | {"override": "s1"}}
    decision = decide(evidence(**permitted))
    assert isinstance(decision, Format)
    assert words in decision.reason


def test_an_override_for_another_serial_permits_nothing() -> None:
    assert "not formatted" in refusal(evidence(edges_zero=False, context={"override": "true"}))


def test_an_override_does_not_touch_a_file_system_that_can_be_mounted() -> None:
    assert decide(evidence(probe=EXT4, context={"override": "s1"})) == UseAsIs("ext4")
    assert "xfs was asked for" in refusal(evidence(probe=EXT4, requested="xfs", context={"override": "s1"}))


@pytest.mark.parametrize("requested", ["", "ext4"])
@pytest.mark.parametrize("content", list(Content))
def test_a_file_system_that_is_there_is_used(requested: str, content: Content) -> None:
    assert decide(evidence(probe=EXT4, requested=requested, context={"content": content})) == UseAsIs("ext4")


@pytest.mark.parametrize("probe", [EXT4, NOTHING])
@pytest.mark.parametrize("content", [Content.NONE, Content.USED])
def test_our_own_mark_means_that_nothing_was_ever_mounted(probe: Probe, content: Content) -> None:
    decision = decide(evidence(mark="pvc-1", probe=probe, edges_zero=False, context={"content": content}))
    assert isinstance(decision, Format)
    assert not decision.after_zero_read


def test_our_own_mark_permits_nothing_on_a_volume_that_was_made_from_a_source() -> None:
    refusal(evidence(mark="pvc-1", edges_zero=False, context={"content": Content.SOURCE}))


@pytest.mark.parametrize("override", [None, "s1"])
@pytest.mark.parametrize(
    ("blocked", "words"),
    [
        pytest.param({"partitions": ("vdb1",)}, "vdb1", id="partitions"),
        pytest.param({"holders": ("dm-0",)}, "dm-0", id="holders"),
    ],
)
@pytest.mark.parametrize("probe", [NOTHING, EXT4])
def test_a_disk_that_others_are_built_on_is_left_alone(
    blocked: dict[str, Any], words: str, probe: Probe, override: str | None
) -> None:
    assert words in refusal(evidence(disk=blocked, probe=probe, context={"override": override}))


@pytest.mark.parametrize("override", [None, "s1"])
@pytest.mark.parametrize("mark", [None, "pvc-1"])
def test_a_disk_that_is_smaller_than_promised_is_not_formatted(mark: str | None, override: str | None) -> None:
    assert "smaller than" in refusal(
        evidence(mark=mark, disk={"size_bytes": GIB - 512}, context={"override": override})
    )


def test_a_disk_of_unknown_promise_must_still_have_room_for_the_proof() -> None:
    assert "smaller than" in refusal(evidence(disk={"size_bytes": 2 * 1024**2}, context={"size_bytes": 0}))


def test_the_size_does_not_matter_to_a_file_system_that_is_there() -> None:
    assert decide(evidence(probe=EXT4, disk={"size_bytes": GIB // 2})) == UseAsIs("ext4")


def test_a_read_only_disk_is_not_formatted() -> None:
    assert "read-only" in refusal(evidence(disk={"read_only": True}))
