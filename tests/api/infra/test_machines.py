"""The Machines port against a real kube-apiserver that has the kinds of KubeVirt, but no virt-api behind it."""

from __future__ import annotations

import pytest

from e2e.lab.api import Api
from kubevirt_csi.domain.machines import Plug
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import Unavailable
from kubevirt_csi.infra.cluster import Infra
from kubevirt_csi.infra.machines import InfraMachines
from kubevirt_csi.infra.resources import VIRTUAL_MACHINE_ACTIONS, Call, Object, Verb
from kubevirt_csi.infra.selectors import Selector
from kubevirt_csi.infra.virtualmachines import add_volume_body
from tests.api.infra.conftest import following

SELECTORS = (
    *("", "role=worker", "role==worker", "role!=worker", "role!=none", "role", "!role", "! role", "zone", "!zone"),
    *("role in (worker,master)", "role notin (worker)", "role notin (a, b)", "zone in (), role", "role="),
    *("role=worker,tier in (x, y)", "role=worker,!tier", "tier notin (x),role=worker"),
    *("example.org/role=worker", "example.org/role", "role in ( worker )"),
)
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"role": "worker"},
    {"role": "master", "tier": "x"},
    {"role": "worker", "tier": "y", "zone": ""},
    {"example.org/role": "worker", "role": ""},
)


class KubeVirt:
    """Writes VMs and VMIs as they are, status included."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.root = f"/apis/kubevirt.io/v1/namespaces/{namespace}"

    async def vm(self, name: str, *claims: str, labels: dict[str, str] | None = None) -> None:
        body = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"template": {"spec": {"volumes": _volumes(claims)}}},
        }
        await self.api.create(f"{self.root}/virtualmachines", body)

    async def vmi(self, name: str, *attached: str) -> None:
        statuses = [{"name": claim, "phase": "Ready", "target": "sda", "hotplugVolume": {}} for claim in attached]
        body = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": name},
            "spec": {"volumes": _volumes(attached)},
            "status": {"phase": "Running", "volumeStatus": statuses},
        }
        await self.api.create(f"{self.root}/virtualmachineinstances", body)


def _volumes(claims: tuple[str, ...]) -> list[Object]:
    return [{"name": claim, "dataVolume": {"name": claim, "hotpluggable": True}} for claim in claims]


@pytest.fixture
def kubevirt(management_api: Api, infra: Infra) -> KubeVirt:
    return KubeVirt(management_api, infra.connection.place.namespace)


async def test_vm_and_vmi_make_one_machine_in_a_fresh_read_and_in_the_cache(infra: Infra, kubevirt: KubeVirt) -> None:
    await kubevirt.vm("worker-1", "pvc-1", "pvc-2")
    await kubevirt.vmi("worker-1", "pvc-1")
    machine = await infra.machines.get("worker-1", fresh=True)
    assert machine is not None
    assert machine.uid is not None
    assert machine.attached("pvc-1")
    assert not machine.attached("pvc-2")
    assert machine.holds("pvc-2")
    async with following(infra):
        assert await infra.machines.get("worker-1") == machine
        assert await infra.machines.get("worker-2") is None
    assert await infra.machines.get("worker-2", fresh=True) is None


async def test_every_machine_that_has_a_claim_is_found_whatever_the_selector(infra: Infra, kubevirt: KubeVirt) -> None:
    await kubevirt.vm("stopped", "pvc-1")
    await kubevirt.vm("other", "pvc-2")
    await kubevirt.vmi("orphan", "pvc-1")
    selective = InfraMachines(infra.connection, selector=Selector.parse("role=worker"))
    assert [machine.name for machine in await selective.holders("pvc-1", fresh=True)] == ["orphan", "stopped"]
    async with following(infra):
        assert [machine.name for machine in await infra.machines.holders("pvc-1")] == ["orphan", "stopped"]
        assert [machine.name for machine in await infra.machines.holders("pvc-3")] == []


async def test_a_vm_outside_the_selector_does_not_exist_but_an_instance_without_vm_does(
    infra: Infra, kubevirt: KubeVirt
) -> None:
    await kubevirt.vm("worker", labels={"role": "worker"})
    await kubevirt.vm("foreign", labels={"role": "database"})
    await kubevirt.vmi("foreign")
    await kubevirt.vmi("orphan", "pvc-1")
    selective = InfraMachines(infra.connection, selector=Selector.parse("role=worker"))
    assert await selective.get("worker", fresh=True) is not None
    assert await selective.get("foreign", fresh=True) is None
    orphan = await selective.get("orphan", fresh=True)
    assert orphan is not None
    assert orphan.uid is None
    assert orphan.holds("pvc-1")


async def test_hot_plug_without_virt_api_is_unavailable_and_not_a_missing_vm(infra: Infra, kubevirt: KubeVirt) -> None:
    await kubevirt.vm("worker-1")
    with pytest.raises(Unavailable, match=r"subresources\.kubevirt\.io installed"):
        await infra.connection.request(_add_volume_call(), seconds=1)


async def test_selectors_choose_what_the_api_server_chooses(kubevirt: KubeVirt) -> None:
    for number, labels in enumerate(LABELS):
        await kubevirt.vm(f"vm-{number}", labels=labels)
    for text in SELECTORS:
        listed = await kubevirt.api.get(f"{kubevirt.root}/virtualmachines", query={"labelSelector": text})
        theirs = {item["metadata"]["name"] for item in listed["items"]}
        selector = Selector.parse(text)
        ours = {f"vm-{number}" for number, labels in enumerate(LABELS) if selector.matches(labels)}
        assert ours == theirs, text


def _add_volume_call() -> Call:
    plug = Plug(volume_id="pvc-1", serial="0" * 20, bus=Bus.SCSI)
    return Call(
        verb=Verb.UPDATE,
        resource=VIRTUAL_MACHINE_ACTIONS,
        name="worker-1",
        subresource="addvolume",
        body=add_volume_body(plug),
    )
