"""kubelet's side of the registration, played over the real socket."""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpclib.client import Channel

from kubevirt_csi._csi import pluginregistration
from kubevirt_csi.observe.health import Readiness
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.services.registration import KubeletRegistration

CSI_SOCKET = Path("/var/lib/kubelet/plugins/csi.kubevirt.io/csi.sock")


@dataclass(slots=True)
class Registered:
    registration: KubeletRegistration
    readiness: Readiness
    kubelet: pluginregistration.RegistrationStub


def registration(folder: Path, readiness: Readiness) -> KubeletRegistration:
    return KubeletRegistration(
        plugins_registry=folder, csi_socket=CSI_SOCKET, readiness=readiness, metrics=Metrics(role="node").rpc
    )


@pytest.fixture
async def registered(tmp_path: Path) -> AsyncIterator[Registered]:
    readiness = Readiness(["registered"])
    made = registration(tmp_path, readiness)
    await made.start()
    channel = Channel(path=str(made.path))
    yield Registered(made, readiness, pluginregistration.RegistrationStub(channel))
    channel.close()
    await made.stop(grace_seconds=0)


def sockets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_kubelet_learns_who_we_are(registered: Registered) -> None:
    assert await registered.kubelet.get_info(pluginregistration.InfoRequest()) == pluginregistration.PluginInfo(
        type="CSIPlugin",
        name="csi.kubevirt.io",
        endpoint="/var/lib/kubelet/plugins/csi.kubevirt.io/csi.sock",
        supported_versions=["1.0.0"],
    )


async def test_the_process_is_ready_when_kubelet_has_registered_it(registered: Registered) -> None:
    assert not registered.readiness.ready
    await registered.kubelet.notify_registration_status(pluginregistration.RegistrationStatus(plugin_registered=True))
    assert registered.readiness.ready


async def test_a_refusal_is_told_by_the_readiness(registered: Registered) -> None:
    await registered.kubelet.notify_registration_status(pluginregistration.RegistrationStatus(plugin_registered=True))
    await registered.kubelet.notify_registration_status(
        pluginregistration.RegistrationStatus(plugin_registered=False, error="node id has changed")
    )
    assert not registered.readiness.ready
    assert "node id has changed" in registered.readiness.report()


async def test_the_socket_is_private_and_has_no_leading_dot(registered: Registered) -> None:
    assert stat.S_IMODE(registered.registration.path.stat().st_mode) == 0o600
    assert registered.registration.path.name.startswith("csi.kubevirt.io-")


async def test_two_processes_use_two_file_names(tmp_path: Path) -> None:
    readiness = Readiness(["registered"])
    assert registration(tmp_path, readiness).path != registration(tmp_path, readiness).path


async def test_nothing_appears_before_the_start_and_nothing_stays_after_the_end(tmp_path: Path) -> None:
    made = registration(tmp_path, Readiness(["registered"]))
    assert sockets(tmp_path) == []
    await made.start()
    assert sockets(tmp_path) == [made.path.name]
    await made.stop(grace_seconds=0)
    assert sockets(tmp_path) == []


async def test_the_socket_of_a_killed_process_of_ours_is_removed_and_no_other(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as foreign:
        killed.bind(str(tmp_path / "csi.kubevirt.io-00000000.sock"))
        foreign.bind(str(tmp_path / "ebs.csi.aws.com-reg.sock"))
    made = registration(tmp_path, Readiness(["registered"]))
    await made.start()
    assert sockets(tmp_path) == [made.path.name, "ebs.csi.aws.com-reg.sock"]
    await made.stop(grace_seconds=0)
