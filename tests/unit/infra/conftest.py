from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubevirt_csi.infra.connection import Connection
from tests.unit.infra.fake_api import Clock, FakeApi, connected, serving


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with serving() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def connection(api: FakeApi, tmp_path: Path, clock: Clock) -> AsyncIterator[Connection]:
    async with connected(api, tmp_path, clock) as opened:
        yield opened
