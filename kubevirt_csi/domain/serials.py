"""Disk serials: how a new one is made, and when a disk's own serial is a volume's.

The serial is the only thing that ties a disk in the guest to a volume; device names, by-id links and the udev database
tie nothing. New serials have 20 characters because virtio-blk shows no more than that, so they are seen whole on every
bus. Volumes of the predecessor carry the DataVolume's UID (36 characters), of which virtio-blk shows the first 20.
"""

from __future__ import annotations

import re
import secrets

from kubevirt_csi.domain.volumes import Bus

VIRTIO_SERIAL_LENGTH = 20
"""VIRTIO_BLK_ID_BYTES of the virtio specification: longer serials are cut."""


_NEW = re.compile(r"[0-9a-f]{20}")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UID_CUT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]")


def new_serial() -> str:
    """A serial for a new volume: 20 random lower-case hexadecimal characters (80 bits)."""
    return secrets.token_hex(VIRTIO_SERIAL_LENGTH // 2)


def of_predecessor(serial: str) -> bool:
    """Whether the volume with this serial was made by the predecessor, whose serials are UIDs of 36 characters."""
    return len(serial) > VIRTIO_SERIAL_LENGTH


def is_a_volume(seen: str, *, bus: Bus) -> bool:
    """Whether a disk with this serial looks like a volume of this driver or of the predecessor.

    Good enough for counting, and for nothing else: whose a disk is, only ``belongs`` says.
    """
    cut = bus is Bus.VIRTIO and _UID_CUT.fullmatch(seen) is not None
    return cut or _NEW.fullmatch(seen) is not None or _UID.fullmatch(seen) is not None


def belongs(*, seen: str, wanted: str, bus: Bus) -> bool:
    """Whether a disk that shows the serial ``seen`` on ``bus`` can be the one of a volume with serial ``wanted``.

    A full match, or on virtio exactly the first 20 characters of a longer serial. An empty serial belongs to nobody.
    """
    if not seen or not wanted:
        return False
    if seen == wanted:
        return True
    cut = bus is Bus.VIRTIO and len(wanted) > VIRTIO_SERIAL_LENGTH
    return cut and seen == wanted[:VIRTIO_SERIAL_LENGTH]
