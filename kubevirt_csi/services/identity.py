"""The Identity service: who this plug-in is. Controller and node give the same answers, as the specification demands.

Probe says whether this process is ready and never calls an API server: a liveness probe that restarts the driver
because a cluster is away would only make things worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

DRIVER_NAME = "csi.kubevirt.io"

SERVICES = (csi.PluginCapabilityServiceType.CONTROLLER_SERVICE,)
EXPANSIONS = (csi.PluginCapabilityVolumeExpansionType.ONLINE,)


class IdentityService(csi.IdentityBase):
    """CSI spec: Identity Service RPC."""

    def __init__(self, *, ready: Callable[[], bool]) -> None:
        self._ready = ready

    async def get_plugin_info(self, message: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:  # noqa: ARG002 - empty
        """Name and version."""
        return csi.GetPluginInfoResponse(name=DRIVER_NAME, vendor_version=VERSION)

    async def get_plugin_capabilities(
        self,
        message: csi.GetPluginCapabilitiesRequest,  # noqa: ARG002 - empty
    ) -> csi.GetPluginCapabilitiesResponse:
        """There is a controller service, also when this process is the node; volumes grow while they are in use."""
        services = [csi.PluginCapability(service=csi.PluginCapabilityService(type=kind)) for kind in SERVICES]
        expansions = [
            csi.PluginCapability(volume_expansion=csi.PluginCapabilityVolumeExpansion(type=kind)) for kind in EXPANSIONS
        ]
        return csi.GetPluginCapabilitiesResponse(capabilities=services + expansions)

    async def probe(self, message: csi.ProbeRequest) -> csi.ProbeResponse:  # noqa: ARG002 - empty
        """Whether this process has what it needs to serve."""
        return csi.ProbeResponse(ready=self._ready())
