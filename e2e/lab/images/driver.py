"""The driver's image, built from deploy/image/Containerfile as it is shipped.

Only two things differ from a public build: the base image is a Debian tree made on this machine, and the build has no
network, since the locked wheels and the driver's own lie in the build context. The layers below the driver's are kept
in a store of their own, so an edit of the driver costs one wheel and one layer.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from e2e.lab.images.artefacts import Progress, artefact, digest
from e2e.lab.images.commands import run
from e2e.lab.images.containers import Store, temporary_store
from e2e.lab.images.debian import driver_root

NODE_IMAGE = "localhost/kubevirt-csi:lab"
BASE_IMAGE = "localhost/lab/python-base:1"
DEPENDENCIES_IMAGE = "localhost/lab/dependencies:1"
REPOSITORY = Path(__file__).parents[3]
CONTAINERFILE = REPOSITORY / "deploy/image/Containerfile"
LOCK = REPOSITORY / "requirements/runtime.txt"
SOURCE = tuple(REPOSITORY / name for name in ("kubevirt_csi", "pyproject.toml", "README.md", "LICENSE"))
# The Python of the image, whichever one runs this: Debian 12's.
PYTHON = "3.11"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
DOWNLOAD_TIMEOUT_SECONDS = 600
# Debian keeps pip's wheel for virtual environments; a public Python image has the command.
PIP = """#!/bin/sh
for wheel in /usr/share/python-wheels/pip-*.whl; do
    exec python3 "$wheel/pip" "$@"
done
"""


def node_image(progress: Progress) -> Path:
    """The docker archive of the driver's image, named `NODE_IMAGE`.

    Raises:
        ImageError: a program failed, or the store or the wheels could not be made.
    """
    base, wheels = base_image(progress), locked_wheels(progress)
    layers = digest(str(base), str(wheels), CONTAINERFILE)

    def make_dependencies(folder: Path) -> None:
        store = Store(folder / "store")
        _build(store, wheels=wheels, base=base, tag=DEPENDENCIES_IMAGE, flags=["--target=dependencies"])

    def make(folder: Path) -> None:
        known = artefact("driver-layers", layers, make=make_dependencies, progress=progress)
        store = Store(known / "store")
        store.buildah("rm", "--all")  # what an interrupted build has left
        _build(store, wheels=wheels, base=base, tag=NODE_IMAGE)
        store.export(NODE_IMAGE, folder / "kubevirt-csi.tar")
        store.buildah("rmi", NODE_IMAGE)

    key = digest(layers, *SOURCE)
    return artefact("node-image", key, make=make, progress=progress) / "kubevirt-csi.tar"


def base_image(progress: Progress) -> Path:
    """The docker archive that stands for the public Python image."""
    root = driver_root(progress)

    def make(folder: Path) -> None:
        with temporary_store(folder) as store:
            pip = store.folder / "pip"
            pip.write_text(PIP)
            pip.chmod(0o755)
            store.from_tree(root, tag=BASE_IMAGE, configuration={"cmd": "/bin/sh"}, added={"/usr/local/bin/pip": pip})
            store.export(BASE_IMAGE, folder / "base.tar")

    return artefact("driver-base", digest(str(root), PIP), make=make, progress=progress) / "base.tar"


def locked_wheels(progress: Progress) -> Path:
    """The folder of the run-time requirements as wheels for the image's Python, checked against the lock's hashes."""

    def make(folder: Path) -> None:
        run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"),
                *("--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"),
                *(f"--abi={abi}" for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")),
                *(f"--platform={platform}" for platform in PLATFORMS),
                *(f"--requirement={LOCK}", f"--dest={folder}"),
            ],
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
        )

    return artefact("wheels", digest(LOCK, PYTHON, *PLATFORMS), make=make, progress=progress)


def _build(store: Store, *, wheels: Path, base: Path, tag: str, flags: list[str] | None = None) -> None:
    """Builds in a fresh context: the lock file, its wheels, and the driver as it is in the tree as a wheel."""
    with store.scratch() as context:
        shutil.copytree(wheels, context / "wheels")
        shutil.copy(LOCK, context / "requirements.txt")
        run(
            [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={context}/driver"],
            timeout=120,
            directory=REPOSITORY,
        )
        store.buildah(
            "build",
            *("--layers", "--pull=never", "--format=docker", *(flags or [])),
            f"--build-arg=BASE=docker-archive:{base}",
            f"--file={CONTAINERFILE}",
            f"--tag={tag}",
            context,
        )
