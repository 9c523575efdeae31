"""Which VM of the infra cluster a tenant's Node is: the rule for the node id ``namespace/vm``.

The host name is never used: it need not be the VM's. Guessing (MAC addresses, firmware ids) is how disks ended up in
other people's VMs, so a Node that does not say it yields reasons instead of an id. Nodes are often annotated only after
they have joined, which is why "not yet" is a normal answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VM_NAME_ANNOTATION = "csi.kubevirt.io/infra-vm-name"
VM_NAMESPACE_ANNOTATION = "csi.kubevirt.io/infra-vm-namespace"
CLUSTER_NAMESPACE_ANNOTATION = "cluster.x-k8s.io/cluster-namespace"
PROVIDER_PREFIX = "kubevirt://"

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
_LONGEST_NAMESPACE = 63

WAYS = (
    f"one of these has to be true of the Node: (1) annotations {VM_NAME_ANNOTATION} and {VM_NAMESPACE_ANNOTATION}; "
    "(2) spec.providerID kubevirt://NAMESPACE/VM; (3) spec.providerID kubevirt://VM, and the namespace from "
    f"annotation {CLUSTER_NAMESPACE_ANNOTATION} or --infra-cluster-namespace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What ``kubevirt-csi node-id`` finds out and the node plugin reports: ``namespace/vm`` and topology labels.

    As JSON it is the contract between the two processes, of whatever versions: ``{"id": "ns/vm", "topology": {}}``.
    """

    node_id: str
    topology: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The content of the node id file."""
        return json.dumps({"id": self.node_id, "topology": dict(self.topology)})

    @classmethod
    def from_json(cls, text: str) -> NodeIdentity:
        """Reads the node id file.

        Raises:
            ValueError: it is not what ``to_json`` writes.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("id"), str) or not found["id"]:
            raise ValueError('a node id file is of the form {"id": "NAMESPACE/VM", "topology": {}}')
        return cls(node_id=found["id"], topology=found.get("topology") or {})


@dataclass(frozen=True, slots=True)
class Unknown:
    """The Node does not say which VM it is; ``reason`` tells what is missing."""

    reason: str


def node_id_of(node: Mapping[str, Any], *, infra_namespace: str) -> str | Unknown:
    """The node id ``namespace/vm`` of a Node object, or why there is none yet.

    Args:
        node: the Node as the API returns it.
        infra_namespace: the configured namespace of the VMs; empty when none is configured.
    """
    metadata = node.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    name, namespace = annotations.get(VM_NAME_ANNOTATION, ""), annotations.get(VM_NAMESPACE_ANNOTATION, "")
    if name and namespace:
        return _joined(namespace=namespace, name=name)
    if name or namespace:
        absent = VM_NAMESPACE_ANNOTATION if name else VM_NAME_ANNOTATION
        return Unknown(f"annotation {absent} is missing beside its twin")
    return _from_provider(
        (node.get("spec") or {}).get("providerID") or "",
        namespace=annotations.get(CLUSTER_NAMESPACE_ANNOTATION) or infra_namespace,
    )


def _from_provider(provider_id: str, *, namespace: str) -> str | Unknown:
    if not provider_id.startswith(PROVIDER_PREFIX):
        found = f"is {provider_id!r}, not KubeVirt's" if provider_id else "is not set"
        return Unknown(f"spec.providerID {found}, and there are no annotations that name the VM")
    first, slash, second = provider_id.removeprefix(PROVIDER_PREFIX).partition("/")
    if slash:
        return _joined(namespace=first, name=second)
    if not namespace:
        return Unknown(f"spec.providerID {provider_id!r} names the VM, but nothing tells its namespace")
    return _joined(namespace=namespace, name=first)


def _joined(*, namespace: str, name: str) -> str | Unknown:
    sane = len(namespace) <= _LONGEST_NAMESPACE and len(name) <= _LONGEST_NAME
    if not sane or not _DNS_NAME.fullmatch(namespace) or not _DNS_NAME.fullmatch(name) or "." in namespace:
        return Unknown(f"{namespace!r} and {name!r} are no namespace and name of a VM")
    return f"{namespace}/{name}"
