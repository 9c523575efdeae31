"""The product's main job on real parts: one volume from claim to removal, on each bus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.walk import DRIVER, STEPS, Seen, Surroundings, title


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("bus", "prefix"), [("scsi", "/dev/sd"), ("virtio", "/dev/vd")], ids=["scsi", "virtio"])
def test_a_volume_is_written_on_one_node_and_read_on_another_and_leaves_nothing(
    surroundings: Surroundings, bus: str, prefix: str
) -> None:
    where = replace(surroundings, storage_class=storage_class(surroundings, bus), name=f"walk-{bus}")
    seen = Seen()

    for step in STEPS:
        print(title(step))
        for text in step(where, seen):
            print(text)

    assert seen.device.startswith(prefix)
