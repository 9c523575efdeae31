"""What csi-sanity's volumes have left behind: it deletes all of them, so afterwards nothing of them may be anywhere.

A leak in the management cluster or a forgotten mount makes no spec fail; it is looked for here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from e2e.lab.api import Api, connect, eventually
from e2e.lab.loopnodes import NODES
from e2e.lab.management import NAMESPACE
from e2e.lab.state import LabDirectory, State

DATA_VOLUMES = f"/apis/cdi.kubevirt.io/v1beta1/namespaces/{NAMESPACE}/datavolumes"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
SECONDS = 20.0
"""For finalizers and garbage collection, which go on after DeleteVolume has answered."""


async def left_behind(lab: LabDirectory, state: State) -> list[str]:
    """A line for each volume, disk and mount that is still there, after a while."""
    async with connect(Path(state.kubeconfigs["management"])) as api:
        found: list[str] = []

        async def nothing() -> bool:
            found[:] = [*await _volumes(api), *_disks(lab), *_mounts(state)]
            return not found

        try:
            await eventually(nothing, what="nothing is left", deadline_seconds=SECONDS)
        except TimeoutError:
            return [f"left behind: {line}" for line in found]
    return []


async def _volumes(api: Api) -> list[str]:
    return [
        f"{kind} {item['metadata']['name']}"
        for kind, path in (("DataVolume", DATA_VOLUMES), ("claim", CLAIMS))
        for item in (await api.get(path))["items"]
    ]


def _disks(lab: LabDirectory) -> Iterator[str]:
    for folder in sorted(lab.data.glob("machines/*/sys/block/*")):
        yield f"disk {folder.name} of {folder.relative_to(lab.data / 'machines').parts[0]}"


def _mounts(state: State) -> Iterator[str]:
    """The mount points below the lab's folder of nodes, as the lab's first process sees them."""
    for line in Path(f"/proc/{state.init}/mountinfo").read_text().splitlines():
        point = line.split(" ")[4]
        if point.startswith(f"{NODES}/"):
            yield f"mount {point}"
