"""The control plane that every other test of this tier stands on."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.lab.api import Api, ApiError, connect
from e2e.lab.controlplane import API_SERVER, ControlPlane


async def test_pods_can_be_created_in_the_default_namespace_at_once(management_api: Api) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "first-"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    created = await management_api.create("/api/v1/namespaces/default/pods", pod)
    assert created["spec"]["serviceAccountName"] == "default"


async def test_a_token_kubeconfig_acts_as_its_service_account(management: ControlPlane, tmp_path: Path) -> None:
    path = await management.token_kubeconfig(tmp_path / "token.kubeconfig", namespace="default", account="default")
    async with connect(path) as api:
        review = await api.create(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        )
        with pytest.raises(ApiError) as refused:
            await api.get("/api/v1/nodes")
    assert review["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
    assert refused.value.status == 403
    assert path.stat().st_mode & 0o777 == 0o600


async def test_objects_outlive_a_killed_api_server(management: ControlPlane, management_namespace: str) -> None:
    await management.kill(API_SERVER)
    await management.start(API_SERVER)
    async with management.api() as api:
        found = await api.get(f"/api/v1/namespaces/{management_namespace}")
    assert found["metadata"]["name"] == management_namespace


async def test_a_watch_from_before_a_compaction_is_told_that_it_expired(
    management: ControlPlane, management_api: Api, management_namespace: str
) -> None:
    path = f"/api/v1/namespaces/{management_namespace}/configmaps"
    old = (await management_api.get(path))["metadata"]["resourceVersion"]
    for _ in range(3):
        await management_api.create(
            path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "revision-"}}
        )
    await management.compact()
    await management.kill(API_SERVER)  # it forgets the events that its watch cache still holds
    await management.start(API_SERVER)
    async with management.api() as api:
        events = await api.request("GET", path, query={"watch": "1", "resourceVersion": old, "timeoutSeconds": "5"})
    assert events["type"] == "ERROR"
    assert events["object"]["code"] == 410
