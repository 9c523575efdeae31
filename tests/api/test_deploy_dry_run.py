"""Every object that deploy/ ships is accepted by a real API server, unknown and duplicate fields included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.lab import manifests
from e2e.lab.api import Api
from e2e.tools.build import build

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDERS = sorted(
    path.parent
    for path in DEPLOY.rglob("kustomization.yaml")
    if "kind: Kustomization" in path.read_text()  # components are rendered by the lab's folders, which use them all
)


async def dry_run(api: Api, folder: Path) -> list[str]:
    """Lets the server judge the folder's objects; returns their kinds."""
    objects = await manifests.render(folder, kubectl=build("kubernetes") / "kubectl")
    for name in {item["metadata"].get("namespace", "default") for item in objects}:
        await api.ensure("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await manifests.apply(api, objects, dry_run=True)
    return [item["kind"] for item in objects]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(DEPLOY)))
async def test_every_object_of_deploy_passes_a_server_side_dry_run(management_api: Api, folder: Path) -> None:
    assert await dry_run(management_api, folder)


async def test_the_lab_takes_deploy_as_shipped_and_the_server_accepts_it(management_api: Api) -> None:
    assert "Deployment" in await dry_run(management_api, manifests.INFRA)
    tenant = await dry_run(management_api, manifests.TENANT)
    assert {"DaemonSet", "CSIDriver", "StorageClass"} <= set(tenant)


@pytest.fixture
def with_selinux(tmp_path: Path) -> Path:
    """The tenant's folder with the component for SELinux, as an operator would write it."""
    tenant = os.path.relpath(DEPLOY / "tenant", tmp_path)
    text = f"resources: [{tenant}/base]\ncomponents: [{tenant}/components/selinux]\n"
    (tmp_path / "kustomization.yaml").write_text(text)
    return tmp_path


async def test_what_the_selinux_component_ships_is_accepted(management_api: Api, with_selinux: Path) -> None:
    assert {"DaemonSet", "CSIDriver"} <= set(await dry_run(management_api, with_selinux))


async def test_the_csi_driver_object_lets_kubelet_set_groups_and_attach(with_selinux: Path) -> None:
    kubectl = build("kubernetes") / "kubectl"
    (plain,) = manifests.named(await manifests.render(DEPLOY / "tenant" / "base", kubectl=kubectl), "CSIDriver")
    (labelled,) = manifests.named(await manifests.render(with_selinux, kubectl=kubectl), "CSIDriver")
    assert plain["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": True,
        "fsGroupPolicy": "File",
        "seLinuxMount": False,
        "storageCapacity": False,
        "volumeLifecycleModes": ["Persistent"],
    }
    assert labelled["spec"] == plain["spec"] | {"seLinuxMount": True}


async def test_with_selinux_the_node_plugin_sees_the_hosts_selinux_and_nothing_else_changes(with_selinux: Path) -> None:
    kubectl = build("kubernetes") / "kubectl"
    (plain,) = manifests.named(await manifests.render(DEPLOY / "tenant" / "base", kubectl=kubectl), "DaemonSet")
    (labelled,) = manifests.named(await manifests.render(with_selinux, kubectl=kubectl), "DaemonSet")
    before, after = (item["spec"]["template"]["spec"] for item in (plain, labelled))
    mounts = [mount for mount in after["containers"][0]["volumeMounts"] if "selinux" in mount["name"]]
    assert mounts == [
        {"name": "selinuxfs", "mountPath": "/sys/fs/selinux"},
        {"name": "selinux-config", "mountPath": "/etc/selinux", "readOnly": True},
    ]
    assert len(after["volumes"]) == len(before["volumes"]) + 2
    assert len(after["containers"][0]["volumeMounts"]) == len(before["containers"][0]["volumeMounts"]) + 2


async def test_a_misspelt_field_does_not_pass(management_api: Api) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "odd", "namespace": "default"}}
    with pytest.raises(manifests.ManifestError, match=r"ServiceAccount odd is refused.*automountServiceAccountTokens"):
        await manifests.apply(management_api, [account | {"automountServiceAccountTokens": False}], dry_run=True)
    assert await management_api.find("/api/v1/namespaces/default/serviceaccounts/odd") is None
