"""kubectl for the walk and the suites: the tool that a user has, so what it prints is what a user would see.

Nothing here knows whether the cluster is the lab's or nested kind's; a kubeconfig is all.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

CALL_SECONDS = 60.0
POLL_SECONDS = 0.5
"""Each look is one kubectl at least, and so a tenth of a second of a processor that emulated guests would use."""


class KubectlError(Exception):
    """kubectl said no; the text is its own."""


class NotYet(Exception):
    """What was waited for did not come before the deadline; the text says what was found last."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster, by the kubectl program and a kubeconfig."""

    program: Path
    kubeconfig: Path

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = CALL_SECONDS) -> str:
        """What kubectl prints, without trailing white space.

        Raises:
            KubectlError: it failed or took longer than ``timeout`` seconds.
        """
        command = [str(self.program), "--kubeconfig", str(self.kubeconfig), *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {' '.join(arguments)}: no answer within {timeout:.0f} s") from error
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.rstrip()

    def apply(self, *objects: Mapping[str, Any]) -> str:
        """Applies the objects."""
        return self.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """The object, or None when it does not exist."""
        found = self.run("get", kind, name, *_in(namespace), "--ignore-not-found", "-o", "json")
        return json.loads(found) if found else None

    def items(self, kind: str, namespace: str | None = None, *arguments: str) -> list[dict[str, Any]]:
        """All objects of the kind, of one namespace if given."""
        found: list[dict[str, Any]] = json.loads(self.run("get", kind, *_in(namespace), *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def delete(self, kind: str, name: str, namespace: str | None = None, *, timeout: float = CALL_SECONDS) -> str:
        """Deletes the object and waits until it is gone. One that is gone is not an error."""
        limit = f"--timeout={timeout:.0f}s"
        return self.run("delete", kind, name, *_in(namespace), "--ignore-not-found", limit, timeout=timeout + 10)

    def wait(self, target: str, condition: str, namespace: str | None = None, *, timeout: float) -> None:
        """Waits for ``condition=NAME`` or ``delete`` of TYPE/NAME: one program with a watch, however long it takes.

        Raises:
            NotYet: it did not happen within ``timeout`` seconds; the text is kubectl's.
        """
        limits = (f"--for={condition}", f"--timeout={timeout:.0f}s")
        try:
            self.run("wait", target, *_in(namespace), *limits, timeout=timeout + 10)
        except KubectlError as error:
            raise NotYet(str(error)) from error


def _in(namespace: str | None) -> Sequence[str]:
    return ("-n", namespace) if namespace else ()


def wait_until(
    look: Callable[[], T | None],
    *,
    what: str,
    timeout: float,
    every: float = POLL_SECONDS,
    last: Callable[[], str] = str,
) -> T:
    """Calls ``look`` until it returns something true, which is returned.

    Args:
        look: reads the state; a KubectlError of it counts as "not yet".
        what: what is waited for, for the error text.
        timeout: seconds.
        every: seconds between two looks.
        last: what to show of the state when time is up.

    Raises:
        NotYet: nothing came in time.
    """
    deadline = time.monotonic() + timeout
    problem = ""
    while time.monotonic() < deadline:
        try:
            found = look()
        except KubectlError as error:
            problem = f" ({error})"
        else:
            if found:
                return found
        time.sleep(every)
    raise NotYet(f"not within {timeout:.0f} s: {what}{problem}\n{last()}")
