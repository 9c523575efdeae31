"""The console script, with composition roots of the test's own."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kubevirt_csi import cli
from kubevirt_csi.settings import NodeSettings

Run = Callable[[NodeSettings], Coroutine[Any, Any, int]]


@pytest.fixture(autouse=True)
def logging_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's logging is pytest's here."""
    monkeypatch.setattr("kubevirt_csi.observe.logs.configure", lambda _level: None)


@pytest.fixture(autouse=True)
def garbage_is_collected() -> Iterator[None]:
    yield
    gc.unfreeze()


def install(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    module = types.ModuleType("composition_root_of_the_test")
    vars(module)["run"] = run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMPOSITION_ROOTS, "node", module.__name__)


def main(*arguments: str) -> int:
    """In a thread, whose event loop is none of pytest's."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(cli.main, arguments).result(timeout=30)


def test_the_chosen_role_gets_its_settings_and_gives_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NodeSettings] = []

    async def run(settings: NodeSettings) -> int:
        seen.append(settings)
        return 7

    install(monkeypatch, run)
    assert main("node", "--node-id=tenant-a/worker-1") == 7
    assert seen[0].node_id == "tenant-a/worker-1"


def test_an_error_of_the_role_is_logged_and_fails_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(_settings: NodeSettings) -> int:
        raise OSError("no socket")

    install(monkeypatch, run)
    assert main("node") == 1
    assert "no socket" in capsys.readouterr().out


def test_what_a_role_imported_is_left_alone_by_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []

    async def run(_settings: NodeSettings) -> int:
        seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
        return 0

    install(monkeypatch, run)
    assert main("node") == 0
    assert seen == [(True, True)]
