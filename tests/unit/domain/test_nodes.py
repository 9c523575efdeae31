"""Which VM a Node is."""

from __future__ import annotations

from typing import Any

import pytest

from kubevirt_csi.domain.nodes import NodeIdentity, Unknown, node_id_of

VM = "csi.kubevirt.io/infra-vm-name"
NAMESPACE = "csi.kubevirt.io/infra-vm-namespace"
CLUSTER = "cluster.x-k8s.io/cluster-namespace"


def node(provider_id: str | None = None, **annotations: str) -> dict[str, Any]:
    """A Node named prod-a; annotation names are given by ``**{name: value}``."""
    return {"metadata": {"name": "prod-a", "annotations": annotations}, "spec": {"providerID": provider_id}}


@pytest.mark.parametrize(
    ("found", "infra_namespace", "expected"),
    [
        pytest.param(node(**{VM: "vm1", NAMESPACE: "ns"}), "", "ns/vm1", id="annotations"),
        pytest.param(node("kubevirt://vm9", **{VM: "vm1", NAMESPACE: "ns"}), "x", "ns/vm1", id="annotations win"),
        pytest.param(node("kubevirt://vm1"), "ns", "ns/vm1", id="providerID, configured namespace"),
        pytest.param(node("kubevirt://vm1", **{CLUSTER: "capi"}), "ns", "capi/vm1", id="Cluster API's namespace"),
        pytest.param(node("kubevirt://ns/vm1"), "other", "ns/vm1", id="providerID with namespace"),
    ],
)
def test_the_id_comes_from_annotations_or_the_provider_id(
    found: dict[str, Any], infra_namespace: str, expected: str
) -> None:
    assert node_id_of(found, infra_namespace=infra_namespace) == expected


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(node("rke2://x"), "rke2://x", id="another provider"),
        pytest.param(node(), "not set", id="nothing yet"),
        pytest.param({"metadata": {"name": "prod-a"}}, "not set", id="bare object"),
        pytest.param(node("kubevirt://vm1"), "namespace", id="no namespace"),
        pytest.param(node("kubevirt://ns/vm1", **{VM: "vm1"}), NAMESPACE, id="half of the annotations"),
        pytest.param(node("kubevirt://a/b/c"), "no namespace and name", id="too many parts"),
        pytest.param(node("kubevirt://"), "no namespace and name", id="empty name"),
        pytest.param(node("kubevirt:///vm1"), "no namespace and name", id="empty namespace"),
        pytest.param(node(**{VM: "Vm 1", NAMESPACE: "ns"}), "no namespace and name", id="malformed"),
    ],
)
def test_no_id_is_made_up(found: dict[str, Any], words: str) -> None:
    namespace = "" if words == "namespace" else "ns"
    answer = node_id_of(found, infra_namespace=namespace)
    assert isinstance(answer, Unknown)
    assert words in answer.reason


def test_the_node_id_file_survives_its_way() -> None:
    identity = NodeIdentity(node_id="ns/vm1", topology={"zone": "a"})
    assert NodeIdentity.from_json(identity.to_json()) == identity


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"id": ""}', '{"id": 1}', "{"])
def test_a_file_that_is_no_node_id_file_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        NodeIdentity.from_json(text)
