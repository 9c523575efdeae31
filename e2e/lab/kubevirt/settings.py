"""What the stand-in is told at start, as JSON in one file.

::

    {"kubeconfig": "admin.kubeconfig", "storage": "disks/",
     "serving": {"port": 21443, "certificate": "s.crt", "key": "s.key", "ca": "ca.crt"},
     "kubevirt": {"version": "v1.9.0", "feature_gates": ["HotplugVolumes"]},
     "durations": {"scale": 1.0}, "machines": {"kind": "none", "directory": "machines/"}}

The serving certificate must name all of `SERVING_NAMES`: kube-apiserver verifies the aggregated API by its Service's
name, and calls webhooks by URL. Durations are those of an idle, real cluster; ``scale`` shortens them all for tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

VIRT_NAMESPACE = "kubevirt"
VIRT_API_SERVICE = "virt-api"
VERSION = re.compile(r"v\d+\.\d+\.\d+.*")
SERVING_NAMES = (f"{VIRT_API_SERVICE}.{VIRT_NAMESPACE}.svc", "localhost", "127.0.0.1")


class SettingsError(Exception):
    """The configuration file cannot be used; the text names the key and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long each step takes, in seconds."""

    scale: float = 1.0
    """Factor on all the others, applied by `scaled`."""
    pod_scheduled: float = 0.5
    """From a pod's creation to its binding."""
    pod_ready: float = 2.5
    """From a pod's binding to Ready: image there, volumes mounted, container started."""
    pod_gone: float = 1.0
    """From the decision to delete a pod, or its graceful deletion, to the object's end."""
    volume_mounted: float = 1.5
    """From a ready attachment pod to the volume's bind mount in the launcher."""
    volume_ready: float = 1.0
    """From the disk's plugging to its target in the VMI's status."""
    volume_unmounted: float = 1.0
    """From the disk's unplugging to the end of the bind mount."""
    importer: float = 3.0
    """How long an importer pod runs for a blank volume."""
    machine_start: float = 2.0
    """From a running launcher pod to the power-on of the machine."""
    provisioned: float = 0.5
    """From a claim that may be provisioned to its volume."""
    resized: float = 0.5
    """From a claim's request for more to its larger volume, and for a file system to its larger file system."""
    retry: float = 1.0
    """Pause before something that was refused is tried again."""
    machine_checked: float = 5.0
    """How often a running machine is looked at, to see whether it still runs."""
    heartbeat: float = 10.0
    """How often the infra Node renews its lease and its status."""

    def scaled(self) -> Self:
        """The durations with the scale worked in; heartbeats keep the pace that the API expects."""
        steps = {f.name for f in fields(self)} - {"scale", "heartbeat"}
        values = {name: getattr(self, name) * self.scale for name in steps}
        return replace(self, scale=1.0, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where the aggregated API and the webhooks are served."""

    port: int
    certificate: Path
    key: Path
    ca: Path
    """What kube-apiserver verifies the certificate with."""
    address: str = "127.0.0.1"
    cdi_port: int = 0
    """Where cdi-api listens, which is another server; 0 chooses a port at every start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The KubeVirt that is installed where there is none yet; later its KubeVirt object says what it is."""

    version: str = "v1.9.0"
    feature_gates: Sequence[str] = ()
    """Gates that are on; by HotplugVolumes and DeclarativeHotplugVolumes hot-plugs go different ways."""
    disabled_feature_gates: Sequence[str] = ()
    """Gates that are off although the version has them on."""

    def __post_init__(self) -> None:
        if not VERSION.fullmatch(self.version):
            raise ValueError(f"kubevirt.version is {self.version!r}, but must look like v1.9.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the stand-in needs to know."""

    kubeconfig: Path
    """Administrator of the management cluster."""
    storage: Path
    """Directory of the raw images of all volumes."""
    serving: Serving
    kubevirt: Release = field(default_factory=Release)
    durations: Durations = field(default_factory=Durations)
    machines: Mapping[str, Any] = field(default_factory=dict)
    """``kind`` chooses the backend, the rest is its own."""
    node: str = "infra-1"
    """Name of the infra Node that the stand-in registers and keeps alive, and that machines start on."""
    spare_node: str = "infra-2"
    """Likewise, of the one that machines are migrated to."""

    @property
    def nodes(self) -> tuple[str, str]:
        """The infra Nodes, in the order in which they are filled."""
        return self.node, self.spare_node

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the file; relative paths in it are relative to the working directory.

        Raises:
            SettingsError: unreadable, not JSON, or a key is unknown, missing or of the wrong type.
        """
        try:
            document = json.loads(path.read_text())
            serving = document.pop("serving")
            return cls(
                kubeconfig=Path(document.pop("kubeconfig")),
                storage=Path(document.pop("storage")),
                serving=Serving(
                    **serving | {key: Path(serving[key]) for key in ("certificate", "key", "ca")},
                ),
                kubevirt=Release(**document.pop("kubevirt", {})),
                durations=Durations(**document.pop("durations", {})).scaled(),
                **document,
            )
        except KeyError as error:
            raise SettingsError(f"{path}: the key {error} is missing") from error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise SettingsError(f"{path}: {error}") from error
