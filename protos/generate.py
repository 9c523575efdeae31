# ruff: noqa: INP001 - a program beside its inputs, not a package
"""Regenerates ``kubevirt_csi/_csi`` from the ``.proto`` files beside this one: ``python protos/generate.py``.

The output is committed, so a checkout runs without a compiler; a test generates it again and compares. Which compiler
wrote it is pinned in the requirements, because generated code and the betterproto2 runtime belong together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
SOURCES = ("csi.proto", "pluginregistration.proto")
COMMITTED = PROTOS.parent / "kubevirt_csi" / "_csi"
TIMEOUT_SECONDS = 120


def generate(output: Path) -> None:
    """Writes the package for all protos into the directory, which is created when missing.

    Raises:
        subprocess.CalledProcessError: the compiler refused; its own words are on stderr.
    """
    output.mkdir(parents=True, exist_ok=True)
    # The plug-in and the ruff that it formats with are programs beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTOS}",
            f"--python_betterproto2_out={output}",
            "--python_betterproto2_opt=server_generation=async,client_generation=async",
            *SOURCES,
        ],
        check=True,
        cwd=PROTOS,
        env=os.environ | {"PATH": path},
        timeout=TIMEOUT_SECONDS,
    )


def main() -> None:
    """Writes the committed package, or another that is named on the command line."""
    parser = argparse.ArgumentParser(prog="protos/generate.py", description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", type=Path, default=COMMITTED, help="default: %(default)s")
    generate(parser.parse_args().output)


if __name__ == "__main__":
    main()
