"""fstrim(8): has a mounted file system tell its disk which blocks it does not use (the FITRIM ioctl).

A program and not the ioctl itself, because it can be killed: the kernel goes through a file system group by group, and
looks for a fatal signal in between. In a thread nothing could end it.
"""

from __future__ import annotations

import re

from kubevirt_csi.errors import Internal
from kubevirt_csi.host.commands import Commands

PROGRAMS = ("fstrim",)

TRIM_SECONDS = 1800.0
"""A large disk whose backend is slow; a trim that was ended leaves nothing undone but itself."""

_UNSUPPORTED = "not supported"
_TRIMMED = re.compile(r"\((\d+) bytes\) trimmed")


class HostTrimmer:
    """Implements ``ports.host.Trimmer``."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def trim(self, path: str) -> int | None:
        """Has the file system mounted at the path discard what it does not use. A cancelled call ends the program.

        Returns:
            The bytes discarded, as the file system says; None when the disk cannot discard.

        Raises:
            Unavailable: it did not end in time, and was killed.
            Internal: it failed.
        """
        finished = await self._commands.run("fstrim", "--verbose", path, timeout=TRIM_SECONDS)
        found = _TRIMMED.search(finished.output)
        if finished.code == 0 and found is not None:
            return int(found[1])
        if _UNSUPPORTED in finished.errors:
            return None
        raise Internal(f"the file system at {path} cannot be trimmed: {finished}")
