"""What all parts of the fake infra cluster stand on: time, versions, who is told of changes, requests that fail."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from kubevirt_csi.domain.machines import Machine
from kubevirt_csi.waiting import Notice
from tests.fakes.infra_objects import Fault, Timing, Volume

NAMESPACE = "tenant-a"


class Ground:
    """Objects, without anything that happens to them."""

    def __init__(self) -> None:
        self.timing = Timing()
        self.volumes: dict[str, Volume] = {}
        self.machines: dict[str, Machine] = {}
        self.reads: Counter[str] = Counter()
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.orphan_effect: float | None = None
        """Seconds after which a request is carried out whose sender died, None for never."""
        self.touched: list[Callable[[str], None]] = []
        self.changes = Notice()
        self._version = 100

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def version(self) -> str:
        self._version += 1
        return str(self._version)

    def touch(self, name: str) -> None:
        for tell in self.touched:
            tell(name)
        self.changes.notify()

    def fail(self, request: str, error: Exception, *, carried_out_after: float | None = None, times: int = 1) -> None:
        self.faults[request].extend([Fault(error, carried_out_after)] * times)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)
