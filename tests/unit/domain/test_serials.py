"""Serials: what new ones look like, and which disk belongs to which volume."""

from __future__ import annotations

import re

import pytest

from kubevirt_csi.domain.serials import belongs, is_a_volume, new_serial
from kubevirt_csi.domain.volumes import Bus

UID = "8c2f9e0a-4f6b-4f0e-9d52-0a1b2c3d4e5f"


def test_a_new_serial_is_seen_whole_on_every_bus() -> None:
    assert re.fullmatch(r"[0-9a-f]{20}", new_serial())


def test_new_serials_differ() -> None:
    assert len({new_serial() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("seen", "wanted", "bus", "expected"),
    [
        pytest.param(UID, UID, Bus.SCSI, True, id="whole on scsi"),
        pytest.param(UID[:20], UID, Bus.VIRTIO, True, id="cut on virtio"),
        pytest.param(UID[:20], UID, Bus.SCSI, False, id="cut on scsi"),
        pytest.param(UID[:19], UID, Bus.VIRTIO, False, id="shorter than virtio cuts"),
        pytest.param(UID[:21], UID, Bus.VIRTIO, False, id="longer than virtio cuts"),
        pytest.param(UID, UID[:20], Bus.VIRTIO, False, id="the wanted one is the prefix"),
        pytest.param("", "", Bus.VIRTIO, False, id="both empty"),
        pytest.param("", UID, Bus.SCSI, False, id="disk without serial"),
        pytest.param(UID, "", Bus.SCSI, False, id="volume without serial"),
        pytest.param(UID.upper(), UID, Bus.SCSI, False, id="other case"),
    ],
)
def test_only_a_full_match_or_what_virtio_leaves_of_it_belongs(
    seen: str, wanted: str, bus: Bus, expected: bool
) -> None:
    assert belongs(seen=seen, wanted=wanted, bus=bus) is expected


@pytest.mark.parametrize(
    ("seen", "bus", "expected"),
    [
        pytest.param(new_serial(), Bus.SCSI, True, id="ours"),
        pytest.param(UID, Bus.SCSI, True, id="the predecessor's"),
        pytest.param(UID[:20], Bus.VIRTIO, True, id="the predecessor's on virtio"),
        pytest.param(UID[:20], Bus.SCSI, False, id="cut where nothing is cut"),
        pytest.param("my-data", Bus.SCSI, False, id="virtctl's"),
        pytest.param("", Bus.VIRTIO, False, id="none"),
    ],
)
def test_a_volume_is_told_from_other_disks_by_the_look_of_its_serial(seen: str, bus: Bus, expected: bool) -> None:
    assert is_a_volume(seen, bus=bus) is expected
