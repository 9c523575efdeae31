"""Node ids, ``namespace/vm``: which VM of the infra cluster a call is about.

The id comes from the tenant's own objects, so it is a claim, not a fact. The namespace has to be the configured one or
an alias of it; ignoring it would let one tenant's node id name another namespace's VM.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from kubevirt_csi.errors import InvalidArgument, NotFound

LONGEST_BYTES = 256
"""CSI spec: NodeGetInfoResponse.node_id."""
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NODE_ID = re.compile(rf"(?P<namespace>{_LABEL})/(?P<vm>{_LABEL}(?:\.{_LABEL})*)")


@dataclass(frozen=True, slots=True)
class NodeId:
    """A node id that could be one; ``text`` is the caller's spelling, which the attacher compares as a string."""

    namespace: str
    vm: str
    text: str


def parse(text: str) -> NodeId:
    """Reads ``namespace/vm``.

    Raises:
        InvalidArgument: it is something else.
    """
    found = _NODE_ID.fullmatch(text) if len(text) <= LONGEST_BYTES else None
    if found is None:
        raise InvalidArgument(f"node_id {text[:LONGEST_BYTES]!r} is not of the form namespace/vm")
    return NodeId(namespace=found["namespace"], vm=found["vm"], text=text)


@dataclass(frozen=True, slots=True)
class NodeNamespace:
    """The infra namespace whose VMs are this tenant's nodes, and other spellings of it in node ids."""

    name: str
    aliases: Collection[str] = field(default=())

    def has(self, node: NodeId) -> bool:
        """Whether the node id names this namespace."""
        return node.namespace == self.name or node.namespace in self.aliases

    def vm_of(self, node: NodeId) -> str:
        """The VM's name.

        Raises:
            NotFound: the node id names another namespace.
        """
        if not self.has(node):
            raise NotFound(
                f"node {node.text}: this driver serves VMs of infra namespace {self.name} only; an alias for it is "
                "configured with --infra-namespace-alias"
            )
        return node.vm

    def node_id(self, vm: str) -> str:
        """How we spell the node id of a VM when nobody else's spelling is known."""
        return f"{self.name}/{vm}"
