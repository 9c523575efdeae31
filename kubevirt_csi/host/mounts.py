"""Mounts: the kernel's table, and mount(8) and umount(8) to change it.

A read-only bind is prepared in a folder of our own and only then shown at the target. It takes two steps (bind, then
remount), and at the target a death between them would leave a writable mount; a bind of a read-only bind is read-only
from the start. The folder lies outside kubelet's, so what is mounted in it is seen by this process's mount namespace
only, and vanishes with it.

mount(8) is kept from helpers and from /run/mount (``-i``, ``-n``), and from /etc/fstab by giving it both paths.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from kubevirt_csi.domain.mountinfo import MountEntry, MountTable
from kubevirt_csi.errors import DriverError, FailedPrecondition, Internal
from kubevirt_csi.host import blocking
from kubevirt_csi.host.commands import Commands, Finished
from kubevirt_csi.host.places import HostPlaces, device_number

PROGRAMS = ("mount", "umount")

MOUNT_SECONDS = 300.0
"""A mount may replay a large journal."""
UNMOUNT_SECONDS = 300.0
"""An unmount writes what is dirty."""
TABLE = Path("/proc/self/mountinfo")
TABLE_SECONDS = 10.0
MOST_READINGS = 5

_PLAIN = ("-i", "-n")
_DAMAGED = ("corrupted filesystem", "Structure needs cleaning", "Bad message")
"""How mount(8) and the C library word EUCLEAN and EBADMSG: what was read is not what must be there."""


class HostMounts:
    """Implements ``ports.host.Mounts``.

    Args:
        commands: runs the programs.
        places: for the mount points in the workspace.
        workspace: an empty folder of our own, not below kubelet's. ``open`` makes it.
    """

    def __init__(self, commands: Commands, *, places: HostPlaces, workspace: Path) -> None:
        self._commands = commands
        self._places = places
        self._workspace = workspace

    async def open(self) -> None:
        """Makes the workspace, and takes away what an earlier process left in it. To be called once, at start."""
        self._workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._places.canonical(str(self._workspace)) + "/"
        for entry in reversed((await self.table()).entries):
            if entry.mount_point.startswith(folder):
                await self.unmount(entry.mount_point)
        for leftover in self._workspace.iterdir():
            await self._places.remove(str(leftover))

    async def table(self) -> MountTable:
        """All mounts that this process sees, those of btrfs with the number of the disk that they were made from.

        Raises:
            Internal: the kernel's table is not of the format we know.
        """
        try:
            return await blocking.call(_read_table, what=f"reading {TABLE}", timeout=TABLE_SECONDS)
        except ValueError as error:
            raise Internal(f"{TABLE} cannot be understood: {error}") from error

    async def mount(self, *, device_path: str, target: str, fs_type: str, options: tuple[str, ...]) -> None:
        """Mounts a file system on an existing folder.

        Raises:
            FailedPrecondition: its log cannot be replayed, so a person has to decide what becomes of it.
            Internal: the kernel refused for another reason; the text has its words.
        """
        with_options = ("-o", ",".join(options)) if options else ()
        paths = ("--source", device_path, "--target", target)
        finished = await self._commands.run(
            "mount", *_PLAIN, "-t", fs_type, *with_options, *paths, timeout=MOUNT_SECONDS
        )
        if finished.code != 0:
            raise _not_mounted(finished, fs_type=fs_type, device_path=device_path, target=target)

    async def bind(self, *, source: str, target: str, read_only: bool) -> None:
        """Shows the mount or device node at ``source`` at ``target`` too, read-only from its first moment if asked."""
        if not read_only:
            await self._bind(source, target)
            return
        async with self._aside(source) as aside:
            await self._bind(source, aside)
            try:
                await self._run("-o", "remount,bind,ro", "--target", aside)
                await self._bind(aside, target)
            finally:
                await self.unmount(aside)

    async def unmount(self, target: str) -> None:
        """Takes one mount off the path, never lazily.

        Raises:
            FailedPrecondition: it is busy.
            Internal: it failed in another way.
        """
        # -c: the path is as the mount table spells it, and is not looked at: that can hang when its disk has gone.
        finished = await self._commands.run("umount", *_PLAIN, "-c", target, timeout=UNMOUNT_SECONDS)
        if finished.code == 0:
            return
        if "busy" in finished.errors:
            raise FailedPrecondition(f"{target} cannot be unmounted, a process still uses it: {finished}")
        raise Internal(f"{target} cannot be unmounted: {finished}")

    async def _bind(self, source: str, target: str) -> None:
        await self._run("-o", "bind", "--source", source, "--target", target)

    async def _run(self, *arguments: str) -> None:
        finished = await self._commands.run("mount", *_PLAIN, *arguments, timeout=MOUNT_SECONDS)
        if finished.code != 0:
            raise Internal(f"mount {' '.join(arguments)} failed: {finished}")

    @asynccontextmanager
    async def _aside(self, source: str) -> AsyncIterator[str]:
        """An empty mount point in the workspace, of the source's kind."""
        place = str(self._workspace / secrets.token_hex(8))
        if await self._places.device_at(source) is None:
            await self._places.make_directory(place)
        else:
            await self._places.make_file(place)
        try:
            yield place
        finally:
            await self._places.remove(place)


def settled(read: Callable[[], bytes]) -> bytes:
    """What was read twice alike, or the last of a few readings of something that never rests.

    A table longer than a page is read in pieces, and kernels before 5.8 leave mounts out when others go in between.
    Source: kernel commit 9f6c61f96f2d ("proc/mounts: add cursor").
    """
    text = read()
    for _ in range(MOST_READINGS - 1):
        again = read()
        if again == text:
            break
        text = again
    return text


def _read_table() -> MountTable:
    text = settled(TABLE.read_bytes).decode(errors="surrogateescape")  # names of folders are bytes
    return MountTable(tuple(_with_disk(entry) for entry in MountTable.parse(text).entries))


def _with_disk(entry: MountEntry) -> MountEntry:
    """A btrfs mount has a device number of its own. Its source is its disk's node, as the kernel knows it.

    While it is mounted, neither the name nor the number of the disk is given to another one.
    """
    if entry.fs_type != "btrfs":
        return entry
    number = device_number(entry.source)
    return entry if number is None else replace(entry, device=number)


def _not_mounted(finished: Finished, *, fs_type: str, device_path: str, target: str) -> DriverError:
    what = f"the {fs_type} file system of {device_path} cannot be mounted on {target}: {finished}"
    if fs_type == "xfs" and any(words in finished.errors for words in _DAMAGED):
        return FailedPrecondition(
            f"{what}. An xfs file system is repaired by replaying its log when it is mounted, and that did not work; "
            "the kernel log of this node says why. If the disk itself answers, take a snapshot of the volume, then run "
            f"`xfs_repair -n {device_path}` on this node to see the damage, and without `-n` to repair it. If that "
            "asks for `-L`: it throws away the log, and with it the newest changes"
        )
    return Internal(f"{what}; the kernel log of this node says more")
