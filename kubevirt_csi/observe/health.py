"""Is this process alive, is it ready, and the pages that say so.

Liveness is "the event loop answers" and nothing else: restarting the driver does not bring an API server back.
Readiness is a set of named conditions that the composition root declares and the parts of the process set. Which HTTP
server shows the pages is the role's choice; both use ``Pages``.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that must be true before this process is ready."""

    ready: bool
    reason: str


class Readiness:
    """The named conditions of this process; all start as not ready."""

    def __init__(self, conditions: Iterable[str]) -> None:
        self._conditions = {name: Condition(ready=False, reason="starting") for name in conditions}

    def set(self, name: str, *, ready: bool, reason: str) -> None:
        """Records the state of a declared condition with a reason for people.

        Raises:
            KeyError: no such condition was declared.
        """
        if name not in self._conditions:
            raise KeyError(name)
        self._conditions[name] = Condition(ready=ready, reason=reason)

    @property
    def ready(self) -> bool:
        """Whether every condition holds."""
        return all(condition.ready for condition in self._conditions.values())

    def report(self) -> str:
        """One line a condition: ``[+] caches: synced`` or ``[-] registered: waiting for kubelet``."""
        return "".join(
            f"[{'+' if condition.ready else '-'}] {name}: {condition.reason}\n"
            for name, condition in self._conditions.items()
        )


@dataclass(frozen=True, slots=True)
class Page:
    """What an HTTP server sends back."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class Pages:
    """``/healthz``, ``/readyz`` and ``/metrics`` of one process."""

    readiness: Readiness
    registry: CollectorRegistry

    def get(self, path: str) -> Page:
        """The page at the path. It is cheap, and has to be asked on the event loop: that it answers is the liveness."""
        match path:
            case "/healthz":
                return Page(HTTPStatus.OK, b"ok\n")
            case "/readyz":
                status = HTTPStatus.OK if self.readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE
                return Page(status, self.readiness.report().encode())
            case "/metrics":
                return Page(HTTPStatus.OK, generate_latest(self.registry), CONTENT_TYPE_LATEST)
            case _:
                return Page(HTTPStatus.NOT_FOUND, b"there are /healthz, /readyz and /metrics\n")
