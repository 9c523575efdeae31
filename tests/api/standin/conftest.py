"""The stand-in as a program of its own on the session's management cluster, and machines and volumes to try it on."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.lab.api import Api, eventually
from e2e.lab.controlplane import ControlPlane
from e2e.lab.ports import Ports
from e2e.lab.processes import Process, Program
from e2e.tools.build import build
from tests.api.standin.auditing import Audit
from tests.api.standin.modes import KubeVirt
from tests.api.standin.site import Site
from tests.api.standin.talking import Client, talk

SERVING_NAMES = ("virt-api.kubevirt.svc", "localhost", "127.0.0.1")
SCALE = 0.05
MACHINE_CHECKED_SECONDS = 1.0
"""Of all machines that run, those of earlier tests too, and only few tests end one from outside."""
READY_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class StandIn:
    """The running program; it can be ended and started again."""

    program: Program
    management: ControlPlane
    directory: Path
    port: int
    process: Process | None = None

    def trust(self) -> ssl.SSLContext:
        """What its serving certificate is verified with."""
        return ssl.create_default_context(cadata=self.management.authority_certificate.decode())

    async def start(self) -> None:
        """Returns when kube-apiserver passes requests on to it."""
        self.process = Process.start(self.program)
        await self.served()

    async def served(self) -> None:
        """Returns when the aggregated API answers."""
        assert self.process is not None
        async with talk(self.management.admin_kubeconfig) as client:

            async def answers() -> bool:
                return (await client.call("GET", "/apis/subresources.kubevirt.io/v1")).code == 200

            await self.process.ready(answers, deadline_seconds=READY_SECONDS)

    async def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None:
            await self.process.kill()
            self.process = None

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.stop()
            self.process = None


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """The record that kube-apiserver keeps of what audited users write."""
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def management(tmp_path_factory: pytest.TempPathFactory, audit: Audit) -> Iterator[ControlPlane]:
    """A management cluster of their own: the stand-in would work on the objects of other tests."""
    plane = ControlPlane(
        "kubevirt", tmp_path_factory.mktemp("kubevirt"), build("kubernetes"), api_server_flags=audit.flags
    )
    with asyncio.Runner() as runner:
        runner.run(plane.__aenter__())
        try:
            yield plane
        finally:
            runner.run(plane.__aexit__(None, None, None))


@pytest.fixture
async def management_namespace(management_api: Api) -> str:
    """The name of a fresh namespace. It stays: the cluster goes soon, and emptying namespaces is slow."""
    return await fresh_namespace(management_api)


async def fresh_namespace(api: Api) -> str:
    """Makes a namespace in which pods can be created; returns its name."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await api.create("/api/v1/namespaces", body)
    await eventually(
        lambda: api.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
        what=f"pods can be created in {name}",
        deadline_seconds=READY_SECONDS,
    )
    return name


@pytest.fixture(scope="session")
def standin(management: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """The stand-in, with all durations shortened."""
    directory = tmp_path_factory.mktemp("standin")
    with Ports() as ports, asyncio.Runner() as runner:
        port = ports.take()
        config = _configure(directory, management, port, cdi_port=ports.take())
        program = Program(
            name="kubevirt-stand-in",
            argv=[sys.executable, "-m", "e2e.lab.kubevirt", "--config", str(config)],
            log=directory / "standin.log",
        )
        standin = StandIn(program=program, management=management, directory=directory, port=port)
        try:
            runner.run(standin.start())
            runner.run(management.know_new_kinds())
            yield standin
        finally:
            runner.run(standin.stop())


def _configure(directory: Path, management: ControlPlane, port: int, *, cdi_port: int) -> Path:
    serving = management.authority.issue_server("virt-api", SERVING_NAMES).write(directory, "serving")
    authority = directory / "ca.crt"
    authority.write_bytes(management.authority_certificate)
    config = directory / "config.json"
    config.write_text(
        json.dumps(
            {
                "kubeconfig": str(management.admin_kubeconfig),
                "storage": str(directory / "disks"),
                "serving": {
                    "port": port,
                    "cdi_port": cdi_port,
                    "certificate": str(serving.certificate),
                    "key": str(serving.key),
                    "ca": str(authority),
                },
                "durations": {"scale": SCALE, "machine_checked": MACHINE_CHECKED_SECONDS / SCALE},
                "machines": {"kind": "none", "directory": str(directory / "machines"), "virtio_ports": 2},
            }
        )
    )
    return config


@pytest.fixture
async def client(standin: StandIn) -> AsyncIterator[Client]:
    """Requests as the administrator."""
    async with talk(standin.management.admin_kubeconfig) as client:
        yield client


@pytest.fixture
async def kubevirt(client: Client) -> AsyncIterator[KubeVirt]:
    """KubeVirt's configuration; what a test changes in it is put back."""
    kubevirt = KubeVirt(client)
    try:
        yield kubevirt
    finally:
        await kubevirt.restore()


@pytest.fixture
async def site(standin: StandIn, client: Client, management_namespace: str) -> AsyncIterator[Site]:
    """A namespace for machines and volumes."""
    site = Site(client, management_namespace, standin.directory)
    yield site
    await site.abandon()
