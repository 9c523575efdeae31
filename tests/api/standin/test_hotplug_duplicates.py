"""Answers of addvolume and removevolume where the volume is there already, or is not, or waits in the queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.standin.hotplugging import (
    VM_ENDPOINT,
    VMI_ENDPOINT,
    Call,
    Endpoint,
    being_deleted,
    conflict,
    details,
    queue_in,
    set_snapshot,
    stopped_vm,
    vm_until_volumes,
    volumes_in,
)
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import Site, add_options, hotplug

BY_CLAIM = add_options("other") | {"volumeSource": {"persistentVolumeClaim": {"claimName": "claim"}}}
PRESENT = {"name": "data", "dataVolume": {"name": "claim", "hotpluggable": True}}


async def machine_with_a_volume(site: Site, endpoint: Endpoint) -> str:
    """A machine with `PRESENT` in its spec."""
    if endpoint == VM_ENDPOINT:
        return await stopped_vm(site, volumes=(PRESENT,))
    vmi = await site.lone_vmi()
    assert (await site.add(vmi, add_options("data", source="claim"), kind=VMI_ENDPOINT)).code == 202
    return vmi


@pytest.mark.parametrize("mode", ["legacy", "declarative"])
@pytest.mark.parametrize("endpoint", [VM_ENDPOINT, VMI_ENDPOINT])
async def test_duplicates_and_missing_volumes_are_conflicts(
    site: Site, kubevirt: KubeVirt, endpoint: Endpoint, mode: Mode, subtests: pytest.Subtests
) -> None:
    machine = await machine_with_a_volume(site, endpoint)
    await kubevirt.become(mode)
    table: list[tuple[str, Call, Any, str]] = [
        (
            "name already in spec",
            "add",
            add_options("data", source="other"),
            "Unable to add volume [data] because volume with that name already exists",
        ),
        (
            "same DataVolume under another name",
            "add",
            add_options("other", source="claim"),
            "Unable to add volume source [claim] because it already exists",
        ),
        (
            "same claim under another name",
            "add",
            BY_CLAIM,
            "Unable to add volume source [claim] because it already exists",
        ),
        (
            "remove, name unknown",
            "remove",
            {"name": "ghost"},
            "Unable to remove volume [ghost] because it does not exist",
        ),
        (
            "remove, not hot-pluggable",
            "remove",
            {"name": "root"},
            "Unable to remove volume [root] because it is not hotpluggable",
        ),
    ]
    for row, call, options, message in table:
        with subtests.test(row):
            answer = await getattr(site, call)(machine, options, kind=endpoint)
            assert answer.refusal == conflict(endpoint, machine, message)
            assert answer.body["details"] == details(endpoint, machine)


# The queue of legacy mode, held up so that what waits in it can be seen


async def test_the_same_add_while_the_first_is_queued_is_a_conflict(site: Site, kubevirt: KubeVirt) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become("legacy")
    async with being_deleted(site, vm):
        assert (await site.add(vm, add_options("data"))).code == 202
        answer = await site.add(vm, add_options("data"))
    assert answer.refusal == conflict(VM_ENDPOINT, vm, "add volume request for volume [data] already exists")


async def test_an_add_while_a_remove_is_queued_is_a_conflict(site: Site, kubevirt: KubeVirt) -> None:
    # The name is free in the spec, and the queue has a removal of it: it was asked for by the claim's name.
    vm = await stopped_vm(site, volumes=(hotplug("data") | {"name": "volume"},))
    await kubevirt.become("legacy")
    async with being_deleted(site, vm):
        assert (await site.remove(vm, {"name": "data"})).code == 202
        answer = await site.add(vm, add_options("data", source="other"))
    assert answer.refusal == conflict(
        VM_ENDPOINT,
        vm,
        "unable to add volume since a remove volume request for volume [data] already exists and is still being"
        " processed",
    )


async def test_a_remove_while_the_first_is_queued_is_a_conflict(site: Site, kubevirt: KubeVirt) -> None:
    vm = await stopped_vm(site, volumes=(hotplug("data"),))
    await kubevirt.become("legacy")
    async with being_deleted(site, vm):
        assert (await site.remove(vm, {"name": "data"})).code == 202
        answer = await site.remove(vm, {"name": "data"})
    assert answer.refusal == conflict(
        VM_ENDPOINT, vm, "a remove volume request for volume [data] already exists and is still being processed"
    )


async def test_a_remove_right_after_the_add_is_told_that_nothing_exists_and_the_add_is_carried_out(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become("legacy")
    await set_snapshot(site, vm, "x")
    assert (await site.add(vm, add_options("data"))).code == 202
    answer = await site.remove(vm, {"name": "data"})
    assert answer.refusal == conflict(VM_ENDPOINT, vm, "Unable to remove volume [data] because it does not exist")
    waiting = await site.vm(vm)
    assert (volumes_in(waiting), len(queue_in(waiting))) == (["root"], 1)
    await set_snapshot(site, vm, None)
    await vm_until_volumes(site, vm, "root", "data")


async def test_two_queued_adds_of_one_source_under_different_names_are_both_accepted(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become("legacy")
    await set_snapshot(site, vm, "x")
    assert (await site.add(vm, add_options("one", source="claim"))).code == 202
    assert (await site.add(vm, add_options("two", source="claim"))).code == 202
    await set_snapshot(site, vm, None)
    await vm_until_volumes(site, vm, "root", "one", "two")
