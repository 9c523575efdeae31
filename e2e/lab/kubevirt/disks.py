"""How volumes and disks are written in the specs of VMs and VMIs, and which of them are hot-plugs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from e2e.lab.kubevirt.resources import Object, dig

DISK_DEVICES = ("disk", "lun", "cdrom")


def volumes_of(spec: Object) -> list[Object]:
    """The volumes of a VMI spec (a VM's template has one too)."""
    volumes: list[Object] = spec.get("volumes") or []
    return volumes


def disks_of(spec: Object) -> list[Object]:
    """The disks of a VMI spec."""
    disks: list[Object] = dig(spec, "domain", "devices", "disks", default=[])
    return disks


def is_hotplug(volume: Mapping[str, Any]) -> bool:
    return any(dig(volume, source, "hotpluggable", default=False) for source in ("dataVolume", "persistentVolumeClaim"))


def hotplugs_of(spec: Object) -> list[Object]:
    return [volume for volume in volumes_of(spec) if is_hotplug(volume)]


def claim_name(volume: Mapping[str, Any]) -> str | None:
    """The claim behind the volume: a DataVolume and its claim share one name. None for other kinds of volume."""
    name: str | None = dig(volume, "dataVolume", "name") or dig(volume, "persistentVolumeClaim", "claimName")
    return name


def bus_of(disk: Mapping[str, Any]) -> str:
    """The bus that the disk asks for, empty where it leaves it open."""
    bus: str = next((dig(disk, device, "bus", default="") for device in DISK_DEVICES if device in disk), "")
    return bus


def by_name(items: list[Object]) -> dict[str, Object]:
    return {item["name"]: item for item in items}
