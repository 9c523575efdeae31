"""Namespaces that hold a lab together: when their first process dies, the kernel ends everything in them.

The supervisor runs as pid 1 of a new pid namespace, in a mount namespace of its own, under util-linux's unshare.
SIGKILL of unshare reaches the supervisor (``--kill-child``), SIGKILL of the supervisor reaches every process of the
lab, and the last process takes the mounts with it, and those the loop devices that were set to clear themselves.
A pipe is the lab's lifeline: when its other end closes before `KEEP` was written to it, the lab ends; so whoever
started a lab and was killed half-way leaves none behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from e2e.lab.state import LabError

UNSHARE = ("unshare", "--pid", "--mount", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--")
KEEP = b"keep\n"
FORK_SECONDS = 10.0
POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A supervisor that was started: host pids, and our end of its lifeline."""

    launcher: subprocess.Popen[bytes]
    init: int
    lifeline: IO[bytes]

    def keep(self) -> None:
        """Lets the lab live on without us."""
        self.lifeline.write(KEEP)
        self.lifeline.close()
        self.launcher.returncode = 0  # from here on it is init's child to reap, not ours


def launch(arguments: Sequence[str], *, log: Path, lock: int, orders: Mapping[str, Any]) -> Launched:
    """Starts ``python -m e2e.lab ARGUMENTS`` as the first process of new namespaces.

    It inherits the lock. The first line of its lifeline (stdin) is a JSON object of the orders and of its own and its
    launcher's host pid, which it cannot see from inside.

    Raises:
        LabError: unshare is missing or is refused (it needs root).
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        launcher = subprocess.Popen(
            [*UNSHARE, sys.executable, "-m", "e2e.lab", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
            cwd=Path(__file__).parents[2],
        )
    init = _child_of(launcher, log)
    lifeline = launcher.stdin
    assert lifeline is not None  # noqa: S101 - stdin=PIPE
    lifeline.write(json.dumps({**orders, "launcher": launcher.pid, "init": init}).encode() + b"\n")
    lifeline.flush()
    return Launched(launcher=launcher, init=init, lifeline=lifeline)


def members(init: int) -> list[int]:
    """Host pids of all processes in the pid namespace of this process, itself included; none when it has ended."""
    namespace = _namespace(init)
    if namespace is None:
        return []
    return [pid for pid in _pids() if _namespace(pid) == namespace]


def host_pids(init: int) -> dict[int, int]:
    """Host pids by pid inside the namespace of this process."""
    found = {}
    for pid in members(init):
        with suppress(OSError):
            status = (Path("/proc") / str(pid) / "status").read_text()
            inside = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
            found[int(inside)] = pid
    return found


def _child_of(launcher: subprocess.Popen[bytes], log: Path) -> int:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    deadline = time.monotonic() + FORK_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            if (pids := children.read_text().split()) and launcher.poll() is None:
                return int(pids[0])
        if launcher.poll() is not None:
            break
        time.sleep(POLL_SECONDS)
    launcher.kill()
    launcher.wait()
    raise LabError(f"cannot make the lab's namespaces (are you root?): {log.read_text().strip()[-500:]}")


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _namespace(pid: int) -> str | None:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return None
