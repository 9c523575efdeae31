"""Every kind of volume in a pod that writes, grows under it, moves to the other VM and has the same bytes there.

The pods of all rows are made together, half of them on each VM, so that attaches meet: one attachment pod holds all
disks of a VM, and what one row does to the VM the others feel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.kubectl import KubectlError, NotYet, wait_until
from e2e.suites import matrix
from e2e.suites.matrix import EPHEMERAL, LABEL, LARGE, REFUSED, ROWS, Look, Row
from e2e.walk import Surroundings

PHASE_SECONDS = 420.0
LOOK_SECONDS = 2.0
GIB = 2**30
FILE_SYSTEM_SHARE = 0.9
"""Of the bytes that a volume grows by, what a file system gives its users at least."""

pytestmark = pytest.mark.timeout(1500)


@dataclass(slots=True)
class Outcome:
    """What became of the rows, by name."""

    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: dict[str, Look] = field(default_factory=dict)
    grown: dict[str, Look] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    infra_requests: dict[str, str] = field(default_factory=dict)
    refusal: str = ""
    moved: dict[str, Look] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def outcome(surroundings: Surroundings) -> Iterator[Outcome]:
    """Plays all rows at once: written and grown on one node, read on the other, and removed."""
    where, found = surroundings, Outcome()
    nodes = sorted(item["metadata"]["name"] for item in where.tenant.items("nodes"))[:2]
    first = {row.name: nodes[number % 2] for number, row in enumerate((*ROWS, EPHEMERAL))}
    second = {row.name: nodes[(number + 1) % 2] for number, row in enumerate(ROWS)}
    where.tenant.apply(*(matrix.storage_class(row) for row in (*ROWS, EPHEMERAL, REFUSED)))
    where.tenant.apply(*(matrix.claim(row, where) for row in (*ROWS, REFUSED)))

    where.tenant.apply(*(matrix.writer(row, where, node=first[row.name]) for row in (*ROWS, EPHEMERAL)))
    found.written = _looks(where, (*ROWS, EPHEMERAL), name=matrix.writer_name, problems=found.problems)
    found.volumes = _volumes(where, (*ROWS, EPHEMERAL, REFUSED))
    _grow(where, found)
    _delete_pods(where)
    where.tenant.apply(*(matrix.reader(row, where, node=second[row.name]) for row in ROWS))
    found.moved = _looks(where, ROWS, name=matrix.reader_name, problems=found.problems)
    _delete_pods(where)
    for row in (*ROWS, REFUSED):
        where.tenant.delete("pvc", matrix.claim_name(row), where.namespace, timeout=PHASE_SECONDS)
    _release_what_is_retained(where, found)
    found.left = _left(where, found)
    yield found
    where.tenant.run("delete", "storageclass", "-l", LABEL)


def _looks(
    where: Surroundings, rows: Sequence[Row], *, name: Callable[[Row], str], problems: list[str]
) -> dict[str, Look]:
    """What each row's pod printed; a pod that prints nothing in time is told with its description."""
    looks: dict[str, Look] = {}

    def all_of_them() -> bool:
        running = _running(where)
        for row in rows:
            if row.name not in looks and name(row) in running and (look := _printed(where, name(row))):
                looks[row.name] = look
        return len(looks) == len(rows)

    try:
        wait_until(all_of_them, what="every pod has looked at its volume", timeout=PHASE_SECONDS, every=LOOK_SECONDS)
    except NotYet:
        missing = [name(row) for row in rows if row.name not in looks]
        problems += [where.tenant.run("describe", "pod", each, "-n", where.namespace) for each in missing]
    return looks


def _running(where: Surroundings) -> set[str]:
    pods = where.tenant.items("pods", where.namespace, "-l", LABEL)
    return {pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"}


def _printed(where: Surroundings, pod: str) -> Look | None:
    try:
        return matrix.look_in(where.tenant.run("logs", pod, "-n", where.namespace))
    except KubectlError:
        return None  # its node does not answer, or it has just ended; the other pods can tell what they saw


def _volumes(where: Surroundings, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The PersistentVolumes of the rows."""
    by_claim = {item["spec"]["claimRef"]["name"]: item for item in where.tenant.items("pv")}
    return {row.name: by_claim[matrix.claim_name(row)] for row in rows if matrix.claim_name(row) in by_claim}


def _grow(where: Surroundings, found: Outcome) -> None:
    """Asks for more under the running pods, and looks again once kubelet has written what the claims have."""
    request = f'{{"spec":{{"resources":{{"requests":{{"storage":"{LARGE}"}}}}}}}}'
    for row in (*ROWS, REFUSED):
        where.tenant.run("patch", "pvc", matrix.claim_name(row), "-n", where.namespace, "-p", request)

    def everywhere() -> bool:
        claims = {item["metadata"]["name"]: item for item in where.tenant.items("pvc", where.namespace)}
        capacities = (claims[matrix.claim_name(row)]["status"].get("capacity", {}) for row in ROWS)
        return all(capacity.get("storage") == LARGE for capacity in capacities)

    try:
        wait_until(everywhere, what="every claim has grown", timeout=PHASE_SECONDS, every=LOOK_SECONDS)
    except NotYet as error:
        found.problems += [str(error), where.tenant.run("describe", "pvc", "-l", LABEL, "-n", where.namespace)]
        return

    def look(row: Row) -> Look | None:
        command = ("exec", matrix.writer_name(row), "-n", where.namespace, "--", "sh", "-c", matrix.look_script(row))
        return matrix.look_in(where.tenant.run(*command, timeout=PHASE_SECONDS))

    with ThreadPoolExecutor() as pool:
        looks = zip(ROWS, pool.map(look, ROWS), strict=True)
    found.grown = {row.name: seen for row, seen in looks if seen is not None}
    pods = {item["metadata"]["name"]: item for item in where.tenant.items("pods", where.namespace, "-l", LABEL)}
    claims = {item["metadata"]["name"]: item for item in where.infra.items("pvc", where.infra_namespace)}
    for row in ROWS:
        found.restarts[row.name] = pods[matrix.writer_name(row)]["status"]["containerStatuses"][0]["restartCount"]
        infra = claims[found.volumes[row.name]["spec"]["csi"]["volumeHandle"]]
        found.infra_requests[row.name] = infra["spec"]["resources"]["requests"]["storage"]
    found.refusal = _refusal(where)


def _refusal(where: Surroundings) -> str:
    """The event of the claim that may not grow."""
    about = f"involvedObject.name={matrix.claim_name(REFUSED)},reason=VolumeResizeFailed"

    def refused() -> str:
        events = where.tenant.items("events", where.namespace, f"--field-selector={about}")
        return next((event["message"] for event in events), "")

    return wait_until(refused, what="the event of a refused growth", timeout=PHASE_SECONDS)


def _delete_pods(where: Surroundings) -> None:
    limit = f"--timeout={PHASE_SECONDS:.0f}s"
    # kubectl names the pods that do not go, if it may run a little longer than it waits.
    where.tenant.run("delete", "pods", "-l", LABEL, "-n", where.namespace, limit, timeout=PHASE_SECONDS + 10)

    def detached() -> bool:
        return not where.tenant.items("volumeattachments")

    wait_until(detached, what="every disk has left the VM", timeout=PHASE_SECONDS, every=LOOK_SECONDS)


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
        wait_until(lambda: not rest(), what="nothing is left", timeout=PHASE_SECONDS, every=LOOK_SECONDS)
    except NotYet:
        return rest()
    return []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_running_pod_sees_its_volume_grow_and_keeps_its_bytes(outcome: Outcome, row: Row) -> None:
    assert row.name in outcome.written, "\n".join(outcome.problems)
    assert row.name in outcome.grown, "\n".join(outcome.problems)
    written, grown = outcome.written[row.name], outcome.grown[row.name]
    if row.file_system:
        assert grown.size - written.size >= FILE_SYSTEM_SHARE * GIB
    else:
        assert (written.size, grown.size) == (GIB, 2 * GIB)
    assert grown.digest == written.digest
    assert outcome.restarts[row.name] == 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_volume_of_every_kind_keeps_its_bytes_when_its_pod_moves(outcome: Outcome, row: Row) -> None:
    assert row.name in outcome.written, "\n".join(outcome.problems)
    assert row.name in outcome.moved, "\n".join(outcome.problems)
    assert outcome.moved[row.name].digest == outcome.written[row.name].digest
    assert outcome.moved[row.name].size == outcome.grown[row.name].size


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_persistent_volume_says_what_its_class_and_claim_asked_for(outcome: Outcome, row: Row) -> None:
    spec = outcome.volumes[row.name]["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == row.reclaim
    assert spec["accessModes"] == [row.access]
    assert spec["volumeMode"] == ("Filesystem" if row.file_system else "Block")
    assert spec["csi"].get("fsType", "") == row.file_system
    assert spec["csi"]["volumeAttributes"]["bus"] == row.bus


def test_the_infra_claim_of_a_file_asks_for_more_than_the_guest_shall_see(outcome: Outcome) -> None:
    """KubeVirt keeps 6 % of it to the file system around the disk image."""
    wanted = {row.name: "2179Mi" if row.infra_class == "local-filesystem" else LARGE for row in ROWS}
    assert outcome.infra_requests == wanted


def test_a_growth_that_the_management_cluster_refuses_tells_its_words_in_an_event(outcome: Outcome) -> None:
    assert "must support resize; set allowVolumeExpansion: true" in outcome.refusal


def test_a_generic_ephemeral_volume_is_written_and_goes_with_its_pod(outcome: Outcome) -> None:
    assert EPHEMERAL.name in outcome.written, "\n".join(outcome.problems)
    assert EPHEMERAL.name in outcome.volumes


def test_nothing_of_the_matrix_is_left_in_either_cluster(outcome: Outcome) -> None:
    assert outcome.left == []
    assert outcome.problems == []
    assert len(outcome.volumes) == len(ROWS) + 2
