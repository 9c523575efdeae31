"""What the lab's cloud provider changes in a Node, and that it stops changing it."""

from __future__ import annotations

from typing import Any

from e2e.lab.cloudprovider import NAMESPACE_ANNOTATION, UNINITIALIZED, wanted_addresses, wanted_change

OTHER_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def registered() -> dict[str, Any]:
    """A Node as a kubelet with an external provider registers it."""
    taint = {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}
    return {
        "metadata": {"name": "worker-1", "resourceVersion": "7", "annotations": {"kept": "by merge"}},
        "spec": {"taints": [taint, OTHER_TAINT]},
    }


def test_a_new_node_gets_its_provider_id_and_loses_only_the_uninitialized_taint() -> None:
    change = wanted_change(registered(), namespace="tenant-a")
    assert change is not None
    assert change["spec"] == {"providerID": "kubevirt://worker-1", "taints": [OTHER_TAINT]}
    assert change["metadata"]["annotations"] == {NAMESPACE_ANNOTATION: "tenant-a"}


def test_a_change_is_bound_to_the_version_that_was_read() -> None:
    change = wanted_change(registered(), namespace="tenant-a")
    assert change is not None
    assert change["metadata"]["resourceVersion"] == "7"


def test_an_initialized_node_is_left_alone() -> None:
    node = registered()
    node["spec"] = {"providerID": "kubevirt://worker-1", "taints": [OTHER_TAINT]}
    node["metadata"]["annotations"][NAMESPACE_ANNOTATION] = "tenant-a"
    assert wanted_change(node, namespace="tenant-a") is None


def test_a_node_without_the_vms_namespace_is_completed() -> None:
    node = registered()
    node["spec"] = {"providerID": "kubevirt://worker-1"}
    assert wanted_change(node, namespace="tenant-a") is not None


def test_a_guest_is_reached_through_the_hosts_loopback() -> None:
    assert {"type": "InternalIP", "address": "127.0.0.1"} in wanted_addresses(registered())
