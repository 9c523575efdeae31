"""Where this node's hypervisor can plug disks: the virtio-scsi controller, and the slots of its PCI Express ports.

The kernel shows a slot for each port that takes plugging, whichever of its drivers serves it (ACPI's or PCI Express's
own), and whether something is in it. Slots without that attribute are known by their number only and take nothing.
Source: Documentation/ABI/testing/sysfs-bus-pci and drivers/pci/hotplug in the kernel.
"""

from __future__ import annotations

from pathlib import Path

from kubevirt_csi.domain.limits import Room
from kubevirt_csi.host import blocking

READ_SECONDS = 10.0
_EMPTY = "0"
_HOTPLUG_DRIVER = "virtio_scsi"


class SysfsHotplug:
    """Implements ``ports.host.Hotplug``.

    Args:
        sysfs_root: where sysfs is mounted.
    """

    def __init__(self, *, sysfs_root: Path) -> None:
        self._sysfs = sysfs_root

    async def room(self) -> Room:
        """What is there now; a slot that something was plugged into since boot is not free."""
        return await blocking.call(self._room, what="reading the hot-plug slots in sysfs", timeout=READ_SECONDS)

    def _room(self) -> Room:
        hosts = (self._sysfs / "class" / "scsi_host").glob("host*/proc_name")
        slots = [slot.read_text().strip() for slot in (self._sysfs / "bus" / "pci" / "slots").glob("*/adapter")]
        return Room(
            scsi=any(host.read_text().strip() == _HOTPLUG_DRIVER for host in hosts),
            free_ports=slots.count(_EMPTY) if slots else None,
        )
