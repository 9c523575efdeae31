"""The decision about formatting, over all evidence: what must hold whatever was found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubevirt_csi.domain.access import DEFAULT_FILE_SYSTEM, FILE_SYSTEMS
from kubevirt_csi.domain.blank import Evidence, Format, Probe, Probed, Refuse, UseAsIs, decide
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.domain.mkfs import SMALLEST_BYTES
from kubevirt_csi.domain.telltales import BLOCK_BYTES, MIB, telltales
from kubevirt_csi.domain.volumes import Bus, Content, PublishContext

KINDS = (*FILE_SYSTEMS, "ntfs", "LVM2_member", "crypto_LUKS", "linux_raid_member", "swap", "gpt", "dos", "")
SIZES = st.sampled_from([0, 512, 4 * MIB, 8 * MIB, 110 * MIB, 300 * MIB, 2**40])


@st.composite
def probes(draw: Any) -> Probe:
    kind = draw(st.sampled_from(KINDS))
    result = draw(st.sampled_from(Probed))
    if result is not Probed.FOUND:
        return Probe(result=result)
    return Probe(result=result, kind=kind, is_file_system=kind in (*FILE_SYSTEMS, "ntfs") and draw(st.booleans()))


@st.composite
def evidences(draw: Any) -> Evidence:
    disk = Disk(
        name="vdb",
        path="/dev/vdb",
        number=DeviceNumber(253, 1),
        size_bytes=draw(SIZES),
        serial="s1",
        read_only=draw(st.booleans()),
        holders=draw(st.sampled_from([(), ("dm-0",)])),
        partitions=draw(st.sampled_from([(), ("vdb1",)])),
    )
    context = PublishContext(
        serial="s1",
        bus=Bus.VIRTIO,
        size_bytes=draw(SIZES),
        content=draw(st.sampled_from(Content)),
        override=draw(st.sampled_from([None, "", "s1", "s2", "true"])),
    )
    return Evidence(
        volume_id="pvc-1",
        disk=disk,
        probe=draw(probes()),
        written=draw(st.sampled_from([None, *telltales(8 * MIB)[:3]])),
        mark=draw(st.sampled_from([None, "", "pvc-1", "pvc-2"])),
        recorded=draw(st.booleans()),
        context=context,
        requested=draw(st.sampled_from(["", *FILE_SYSTEMS])),
    )


@given(evidences())
def test_a_format_is_allowed_by_our_mark_by_an_override_or_by_nothing_being_there(evidence: Evidence) -> None:
    if not isinstance(decide(evidence), Format):
        return
    ours = evidence.mark == "pvc-1" and evidence.context.content is not Content.SOURCE
    permitted = evidence.context.override == evidence.context.serial
    blank = evidence.probe.result is Probed.NOTHING and evidence.written is None and evidence.mark is None
    assert ours or permitted or (blank and evidence.context.content is not Content.SOURCE)


@given(evidences())
def test_a_blank_disk_of_a_volume_that_was_used_is_never_formatted_unread(evidence: Evidence) -> None:
    decision = decide(evidence)
    if isinstance(decision, Format) and not decision.wipe:
        used = evidence.recorded or evidence.context.content is not Content.NONE
        assert decision.after_zero_read == used


@given(evidences())
def test_nothing_is_formatted_that_is_in_use_read_only_or_too_small(evidence: Evidence) -> None:
    disk = evidence.disk
    if isinstance(decide(evidence), Format):
        assert (disk.holders, disk.partitions, disk.read_only) == ((), (), False)
        smallest = SMALLEST_BYTES[evidence.requested or DEFAULT_FILE_SYSTEM]
        assert disk.size_bytes >= max(evidence.context.size_bytes, smallest)


@given(evidences())
def test_a_file_system_that_can_be_mounted_is_formatted_under_our_own_mark_only(evidence: Evidence) -> None:
    probe = evidence.probe
    mountable = probe.is_file_system and probe.kind in FILE_SYSTEMS
    if mountable and isinstance(decide(evidence), Format):
        assert evidence.mark == evidence.volume_id


@given(evidences())
def test_what_is_used_as_it_is_is_of_the_type_that_was_asked_for(evidence: Evidence) -> None:
    decision = decide(evidence)
    if isinstance(decision, UseAsIs):
        assert decision.fs_type == evidence.probe.kind
        assert evidence.requested in ("", decision.fs_type)


@given(evidences())
def test_without_an_override_less_is_allowed_and_nothing_else_changes(evidence: Evidence) -> None:
    without = decide(replace(evidence, context=replace(evidence.context, override=None)))
    if not isinstance(without, Refuse):
        assert decide(evidence) == without


@given(evidences())
def test_every_refusal_names_the_disk(evidence: Evidence) -> None:
    decision = decide(evidence)
    if isinstance(decision, Refuse):
        assert "disk /dev/vdb" in decision.reason


@given(st.integers(0, 2**45))
def test_telltales_are_within_the_disk_in_order_and_few(size: int) -> None:
    places = telltales(size)
    assert list(places) == sorted(places)
    assert all(place.start >= 0 and 0 < place.length <= size - place.start for place in places)
    assert len(places) < 300
    if size >= 2 * MIB:
        assert (places[0].start, places[0].length) == (0, MIB)
        assert any(place.start + place.length == size and place.length == MIB for place in places)
        assert all(place.start % BLOCK_BYTES == 0 for place in places if place.length == BLOCK_BYTES)
