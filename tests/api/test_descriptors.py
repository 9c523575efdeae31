"""Our protos say on the wire what the published Go modules say, apart from a list of additions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from e2e.tools.build import TOOLS, find_go

PROTOS = Path(__file__).parents[2] / "protos"
TIMEOUT_SECONDS = 300

# VolumeCondition, which CSI 1.13.0 has removed and kubelets built on older versions still read. Dotted names of what
# our file has and the published one has not; the reserved numbers that they use are the published file's only surplus.
ADDED = {
    "VolumeCondition",
    "ListVolumesResponse.VolumeStatus.volume_condition",
    "ControllerGetVolumeResponse.VolumeStatus.volume_condition",
    "NodeGetVolumeStatsResponse.volume_condition",
    "ControllerServiceCapability.RPC.Type.VOLUME_CONDITION",
    "NodeServiceCapability.RPC.Type.VOLUME_CONDITION",
}
FREED = {
    "ListVolumesResponse.VolumeStatus.reserved 2",
    "ControllerGetVolumeResponse.VolumeStatus.reserved 2",
    "NodeGetVolumeStatsResponse.reserved 2",
    "ControllerServiceCapability.RPC.Type.reserved 11",
    "NodeServiceCapability.RPC.Type.reserved 4",
}


def module_folder(group: str, module: str) -> Path:
    """The published module, at the version that the group's real programs are built with; fetched when missing."""
    result = subprocess.run(
        [find_go(), "mod", "download", "-json", module],
        cwd=TOOLS / group,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"},
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    return Path(json.loads(result.stdout)["Dir"])


def compiled(source: Path, output: Path) -> FileDescriptorProto:
    """The file's descriptor, without comments and positions."""
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{source.parent}", f"-o{output}", str(source)],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
    )
    [descriptor] = FileDescriptorSet.FromString(output.read_bytes()).file
    return descriptor


def statements(descriptor: FileDescriptorProto) -> dict[str, str]:
    """Everything a descriptor states: the dotted name of each part, and its definition as text."""
    found: dict[str, str] = {}
    for message in descriptor.message_type:
        _of_message(message, "", found)
    for enum in descriptor.enum_type:
        _of_enum(enum, "", found)
    for service in descriptor.service:
        found[f"{service.name}.options"] = str(service.options)
        for method in service.method:
            types = f"{method.input_type} -> {method.output_type}"
            streams = f"{method.client_streaming} {method.server_streaming}"
            found[f"{service.name}.{method.name}"] = f"{types} {streams} {method.options}"
    for extension in descriptor.extension:
        found[f"extension {extension.extendee} {extension.name}"] = str(extension)
    found["file"] = f"{descriptor.package} {descriptor.syntax} {sorted(descriptor.dependency)}"
    return found


def _of_message(message: DescriptorProto, prefix: str, found: dict[str, str]) -> None:
    name = f"{prefix}{message.name}"
    found[name] = f"{message.options} {[oneof.name for oneof in message.oneof_decl]}"
    for field in message.field:
        found[f"{name}.{field.name}"] = str(field)
    for gap in message.reserved_range:
        found.update({f"{name}.reserved {number}": "" for number in range(gap.start, gap.end)})
    for nested in message.nested_type:
        _of_message(nested, f"{name}.", found)
    for enum in message.enum_type:
        _of_enum(enum, f"{name}.", found)


def _of_enum(enum: EnumDescriptorProto, prefix: str, found: dict[str, str]) -> None:
    name = f"{prefix}{enum.name}"
    found[name] = str(enum.options)
    for value in enum.value:
        found[f"{name}.{value.name}"] = f"{value.number} {value.options}"
    for gap in enum.reserved_range:
        found.update({f"{name}.reserved {number}": "" for number in range(gap.start, gap.end + 1)})


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return statements(compiled(PROTOS / "csi.proto", tmp_path_factory.mktemp("ours") / "csi"))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    source = module_folder("sidecars", "github.com/container-storage-interface/spec") / "csi.proto"
    return statements(compiled(source, tmp_path_factory.mktemp("published") / "csi"))


def test_what_the_published_csi_states_is_stated_by_ours(ours: dict[str, str], published: dict[str, str]) -> None:
    assert {name: text for name, text in published.items() if ours.get(name) != text} == dict.fromkeys(FREED, "")


def test_ours_states_nothing_else_but_the_listed_additions(ours: dict[str, str], published: dict[str, str]) -> None:
    beyond = {name for name in ours if name not in published}
    assert {name for name in beyond if not name.startswith("VolumeCondition.")} == ADDED


def test_the_additions_are_those_of_the_version_that_older_kubelets_are_built_with(
    ours: dict[str, str], tmp_path: Path
) -> None:
    source = module_folder("older-csi", "github.com/container-storage-interface/spec") / "csi.proto"
    older = statements(compiled(source, tmp_path / "csi"))
    names = ADDED | {"VolumeCondition.abnormal", "VolumeCondition.message"}
    assert {name: ours[name] for name in names} == {name: older[name] for name in names}


def test_the_registration_states_what_kubelets_states(tmp_path: Path) -> None:
    source = module_folder("kubernetes", "k8s.io/kubelet") / "pkg/apis/pluginregistration/v1/api.proto"
    theirs = statements(compiled(source, tmp_path / "theirs"))
    assert statements(compiled(PROTOS / "pluginregistration.proto", tmp_path / "ours")) == theirs
