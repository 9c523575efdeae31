"""Takes mounts off a path: all of them, or those that lost their disk. The mount table decides, not what umount says.

One umount that succeeds proves nothing, because mounts can be stacked. A mount whose disk has left this node (a VM that
lost it, a detach that was forced) serves nobody any more, and is in the way of the volume when it comes back.
"""

from __future__ import annotations

import structlog

from kubevirt_csi.domain import disks as disk_rules
from kubevirt_csi.domain.access import FILE_SYSTEMS
from kubevirt_csi.domain.mountinfo import MountEntry
from kubevirt_csi.errors import Internal
from kubevirt_csi.observe import context
from kubevirt_csi.ports.host import Disks, Mounts, Places

log = structlog.get_logger(__name__)

DEEPEST_STACK = 32


async def unmount_all(mounts: Mounts, path: str) -> None:
    """Unmounts until the mount table shows nothing at the path; a path that is no mount point is no error.

    Raises:
        FailedPrecondition: a mount is busy.
        Internal: umount succeeds again and again, and there is still a mount.
    """
    for _ in range(DEEPEST_STACK):
        if (await mounts.table()).top(path) is None:
            return
        context.mark_written()
        await mounts.unmount(path)
    raise Internal(f"{path} is still a mount point after {DEEPEST_STACK} unmounts")


async def mounted_at(path: str, *, mounts: Mounts, disks: Disks, places: Places) -> MountEntry | None:
    """The mount that is seen at the path, after those whose disk has left this node were taken off.

    Raises:
        FailedPrecondition: such a mount is busy.
    """
    mounted = (await mounts.table()).top(path)
    if mounted is None or not await _has_lost_its_disk(mounted, disks=disks, places=places):
        return mounted
    log.warning("stale mount removed", path=path, device=str(mounted.device), source=mounted.source)
    await unmount_all(mounts, path)
    return None


async def _has_lost_its_disk(mounted: MountEntry, *, disks: Disks, places: Places) -> bool:
    """Whether the mount's disk has left this node. What is no volume (tmpfs, a partition...) has lost nothing.

    A disk that leaves takes its device node with it. So a file system whose node is there has not lost its disk, even
    if that cannot be read now; and a bound node that is there no more has, whichever disk has its number now.
    """
    if mounted.fs_type in FILE_SYSTEMS and mounted.root == "/":
        if disk_rules.numbered(await disks.all(), mounted.device) is not None:
            return False
        return await places.device_at(mounted.source) != mounted.device
    return mounted.is_deleted and await places.device_at(mounted.mount_point) is not None
