"""NodeGetVolumeStats: how full a mounted volume is, or how large a raw one."""

from __future__ import annotations

from kubevirt_csi.errors import NotFound
from kubevirt_csi.ports.host import FileSystemUsage, Mounts, Places, Usage


class VolumeUsage:
    """Answers questions about published and staged volumes."""

    def __init__(self, *, mounts: Mounts, places: Places, usage: Usage) -> None:
        self._mounts = mounts
        self._places = places
        self._usage = usage

    async def at(self, path: str) -> FileSystemUsage | int:
        """The usage of the file system mounted at the path, or the bytes of the raw device bound there.

        Raises:
            NotFound: the path does not exist, or nothing is mounted there.
            Unavailable: the volume's device does not answer.
        """
        if not path.startswith("/"):
            raise NotFound(f"{path!r} is no absolute path, so no volume is there")
        place = self._places.canonical(path)
        if (await self._mounts.table()).top(place) is None:
            raise NotFound(f"no volume is mounted at {path}")
        if await self._places.device_at(place) is not None:
            return await self._usage.device_bytes(place)
        return await self._usage.file_system(place)
