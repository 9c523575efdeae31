"""Which way hot-plugs go in this cluster: KubeVirt's feature gates and version, read from the KubeVirt object.

Source: KubeVirt pkg/virt-config/featuregate. They are read each time they matter, so patching the object switches a
running cluster. The surprising facts: with both gates on the older one wins, and a gate of a Beta feature is on without
being listed only since v1.9.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Literal, Self

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import set_condition
from e2e.lab.kubevirt.resources import KUBEVIRT, Key, Object, dig
from e2e.lab.kubevirt.settings import VIRT_NAMESPACE, Release

KUBEVIRT_KEY: Key = (VIRT_NAMESPACE, "kubevirt")
HOTPLUG_VOLUMES = "HotplugVolumes"
DECLARATIVE = "DeclarativeHotplugVolumes"
EXPAND_DISKS = "ExpandDisks"
VERSION = re.compile(r"v(\d+)\.(\d+)\b.*")
FIRST_DECLARATIVE = (1, 6)
FIRST_DISABLING = (1, 8)
FIRST_BETA_IS_ON = (1, 9)

Mode = Literal["legacy", "declarative", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What of KubeVirt's configuration concerns hot-plugs.

    Attributes:
        version: major and minor.
        mode: ``legacy`` queues requests in the VM's status, ``declarative`` writes them to the VM's spec.
        expand_disks: whether a running guest is told that the claim of its disk has grown.
    """

    version: tuple[int, int]
    mode: Mode
    expand_disks: bool

    @classmethod
    def read(cls, kubevirt: Object | None) -> Self:
        """The gates that the object sets; without an object, or before it names a version, those of the newest."""
        observed = VERSION.fullmatch(dig(kubevirt, "status", "observedKubeVirtVersion", default=""))
        version = (int(observed[1]), int(observed[2])) if observed else FIRST_BETA_IS_ON
        developer = dig(kubevirt, "spec", "configuration", "developerConfiguration", default={})
        disabled = set(developer.get("disabledFeatureGates") or ()) if version >= FIRST_DISABLING else set()
        listed = set(developer.get("featureGates") or ()) - disabled
        return cls(
            version=version,
            mode=_mode(version, listed=listed, disabled=disabled),
            expand_disks=version >= FIRST_BETA_IS_ON or EXPAND_DISKS in listed,
        )

    @property
    def scsi_only(self) -> bool:
        """Whether this is a KubeVirt from before virtio hot-plugs, which has other texts too."""
        return self.version < FIRST_DECLARATIVE


def _mode(version: tuple[int, int], *, listed: set[str], disabled: set[str]) -> Mode:
    if HOTPLUG_VOLUMES in listed:
        return "legacy"
    if version >= FIRST_DECLARATIVE and DECLARATIVE in listed:
        return "declarative"
    if version >= FIRST_BETA_IS_ON and DECLARATIVE not in disabled:
        return "declarative"
    return "off"


def gates_of(cluster: Cluster) -> Gates:
    """The gates in force now."""
    return Gates.read(cluster.get(KUBEVIRT, KUBEVIRT_KEY))


def kubevirt_object(release: Release) -> Object:
    """The KubeVirt object as an operator of the cluster writes it."""
    namespace, name = KUBEVIRT_KEY
    gates = {"featureGates": [*release.feature_gates], "disabledFeatureGates": [*release.disabled_feature_gates]}
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "imagePullPolicy": "IfNotPresent",
            "configuration": {"developerConfiguration": {key: value for key, value in gates.items() if value}},
        },
    }


class Operator:
    """virt-operator, as far as it reports: a generation that it has observed is in force in all of KubeVirt."""

    def __init__(self, cluster: Cluster, release: Release) -> None:
        self._cluster = cluster
        self._release = release

    async def reconcile(self, key: Key) -> float | None:
        """Reports on the KubeVirt object; a version that somebody has put into its status stays."""
        kubevirt = self._cluster.get(KUBEVIRT, key)
        if kubevirt is None or key != KUBEVIRT_KEY:
            return None
        status = copy.deepcopy(kubevirt.get("status", {}))
        version = status.setdefault("observedKubeVirtVersion", self._release.version)
        status |= {
            "phase": "Deployed",
            "operatorVersion": version,
            "targetKubeVirtVersion": version,
            "observedGeneration": kubevirt["metadata"]["generation"],
        }
        set_condition(status, "Available", value=True, reason="AllComponentsReady", message="All components are ready.")
        if status != kubevirt.get("status"):
            await self._cluster.replace(KUBEVIRT, kubevirt | {"status": status}, subresource="/status")
        return None
