"""Asks the driver's services what they can do, as sidecars and kubelet do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from betterproto2 import Enum
from grpclib.client import Channel

from kubevirt_csi._csi.csi import v1 as csi

CALL_SECONDS = 10.0


async def advertised(*, controller: Path, node: Path) -> dict[str, frozenset[str]]:
    """The capabilities by service, asked at both sockets.

    Both must give the same ones for the plug-in itself (CSI spec: Identity Service); where they differ, there is an
    entry for each.
    """
    async with Channel(path=str(controller)) as channel:
        controllers = await csi.ControllerStub(channel).controller_get_capabilities(
            csi.ControllerGetCapabilitiesRequest(), timeout=CALL_SECONDS
        )
        plugin = await _plugin(channel)
    async with Channel(path=str(node)) as channel:
        nodes = await csi.NodeStub(channel).node_get_capabilities(
            csi.NodeGetCapabilitiesRequest(), timeout=CALL_SECONDS
        )
        plugin_of_node = await _plugin(channel)
    plugins = {"plugin": plugin} if plugin == plugin_of_node else {"plugin": plugin, "plugin (node)": plugin_of_node}
    return {
        "controller": _names(each.rpc.type for each in controllers.capabilities if each.rpc),
        "node": _names(each.rpc.type for each in nodes.capabilities if each.rpc),
        **plugins,
    }


async def _plugin(channel: Channel) -> frozenset[str]:
    answer = await csi.IdentityStub(channel).get_plugin_capabilities(
        csi.GetPluginCapabilitiesRequest(), timeout=CALL_SECONDS
    )
    services = _names(each.service.type for each in answer.capabilities if each.service)
    expansion = _names(each.volume_expansion.type for each in answer.capabilities if each.volume_expansion)
    return services | {f"VOLUME_EXPANSION_{name}" for name in expansion}


def _names(values: Iterable[Enum]) -> frozenset[str]:
    return frozenset(value.name or str(value.value) for value in values)
