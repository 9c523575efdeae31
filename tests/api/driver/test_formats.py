"""What the node needs to know about formatting travels through the API: the class's options, an operator's override."""

from __future__ import annotations

import pytest

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.domain.capacity import MIB
from kubevirt_csi.domain.volumes import PublishContext
from kubevirt_csi.errors import OutOfRange
from tests.api.driver.conftest import SIZE, WRITER, Controller

pytestmark = pytest.mark.timeout(300)

OVERRIDE = "csi.kubevirt.io/format-override"
IN_FORCE = "csi.kubevirt.io/format-override-in-force"


def request(*, size: int = SIZE, fs_type: str = "ext4", **parameters: str) -> csi.CreateVolumeRequest:
    return csi.CreateVolumeRequest(
        name="pvc-1",
        capacity_range=csi.CapacityRange(required_bytes=size),
        volume_capabilities=[
            csi.VolumeCapability(mount=csi.VolumeCapabilityMountVolume(fs_type=fs_type), access_mode=WRITER.access_mode)
        ],
        parameters=parameters,
    )


async def test_mkfs_options_live_on_the_claim_and_are_told_again_by_a_repetition(controller: Controller) -> None:
    made = (await controller.service.create_volume(request(mkfsOptions="-m 5  -i 8192"))).volume
    assert made is not None
    assert made.volume_context["mkfsOptions"] == "-m 5 -i 8192"
    claim = await controller.claim("pvc-1")
    assert claim["metadata"]["annotations"]["csi.kubevirt.io/mkfs-options"] == "-m 5 -i 8192"
    assert (await controller.service.create_volume(request(mkfsOptions="-m 5 -i 8192"))).volume == made


async def test_an_operators_override_goes_with_one_attachment_from_the_claim_to_the_node(
    controller: Controller,
) -> None:
    site = controller.site
    vm = await site.running_vm()
    serial = (await controller.create("pvc-1")).volume_context["serial"]
    await site.client.patch(f"{site.claims}/pvc-1", {"metadata": {"annotations": {OVERRIDE: serial}}})
    told = await controller.publish("pvc-1", vm)
    assert PublishContext.from_map(told, {}).override == serial
    annotations = (await controller.claim("pvc-1"))["metadata"]["annotations"]
    assert (annotations.get(OVERRIDE), annotations.get(IN_FORCE)) == (None, serial)
    assert await controller.publish("pvc-1", vm) == told
    await controller.unpublish("pvc-1", vm)
    assert IN_FORCE not in (await controller.claim("pvc-1"))["metadata"]["annotations"]
    assert "override" not in await controller.publish("pvc-1", vm)


async def test_a_volume_too_small_for_its_file_system_is_not_made(controller: Controller) -> None:
    with pytest.raises(OutOfRange, match="needs at least 314572800 bytes"):
        await controller.service.create_volume(request(size=299 * MIB, fs_type="xfs"))
    assert (await controller.site.client.get(controller.site.claims))["items"] == []
