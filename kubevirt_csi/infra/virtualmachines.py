"""VM and VMI objects to machines, and hot-plug requests to bodies. No I/O.

Only volumes that stand for a claim are of interest; a DataVolume's claim has its name. Where the older hot-plug gate is
on, an accepted request first waits in the VM's queue (``status.volumeRequests``), and stays there for a moment after it
has been carried out.
Source: KubeVirt staging/src/kubevirt.io/api/core/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kubevirt_csi.domain.machines import Instance, Machine, Plug, PluggedVolume, VolumeStatus
from kubevirt_csi.infra.resources import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualMachine:
    """The VM half of a machine."""

    uid: str
    labels: Mapping[str, str]
    volumes: Mapping[str, PluggedVolume]
    leaving: frozenset[str]
    failure: str
    deleting: bool
    migrates_volumes: bool


def virtual_machine(found: Object) -> VirtualMachine:
    """Reads a VM."""
    metadata, spec, status = (_map(found, key) for key in ("metadata", "spec", "status"))
    volumes = {volume.name: volume for volume in _spec_volumes(_map(_map(spec, "template"), "spec"))}
    added, leaving = _queue(status.get("volumeRequests") or ())
    return VirtualMachine(
        uid=str(metadata.get("uid", "")),
        labels={key: str(value) for key, value in _map(metadata, "labels").items()},
        volumes=added | volumes,
        leaving=leaving,
        failure=_failure(status.get("conditions") or ()),
        deleting=bool(metadata.get("deletionTimestamp")),
        migrates_volumes=spec.get("updateVolumesStrategy") == "Migration",
    )


def instance(found: Object) -> Instance:
    """Reads a VMI."""
    metadata, spec, status = (_map(found, key) for key in ("metadata", "spec", "status"))
    migration = _map(status, "migrationState")
    over = any(migration.get(key) for key in ("endTimestamp", "completed", "failed"))
    return Instance(
        uid=str(metadata.get("uid", "")),
        phase=str(status.get("phase") or ""),
        volumes={volume.name: volume for volume in _spec_volumes(spec)},
        statuses={entry.name: entry for entry in map(_status, status.get("volumeStatus") or ())},
        migrating=bool(migration) and not over,
        deleting=bool(metadata.get("deletionTimestamp")),
        hotplug_disabled=bool(_map(_map(spec, "domain"), "devices").get("disableHotplug")),
    )


def join(name: str, vm: VirtualMachine | None, vmi: Instance | None) -> Machine | None:
    """The machine of two halves, None of none."""
    if vm is None:
        return Machine(name=name, uid=None, instance=vmi) if vmi is not None else None
    return Machine(
        name=name,
        uid=vm.uid,
        labels=vm.labels,
        volumes=vm.volumes,
        leaving=vm.leaving,
        instance=vmi,
        failure=vm.failure,
        deleting=vm.deleting,
        migrates_volumes=vm.migrates_volumes,
    )


def add_volume_body(plug: Plug) -> Object:
    """AddVolumeOptions. ``errorPolicy: report`` hands an I/O error to the guest; KubeVirt's default pauses the VM."""
    device: Object = {"bus": plug.bus.value}
    if plug.read_only:
        device["readonly"] = True
    disk: Object = {"name": plug.volume_id, "disk": device, "serial": plug.serial, "errorPolicy": "report"}
    if plug.shared:
        disk["shareable"] = True
    if plug.bare_claim:
        source = {"persistentVolumeClaim": {"claimName": plug.volume_id, "hotpluggable": True}}
    else:
        source = {"dataVolume": {"name": plug.volume_id, "hotpluggable": True}}
    return {"name": plug.volume_id, "disk": disk, "volumeSource": source}


def _spec_volumes(spec: Mapping[str, Any]) -> Iterator[PluggedVolume]:
    """Volumes of a VMI spec (of a VM's template) that stand for a claim, with the serial and bus of their disks."""
    devices = _map(_map(spec, "domain"), "devices")
    disks = {disk.get("name"): disk for disk in devices.get("disks") or ()}
    for volume in spec.get("volumes") or ():
        yield from _plugged(str(volume.get("name", "")), volume, disks.get(volume.get("name")) or {})


def _queue(requests: Iterable[Mapping[str, Any]]) -> tuple[dict[str, PluggedVolume], frozenset[str]]:
    """What the queue adds, by name, and the names that it removes; of several requests for a name the last counts."""
    added: dict[str, PluggedVolume] = {}
    leaving: set[str] = set()
    for request in requests:
        add, name = _map(request, "addVolumeOptions"), str(_map(request, "removeVolumeOptions").get("name", ""))
        for volume in _plugged(str(add.get("name", "")), _map(add, "volumeSource"), _map(add, "disk")):
            added[volume.name] = replace(volume, queued=True)
            leaving.discard(volume.name)
        if name:
            leaving.add(name)
    return added, frozenset(leaving)


def _plugged(name: str, source: Mapping[str, Any], disk: Mapping[str, Any]) -> Iterator[PluggedVolume]:
    ephemeral = _map(_map(source, "ephemeral"), "persistentVolumeClaim")
    data_volume, claim = _map(source, "dataVolume"), _map(source, "persistentVolumeClaim") or ephemeral
    dump = _map(source, "memoryDump")
    named = data_volume.get("name") or claim.get("claimName") or dump.get("claimName")
    if not named:
        return
    device = _map(disk, "disk") or _map(disk, "lun") or _map(disk, "cdrom")
    yield PluggedVolume(
        name=name,
        claim=str(named),
        hotpluggable=any(entry.get("hotpluggable") for entry in (data_volume, claim, dump)),
        serial=disk.get("serial") or None,
        bus=device.get("bus") or None,
    )


def _status(entry: Mapping[str, Any]) -> VolumeStatus:
    claim = _map(entry, "persistentVolumeClaimInfo")
    overhead = claim.get("filesystemOverhead")
    return VolumeStatus(
        name=str(entry.get("name", "")),
        phase=str(entry.get("phase") or ""),
        target=str(entry.get("target") or ""),
        reason=str(entry.get("reason") or ""),
        message=str(entry.get("message") or ""),
        claim=claim.get("claimName"),
        hotplug=entry.get("hotplugVolume") is not None,
        overhead=None if overhead is None else Fraction(str(overhead)),
    )


def _failure(conditions: Iterable[Mapping[str, Any]]) -> str:
    for condition in conditions:
        if condition.get("type") == "Failure" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _map(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under the key, empty when it is missing or null."""
    return found.get(key) or {}
