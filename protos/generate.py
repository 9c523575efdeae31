# ruff: noqa: INP001 - a program beside its inputs, not a package
"""Regenerates ``kubevirt_csi/_csi`` from the ``.proto`` files beside this one: ``python protos/generate.py``.

The output is committed, so a checkout runs without a compiler; a test generates it again and compares. Which compiler
wrote it is pinned in the requirements, because generated code and the betterproto2 runtime belong together.

The custom options of csi.proto extend the messages that describe protos. Nobody reads them at run time, and classes for
all those messages would be a tenth of the node's start, so the plug-in is not shown them. For the same reason what it
writes is halved (see ``halving``), and which methods there are is written into a table of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from halving import halves

PROTOS = Path(__file__).resolve().parent
SOURCES = ("csi.proto", "pluginregistration.proto")
OPTIONS = "google/protobuf/descriptor.proto"
COMMITTED = PROTOS.parent / "kubevirt_csi" / "_csi"
PLUGIN = Path(sys.executable).parent / "protoc-gen-python_betterproto2"
PARAMETER = "server_generation=async,client_generation=async"
TIMEOUT_SECONDS = 120

NODE = ("IdentityBase", "NodeBase", "RegistrationBase")
"""The services of the node role: what they need is imported at its start."""
METHODS = "csi/v1/methods.py"


def generate(output: Path) -> None:
    """Writes the package for all protos into the directory, which is created when missing.

    Raises:
        subprocess.CalledProcessError: the compiler or the plug-in refused; its own words are on stderr.
        ValueError: the plug-in refused.
    """
    protos = without_options(parsed())
    request = CodeGeneratorRequest(file_to_generate=SOURCES, parameter=PARAMETER, proto_file=protos.file)
    # The plug-in formats with the ruff beside this interpreter.
    path = f"{PLUGIN.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    answer = _run([str(PLUGIN)], stdin=request.SerializeToString(), environment=os.environ | {"PATH": path})
    response = CodeGeneratorResponse.FromString(answer)
    if response.error:
        raise ValueError(f"{PLUGIN.name}: {response.error}")
    files = halves({file.name: documented(file.content) for file in response.file}, roots=NODE)
    for name, text in {**files, METHODS: methods(protos)}.items():
        target = output / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(formatted(text))


def methods(files: FileDescriptorSet) -> str:
    """A module with the names of the methods of each service of CSI."""
    table = {
        f"{file.package}.{service.name}": tuple(method.name for method in service.method)
        for file in files.file
        for service in file.service
        if file.package == "csi.v1"
    }
    return f'"""The methods of every CSI service. Generated, DO NOT EDIT!"""\n\nMETHODS = {table!r}\n'


def documented(source: str) -> str:
    """Each message with a doc string: where there is none, ``dataclass`` makes one at each start, for a third of it."""
    return re.sub(
        r'^(class (\w+)\(betterproto2\.Message\):\n)(?!    """)', r'\1    """\2"""\n\n', source, flags=re.MULTILINE
    )


def formatted(source: str) -> str:
    """As ruff would have it."""
    ruff = str(PLUGIN.parent / "ruff")
    answer = _run([ruff, "format", "--line-length=120", "--stdin-filename=generated.py", "-"], stdin=source.encode())
    return answer.decode()


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
