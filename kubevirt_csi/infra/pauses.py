"""Growing, jittered pauses between attempts, so that a server that is down is not hammered by many clients in step."""

from __future__ import annotations

import random


class Pauses:
    """Each ``next`` is twice the one before, up to the longest, minus up to half of it by chance; in seconds."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """The pause before the next attempt."""
        full = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return full * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, no secret

    def reset(self) -> None:
        """To be called when an attempt got somewhere."""
        self._failures = 0
