# ruff: noqa: INP001 - a program beside its inputs, not a package
"""Regenerates ``kubevirt_csi/_csi`` from the ``.proto`` files beside this one: ``python protos/generate.py``.

The output is committed, so a checkout runs without a compiler; a test generates it again and compares. Which compiler
wrote it is pinned in the requirements, because generated code and the betterproto2 runtime belong together.

The custom options of csi.proto extend the messages that describe protos. Nobody reads them at run time, and classes for
all those messages would be a tenth of the node's start, so the plug-in is not shown them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet

PROTOS = Path(__file__).resolve().parent
SOURCES = ("csi.proto", "pluginregistration.proto")
OPTIONS = "google/protobuf/descriptor.proto"
COMMITTED = PROTOS.parent / "kubevirt_csi" / "_csi"
PLUGIN = Path(sys.executable).parent / "protoc-gen-python_betterproto2"
PARAMETER = "server_generation=async,client_generation=async"
TIMEOUT_SECONDS = 120


def generate(output: Path) -> None:
    """Writes the package for all protos into the directory, which is created when missing.

    Raises:
        subprocess.CalledProcessError: the compiler or the plug-in refused; its own words are on stderr.
        ValueError: the plug-in refused.
    """
    request = CodeGeneratorRequest(
        file_to_generate=SOURCES, parameter=PARAMETER, proto_file=without_options(parsed()).file
    )
    # The plug-in formats with the ruff beside this interpreter.
    path = f"{PLUGIN.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    answer = _run([str(PLUGIN)], stdin=request.SerializeToString(), environment=os.environ | {"PATH": path})
    response = CodeGeneratorResponse.FromString(answer)
    if response.error:
        raise ValueError(f"{PLUGIN.name}: {response.error}")
    for file in response.file:
        target = output / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.content)


def parsed() -> FileDescriptorSet:
    """All protos and what they import, with their comments."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}", "--include_imports"]
    answer = _run([*command, "--include_source_info", "--descriptor_set_out=/dev/stdout", *SOURCES])
    return FileDescriptorSet.FromString(answer)


def without_options(files: FileDescriptorSet) -> FileDescriptorSet:
    """The same without custom options and the messages that they extend."""
    kept = FileDescriptorSet(file=[file for file in files.file if file.name != OPTIONS])
    for file in kept.file:
        if OPTIONS in file.dependency:
            file.dependency.remove(OPTIONS)
            del file.extension[:]
    return kept


def _run(command: list[str], *, stdin: bytes = b"", environment: dict[str, str] | None = None) -> bytes:
    done = subprocess.run(
        command, input=stdin, stdout=subprocess.PIPE, check=True, cwd=PROTOS, env=environment, timeout=TIMEOUT_SECONDS
    )
    return done.stdout


def main() -> None:
    """Writes the committed package, or another that is named on the command line."""
    parser = argparse.ArgumentParser(prog="protos/generate.py", description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", type=Path, default=COMMITTED, help="default: %(default)s")
    generate(parser.parse_args().output)


if __name__ == "__main__":
    main()
