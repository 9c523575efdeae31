"""Debian trees made by mmdebstrap from the machine's own package sources and apt settings.

Two trees: the guest's root (kernel, containerd, what kubelet calls) and the base of the driver's image. What differs
from a stock installation is only what is left out: recommended packages, manuals, translations and package lists.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.lab.images.artefacts import Progress, artefact, digest
from e2e.lab.images.commands import run

SUITE = "bookworm"
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
TIMEOUT_SECONDS = 900
# Without usr-is-merged, and a tree to match, all of Perl is installed to merge /usr.
OPTIONS = ('--aptopt=APT::Install-Recommends "false"', "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr")
LEFT_OUT = ("usr/share/man", "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/i18n")

GUEST_PACKAGES = (
    "btrfs-progs",
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "crun",
    "dmsetup",
    "e2fsprogs",
    "iproute2",
    "iptables",
    "kmod",
    "linux-image-cloud-amd64",
    "mount",
    "python3",
    "qemu-guest-agent",
    "udev",
    "usr-is-merged",
    "util-linux",
    "xfsprogs",
)
# What a public Python image has, as far as the driver or its Containerfile need it, and what that one would add.
DRIVER_PACKAGES = (
    "btrfs-progs",
    "e2fsprogs",
    "mount",
    "python3",
    "python3-pip-whl",
    "usr-is-merged",
    "util-linux",
    "xfsprogs",
)


def guest_root(progress: Progress) -> Path:
    """The folder of the guest's root file system, as packages left it."""
    return _tree("guest-root", packages=GUEST_PACKAGES, variant="minbase", progress=progress)


def driver_root(progress: Progress) -> Path:
    """The folder that becomes the base of the driver's image."""
    return _tree("driver-root", packages=DRIVER_PACKAGES, variant="essential", progress=progress)


def _tree(kind: str, *, packages: tuple[str, ...], variant: str, progress: Progress) -> Path:
    key = digest(SUITE, variant, *packages, *LEFT_OUT, *OPTIONS)

    def make(folder: Path) -> None:
        settings = folder / "apt.conf"
        settings.write_text(_apt_settings())
        root = folder / "root"
        run(
            [
                "mmdebstrap",
                "--mode=root",
                f"--variant={variant}",
                f"--include={','.join(packages)}",
                f"--aptopt={settings}",
                *OPTIONS,
                *(f"--dpkgopt=path-exclude=/{path}/*" for path in LEFT_OUT),
                SUITE,
                root,
                *(path for path in SOURCES if path.exists()),
            ],
            timeout=TIMEOUT_SECONDS,
            environment={"INITRD": "No"},  # the guest has one of its own
            isolated=True,
        )
        settings.unlink()
        _forget_the_machine(root)

    return artefact(kind, key, make=make, progress=progress) / "root"


def _apt_settings() -> str:
    """What the machine's apt was told about reaching its sources (proxies, validity of dates)."""
    dump = run(["apt-config", "dump"], timeout=60)
    wanted = ("Acquire::Check-", "Acquire::http", "Acquire::https", "Acquire::Retries")
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(wanted))


def _forget_the_machine(root: Path) -> None:
    """Nothing of this machine's way to its package sources goes into an image."""
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for folder in ("etc/apt/sources.list.d", "etc/apt/apt.conf.d", "var/lib/apt/lists", "var/cache/apt"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for path in LEFT_OUT:
        shutil.rmtree(root / path, ignore_errors=True)
