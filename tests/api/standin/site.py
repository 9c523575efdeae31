"""A namespace of the management cluster, with the errands that every test has there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.standin.talking import Answer, Client, Object

SUBRESOURCES = "/apis/subresources.kubevirt.io/v1"
NUMBERS = itertools.count(1)  # machines are called by their VM's name alone, so names are unique in the session


class Site:
    """Creates machines and volumes in one namespace, and hot-plugs."""

    def __init__(self, client: Client, namespace: str, directory: Path) -> None:
        self.client = client
        self.storage = directory / "disks"
        self.machines = directory / "machines"
        self.namespace = namespace
        core = f"/api/v1/namespaces/{namespace}"
        self.vms = f"/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines"
        self.vmis = f"/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances"
        self.datavolumes = f"/apis/cdi.kubevirt.io/v1beta1/namespaces/{namespace}/datavolumes"
        self.claims = f"{core}/persistentvolumeclaims"
        self.pods = f"{core}/pods"
        self.events = f"{core}/events"
        self.quotas = f"{core}/resourcequotas"

    async def create_vm(self, *, run_strategy: str = "Always", volumes: tuple[Object, ...] = ()) -> str:
        """A VM with a root disk, and perhaps more volumes; returns its name."""
        name = f"vm-{next(NUMBERS)}"
        await self.client.create(self.vms, vm(name, run_strategy=run_strategy, volumes=volumes))
        return name

    async def abandon(self) -> None:
        """Has all removed that KubeVirt, CDI and Kubernetes would go on working on; waits for none of it."""
        for collection in (self.vms, self.vmis, self.datavolumes, self.claims):
            await self.client.delete(collection)

    async def running_vm(self) -> str:
        """A VM whose machine runs; returns its name."""
        name = await self.create_vm()
        await self.vmi_until(name, lambda vmi: phase_of(vmi) == "Running")
        return name

    async def lone_vmi(self) -> str:
        """A running VMI that no VM owns; returns its name."""
        name = await self._create_vmi(())
        await self.vmi_until(name, lambda vmi: phase_of(vmi) == "Running")
        return name

    async def waiting_vmi(self) -> str:
        """A VMI that no VM owns and that cannot start, because a claim is missing; returns its name."""
        name = await self._create_vmi((hotplug("missing"),))
        await self.vmi_until(name, lambda vmi: phase_of(vmi) == "Scheduled")
        return name

    async def _create_vmi(self, volumes: tuple[Object, ...]) -> str:
        name = f"vmi-{next(NUMBERS)}"
        spec = vm(name, run_strategy="Always", volumes=volumes)["spec"]["template"]["spec"]
        body = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}}
        await self.client.create(self.vmis, {**body, "spec": spec})
        return name

    async def ready_volume(self, name: str) -> str:
        """A blank DataVolume that is populated; returns its name."""
        await self.client.create(self.datavolumes, datavolume(name))
        await self.client.follow(self.datavolumes, name, lambda volume: phase_of(volume) == "Succeeded")
        return name

    async def attached_volume(self, vm_name: str, name: str) -> str:
        """A volume that is Ready in the VM; returns its name."""
        await self.ready_volume(name)
        assert (await self.add(vm_name, add_options(name))).code == 202
        await self.vmi_until(vm_name, lambda vmi: entry_of(vmi, name).get("phase") == "Ready")
        return name

    async def add(
        self, name: str, options: Any, *, kind: str = "virtualmachines", client: Client | None = None
    ) -> Answer:
        """PUT addvolume."""
        path = f"{SUBRESOURCES}/namespaces/{self.namespace}/{kind}/{name}/addvolume"
        return await (client or self.client).call("PUT", path, options)

    async def remove(self, name: str, options: Any, *, kind: str = "virtualmachines") -> Answer:
        """PUT removevolume."""
        path = f"{SUBRESOURCES}/namespaces/{self.namespace}/{kind}/{name}/removevolume"
        return await self.client.call("PUT", path, options)

    async def vm(self, name: str) -> Object:
        return await self.client.get(f"{self.vms}/{name}")

    async def vmi(self, name: str) -> Object:
        return await self.client.get(f"{self.vmis}/{name}")

    async def vmi_until(self, name: str, until: Callable[[Object | None], object], *, since: str = "") -> list[Object]:
        """The states of the VMI up to one that is accepted."""
        states = await self.client.follow(self.vmis, name, until, since=since)
        return [state for state in states if state is not None]

    async def events_of(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of the events about the object of that name."""
        items = (await self.client.get(f"{self.events}?fieldSelector=involvedObject.name={name}"))["items"]
        return [(event["reason"], event["message"]) for event in items]

    async def event_until(self, name: str, reason: str) -> None:
        """Returns when the object has had an event of that reason."""
        await self.client.follow_any(
            self.events, lambda event: (event["involvedObject"]["name"], event["reason"]) == (name, reason)
        )

    async def pods_until(self, count: int) -> None:
        """Returns when there are as many attachment pods."""
        await self.client.follow_count(self.pods, "kubevirt.io=hotplug-disk", count)

    async def unready_volume(self, name: str) -> str:
        """A DataVolume whose claim is bound and that is never populated, because its source does not answer."""
        body = datavolume(name)
        body["metadata"]["annotations"] = {"cdi.kubevirt.io/storage.usePopulator": "false"}
        body["spec"]["source"] = {"http": {"url": "http://nowhere.invalid/image"}}
        await self.client.create(self.datavolumes, body)
        await self.client.follow(self.claims, name, lambda claim: phase_of(claim) == "Bound")
        return name

    async def claim_seen(self, name: str) -> None:
        """Returns when the stand-in has seen the claim: it has bound it."""
        await self.client.follow(self.claims, name, lambda claim: phase_of(claim) == "Bound")

    async def quota(self, hard: Object) -> None:
        """A ResourceQuota named ``quota`` that is in force."""
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": {"hard": hard}}
        await self.client.create(self.quotas, body)
        await self.client.follow(self.quotas, "quota", lambda quota: (quota or {}).get("status", {}).get("used"))

    async def attachment_pods(self) -> list[Object]:
        items: list[Object] = (await self.client.get(f"{self.pods}?labelSelector=kubevirt.io%3Dhotplug-disk"))["items"]
        return items


def vm(name: str, *, run_strategy: str, volumes: tuple[Object, ...] = ()) -> Object:
    """A VM whose first disk is its root; ``volumes`` are hot-plugs that are in its spec from the beginning."""
    disks = [{"name": volume["name"], "disk": {"bus": "scsi"}} for volume in volumes]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "labels": {"of": "vm"}},
        "spec": {
            "runStrategy": run_strategy,
            "template": {
                "metadata": {"labels": {"of": "template"}},
                "spec": {
                    "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}, *disks]}},
                    "volumes": [{"name": "root", "containerDisk": {"image": "root"}}, *volumes],
                },
            },
        },
    }


def datavolume(name: str, **spec: Any) -> Object:
    """A blank DataVolume of 16 MiB on the default class, with other spec fields as given."""
    storage = {"resources": {"requests": {"storage": "16Mi"}}}
    return {
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {"name": name},
        "spec": spec or {"source": {"blank": {}}, "storage": storage},
    }


def hotplug(name: str) -> Object:
    """A hot-plug volume as it is written in a spec."""
    return {"name": name, "dataVolume": {"name": name, "hotpluggable": True}}


def add_options(name: str, *, source: str = "", **disk: Any) -> Object:
    """AddVolumeOptions for a DataVolume on scsi, with other disk fields as given."""
    return {
        "name": name,
        "disk": {"name": name, **({"disk": {"bus": "scsi"}} | disk)},
        "volumeSource": {"dataVolume": {"name": source or name}},
    }


def phase_of(obj: Object | None) -> str:
    phase: str = (obj or {}).get("status", {}).get("phase", "")
    return phase


def entry_of(vmi: Object | None, volume: str) -> Object:
    """The volume's entry in ``status.volumeStatus``, empty when there is none."""
    entries: list[Object] = (vmi or {}).get("status", {}).get("volumeStatus", [])
    return next((entry for entry in entries if entry["name"] == volume), {})
