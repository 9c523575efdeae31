"""The Volumes port against a real kube-apiserver; the test plays CDI where it makes claims."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from e2e.lab.api import Api, eventually
from kubevirt_csi.domain import infra_volumes
from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import InfraVolume, NewVolume
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.errors import NotFound
from kubevirt_csi.infra.cluster import Infra
from kubevirt_csi.ports.infra import Stale
from tests.api.infra.conftest import TENANT, following

GIB = 1024**3
NEW = NewVolume(
    id="pvc-1",
    name="pvc-1",
    size_bytes=GIB,
    storage_class="local-block",
    read_write_many=False,
    serial="0123456789abcdef0123",
    bus=Bus.SCSI,
    digest="d1",
)


class Cdi:
    """Makes the claim of a DataVolume, with its labels and annotations, as CDI does."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.data_volumes = f"/apis/cdi.kubevirt.io/v1beta1/namespaces/{namespace}/datavolumes"
        self.claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"

    async def make_claim(self, name: str) -> None:
        found = await self.api.get(f"{self.data_volumes}/{name}")
        metadata = {key: found["metadata"][key] for key in ("name", "labels", "annotations")}
        await self.api.create(self.claims, claim(metadata))


def claim(metadata: dict[str, object]) -> dict[str, object]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Block",
        "storageClassName": "none",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": metadata, "spec": spec}


@pytest.fixture
def cdi(management_api: Api, management_namespace: str) -> Cdi:
    return Cdi(management_api, management_namespace)


async def made(infra: Infra, cdi: Cdi, volume_id: str = "pvc-1") -> InfraVolume:
    await infra.volumes.create(replace(NEW, id=volume_id, name=volume_id))
    await cdi.make_claim(volume_id)
    found = await infra.volumes.get(volume_id, fresh=True)
    assert found is not None
    return found


async def test_a_new_volume_is_a_blank_data_volume_that_says_what_later_calls_compare(infra: Infra, cdi: Cdi) -> None:
    await infra.volumes.create(NEW)
    stored = await cdi.api.get(f"{cdi.data_volumes}/pvc-1")
    assert stored["metadata"]["labels"] == TENANT
    assert stored["metadata"]["annotations"] == {
        "csi.kubevirt.io/serial": "0123456789abcdef0123",
        "csi.kubevirt.io/bus": "scsi",
        "csi.kubevirt.io/content": "none",
        "csi.kubevirt.io/name": "pvc-1",
        "csi.kubevirt.io/digest": "d1",
        "cdi.kubevirt.io/storage.deleteAfterCompletion": "false",
    }
    assert stored["spec"] == {
        "source": {"blank": {}},
        "storage": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "local-block"},
    }


async def test_creating_it_again_is_no_error_and_changes_nothing(infra: Infra) -> None:
    await infra.volumes.create(NEW)
    await infra.volumes.create(replace(NEW, digest="d2", serial="f" * 20))
    found = await infra.volumes.get("pvc-1", fresh=True)
    assert found is not None
    assert (found.digest, found.serial) == ("d1", "0123456789abcdef0123")


async def test_both_halves_make_one_volume_in_a_fresh_read_and_in_the_cache(infra: Infra, cdi: Cdi) -> None:
    fresh = await made(infra, cdi)
    assert fresh.data_volume is not None
    assert fresh.claim is not None
    assert (fresh.size_bytes, fresh.bus, fresh.content, fresh.name) == (GIB, Bus.SCSI, Content.NONE, "pvc-1")
    assert fresh.claim.volume_mode == "Block"
    assert await infra.volumes.get("pvc-2", fresh=True) is None
    async with following(infra):
        assert await _cached(infra, "pvc-1") == fresh
        assert await infra.volumes.get("pvc-2") is None


async def test_the_claim_can_be_read_afresh_alone_beside_the_cached_data_volume(infra: Infra, cdi: Cdi) -> None:
    volume = await made(infra, cdi)
    async with following(infra):
        await _cached(infra, "pvc-1")
        for content in ("used", "none", "used"):  # at once, before the cache can have heard of it
            volume = await infra.volumes.annotate(volume, {infra_volumes.CONTENT: content})
            assert await infra.volumes.get_with_claim_afresh("pvc-1") == volume
        assert await infra.volumes.get_with_claim_afresh("pvc-2") is None


async def test_objects_of_another_tenant_do_not_exist(infra: Infra, cdi: Cdi) -> None:
    foreign = {"csi.kubevirt.io/cluster": "tenant-b"}
    await cdi.api.create(cdi.claims, claim({"name": "pvc-foreign", "labels": foreign}))
    await cdi.api.create(cdi.claims, claim({"name": "pvc-bare"}))
    await cdi.api.create(cdi.claims, claim({"name": "pvc-ours", "labels": TENANT | foreign | TENANT}))
    async with following(infra):
        assert (await _cached(infra, "pvc-ours")).claim is not None
        for name in ("pvc-foreign", "pvc-bare"):
            assert await infra.volumes.get(name) is None
            assert await infra.volumes.get(name, fresh=True) is None


async def test_an_object_of_another_tenant_takes_its_name_and_one_that_is_missing_or_ours_does_not(
    infra: Infra, cdi: Cdi
) -> None:
    await cdi.api.create(cdi.claims, claim({"name": "pvc-bare"}))
    await made(infra, cdi)
    assert await infra.volumes.is_foreign("pvc-bare")
    assert not await infra.volumes.is_foreign("pvc-1")
    assert not await infra.volumes.is_foreign("pvc-2")


async def test_annotations_are_written_to_the_claim_only_while_it_is_as_it_was_read(infra: Infra, cdi: Cdi) -> None:
    volume = await made(infra, cdi)
    written = await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "used", infra_volumes.FORMAT_OVERRIDE: "y"})
    assert (written.content, written.override, written.serial) == (Content.USED, "y", volume.serial)
    assert written == await infra.volumes.get("pvc-1", fresh=True)
    with pytest.raises(Stale):
        await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "none"})
    removed = await infra.volumes.annotate(written, {infra_volumes.FORMAT_OVERRIDE: None})
    assert (removed.content, removed.override) == (Content.USED, None)


async def test_what_others_write_on_a_claim_does_not_hold_up_annotations_and_does_hold_up_a_growth(
    infra: Infra, cdi: Cdi
) -> None:
    volume = await made(infra, cdi)
    await cdi.api.patch(f"{cdi.claims}/pvc-1", {"metadata": {"annotations": {"others": "1"}}})
    written = await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "used"})
    assert written.content is Content.USED
    with pytest.raises(Stale):
        await infra.volumes.resize(volume, Growth(claim_bytes=2**31, size_bytes=2**31))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (infra_volumes.FORMAT_OVERRIDE, ("new", "other", None)),
        (infra_volumes.SERIAL, ("new", "other", None)),
        (infra_volumes.ATTACHMENTS, ("{}", " {}", None)),
    ],
)
async def test_an_annotation_of_ours_that_is_new_or_other_or_gone_holds_up_the_writing_of_any(
    infra: Infra, cdi: Cdi, key: str, values: tuple[str | None, ...]
) -> None:
    volume: InfraVolume | None = await made(infra, cdi)
    for value in values:
        await cdi.api.patch(f"{cdi.claims}/pvc-1", {"metadata": {"annotations": {key: value}}})
        assert volume is not None
        with pytest.raises(Stale):
            await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "used"})
        volume = await infra.volumes.get("pvc-1", fresh=True)


async def test_a_claim_without_any_annotation_gets_its_first(infra: Infra, cdi: Cdi) -> None:
    await cdi.api.create(cdi.claims, claim({"name": "pvc-plain", "labels": TENANT}))
    volume = await infra.volumes.get("pvc-plain", fresh=True)
    assert volume is not None
    assert volume.claim is not None
    assert volume.claim.annotations is None
    written = await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "used", infra_volumes.FORMAT_OVERRIDE: None})
    assert written.claim is not None
    assert written.claim.annotations == {infra_volumes.CONTENT: "used"}
    with pytest.raises(Stale):
        await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "none"})


async def test_a_claim_that_goes_is_not_annotated_any_more(infra: Infra, cdi: Cdi) -> None:
    volume = await made(infra, cdi)
    await cdi.api.patch(f"{cdi.claims}/pvc-1", {"metadata": {"finalizers": ["tests/held"]}})
    await cdi.api.delete(f"{cdi.claims}/pvc-1")
    with pytest.raises(Stale):
        await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "used"})
    await cdi.api.patch(f"{cdi.claims}/pvc-1", {"metadata": {"finalizers": None}})


async def test_annotating_fails_without_a_claim_and_after_the_claim_has_gone(infra: Infra, cdi: Cdi) -> None:
    await infra.volumes.create(NEW)
    without = await infra.volumes.get("pvc-1", fresh=True)
    assert without is not None
    with pytest.raises(NotFound, match="has no claim yet"):
        await infra.volumes.annotate(without, {infra_volumes.CONTENT: "used"})
    await cdi.make_claim("pvc-1")
    volume = await infra.volumes.get("pvc-1", fresh=True)
    assert volume is not None
    await cdi.api.delete(f"{cdi.claims}/pvc-1")
    await eventually(lambda: _gone(cdi.api, f"{cdi.claims}/pvc-1"), what="the claim is gone", deadline_seconds=20)
    with pytest.raises(Stale):
        await infra.volumes.annotate(volume, {infra_volumes.CONTENT: "used"})


async def test_only_the_object_that_was_looked_at_is_deleted(infra: Infra) -> None:
    await infra.volumes.create(NEW)
    old = await infra.volumes.get("pvc-1", fresh=True)
    assert old is not None
    await infra.volumes.delete(old)
    await infra.volumes.delete(old)  # gone is no error
    assert await infra.volumes.get("pvc-1", fresh=True) is None
    await infra.volumes.create(NEW)
    with pytest.raises(Stale):
        await infra.volumes.delete(old)
    assert await infra.volumes.get("pvc-1", fresh=True) is not None


async def test_a_bare_claim_is_deleted_itself(infra: Infra, cdi: Cdi) -> None:
    await cdi.api.create(cdi.claims, claim({"name": "pvc-bare", "labels": TENANT}))
    bare = await infra.volumes.get("pvc-bare", fresh=True)
    assert bare is not None
    assert bare.data_volume is None
    await infra.volumes.delete(bare)
    await eventually(lambda: _gone(cdi.api, f"{cdi.claims}/pvc-bare"), what="the claim is gone", deadline_seconds=20)


async def _gone(api: Api, path: str) -> bool:
    return await api.find(path) is None


async def _cached(infra: Infra, volume_id: str) -> InfraVolume:
    async with asyncio.timeout(30):
        found = await infra.volumes.get(volume_id)
    assert found is not None
    return found
