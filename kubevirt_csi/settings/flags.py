"""Which flags each role has: their values, defaults, environment variables and help, in one table.

A value comes from the flag, else from the first environment variable that is set and not empty, else from the
default. The predecessor's names are kept, in flags and in variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubevirt_csi.rpc.endpoint import Endpoint
from kubevirt_csi.settings import values
from kubevirt_csi.settings.roles import DRIVER_NAME, ControllerSettings, NodeIdSettings, NodeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kubevirt_csi.settings.roles import Settings

DEFAULT_KUBELET_DIR = "/var/lib/kubelet"
DEFAULT_NODE_ID_FILE = "/run/kubevirt-csi/node-id.json"

GENERAL, INFRA, TENANT, NODE, OLDER = (
    "general",
    "management (infra) cluster",
    "tenant cluster",
    "worker node",
    "accepted for manifests of kubevirt/csi-driver",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of one or more roles."""

    name: str
    help: str
    parse: Callable[[str], Any] = values.text
    field: str | None = None
    """The settings' field that it fills; None: checked, and used no further."""
    default: str | None = None
    required: bool = False
    environment: tuple[str, ...] = ()
    """Older names, after our own."""
    group: str = GENERAL
    metavar: str = "TEXT"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that stand in for the flag, first one first; one without effect needs none."""
        if self.field is None:
            return self.environment
        return (f"KUBEVIRT_CSI_{self.name.upper().replace('-', '_')}", *self.environment)

    def description(self) -> str:
        """The flag's help with what it falls back to."""
        notes = [f"env: {', '.join(self.variables)}"] if self.variables else []
        if self.required:
            notes.insert(0, "required")
        elif self.default:
            notes.insert(0, f"default: {self.default}")
        return f"{self.help} [{'; '.join(notes)}]" if notes else self.help

    def value(self, given: str | None, environment: Mapping[str, str]) -> Any:
        """The checked value, None when there is none.

        Raises:
            ValueError: it is not accepted, or required and missing; the text names the flag.
        """
        sources = [(f"--{self.name}", given), *((name, environment.get(name)) for name in self.variables)]
        for source, raw in sources:
            if raw:
                try:
                    return self.parse(raw)
                except ValueError as error:
                    origin = "" if source.startswith("--") else f" (from the environment variable {source})"
                    raise ValueError(f"--{self.name}{origin}: {raw!r} is not accepted: {error}") from error
        if self.required:
            raise ValueError(f"--{self.name} is required ({self.help}); or set {' or '.join(self.variables)}")
        return None if self.default is None else self.parse(self.default)


def _endpoint(*, default: str | None, help: str) -> Flag:  # noqa: A002 - the name of the field
    return Flag(
        name="endpoint",
        field="endpoint",
        parse=Endpoint.parse,
        default=default,
        environment=("CSI_ENDPOINT",),
        metavar="unix:///PATH",
        help=help,
    )


LOG_LEVEL = Flag(
    name="log-level",
    field="log_level",
    parse=values.log_level,
    default="info",
    metavar="LEVEL",
    help="debug, info, warning or error",
)
SERVING = (
    Flag(
        name="http-address",
        field="http_address",
        parse=values.http_address,
        default=":8080",
        metavar="[HOST]:PORT",
        help="serves /healthz, /readyz and /metrics",
    ),
    LOG_LEVEL,
    Flag(
        name="grace-period",
        field="grace_period_seconds",
        parse=values.seconds,
        default="25s",
        metavar="DURATION",
        help="how long running calls may go on after SIGTERM; less than the pod's terminationGracePeriodSeconds",
    ),
)
INFRA_NAMESPACE = Flag(
    name="infra-cluster-namespace",
    field="infra_namespace",
    parse=values.namespace,
    required=True,
    environment=("INFRACLUSTER_NAMESPACE",),
    group=INFRA,
    metavar="NAMESPACE",
    help="namespace of the tenant's VMs and volumes",
)
TENANT_KUBECONFIG = Flag(
    name="tenant-cluster-kubeconfig",
    field="tenant_kubeconfig",
    parse=values.absolute_path,
    group=TENANT,
    metavar="FILE",
    help="kubeconfig for the tenant cluster; checked, but nothing is asked there yet",
)
NODE_NAME = Flag(
    name="node-name",
    field="node_name",
    parse=values.object_name,
    required=True,
    environment=("KUBE_NODE_NAME",),
    group=NODE,
    metavar="NAME",
    help="name of this worker's Node object",
)
VERBOSITY = Flag(name="v", group=OLDER, metavar="N", help="without effect, use --log-level")

CONTROLLER = (
    _endpoint(default="unix:///csi/csi.sock", help="socket on which the sidecars find us"),
    *SERVING,
    INFRA_NAMESPACE,
    Flag(
        name="infra-cluster-labels",
        field="infra_labels",
        parse=values.labels,
        required=True,
        environment=("INFRACLUSTER_LABELS",),
        group=INFRA,
        metavar="KEY=VALUE,...",
        help="labels on everything that belongs to this tenant; objects without them are not touched",
    ),
    Flag(
        name="infra-cluster-kubeconfig",
        field="infra_kubeconfig",
        parse=values.absolute_path,
        group=INFRA,
        metavar="FILE",
        help="kubeconfig for the management cluster; without it the account of this pod",
    ),
    Flag(
        name="infra-vm-selector",
        field="infra_vm_selector",
        parse=values.label_selector,
        group=INFRA,
        metavar="SELECTOR",
        help="label selector that a VM must match to be a node of this tenant",
    ),
    Flag(
        name="infra-namespace-alias",
        field="infra_namespace_aliases",
        parse=values.namespaces,
        default="",
        group=INFRA,
        metavar="NAMESPACE,...",
        help="other names of --infra-cluster-namespace that node ids may carry",
    ),
    TENANT_KUBECONFIG,
    Flag(
        name="infra-storage-class-enforcement",
        parse=values.allows_every_class,
        environment=("INFRA_STORAGE_CLASS_ENFORCEMENT",),
        group=OLDER,
        metavar="YAML",
        help="not supported yet: refused unless it allows everything",
    ),
    Flag(name="volume-prefix", group=OLDER, help="no longer needed: ids are checked by the tenant's labels"),
    Flag(name="node-name", group=OLDER, metavar="NAME", help="without effect in this role"),
    VERBOSITY,
)
NODE_PLUGIN = (
    _endpoint(default=None, help=f"socket on which kubelet finds us; else KUBELET_DIR/plugins/{DRIVER_NAME}/csi.sock"),
    *SERVING,
    Flag(
        name="node-id",
        field="node_id",
        parse=values.node_id,
        group=NODE,
        metavar="NAMESPACE/VM",
        help="this worker's VM in the management cluster; without it --node-id-file is read",
    ),
    Flag(
        name="node-id-file",
        field="node_id_file",
        parse=values.absolute_path,
        default=DEFAULT_NODE_ID_FILE,
        group=NODE,
        metavar="FILE",
        help="JSON with the node id, as `kubevirt-csi node-id` writes it",
    ),
    Flag(
        name="kubelet-dir",
        field="kubelet_dir",
        parse=values.absolute_path,
        default=DEFAULT_KUBELET_DIR,
        group=NODE,
        metavar="FOLDER",
        help="kubelet's root folder, which has to be at the same path in the pod and on the host",
    ),
    Flag(
        name="state-dir",
        field="state_dir",
        parse=values.absolute_path,
        default="/var/lib/kubevirt-csi",
        group=NODE,
        metavar="FOLDER",
        help="folder on the host for the record of volumes that were mounted here",
    ),
    Flag(
        name="sysfs-root",
        field="sysfs_root",
        parse=values.absolute_path,
        default="/sys",
        group=NODE,
        metavar="FOLDER",
        help="where the kernel shows this worker's disks",
    ),
    Flag(
        name="dev-root",
        field="dev_root",
        parse=values.absolute_path,
        default="/dev",
        group=NODE,
        metavar="FOLDER",
        help="folder of this worker's device nodes",
    ),
    Flag(
        name="max-disks-per-node",
        field="max_disks",
        parse=values.disk_limit,
        default="auto",
        group=NODE,
        metavar="LIMIT",
        help="disks this worker can have, root and others included; kubelet is told how many volumes that leaves. "
        "A number; `ports` (for classes with bus virtio): as many more as PCI Express ports are free; "
        "`auto`: 256, and `ports` where there is no virtio-scsi controller",
    ),
    Flag(
        name="fstrim-interval",
        field="fstrim_interval_seconds",
        parse=values.interval,
        group=NODE,
        metavar="DURATION",
        help="how often mounted volumes give back what they do not use (fstrim, for thin infra classes); unset: never",
    ),
    Flag(name="node-name", group=OLDER, metavar="NAME", help="without effect, the node id tells more"),
    Flag(name="infra-cluster-namespace", group=OLDER, metavar="NAMESPACE", help="without effect in this role"),
    Flag(name="infra-cluster-labels", group=OLDER, metavar="KEY=VALUE,...", help="without effect in this role"),
    Flag(name="volume-prefix", group=OLDER, help="without effect in this role"),
    VERBOSITY,
)
NODE_ID = (
    NODE_NAME,
    Flag(
        name="output",
        field="output",
        parse=values.absolute_path,
        default=DEFAULT_NODE_ID_FILE,
        group=NODE,
        metavar="FILE",
        help="the file to write",
    ),
    Flag(
        name="timeout",
        field="timeout_seconds",
        parse=values.seconds,
        default="5m",
        metavar="DURATION",
        help="how long to wait for the Node to carry its annotations or providerID",
    ),
    LOG_LEVEL,
    Flag(
        name="infra-cluster-namespace",
        field="infra_namespace",
        parse=values.namespace,
        environment=("INFRACLUSTER_NAMESPACE",),
        group=INFRA,
        metavar="NAMESPACE",
        help="namespace of the VM, where the Node has only a providerID",
    ),
)


@dataclass(frozen=True, slots=True)
class Role:
    """A way to run the program."""

    name: str
    summary: str
    flags: tuple[Flag, ...]
    settings: Callable[..., Settings]


def _node_settings(*, endpoint: Endpoint | None, kubelet_dir: Path, **fields: Any) -> NodeSettings:
    chosen = endpoint or Endpoint(kubelet_dir / "plugins" / DRIVER_NAME / "csi.sock")
    return NodeSettings(endpoint=chosen, kubelet_dir=kubelet_dir, **fields)


ROLES = {
    role.name: role
    for role in (
        Role("controller", "serves the sidecars beside it: volumes and attachments", CONTROLLER, ControllerSettings),
        Role("node", "serves kubelet on a worker: formats and mounts", NODE_PLUGIN, _node_settings),
        Role("node-id", "finds out which VM this worker is, writes it to a file and ends", NODE_ID, NodeIdSettings),
    )
}
