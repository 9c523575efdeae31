"""Registers the driver with kubelet, without a registrar beside it.

kubelet watches its ``plugins_registry`` folder: a new socket there is dialled at once, asked who it is, and told how
the registration went. The surprising facts: kubelet keeps its retry pauses per socket *path*, also over our restarts,
so each process uses a new file name and appears only when it is ready; a second socket of the same driver is refused
while the first exists, so old ones are unlinked; and a kubelet that restarts over a stale socket blocks for 10 s per
dial, so ours is unlinked at exit.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import structlog

from kubevirt_csi._csi import pluginregistration
from kubevirt_csi.rpc.endpoint import OWNER_ONLY, Endpoint
from kubevirt_csi.rpc.serving import RpcServer
from kubevirt_csi.services.identity import DRIVER_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from kubevirt_csi.observe.health import Readiness
    from kubevirt_csi.observe.metrics import RpcMetrics

log = structlog.get_logger(__name__)

PLUGIN_TYPE = "CSIPlugin"
# Versions of the CSI API as kubelet reads them, not of the specification we implement: anything else is refused.
SUPPORTED_VERSIONS = ("1.0.0",)
CONDITION = "registered"


class RegistrationService(pluginregistration.RegistrationBase):
    """What kubelet calls; answers from memory, since it waits one second for GetInfo."""

    def __init__(self, *, csi_socket: Path, readiness: Readiness) -> None:
        """``csi_socket`` is the path as kubelet sees it, absolute."""
        self._csi_socket = csi_socket
        self._readiness = readiness

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:  # noqa: ARG002 - empty
        """Type, name and socket of the CSI plug-in."""
        return pluginregistration.PluginInfo(
            type=PLUGIN_TYPE,
            name=DRIVER_NAME,
            endpoint=str(self._csi_socket),
            supported_versions=list(SUPPORTED_VERSIONS),
        )

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Takes kubelet's verdict into the readiness of this process."""
        if message.plugin_registered:
            log.info("registered with kubelet")
            self._readiness.set(CONDITION, ready=True, reason="kubelet has registered the driver")
        else:
            log.error("kubelet refused the registration", error=message.error)
            self._readiness.set(CONDITION, ready=False, reason=f"kubelet refused the registration: {message.error}")
        return pluginregistration.RegistrationStatusResponse()


class KubeletRegistration:
    """The registration socket of this process: start it when CSI is served and the node id is known."""

    def __init__(self, *, plugins_registry: Path, csi_socket: Path, readiness: Readiness, metrics: RpcMetrics) -> None:
        """``plugins_registry`` is kubelet's folder; ``csi_socket`` where kubelet finds the CSI endpoint."""
        self._folder = plugins_registry
        self._readiness = readiness
        # No leading dot: kubelet skips such files.
        self.path = plugins_registry / f"{DRIVER_NAME}-{secrets.token_hex(4)}.sock"
        self._server = RpcServer(
            endpoint=Endpoint(self.path, mode=OWNER_ONLY),
            services=[RegistrationService(csi_socket=csi_socket, readiness=readiness)],
            metrics=metrics,
        )

    async def start(self) -> None:
        """Removes the sockets of earlier processes of this driver and appears in kubelet's folder.

        Raises:
            EndpointError: the folder is missing or not writable.
        """
        for old in self._folder.glob(f"{DRIVER_NAME}-*.sock"):
            log.info("removing the registration socket of an earlier process", path=str(old))
            old.unlink(missing_ok=True)
        self._readiness.set(CONDITION, ready=False, reason=f"waiting for kubelet to come to {self.path}")
        await self._server.start()

    async def stop(self, *, grace_seconds: float) -> None:
        """Disappears from kubelet's folder; kubelet then takes the driver off its CSINode."""
        await self._server.stop(grace_seconds=grace_seconds)
