"""The CustomResourceDefinitions of KubeVirt and CDI, reduced to what is served: names, versions, columns, subresources.

Schemas preserve unknown fields; what KubeVirt and CDI refuse is refused by the webhooks (``admission``). The surprising
fact: a VirtualMachineInstance has no status subresource, its status is written through the main resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.lab.kubevirt.resources import (
    CDI,
    CDI_CONFIG,
    DATA_VOLUME,
    IMPORT_SOURCE,
    KUBEVIRT,
    STORAGE_PROFILE,
    VM,
    VMI,
    Object,
    Resource,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kind: how it is called and shown. A column is a name, a JSON path and a type."""

    resource: Resource
    singular: str
    short_names: Sequence[str] = ()
    versions: Sequence[str]
    status_subresource: bool
    columns: Sequence[tuple[str, str, str]] = ()
    categories: Sequence[str] = ("all",)

    def manifest(self) -> Object:
        """The object to apply."""
        resource = self.resource
        return {
            "metadata": {"name": f"{resource.plural}.{resource.group}"},
            "spec": {
                "group": resource.group,
                "scope": "Namespaced" if resource.namespaced else "Cluster",
                "names": {
                    "plural": resource.plural,
                    "singular": self.singular,
                    "kind": resource.kind,
                    "listKind": f"{resource.kind}List",
                    "shortNames": list(self.short_names),
                    "categories": list(self.categories),
                },
                "versions": [self._version(name) for name in self.versions],
            },
        }

    def _version(self, name: str) -> Object:
        columns = [*self.columns, ("Age", ".metadata.creationTimestamp", "date")]
        return {
            "name": name,
            "served": True,
            "storage": name == self.versions[0],
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            "subresources": {"status": {}} if self.status_subresource else {},
            "additionalPrinterColumns": [
                {"name": title, "jsonPath": path, "type": kind} for title, path, kind in columns
            ],
        }


DEFINITIONS = (
    Definition(
        resource=KUBEVIRT,
        singular="kubevirt",
        short_names=("kv", "kvs"),
        versions=("v1", "v1alpha3"),
        status_subresource=True,
        columns=(("Phase", ".status.phase", "string"),),
    ),
    Definition(
        resource=VM,
        singular="virtualmachine",
        short_names=("vm", "vms"),
        versions=("v1", "v1alpha3"),
        status_subresource=True,
        columns=(
            ("Status", ".status.printableStatus", "string"),
            ("Ready", ".status.conditions[?(@.type=='Ready')].status", "string"),
        ),
    ),
    Definition(
        resource=VMI,
        singular="virtualmachineinstance",
        short_names=("vmi", "vmis"),
        versions=("v1", "v1alpha3"),
        status_subresource=False,
        columns=(
            ("Phase", ".status.phase", "string"),
            ("IP", ".status.interfaces[0].ipAddress", "string"),
            ("NodeName", ".status.nodeName", "string"),
            ("Ready", ".status.conditions[?(@.type=='Ready')].status", "string"),
        ),
    ),
    Definition(
        resource=DATA_VOLUME,
        singular="datavolume",
        short_names=("dv", "dvs"),
        versions=("v1beta1",),
        status_subresource=True,
        columns=(
            ("Phase", ".status.phase", "string"),
            ("Progress", ".status.progress", "string"),
            ("Restarts", ".status.restartCount", "integer"),
        ),
    ),
    Definition(
        resource=IMPORT_SOURCE,
        singular="volumeimportsource",
        versions=("v1beta1",),
        status_subresource=True,
        categories=(),
    ),
    Definition(
        resource=CDI,
        singular="cdi",
        short_names=("cdis",),
        versions=("v1beta1",),
        status_subresource=True,
    ),
    Definition(
        resource=CDI_CONFIG,
        singular="cdiconfig",
        versions=("v1beta1",),
        status_subresource=True,
        categories=(),
    ),
    Definition(
        resource=STORAGE_PROFILE,
        singular="storageprofile",
        versions=("v1beta1",),
        status_subresource=True,
        categories=(),
    ),
)
