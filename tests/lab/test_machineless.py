"""The lab without machines: a volume's whole life in it, between real control planes and sidecars, and its end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.lab.api import Api, Object, connect, eventually
from e2e.lab.isolation import members
from e2e.lab.management import NAMESPACE, VMIS, VMS
from tests.lab.commands import LabCommands

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"), pytest.mark.timeout(300)]

COMMAND_SECONDS = 120
STEP_SECONDS = 60
CLAIM_NAME, POD_NAME = "data", "app"
CLAIMS, PODS = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/namespaces/default/pods"
CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": CLAIM_NAME},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": POD_NAME},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "app", "image": "localhost/none", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM_NAME}}],
    },
}


@dataclass(frozen=True, slots=True)
class Clusters:
    tenant: Api
    management: Api

    async def pod_runs(self) -> bool:
        pod = await self.tenant.find(f"{PODS}/{POD_NAME}")
        return pod is not None and pod["status"]["phase"] == "Running"

    async def plugged(self, vm: str) -> list[str]:
        """What the VM's instance says it has besides its own disk, in spec or status."""
        instance = await self.management.get(f"{VMIS}/{vm}")
        places = (instance["spec"]["volumes"], instance["status"].get("volumeStatus", []))
        return sorted({entry["name"] for place in places for entry in place} - {"root"})

    async def leftovers(self) -> list[str]:
        """Everything that a volume's life leaves in either cluster."""
        infra = f"/namespaces/{NAMESPACE}"
        lists = [
            *((self.tenant, path) for path in (PODS, CLAIMS, "/api/v1/persistentvolumes")),
            (self.tenant, "/apis/storage.k8s.io/v1/volumeattachments"),
            (self.management, f"/apis/cdi.kubevirt.io/v1beta1{infra}/datavolumes"),
            (self.management, f"/api/v1{infra}/persistentvolumeclaims"),
            (self.management, "/api/v1/persistentvolumes"),
        ]
        found = [f"{path}/{item['metadata']['name']}" for api, path in lists for item in (await api.get(path))["items"]]
        for vm in (await self.management.get(VMS))["items"]:
            found += [f"{vm['metadata']['name']}: {name}" for name in await self.plugged(vm["metadata"]["name"])]
        return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabCommands]:
    started = LabCommands(
        root=tmp_path_factory.mktemp("labs"),
        name="none",
        up=("--machines", "none", "--durations-scale", "0.01"),
        seconds=COMMAND_SECONDS,
    )
    try:
        started.run("up")
        yield started
    finally:
        started.run("down")


@pytest.fixture
async def clusters(lab: LabCommands) -> AsyncIterator[Clusters]:
    files = lab.state().kubeconfigs
    async with AsyncExitStack() as stack:
        tenant, management = [
            await stack.enter_async_context(connect(Path(files[name]))) for name in ("tenant", "management")
        ]
        yield Clusters(tenant, management)


async def test_a_claim_is_bound_its_pod_runs_and_the_end_of_both_leaves_nothing(clusters: Clusters) -> None:
    await clusters.tenant.create(CLAIMS, CLAIM)
    await clusters.tenant.create(PODS, POD)
    await eventually(clusters.pod_runs, what="the pod runs", deadline_seconds=STEP_SECONDS)

    claim, pod = await clusters.tenant.get(f"{CLAIMS}/{CLAIM_NAME}"), await clusters.tenant.get(f"{PODS}/{POD_NAME}")
    assert claim["status"]["phase"] == "Bound"
    attachments = (await clusters.tenant.get("/apis/storage.k8s.io/v1/volumeattachments"))["items"]
    assert [(each["spec"]["nodeName"], each["status"]["attached"]) for each in attachments] == [
        (pod["spec"]["nodeName"], True)
    ]
    volume = await clusters.tenant.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    assert await clusters.plugged(pod["spec"]["nodeName"]) == [volume["spec"]["csi"]["volumeHandle"]]

    await clusters.tenant.delete(f"{PODS}/{POD_NAME}")
    await clusters.tenant.delete(f"{CLAIMS}/{CLAIM_NAME}")

    async def nothing_left() -> bool:
        return not await clusters.leftovers()

    await eventually(nothing_left, what="nothing is left of the volume", deadline_seconds=STEP_SECONDS)


async def test_a_pod_waits_for_its_claim_and_starts_when_the_claim_comes(clusters: Clusters) -> None:
    await clusters.tenant.create(PODS, POD)
    try:

        async def unschedulable() -> bool:
            pod = await clusters.tenant.get(f"{PODS}/{POD_NAME}")
            return any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", ()))

        await eventually(unschedulable, what="the scheduler misses the claim", deadline_seconds=STEP_SECONDS)
        await clusters.tenant.create(CLAIMS, CLAIM)
        await eventually(clusters.pod_runs, what="the pod runs", deadline_seconds=STEP_SECONDS)
    finally:
        await clusters.tenant.delete(f"{PODS}/{POD_NAME}")
        await clusters.tenant.delete(f"{CLAIMS}/{CLAIM_NAME}")


async def test_status_names_what_runs_and_down_leaves_no_process(lab: LabCommands) -> None:
    programs = ("tenant-kube-scheduler", "kubevirt", "driver", "csi-provisioner", "csi-attacher", "csi-resizer")
    told = lab.run("status")
    assert [name for name in programs if f"{name} " not in told] == []
    init = lab.state().init
    assert len(members(init)) > len(programs)

    lab.run("down")

    assert members(init) == []
    assert not lab.directory.running()
    assert not lab.directory.data.exists()
