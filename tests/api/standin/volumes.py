"""DataVolumes, claims and storage classes as these tests write and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.standin.site import Site, datavolume, phase_of
from tests.api.standin.talking import Object

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
PROFILES = "/apis/cdi.kubevirt.io/v1beta1/storageprofiles"
VOLUMES = "/api/v1/persistentvolumes"
BLOCK_DRIVER = "block.csi.lab.example.com"
FILESYSTEM_DRIVER = "filesystem.csi.lab.example.com"
LEGACY_PROVISIONER = "legacy.lab.example.com"
BLANK: Object = {"source": {"blank": {}}}
MIB = 1024**2


def sized(size: str | None, **fields: Any) -> Object:
    """Storage of a claim or a DataVolume, with other fields as given."""
    requests = {} if size is None else {"resources": {"requests": {"storage": size}}}
    return {**requests, **fields}


def blank(name: str, *, annotations: Object | None = None, **storage: Any) -> Object:
    """A blank DataVolume of 16 MiB, with other fields of ``spec.storage`` as given."""
    body = datavolume(name, **BLANK, storage=sized(**({"size": "16Mi"} | storage)))
    body["metadata"]["annotations"] = annotations or {}
    return body


def bare_claim(name: str, **fields: Any) -> Object:
    """A claim without a DataVolume: Block, 16 MiB, unless said otherwise."""
    spec = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "local-block"} | fields
    metadata = {"name": name}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    return {**body, "spec": {**sized("16Mi"), **spec}}


def consumer(name: str, claim: str, *, block: bool = True) -> Object:
    """A pod that uses the claim."""
    use = {"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]}
    if not block:
        use = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "main", **use}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


def condition_of(obj: Object | None, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition; empty without one."""
    conditions = (obj or {}).get("status", {}).get("conditions", [])
    found = [(each["status"], each.get("reason", ""), each["message"]) for each in conditions if each["type"] == kind]
    return found[0] if found else ("", "", "")


async def made(site: Site, body: Object) -> list[Object]:
    """Creates the DataVolume and returns all its states until it has succeeded."""
    created = await site.client.create(site.datavolumes, body)
    states = await site.client.follow(
        site.datavolumes,
        body["metadata"]["name"],
        lambda volume: phase_of(volume) == "Succeeded",
        since=created["metadata"]["resourceVersion"],
    )
    return [state for state in states if state is not None]


def phases_of(states: list[Object]) -> list[str]:
    """The phases in the order in which they came, each once."""
    return list(dict.fromkeys(phase_of(state) for state in states if phase_of(state)))


async def volume_until(site: Site, name: str, kind: str, *expected: str) -> Object:
    """The first state of the DataVolume whose condition has this status, reason and, if given, message."""
    states = await site.client.follow(
        site.datavolumes, name, lambda volume: condition_of(volume, kind)[: len(expected)] == expected
    )
    assert states[-1] is not None
    return states[-1]


async def claim_of(site: Site, name: str = "data") -> Object:
    """The claim of that name as soon as there is one."""
    states = await site.client.follow(site.claims, name, lambda claim: claim is not None)
    assert states[-1] is not None
    return states[-1]


async def image_behind(site: Site, claim_name: str) -> Path:
    """Where the storage keeps the raw image of a bound claim; for a Filesystem claim perhaps nothing is there."""
    claim = await site.client.get(f"{site.claims}/{claim_name}")
    name = claim["spec"]["volumeName"]
    return (
        site.storage / name / "disk.img"
        if claim["spec"]["volumeMode"] == "Filesystem"
        else site.storage / f"{name}.raw"
    )


async def storage_class(site: Site, name: str, *, provisioner: str = BLOCK_DRIVER, **fields: Any) -> str:
    """A storage class of the test's own, with its StorageProfile; returns its name."""
    full = f"{name}-{site.namespace}"
    metadata = {"name": full, **fields.pop("metadata", {})}
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata}
    await site.client.create(CLASSES, {**body, "provisioner": provisioner, "allowVolumeExpansion": True, **fields})
    await site.client.follow(PROFILES, full, lambda profile: (profile or {}).get("status"))
    return full
