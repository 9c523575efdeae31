"""Growth of an attached volume: what the VMI tells of it, and what the guest's disk becomes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from e2e.lab.api import eventually
from tests.api.standin.entries import plug_until, version_of
from tests.api.standin.modes import KubeVirt
from tests.api.standin.site import Site, entry_of
from tests.api.standin.talking import Object
from tests.api.standin.volumes import bare_claim, blank, image_behind, made

MIB = 1024**2
GROWN_SECONDS = 30.0


def sizes_in(vmi: Object | None, volume: str) -> tuple[str, str]:
    """Capacity and request that the VMI tells."""
    info = entry_of(vmi, volume).get("persistentVolumeClaimInfo", {})
    return info.get("capacity", {}).get("storage", ""), info.get("requests", {}).get("storage", "")


async def grow(site: Site, claim: str, size: str) -> None:
    await site.client.patch(f"{site.claims}/{claim}", {"spec": {"resources": {"requests": {"storage": size}}}})


async def told_to_guest(plugged: Path, size: int) -> None:
    """Returns when the machine's disk has been resized to so many bytes; a machine without guest writes it down."""

    async def is_told() -> bool:
        return (await asyncio.to_thread(plugged.read_text)).endswith(f" {size}")

    await eventually(is_told, what=f"{plugged.name} has {size} bytes", deadline_seconds=GROWN_SECONDS)


async def test_a_grown_block_claim_is_told_by_the_vmi_and_to_the_guest(site: Site) -> None:
    vm = await site.running_vm()
    await made(site, blank("data"))
    vmi = await plug_until(site, vm, "data", "Ready")
    assert sizes_in(vmi, "data") == ("16Mi", "16Mi")
    await grow(site, "data", "32Mi")
    states = await site.vmi_until(vm, lambda vmi: sizes_in(vmi, "data") == ("32Mi", "32Mi"))
    assert entry_of(states[-1], "data")["phase"] == "Ready"
    await told_to_guest(site.machines / vm / "data", 32 * MIB)


async def test_a_grown_filesystem_claim_gets_the_larger_image_that_fits_into_it(site: Site) -> None:
    vm = await site.running_vm()
    await made(site, blank("data", storageClassName="local-filesystem"))
    await plug_until(site, vm, "data", "Ready")
    image = await image_behind(site, "data")
    assert image.stat().st_size == 16 * MIB
    await grow(site, "data", "100Mi")
    # 100 MiB less 6 % for the file system.
    await told_to_guest(site.machines / vm / "data", 94 * MIB)
    assert image.stat().st_size == 94 * MIB


async def test_without_the_gate_expand_disks_the_guest_is_not_told_before_its_next_start(
    site: Site, kubevirt: KubeVirt
) -> None:
    await kubevirt.configure(version="v1.8.0", enabled=["DeclarativeHotplugVolumes"])
    vm = await site.running_vm()
    for name in ("data", "other"):
        await site.client.create(site.claims, bare_claim(name))
        await site.claim_seen(name)
    await plug_until(site, vm, "data", "Ready")
    since = await version_of(site, vm)
    await grow(site, "data", "32Mi")
    await site.vmi_until(vm, lambda vmi: sizes_in(vmi, "data") == ("32Mi", "32Mi"), since=since)
    await plug_until(site, vm, "other", "Ready")
    assert (site.machines / vm / "data").read_text() == "sdb"
    await kubevirt.configure(version="v1.8.0", enabled=["DeclarativeHotplugVolumes", "ExpandDisks"])
    await told_to_guest(site.machines / vm / "data", 32 * MIB)
