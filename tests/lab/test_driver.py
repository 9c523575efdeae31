"""The controller Deployment as host processes: its own arguments, with only what a node gives to a pod replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.lab.driver import Container, Node, containers, keep_running
from e2e.lab.manifests import ManifestError
from e2e.lab.ports import Ports
from e2e.lab.processes import Processes, Program

CONFIG = {"kind": "ConfigMap", "metadata": {"name": "driver-config"}, "data": {"namespace": "tenant-a"}}


def deployment(*pod_containers: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Deployment", "spec": {"template": {"spec": {"containers": list(pod_containers)}}}}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Ports() as ports:
        yield Node(
            volumes={"socket": Path("/lab/socket"), "tenant": Path("/lab/tenant")},
            entrypoints={"kubevirt-csi": ["python", "-m", "kubevirt_csi"], "csi-attacher": ["/bin/csi-attacher"]},
            infra_kubeconfig=Path("/lab/infra.kubeconfig"),
            ports=ports,
            logs=tmp_path,
        )


def only(items: list[Container]) -> Container:
    assert len(items) == 1
    return items[0]


def test_arguments_are_the_deployments_own_and_the_entrypoint_the_images(node: Node) -> None:
    attacher = {
        "name": "a",
        "image": "registry.example/sig/csi-attacher:v4",
        "args": ["--timeout=3m", "--leader-election"],
    }
    container = only(containers([deployment(attacher)], node))
    assert container.program.argv == ["/bin/csi-attacher", "--timeout=3m", "--leader-election"]


def test_mounted_volumes_become_folders_in_flags_and_socket_urls_only(node: Node) -> None:
    attacher = {
        "name": "a",
        "image": "csi-attacher",
        "args": [
            "--csi-address=/csi/csi.sock",
            "--endpoint=unix:///csi/csi.sock",
            "--kubeconfig=/secret",
            "--x=/csis",
            "/csi",
        ],
        "volumeMounts": [{"name": "socket", "mountPath": "/csi"}, {"name": "tenant", "mountPath": "/secret"}],
    }
    assert only(containers([deployment(attacher)], node)).program.argv[1:] == [
        "--csi-address=/lab/socket/csi.sock",
        "--endpoint=unix:///lab/socket/csi.sock",
        "--kubeconfig=/lab/tenant",
        "--x=/csis",
        "/csi",
    ]


def test_variables_come_from_literals_and_from_the_manifests_config_maps(node: Node) -> None:
    driver = {
        "name": "driver",
        "image": "kubevirt-csi",
        "args": ["controller", "--namespace=$(NAMESPACE)", "--level=$(LEVEL)", "--other=$(OTHER)"],
        "env": [
            {"name": "NAMESPACE", "valueFrom": {"configMapKeyRef": {"name": "driver-config", "key": "namespace"}}},
            {"name": "LEVEL", "value": "debug"},
        ],
    }
    program = only(containers([CONFIG, deployment(driver)], node)).program
    assert program.argv[4:7] == ["--namespace=tenant-a", "--level=debug", "--other=$(OTHER)"]
    assert program.environment == {"NAMESPACE": "tenant-a", "LEVEL": "debug"}


def test_only_the_driver_is_given_the_credential_that_stands_for_the_pods_account(node: Node) -> None:
    both = deployment({"name": "driver", "image": "kubevirt-csi:v1"}, {"name": "a", "image": "csi-attacher:v4"})
    driver, attacher = containers([both], node)
    assert driver.program.argv[-1] == "--infra-cluster-kubeconfig=/lab/infra.kubeconfig"
    assert attacher.program.argv == ["/bin/csi-attacher"]


def test_container_ports_become_free_ports_of_the_loopback(node: Node) -> None:
    attacher = {
        "name": "a",
        "image": "csi-attacher",
        "args": ["--http-endpoint=:8080", "--other=:80801"],
        "ports": [{"name": "http", "containerPort": 8080}],
    }
    container = only(containers([deployment(attacher)], node))
    assert container.program.argv[1:] == [f"--http-endpoint=127.0.0.1:{container.ports['http']}", "--other=:80801"]
    assert container.ports["http"] != 8080


def test_an_image_that_the_lab_cannot_run_is_named(node: Node) -> None:
    with pytest.raises(ManifestError, match=r"container odd: .* image example/unknown:v1"):
        containers([deployment({"name": "odd", "image": "example/unknown:v1"})], node)


def test_two_deployments_are_refused(node: Node) -> None:
    with pytest.raises(ManifestError, match="there are 2"):
        containers([deployment(), deployment()], node)


async def test_a_container_that_ends_is_started_again_after_growing_pauses(tmp_path: Path) -> None:
    program = Program(name="short", argv=["sh", "-c", "exit 3"], log=tmp_path / "short.log")
    pauses: list[float] = []
    notes: list[str] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise StopAsyncIteration

    async with Processes() as processes:
        with pytest.raises(StopAsyncIteration):
            await keep_running(Container(program=program, ports={}), processes, note=notes.append, pause=pause)
    assert pauses == [1, 2, 4]
    assert notes[0] == "short ended with 3 and is started again in 1 s"


async def test_a_container_that_ran_for_long_is_started_again_soon(tmp_path: Path) -> None:
    program = Program(name="long", argv=["true"], log=tmp_path / "long.log")
    pauses: list[float] = []
    times = iter([0.0, 1.0, 10.0, 11.0, 20.0, 100.0])

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise StopAsyncIteration

    async with Processes() as processes:
        with pytest.raises(StopAsyncIteration):
            await keep_running(
                Container(program=program, ports={}),
                processes,
                note=lambda _: None,
                clock=lambda: next(times),
                pause=pause,
            )
    assert pauses == [1, 2, 1]
