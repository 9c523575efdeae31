"""Whether this machine's KVM really runs a guest.

``/dev/kvm`` may exist and QEMU may start on it, yet the kernel never says a word (nested virtualisation that is half
there). So a kernel is booted once, and the answer is remembered until the host boots again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from e2e.cache import cache_root
from e2e.lab.processes import Process, ProcessError, Program

Accelerator = Literal["kvm", "tcg"]
PROBE_SECONDS = 10.0
BANNER = b"Linux version"


async def accelerator(kernel: Path) -> Accelerator:
    """``kvm`` when a kernel prints its banner on it within 10 s, else ``tcg``."""
    answer = _answer()
    if answer is None:
        return "tcg"
    if not answer.known:
        answer.remember("kvm" if await _boots(kernel, answer.log) else "tcg")
    return answer.get()


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer for one boot of the host, as a file; ``log`` has the probe's console."""

    file: Path

    @property
    def known(self) -> bool:
        return self.file.exists()

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    def get(self) -> Accelerator:
        return "kvm" if self.file.read_text() == "kvm" else "tcg"

    def remember(self, answer: Accelerator) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(answer)


def _answer() -> _Answer | None:
    """Where the answer is kept, known or not; none when the machine has no KVM at all."""
    if not Path("/dev/kvm").exists():
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return _Answer(cache_root() / "kvm" / boot)


async def _boots(kernel: Path, log: Path) -> bool:
    argv = [
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "kvm", "-cpu", "max", "-m", "256", "-nodefaults"),
        *("-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", str(kernel)),
        *("-append", "console=ttyS0 earlyprintk=serial panic=-1"),
    ]
    process = Process.start(Program(name="kvm-probe", argv=argv, log=log))

    async def banner() -> bool:
        return BANNER in process.log.read_bytes()

    try:
        await process.ready(banner, deadline_seconds=PROBE_SECONDS)
    except ProcessError:
        # It may have printed its banner and panicked, for want of a root, between two looks.
        return await banner()
    else:
        return True
    finally:
        await asyncio.shield(process.kill())
