"""What holds for every test: asyncio debug mode, logging as before, and in the quick tiers a loop that never blocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from blockbuster import BlockBuster

QUICK_TIERS = tuple(str(Path(__file__).parent / tier) for tier in ("unit", "properties", "architecture"))
# Reading, writing and looking at files of a few bytes is allowed on the event loop; sleeping, waiting for a lock or a
# child, and sockets that block are not.
FILE_CALLS = ("os.", "io.", "builtins.open")


def pytest_configure() -> None:
    """Keeps Python 3.11 from making an event loop for whoever asks for "the current one" outside of any.

    pytest-asyncio asks so before its first test and leaves that loop unclosed, which is a warning, and so an error, in
    whatever test happens to run when it is collected.
    """
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def asyncio_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event loop of a test tells of coroutines that were never awaited and of slow callbacks."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Takes back whatever a test configures about logging."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call from our code that blocks the event loop raises blockbuster.BlockingError."""
    if not str(request.path).startswith(QUICK_TIERS):
        yield
        return
    watch = BlockBuster("kubevirt_csi")
    watch.activate()
    for name, function in watch.functions.items():
        if name.startswith(FILE_CALLS):
            function.deactivate()
    try:
        yield
    finally:
        watch.deactivate()
