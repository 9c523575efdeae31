"""The guest's disk: a Debian tree, the lab's init, kubelet, and the container images that its pods use.

Separate artefacts for the tree, the images and the disk, so that an edit of the driver repeats only the last two. The
disk is never written to: each machine lays its own over it.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.lab.images.artefacts import Progress, artefact, digest
from e2e.lab.images.commands import run
from e2e.lab.images.containers import pod_images
from e2e.lab.images.debian import guest_root
from e2e.lab.images.driver import node_image
from e2e.lab.images.initrd import SCRIPT, WANTED_MODULES, make_initrd
from e2e.tools.build import build

HERE = Path(__file__).parent
DISK_MEBIBYTES = 6144  # sparse; what is free is the pods' and the logs'
ASSEMBLE_TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestImage:
    """What a machine boots: a kernel, its initrd, and a raw disk that is only read."""

    kernel: Path
    initrd: Path
    disk: Path

    def to_config(self) -> dict[str, str]:
        """The ``image`` part of a `QemuMachines` configuration."""
        return {name: str(path) for name, path in asdict(self).items()}


def guest_image(*, progress: Progress = lambda _: None) -> GuestImage:
    """Returns the image of a tenant node, making what the cache lacks: minutes, seconds after an edit of the driver.

    Raises:
        ImageError: a program failed; its own words are in the text.
    """
    root = guest_root(progress)
    archives = [*sorted(pod_images(root, progress).glob("*.tar")), node_image(progress)]
    return _image("guest", root=root, archives=archives, programs=[build("kubernetes") / "kubelet"], progress=progress)


def bare_image(*, progress: Progress = lambda _: None) -> GuestImage:
    """Returns an image that boots without kubelet and without container images: for tests of the machines alone."""
    return _image("bare", root=guest_root(progress), archives=[], programs=[], progress=progress)


def _image(kind: str, *, root: Path, archives: list[Path], programs: list[Path], progress: Progress) -> GuestImage:
    def make(folder: Path) -> None:
        work = folder / "work"
        files = work / "files"
        shutil.copytree(HERE / "rootfs", files)
        # busybox is init when it is called so.
        (files / "usr/local/lib/lab/init").symlink_to("/bin/busybox")
        (files / "usr/local/bin").mkdir(parents=True)
        for program in programs:
            shutil.copy(program, files / "usr/local/bin")
        run(
            [
                *("sh", HERE / "assemble.sh", work, folder / "disk.raw", str(DISK_MEBIBYTES), f"{files}:{root}"),
                *archives,
            ],
            timeout=ASSEMBLE_TIMEOUT_SECONDS,
            isolated=True,
        )
        shutil.rmtree(work)
        shutil.copy(root / "vmlinuz", folder / "kernel")
        make_initrd(root, folder / "initrd")

    recipe: list[Path | str] = [HERE / "rootfs", HERE / "assemble.sh", SCRIPT, str(WANTED_MODULES), str(DISK_MEBIBYTES)]
    key = digest(*recipe, *map(str, [root, *archives, *programs]))
    made = artefact(f"{kind}-disk", key, make=make, progress=progress)
    return GuestImage(kernel=made / "kernel", initrd=made / "initrd", disk=made / "disk.raw")
