"""The infra Nodes: registered and kept alive. There are two, so that a virtual machine can be migrated.

They exist by name only; what kubelets do with the pods is in ``pods``. New machines come to the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

import structlog

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.heartbeats import beat
from e2e.lab.kubevirt.resources import NODE
from e2e.lab.kubevirt.settings import Durations

log = structlog.get_logger()


class Nodes:
    """The Nodes of these names."""

    def __init__(self, cluster: Cluster, names: Sequence[str], durations: Durations) -> None:
        self._cluster = cluster
        self._names = names
        self._durations = durations

    async def register(self) -> None:
        """Creates the Nodes, or takes over those that are there, and says that they are ready."""
        for name in self._names:
            labels = {"kubernetes.io/hostname": name, "kubevirt.io/schedulable": "true"}
            await self._cluster.apply(NODE, {"metadata": {"name": name, "labels": labels}})
            await self._beat(name)

    async def live(self) -> NoReturn:
        """Sends heartbeats for ever."""
        while True:
            await asyncio.sleep(self._durations.heartbeat)
            for name in self._names:
                try:
                    await self._beat(name)
                except ApiError as error:
                    log.warning("heartbeat", node=name, error=str(error))

    async def _beat(self, name: str) -> None:
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}]
        await beat(self._cluster, name, addresses=addresses)
