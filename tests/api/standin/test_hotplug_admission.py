"""What the webhooks refuse of a hot-plug: a queued request (legacy), in a VM's spec (declarative), and in a VMI's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.api.standin.conftest import StandIn
from tests.api.standin.hotplugging import (
    KUBEVIRT_ACCOUNT,
    VMI_ENDPOINT,
    condition_in,
    failure_of,
    plugged_in,
    queue_in,
    set_snapshot,
    stopped_vm,
    vm_until_volumes,
    volumes_in,
)
from tests.api.standin.modes import KubeVirt
from tests.api.standin.site import Site, add_options, hotplug
from tests.api.standin.talking import Answer, Object, talk

REFUSED = 'admission webhook "{}" denied the request: '
DECLARATIVE_VM = REFUSED.format("virtualmachine-validator.kubevirt.io")
LEGACY_VM = REFUSED.format("kubevirt-crd-status-validator.kubevirt.io")
VMI = REFUSED.format("virtualmachineinstances-update-validator.kubevirt.io")
MIGRATION = "lab.csi.kubevirt.io/migration"
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    " an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case of the table, with the text of each column; an empty text is a 202.

    What both kinds of VM say is ``both``. A VMI's texts name its own fields, where a VM's name those of its template.
    """

    case: str
    options: Object
    both: str = ""
    legacy: str = ""
    declarative: str = ""
    vmi: str = ""


TEMPLATE_DISK, DISK = "spec.template.spec.domain.devices.disks[1]", "spec.domain.devices.disks[1]"
BUS = "disk [data] requires bus to be 'scsi' or 'virtio'. [{}] is not permitted."
LUN = "LUN [data] requires bus to be 'scsi'. [virtio] is not permitted."
DEVICE = "[data] requires diskDevice of type 'disk' or 'lun' to be used."
CHARACTERS = "must be made up of the following characters [A-Za-z0-9_.+-], if specified"
LENGTH = "must be less than or equal to 256 in length, if specified"

TABLE = (
    Row(
        case="disk bus not scsi or virtio",
        options=add_options("data", disk={"bus": "sata"}),
        legacy=f"AddVolume request for {BUS.format('sata')}",
        vmi=f"Hotplug configuration for {BUS.format('sata')}",
    ),
    Row(
        case="disk bus empty",
        options=add_options("data", disk={}),
        legacy=f"AddVolume request for {BUS.format('')}",
        vmi=f"Hotplug configuration for {BUS.format('')}",
    ),
    Row(
        case="lun bus not scsi",
        options={**add_options("data"), "disk": {"lun": {"bus": "virtio"}}},
        legacy=f"AddVolume request for {LUN}",
        vmi=f"Hotplug configuration for {LUN}",
    ),
    Row(
        case="neither disk nor lun",
        options={**add_options("data"), "disk": {"cdrom": {"bus": "scsi"}}},
        legacy=f"AddVolume request for {DEVICE}",
        vmi=f"Hotplug configuration for {DEVICE}",
    ),
    Row(
        case="dedicatedIOThread on scsi",
        options=add_options("data", dedicatedIOThread=True),
        legacy="AddVolume request for [data] requires virtio bus for IOThreads.",
        declarative="IOThreads are not supported for disks on a scsi bus",
        vmi="Hotplug configuration for [data] requires virtio bus for IOThreads.",
    ),
    Row(
        case="empty volumeSource",
        options=add_options("data") | {"volumeSource": {}},
        both="spec.template.spec.volumes[1] must have exactly one source type set",
        vmi="volume data is not a PVC or DataVolume",
    ),
    Row(
        case="serial characters",
        options=add_options("data", serial="a/b"),
        both=f"{TEMPLATE_DISK} {CHARACTERS}",
        vmi=f"{DISK} {CHARACTERS}",
    ),
    Row(
        case="serial > 256",
        options=add_options("data", serial="a" * 257),
        both=f"{TEMPLATE_DISK} {LENGTH}",
        vmi=f"{DISK} {LENGTH}",
    ),
    Row(case="serial of 256", options=add_options("data", serial="a" * 256)),
    Row(
        case="name > 63",
        options=add_options("a" * 64),
        both="must be no more than 63 characters",
        vmi="must be no more than 63 characters",
    ),
    Row(case="name of 63", options=add_options("a" * 63)),
    Row(case="name not a DNS-1123 label", options=add_options("Data", source="data"), both=LABEL, vmi=LABEL),
    Row(
        case="cache not none, writethrough or writeback",
        options=add_options("data", cache="fast"),
        both=f"{TEMPLATE_DISK}.cache has invalid value fast",
        vmi=f"{DISK}.cache has invalid value fast",
    ),
    Row(
        case="errorPolicy not stop, ignore, report or enospace",
        options=add_options("data", errorPolicy="x"),
        both=f'{TEMPLATE_DISK}.errorPolicy has invalid value "x"',
        vmi=f'{DISK}.errorPolicy has invalid value "x"',
    ),
    Row(
        case="shareable with cache writeback",
        options=add_options("data", shareable=True, cache="writeback"),
    ),
)
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.case)


def refused(answer: Answer, webhook: str, message: str) -> None:
    """Asserts that the webhook has refused with exactly this cause."""
    assert answer.refusal == (422, "Invalid", webhook + message)
    assert [cause["message"] for cause in answer.body["details"]["causes"]] == [message]


@ROWS
async def test_a_queued_request_of_legacy_mode(site: Site, kubevirt: KubeVirt, row: Row) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become("legacy")
    answer = await site.add(vm, row.options)
    if message := row.legacy or row.both:
        refused(answer, LEGACY_VM, message)
        assert (volumes_in(await site.vm(vm)), queue_in(await site.vm(vm))) == (["root"], [])
    else:
        assert answer.code == 202
        await vm_until_volumes(site, vm, "root", row.options["name"])


@ROWS
async def test_a_vms_spec_in_declarative_mode(site: Site, row: Row) -> None:
    vm = await stopped_vm(site)
    answer = await site.add(vm, row.options)
    if message := row.declarative or row.both:
        refused(answer, DECLARATIVE_VM, message)
        assert volumes_in(await site.vm(vm)) == ["root"]
    else:
        assert answer.code == 202
        assert volumes_in(await site.vm(vm)) == ["root", row.options["name"]]


@pytest.mark.parametrize("mode", ["legacy", "declarative"])
async def test_a_vmis_spec(site: Site, kubevirt: KubeVirt, mode: str, subtests: pytest.Subtests) -> None:
    vmi = await site.lone_vmi()
    await kubevirt.become("legacy" if mode == "legacy" else "declarative")
    for row in TABLE:
        with subtests.test(row.case):
            answer = await site.add(vmi, row.options | {"dryRun": ["All"]}, kind=VMI_ENDPOINT)
            if row.vmi:
                refused(answer, VMI, row.vmi)
            else:
                assert answer.code == 202


# What is under way with the VM


@asynccontextmanager
async def migrating(site: Site, vm: str) -> AsyncIterator[None]:
    """While the block runs, the VM's VMI is being migrated."""
    await site.vmi_until(vm, lambda vmi: condition_in(vmi, "LiveMigratable") == "True")
    await site.client.patch(f"{site.vms}/{vm}", {"metadata": {"annotations": {MIGRATION: "true"}}})
    try:
        await site.vmi_until(vm, lambda vmi: (vmi or {})["status"].get("migrationState"))
        yield
    finally:
        await site.client.patch(f"{site.vms}/{vm}", {"metadata": {"annotations": {MIGRATION: None}}})


async def test_migration_in_progress_in_legacy_mode_refuses_at_the_vm_and_not_at_the_vmi(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await site.running_vm()
    await kubevirt.become("legacy")
    async with migrating(site, vm):
        answer = await site.add(vm, add_options("data"))
        accepted = await site.add(vm, add_options("other"), kind=VMI_ENDPOINT)
    refused(answer, LEGACY_VM, "Cannot handle volume requests while VMI migration is in progress")
    assert accepted.code == 202


async def test_migration_in_progress_in_declarative_mode_answers_202_and_the_volume_enters_the_vmis_spec(
    site: Site,
) -> None:
    vm = await site.running_vm()
    async with migrating(site, vm):
        assert (await site.add(vm, add_options("data"))).code == 202
        await site.vmi_until(vm, lambda vmi: plugged_in(vmi) == ["root", "data"])


async def test_a_vm_snapshot_in_progress_in_declarative_mode_refuses(site: Site) -> None:
    vm = await stopped_vm(site, volumes=(hotplug("present"),))
    await set_snapshot(site, vm, "x")
    message = 'Cannot update vm disks or volumes until snapshot "x" completes'
    refused(await site.add(vm, add_options("data")), DECLARATIVE_VM, message)
    refused(await site.remove(vm, {"name": "present"}), DECLARATIVE_VM, message)
    await set_snapshot(site, vm, None)
    assert (await site.add(vm, add_options("data"))).code == 202


async def test_a_vm_snapshot_in_progress_in_legacy_mode_queues_and_holds_up_the_change_of_the_vms_spec(
    site: Site, kubevirt: KubeVirt
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.become("legacy")
    await set_snapshot(site, vm, "x")
    assert (await site.add(vm, add_options("data"))).code == 202
    states = await site.client.follow(site.vms, vm, lambda vm: failure_of(vm) != ("", ""))
    assert 'Cannot update vm disks or volumes until snapshot "x" completes' in failure_of(states[-1])[1]
    assert (volumes_in(states[-1]), len(queue_in(states[-1]))) == (["root"], 1)
    await set_snapshot(site, vm, None)
    await vm_until_volumes(site, vm, "root", "data")
    await site.client.follow(site.vms, vm, lambda vm: failure_of(vm) == ("", ""))


# KubeVirt up to v1.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            add_options("data", disk={"bus": "virtio"}),
            "AddVolume request for [data] requires disk bus to be 'scsi'. [virtio] is not permitted",
            id="disk bus virtio",
        ),
        pytest.param(
            add_options("data", disk={"bus": "sata"}),
            "AddVolume request for [data] requires disk bus to be 'scsi'. [sata] is not permitted",
            id="disk bus sata",
        ),
        pytest.param(
            add_options("data", dedicatedIOThread=True),
            "IOThreads are not supported by scsi bus.",
            id="dedicatedIOThread on scsi",
        ),
        pytest.param(add_options("data"), "", id="disk bus scsi"),
    ],
)
async def test_up_to_v1_5_a_vm_takes_scsi_only(site: Site, kubevirt: KubeVirt, options: Object, message: str) -> None:
    vm = await stopped_vm(site)
    await kubevirt.configure(version="v1.5.3", enabled=["HotplugVolumes"])
    answer = await site.add(vm, options)
    if message:
        refused(answer, LEGACY_VM, message)
    else:
        assert answer.code == 202


async def test_up_to_v1_5_a_vmi_takes_scsi_only(site: Site, kubevirt: KubeVirt, subtests: pytest.Subtests) -> None:
    vmi = await site.lone_vmi()
    await kubevirt.configure(version="v1.5.3", enabled=["HotplugVolumes"])
    for bus in ("virtio", "sata"):
        with subtests.test(bus):
            answer = await site.add(vmi, add_options("data", disk={"bus": bus}), kind=VMI_ENDPOINT)
            refused(answer, VMI, "hotplugged Disk data does not use a scsi bus")
    assert (await site.add(vmi, add_options("data"), kind=VMI_ENDPOINT)).code == 202


# Other texts of the VMI's webhook

OTHER = hotplug("other")
OTHER_DISK = {"name": "other", "disk": {"bus": "scsi"}}
ROOT = {"name": "root", "containerDisk": {"image": "root"}}
ROOT_DISK = {"name": "root", "disk": {"bus": "virtio"}}
DATA = hotplug("data")
DATA_DISK = {"name": "data", "disk": {"bus": "scsi"}}
CD_DRIVE = {"name": "drive", "cdrom": {"bus": "sata"}}


async def patch_lists(site: Site, standin: StandIn, vmi: str, *, volumes: list[Object], disks: list[Object]) -> Answer:
    """Sets volumes and disks of the VMI's spec as one of KubeVirt's own accounts."""
    body = {"spec": {"volumes": volumes, "domain": {"devices": {"disks": disks}}}}
    async with talk(standin.management.admin_kubeconfig, account=KUBEVIRT_ACCOUNT) as kubevirt_itself:
        return await kubevirt_itself.call(
            "PATCH", f"{site.vmis}/{vmi}", body, content_type="application/merge-patch+json"
        )


async def test_other_texts_of_the_vmis_webhook(site: Site, standin: StandIn, subtests: pytest.Subtests) -> None:
    vmi = await site.lone_vmi()
    assert (await site.add(vmi, add_options("data"), kind=VMI_ENDPOINT)).code == 202
    table: list[tuple[str, list[Object], list[Object]]] = [
        ("hotplug volume data, changed", [ROOT, hotplug("new") | {"name": "data"}], [ROOT_DISK, DATA_DISK]),
        ("hotplug disk data, changed", [ROOT, DATA], [ROOT_DISK, DATA_DISK | {"serial": "new"}]),
        (
            "volume other is not a PVC or DataVolume",
            [ROOT, DATA, {"name": "other", "emptyDisk": {"capacity": "1Mi"}}],
            [ROOT_DISK, DATA_DISK, OTHER_DISK],
        ),
        ("disk other does not exist", [ROOT, DATA, OTHER], [ROOT_DISK, DATA_DISK, {"name": "x", "disk": {}}]),
        ("Number of permanent volumes has changed", [DATA], [DATA_DISK]),
        ("mismatch between volumes declared (3) and required (2)", [ROOT, DATA, OTHER], [ROOT_DISK, DATA_DISK]),
        (
            "mismatch between volumes declared (3) and required (2)",
            [ROOT, DATA, OTHER],
            [ROOT_DISK, DATA_DISK, CD_DRIVE],
        ),
    ]
    for message, volumes, disks in table:
        with subtests.test(message):
            answer = await patch_lists(site, standin, vmi, volumes=volumes, disks=disks)
            refused(answer, VMI, message)
    allowed = await patch_lists(
        site, standin, vmi, volumes=[ROOT, DATA, OTHER], disks=[ROOT_DISK, DATA_DISK, OTHER_DISK]
    )
    assert allowed.code == 200


async def test_nobody_but_kubevirt_changes_a_vmis_spec(site: Site) -> None:
    vmi = await site.lone_vmi()
    patch = {"spec": {"evictionStrategy": "None"}}
    answer = await site.client.call("PATCH", f"{site.vmis}/{vmi}", patch, content_type="application/merge-patch+json")
    refused(answer, VMI, "update of VMI object is restricted")
