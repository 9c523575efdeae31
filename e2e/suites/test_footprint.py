"""What the node plugin costs on every node, measured in its own container."""

from __future__ import annotations

import pytest

from e2e.walk import DRIVER_NAMESPACE, Surroundings

LIMIT_KIB = 44 * 1024


@pytest.fixture(scope="session")
def node_plugins(surroundings: Surroundings) -> list[str]:
    pods = surroundings.tenant.items("pods", DRIVER_NAMESPACE, "-l", "app=kubevirt-csi-node")
    return [pod["metadata"]["name"] for pod in pods]


def read(surroundings: Surroundings, pod: str, path: str) -> str:
    return surroundings.tenant.run("exec", pod, "-n", DRIVER_NAMESPACE, "-c", "driver", "--", "cat", path)


def test_a_node_plugin_keeps_to_its_memory(surroundings: Surroundings, node_plugins: list[str]) -> None:
    assert len(node_plugins) >= 2
    for pod in node_plugins:
        status = read(surroundings, pod, "/proc/1/status")
        [resident] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
        print(f"{pod}: {resident / 1024:.1f} MiB resident")
        assert resident <= LIMIT_KIB


def test_a_node_plugin_has_loaded_neither_the_kubernetes_client_nor_aiohttp(
    surroundings: Surroundings, node_plugins: list[str]
) -> None:
    for pod in node_plugins:
        maps = read(surroundings, pod, "/proc/1/maps")
        assert "/site-packages/" in maps  # compiled modules of our own libraries are there, so the next line can fail
        assert not [line for line in maps.splitlines() if "/aiohttp/" in line or "/kubernetes_asyncio/" in line]
