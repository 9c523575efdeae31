"""The kinds of KubeVirt and CDI without anything behind them, and the driver's own view of a fresh namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from e2e.lab.api import Api, ApiError, eventually
from e2e.lab.controlplane import ControlPlane
from kubevirt_csi.infra.cluster import Infra

TENANT = {"csi.kubevirt.io/cluster": "tenant-a"}
KINDS = (
    ("kubevirt.io", "v1", "virtualmachines", "VirtualMachine"),
    ("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance"),
    ("cdi.kubevirt.io", "v1beta1", "datavolumes", "DataVolume"),
)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Runs something that never ends beside the block; its failure fails the test."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def following(infra: Infra, *, seconds: float = 30.0) -> AsyncIterator[None]:
    """The caches follow the cluster during the block; they have so many seconds to catch up with it."""

    async def synced() -> bool:
        return infra.synced

    async with running(infra.run()):
        await eventually(synced, what="the caches follow the cluster", deadline_seconds=seconds)
        yield


@pytest.fixture
async def infra(management: ControlPlane, management_api: Api, management_namespace: str) -> AsyncIterator[Infra]:
    """The adapters of tenant-a on a fresh namespace; ``run`` is the test's to start."""
    for group, version, plural, kind in KINDS:
        await _define(management_api, group, version, plural, kind)
    async with Infra(kubeconfig=management.admin_kubeconfig, namespace=management_namespace, labels=TENANT) as opened:
        yield opened


async def _define(api: Api, group: str, version: str, plural: str, kind: str) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }
    await api.ensure("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)

    async def served() -> bool:
        with suppress(ApiError):  # 429 while its storage is being made
            return await api.find(f"/apis/{group}/{version}/{plural}") is not None
        return False

    await eventually(served, what=f"{plural} are served", deadline_seconds=20)
