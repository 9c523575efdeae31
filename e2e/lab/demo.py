"""Plays the newcomer's walk on the terminal: each step's headline, what it shows, and the time since the start.

It prints plain lines, so that a log of it reads as well as a terminal does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from e2e.kubectl import KubectlError, NotYet
from e2e.walk import STEPS, Seen, Surroundings, WalkError, title

Clock = Callable[[], float]


def play(where: Surroundings, console: Console, *, clock: Clock = time.monotonic, started: float | None = None) -> bool:
    """Walks all steps; False when one of them did not see what it should, which is printed.

    ``started`` is the clock's reading from which elapsed seconds count, now when left out.
    """
    beginning = clock() if started is None else started
    seen = Seen()
    for number, step in enumerate(STEPS, start=1):
        console.print(
            f"\n[bold][{clock() - beginning:6.1f} s] {number}/{len(STEPS)}  {title(step)}[/bold]",
            highlight=False,
            soft_wrap=True,
        )
        try:
            for text in step(where, seen):
                console.print(_indented(text), markup=False, highlight=False, soft_wrap=True)
        except (KubectlError, NotYet, WalkError) as error:
            console.print(
                f"\n[{clock() - beginning:6.1f} s] FAILED: {error}", markup=False, highlight=False, soft_wrap=True
            )
            return False
    console.print(f"\n[bold][{clock() - beginning:6.1f} s] done: the driver did its job[/bold]", highlight=False)
    return True


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
