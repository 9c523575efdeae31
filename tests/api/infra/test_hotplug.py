"""Both ports against kube-apiserver with the KubeVirt and CDI stand-in behind it: a disk's whole life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from kubevirt_csi.domain.capacity import MIB
from kubevirt_csi.domain.infra_volumes import CONTENT, InfraVolume, NewVolume
from kubevirt_csi.domain.machines import Machine, Plug
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.errors import NotFound
from kubevirt_csi.infra.cluster import Infra
from kubevirt_csi.ports.infra import Stale
from tests.api.infra.conftest import TENANT, running
from tests.api.standin.conftest import StandIn, audit, client, management, site, standin  # noqa: F401 - its fixtures
from tests.api.standin.site import Site

Found = TypeVar("Found")

SECONDS = 100.0

pytestmark = pytest.mark.timeout(300)
NEW = NewVolume(
    id="pvc-1",
    name="pvc-1",
    size_bytes=64 * MIB,
    storage_class=None,
    read_write_many=False,
    serial="0123456789abcdef0123",
    bus=Bus.SCSI,
    digest="d1",
)
PLUG = Plug(volume_id="pvc-1", serial="0123456789abcdef0123", bus=Bus.SCSI)


@pytest.fixture
async def infra(standin: StandIn, site: Site) -> AsyncIterator[Infra]:  # noqa: F811 - the fixture
    async with Infra(kubeconfig=standin.management.admin_kubeconfig, namespace=site.namespace, labels=TENANT) as opened:
        yield opened


async def volume_until(infra: Infra, wanted: Callable[[InfraVolume | None], bool]) -> InfraVolume | None:
    return await _until(infra, lambda: infra.volumes.changed("pvc-1"), lambda: infra.volumes.get("pvc-1"), wanted)


async def machine_until(infra: Infra, name: str, wanted: Callable[[Machine | None], bool]) -> Machine | None:
    return await _until(infra, lambda: infra.machines.changed(name), lambda: infra.machines.get(name), wanted)


async def test_a_disk_is_made_plugged_unplugged_and_deleted(infra: Infra, site: Site) -> None:  # noqa: F811
    async with running(infra.run()):
        vm = await site.running_vm()
        await infra.volumes.create(NEW)
        volume = await volume_until(infra, lambda found: found is not None and found.decided)
        assert volume is not None
        assert volume.claim is not None
        assert (volume.serial, volume.bus, volume.content) == (NEW.serial, Bus.SCSI, Content.NONE)
        assert volume.capacity_bytes == 64 * MIB

        await infra.machines.add_volume(vm, PLUG)
        with pytest.raises(Stale, match="already exists"):
            await infra.machines.add_volume(vm, PLUG)
        machine = await machine_until(infra, vm, lambda found: found is not None and found.attached("pvc-1"))
        assert machine is not None
        assert machine.volumes["pvc-1"].serial == NEW.serial
        assert machine.volumes["pvc-1"].bus == "scsi"
        assert [holder.name for holder in await infra.machines.holders("pvc-1", fresh=True)] == [vm]

        await infra.volumes.annotate(await _fresh(infra), {CONTENT: "used"})
        await infra.machines.remove_volume(vm, "pvc-1")
        await machine_until(infra, vm, lambda found: found is not None and not found.holds("pvc-1"))
        assert await infra.machines.holders("pvc-1", fresh=True) == []
        with pytest.raises(Stale, match="does not exist"):
            await infra.machines.remove_volume(vm, "pvc-1")

        await infra.volumes.delete(await _fresh(infra))
        await volume_until(infra, lambda found: found is None)
        assert await infra.volumes.get("pvc-1", fresh=True) is None


async def test_a_disk_without_data_volume_is_plugged_by_its_claim(infra: Infra, site: Site) -> None:  # noqa: F811
    async with running(infra.run()):
        vm = await site.running_vm()
        await infra.volumes.create(NEW)
        await volume_until(infra, lambda found: found is not None and found.decided)
        await infra.machines.add_volume(vm, replace(PLUG, bare_claim=True))
        await machine_until(infra, vm, lambda found: found is not None and found.attached("pvc-1"))


async def test_a_vm_that_does_not_exist_is_not_found(infra: Infra) -> None:
    with pytest.raises(NotFound, match='"vm-nowhere" not found'):
        await infra.machines.add_volume("vm-nowhere", PLUG)
    with pytest.raises(NotFound, match='"vm-nowhere" not found'):
        await infra.machines.remove_volume_from_instance("vm-nowhere", "pvc-1")


async def _fresh(infra: Infra) -> InfraVolume:
    found = await infra.volumes.get("pvc-1", fresh=True)
    assert found is not None
    return found


async def _until(
    infra: Infra,
    changed: Callable[[], Awaitable[None]],
    read: Callable[[], Awaitable[Found]],
    wanted: Callable[[Found], bool],
) -> Found:
    """Waits as operations do: take the awaitable, read, await."""
    async with asyncio.timeout(SECONDS):
        while True:
            change = changed()
            if infra.synced and wanted(found := await read()):
                return found
            await change
