"""Every kind of volume in a pod that writes, moves to the other VM and reads the same bytes again.

The pods of all rows are made together, so that attaches meet: one attachment pod holds all disks of a VM, and what one
row does to the VM the others feel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.kubectl import KubectlError, NotYet, wait_until
from e2e.suites import matrix
from e2e.suites.matrix import EPHEMERAL, ROWS, Row
from e2e.walk import Surroundings

PHASE_SECONDS = 420.0
DIGEST_LENGTH = 64

pytestmark = pytest.mark.timeout(1500)


@dataclass(slots=True)
class Outcome:
    """What became of the rows, by name."""

    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def outcome(surroundings: Surroundings) -> Iterator[Outcome]:
    """Plays all rows at once: written on one node, read on the other, and removed."""
    where, found = surroundings, Outcome()
    every = (*ROWS, EPHEMERAL)
    first, second = sorted(item["metadata"]["name"] for item in where.tenant.items("nodes"))[:2]
    where.tenant.apply(*(matrix.storage_class(row) for row in every))
    where.tenant.apply(*(matrix.claim(row, where) for row in ROWS))

    where.tenant.apply(*(matrix.writer(row, where, node=first) for row in every))
    found.written = _digests(where, every, name=matrix.writer_name, problems=found.problems)
    found.volumes = _volumes(where, every)
    _delete_pods(where)
    where.tenant.apply(*(matrix.reader(row, where, node=second) for row in ROWS))
    found.read = _digests(where, ROWS, name=matrix.reader_name, problems=found.problems)
    _delete_pods(where)
    for row in ROWS:
        where.tenant.delete("pvc", matrix.claim_name(row), where.namespace, timeout=PHASE_SECONDS)
    _release_what_is_retained(where, found)
    found.left = _left(where, found)
    yield found
    for row in every:
        where.tenant.delete("storageclass", matrix.storage_class(row)["metadata"]["name"])


def _digests(
    where: Surroundings, rows: Sequence[Row], *, name: Callable[[Row], str], problems: list[str]
) -> dict[str, str]:
    """What each row's pod printed; a pod that prints nothing in time is told with its description."""
    digests: dict[str, str] = {}

    def all_of_them() -> bool:
        for row in rows:
            if row.name not in digests and (digest := _digest(where, name(row))):
                digests[row.name] = digest
        return len(digests) == len(rows)

    try:
        wait_until(all_of_them, what="every pod has printed a digest", timeout=PHASE_SECONDS)
    except NotYet:
        missing = [name(row) for row in rows if row.name not in digests]
        problems += [where.tenant.run("describe", "pod", each, "-n", where.namespace) for each in missing]
    return digests


def _digest(where: Surroundings, pod: str) -> str:
    try:
        words = where.tenant.run("logs", pod, "-n", where.namespace).split()
    except KubectlError:
        return ""  # not started yet
    return next((word for word in words if len(word) == DIGEST_LENGTH), "")


def _volumes(where: Surroundings, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The PersistentVolumes of the rows."""
    by_claim = {item["spec"]["claimRef"]["name"]: item for item in where.tenant.items("pv")}
    return {row.name: by_claim[matrix.claim_name(row)] for row in rows if matrix.claim_name(row) in by_claim}


def _delete_pods(where: Surroundings) -> None:
    limit = f"--timeout={PHASE_SECONDS:.0f}s"
    # kubectl names the pods that do not go, if it may run a little longer than it waits.
    where.tenant.run("delete", "pods", "-l", "matrix=yes", "-n", where.namespace, limit, timeout=PHASE_SECONDS + 10)

    def detached() -> bool:
        return not where.tenant.items("volumeattachments")

    wait_until(detached, what="every disk has left the VM", timeout=PHASE_SECONDS)


def _release_what_is_retained(where: Surroundings, found: Outcome) -> None:
    """Retained volumes must still be there with their DataVolumes; then an operator lets them go."""
    for row in ROWS:
        if row.reclaim != "Retain" or row.name not in found.volumes:
            continue
        volume = found.volumes[row.name]
        name, handle = volume["metadata"]["name"], volume["spec"]["csi"]["volumeHandle"]
        kept = where.tenant.get("pv", name)
        if kept is None or kept["status"]["phase"] != "Released":
            found.problems.append(f"{row.name}: PersistentVolume {name} was to be Released, it is {kept}")
        if where.infra.get("datavolume", handle, where.infra_namespace) is None:
            found.problems.append(f"{row.name}: DataVolume {handle} of a retained volume is gone")
        where.tenant.run("patch", "pv", name, "-p", '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}')


def _left(where: Surroundings, found: Outcome) -> list[str]:
    """What is there of the rows when all is deleted, in either cluster; waits for the end of it."""
    handles = {volume["spec"]["csi"]["volumeHandle"] for volume in found.volumes.values()}

    def rest() -> list[str]:
        tenant = [f"pv {item['metadata']['name']}" for item in where.tenant.items("pv")]
        infra = [
            f"{kind} {item['metadata']['name']}"
            for kind in ("datavolume", "pvc")
            for item in where.infra.items(kind, where.infra_namespace)
            if item["metadata"]["name"] in handles
        ]
        return tenant + infra

    try:
        wait_until(lambda: not rest(), what="nothing is left", timeout=PHASE_SECONDS)
    except NotYet:
        return rest()
    return []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_volume_of_every_kind_keeps_its_bytes_when_its_pod_moves(outcome: Outcome, row: Row) -> None:
    assert row.name in outcome.written, "\n".join(outcome.problems)
    assert row.name in outcome.read, "\n".join(outcome.problems)
    assert outcome.read[row.name] == outcome.written[row.name]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_persistent_volume_says_what_its_class_and_claim_asked_for(outcome: Outcome, row: Row) -> None:
    spec = outcome.volumes[row.name]["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == row.reclaim
    assert spec["accessModes"] == [row.access]
    assert spec["volumeMode"] == ("Filesystem" if row.file_system else "Block")
    assert spec["csi"].get("fsType", "") == row.file_system
    assert spec["csi"]["volumeAttributes"]["bus"] == row.bus


def test_a_generic_ephemeral_volume_is_written_and_goes_with_its_pod(outcome: Outcome) -> None:
    assert EPHEMERAL.name in outcome.written, "\n".join(outcome.problems)
    assert EPHEMERAL.name in outcome.volumes


def test_nothing_of_the_matrix_is_left_in_either_cluster(outcome: Outcome) -> None:
    assert outcome.left == []
    assert outcome.problems == []
    assert len(outcome.volumes) == len(ROWS) + 1
