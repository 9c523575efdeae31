"""Container images made without a registry and without a daemon, as docker archives.

buildah works in a store of ours (vfs driver, chroot isolation), so it needs neither overlay mounts nor a network, and
leaves nothing in the machine's own container storage.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.lab.images.artefacts import Progress, artefact, digest
from e2e.lab.images.commands import run

BUSYBOX_IMAGE = "localhost/lab/busybox:1"
PAUSE_IMAGE = "localhost/lab/pause:1"
BUILD_TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Store:
    """A buildah storage below one folder, which may be moved as a whole."""

    folder: Path

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder beside the storage, deleted at the end of the block."""
        self.folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="scratch-") as folder:
            yield Path(folder)

    def buildah(self, *arguments: str | Path) -> str:
        """Runs one buildah command in this store; returns the last line that it printed."""
        with self.scratch() as temporary:
            output = run(
                [
                    *("buildah", "--storage-driver=vfs", f"--root={self.folder}/root", f"--runroot={self.folder}/run"),
                    *arguments,
                ],
                timeout=BUILD_TIMEOUT_SECONDS,
                environment={"TMPDIR": str(temporary), "BUILDAH_ISOLATION": "chroot"},
                isolated=True,
            )
        lines = output.strip().splitlines()
        return lines[-1] if lines else ""

    def from_tree(
        self, tree: Path, *, tag: str, configuration: Mapping[str, str], added: Mapping[str, Path] | None = None
    ) -> None:
        """Makes an image of one layer from a folder and single files ``added`` under their path in the image.

        ``configuration`` are flags of ``buildah config``.
        """
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, tree, "/")
        for path, file in (added or {}).items():
            self.buildah("add", "--quiet", container, file, path)
        flags = [f"--{name}={value}" for name, value in configuration.items()]
        self.buildah("config", *flags, container)
        self.buildah("commit", "--quiet", "--rm", container, tag)

    def export(self, tag: str, archive: Path) -> None:
        """Writes the image as a docker archive that carries its name."""
        self.buildah("push", "--quiet", tag, f"docker-archive:{archive}:{tag}")


@contextmanager
def temporary_store(beside: Path) -> Iterator[Store]:
    """A store in the folder ``beside``, deleted at the end of the block."""
    with tempfile.TemporaryDirectory(dir=beside, prefix="store-") as folder:
        yield Store(Path(folder))


def pod_images(guest_root: Path, progress: Progress) -> Path:
    """A folder with busybox.tar and pause.tar, made from the static busybox of the guest's tree."""
    binary = guest_root / "usr/bin/busybox"
    if not binary.exists():
        binary = guest_root / "bin/busybox"

    def make(folder: Path) -> None:
        with temporary_store(folder) as store:
            tree = store.folder / "tree"
            bin_folder = tree / "bin"
            bin_folder.mkdir(parents=True)
            for name in ("tmp", "etc", "proc", "sys", "dev"):
                (tree / name).mkdir()
            (bin_folder / "busybox").write_bytes(binary.read_bytes())
            (bin_folder / "busybox").chmod(0o755)
            for applet in run([binary, "--list"], timeout=10).split():
                if applet != "busybox":
                    (bin_folder / applet).symlink_to("busybox")
            store.from_tree(tree, tag=BUSYBOX_IMAGE, configuration={"cmd": "/bin/sh", "env": "PATH=/bin"})
            store.export(BUSYBOX_IMAGE, folder / "busybox.tar")
            # A sandbox only has to hold the pod's namespaces. PID 1 ignores signals that it does not handle, so the
            # shell traps the one that ends it.
            pause = '["/bin/sh", "-c", "trap \'exit 0\' TERM INT; sleep infinity & wait"]'
            store.from_tree(tree, tag=PAUSE_IMAGE, configuration={"entrypoint": pause, "env": "PATH=/bin"})
            store.export(PAUSE_IMAGE, folder / "pause.tar")

    key = digest(binary, Path(__file__))
    return artefact("pod-images", key, make=make, progress=progress)
