# ruff: noqa: INP001 - a folder for PYTHONPATH, no package
"""Kills the process that imports it (every Python does, at its start) before or after a chosen change that it makes.

The plug-in knows nothing of this. What it changes without a program (the mark, a flush, its record, a folder) goes
through these functions of ``os``; they and the programs (see ``program``) count into one file, ``points``, and only
while that file exists. Whoever makes the change whose number is in ``plan`` dies there.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any

DESK = os.environ["KILL_POINTS"]
WATCHED = (
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "mkdir",
    "mknod",
    "pwrite",
    "pwritev",
    "rename",
    "replace",
    "rmdir",
    "symlink",
    "unlink",
)

_open, _read, _write, _close = os.open, os.read, os.write, os.close


def text(name: str) -> str:
    """What is in a file of the desk; empty when there is none."""
    try:
        fd = _open(f"{DESK}/{name}", os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        return _read(fd, 1 << 20).decode()
    finally:
        _close(fd)


def reached(what: str) -> str:
    """Counts a change; says at which moment of it this process has to die, if at all."""
    try:
        fd = _open(f"{DESK}/points", os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return ""
    _write(fd, f"{what}\n".encode())
    _close(fd)
    plan = dict(line.split("=", 1) for line in text("plan").splitlines())
    return plan["moment"] if str(text("points").count("\n")) == plan["point"] else ""


def die() -> None:
    """The end, as the kernel's out-of-memory killer would make it."""
    os.kill(os.getpid(), signal.SIGKILL)


def watch(module: ModuleType, name: str, *, only: Callable[..., bool] = lambda *_args, **_named: True) -> None:
    """Counts the calls of a function that the condition says are changes."""
    real = getattr(module, name)

    @functools.wraps(real)
    def counted(*arguments: Any, **named: Any) -> Any:
        moment = reached(name) if only(*arguments, **named) else ""
        if moment == "before":
            die()
        try:
            return real(*arguments, **named)
        finally:
            if moment:
                die()

    setattr(module, name, counted)


def creates(_path: object, flags: int, *_rest: object, **_named: object) -> bool:
    """Whether this ``open`` may make a file."""
    return bool(flags & os.O_CREAT)


for function in WATCHED:
    watch(os, function)
watch(os, "open", only=creates)
watch(fcntl, "ioctl")
