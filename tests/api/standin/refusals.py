"""The table of calls that a confused or hostile caller makes, each with the code and the text that it gets.

One row a case. Nothing here is sent; ``Ground`` names what the rows are about. Sizes, characters and codes are typed
from the CSI specification (size limits, CreateVolumeRequest.name, and the error table of each call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import betterproto2
from grpclib.const import Status

from kubevirt_csi._csi.csi import v1 as csi

Mode = csi.VolumeCapabilityAccessModeMode
MIB = 2**20
SECRET = "hunter2"  # noqa: S105 - the point is that it is never told


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What exists: VMs by their node ids, in a namespace; volumes are called by what they are."""

    namespace: str
    worker: str
    """Runs, and has nothing plugged."""
    keeper: str
    """Runs, and has the volumes ``held``, ``stranger-plugged``, and ``renamed`` under another name."""
    halted: str
    """Does not run, and has ``permanent`` for a permanent disk."""
    unselected: str
    """Runs, but lacks the label by which the driver selects VMs."""


Build = Callable[[Ground], betterproto2.Message | bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """One call: its name, what is sent, and what comes back."""

    title: str
    method: str
    build: Build
    code: Status
    text: str = ""
    """A pattern of the error's text."""
    refused: tuple[str, ...] = ()
    """What the driver tries to write and kube-apiserver refuses, which is how it learns that a name is taken."""

    def content(self, ground: Ground) -> bytes:
        return bytes(self.build(ground))


def capability(mode: Mode | int = Mode.SINGLE_NODE_WRITER, *, block: bool = False, **mount: Any) -> Any:
    access_mode = csi.VolumeCapabilityAccessMode(mode=mode)  # type: ignore[arg-type]
    if block:
        return csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume(), access_mode=access_mode)
    return csi.VolumeCapability(
        mount=csi.VolumeCapabilityMountVolume(**{"fs_type": "ext4"} | mount), access_mode=access_mode
    )


def create(name: str = "pvc-new", **fields: Any) -> csi.CreateVolumeRequest:
    values: dict[str, Any] = {
        "capacity_range": csi.CapacityRange(required_bytes=16 * MIB),
        "volume_capabilities": [capability()],
        "parameters": {"infraStorageClassName": "local-block"},
        "secrets": {"key": SECRET},
    }
    return csi.CreateVolumeRequest(name=name, **values | fields)


def size(required: int = 0, limit: int = 0) -> csi.CreateVolumeRequest:
    return create(capacity_range=csi.CapacityRange(required_bytes=required, limit_bytes=limit))


def publish(volume_id: str, node_id: str, **fields: Any) -> csi.ControllerPublishVolumeRequest:
    values = {"volume_capability": capability(), "secrets": {"key": SECRET}}
    return csi.ControllerPublishVolumeRequest(volume_id=volume_id, node_id=node_id, **values | fields)


def unpublish(volume_id: str, node_id: str = "") -> csi.ControllerUnpublishVolumeRequest:
    return csi.ControllerUnpublishVolumeRequest(volume_id=volume_id, node_id=node_id)


def validate(volume_id: str, *capabilities: Any, **fields: Any) -> csi.ValidateVolumeCapabilitiesRequest:
    return csi.ValidateVolumeCapabilitiesRequest(volume_id=volume_id, volume_capabilities=list(capabilities), **fields)


CREATE, DELETE, VALIDATE = "CreateVolume", "DeleteVolume", "ValidateVolumeCapabilities"
PUBLISH, UNPUBLISH = "ControllerPublishVolume", "ControllerUnpublishVolume"
INVALID, MISSING, EXISTS = Status.INVALID_ARGUMENT, Status.NOT_FOUND, Status.ALREADY_EXISTS
RANGE, STATE, OK = Status.OUT_OF_RANGE, Status.FAILED_PRECONDITION, Status.OK
BROKEN_UTF8 = b"\x0a\x02\xff\xfe"  # field 1, two bytes long
SURROGATE = b"\x0a\x03\xed\xa0\x80"
HUGE = {f"key-{number}": "x" * 100 for number in range(40)}


def _invalid(method: str, title: str, build: Build, text: str) -> Case:
    return Case(title, method, build, INVALID, text)


def _names() -> Iterator[Case]:
    yield _invalid(CREATE, "no name", lambda _: create(""), "name is empty")
    yield _invalid(CREATE, "129 bytes of name", lambda _: create("n" * 129), "name is longer than 128 bytes")
    yield _invalid(CREATE, "65 characters of two bytes", lambda _: create("ü" * 65), "name is longer than 128 bytes")
    yield _invalid(CREATE, "a mebibyte of name", lambda _: create("n" * MIB), "name is longer than 128 bytes")
    for character in "\x00\x08\x0b\x0c\x0e\x1f\x7f\x85\x9f":
        title = f"U+{ord(character):04X} in the name"
        yield _invalid(CREATE, title, lambda _, c=character: create(f"pvc{c}"), "control characters")  # type: ignore[misc]
    for title, content in (("a name that is no UTF-8", BROKEN_UTF8), ("a surrogate for a name", SURROGATE)):
        yield _invalid(CREATE, title, lambda _, c=content: bytes(create("")) + c, "cannot be decoded")  # type: ignore[misc]
    for title, content in (
        ("a message that breaks off", b"\x12\x05\x08"),
        ("a number without end", b"\xff" * 11),
        ("a field of another type", b"\x0d\x01\x02\x03\x04"),
    ):
        yield _invalid(CREATE, title, lambda _, c=content: c, "cannot be decoded")  # type: ignore[misc]
    yield _invalid(CREATE, "an empty message", lambda _: b"", "name is empty")
    for name in ("stranger", "claim-of-somebody"):
        taken: Build = lambda _, n=name: create(n)  # type: ignore[misc] # noqa: E731 - one a row
        yield Case(f"the name of {name}", CREATE, taken, EXISTS, "not this tenant's", ("create datavolumes",))


def _capabilities() -> Iterator[Case]:
    yield _invalid(CREATE, "no capabilities", lambda _: create(volume_capabilities=[]), "is empty")
    neither = csi.VolumeCapability(access_mode=csi.VolumeCapabilityAccessMode(mode=Mode.SINGLE_NODE_WRITER))
    no_mode = csi.VolumeCapability(block=csi.VolumeCapabilityBlockVolume())
    many = "written by several nodes"
    bad: tuple[tuple[str, Any, str], ...] = (
        ("neither mount nor block", neither, "neither mount nor block"),
        ("no access mode", no_mode, "no access mode"),
        ("access mode UNKNOWN", capability(Mode.UNKNOWN), "no access mode"),
        ("access mode 99", capability(99), "access mode 99 is not known"),
        ("access mode -1", capability(-1), "access mode -1 is not known"),
        ("RWX with a file system", capability(Mode.MULTI_NODE_MULTI_WRITER), many),
        ("ROX", capability(Mode.MULTI_NODE_READER_ONLY, block=True), "MULTI_NODE_READER_ONLY is not supported"),
        ("one of many writes", capability(Mode.MULTI_NODE_SINGLE_WRITER, block=True), "is not supported"),
        ("an unknown file system", capability(fs_type="ntfs"), "'ntfs' is not supported; use one of ext4, xfs"),
        ("a file system with options", capability(fs_type="ext4 -F /dev/sda"), "is not supported"),
        ("a control character in the file system", capability(fs_type="ext4\x00"), "is not supported"),
        ("a mebibyte of file system", capability(fs_type="x" * MIB), "fs_type is longer than 128 bytes"),
        ("more than 4 KiB of mount flags", capability(mount_flags=["noatime"] * 600), "more than 4096 bytes"),
        ("a mount flag that binds", capability(mount_flags=["noatime,bind"]), "'bind' is not allowed"),
        ("a mount flag with a line feed", capability(mount_flags=["noatime\nsuid"]), "control characters"),
    )
    for title, message, text in bad:
        yield _invalid(CREATE, title, lambda _, m=message: create(volume_capabilities=[m]), text)  # type: ignore[misc]
        yield _invalid(PUBLISH, title, lambda g, m=message: publish("own", g.worker, volume_capability=m), text)  # type: ignore[misc]
    yield _invalid(PUBLISH, "no capability", lambda g: publish("own", g.worker, volume_capability=None), "is missing")
    yield _invalid(
        CREATE,
        "a good and a bad capability",
        lambda _: create(volume_capabilities=[capability(), capability(Mode.MULTI_NODE_MULTI_WRITER)]),
        many,
    )
    yield _invalid(
        PUBLISH,
        "RWX for a volume that was made for one node",
        lambda g: publish("own", g.worker, volume_capability=capability(Mode.MULTI_NODE_MULTI_WRITER, block=True)),
        "made for one node at a time",
    )
    yield _invalid(PUBLISH, "readonly", lambda g: publish("own", g.worker, readonly=True), "readonly is not supported")


def _sizes() -> Iterator[Case]:
    yield _invalid(CREATE, "a negative size", lambda _: size(-1), "must not be negative")
    yield _invalid(CREATE, "a negative limit", lambda _: size(16 * MIB, -1), "must not be negative")
    yield _invalid(CREATE, "the most negative size", lambda _: size(-(2**63)), "must not be negative")
    whole = "whole MiB"
    yield Case("a limit below required", CREATE, lambda _: size(32 * MIB, 16 * MIB), RANGE, whole)
    yield Case("a limit of one byte", CREATE, lambda _: size(0, 1), RANGE, whole)
    yield Case("no whole MiB in the range", CREATE, lambda _: size(MIB + 1, MIB + 2), RANGE, whole)
    yield Case("the largest size", CREATE, lambda _: size(2**63 - 1), RANGE, whole)
    for title, range_ in (
        ("larger", csi.CapacityRange(required_bytes=32 * MIB)),
        ("smaller", csi.CapacityRange(limit_bytes=8 * MIB)),
    ):
        build: Build = lambda _, r=range_: create("own", capacity_range=r)  # type: ignore[misc] # noqa: E731 - one a row
        yield Case(f"a volume that exists, {title}", CREATE, build, EXISTS, "own exists with another capacity")


def _parameters() -> Iterator[Case]:
    class_name = "infraStorageClassName: .* cannot be the name of a StorageClass"
    bad: tuple[tuple[str, dict[str, str], str], ...] = (
        ("an unknown parameter", {"Bus": "scsi"}, "unknown StorageClass parameter Bus; this driver knows"),
        ("an empty key", {"": "x"}, "unknown StorageClass parameter"),
        ("a control character in a key", {"bus\n": "scsi"}, r"unknown StorageClass parameter 'bus\\n'"),
        ("a long key", {"k" * 4000: ""}, "unknown StorageClass parameter k{128}…"),
        ("an unknown bus", {"bus": "sata"}, "sata is not one of scsi, virtio"),
        ("a control character in the bus", {"bus": "scsi\x00"}, "is not one of scsi, virtio"),
        ("a path for an infra class", {"infraStorageClassName": "../secrets"}, class_name),
        ("capitals in the infra class", {"infraStorageClassName": "Fast"}, class_name),
        ("a line feed in the infra class", {"infraStorageClassName": "fast\n"}, class_name),
        ("a long infra class", {"infraStorageClassName": "f" * 254}, class_name),
        ("more than 4 KiB of parameters", HUGE, "parameters has more than 4096 bytes"),
    )
    for title, parameters, text in bad:
        yield _invalid(CREATE, title, lambda _, p=parameters: create(parameters=p), text)  # type: ignore[misc]
    secrets = "secrets has more than 4096 bytes"
    yield _invalid(CREATE, "more than 4 KiB of secrets", lambda _: create(secrets=HUGE), secrets)
    yield _invalid(PUBLISH, "more than 4 KiB of secrets", lambda g: publish("own", g.worker, secrets=HUGE), secrets)
    context = "volume_context has more than 4096 bytes"
    yield _invalid(
        PUBLISH, "more than 4 KiB of context", lambda g: publish("own", g.worker, volume_context=HUGE), context
    )
    mutable = "mutable_parameters are not supported"
    yield _invalid(CREATE, "mutable parameters", lambda _: create(mutable_parameters={"iops": "1"}), mutable)
    source = csi.VolumeContentSource(volume=csi.VolumeContentSourceVolumeSource(volume_id="own"))
    yield _invalid(CREATE, "a clone", lambda _: create(volume_content_source=source), "clones are not supported")
    topology = csi.TopologyRequirement(requisite=[csi.Topology(segments={"zone": "a"})])
    yield _invalid(CREATE, "a topology", lambda _: create(accessibility_requirements=topology), "topology")
    other = {"infraStorageClassName": "local-block", "bus": "virtio"}
    text = "own exists with another parameters"
    yield Case("a volume that exists, on another bus", CREATE, lambda _: create("own", parameters=other), EXISTS, text)
    block = [capability(Mode.MULTI_NODE_MULTI_WRITER, block=True)]
    text = "own exists with another access"
    yield Case(
        "a volume that exists, for many", CREATE, lambda _: create("own", volume_capabilities=block), EXISTS, text
    )


def _nodes() -> Iterator[Case]:
    malformed = (
        "worker",
        "/worker",
        "a/",
        "a/b/c",
        "../worker",
        "A/worker",
        "a/Worker",
        "a/b\n",
        "a /b",
        "a/\x00",
        "ä/b",
    )
    for node_id in (*malformed, "a/" + "b" * 255, "a/" + "b." * MIB):
        title, text = f"node id {node_id[:12]!r} of {len(node_id)}", "is not of the form namespace/vm"
        yield Case(title, PUBLISH, lambda _, n=node_id: publish("own", n), MISSING, text)  # type: ignore[misc]
        yield _invalid(UNPUBLISH, title, lambda _, n=node_id: unpublish("own", n), text)  # type: ignore[misc]
    yield _invalid(PUBLISH, "no node id", lambda _: publish("own", ""), "node_id is empty")
    foreign = "serves VMs of infra namespace .* only"
    yield Case("a foreign namespace", PUBLISH, lambda _: publish("own", "kube-system/worker"), MISSING, foreign)
    yield Case("a foreign namespace", UNPUBLISH, lambda _: unpublish("held", "kube-system/worker"), OK)
    absent = "no VM absent of this tenant exists"
    yield Case("an absent VM", PUBLISH, lambda g: publish("own", f"{g.namespace}/absent"), MISSING, absent)
    yield Case("an absent VM", UNPUBLISH, lambda g: unpublish("own", f"{g.namespace}/absent"), OK)
    yield Case("a VM that does not run", PUBLISH, lambda g: publish("own", g.halted), STATE, "does not run")
    yield Case("a VM that does not run", UNPUBLISH, lambda g: unpublish("own", g.halted), OK)
    selected = "no VM .* of this tenant exists"
    yield Case("a VM that is not selected", PUBLISH, lambda g: publish("own", g.unselected), MISSING, selected)
    yield Case("a VM that does not have it", UNPUBLISH, lambda g: unpublish("own", g.worker), OK)
    held = "one node at a time, and .* has it"
    yield Case("a second node", PUBLISH, lambda g: publish("held", g.worker), STATE, held)


def _volumes() -> Iterator[Case]:
    long = "volume_id is longer than 128 bytes"
    for volume_id, text in (("", "volume_id is empty"), ("v" * 129, long), ("v" * MIB, long)):
        title = f"a volume id of {len(volume_id)}"
        yield _invalid(DELETE, title, lambda _, v=volume_id: csi.DeleteVolumeRequest(volume_id=v), text)  # type: ignore[misc]
        yield _invalid(PUBLISH, title, lambda g, v=volume_id: publish(v, g.worker), text)  # type: ignore[misc]
        yield _invalid(UNPUBLISH, title, lambda g, v=volume_id: unpublish(v, g.worker), text)  # type: ignore[misc]
        yield _invalid(VALIDATE, title, lambda _, v=volume_id: validate(v, capability()), text)  # type: ignore[misc]
    for volume_id in ("absent", "Capitals", "a/../own", "own\x00", "own\n", "ü", "stranger", "claim-of-somebody"):
        title, text = f"volume id {volume_id!r}", "does not exist"
        yield Case(title, DELETE, lambda _, v=volume_id: csi.DeleteVolumeRequest(volume_id=v), OK)  # type: ignore[misc]
        yield Case(title, PUBLISH, lambda g, v=volume_id: publish(v, g.worker), MISSING, text)  # type: ignore[misc]
        yield Case(title, UNPUBLISH, lambda g, v=volume_id: unpublish(v, g.worker), OK)  # type: ignore[misc]
        yield Case(title, VALIDATE, lambda _, v=volume_id: validate(v, capability()), MISSING, text)  # type: ignore[misc]
    delete: Build = lambda _: csi.DeleteVolumeRequest(volume_id="held")  # noqa: E731 - one of the rows
    yield Case("a volume in use", DELETE, delete, STATE, "cannot be deleted while .* has it")
    stranger = "does not exist for this tenant"
    yield Case("a stranger's disk", UNPUBLISH, lambda g: unpublish("stranger-plugged", g.keeper), MISSING, stranger)
    yield Case("a stranger's disk, anywhere", UNPUBLISH, lambda _: unpublish("stranger-plugged"), MISSING, stranger)
    renamed = "under the name other-name"
    yield Case("a disk under another name", UNPUBLISH, lambda g: unpublish("renamed", g.keeper), STATE, renamed)
    yield Case("a disk under another name", PUBLISH, lambda g: publish("renamed", g.keeper), STATE, renamed)
    yield Case("a permanent disk", UNPUBLISH, lambda g: unpublish("permanent", g.halted), STATE, "take it out by hand")
    yield Case("a permanent disk", PUBLISH, lambda g: publish("permanent", g.halted), STATE, "did not plug")


def _rest() -> Iterator[Case]:
    yield _invalid(VALIDATE, "no capabilities", lambda _: validate("own"), "nothing to validate")
    twice: Build = lambda _: validate("own", *[capability()] * 1000)  # noqa: E731 - one of the rows
    yield Case("the same capability a thousand times", VALIDATE, twice, OK)
    yield _invalid(VALIDATE, "more than 4 KiB", lambda _: validate("own", capability(), parameters=HUGE), "4096 bytes")
    for method in ("CreateSnapshot", "ControllerModifyVolume"):
        yield Case("what is not advertised", method, lambda _: b"", Status.UNIMPLEMENTED, "not implemented")


CASES = (*_names(), *_capabilities(), *_sizes(), *_parameters(), *_nodes(), *_volumes(), *_rest())
