"""A disk is a volume's only when every disk with the serial is that disk or a path to it, whatever else is plugged."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kubevirt_csi.domain.disks import DeviceNumber, Disk, matching
from kubevirt_csi.domain.serials import belongs
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"
TWIN = f"{UID[:20]}0-ffff-ffffffffffff"
SERIALS = (UID, UID[:20], TWIN, "0123456789abcdef0123", "")


@st.composite
def nodes(draw: st.DrawFn) -> list[Disk]:
    """Some disks, and some multipath maps over some of them."""
    shown = st.tuples(st.sampled_from(SERIALS), st.sampled_from([Bus.SCSI, Bus.VIRTIO, None]))
    plain = [
        Disk(name=f"d{n}", path=f"/dev/d{n}", number=DeviceNumber(8, n), size_bytes=1, serial=serial, bus=bus)
        for n, (serial, bus) in enumerate(draw(st.lists(shown, max_size=5)))
    ]
    groups = draw(st.lists(st.lists(st.sampled_from(plain), min_size=1, unique=True), max_size=2)) if plain else []
    return [*plain, *(_over(tuple(paths), minor=n) for n, paths in enumerate(groups))]


def _over(paths: tuple[Disk, ...], *, minor: int) -> Disk:
    agree = len({(path.serial, path.bus) for path in paths}) == 1
    alike = paths[0] if agree else replace(paths[0], serial="", bus=None)
    name = f"dm-{minor}"
    return replace(alike, name=name, path=f"/dev/{name}", number=DeviceNumber(252, minor), paths=paths)


@given(nodes(), st.sampled_from([UID, TWIN, "0123456789abcdef0123"]))
def test_a_match_is_the_only_one(disks: list[Disk], wanted: str) -> None:
    showing = {disk.number for disk in disks if disk.bus and belongs(seen=disk.serial, wanted=wanted, bus=disk.bus)}
    try:
        found = matching(disks, wanted)
    except FailedPrecondition as refusal:
        text = str(refusal)
    else:
        allowed = {found.number, *(path.number for path in found.paths)} if found else set()
        assert showing == allowed
        return
    assert len([disk for disk in disks if disk.number in showing and disk.path in text]) > 1
