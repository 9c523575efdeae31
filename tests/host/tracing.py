"""Programs that are killed at one of their system calls: the same one each time, however busy the machine is.

The program runs under ptrace(2) and stops at the beginning and the end of every system call. Its threads are not
followed; they die with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from itertools import count

_TRACEME, _SYSCALL = 0, 24
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def stops_of(argv: tuple[str, ...]) -> int:
    """Runs the program to its end, and returns how often it stopped."""
    code, stops = _run(argv, kill_at=None)
    assert code == 0, f"{argv[0]} ended with {code}"
    return stops


def kill_at(stop: int, argv: tuple[str, ...]) -> None:
    """Runs the program and kills it at the stop of this number."""
    code, _ = _run(argv, kill_at=stop)
    assert code == -signal.SIGKILL, f"{argv[0]} ended with {code}"


def _run(argv: tuple[str, ...], *, kill_at: int | None) -> tuple[int, int]:
    quiet = subprocess.DEVNULL
    # The child asks to be traced, so that it stops at its exec; nothing that is not safe after a fork happens there.
    program = subprocess.Popen(argv, stdout=quiet, stderr=quiet, preexec_fn=lambda: _ptrace(_TRACEME, 0))  # noqa: PLW1509
    try:
        for stops in count():
            _, status = os.waitpid(program.pid, 0)
            if not os.WIFSTOPPED(status):
                program.returncode = os.waitstatus_to_exitcode(status)
                return program.returncode, stops
            if stops == kill_at:
                program.kill()
            else:
                _ptrace(_SYSCALL, program.pid)
    finally:
        if program.returncode is None:
            program.kill()
            program.wait()
    raise AssertionError("the count has no end")


def _ptrace(request: int, pid: int) -> None:
    if _LIBC.ptrace(request, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
