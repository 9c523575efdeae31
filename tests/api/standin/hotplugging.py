"""What the tests of hot-plug answers share: the two endpoints, machines for them, and how refusals begin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from tests.api.standin.site import Site
from tests.api.standin.talking import Object

Endpoint = Literal["virtualmachines", "virtualmachineinstances"]
VM_ENDPOINT: Endpoint = "virtualmachines"
VMI_ENDPOINT: Endpoint = "virtualmachineinstances"
Call = Literal["add", "remove"]
SINGULAR = {VM_ENDPOINT: "virtualmachine", VMI_ENDPOINT: "virtualmachineinstance"}
HOLD = "test.example.com/held"
KUBEVIRT_ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"

Refusal = tuple[int, str, str]


def conflict(endpoint: Endpoint, name: str, why: str) -> Refusal:
    """Code, reason and message of a 409."""
    return 409, "Conflict", f'Operation cannot be fulfilled on {SINGULAR[endpoint]}.kubevirt.io "{name}": {why}'


def details(endpoint: Endpoint, name: str) -> Object:
    """The details of a refusal that names the object."""
    return {"name": name, "group": "kubevirt.io", "kind": SINGULAR[endpoint]}


def volumes_in(vm: Object | None) -> list[str]:
    return [volume["name"] for volume in (vm or {})["spec"]["template"]["spec"]["volumes"]]


def disks_in(vm: Object) -> list[str]:
    return [disk["name"] for disk in vm["spec"]["template"]["spec"]["domain"]["devices"]["disks"]]


def plugged_in(vmi: Object | None) -> list[str]:
    """The volumes of a VMI's spec."""
    return [volume["name"] for volume in (vmi or {}).get("spec", {}).get("volumes", [])]


def queue_in(vm: Object | None) -> list[Object]:
    """The requests that wait in the VM's status."""
    queue: list[Object] = (vm or {}).get("status", {}).get("volumeRequests", [])
    return queue


def condition_in(vmi: Object | None, kind: str) -> str:
    """The value of the VMI's condition, empty when it has none of that kind."""
    conditions = (vmi or {}).get("status", {}).get("conditions", [])
    return next((str(condition["status"]) for condition in conditions if condition["type"] == kind), "")


def failure_of(vm: Object | None) -> tuple[str, str]:
    """Reason and message of the VM's condition Failure, empty when it has none."""
    conditions = (vm or {}).get("status", {}).get("conditions", [])
    failure = next((each for each in conditions if (each["type"], each["status"]) == ("Failure", "True")), None)
    return (failure["reason"], failure["message"]) if failure else ("", "")


async def stopped_vm(site: Site, *, volumes: tuple[Object, ...] = ()) -> str:
    """A VM without a VMI, which virt-controller has seen; returns its name."""
    name = await site.create_vm(run_strategy="Halted", volumes=volumes)
    await site.client.follow(site.vms, name, lambda vm: (vm or {}).get("status", {}).get("printableStatus"))
    return name


async def machine_of(site: Site, endpoint: Endpoint) -> str:
    """A machine that the endpoint can change: a stopped VM, or a running VMI without a VM."""
    return await (stopped_vm(site) if endpoint == VM_ENDPOINT else site.lone_vmi())


async def vm_until_volumes(site: Site, name: str, *volumes: str) -> None:
    """Returns when the VM's spec has exactly these volumes and nothing is queued."""
    await site.client.follow(site.vms, name, lambda vm: sorted(volumes_in(vm)) == sorted(volumes) and not queue_in(vm))


@asynccontextmanager
async def being_deleted(site: Site, vm: str) -> AsyncIterator[None]:
    """While the block runs, the VM has a deletionTimestamp, so virt-controller leaves it alone."""
    await site.client.patch(f"{site.vms}/{vm}", {"metadata": {"finalizers": [HOLD]}})
    await site.client.delete(f"{site.vms}/{vm}")
    await site.client.follow(site.vms, vm, lambda vm: (vm or {})["metadata"].get("finalizers") == [HOLD])
    try:
        yield
    finally:
        await site.client.patch(f"{site.vms}/{vm}", {"metadata": {"finalizers": []}})


async def set_snapshot(site: Site, vm: str, snapshot: str | None) -> None:
    """Has a snapshot of the VM under way, or ended."""
    await site.client.patch(f"{site.vms}/{vm}/status", {"status": {"snapshotInProgress": snapshot}})
