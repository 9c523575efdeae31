"""``kubevirt-csi node-id``: finds out which VM this node is, and leaves it in a file for the node plugin.

It is the init container of the node's pod and the only process there that has an API token. Annotations and providerID
are often set only after a node has joined, so it waits for them, says what it waits for, and gives up in the end, which
lets the pod's status show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import structlog

from kubevirt_csi.domain.nodes import WAYS, NodeIdentity, Unknown, node_id_of
from kubevirt_csi.errors import DriverError, Unavailable
from kubevirt_csi.settings import NodeIdSettings
from kubevirt_csi.tenant.connection import TenantCluster, in_cluster
from kubevirt_csi.waiting import Pauses, until

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 15.0


class Nodes(Protocol):
    """Where Node objects are read."""

    async def node(self, name: str) -> dict[str, Any]:
        """The Node object as JSON; raises a DriverError when there is none or it cannot be read."""


async def run(settings: NodeIdSettings) -> int:
    """Writes the node id file; returns 1 when the Node did not say in time which VM it is."""
    try:
        access = in_cluster()
    except Unavailable as error:
        log.error("node id unknown", node=settings.node_name, error=str(error))  # noqa: TRY400 - the text says it all
        return 1
    return await leave_identity(TenantCluster(access), settings)


async def leave_identity(nodes: Nodes, settings: NodeIdSettings) -> int:
    """Finds the identity and writes it to ``settings.output``; returns the exit code."""
    try:
        identity = await find_identity(nodes, settings)
    except Unavailable as error:
        log.error("node id unknown", node=settings.node_name, error=str(error))  # noqa: TRY400 - the text says it all
        return 1
    _write(settings.output, identity)
    log.info("node id found", node=settings.node_name, node_id=identity.node_id, file=str(settings.output))
    return 0


async def find_identity(nodes: Nodes, settings: NodeIdSettings) -> NodeIdentity:
    """Reads the Node again and again, with growing pauses, until it says which VM it is.

    Raises:
        Unavailable: it did not within ``settings.timeout_seconds``; the text has the last reason and the ways to do it.
    """
    told = ""

    async def look() -> NodeIdentity | None:
        nonlocal told
        found = await _look(nodes, settings)
        if isinstance(found, NodeIdentity):
            return found
        if found.reason != told:
            log.warning(
                "waiting for the node to say which VM it is", node=settings.node_name, reason=found.reason, ways=WAYS
            )
            told = found.reason
        return None

    pauses = Pauses(first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
    found = await until(look, changed=[], seconds=settings.timeout_seconds, look_again=pauses)
    if found is None:
        raise Unavailable(f"node {settings.node_name}: {told}, after {settings.timeout_seconds:g} s of waiting; {WAYS}")
    return found


def _write(path: Path, identity: NodeIdentity) -> None:
    """Whole or not at all: a restarted pod's node plugin may read it at any moment."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(identity.to_json())
    beside.replace(path)


async def _look(nodes: Nodes, settings: NodeIdSettings) -> NodeIdentity | Unknown:
    try:
        node = await nodes.node(settings.node_name)
    except DriverError as error:
        return Unknown(str(error))
    found = node_id_of(node, infra_namespace=settings.infra_namespace or "")
    return found if isinstance(found, Unknown) else NodeIdentity(node_id=found)
