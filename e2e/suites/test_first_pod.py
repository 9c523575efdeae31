"""The product's main job on real parts: one volume from claim to removal, on each bus; both at once, in one lab.

One begins on the first node and the other on the second: an emulated guest does one thing at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from e2e.walk import DRIVER, STEPS, Seen, Surroundings, the_driver_is_installed, title

DEVICE_PREFIXES = {"scsi": "/dev/sd", "virtio": "/dev/vd"}


def storage_class(where: Surroundings, bus: str) -> str:
    name = f"walk-{bus}"
    where.tenant.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"bus": bus},
        }
    )
    return name


def walk(surroundings: Surroundings, bus: str) -> Seen:
    where = replace(surroundings, storage_class=storage_class(surroundings, bus), name=f"walk-{bus}")
    seen = Seen()
    for step in STEPS:
        print(title(step))
        for text in step(where, seen):
            print(text)
        if step is the_driver_is_installed and bus == "virtio":
            seen.nodes.reverse()
    return seen


@pytest.fixture(scope="module")
def walks(surroundings: Surroundings) -> Mapping[str, Future[Seen]]:
    """A walk on each bus, played to its end; what went wrong in one is raised to who asks for its result."""
    with ThreadPoolExecutor() as pool:
        return {bus: pool.submit(walk, surroundings, bus) for bus in DEVICE_PREFIXES}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bus", DEVICE_PREFIXES)
def test_a_volume_is_written_on_one_node_and_read_on_another_and_leaves_nothing(
    walks: Mapping[str, Future[Seen]], bus: str
) -> None:
    assert walks[bus].result().device.startswith(DEVICE_PREFIXES[bus])
