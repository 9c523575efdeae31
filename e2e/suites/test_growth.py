"""Volumes of running pods grow, on each bus and of every kind, and keep their bytes.

The claims of all rows are patched together; what counts is what the pods see afterwards, without having been restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.kubectl import KubectlError, NotYet, wait_until
from e2e.walk import DRIVER, Surroundings, pod_with_volume

Object = dict[str, Any]

PHASE_SECONDS = 420.0
MEBIBYTES = 8
GIB = 2**30
SMALL, LARGE = "1Gi", "2Gi"
DEVICE = "/dev/volume"
FOLDER = "/volume"
FILE_SYSTEM_SHARE = 0.9
"""Of the bytes that a volume grows by, what a file system gives its users at least."""
MADE_FOR = {"growth": "yes"}

pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One volume; ``file_system`` "" is a raw block volume."""

    bus: str
    file_system: str
    infra_class: str = "local-block"

    @property
    def name(self) -> str:
        """Of its objects, and of its test."""
        return f"growth-{self.bus}-{self.file_system or 'block'}-{self.infra_class.removeprefix('local-')}"

    @property
    def target(self) -> str:
        """What the pod reads and writes."""
        return f"{FOLDER}/data" if self.file_system else DEVICE


ROWS = (
    Row(bus="scsi", file_system="ext4"),
    Row(bus="scsi", file_system="xfs"),
    Row(bus="scsi", file_system=""),
    Row(bus="virtio", file_system="ext4"),
    Row(bus="virtio", file_system="xfs"),
    Row(bus="virtio", file_system=""),
    Row(bus="scsi", file_system="ext4", infra_class="local-filesystem"),
)
REFUSED = Row(bus="scsi", file_system="ext4", infra_class="local-legacy")
"""Its infra class lets no claim grow."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a pod sees of its volume: bytes, and the digest of what was written at first."""

    size: int
    digest: str


@dataclass(slots=True)
class Outcome:
    """What became of the rows, by name."""

    before: dict[str, Look] = field(default_factory=dict)
    after: dict[str, Look] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    infra: dict[str, str] = field(default_factory=dict)
    refusal: str = ""
    problems: list[str] = field(default_factory=list)


def storage_class(row: Row) -> Object:
    parameters = {"bus": row.bus, "infraStorageClassName": row.infra_class}
    if row.file_system:
        parameters["csi.storage.k8s.io/fstype"] = row.file_system
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": row.name, "labels": MADE_FOR},
        "provisioner": DRIVER,
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": True,
        "parameters": parameters,
    }


def claim(row: Row, where: Surroundings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": row.name, "namespace": where.namespace, "labels": MADE_FOR},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem" if row.file_system else "Block",
            "storageClassName": row.name,
            "resources": {"requests": {"storage": SMALL}},
        },
    }


def pod(row: Row, where: Surroundings, *, node: str) -> Object:
    """A pod that writes random bytes and stays."""
    seen_as = (
        {"volumeMounts": [{"name": "volume", "mountPath": FOLDER}]}
        if row.file_system
        else {"volumeDevices": [{"name": "volume", "devicePath": DEVICE}]}
    )
    made = pod_with_volume(
        where,
        name=row.name,
        node=node,
        script=f"dd if=/dev/urandom of={row.target} bs=1M count={MEBIBYTES} && sync && {look_script(row)}",
        source={"name": "volume", "persistentVolumeClaim": {"claimName": row.name}},
        seen_as=seen_as,
    )
    made["metadata"]["labels"] = MADE_FOR
    return made


def look_script(row: Row) -> str:
    """Prints a line that ``Look`` is read from."""
    size = (
        f"$(df -P -k {FOLDER} | awk 'END {{print $2 * 1024}}')"
        if row.file_system
        else f"$(blockdev --getsize64 {DEVICE})"
    )
    digest = f"$(dd if={row.target} bs=1M count={MEBIBYTES} 2>/dev/null | sha256sum | cut -d' ' -f1)"
    return f'echo "look {size} {digest}"'


def look_in(text: str) -> Look | None:
    words = next((line.split() for line in text.splitlines() if line.startswith("look ")), [])
    return Look(int(float(words[1])), words[2]) if len(words) == 3 else None


@pytest.fixture(scope="module")
def outcome(surroundings: Surroundings) -> Iterator[Outcome]:
    """Grows the volumes of all rows at once, under their pods."""
    where, found = surroundings, Outcome()
    nodes = sorted(item["metadata"]["name"] for item in where.tenant.items("nodes"))[:2]
    every = (*ROWS, REFUSED)
    try:
        where.tenant.apply(*(storage_class(row) for row in every), *(claim(row, where) for row in every))
        where.tenant.apply(*(pod(row, where, node=nodes[number % 2]) for number, row in enumerate(ROWS)))
        _first_look(where, found)
        for row in every:
            request = f'{{"spec":{{"resources":{{"requests":{{"storage":"{LARGE}"}}}}}}}}'
            where.tenant.run("patch", "pvc", row.name, "-n", where.namespace, "-p", request)
        _second_look(where, found)
        yield found
    finally:
        _remove(where)


def _first_look(where: Surroundings, found: Outcome) -> None:
    def everywhere() -> bool:
        for row in ROWS:
            if row.name not in found.before:
                try:
                    seen = look_in(where.tenant.run("logs", row.name, "-n", where.namespace))
                except KubectlError:
                    continue  # not started yet
                if seen is not None:
                    found.before[row.name] = seen
        return len(found.before) == len(ROWS)

    _patiently(where, found, everywhere, what="every pod has written")


def _second_look(where: Surroundings, found: Outcome) -> None:
    """What the pods see once their claims have the capacity, which kubelet writes when the node is done."""

    def everywhere() -> bool:
        claims = {item["metadata"]["name"]: item for item in where.tenant.items("pvc", where.namespace)}
        return all(claims[row.name]["status"].get("capacity", {}).get("storage") == LARGE for row in ROWS)

    _patiently(where, found, everywhere, what="every claim has grown")

    def look(row: Row) -> None:
        command = ("exec", row.name, "-n", where.namespace, "--", "sh", "-c", look_script(row))
        seen = look_in(where.tenant.run(*command, timeout=PHASE_SECONDS))
        if seen is not None:
            found.after[row.name] = seen

    with ThreadPoolExecutor() as pool:
        list(pool.map(look, ROWS))
    for item in where.tenant.items("pods", where.namespace, "-l", "growth=yes"):
        found.restarts[item["metadata"]["name"]] = item["status"]["containerStatuses"][0]["restartCount"]
    claims = {item["metadata"]["name"]: item for item in where.infra.items("pvc", where.infra_namespace)}
    for row in ROWS:
        bound = where.tenant.get("pvc", row.name, where.namespace) or {}
        found.infra[row.name] = claims[f"pvc-{bound['metadata']['uid']}"]["spec"]["resources"]["requests"]["storage"]

    def refused() -> str:
        about = f"involvedObject.name={REFUSED.name},reason=VolumeResizeFailed"
        events = where.tenant.items("events", where.namespace, f"--field-selector={about}")
        return next((event["message"] for event in events), "")

    found.refusal = wait_until(refused, what="the event of a refused growth", timeout=PHASE_SECONDS)


def _patiently(where: Surroundings, found: Outcome, look: Any, *, what: str) -> None:
    """Waits; when time is up, what is wrong with whom is in ``problems``, and the rows that are well still count."""
    try:
        wait_until(look, what=what, timeout=PHASE_SECONDS)
    except NotYet as error:
        found.problems.append(str(error))
        for kind in ("pvc", "pod"):
            found.problems.append(where.tenant.run("describe", kind, "-l", "growth=yes", "-n", where.namespace))


def _remove(where: Surroundings) -> None:
    limit = f"--timeout={PHASE_SECONDS:.0f}s"
    for kind in ("pods", "pvc"):
        arguments = ("delete", kind, "-l", "growth=yes", "-n", where.namespace, limit)
        where.tenant.run(*arguments, timeout=PHASE_SECONDS)
    where.tenant.run("delete", "storageclass", "-l", "growth=yes")
    wait_until(
        lambda: (
            not [item for item in where.tenant.items("pv") if item["spec"]["storageClassName"].startswith("growth-")]
        ),
        what="the volumes are gone",
        timeout=PHASE_SECONDS,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_running_pod_sees_its_volume_grow_and_keeps_its_bytes(outcome: Outcome, row: Row) -> None:
    assert row.name in outcome.before, "\n".join(outcome.problems)
    assert row.name in outcome.after, "\n".join(outcome.problems)
    before, after = outcome.before[row.name], outcome.after[row.name]
    if row.file_system:
        assert after.size - before.size >= FILE_SYSTEM_SHARE * GIB
    else:
        assert (before.size, after.size) == (GIB, 2 * GIB)
    assert after.digest == before.digest
    assert outcome.restarts[row.name] == 0


def test_the_claim_of_a_file_asks_for_more_than_the_guest_shall_see(outcome: Outcome) -> None:
    """KubeVirt keeps 6 % of it to the file system around the disk image."""
    assert {outcome.infra[row.name] for row in ROWS if row.infra_class == "local-block"} == {LARGE}
    assert {outcome.infra[row.name] for row in ROWS if row.infra_class == "local-filesystem"} == {"2179Mi"}


def test_a_growth_that_the_management_cluster_refuses_tells_its_words_in_an_event(outcome: Outcome) -> None:
    assert "must support resize; set allowVolumeExpansion: true" in outcome.refusal
