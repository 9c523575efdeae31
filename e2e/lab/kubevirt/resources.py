"""The kinds of object the stand-in deals with, their paths, and how to read the fields that all objects share.

Objects are plain decoded JSON: the stand-in writes what KubeVirt writes, and typed models would lose unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-scoped objects), name


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API: where it lives and what its objects are called."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace: str = "") -> str:
        """The path of all objects, or of those in one namespace."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{scope}/{self.plural}"

    def path(self, key: Key) -> str:
        """The path of one object."""
        namespace, name = key
        return f"{self.collection(namespace)}/{name}"


VM = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine")
VMI = Resource("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance")
KUBEVIRT = Resource("kubevirt.io", "v1", "kubevirts", "KubeVirt")
DATA_VOLUME = Resource("cdi.kubevirt.io", "v1beta1", "datavolumes", "DataVolume")
STORAGE_PROFILE = Resource("cdi.kubevirt.io", "v1beta1", "storageprofiles", "StorageProfile", namespaced=False)
IMPORT_SOURCE = Resource("cdi.kubevirt.io", "v1beta1", "volumeimportsources", "VolumeImportSource")
CDI = Resource("cdi.kubevirt.io", "v1beta1", "cdis", "CDI", namespaced=False)
CDI_CONFIG = Resource("cdi.kubevirt.io", "v1beta1", "cdiconfigs", "CDIConfig", namespaced=False)
NAMESPACE = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODE = Resource("", "v1", "nodes", "Node", namespaced=False)
POD = Resource("", "v1", "pods", "Pod")
CLAIM = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUME = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
EVENT = Resource("", "v1", "events", "Event")
SERVICE = Resource("", "v1", "services", "Service")
LEASE = Resource("coordination.k8s.io", "v1", "leases", "Lease")
STORAGE_CLASS = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CSI_DRIVER = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)
CLUSTER_ROLE = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDING = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CRD = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
API_SERVICE = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def uid_of(obj: Object) -> str:
    uid: str = obj["metadata"]["uid"]
    return uid


def deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def annotations_of(obj: Object) -> Mapping[str, str]:
    annotations: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    return annotations


def labels_of(obj: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels


def dig(obj: Any, *path: str, default: Any = None) -> Any:
    """The value at the end of the path, or the default where a step of it is missing or null."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
        if obj is None:
            return default
    return obj


def controller_of(obj: Object) -> Mapping[str, Any] | None:
    """The owner reference of the object's controller."""
    owners: Iterable[Mapping[str, Any]] = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def controlled_by(obj: Object, owner: Object) -> bool:
    reference = controller_of(obj)
    return reference is not None and reference["uid"] == uid_of(owner)


def owner_reference(resource: Resource, owner: Object) -> Object:
    """A controller reference that holds up foreground deletion of the owner."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }
