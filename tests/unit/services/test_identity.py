from __future__ import annotations

import pytest
from grpclib.testing import ChannelFor

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.services.identity import IdentityService


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "starting"])
async def test_probe_tells_whether_the_process_is_ready(ready: bool) -> None:
    async with ChannelFor([IdentityService(ready=lambda: ready)]) as channel:
        assert (await csi.IdentityStub(channel).probe(csi.ProbeRequest())).ready is ready


async def test_the_plugin_has_the_predecessors_name_and_a_version() -> None:
    async with ChannelFor([IdentityService(ready=lambda: True)]) as channel:
        info = await csi.IdentityStub(channel).get_plugin_info(csi.GetPluginInfoRequest())
    assert info.name == "csi.kubevirt.io"
    assert info.vendor_version


async def test_the_controller_service_and_growth_in_use_are_advertised_and_nothing_else() -> None:
    async with ChannelFor([IdentityService(ready=lambda: True)]) as channel:
        answer = await csi.IdentityStub(channel).get_plugin_capabilities(csi.GetPluginCapabilitiesRequest())
    kinds = [capability.service.type for capability in answer.capabilities if capability.service is not None]
    assert kinds == [csi.PluginCapabilityServiceType.CONTROLLER_SERVICE]
    grows = [each.volume_expansion.type for each in answer.capabilities if each.volume_expansion is not None]
    assert grows == [csi.PluginCapabilityVolumeExpansionType.ONLINE]
    assert len(answer.capabilities) == 2
