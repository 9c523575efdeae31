"""What the management cluster looks like from outside: kinds, discovery, permissions, the infra Node, and restarts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.api.standin.conftest import StandIn
from tests.api.standin.site import SUBRESOURCES, Site, add_options, entry_of
from tests.api.standin.talking import Client, Object, talk

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


# Kinds


@pytest.mark.parametrize(
    ("name", "kind", "short_names", "versions", "status"),
    [
        ("virtualmachines.kubevirt.io", "VirtualMachine", ["vm", "vms"], {"v1", "v1alpha3"}, True),
        ("virtualmachineinstances.kubevirt.io", "VirtualMachineInstance", ["vmi", "vmis"], {"v1", "v1alpha3"}, False),
        ("datavolumes.cdi.kubevirt.io", "DataVolume", ["dv", "dvs"], {"v1beta1"}, True),
        ("storageprofiles.cdi.kubevirt.io", "StorageProfile", None, {"v1beta1"}, True),
    ],
)
async def test_kinds_have_their_names_versions_and_subresources(
    client: Client, name: str, kind: str, short_names: list[str] | None, versions: set[str], *, status: bool
) -> None:
    spec = (await client.get(f"{CRDS}/{name}"))["spec"]
    assert (spec["names"]["kind"], spec["names"].get("shortNames")) == (kind, short_names)
    assert {version["name"] for version in spec["versions"] if version["served"]} == versions
    assert {"status" in version.get("subresources", {}) for version in spec["versions"]} == {status}


async def test_the_status_of_a_datavolume_is_ignored_in_ordinary_writes(site: Site) -> None:
    await site.ready_volume("data")
    patched = await site.client.patch(f"{site.datavolumes}/data", {"status": {"phase": "Failed"}})
    assert patched["status"]["phase"] == "Succeeded"


async def test_the_subresources_are_discovered_in_both_versions(client: Client) -> None:
    names = {"virtualmachines/addvolume", "virtualmachines/removevolume"}
    names |= {"virtualmachineinstances/addvolume", "virtualmachineinstances/removevolume"}
    for version in ("v1", "v1alpha3"):
        resources = (await client.get(f"/apis/subresources.kubevirt.io/{version}"))["resources"]
        assert {resource["name"] for resource in resources} == names
        assert {tuple(resource["verbs"]) for resource in resources} == {("update",)}


async def test_the_class_local_block_is_the_default_and_prefers_shared_block_claims(client: Client) -> None:
    found = await client.get("/apis/storage.k8s.io/v1/storageclasses/local-block")
    assert found["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
    assert found["volumeBindingMode"] == "Immediate"
    profile = await client.get("/apis/cdi.kubevirt.io/v1beta1/storageprofiles/local-block")
    assert profile["status"]["provisioner"] == found["provisioner"]
    assert profile["status"]["claimPropertySets"][0] == {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}


async def test_the_infra_node_is_ready_and_beats(client: Client) -> None:
    node = await client.get("/api/v1/nodes/infra-1")
    ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    assert ready["status"] == "True"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    first = await client.get(f"{leases}/infra-1")
    await client.follow(
        leases,
        "infra-1",
        lambda lease: (lease or {})["spec"]["renewTime"] > first["spec"]["renewTime"],
        since=first["metadata"]["resourceVersion"],
    )


# Permissions


async def allow(site: Site, account: str, rules: list[Object]) -> None:
    """A service account with a Role of these rules."""
    metadata = {"name": account}
    await site.client.create(
        f"/api/v1/namespaces/{site.namespace}/serviceaccounts",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
    )
    rbac = f"{RBAC}/namespaces/{site.namespace}"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    await site.client.create(f"{rbac}/roles", role)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": site.namespace}],
    }
    await site.client.create(f"{rbac}/rolebindings", binding)


def rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        pytest.param([rule("subresources.kubevirt.io", "virtualmachines/addvolume", "update")], 202, id="allowed"),
        pytest.param([rule("subresources.kubevirt.io", "virtualmachines/removevolume", "update")], 403, id="other"),
        pytest.param([rule("subresources.kubevirt.io", "virtualmachines/addvolume", "get")], 403, id="other verb"),
        pytest.param([rule("kubevirt.io", "virtualmachines/addvolume", "update")], 403, id="other group"),
    ],
)
async def test_hotplugging_needs_update_on_the_subresource(
    site: Site, standin: StandIn, tmp_path: Path, rules: list[Object], code: int
) -> None:
    await allow(site, "driver", rules)
    kubeconfig = await standin.management.token_kubeconfig(
        tmp_path / "driver.kubeconfig", namespace=site.namespace, account="driver"
    )
    vm = await site.create_vm(run_strategy="Halted")
    async with talk(kubeconfig) as driver:
        answer = await site.add(vm, add_options("data"), client=driver)
    assert answer.code == code, answer.text
    if code == 403:
        assert 'cannot update resource "virtualmachines/addvolume"' in answer.body["message"]


async def test_without_the_front_proxys_certificate_the_api_answers_401(site: Site, standin: StandIn) -> None:
    url = f"https://localhost:{standin.port}{SUBRESOURCES}/namespaces/{site.namespace}/virtualmachines/any/addvolume"
    headers = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, json=add_options("data"), headers=headers, ssl=standin.trust()) as answer,
    ):
        assert (answer.status, await answer.text()) == (401, "request is not authenticated")


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        pytest.param({}, "request is not authenticated", id="no headers"),
        pytest.param({"X-Remote-User": "nobody"}, "", id="a user who may not"),
    ],
)
async def test_past_kube_apiserver_virt_api_itself_answers_401(
    site: Site, standin: StandIn, headers: dict[str, str], text: str
) -> None:
    proxy = standin.management.directory / "pki" / "front-proxy-client"
    trust = standin.trust()
    trust.load_cert_chain(f"{proxy}.crt", f"{proxy}.key")
    url = f"https://localhost:{standin.port}{SUBRESOURCES}/namespaces/{site.namespace}/virtualmachines/any/addvolume"
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, json=add_options("data"), headers=headers, ssl=trust) as answer,
    ):
        assert (answer.status, await answer.text()) == (401, text)


# Restarts


async def test_the_stand_in_survives_a_crash_of_the_api_server(site: Site, standin: StandIn) -> None:
    vm = await site.running_vm()
    await site.ready_volume("data")
    await standin.management.kill("kube-apiserver")
    await standin.management.start("kube-apiserver")
    await standin.served()
    assert (await site.add(vm, add_options("data"))).code == 202
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "data").get("phase") == "Ready")


async def test_a_configuration_that_cannot_be_used_ends_it_with_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"kubeconfig": "k", "storage": "s"}')
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.lab.kubevirt", "--config", str(config)), stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    assert (process.returncode, told.decode().strip()) == (2, f"{config}: the key 'serving' is missing")


async def test_while_the_stand_in_is_down_hotplugs_get_503_in_plain_text_and_work_goes_on_afterwards(
    site: Site, standin: StandIn
) -> None:
    vm = await site.running_vm()
    await site.attached_volume(vm, "old")
    await site.ready_volume("new")
    before = await site.vmi(vm)
    assert (await site.add(vm, add_options("new"))).code == 202
    await standin.kill()
    try:
        answer = await site.add(vm, add_options("other"))
        assert (answer.code, answer.text[:1]) == (503, "e")
    finally:
        await standin.start()
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "new").get("phase") == "Ready")
    assert states[-1]["metadata"]["uid"] == before["metadata"]["uid"]
    assert entry_of(states[-1], "old")["target"] == "sdb"
    assert entry_of(states[-1], "new")["target"] == "sdc"
