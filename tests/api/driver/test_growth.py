"""Growth of volumes of every kind of infra class: what the claim asks for, what the guest gets, and who refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from e2e.lab.api import eventually
from kubevirt_csi.controller import controller_service
from kubevirt_csi.domain.capacity import MIB
from kubevirt_csi.domain.nodeids import NodeNamespace
from kubevirt_csi.errors import NotFound, OutOfRange, ResourceExhausted, Unavailable
from kubevirt_csi.infra.cluster import Infra
from tests.api.driver.conftest import SIZE, Controller, begin, told
from tests.api.standin.site import Site
from tests.api.standin.volumes import bare_claim, image_behind, storage_class

pytestmark = pytest.mark.timeout(300)

GROWN_SECONDS = 60.0
DRIVER = "kubevirt-csi"
OURS = {"csi.kubevirt.io/cluster": "tenant-a"}


async def asked(controller: Controller, name: str = "pvc-1") -> str:
    """What the claim asks of its storage."""
    return str((await controller.claim(name))["spec"]["resources"]["requests"]["storage"])


async def writers(controller: Controller, name: str = "pvc-1") -> set[str]:
    """Who has written fields of the claim; Kubernetes' own controllers are among them at any time."""
    return {each["manager"] for each in (await controller.claim(name))["metadata"]["managedFields"]}


async def guest_has(plugged: Path, size: int) -> None:
    """Returns when the VM was told that its disk has so many bytes."""

    async def is_told() -> bool:
        return (await asyncio.to_thread(plugged.read_text)).endswith(f" {size}")

    await eventually(is_told, what=f"{plugged.name} has {size} bytes", deadline_seconds=GROWN_SECONDS)


async def test_a_block_volume_grows_under_a_running_vm(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await controller.publish("pvc-1", vm)
    assert await controller.expand("pvc-1", 2 * SIZE) == 2 * SIZE
    assert await asked(controller) == "32Mi"
    assert (await controller.claim("pvc-1"))["status"]["capacity"]["storage"] == "32Mi"
    await guest_has(site.machines / vm / "pvc-1", 2 * SIZE)
    assert (await controller.publish("pvc-1", vm))["size"] == str(2 * SIZE)
    await controller.unpublish("pvc-1", vm)


async def test_a_file_in_a_claim_grows_to_what_was_asked_for_and_not_less(controller: Controller) -> None:
    """KubeVirt makes the image 6 % smaller than its claim, CDI made the claim 6 % larger than the image."""
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1", storage_class="local-filesystem")
    await controller.publish("pvc-1", vm)
    assert await controller.expand("pvc-1", SIZE + MIB) == SIZE + MIB
    assert await asked(controller) == "19Mi"
    await guest_has(site.machines / vm / "pvc-1", SIZE + MIB)
    image = await image_behind(site, "pvc-1")
    assert image.stat().st_size == SIZE + MIB
    await controller.unpublish("pvc-1", vm)


async def test_the_overhead_of_the_claims_class_is_what_counts(controller: Controller) -> None:
    site = controller.site
    name = await storage_class(site, "roomy", provisioner="filesystem.csi.lab.example.com")
    cdi = "/apis/cdi.kubevirt.io/v1beta1/cdis/cdi"
    await site.client.patch(cdi, {"spec": {"config": {"filesystemOverhead": {"storageClass": {name: "0.5"}}}}})
    try:
        config = "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs"
        await site.client.follow(
            config,
            "config",
            lambda found: found["status"]["filesystemOverhead"]["storageClass"].get(name) == "0.5",  # type: ignore[index]
        )
        await controller.create("pvc-1", storage_class=name)
        assert await controller.expand("pvc-1", 2 * SIZE) == 2 * SIZE
        assert await asked(controller) == "64Mi"
    finally:
        await site.client.patch(cdi, {"spec": {"config": {"filesystemOverhead": {"storageClass": {name: None}}}}})


async def test_a_file_that_is_attached_nowhere_is_done_for_the_controller_and_grows_with_its_next_attach(
    controller: Controller,
) -> None:
    """Only a pod that uses the claim lets its file system grow, so FileSystemResizePending is the end here."""
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1", storage_class="local-filesystem")
    assert await controller.expand("pvc-1", 2 * SIZE) == 2 * SIZE
    conditions = (await controller.claim("pvc-1"))["status"]["conditions"]
    assert "FileSystemResizePending" in {each["type"] for each in conditions}
    assert await controller.expand("pvc-1", 2 * SIZE) == 2 * SIZE
    await controller.publish("pvc-1", vm)
    await guest_has(site.machines / vm / "pvc-1", 2 * SIZE)
    assert (await controller.publish("pvc-1", vm))["size"] == str(2 * SIZE)
    await controller.unpublish("pvc-1", vm)


async def test_a_volume_that_is_larger_already_is_left_alone(controller: Controller) -> None:
    await controller.create("pvc-1")
    for size in (SIZE // 2, SIZE):
        assert await controller.expand("pvc-1", size) == SIZE
    assert DRIVER not in await writers(controller)
    with pytest.raises(OutOfRange, match=f"{SIZE} bytes already, more than limit_bytes {SIZE // 2}"):
        await controller.expand("pvc-1", MIB, limit=SIZE // 2)
    assert DRIVER not in await writers(controller)
    await controller.expand("pvc-1", 2 * SIZE)
    assert DRIVER in await writers(controller)


async def test_a_bare_claim_is_left_alone_when_it_is_large_enough_and_grows_otherwise(controller: Controller) -> None:
    site = controller.site
    body = bare_claim("pvc-1")
    body["metadata"] |= {"labels": OURS}
    await site.client.create(site.claims, body)
    await site.client.follow(site.claims, "pvc-1", lambda claim: claim is not None and "capacity" in claim["status"])
    assert await controller.expand("pvc-1", MIB) == SIZE
    assert await controller.expand("pvc-1", 2 * SIZE) == 2 * SIZE


async def test_a_limit_that_no_size_meets_writes_nothing(controller: Controller) -> None:
    await controller.create("pvc-1")
    with pytest.raises(OutOfRange, match="whole MiB"):
        await controller.expand("pvc-1", SIZE + 1, limit=SIZE + 2)
    assert await asked(controller) == "16Mi"


async def test_a_quota_is_resource_exhausted_in_its_words_and_growth_goes_on_when_there_is_room(
    controller: Controller,
) -> None:
    site = controller.site
    await controller.create("pvc-1")
    await site.quota({"requests.storage": "40Mi"})  # CDI's own claim may still count
    with pytest.raises(ResourceExhausted, match=rf"infra cluster, namespace {site.namespace}: .*exceeded quota: quota"):
        await controller.expand("pvc-1", 4 * SIZE)
    assert await asked(controller) == "16Mi"
    assert await controller.expand("pvc-1", SIZE + MIB) == SIZE + MIB


async def test_a_class_that_lets_no_claim_grow_is_named_in_kubernetes_words(controller: Controller) -> None:
    await controller.create("pvc-1", storage_class="local-legacy")
    with pytest.raises(OutOfRange, match=r"must support resize; set allowVolumeExpansion: true"):
        await controller.expand("pvc-1", 2 * SIZE)
    assert await asked(controller) == "16Mi"


async def test_a_class_that_is_full_is_told_while_it_is_waited_for(controller: Controller) -> None:
    site = controller.site
    name = await storage_class(site, "small", parameters={"capacity": "24Mi"})
    await controller.create("pvc-1", storage_class=name)
    growing, work = begin(controller.expand("pvc-1", 2 * SIZE))
    try:
        await told(work, "ControllerResizeError")
        await told(work, "asks for 33554432 bytes and has 16777216")
    finally:
        growing.cancel()
        await asyncio.wait({growing})


async def test_a_claim_that_is_bound_by_its_first_use_grows_after_that(controller: Controller) -> None:
    vm = await controller.site.running_vm()
    await controller.create("pvc-1", storage_class="local-block-wffc")
    with pytest.raises(Unavailable, match="first attach"):
        await controller.expand("pvc-1", 2 * SIZE)
    await controller.publish("pvc-1", vm)
    assert await controller.expand("pvc-1", 2 * SIZE) == 2 * SIZE
    await controller.unpublish("pvc-1", vm)


async def test_what_one_process_wrote_another_one_answers_for(controller: Controller, infra: Infra, site: Site) -> None:
    """The first is gone between its write and its answer."""
    await controller.create("pvc-1", storage_class="local-filesystem")
    growing, work = begin(controller.expand("pvc-1", 2 * SIZE))
    await told(work, "pvc-1 to grow")
    growing.cancel()
    await asyncio.wait({growing})
    written = await asked(controller)
    service = controller_service(
        volumes=infra.volumes, machines=infra.machines, nodes=NodeNamespace(name=site.namespace)
    )
    assert await Controller(service, site).expand("pvc-1", 2 * SIZE) == 2 * SIZE
    assert await asked(controller) == written == "35Mi"


async def test_another_tenants_claim_does_not_exist(controller: Controller) -> None:
    site = controller.site
    await site.client.create(site.claims, bare_claim("pvc-9"))
    with pytest.raises(NotFound, match="pvc-9 does not exist"):
        await controller.expand("pvc-9", 2 * SIZE)
    assert await asked(controller, "pvc-9") == "16Mi"
