"""The management cluster, put together: credentials, connection, caches and the two ports, for the composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Never, Self

from kubevirt_csi.infra.access import log_missing_grants
from kubevirt_csi.infra.answers import Place
from kubevirt_csi.infra.cache import Cache
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.credentials import Credentials, from_kubeconfig, in_cluster
from kubevirt_csi.infra.machines import InfraMachines
from kubevirt_csi.infra.selectors import Selector
from kubevirt_csi.infra.volumes import InfraVolumes

CLUSTER = "infra cluster"
ACCESS_SECONDS = 60.0
"""The access check is repeated until the API server can be asked."""


class Infra:
    """One namespace of the management cluster, usable inside its ``async with`` block while ``run`` runs.

    Args:
        kubeconfig: None means the account of the pod that we run in.
        namespace: of the tenant's VMs and volumes.
        labels: of this tenant, on every object; never empty.
        vm_selector: label selector that a VM must match; None matches every VM.

    Raises:
        ValueError: no labels, or the selector is none.
    """

    def __init__(
        self, *, kubeconfig: Path | None, namespace: str, labels: Mapping[str, str], vm_selector: str | None = None
    ) -> None:
        if not labels:
            raise ValueError("without labels another tenant's volumes would be ours")
        load = from_kubeconfig(kubeconfig) if kubeconfig is not None else in_cluster()
        self._credentials = Credentials(load, cluster=CLUSTER)
        self.connection = Connection(self._credentials, place=Place(cluster=CLUSTER, namespace=namespace))
        self.volumes = InfraVolumes(self.connection, labels=labels)
        self.machines = InfraMachines(self.connection, selector=Selector.parse(vm_selector or ""))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._credentials.aclose()

    async def run(self) -> Never:
        """Follows the cluster for ever, after logging what the account lacks; to be run in a task group."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_access())
            for cache in self._caches:
                tasks.create_task(cache.run())
        raise AssertionError("caches run for ever")

    async def _check_access(self) -> None:
        while True:
            if await log_missing_grants(self.connection):
                return
            await asyncio.sleep(ACCESS_SECONDS)

    @property
    def synced(self) -> bool:
        """Whether every cache follows the server."""
        return not self.troubles

    @property
    def troubles(self) -> dict[str, str]:
        """Resources whose cache does not follow the server at present, each with the reason, for readyz."""
        return {cache.resource.title: cache.trouble for cache in self._caches if cache.trouble is not None}

    @property
    def _caches(self) -> tuple[Cache[Any], ...]:
        return (*self.volumes.caches, *self.machines.caches)
