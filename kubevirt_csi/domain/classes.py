"""What a StorageClass may say: the parameters of CreateVolume.

A key that nobody knows is refused, because a typo that is ignored makes wrong volumes silently. Keys under
``csi.storage.k8s.io/`` are the sidecars' own, and ``fstype`` is their old spelling of the file system, which has
already found its way into the volume capability.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kubevirt_csi.domain.names import shown
from kubevirt_csi.domain.volumes import MKFS_OPTIONS, Bus
from kubevirt_csi.errors import InvalidArgument

INFRA_STORAGE_CLASS = "infraStorageClassName"
BUS = "bus"
KNOWN = (INFRA_STORAGE_CLASS, BUS, MKFS_OPTIONS)
SIDECAR_PREFIX = "csi.storage.k8s.io/"
OLD_FILE_SYSTEM_KEY = "fstype"
_CLASS_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain, as the names of StorageClasses are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassParameters:
    """A StorageClass, understood; ``infra_storage_class`` None leaves the choice to the infra cluster's default.

    Whether the ``mkfs_options`` are allowed depends on the file system, which is not the class's to say.
    """

    infra_storage_class: str | None = None
    bus: Bus = Bus.SCSI
    mkfs_options: str = ""

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> ClassParameters:
        """Reads the parameters.

        Raises:
            InvalidArgument: an unknown key, with the keys that are known, or a value that is none.
        """
        own = {key: value for key, value in parameters.items() if not _is_the_sidecars(key)}
        unknown = sorted(own.keys() - set(KNOWN))
        if unknown:
            raise InvalidArgument(
                f"unknown StorageClass parameter {', '.join(map(shown, unknown))}; this driver knows {', '.join(KNOWN)}"
            )
        return cls(
            infra_storage_class=_class_name(own.get(INFRA_STORAGE_CLASS, "")),
            bus=_bus(own.get(BUS, "")),
            mkfs_options=" ".join(own.get(MKFS_OPTIONS, "").split()),
        )

    def canonical(self) -> dict[str, str]:
        """The same class in one spelling, with its defaults filled in.

        What came later is left out where it is not set: a digest of this is kept with every volume.
        """
        canonical = {INFRA_STORAGE_CLASS: self.infra_storage_class or "", BUS: self.bus.value}
        return canonical | ({MKFS_OPTIONS: self.mkfs_options} if self.mkfs_options else {})


def _is_the_sidecars(key: str) -> bool:
    return key.startswith(SIDECAR_PREFIX) or key.lower() == OLD_FILE_SYSTEM_KEY


def _class_name(text: str) -> str | None:
    if text and _CLASS_NAME.fullmatch(text) is None:
        raise InvalidArgument(
            f"StorageClass parameter {INFRA_STORAGE_CLASS}: {shown(text)} cannot be the name of a StorageClass"
        )
    return text or None


def _bus(text: str) -> Bus:
    try:
        return Bus(text or Bus.SCSI.value)
    except ValueError:
        known = ", ".join(bus.value for bus in Bus)
        raise InvalidArgument(f"StorageClass parameter {BUS}: {shown(text)} is not one of {known}") from None
