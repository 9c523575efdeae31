"""Builds the pinned Go programs into a cache that is keyed by the content of their module files.

``python -m e2e.tools.build GROUP...`` prints the directory of each group's binaries. A build happens in a temporary
directory that is renamed when complete, under a lock, so an interrupted or a parallel build leaves no half of one.
The Go build cache (several GB) is shared by the groups that are built in one go (the standard library and what else
they have in common is compiled once) and then deleted; what stays is the binaries.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from e2e.cache import cache_root

TOOLS = Path(__file__).parent
GROUPS = ("kubernetes", "sidecars", "sanity")
MINIMUM_GO = (1, 26)
MINIMUM_FREE_BYTES = 20 * 1024**3
BUILD_TIMEOUT_SECONDS = 1800
ERROR_CHARACTERS = 4000

# `go build` names a binary after the last element of its path that is no version; that of etcd is .../server/v3.
BINARY_NAMES = {"server": "etcd"}
# The API server refuses to talk about versions it cannot parse, so an unstamped build is not usable.
KUBERNETES_VERSION = re.compile(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)\b", re.MULTILINE)


class BuildError(Exception):
    """The programs cannot be built; the text says what is missing or what Go said."""


def tools_of(group: str) -> list[str]:
    """The import paths on the ``tool`` lines of the group's go.mod."""
    text = (TOOLS / group / "go.mod").read_text()
    block = re.search(r"^tool \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    if block is None:
        message = f"e2e/tools/{group}/go.mod has no tool block"
        raise ValueError(message)
    return block.group(1).split()


def binary_name(tool: str) -> str:
    """What the program of this import path is called."""
    element = re.sub(r"/v\d+$", "", tool).rsplit("/", 1)[-1]
    return BINARY_NAMES.get(element, element)


def cache_key(group: str) -> str:
    """Names the result after everything that decides it: the module files and the build flags."""
    digest = hashlib.sha256()
    for path in (TOOLS / group / "go.mod", TOOLS / group / "go.sum"):
        digest.update(path.read_bytes())
    digest.update(" ".join(flags(group)).encode())
    return f"{group}-{digest.hexdigest()[:16]}"


def find_go() -> str:
    """The path of a Go that is new enough: the machine's, else the one from PyPI beside this Python.

    Raises:
        BuildError: there is none.
    """
    beside = Path(sys.executable).parent / "go"
    for candidate in (shutil.which("go"), str(beside)):
        if candidate is None or not Path(candidate).exists():
            continue
        output = subprocess.run([candidate, "version"], check=True, capture_output=True, text=True, timeout=60).stdout
        found = re.search(r"go(\d+)\.(\d+)", output)
        if found is not None and (int(found[1]), int(found[2])) >= MINIMUM_GO:
            return candidate
    wanted = ".".join(map(str, MINIMUM_GO))
    message = f"no Go {wanted} or newer on this machine: install requirements/go.txt into the virtual environment"
    raise BuildError(message)


def flags(group: str) -> list[str]:
    """The flags of ``go build``: nothing for debuggers is made, and the Kubernetes version is stamped in."""
    linker = ["-s", "-w"]
    version = KUBERNETES_VERSION.search((TOOLS / group / "go.mod").read_text())
    if version is not None:
        stamp = "k8s.io/component-base/version"
        linker += [
            f"-X {stamp}.gitVersion={version[1]}",
            f"-X {stamp}.gitMajor={version[2]}",
            f"-X {stamp}.gitMinor={version[3]}",
        ]
    return ["-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags={' '.join(linker)}"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file for the duration; other processes wait for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def compiled_packages() -> Iterator[Path]:
    """A folder for what Go compiles, deleted at the end: builds that are given it compile nothing twice."""
    root = cache_root() / "tools"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".gocache-") as folder:
        yield Path(folder)


def build(group: str, *, packages: Path | None = None) -> Path:
    """Returns the directory of the group's binaries, building them when the cache has none.

    ``packages`` is a folder of `compiled_packages`, for several builds in one go.

    Raises:
        BuildError: no usable Go, less than 20 GB free, or the build failed, with the end of what Go said.
    """
    root = cache_root() / "tools"
    root.mkdir(parents=True, exist_ok=True)
    result = root / cache_key(group)
    if result.exists():
        return result
    with locked(root / ".lock"):
        if not result.exists():
            with nullcontext(packages) if packages else compiled_packages() as compiled:
                _build_into(group, result, packages=compiled)
    return result


def _build_into(group: str, result: Path, *, packages: Path) -> None:
    free = shutil.disk_usage(result.parent).free
    if free < MINIMUM_FREE_BYTES:
        message = (
            f"{free // 1024**3} GiB free in {result.parent}, building {group} needs {MINIMUM_FREE_BYTES // 1024**3}"
        )
        raise BuildError(message)
    go = find_go()
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=f".{group}-") as temporary:
        binaries = Path(temporary) / "bin"
        binaries.mkdir()
        environment = os.environ | {
            "GOCACHE": str(packages),
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=readonly",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            # Collecting garbage is a good part of compiling, and most compilers end before they need to.
            "GOGC": "off",
            "GOMEMLIMIT": "4GiB",
        }
        tools = tools_of(group)
        started = time.monotonic()
        names = ", ".join(binary_name(tool) for tool in tools)
        print(f"building {names}: once, and it takes some minutes", file=sys.stderr, flush=True)
        # All at once: one program is linked, which takes one core, while others are compiled.
        try:
            done = subprocess.run(
                [go, "build", *flags(group), "-o", f"{binaries}/", *tools],
                cwd=TOOLS / group,
                env=environment,
                check=False,
                timeout=BUILD_TIMEOUT_SECONDS,
                capture_output=True,  # a line for each of some hundred modules, of use only when it fails
                text=True,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"building {group} took over {BUILD_TIMEOUT_SECONDS} s; is the machine busy?") from error
        if done.returncode != 0:
            raise BuildError(f"building {group} failed:\n{done.stderr[-ERROR_CHARACTERS:]}")
        print(f"built {group} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        for built, wanted in BINARY_NAMES.items():
            if (binaries / built).exists():
                (binaries / built).rename(binaries / wanted)
        binaries.rename(result)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.tools.build", description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"all when left out: {', '.join(GROUPS)}")
    groups = parser.parse_args(arguments).groups or GROUPS
    for unknown in set(groups) - set(GROUPS):
        parser.error(f"no group {unknown!r}, there are: {', '.join(GROUPS)}")
    try:
        with compiled_packages() as packages:
            for group in groups:
                print(build(group, packages=packages))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
