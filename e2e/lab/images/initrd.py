"""The guest's initial RAM disk: busybox, the modules that every boot needs, and the script that mounts the root disk.

Debian's own would do, but an emulated guest spends longer in it than in all the rest of its boot.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from e2e.lab.images.commands import run

ROOT_DISK_MODULES = ("virtio_pci", "virtio_blk", "ext4")
# Loaded here too, as finding modules by name costs an emulated guest a second. kubelet locks every raw block volume
# with a loop device.
EARLY_MODULES = ("virtio_scsi", "sd_mod", "virtio_net", "virtio_console", "overlay", "evdev", "button", "loop")
WANTED_MODULES = (*ROOT_DISK_MODULES, *EARLY_MODULES)
SCRIPT = Path(__file__).parent / "initrd-init.sh"


def make_initrd(root: Path, initrd: Path) -> None:
    """Writes the RAM disk for the one kernel in the Debian tree ``root``."""
    (modules,) = (root / "usr/lib/modules").iterdir()
    with tempfile.TemporaryDirectory(dir=initrd.parent) as temporary:
        tree = Path(temporary) / "tree"
        for folder in ("bin", "dev", "proc", "sys", "root", "modules"):
            (tree / folder).mkdir(parents=True)
        shutil.copy(root / "bin/busybox", tree / "bin/busybox")
        shutil.copy(SCRIPT, tree / "init")
        (tree / "init").chmod(0o755)
        for number, module in enumerate(load_order(modules / "modules.dep", WANTED_MODULES)):
            shutil.copy(modules / module, tree / f"modules/{number:02}-{Path(module).name}")
        archive = f"cd {tree} && find . | {root}/bin/busybox cpio -o -H newc > {initrd}"
        run(["sh", "-c", archive], timeout=60)


def load_order(dependencies: Path, wanted: Iterable[str]) -> list[str]:
    """The files of the wanted modules and of all they need, each after what it needs; built-in ones are left out.

    In modules.dep a line is ``FILE: NEEDED...``, and the last one needed has to be loaded first.
    """
    needs = {}
    for line in dependencies.read_text().splitlines():
        file, _, rest = line.partition(":")
        needs[file] = rest.split()
    files = {Path(file).name.split(".")[0].replace("-", "_"): file for file in needs}
    ordered: dict[str, None] = {}
    for name in wanted:
        if name in files:
            ordered.update(dict.fromkeys([*reversed(needs[files[name]]), files[name]]))
    return list(ordered)
