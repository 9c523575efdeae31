"""Attaches that were taken back because they were stuck and held up others: when each may be tried again.

Kept in memory only: what is forgotten is tried a little too early. Time is the event loop's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kubevirt_csi.errors import Unavailable

FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 480.0


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float
    until: float
    reason: str


class StuckAttaches:
    """By VM and volume."""

    def __init__(self) -> None:
        self._pauses: dict[tuple[str, str], _Pause] = {}

    def took_back(self, vm: str, volume_id: str, *, reason: str) -> None:
        """The attach was taken back; each time the pause is twice as long."""
        last = self._pauses.get((vm, volume_id))
        seconds = min(last.seconds * 2, LONGEST_PAUSE_SECONDS) if last is not None else FIRST_PAUSE_SECONDS
        self._pauses[vm, volume_id] = _Pause(seconds, _now() + seconds, reason)

    def require_over(self, vm: str, volume_id: str) -> None:
        """Passes unless the pause still lasts.

        Raises:
            Unavailable: with the reason for which the attach was stuck.
        """
        pause = self._pauses.get((vm, volume_id))
        if pause is not None and _now() < pause.until:
            raise Unavailable(
                f"volume {volume_id}: its attach to VM {vm} was stuck while other disks waited, and was taken back; "
                f"it is tried again in {pause.until - _now():.0f} s; the reason was: {pause.reason}"
            )

    def knows(self, vm: str, volume_id: str) -> bool:
        """Whether the attach was stuck before, so that it had better go alone."""
        return (vm, volume_id) in self._pauses

    def forget(self, vm: str, volume_id: str) -> None:
        """It is attached, or no longer wanted."""
        self._pauses.pop((vm, volume_id), None)


def _now() -> float:
    return asyncio.get_running_loop().time()
