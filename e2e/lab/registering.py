"""What kubelet does for plug-ins, for a lab whose nodes have none: finds their sockets and registers them.

A plug-in appears as a socket in kubelet's ``plugins_registry`` (Kubernetes pkg/kubelet/pluginmanager). It is asked who
it is and told that it is registered; only then does the driver's node role call itself ready. A plug-in that is started
again appears under a new name and is registered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError

from e2e.lab.processes import Pause
from kubevirt_csi._csi import pluginregistration

POLL_SECONDS = 0.1
INFO_SECONDS = 1.0  # kubelet's own limits
NOTIFY_SECONDS = 5.0


async def register_plugins(registry: Path, *, note: Callable[[str], None], pause: Pause = asyncio.sleep) -> NoReturn:
    """Registers whatever plug-in appears in the folder, until cancelled; each is noted."""
    known: set[Path] = set()
    while True:
        present = _sockets(registry)
        known &= present
        for socket in sorted(present - known):
            name = await _register(socket)
            if name is not None:
                known.add(socket)
                note(f"{name} is registered at {registry.parent}")
        await pause(POLL_SECONDS)


def _sockets(registry: Path) -> set[Path]:
    return set(registry.glob("[!.]*.sock"))


async def _register(socket: Path) -> str | None:
    """The name of the plug-in that is registered now, None when it does not answer (yet)."""
    try:
        async with Channel(path=str(socket)) as channel:
            plugin = pluginregistration.RegistrationStub(channel)
            info = await plugin.get_info(pluginregistration.InfoRequest(), timeout=INFO_SECONDS)
            registered = pluginregistration.RegistrationStatus(plugin_registered=True)
            await plugin.notify_registration_status(registered, timeout=NOTIFY_SECONDS)
    except (OSError, TimeoutError, GRPCError, StreamTerminatedError):
        return None
    return info.name
