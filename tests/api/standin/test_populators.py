"""CDI's populators, and when a volume is populated: by itself, at its first use, or at once because somebody asks."""

from __future__ import annotations

import pytest

from tests.api.standin.site import Site, phase_of
from tests.api.standin.talking import Object
from tests.api.standin.volumes import (
    BLOCK_DRIVER,
    LEGACY_PROVISIONER,
    VOLUMES,
    bare_claim,
    blank,
    claim_of,
    condition_of,
    consumer,
    image_behind,
    made,
    phases_of,
    storage_class,
)

USE = "cdi.kubevirt.io/storage.usePopulator"
IMMEDIATE = {"cdi.kubevirt.io/storage.bind.immediate.requested": ""}
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STUCK = {"lab.csi.kubevirt.io/importing": "stuck"}
FIRST_CONSUMER = "WaitForFirstConsumer"

USED = {
    "a provisioner with a CSIDriver": ("local-block", {}, True),
    "a provisioner without one": ("local-legacy", {}, False),
    "switched off for the volume": ("local-block", {USE: "false"}, False),
    "switched on for the volume": ("local-legacy", {USE: "true"}, True),
}


@pytest.mark.parametrize(("class_name", "annotations", "used"), USED.values(), ids=USED)
async def test_a_populator_is_used_for(site: Site, class_name: str, annotations: Object, used: bool) -> None:
    created = await site.client.create(
        site.datavolumes, blank("data", annotations=annotations, storageClassName=class_name)
    )
    reference = (await claim_of(site))["spec"].get("dataSourceRef")
    source = f"volume-import-source-{created['metadata']['uid']}"
    expected = {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": source}
    assert reference == (expected if used else None)
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")


async def test_the_second_claim_and_the_importer_do_the_work_while_the_claim_waits(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", annotations=STUCK))
    await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Running")[0] == "True")
    claim = await claim_of(site)
    name = f"prime-{claim['metadata']['uid']}"
    prime = await site.client.get(f"{site.claims}/{name}")
    importer = await site.client.get(f"{site.pods}/importer-{name}")
    assert (phase_of(claim), phase_of(prime), phase_of(importer)) == ("Pending", "Bound", "Running")
    assert [owner["uid"] for owner in prime["metadata"]["ownerReferences"]] == [claim["metadata"]["uid"]]
    assert "dataSourceRef" not in prime["spec"]
    for field in ("accessModes", "resources", "storageClassName", "volumeMode"):
        assert prime["spec"][field] == claim["spec"][field]


async def test_the_volume_moves_to_the_claim_and_the_helpers_go(site: Site) -> None:
    await made(site, blank("data"))
    claim = await claim_of(site)
    name = f"prime-{claim['metadata']['uid']}"
    volume = await site.client.get(f"{VOLUMES}/{claim['spec']['volumeName']}")
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert phase_of(volume) == "Bound"
    await site.client.follow(site.claims, name, lambda prime: prime is None)
    await site.client.follow(site.pods, f"importer-{name}", lambda pod: pod is None)
    assert (await image_behind(site, "data")).exists()


async def test_while_it_runs_the_quota_counts_two_claims_and_twice_the_storage(site: Site) -> None:
    await site.quota({"requests.storage": "1Gi", "persistentvolumeclaims": "10"})
    await site.client.create(site.datavolumes, blank("data", annotations=STUCK))
    twice = {"requests.storage": "32Mi", "persistentvolumeclaims": "2"}
    await site.client.follow(site.quotas, "quota", lambda quota: (quota or {})["status"]["used"] == twice)
    await site.client.patch(f"{site.claims}/data", {"metadata": {"annotations": dict.fromkeys(STUCK)}})
    await site.client.patch(f"{site.datavolumes}/data", {"metadata": {"annotations": dict.fromkeys(STUCK)}})
    once = {"requests.storage": "16Mi", "persistentvolumeclaims": "1"}
    await site.client.follow(site.quotas, "quota", lambda quota: (quota or {})["status"]["used"] == once)
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")


async def test_a_deleted_volume_takes_its_helpers_along_in_the_middle_of_an_import(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", annotations=STUCK))
    await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Running")[0] == "True")
    name = f"prime-{(await claim_of(site))['metadata']['uid']}"
    volume = (await site.client.get(f"{site.claims}/{name}"))["spec"]["volumeName"]
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.follow(site.claims, "data", lambda claim: claim is None)
    await site.client.follow(site.claims, name, lambda claim: claim is None)
    await site.client.follow(VOLUMES, volume, lambda volume: volume is None)


async def test_a_filesystem_claim_gets_its_image_from_the_importer(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", annotations=STUCK, storageClassName="local-filesystem"))
    await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Running")[0] == "True")
    name = f"prime-{(await claim_of(site))['metadata']['uid']}"
    assert not (await image_behind(site, name)).exists()
    for collection in (site.claims, site.datavolumes):
        await site.client.patch(f"{collection}/data", {"metadata": {"annotations": dict.fromkeys(STUCK)}})
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")
    assert (await image_behind(site, "data")).stat().st_size == 16 * 1024**2


# Binding


WAITING = {
    "with populator": (
        BLOCK_DRIVER,
        ["Pending", "PendingPopulation", "ImportScheduled", "ImportInProgress", "Succeeded"],
    ),
    "without": (
        LEGACY_PROVISIONER,
        ["Pending", "WaitForFirstConsumer", "PVCBound", "ImportScheduled", "ImportInProgress", "Succeeded"],
    ),
}


@pytest.mark.parametrize(("provisioner", "phases"), WAITING.values(), ids=WAITING)
async def test_a_class_that_waits_for_the_first_consumer(site: Site, provisioner: str, phases: list[str]) -> None:
    name = await storage_class(site, "waiting", provisioner=provisioner, volumeBindingMode=FIRST_CONSUMER)
    created = await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == phases[1])
    assert SELECTED_NODE not in (await claim_of(site))["metadata"].get("annotations", {})
    await site.client.create(site.pods, consumer("first", "data"))
    states = await site.client.follow(
        site.datavolumes,
        "data",
        lambda volume: phase_of(volume) == "Succeeded",
        since=created["metadata"]["resourceVersion"],
    )
    assert phases_of([state for state in states if state is not None]) in (phases, phases[1:])
    assert (await claim_of(site))["metadata"]["annotations"][SELECTED_NODE] == "infra-1"
    await site.client.follow(site.pods, "first", lambda pod: phase_of(pod) == "Running")


async def test_the_first_consumer_of_a_populated_volume_stays_pending_until_the_import_is_done(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", annotations=STUCK, storageClassName="local-block-wffc"))
    await site.client.create(site.pods, consumer("first", "data"))
    await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Running")[0] == "True")
    pod = await site.client.get(f"{site.pods}/first")
    assert (phase_of(pod), pod["spec"].get("nodeName")) == ("Pending", None)
    claim = await claim_of(site)
    prime = await site.client.get(f"{site.claims}/prime-{claim['metadata']['uid']}")
    assert phase_of(claim) == "Pending"
    assert prime["metadata"]["annotations"][SELECTED_NODE] == claim["metadata"]["annotations"][SELECTED_NODE]


@pytest.mark.parametrize("provisioner", [BLOCK_DRIVER, LEGACY_PROVISIONER], ids=["with populator", "without"])
async def test_the_annotation_makes_the_importer_the_first_consumer(site: Site, provisioner: str) -> None:
    name = await storage_class(site, "asked", provisioner=provisioner, volumeBindingMode=FIRST_CONSUMER)
    states = await made(site, blank("data", annotations=IMMEDIATE, storageClassName=name))
    assert not {"PendingPopulation", "WaitForFirstConsumer"} & set(phases_of(states))


# Claims without a DataVolume


@pytest.mark.parametrize("class_name", ["local-block", "local-legacy"])
async def test_a_bare_block_claim_is_bound_at_once_to_a_file_of_its_size(site: Site, class_name: str) -> None:
    await site.client.create(site.claims, bare_claim("data", storageClassName=class_name))
    await site.claim_seen("data")
    assert (await image_behind(site, "data")).stat().st_size == 16 * 1024**2
    assert (await site.client.get(site.datavolumes))["items"] == []


async def test_a_bare_filesystem_claim_is_bound_and_empty(site: Site) -> None:
    await site.client.create(
        site.claims, bare_claim("data", volumeMode="Filesystem", storageClassName="local-filesystem")
    )
    await site.claim_seen("data")
    image = await image_behind(site, "data")
    assert image.parent.is_dir()
    assert not image.exists()


async def test_a_bare_claim_that_waits_is_bound_by_its_first_consumer(site: Site) -> None:
    await site.client.create(site.claims, bare_claim("data", storageClassName="local-block-wffc"))
    await site.event_until("data", "WaitForFirstConsumer")
    assert phase_of(await claim_of(site)) == "Pending"
    await site.client.create(site.pods, consumer("first", "data"))
    await site.claim_seen("data")
    await site.client.follow(site.pods, "first", lambda pod: phase_of(pod) == "Running")
