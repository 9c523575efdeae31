"""``kubevirt-csi node-id`` against a real kube-apiserver, as a service account that may read Nodes and nothing else."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from e2e.lab.api import Api
from e2e.lab.controlplane import ControlPlane
from e2e.lab.pki import Authority
from kubevirt_csi.errors import NotFound, PermissionDenied, Unavailable
from kubevirt_csi.settings import NodeIdSettings
from kubevirt_csi.tenant.connection import Access, TenantCluster
from kubevirt_csi.tenant.nodes import leave_identity

NODES = "/api/v1/nodes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
async def node(management_api: Api) -> AsyncIterator[str]:
    """The name of a Node that does not say yet which VM it is."""
    name = f"worker-{uuid.uuid4().hex[:8]}"
    await management_api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    await management_api.delete(f"{NODES}/{name}")


@pytest.fixture
async def reader(
    management: ControlPlane, management_api: Api, management_namespace: str, tmp_path: Path
) -> AsyncIterator[Access]:
    """Of an account with the rights of the shipped ClusterRole."""
    name = f"{management_namespace}-node"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    await management_api.create(
        f"{RBAC}/clusterroles", role | {"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]}
    )
    await management_api.create(
        f"{RBAC}/clusterrolebindings",
        role
        | {
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "node", "namespace": management_namespace}],
        },
    )
    yield await account(management, management_api, management_namespace, "node", tmp_path)
    await management_api.delete(f"{RBAC}/clusterrolebindings/{name}")
    await management_api.delete(f"{RBAC}/clusterroles/{name}")


async def account(management: ControlPlane, api: Api, namespace: str, name: str, folder: Path) -> Access:
    """As kubelet lays an account's files into a pod."""
    await api.create(
        f"/api/v1/namespaces/{namespace}/serviceaccounts",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
    )
    kubeconfig = await management.token_kubeconfig(folder / f"{name}.kubeconfig", namespace=namespace, account=name)
    [user] = yaml.safe_load(kubeconfig.read_text())["users"]
    token, authority = folder / f"{name}.token", folder / "ca.crt"
    token.write_text(user["user"]["token"] + "\n")
    authority.write_bytes(management.authority_certificate)
    return Access(host="127.0.0.1", port=management.port, token=token, authority=authority)


async def test_it_waits_for_the_cloud_provider_and_then_leaves_the_file(
    management_api: Api, node: str, reader: Access, tmp_path: Path
) -> None:
    output = tmp_path / "node-id.json"
    settings = NodeIdSettings(
        node_name=node,
        infra_namespace="tenant-a",
        output=output,
        timeout_seconds=60,
        log_level="info",
    )
    waiting = asyncio.create_task(leave_identity(TenantCluster(reader), settings))
    await asyncio.wait((waiting,), timeout=0.5)
    assert not waiting.done()
    await management_api.patch(f"{NODES}/{node}", {"spec": {"providerID": "kubevirt://worker-1"}})
    assert await waiting == 0
    assert json.loads(output.read_text()) == {"id": "tenant-a/worker-1", "topology": {}}


async def test_what_the_api_says_becomes_one_of_our_errors(
    management: ControlPlane, management_api: Api, management_namespace: str, reader: Access, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="nodes/missing"):
        await TenantCluster(reader).node("missing")
    powerless = await account(management, management_api, management_namespace, "powerless", tmp_path)
    with pytest.raises(PermissionDenied, match="403"):
        await TenantCluster(powerless).node("missing")
    with pytest.raises(Unavailable, match="credentials"):
        await TenantCluster(replace(reader, token=tmp_path / "none")).node("missing")
    with pytest.raises(Unavailable, match="does not answer"):
        await TenantCluster(replace(reader, port=1)).node("missing")
    stranger = tmp_path / "stranger.crt"
    stranger.write_bytes(Authority("stranger").pair.certificate)
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await TenantCluster(replace(reader, authority=stranger)).node("missing")
