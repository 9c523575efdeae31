"""Runs the controller Deployment of deploy/infra as processes of this machine, the way a kubelet would run its pod.

Arguments and environment are the Deployment's own; only what a pod gets from its node is substituted: mounted volumes
become folders, container ports become free ports, and the account of the pod becomes a kubeconfig with a token of
that account. A container that ends is started again, because sidecars end themselves when they lose the driver.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from e2e.lab.api import Object
from e2e.lab.manifests import ManifestError
from e2e.lab.ports import Ports
from e2e.lab.processes import Pause, Processes, Program

SIDECARS = ("csi-provisioner", "csi-attacher", "csi-resizer")
DRIVER_IMAGE = "kubevirt-csi"
INFRA_KUBECONFIG_FLAG = "--infra-cluster-kubeconfig"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
LONG_RUN_SECONDS = 60.0
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What the machine gives to a pod.

    Attributes:
        volumes: folder by the pod's volume name.
        entrypoints: argv by the image's last name component.
        infra_kubeconfig: stands for the account of the pod.
    """

    volumes: Mapping[str, Path]
    entrypoints: Mapping[str, Sequence[str]]
    infra_kubeconfig: Path
    ports: Ports
    logs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container as a program, and the host ports that its named ports became."""

    program: Program
    ports: Mapping[str, int]


def entrypoints(sidecars: Path) -> dict[str, list[str]]:
    """What the images of the Deployment run, as programs of this machine."""
    return {
        DRIVER_IMAGE: [sys.executable, "-m", "kubevirt_csi"],
        **{name: [str(sidecars / name)] for name in SIDECARS},
    }


def containers(objects: Sequence[Object], node: Node) -> list[Container]:
    """The containers of the one Deployment among the objects.

    Raises:
        ManifestError: there is not exactly one Deployment, or it uses something that the lab cannot give it.
    """
    deployments = [item for item in objects if item["kind"] == "Deployment"]
    if len(deployments) != 1:
        raise ManifestError(f"one controller Deployment was expected, there are {len(deployments)}")
    config = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"}
    pod = deployments[0]["spec"]["template"]["spec"]
    return [_container(container, config=config, node=node) for container in pod["containers"]]


def _container(container: Object, *, config: Mapping[str, Mapping[str, str]], node: Node) -> Container:
    name = container["name"]
    image = container["image"].rsplit("/", 1)[-1].split(":")[0]
    if image not in node.entrypoints:
        raise ManifestError(f"container {name}: the lab does not know what image {container['image']} runs")
    environment = {entry["name"]: _value(entry, config=config) for entry in container.get("env", ())}
    mounts = {mount["mountPath"]: node.volumes[mount["name"]] for mount in container.get("volumeMounts", ())}
    ports = {port["name"]: (port["containerPort"], node.ports.take()) for port in container.get("ports", ())}
    arguments = [
        _listening_on(_on_this_machine(_expanded(argument, environment), mounts), ports.values())
        for argument in container.get("args", ())
    ]
    if image == DRIVER_IMAGE:
        arguments.append(f"{INFRA_KUBECONFIG_FLAG}={node.infra_kubeconfig}")
    program = Program(
        name=name,
        argv=[*node.entrypoints[image], *arguments],
        environment=environment,
        log=node.logs / f"{name}.log",
        directory=REPOSITORY,
    )
    return Container(program=program, ports={port: taken for port, (_, taken) in ports.items()})


def _value(entry: Object, *, config: Mapping[str, Mapping[str, str]]) -> str:
    """A variable's value: literal, or from a ConfigMap of the same manifests."""
    if "value" in entry:
        return str(entry["value"])
    reference = entry["valueFrom"].get("configMapKeyRef")
    if reference is None:
        raise ManifestError(f"variable {entry['name']}: the lab only knows literals and ConfigMap keys")
    return config[reference["name"]][reference["key"]]


def _expanded(argument: str, environment: Mapping[str, str]) -> str:
    """Kubernetes' ``$(NAME)``; an unknown name stays as it is, as in a pod."""
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda match: environment.get(match[1], match[0]), argument)


def _on_this_machine(argument: str, mounts: Mapping[str, Path]) -> str:
    """Replaces the path of a mounted volume, where one is the value of a flag or the path of a socket URL."""
    for path, folder in mounts.items():
        start, found, rest = argument.partition(path)
        if found and start.endswith(("=", "unix://")) and (not rest or rest.startswith("/")):
            return f"{start}{folder}{rest}"
    return argument


def _listening_on(argument: str, ports: Iterable[tuple[int, int]]) -> str:
    """Replaces ``:PORT`` of a container port by a port of this machine's loopback."""
    for port, taken in ports:
        argument = re.sub(rf"=:{port}$", f"=127.0.0.1:{taken}", argument)
    return argument


async def keep_running(
    container: Container,
    processes: Processes,
    *,
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Pause = asyncio.sleep,
) -> NoReturn:
    """Runs the container until cancelled, and starts it again when it ends, after growing pauses as a kubelet does."""
    name = container.program.name
    seconds = FIRST_PAUSE_SECONDS
    while True:
        begin = clock()
        code = await (await processes.start(container.program)).wait()
        await processes.stop(name)
        if clock() - begin > LONG_RUN_SECONDS:
            seconds = FIRST_PAUSE_SECONDS
        note(f"{name} ended with {code} and is started again in {seconds:g} s")
        await pause(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
