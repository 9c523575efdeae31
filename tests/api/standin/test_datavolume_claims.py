"""The claim that CDI makes for a DataVolume: its class, its modes, its size and the image in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.standin.site import Site, datavolume
from tests.api.standin.talking import Client, Object
from tests.api.standin.volumes import (
    BLANK,
    CLASSES,
    FILESYSTEM_DRIVER,
    MIB,
    PROFILES,
    blank,
    claim_of,
    image_behind,
    made,
    sized,
    storage_class,
    volume_until,
)

CONFIG = "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs"
CDI = "/apis/cdi.kubevirt.io/v1beta1/cdis/cdi"
GIB = 1024 * MIB
NO_MODE = "PVC spec is missing accessMode and no storageClass to choose profile"

CLASS_ROWS = {
    "local-block": ("Immediate", True, {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}),
    "local-block-wffc": ("WaitForFirstConsumer", True, {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}),
    "local-filesystem": ("Immediate", True, {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem"}),
    "local-legacy": ("Immediate", False, {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}),
}
MODES = {
    "nothing given: the first set": ({"storageClassName": "local-block"}, "ReadWriteMany", "Block"),
    "access mode given": ({"accessModes": ["ReadWriteOnce"]}, "ReadWriteOnce", "Block"),
    "volume mode given": ({"volumeMode": "Filesystem"}, "ReadWriteOnce", "Filesystem"),
    "both given, and no such set": (
        {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem"},
        "ReadWriteMany",
        "Filesystem",
    ),
    "a class that prefers file systems": ({"storageClassName": "local-filesystem"}, "ReadWriteMany", "Filesystem"),
    "a legacy class": ({"storageClassName": "local-legacy"}, "ReadWriteOnce", "Block"),
}


@pytest.mark.parametrize("name", CLASS_ROWS)
async def test_the_classes_of_the_management_cluster(site: Site, name: str) -> None:
    binding, expansion, preferred = CLASS_ROWS[name]
    found = await site.client.get(f"{CLASSES}/{name}")
    assert (found["volumeBindingMode"], found["allowVolumeExpansion"]) == (binding, expansion)
    states = await site.client.follow(PROFILES, name, lambda profile: (profile or {}).get("status"))
    profile = states[-1] or {}
    assert profile["status"]["provisioner"] == found["provisioner"]
    assert profile["status"]["claimPropertySets"][0] == preferred


@pytest.mark.parametrize(("storage", "access", "mode"), MODES.values(), ids=MODES)
async def test_the_storage_profile_completes_the_modes(site: Site, storage: Object, access: str, mode: str) -> None:
    await site.client.create(site.datavolumes, blank("data", **storage))
    spec = (await claim_of(site))["spec"]
    assert (spec["accessModes"], spec["volumeMode"]) == ([access], mode)


async def test_the_spec_of_a_storage_profile_overrules_what_cdi_knows(site: Site) -> None:
    name = await storage_class(site, "overruled")
    await overrule(site, name, ("ReadWriteOnce", "Filesystem"))
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    spec = (await claim_of(site))["spec"]
    assert (spec["accessModes"], spec["volumeMode"]) == (["ReadWriteOnce"], "Filesystem")


async def test_a_storage_profile_goes_with_its_class(site: Site) -> None:
    name = await storage_class(site, "short-lived")
    await site.client.delete(f"{CLASSES}/{name}")
    await site.client.follow(PROFILES, name, lambda profile: profile is None)


async def test_a_class_of_which_nothing_is_known_makes_no_claim(site: Site) -> None:
    name = await storage_class(site, "unknown", provisioner="example.com/unknown")
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    message = f"no accessMode specified in StorageProfile {name}"
    volume = await volume_until(site, "data", "Bound", "False", "ErrClaimNotValid", message)
    assert volume["status"]["phase"] == ""
    await site.event_until("data", "ErrClaimNotValid")
    assert (await site.client.call("GET", f"{site.claims}/data")).code == 404


async def test_a_profile_that_is_completed_later_is_taken_up(site: Site) -> None:
    name = await storage_class(site, "late", provisioner="example.com/late")
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    await volume_until(site, "data", "Bound", "False", "ErrClaimNotValid")
    await overrule(site, name, ("ReadWriteOnce", "Block"))
    assert (await claim_of(site))["spec"]["accessModes"] == ["ReadWriteOnce"]


async def test_a_missing_class_without_access_modes_makes_no_claim(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", storageClassName="missing"))
    volume = await volume_until(site, "data", "Bound", "False", "ErrClaimNotValid", NO_MODE)
    assert volume["status"]["phase"] == ""
    assert (await site.client.call("GET", f"{site.claims}/data")).code == 404


async def test_a_missing_class_with_access_modes_makes_a_claim_that_stays_pending(site: Site) -> None:
    body = blank("data", storageClassName="missing", accessModes=["ReadWriteOnce"])
    await site.client.create(site.datavolumes, body)
    volume = await volume_until(site, "data", "Bound", "False", "Pending", "PVC data Pending")
    assert volume["status"]["phase"] == "Pending"
    assert (await claim_of(site))["status"]["phase"] == "Pending"


@pytest.fixture
async def virt_default(site: Site) -> AsyncIterator[str]:
    """A class that is the default for virtual machines as long as the test runs."""
    annotations = {"storageclass.kubevirt.io/is-default-virt-class": "true"}
    name = await storage_class(site, "virt-default", metadata={"annotations": annotations})
    yield name
    await site.client.delete(f"{CLASSES}/{name}")
    await site.client.follow(PROFILES, name, lambda profile: profile is None)


async def test_a_class_that_is_left_out_is_the_default_for_virtual_machines(site: Site, virt_default: str) -> None:
    await site.client.create(site.datavolumes, blank("data"))
    assert (await claim_of(site))["spec"]["storageClassName"] == virt_default


async def test_without_such_a_default_it_is_that_of_the_cluster(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data"))
    assert (await claim_of(site))["spec"]["storageClassName"] == "local-block"


async def test_the_pvc_api_is_taken_literally(site: Site) -> None:
    pvc = sized("16Mi", accessModes=["ReadWriteOncePod"], storageClassName="local-block")
    await site.client.create(site.datavolumes, datavolume("data", **BLANK, pvc=pvc))
    spec = (await claim_of(site))["spec"]
    assert (spec["accessModes"], spec["volumeMode"]) == (["ReadWriteOncePod"], "Filesystem")
    assert spec["resources"]["requests"]["storage"] == "16Mi"


def target(api: str, mode: str, size: str) -> Object:
    return {api: sized(size, accessModes=["ReadWriteOnce"], volumeMode=mode)}


SIZES = {
    "storage, Block": (target("storage", "Block", "1Gi"), "1Gi", GIB),
    "pvc, Block": (target("pvc", "Block", "1Gi"), "1Gi", GIB),
    "storage, Filesystem": (target("storage", "Filesystem", "1Gi"), "1138166334", GIB),
    "storage, Filesystem, no whole MiB": (target("storage", "Filesystem", "1000000000"), "1060361995", 954 * MIB),
    "pvc, Filesystem": (target("pvc", "Filesystem", "1Gi"), "1Gi", 966 * MIB),
}


@pytest.mark.parametrize(("spec", "claimed", "image"), SIZES.values(), ids=SIZES)
async def test_sizes_of_claim_and_image(site: Site, spec: Object, claimed: str, image: int) -> None:
    await made(site, datavolume("data", **BLANK, **spec))
    claim = await claim_of(site)
    assert claim["spec"]["resources"]["requests"]["storage"] == claimed
    assert claim["status"]["capacity"]["storage"] == claimed
    assert (await image_behind(site, "data")).stat().st_size == image


async def test_the_overhead_of_a_class_wins_over_the_global_one(site: Site) -> None:
    name = await storage_class(site, "roomy", provisioner=FILESYSTEM_DRIVER)
    await configure(site.client, {"storageClass": {name: "0.1"}})
    await site.client.follow(CONFIG, "config", lambda config: overhead_of(config)["storageClass"].get(name) == "0.1")
    await made(site, blank("data", size="1Gi", storageClassName=name))
    assert (await claim_of(site))["spec"]["resources"]["requests"]["storage"] == "1181116007"
    assert (await image_behind(site, "data")).stat().st_size == GIB
    config = await site.client.get(f"{CONFIG}/config")
    assert overhead_of(config)["global"] == "0.06"
    assert overhead_of(config)["storageClass"]["local-filesystem"] == "0.06"


@pytest.fixture
async def no_overhead(site: Site) -> AsyncIterator[None]:
    """CDI without any overhead as long as the test runs."""
    await configure(site.client, {"global": "0"})
    await site.client.follow(CONFIG, "config", lambda config: overhead_of(config)["global"] == "0")
    yield
    await configure(site.client, {"global": None})
    await site.client.follow(CONFIG, "config", lambda config: overhead_of(config)["global"] == "0.06")


@pytest.mark.usefixtures("no_overhead")
async def test_the_global_overhead_is_for_every_other_class(site: Site) -> None:
    await made(site, blank("data", size="1Gi", storageClassName="local-filesystem"))
    assert (await claim_of(site))["spec"]["resources"]["requests"]["storage"] == str(GIB)
    assert (await image_behind(site, "data")).stat().st_size == GIB


@pytest.mark.parametrize(
    ("asked", "claimed"),
    [pytest.param("16Mi", "64Mi", id="less"), pytest.param("65Mi", "65Mi", id="more")],
)
async def test_the_minimum_of_a_profile_raises_a_claim_that_asks_for(site: Site, asked: str, claimed: str) -> None:
    name = await storage_class(site, "coarse")
    annotations = {"cdi.kubevirt.io/minimumSupportedPvcSize": "64Mi"}
    await overrule(site, name, ("ReadWriteOnce", "Block"), annotations)
    await site.client.create(site.datavolumes, blank("data", size=asked, storageClassName=name))
    assert (await claim_of(site))["spec"]["resources"]["requests"]["storage"] == claimed


async def overrule(site: Site, name: str, modes: tuple[str, str], annotations: Object | None = None) -> None:
    """Writes access and volume mode, and annotations, into the StorageProfile; returns when they are in force."""
    sets = [{"accessModes": [modes[0]], "volumeMode": modes[1]}]
    patch = {"metadata": {"annotations": annotations or {}}, "spec": {"claimPropertySets": sets}}
    await site.client.patch(f"{PROFILES}/{name}", patch)
    await site.client.follow(PROFILES, name, lambda profile: (profile or {})["status"].get("claimPropertySets") == sets)


async def configure(client: Client, overhead: Object) -> None:
    """Sets CDI's file system overhead, as an administrator does."""
    await client.patch(CDI, {"spec": {"config": {"filesystemOverhead": overhead}}})


def overhead_of(config: Object | None) -> Object:
    overhead: Object = (config or {}).get("status", {}).get("filesystemOverhead", {"global": "", "storageClass": {}})
    return overhead
