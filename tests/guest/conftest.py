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

VM = "worker-1"


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


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A blank raw disk of 16 MiB."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as file:
        file.truncate(16 * 1024**2)
    return path
