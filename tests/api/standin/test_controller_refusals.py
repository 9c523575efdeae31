"""Bad input to the controller as a program: each call gets its code and a text, and writes nothing.

Every row of ``refusals`` goes over the real socket; what is written is counted by kube-apiserver's own audit log.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from grpclib.client import Channel
from grpclib.const import Status

from e2e.lab.pki import write_private
from kubevirt_csi._csi.csi import v1 as csi
from tests.api.standin import refusals
from tests.api.standin.auditing import AUDITED_GROUP, Audit
from tests.api.standin.conftest import StandIn, fresh_namespace
from tests.api.standin.refusals import CASES, SECRET, Case, Ground
from tests.api.standin.replicas import Replica, Told, running, tell
from tests.api.standin.site import Site, add_options, entry_of, phase_of, vm
from tests.api.standin.talking import Object, talk

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

DRIVER = "driver-under-test"
CALL_SECONDS = 60.0
LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The running controller, what it can be asked about, and the record of its writes."""

    channel: Channel
    ground: Ground
    audit: Audit

    async def tell(self, case: Case) -> Told:
        return await tell(self.channel, case.method, case.content(self.ground), seconds=CALL_SECONDS)

    @property
    def writes(self) -> list[str]:
        return self.audit.writes(DRIVER)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def driver(standin: StandIn, audit: Audit) -> AsyncIterator[Driver]:
    """The controller as a process, with an account whose writes are recorded, and some VMs and volumes."""
    management = standin.management
    async with management.api() as api, talk(management.admin_kubeconfig) as client:
        site = Site(client, await fresh_namespace(api), standin.directory)
        with tempfile.TemporaryDirectory() as name:
            kubeconfig = management.client_kubeconfig(DRIVER, [AUDITED_GROUP, "system:masters"])
            replica = Replica(
                name="controller",
                directory=Path(name),
                kubeconfig=write_private(Path(name) / "kubeconfig", kubeconfig),
                namespace=site.namespace,
                flags=("--infra-vm-selector=of=vm",),
            )
            async with running(replica), Channel(path=str(replica.socket)) as channel:
                yield Driver(channel=channel, ground=await prepare(site, channel), audit=audit)
        await site.abandon()


async def prepare(site: Site, channel: Channel) -> Ground:
    """VMs and volumes as the table names them."""
    names = {name: f"{site.namespace}/{name}" for name in ("worker", "keeper", "halted", "unselected")}
    for name in ("worker", "keeper", "unselected"):
        await site.client.create(site.vms, selected(name, run_strategy="Always", of="x" if name[0] == "u" else "vm"))
    permanent = {"name": "permanent", "dataVolume": {"name": "permanent"}}
    await site.client.create(site.vms, selected("halted", run_strategy="Halted", volumes=(permanent,)))
    for name in ("worker", "keeper", "unselected"):
        await site.vmi_until(name, lambda vmi: phase_of(vmi) == "Running")
    ground = Ground(namespace=site.namespace, **names)
    stub = csi.ControllerStub(channel)
    for name in ("own", "held", "renamed", "permanent"):
        await stub.create_volume(refusals.create(name), timeout=CALL_SECONDS)
    await stub.controller_publish_volume(refusals.publish("held", ground.keeper), timeout=CALL_SECONDS)
    await site.ready_volume("stranger")
    await site.client.create(site.claims, claim("claim-of-somebody"))
    await site.attached_volume("keeper", "stranger-plugged")
    assert (await site.add("keeper", add_options("other-name", source="renamed"))).code == 202
    await site.vmi_until("keeper", lambda vmi: entry_of(vmi, "other-name").get("phase") == "Ready")
    return ground


def selected(name: str, *, run_strategy: str, of: str = "vm", volumes: tuple[Object, ...] = ()) -> Object:
    body = vm(name, run_strategy=run_strategy, volumes=volumes)
    body["metadata"]["labels"] = {"of": of}
    return body


def claim(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "resources": {"requests": {"storage": "16Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}: {case.title}")
async def test_it_is_answered_with_its_code_and_nothing_is_written(driver: Driver, case: Case) -> None:
    before = driver.writes
    told = await driver.tell(case)
    assert (told.code, driver.writes[len(before) :]) == (case.code, list(case.refused)), told.text
    assert re.search(case.text, told.text), told.text
    assert told.text.isprintable()
    assert len(told.text) <= LONGEST_TEXT
    assert SECRET not in told.text


async def test_the_table_has_no_row_twice() -> None:
    assert len({(case.method, case.title) for case in CASES}) == len(CASES)


async def test_the_driver_still_works_afterwards_and_its_writes_are_counted(driver: Driver) -> None:
    before = len(driver.writes)
    made = await driver.tell(Case("good", "CreateVolume", lambda _: refusals.create("pvc-good"), Status.OK))
    assert made.code is Status.OK, made.text
    assert driver.writes[before:] == ["create datavolumes"]
    gone = Case("good", "DeleteVolume", lambda _: csi.DeleteVolumeRequest(volume_id="pvc-good"), Status.OK)
    assert (await driver.tell(gone)).code is Status.OK
    assert driver.writes[before + 1 :] == ["delete datavolumes pvc-good"]
