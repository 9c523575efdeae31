"""Node ids: read strictly, and only for the configured namespace."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.nodeids import NodeNamespace, parse
from kubevirt_csi.errors import InvalidArgument, NotFound


@pytest.mark.parametrize("text", ["tenant-a/worker-1", "a/b.c.d", "tenant-a/0"])
def test_namespace_and_vm_are_read_and_the_spelling_is_kept(text: str) -> None:
    node = parse(text)
    assert f"{node.namespace}/{node.vm}" == text == node.text


@pytest.mark.parametrize(
    "text",
    ["", "vm1", "a/b/c", "/b", "a/", "A/b", "a/B", "a b/c", "a/..", "a.b/c", "a/b\n", "a/" + "b" * 300],
    ids=lambda text: text[:8] or "empty",
)
def test_anything_else_is_malformed(text: str) -> None:
    with pytest.raises(InvalidArgument, match="namespace/vm"):
        parse(text)


def test_only_the_namespace_and_its_aliases_are_ours() -> None:
    ours = NodeNamespace("tenant-a", aliases=("old",))
    assert ours.vm_of(parse("tenant-a/vm1")) == "vm1"
    assert ours.vm_of(parse("old/vm1")) == "vm1"
    with pytest.raises(NotFound, match="other/vm1"):
        ours.vm_of(parse("other/vm1"))


def test_our_own_spelling_uses_the_configured_name() -> None:
    assert NodeNamespace("tenant-a", aliases=("old",)).node_id("vm1") == "tenant-a/vm1"
