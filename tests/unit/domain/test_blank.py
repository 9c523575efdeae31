"""The decision whether a disk may be formatted, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from kubevirt_csi.domain.blank import Evidence, Format, Probe, Probed, Refuse, UseAsIs, decide
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.telltales import Telltale
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext

GIB = 1024**3
NOTHING = Probe(result=Probed.NOTHING)
LAST = Telltale(GIB - 1024**2, 1024**2, "its last MiB")
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
        "written": None,
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
            {"probe": Probe(result=Probed.FOUND, kind="ntfs", is_file_system=True)}, "ntfs", id="other file system"
        ),
        pytest.param({"probe": Probe(result=Probed.AMBIVALENT)}, "contradict", id="several"),
        pytest.param({"written": LAST}, "its last MiB is not zero", id="something that no tool knows"),
        pytest.param({"mark": "pvc-9", "written": LAST}, "'pvc-9'", id="another volume's mark"),
        pytest.param({"mark": "", "written": LAST}, "mark", id="damaged mark"),
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
    assert decision.wipe


def test_an_override_for_another_serial_permits_nothing() -> None:
    assert "not formatted" in refusal(evidence(written=LAST, context={"override": "true"}))


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
    decision = decide(evidence(mark="pvc-1", probe=probe, written=LAST, context={"content": content}))
    assert isinstance(decision, Format)
    assert (decision.after_zero_read, decision.wipe) == (False, True)


def test_our_own_mark_permits_nothing_on_a_volume_that_was_made_from_a_source() -> None:
    refusal(evidence(mark="pvc-1", written=LAST, context={"content": Content.SOURCE}))


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


@pytest.mark.parametrize(("requested", "smallest"), [("", 8), ("ext4", 8), ("xfs", 300), ("btrfs", 110)])
@pytest.mark.parametrize("mark", [None, "pvc-1"])
def test_a_disk_too_small_for_its_file_system_is_refused_with_the_minimum(
    requested: str, smallest: int, mark: str | None
) -> None:
    enough = smallest * 1024**2

    def of(size: int) -> Evidence:
        return evidence(requested=requested, mark=mark, disk={"size_bytes": size}, context={"size_bytes": 0})

    assert f"{requested or 'ext4'}, which needs at least {enough} bytes" in refusal(of(enough - 512))
    assert isinstance(decide(of(enough)), Format)


def test_the_size_does_not_matter_to_a_file_system_that_is_there() -> None:
    assert decide(evidence(probe=EXT4, disk={"size_bytes": GIB // 2})) == UseAsIs("ext4")


def test_a_read_only_disk_is_not_formatted() -> None:
    assert "read-only" in refusal(evidence(disk={"read_only": True}))
