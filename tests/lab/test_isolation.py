"""Whatever ends a lab, nothing of it stays: no process, no mount, no loop device.

The lab here is its smallest form, a management control plane, and each test adds a loop mount inside its namespaces.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.lab.api import eventually
from e2e.lab.isolation import host_pids, members
from e2e.lab.processes import Process, Program
from tests.lab.commands import REPOSITORY, LabCommands

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")

GONE_SECONDS = 20
COMMAND_SECONDS = 50


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a lab has on the machine: its processes by host pid, and a mounted image."""

    namespace: str
    pids: list[int]
    image: Path

    def leftovers(self) -> list[str]:
        return [
            *(f"process {pid}" for pid in self.pids if pid_namespace(pid) == self.namespace),
            *(f"mount seen by {pid}" for pid in all_pids() if self.image.name in mountinfo(pid)),
            *(f"loop device {device}" for device in loop_devices(self.image)),
        ]


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def mountinfo(pid: int) -> str:
    return read_or_nothing(lambda: Path(f"/proc/{pid}/mountinfo").read_text())


def pid_namespace(pid: int) -> str:
    return read_or_nothing(lambda: str(Path(f"/proc/{pid}/ns/pid").readlink()))


def read_or_nothing(read: Callable[[], str]) -> str:
    try:
        return read()
    except OSError:  # the process ended meanwhile
        return ""


def loop_devices(image: Path) -> list[str]:
    output = subprocess.run(["losetup", "--list", "--json"], check=True, capture_output=True, text=True).stdout
    devices = json.loads(output)["loopdevices"] if output.strip() else []
    return [device["name"] for device in devices if device["back-file"].startswith(str(image))]


def mount_inside(init: int, image: Path) -> Footprint:
    """Mounts a loop device in the lab's namespaces and returns what the lab now has."""
    target = image.with_name(f"{image.name}.mounted")
    target.mkdir()
    subprocess.run(["truncate", "--size=4M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    enter = ["nsenter", f"--target={init}", "--mount", "--pid"]
    subprocess.run([*enter, "mount", "-o", "loop", str(image), str(target)], check=True)
    footprint = Footprint(pid_namespace(init), members(init), image)
    assert len(footprint.pids) >= 4  # supervisor, etcd, kube-apiserver, kube-controller-manager
    assert len(footprint.leftovers()) >= len(footprint.pids) + 2
    return footprint


async def assert_nothing_is_left(lab: LabCommands, footprint: Footprint) -> None:
    async def clean() -> bool:
        return not lab.directory.running() and not footprint.leftovers()

    try:
        await eventually(clean, what="nothing is left", deadline_seconds=GONE_SECONDS)
    except TimeoutError:
        pytest.fail(f"left behind: {footprint.leftovers()}")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabCommands]:
    small = LabCommands(root=tmp_path, name="small", up=("--clusters", "management"), seconds=COMMAND_SECONDS)
    yield small
    small.run("down")


async def test_down_leaves_nothing_behind(lab: LabCommands, tmp_path: Path) -> None:
    lab.run("up")
    footprint = mount_inside(lab.state().init, tmp_path / "disk.img")
    assert "is gone" in lab.run("down")
    await assert_nothing_is_left(lab, footprint)
    assert lab.state().status == "stopped"
    assert not lab.directory.data.exists()
    assert (lab.directory.logs / "management-etcd.log").exists()


async def test_a_second_up_reports_the_running_lab_and_leaves_it_alone(lab: LabCommands) -> None:
    lab.run("up")
    before = lab.state().init
    assert "runs already" in lab.run("up")
    assert lab.state().init == before
    assert lab.directory.running()


@pytest.mark.parametrize("victim", ["launcher", "init"])
async def test_a_sigkill_of_a_parent_leaves_nothing_behind(lab: LabCommands, tmp_path: Path, victim: str) -> None:
    lab.run("up")
    footprint = mount_inside(lab.state().init, tmp_path / "disk.img")
    os.kill(getattr(lab.state(), victim), signal.SIGKILL)
    await assert_nothing_is_left(lab, footprint)


async def test_the_death_of_a_program_ends_the_lab_and_is_named(lab: LabCommands, tmp_path: Path) -> None:
    lab.run("up")
    state = lab.state()
    footprint = mount_inside(state.init, tmp_path / "disk.img")

    async def recorded() -> bool:
        return "management-etcd" in lab.state().pids

    await eventually(recorded, what="etcd's pid is recorded", deadline_seconds=GONE_SECONDS)
    os.kill(host_pids(state.init)[lab.state().pids["management-etcd"]], signal.SIGKILL)
    await assert_nothing_is_left(lab, footprint)
    failed = lab.state()
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.startswith("management-etcd (pid ")


async def test_an_up_that_is_killed_half_way_takes_its_lab_along(lab: LabCommands) -> None:
    argv, environment = lab.command("up")
    process = Process.start(
        Program(name="up", argv=argv, environment=environment, directory=REPOSITORY, log=lab.root / "up.log")
    )
    try:

        async def started() -> bool:
            return (lab.directory.logs / "management-etcd.log").exists()

        await eventually(started, what="the lab's first program runs", deadline_seconds=GONE_SECONDS)
        pids = members(lab.state().init)
        namespace = pid_namespace(lab.state().init)
    finally:
        await process.kill()
    assert lab.state().status != "ready"
    await assert_nothing_is_left(lab, Footprint(namespace, pids, lab.root / "never-mounted"))
