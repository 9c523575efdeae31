"""A disk's life in each of KubeVirt's hot-plug modes, and while a running cluster changes its mode."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.errors import FailedPrecondition, Unavailable
from tests.api.driver.conftest import Controller, begin, told
from tests.api.standin.hotplugging import queue_in, set_snapshot, volumes_in
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import add_options, entry_of

pytestmark = pytest.mark.timeout(300)

ATTACHMENTS = "csi.kubevirt.io/attachments"


@pytest.mark.parametrize("mode", ["legacy", "declarative"])
async def test_a_disk_is_made_plugged_unplugged_and_deleted(
    controller: Controller, kubevirt: KubeVirt, mode: Mode
) -> None:
    await kubevirt.become(mode)
    vm = await controller.site.running_vm()
    made = await controller.create("pvc-1")
    context = await controller.publish("pvc-1", vm)
    assert context["serial"] == made.volume_context["serial"]
    entry = entry_of(await controller.site.vmi(vm), "pvc-1")
    assert (entry["phase"], bool(entry["target"])) == ("Ready", True)
    assert await controller.publish("pvc-1", vm) == context

    await controller.unpublish("pvc-1", vm)
    assert entry_of(await controller.site.vmi(vm), "pvc-1") == {}
    assert volumes_in(await controller.site.vm(vm)) == ["root"]
    await controller.delete("pvc-1")


@pytest.mark.parametrize("mode", ["legacy", "declarative"])
async def test_many_disks_at_once_all_come_and_all_go(controller: Controller, kubevirt: KubeVirt, mode: Mode) -> None:
    await kubevirt.become(mode)
    vm = await controller.site.running_vm()
    names = [f"pvc-{number}" for number in range(8)]
    await asyncio.gather(*(controller.create(name) for name in names))
    contexts = await asyncio.gather(*(controller.publish(name, vm) for name in names))
    assert len({context["serial"] for context in contexts}) == 8
    await asyncio.gather(*(controller.unpublish(name, vm) for name in names))
    assert volumes_in(await controller.site.vm(vm)) == ["root"]


async def test_a_volume_that_waits_in_the_queue_is_neither_detached_nor_plugged_twice(
    controller: Controller, kubevirt: KubeVirt
) -> None:
    """A snapshot of the VM keeps the queue from being worked off; removals are answered with "does not exist"."""
    await kubevirt.become("legacy")
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await set_snapshot(site, vm, "x")
    attach, attaching = begin(controller.publish("pvc-1", vm))
    await told(attaching, "volumeRequests, waiting to be added")
    attach.cancel()
    again, attaching = begin(controller.publish("pvc-1", vm))
    await told(attaching, "volumeRequests, waiting to be added")
    assert len(queue_in(await site.vm(vm))) == 1
    again.cancel()

    detach, detaching = begin(controller.unpublish("pvc-1", vm))
    await told(detaching, "out of its queue")
    await set_snapshot(site, vm, None)
    await detach
    found = await site.vm(vm)
    assert (volumes_in(found), queue_in(found)) == (["root"], [])
    assert entry_of(await site.vmi(vm), "pvc-1") == {}


async def test_a_removal_that_waits_in_the_queue_is_waited_for_and_makes_the_disk_unattached(
    controller: Controller, kubevirt: KubeVirt
) -> None:
    await kubevirt.become("legacy")
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await controller.publish("pvc-1", vm)
    await set_snapshot(site, vm, "x")
    detach, detaching = begin(controller.unpublish("pvc-1", vm))
    await told(detaching, "volumeRequests, waiting to be removed")
    with pytest.raises(Unavailable, match="still detaching"):
        await controller.publish("pvc-1", vm)
    detach.cancel()
    detach, detaching = begin(controller.unpublish("pvc-1", vm))
    await told(detaching, "volumeRequests, waiting to be removed")
    assert len(queue_in(await site.vm(vm))) == 1
    await set_snapshot(site, vm, None)
    await detach
    assert entry_of(await site.vmi(vm), "pvc-1") == {}


async def test_with_both_gates_off_the_refusal_names_them_and_leaves_nothing(
    controller: Controller, kubevirt: KubeVirt
) -> None:
    vm = await controller.site.running_vm()
    await controller.create("pvc-1")
    await kubevirt.become("off")
    with pytest.raises(FailedPrecondition, match=r"DeclarativeHotplugVolumes .* or HotplugVolumes in the KubeVirt"):
        await controller.publish("pvc-1", vm)
    assert volumes_in(await controller.site.vm(vm)) == ["root"]
    assert ATTACHMENTS not in (await controller.claim("pvc-1"))["metadata"]["annotations"]


@pytest.mark.parametrize(("before", "after"), [("legacy", "declarative"), ("declarative", "legacy")])
async def test_a_disk_outlives_a_change_of_the_mode(
    controller: Controller, kubevirt: KubeVirt, before: Mode, after: Mode
) -> None:
    await kubevirt.become(before)
    vm = await controller.site.running_vm()
    await controller.create("pvc-1")
    context = await controller.publish("pvc-1", vm)
    await kubevirt.become("off")
    assert await controller.publish("pvc-1", vm) == context
    with pytest.raises(FailedPrecondition, match="HotplugVolumes"):
        await controller.unpublish("pvc-1", vm)
    await kubevirt.become(after)
    await controller.unpublish("pvc-1", vm)
    assert entry_of(await controller.site.vmi(vm), "pvc-1") == {}


async def test_a_bad_entry_of_somebody_else_is_told_to_those_who_wait_for_it(
    controller: Controller, kubevirt: KubeVirt
) -> None:
    """In declarative mode one entry that the instance's admission refuses keeps the VM from every change."""
    await kubevirt.become("declarative")
    site = controller.site
    vm = await site.running_vm()
    await site.ready_volume("bad")
    await controller.create("pvc-1")
    assert (await site.add(vm, add_options("bad", disk={"bus": "sata"}))).code == 202
    await site.client.follow(site.vms, vm, lambda seen: "HotPlugVolumeError" in str(seen))

    attach, attaching = begin(controller.publish("pvc-1", vm))
    await told(attaching, "Error encountered while handling declarative hotplug volumes")
    assert (await site.remove(vm, {"name": "bad"})).code == 202
    await attach
    assert entry_of(await site.vmi(vm), "pvc-1")["phase"] == "Ready"
