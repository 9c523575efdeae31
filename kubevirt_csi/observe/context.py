"""The call that the current task works for, as far as code below the RPC layer may know it.

Adapters and operations report two things here, without knowing who listens: that something outside was changed
(``mark_written``), and what they are waiting for (``progress``). The RPC layer answers with that. Outside a call both
do nothing. A mutation's task starts with a copy of the context of the call that began it, so it shares the one
mutable ``Work`` with that call and with every retry that joins it later.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """What one running call or mutation has reported so far."""

    written: bool = False
    """Something outside this process was changed, or a request to change it was sent."""

    waiting_for: str = ""
    """The last reported reason why it is not done yet; text for people."""


_current: ContextVar[Work | None] = ContextVar("kubevirt_csi_work", default=None)


def begin(work: Work) -> None:
    """Makes the work the one that this task, and the tasks that it starts from here on, report to."""
    _current.set(work)


def mark_written() -> None:
    """To be called just before the first request or command that changes something outside this process.

    From here on an unforeseen exception means "may be under way" (Unavailable) and no longer Internal.
    """
    work = _current.get()
    if work is not None:
        work.written = True


def progress(waiting_for: str) -> None:
    """Remembers what is being waited for, for example ``"VM tenant-a/worker-1 to report volume pvc-1 Ready"``.

    The text ends up in the answer to a caller whose deadline comes first, after the words "still waiting for".
    """
    work = _current.get()
    if work is not None:
        work.waiting_for = waiting_for
