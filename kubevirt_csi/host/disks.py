"""The disks of this node, read from the kernel anew each time.

Never from udev's database or its by-id links, which are filled later, sometimes never, and have pointed at other disks.
Nothing is cached: names are given to other disks after an unplug. A disk that does not answer costs its own volume, not
the others': once it was waited for, it is shown without a serial, and as mute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from kubevirt_csi.domain.disks import Disk
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.host import blocking, rescanning, sysfs
from kubevirt_csi.host.devices import OpenDevice

log = structlog.get_logger(__name__)

READ_SECONDS = 10.0
ANSWER_SECONDS = 3.0
"""How long a virtio disk has to tell its serial, which waits behind all that the disk has to do."""
RESCAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Question:
    """A virtio disk is being asked for its serial; ``asked_at`` in the event loop's time."""

    asked_at: float
    answer: asyncio.Future[str]


class SysfsDisks:
    """Implements ``ports.host.Disks``.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: the folder of device nodes, that of the host.
        answer_seconds: how long a virtio disk has to tell its serial.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._sysfs = sysfs_root
        self._dev = dev_root
        self._answer_seconds = answer_seconds
        self._questions: dict[str, _Question] = {}

    async def all(self) -> tuple[Disk, ...]:
        """Every whole block device. One that vanishes while it is read is left out."""
        virtio = await blocking.call(self._virtio_disks, what="reading sysfs", timeout=READ_SECONDS)
        serials = await asyncio.gather(*(self._ask(folder) for folder in virtio))
        known = {folder.name: serial for folder, serial in zip(virtio, serials, strict=True)}
        return await blocking.call(partial(self._present, known), what="reading sysfs", timeout=READ_SECONDS)

    async def rescan(self) -> None:
        """Asks every SCSI host to scan its bus, and the kernel and udev to look again at disks without a serial."""
        disks = await self.all()
        try:
            await blocking.call(
                lambda: rescanning.look_again(self._sysfs, disks), what="rescanning", timeout=RESCAN_SECONDS
            )
        except Unavailable as error:  # the scan goes on, and what it finds will be seen
            log.warning("rescan takes long", error=str(error))

    @asynccontextmanager
    async def opened(self, disk: Disk) -> AsyncIterator[OpenDevice]:
        """Opens the disk and verifies that the opened device is that disk.

        Raises:
            Unavailable: it has left, or its name now belongs to another disk.
        """
        async with OpenDevice.open(disk, read_again=self._read_again) as device:
            await device.verify()
            yield device

    def _virtio_disks(self) -> list[Path]:
        return [folder for folder in self._folders() if (folder / sysfs.VIRTIO_SERIAL).exists()]

    async def _ask(self, folder: Path) -> str | None:
        """The serial of a virtio disk; None when it did not answer in time. At most one thread waits for a disk."""
        loop = asyncio.get_running_loop()
        question = self._questions.get(folder.name)
        if question is None or question.answer.done():
            answer = blocking.start(lambda: sysfs.virtio_serial(folder), what=f"asking {folder.name} for its serial")
            question = self._questions[folder.name] = _Question(loop.time(), answer)
        try:
            async with asyncio.timeout_at(question.asked_at + self._answer_seconds):
                return await asyncio.shield(question.answer)
        except TimeoutError:
            log.warning("disk does not answer", disk=folder.name, waited_seconds=loop.time() - question.asked_at)
            return None

    def _present(self, virtio_serials: Mapping[str, str | None]) -> tuple[Disk, ...]:
        found = []
        for folder in self._folders():
            try:
                found.append(self._read(folder, lambda asked: virtio_serials.get(asked.name, "")))
            except (OSError, ValueError) as error:
                log.debug("disk skipped", disk=folder.name, error=str(error))
        return tuple(found)

    def _read_again(self, disk: Disk) -> Disk:
        try:
            return self._read(self._sysfs / "block" / disk.name, sysfs.virtio_serial)
        except (OSError, ValueError) as error:
            raise Unavailable(f"disk {disk} has left this node: {error}") from error

    def _read(self, folder: Path, ask_virtio: sysfs.AskVirtio) -> Disk:
        return sysfs.read(folder, dev_root=self._dev, ask_virtio=ask_virtio)

    def _folders(self) -> list[Path]:
        return sorted((self._sysfs / "block").iterdir())
