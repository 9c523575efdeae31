"""Protobuf to domain, for what several services read in the same way.

An enum number or a kind of access that this version does not know is the caller asking for something we do not do, so
it is InvalidArgument and never a crash or a default. The same goes for fields beyond the sizes of the specification:
what is too long is not repeated in an error text.
"""

from __future__ import annotations

from typing import Any

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain import mount_options
from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.errors import InvalidArgument

LONGEST_STRING_BYTES = 128
"""CSI spec: size limits, where a field has none of its own."""
LARGEST_MAP_BYTES = 4096
"""CSI spec: size limits of map<string, string>."""
MAPS = ("parameters", "mutable_parameters", "volume_context", "publish_context", "secrets")


def require_small_maps(message: Any) -> None:
    """Passes a request whose maps keep to the size that every plug-in has to take.

    Raises:
        InvalidArgument: one does not; the text names the field only.
    """
    for field in MAPS:
        values: dict[str, str] = getattr(message, field, {})
        if sum(len(key.encode()) + len(value.encode()) for key, value in values.items()) > LARGEST_MAP_BYTES:
            raise InvalidArgument(f"{field} has more than {LARGEST_MAP_BYTES} bytes")


def require_short(field: str, text: str) -> None:
    """Passes a string that keeps to the size that every plug-in has to take.

    Raises:
        InvalidArgument: it does not; the text names the field only.
    """
    if len(text.encode()) > LONGEST_STRING_BYTES:
        raise InvalidArgument(f"{field} is longer than {LONGEST_STRING_BYTES} bytes")


def capability(message: csi.VolumeCapability | None) -> Capability:
    """One VolumeCapability; its mount options are checked and split.

    Raises:
        InvalidArgument: it is missing, has no access mode or not exactly one access type, or one that is not known.
    """
    if message is None:
        raise InvalidArgument("volume_capability is missing")
    return Capability(access=_access(message), mode=_mode(message))


def _access(message: csi.VolumeCapability) -> Mount | Block:
    match (message.mount, message.block):
        case (None, None):
            raise InvalidArgument("volume_capability has neither mount nor block, or a kind of access not known here")
        case (None, _):
            return Block()
        case (mount, None):
            assert mount is not None  # noqa: S101 - the first case took it; mypy does not see that
            require_short("fs_type", mount.fs_type)
            return Mount(fs_type=mount.fs_type, flags=mount_options.checked(mount.mount_flags))
        case _:
            raise InvalidArgument("volume_capability has both mount and block")


def _mode(message: csi.VolumeCapability) -> AccessMode:
    number = 0 if message.access_mode is None else int(message.access_mode.mode)
    if number == 0:
        raise InvalidArgument("volume_capability has no access mode")
    try:
        return AccessMode(csi.VolumeCapabilityAccessModeMode(number).name)
    except ValueError as error:
        raise InvalidArgument(f"access mode {number} is not known to this driver") from error
