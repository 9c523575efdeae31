"""One booted guest for the tests of this folder: they need root and QEMU, and make the image the first time."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.lab.images import GuestImage, bare_image
from e2e.lab.images.seed import write_idle_seed
from e2e.lab.machines.qemu import QemuMachines
from e2e.lab.ports import Ports
from tests.guest.disks import Disks, disks_of
from tests.guest.driver import put_driver
from tests.guest.node import GuestNode

VM = "worker-1"
SELINUX = "security=selinux selinux=1"
"""It does nothing until a policy is loaded."""


@pytest.fixture(scope="session")
def image() -> GuestImage:
    if os.geteuid() != 0:
        pytest.skip("needs root: guest images are made with mounts and chroot")
    return bare_image(progress=print)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machines(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[QemuMachines]:
    """The machines of a lab with one VM, running; what a test plugs it unplugs."""
    folder = tmp_path_factory.mktemp("vms")
    write_idle_seed(folder / "seed", node=VM)
    machines = QemuMachines.from_config(
        {
            "directory": str(folder),
            "image": image.to_config(),
            "vms": {VM: {"seed": str(folder / "seed")}, "stopped": {"seed": str(folder / "seed")}},
        }
    )
    try:
        await machines.start(VM)
        yield machines
    finally:
        await machines.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GuestNode]:
    """One guest for all tests of the node plugin, with the plugin serving in it."""
    folder = tmp_path_factory.mktemp("node")
    write_idle_seed(folder / "seed", node=VM)
    put_driver(folder / "seed")
    with Ports() as ports:
        port = ports.take()
        machines = QemuMachines.from_config(
            {
                "directory": str(folder),
                "image": image.to_config(),
                "vms": {VM: {"seed": str(folder / "seed"), "ports": [port]}},
                "kernel_arguments": SELINUX,
            }
        )
        try:
            await machines.start(VM)
            node = GuestNode(machines=machines, vm=VM, port=port)
            await node.connect()
            await node.start()
            yield node
        finally:
            await machines.close()


@pytest_asyncio.fixture(loop_scope="session")
async def disks(node: GuestNode, tmp_path: Path) -> AsyncIterator[Disks]:
    """The disks of one test."""
    async with disks_of(node, tmp_path) as disks:
        yield disks


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A blank raw disk of 16 MiB."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as file:
        file.truncate(16 * 1024**2)
    return path
