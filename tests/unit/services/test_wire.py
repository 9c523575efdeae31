"""Protobuf to domain: capabilities."""

from __future__ import annotations

import pytest

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.errors import InvalidArgument
from kubevirt_csi.services.wire import capability, require_short, require_small_maps

MODES = csi.VolumeCapabilityAccessModeMode


def message(
    *, mode: int | None = 1, mount: csi.VolumeCapabilityMountVolume | None = None, block: bool = False
) -> csi.VolumeCapability:
    """A capability as it comes off the wire, whose enums may have numbers that this version does not know."""
    sent = csi.VolumeCapability(
        mount=mount,
        block=csi.VolumeCapabilityBlockVolume() if block else None,
        access_mode=None if mode is None else csi.VolumeCapabilityAccessMode(mode=MODES(mode)),
    )
    return csi.VolumeCapability.parse(bytes(sent))


@pytest.mark.parametrize("mode", [mode for mode in MODES if int(mode) != 0])
def test_every_access_mode_of_the_specification_is_known(mode: csi.VolumeCapabilityAccessModeMode) -> None:
    found = capability(message(mode=int(mode), block=True))
    assert found == Capability(access=Block(), mode=AccessMode(mode.name))


def test_a_mount_keeps_its_type_and_its_options_one_by_one() -> None:
    mount = csi.VolumeCapabilityMountVolume(fs_type="xfs", mount_flags=["noatime,discard", "noexec"])
    assert capability(message(mount=mount)).access == Mount(fs_type="xfs", flags=("noatime", "discard", "noexec"))


def test_an_empty_mount_is_a_mount() -> None:
    assert capability(message(mount=csi.VolumeCapabilityMountVolume())).access == Mount()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(None, id="no capability"),
        pytest.param(message(), id="neither mount nor block"),
        pytest.param(message(mode=None, block=True), id="no access mode"),
        pytest.param(message(mode=0, block=True), id="unknown access mode"),
        pytest.param(message(mode=99, block=True), id="access mode of a later version"),
        pytest.param(
            csi.VolumeCapability(
                mount=csi.VolumeCapabilityMountVolume(),
                block=csi.VolumeCapabilityBlockVolume(),
                access_mode=csi.VolumeCapabilityAccessMode(mode=MODES.SINGLE_NODE_WRITER),
            ),
            id="both",
        ),
        pytest.param(
            message(mount=csi.VolumeCapabilityMountVolume(mount_flags=["bind"])),
            id="a mount option that is not allowed",
        ),
    ],
)
def test_what_is_missing_contradictory_or_unknown_is_an_invalid_argument(sent: csi.VolumeCapability | None) -> None:
    with pytest.raises(InvalidArgument):
        capability(sent)


def test_a_file_system_type_that_is_too_long_is_not_repeated_in_the_text() -> None:
    with pytest.raises(InvalidArgument, match=r"^fs_type is longer than 128 bytes$"):
        capability(message(mount=csi.VolumeCapabilityMountVolume(fs_type="x" * 129)))


def test_sizes_are_counted_in_bytes() -> None:
    require_short("name", "ü" * 64)
    with pytest.raises(InvalidArgument, match=r"^name is longer than 128 bytes$"):
        require_short("name", "ü" * 65)


@pytest.mark.parametrize("field", ["parameters", "mutable_parameters", "secrets"])
def test_every_map_of_a_request_keeps_to_4_kib(field: str) -> None:
    require_small_maps(csi.CreateVolumeRequest(**{field: {"k": "v" * 4095}}))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=f"^{field} has more than 4096 bytes$"):
        require_small_maps(csi.CreateVolumeRequest(**{field: {"k": "v" * 4096}}))  # type: ignore[arg-type]
