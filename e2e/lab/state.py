"""What is known about a lab on disk: one folder, one state file, one lock.

``ROOT/NAME`` has ``state.json``, ``logs/`` (every process has a file there) and ``data/`` (etcd, disks, sockets,
kubeconfigs: removed when the lab ends). ROOT is ``KUBEVIRT_CSI_LABS``, else ``kubevirt-csi/labs`` in the user's state
directory. Only the supervisor writes the state file; everybody else reads it. Whether a lab runs is told by the lock,
which the kernel releases with the lab's last process, and never by a pid, which may have become somebody else's.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["starting", "ready", "failed", "stopping", "stopped"]

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")


class LabError(Exception):
    """Something that the person at the terminal can act on; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step of the start: when, in seconds after the start, and what."""

    at: float
    text: str


@dataclass(slots=True, kw_only=True)
class State:
    """The content of ``state.json``.

    Attributes:
        launcher: host pid of the process that holds the lab's namespaces; killing it kills the lab.
        init: host pid of the supervisor, which is pid 1 inside; SIGTERM to it ends the lab in an orderly way.
        started_at: seconds since the epoch.
        pids: of each program, *inside* the lab's pid namespace.
        kubeconfigs: files by what they are for.
        sockets: of the driver, where no kubelet and no sidecar has them to itself.
    """

    status: Status
    launcher: int
    init: int
    started_at: float
    machines: str
    error: str | None = None
    steps: list[Step] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    kubeconfigs: dict[str, str] = field(default_factory=dict)
    sockets: dict[str, str] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabDirectory:
    """Where one lab keeps everything."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def gateway(self) -> Path:
        """The socket on which the management cluster's gateway takes orders."""
        return self.data / "gateway.sock"

    @property
    def _state_file(self) -> Path:
        return self.path / "state.json"

    def read(self) -> State | None:
        """The state as last written, None when there never was a lab here."""
        try:
            document: dict[str, Any] = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return None
        steps = [Step(**step) for step in document.pop("steps")]
        return State(**document, steps=steps)

    def write(self, state: State) -> None:
        """Replaces the state file in one piece, so that a reader never sees half of it."""
        temporary = self._state_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(dataclasses.asdict(state), indent=2) + "\n")
        temporary.replace(self._state_file)

    def clear(self) -> None:
        """Removes what only a running lab needs; logs (of machines too) and the state file stay for the reader."""
        for log in self.data.glob("machines/*/*.log"):
            self.logs.mkdir(exist_ok=True)
            log.replace(self.logs / f"{log.parent.name}-{log.name}")
        shutil.rmtree(self.data, ignore_errors=True)

    def lock(self) -> int | None:
        """Takes the lab's lock; its descriptor may be handed to the lab. None: the lab runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def running(self) -> bool:
        """Whether a process of the lab lives."""
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def lab_directory(name: str) -> LabDirectory:
    """The folder of the lab of this name.

    Raises:
        LabError: the name cannot be part of host names and paths.
    """
    if not NAME.fullmatch(name):
        raise LabError(f"--name {name!r}: 1 to 32 lower-case letters, digits and dashes, none of them at an end")
    return LabDirectory(state_root() / name)


def state_root() -> Path:
    """``KUBEVIRT_CSI_LABS``, else ``kubevirt-csi/labs`` in the user's state directory."""
    chosen = os.environ.get("KUBEVIRT_CSI_LABS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "kubevirt-csi" / "labs"
