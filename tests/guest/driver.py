"""The driver's node role as files for a guest: the tree's own source and the locked wheels, unpacked and compiled.

They travel on the guest's seed, so an edit of the driver costs no image. The guest's Python is the image's (Debian's
3.11), and its mkfs, mount and blkid are those of the same Debian release as the image's. What the node role must never
import is not sent at all.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import zipfile
from pathlib import Path

from e2e.lab.images.driver import REPOSITORY, locked_wheels

FOLDER = Path("/run/seed/driver")
"""Where the guest's boot unpacks it."""
SITE = FOLDER / "site"
SHIMS = FOLDER / "bin"
RELAY = FOLDER / "relay.py"
PROGRAMS_LOG = Path("/run/programs")
"""One line for each mkfs that was run, with its arguments."""

_NEVER_ON_A_NODE = ("kubernetes_asyncio", "aiohttp")
_MKFS = ("mkfs.ext4", "mkfs.xfs", "mkfs.btrfs")
_SHIM = """#!/bin/busybox sh
words=
for word; do
    case $word in /proc/self/fd/*) word=$(busybox readlink "$word") ;; esac
    words="$words $word"
done
echo "{name}$words" >> {log}
exec /usr/sbin/{name} "$@"
"""


def put_driver(seed: Path) -> None:
    """Adds the folder ``driver`` to the seed: the packages, a relay to the CSI socket, and mkfs programs that count."""
    folder = seed / "driver"
    site = folder / "site"
    for wheel in sorted(locked_wheels(print).glob("*.whl")):
        if not wheel.name.startswith(_NEVER_ON_A_NODE):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
    shutil.copytree(
        REPOSITORY / "kubevirt_csi", site / "kubevirt_csi", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    compileall.compile_dir(site, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    shutil.copy(Path(__file__).with_name("relay.py"), folder / RELAY.name)
    shims = folder / SHIMS.name
    shims.mkdir()
    for name in _MKFS:
        shim = shims / name
        shim.write_text(_SHIM.format(name=name, log=PROGRAMS_LOG))
        shim.chmod(0o755)
