"""Asks the kernel and udev to look once more, for a disk that was plugged and does not show up.

The kernel scans every SCSI host. A disk without a serial is read again, since its first answers may have been lost, and
udev is told of it as of a change: we never read udev's database, but what builds multipath maps on this node does.
Other disks are left alone. All of it is advice that may fail: what counts is what sysfs shows afterwards.
Source: Documentation/ABI/testing/sysfs-uevent and Documentation/scsi/scsi_mid_low_api.rst in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import structlog

from kubevirt_csi.domain.disks import Disk

log = structlog.get_logger(__name__)

EVERY_UNIT_OF_THE_FIRST_TARGET = "0 0 -"
"""Where KubeVirt puts disks: its drive addresses have no other bus and target, and libvirt gives none.

A scan of all 256 targets of a virtio-scsi host takes the kernel seconds, and no disk is plugged in or out meanwhile.
"""


def look_again(sysfs: Path, disks: Iterable[Disk]) -> None:
    """Scans the SCSI hosts, and asks once more about those of the disks that are on a bus and have no serial."""
    for scan in sorted((sysfs / "class" / "scsi_host").glob("host*/scan")):
        _write(scan, EVERY_UNIT_OF_THE_FIRST_TARGET)
    for disk in filter(_may_be_new, disks):
        read_anew(sysfs, disk)
        _write(sysfs / "block" / disk.name / "uevent", "change")


def read_anew(sysfs: Path, disk: Disk) -> None:
    """Has the kernel read size and pages of a SCSI disk anew, of a multipath map those of its paths. Others need none.

    Blocks as long as the disk does not answer.
    """
    for each in (disk, *disk.paths):
        rescan = sysfs / "block" / each.name / "device" / "rescan"
        if rescan.exists():
            _write(rescan, "1")


def _may_be_new(disk: Disk) -> bool:
    """Whether it is a disk without a serial that nobody uses yet; one that does not answer would keep udev waiting."""
    in_use = disk.holders or disk.partitions or disk.paths
    return disk.bus is not None and not disk.serial and not disk.mute and not in_use


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        log.warning("a rescan was refused", file=str(file), error=str(error))
