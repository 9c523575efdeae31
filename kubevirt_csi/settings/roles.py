"""The settings of each role, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kubevirt_csi.domain.limits import DiskLimit
    from kubevirt_csi.observe.address import HttpAddress
    from kubevirt_csi.rpc.endpoint import Endpoint

DRIVER_NAME = "csi.kubevirt.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """``kubevirt-csi controller``."""

    endpoint: Endpoint
    """Where the sidecars find us."""

    infra_namespace: str
    """The namespace of the management cluster that holds the tenant's VMs and volumes."""

    infra_labels: Mapping[str, str]
    """On every object that we make there; an object without them does not exist for us. Never empty."""

    infra_kubeconfig: Path | None
    """None: the account of the pod we run in."""

    tenant_kubeconfig: Path | None
    """None: the account of the pod we run in."""

    infra_vm_selector: str | None
    """Label selector that a VM must match to be a node of this tenant; None: every VM of the namespace."""

    infra_namespace_aliases: tuple[str, ...]
    """Other spellings of ``infra_namespace`` in node ids."""

    http_address: HttpAddress
    """Health and metrics."""

    log_level: str

    grace_period_seconds: float
    """How long calls may go on after SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """``kubevirt-csi node``."""

    endpoint: Endpoint
    """Where kubelet finds us."""

    node_id: str | None
    """``namespace/vm``; None: read ``node_id_file``."""

    node_id_file: Path
    """JSON written by ``kubevirt-csi node-id``."""

    kubelet_dir: Path
    """kubelet's root, at the same path as on the host."""

    state_dir: Path
    """Our own record of volumes that were mounted; survives the pod."""

    sysfs_root: Path
    """Where sysfs is mounted; the disks are told by its ``block`` folder."""

    dev_root: Path
    """The folder of device nodes."""

    max_disks: DiskLimit
    """The most disks that this worker can have, those that are no volumes included, or how that is found out."""

    fstrim_interval_seconds: float | None
    """How often the disks of mounted volumes are told what is not in use; None: never."""

    http_address: HttpAddress
    """Health and metrics."""

    log_level: str

    grace_period_seconds: float
    """How long calls may go on after SIGTERM."""

    @property
    def plugins_registry(self) -> Path:
        """Where kubelet looks for the registration sockets of plug-ins."""
        return self.kubelet_dir / "plugins_registry"

    @property
    def csi_socket(self) -> Path:
        """The endpoint as kubelet sees it: a folder mounted elsewhere into the pod is the driver's plug-in folder."""
        if self.endpoint.path.is_relative_to(self.kubelet_dir):
            return self.endpoint.path
        return self.kubelet_dir / "plugins" / DRIVER_NAME / self.endpoint.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdSettings:
    """``kubevirt-csi node-id``, the init container of the node."""

    node_name: str
    """The tenant's Node object."""

    infra_namespace: str | None
    """Namespace of the VM when the Node itself does not tell."""

    output: Path
    """The file for ``NodeSettings.node_id_file``."""

    timeout_seconds: float
    """How long to wait for the Node to carry what the id is made of."""

    log_level: str


Settings = ControllerSettings | NodeSettings | NodeIdSettings
