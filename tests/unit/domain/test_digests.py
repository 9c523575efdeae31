"""The digest of a CreateVolume: tells what differs, and nothing about what an older release did not write."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.classes import ClassParameters
from kubevirt_csi.domain.digests import differences, digest, families
from kubevirt_csi.domain.volumes import Bus

WRITER = Capability(access=Mount(), mode=AccessMode.SINGLE_NODE_WRITER)
SHARED = Capability(access=Block(), mode=AccessMode.MULTI_NODE_MULTI_WRITER)


def test_the_text_is_stable_because_it_is_stored() -> None:
    assert digest(ClassParameters(), [WRITER]) == "access=SINGLE_NODE_WRITERS;parameters=cf80df32e9aff9a6;source=blank"


def test_equal_requests_differ_in_nothing() -> None:
    assert differences(digest(ClassParameters(), [WRITER]), digest(ClassParameters(), [WRITER])) == []


def test_what_differs_is_named() -> None:
    old = digest(ClassParameters(), [WRITER])
    assert differences(old, digest(ClassParameters(bus=Bus.VIRTIO), [WRITER])) == ["parameters"]
    assert differences(old, digest(ClassParameters(), [WRITER, SHARED])) == ["access"]
    assert differences(old, old.replace("blank", "snapshot:x")) == ["source"]


@pytest.mark.parametrize("stored", [None, "", "deadbeef", "colour=red"])
def test_what_was_not_written_is_unknown_and_no_difference(stored: str | None) -> None:
    assert differences(stored, digest(ClassParameters(), [WRITER])) == []
    assert families(stored) == frozenset()


def test_the_families_are_read_back() -> None:
    assert families(digest(ClassParameters(), [WRITER, SHARED])) == {"SINGLE_NODE_WRITERS", "MULTI_NODE_MULTI_WRITER"}
