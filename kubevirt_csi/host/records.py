"""The node's own memory of the volumes that it may have written to, one small JSON file a volume.

It outlives restarts and reboots (``--state-dir`` is a host folder) and exists for two moments: a disk that looks blank
although this node has used it, and an Unstage, whose request tells a volume id but not which disk it is. A file that
cannot be read stops the call: forgetting a volume would make its disk look fresh.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import structlog

from kubevirt_csi.errors import Internal
from kubevirt_csi.host import blocking
from kubevirt_csi.host.files import write_durably
from kubevirt_csi.ports.host import Record

log = structlog.get_logger(__name__)

IO_SECONDS = 30.0

_SAFE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class HostRecords:
    """Implements ``ports.host.Records`` with files in ``folder``, which is made when it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def remember(self, record: Record) -> None:
        """Writes it durably; doing so again is no error."""
        if await self.recall(record.volume_id) != record:
            await blocking.call(lambda: self._write(record), what="writing the node's record", timeout=IO_SECONDS)

    async def recall(self, volume_id: str) -> Record | None:
        """The record of the volume; None when this node never used it.

        Raises:
            Internal: there is one, but it is damaged.
        """
        return await blocking.call(lambda: self._read(volume_id), what="reading the node's record", timeout=IO_SECONDS)

    async def known(self) -> tuple[Record, ...]:
        """The records of all volumes, in the order of their ids; a damaged one is left out."""
        return await blocking.call(self._read_all, what="reading the node's records", timeout=IO_SECONDS)

    def _path(self, volume_id: str) -> Path:
        """The volume's file: an id that is no safe file name is hashed (CSI allows any characters in ids)."""
        safe = _SAFE_NAME.fullmatch(volume_id) is not None
        name = volume_id if safe else f"_{hashlib.sha256(volume_id.encode()).hexdigest()}"
        return self._folder / f"{name}.json"

    def _read(self, volume_id: str) -> Record | None:
        path = self._path(volume_id)
        try:
            return _parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Internal(
                f"the node's record {path} is damaged: {error}; restore it, or remove it if the volume has no data"
            ) from error

    def _read_all(self) -> tuple[Record, ...]:
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(_parse(path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("record unreadable", file=str(path), error=str(error))
        return tuple(sorted(found, key=lambda record: record.volume_id))

    def _write(self, record: Record) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(record.volume_id)
        write_durably(path, json.dumps({"volume_id": record.volume_id, "serial": record.serial}).encode())


def _parse(text: bytes) -> Record:
    found = json.loads(text)
    return Record(volume_id=found["volume_id"], serial=found["serial"])
