"""Takes all mounts off a path. One umount that succeeds proves nothing: mounts can be stacked."""

from __future__ import annotations

from kubevirt_csi.errors import Internal
from kubevirt_csi.observe import context
from kubevirt_csi.ports.host import Mounts

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
