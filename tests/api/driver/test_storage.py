"""Infra classes in both binding modes, Block and Filesystem claims, bare claims, quotas and what CDI refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kubevirt_csi.domain.capacity import MIB
from kubevirt_csi.errors import InvalidArgument, OutOfRange, ResourceExhausted
from tests.api.driver.conftest import Controller
from tests.api.standin.site import Site, entry_of, phase_of
from tests.api.standin.volumes import CLASSES, bare_claim

pytestmark = pytest.mark.timeout(300)

OURS = {"csi.kubevirt.io/cluster": "tenant-a"}
PHASES_OF_USE = ("WaitForFirstConsumer", "PendingPopulation")


async def test_a_class_that_binds_on_first_consumer_is_made_at_once_and_filled_by_its_attach(
    controller: Controller,
) -> None:
    site = controller.site
    vm = await site.running_vm()
    made = await controller.create("pvc-1", storage_class="local-block-wffc")
    assert phase_of(await site.client.get(f"{site.datavolumes}/pvc-1")) in PHASES_OF_USE
    assert made.capacity_bytes == 16 * MIB

    told = await controller.publish("pvc-1", vm)
    assert (told["size"], told["content"]) == (str(16 * MIB), "none")
    assert phase_of(await site.client.get(f"{site.datavolumes}/pvc-1")) == "Succeeded"
    await controller.unpublish("pvc-1", vm)
    await controller.delete("pvc-1")


async def test_disks_that_are_ready_do_not_wait_for_one_that_has_to_be_filled(controller: Controller) -> None:
    vm = await controller.site.running_vm()
    await controller.create("pvc-slow", storage_class="local-block-wffc")
    await asyncio.gather(*(controller.create(f"pvc-{number}") for number in range(3)))
    order: list[str] = []

    async def publish(name: str) -> None:
        await controller.publish(name, vm)
        order.append(name)

    await asyncio.gather(publish("pvc-slow"), *(publish(f"pvc-{number}") for number in range(3)))
    assert order[-1] == "pvc-slow"


async def test_a_filesystem_class_gives_the_guest_what_was_asked_for(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    made = await controller.create("pvc-1", storage_class="local-filesystem", limit=16 * MIB)
    assert made.capacity_bytes == 16 * MIB
    claim = await controller.claim("pvc-1")
    assert claim["spec"]["volumeMode"] == "Filesystem"
    assert _image(site, claim).stat().st_size == 16 * MIB
    assert (await controller.publish("pvc-1", vm))["size"] == str(16 * MIB)
    await controller.unpublish("pvc-1", vm)


async def test_a_filesystem_volume_whose_data_volume_is_gone_is_told_with_no_more_than_its_image_has(
    controller: Controller,
) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1", storage_class="local-filesystem")
    orphaned = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
    assert (await site.client.call("DELETE", f"{site.datavolumes}/pvc-1", orphaned)).code == 200
    await site.client.follow(site.datavolumes, "pvc-1", lambda found: found is None)
    claim = await controller.claim("pvc-1")
    told = int((await controller.publish("pvc-1", vm))["size"])
    assert 15 * MIB <= told <= _image(site, claim).stat().st_size
    await controller.unpublish("pvc-1", vm)
    await controller.delete("pvc-1")
    await site.client.follow(site.claims, "pvc-1", lambda found: found is None)


@pytest.mark.parametrize("storage_class", ["local-block", "local-block-wffc"])
async def test_a_bare_claim_is_found_attached_and_deleted(controller: Controller, storage_class: str) -> None:
    site = controller.site
    vm = await site.running_vm()
    body = bare_claim("pvc-1", storageClassName=storage_class)
    body["metadata"] |= {"labels": OURS}
    claim = await site.client.create(site.claims, body)
    told = await controller.publish("pvc-1", vm)
    assert (told["serial"], told["size"]) == (claim["metadata"]["uid"], str(16 * MIB))
    assert entry_of(await site.vmi(vm), "pvc-1")["phase"] == "Ready"
    await controller.unpublish("pvc-1", vm)
    await controller.delete("pvc-1")
    await site.client.follow(site.claims, "pvc-1", lambda found: found is None)


async def test_a_quota_for_storage_is_resource_exhausted_in_its_words_and_nothing_is_left(
    controller: Controller,
) -> None:
    site = controller.site
    await site.quota({"requests.storage": "24Mi"})
    where = rf"infra cluster, namespace {site.namespace}, with storage class local-block"
    with pytest.raises(ResourceExhausted, match=rf"pvc-big .*{where}.*exceeded quota: quota"):
        await controller.create("pvc-big", storage_class="local-block", size=32 * MIB)
    assert (await site.client.get(site.datavolumes))["items"] == []
    assert (await site.client.get(site.claims))["items"] == []


async def test_a_quota_for_objects_is_resource_exhausted(controller: Controller) -> None:
    await controller.site.quota({"count/datavolumes.cdi.kubevirt.io": "1"})
    await controller.create("pvc-1")
    with pytest.raises(ResourceExhausted, match=r"infra cluster.*exceeded quota: quota"):
        await controller.create("pvc-2")


async def test_an_unknown_infra_class_is_refused_by_name_with_cdis_words_and_nothing_is_left(
    controller: Controller,
) -> None:
    with pytest.raises(InvalidArgument, match=r"pvc-1 .*class nowhere.*ErrClaimNotValid: PVC spec is missing accessM"):
        await controller.create("pvc-1", storage_class="nowhere")
    assert (await controller.site.client.get(controller.site.datavolumes))["items"] == []


async def test_a_class_of_which_cdi_knows_no_access_mode_is_refused_in_its_words(controller: Controller) -> None:
    """The profile of a class whose provisioner CDI does not know."""
    site = controller.site
    name = f"unknown-{site.namespace}"
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "nobody.example.com",
    }
    await site.client.create(CLASSES, body)
    try:
        with pytest.raises(InvalidArgument, match=rf"ErrClaimNotValid: no accessMode .*StorageProfile {name}"):
            await controller.create("pvc-1", storage_class=name)
    finally:
        await site.client.delete(f"{CLASSES}/{name}")


async def test_a_name_is_free_again_when_the_old_claim_has_gone(controller: Controller) -> None:
    first = await controller.create("pvc-1")
    await controller.delete("pvc-1")
    second = await controller.create("pvc-1")
    assert second.volume_context["serial"] != first.volume_context["serial"]


async def test_a_limit_below_what_is_asked_makes_nothing(controller: Controller) -> None:
    with pytest.raises(OutOfRange):
        await controller.create("pvc-1", size=16 * MIB, limit=8 * MIB)
    assert (await controller.site.client.get(controller.site.datavolumes))["items"] == []


def _image(site: Site, claim: dict[str, dict[str, str]]) -> Path:
    """The disk image in a Filesystem claim's volume."""
    return site.storage / claim["spec"]["volumeName"] / "disk.img"
