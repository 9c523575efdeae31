"""Runs the programs that make images: with a deadline, quiet when all is well, in the program's own words when not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_CHARACTERS = 4000
# What a program mounts or starts in namespaces of its own is gone with it, even when it is killed.
ISOLATION = (
    *("unshare", "--mount", "--propagation=private", "--pid", "--fork"),
    *("--kill-child=KILL", "--mount-proc", "--"),
)


class ImageError(Exception):
    """A program that makes an image failed; the text has the end of its output."""


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    isolated: bool = False,
) -> str:
    """Runs the program to its end and returns its output, stdout and stderr together.

    An ``isolated`` one runs in mount and PID namespaces of its own, which needs root.

    Raises:
        ImageError: it cannot be run, ended with another code than 0, or was still running after ``timeout`` seconds.
    """
    words = [*(ISOLATION if isolated else ()), *(str(word) for word in argv)]
    try:
        done = subprocess.run(
            words,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=directory,
            env=os.environ | dict(environment or {}),
        )
    except OSError as error:
        raise ImageError(f"cannot run {words[0]}: {error}; e2e/lab/packages.txt lists the packages needed") from error
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{' '.join(words)} did not end within {timeout:g} s") from error
    except subprocess.CalledProcessError as error:
        tail = error.output[-TAIL_CHARACTERS:]
        raise ImageError(f"{' '.join(words)} ended with {error.returncode}:\n{tail}") from error
    return done.stdout
