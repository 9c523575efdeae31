"""What addvolume and removevolume answer in declarative mode: one test for each table of KubeVirt's virt-api v1.9."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.api.standin.site import SUBRESOURCES, Site, add_options, hotplug
from tests.api.standin.talking import Object

VM_ENDPOINT, VMI_ENDPOINT = "virtualmachines", "virtualmachineinstances"
Endpoint = Literal["virtualmachines", "virtualmachineinstances"]
VM_VALIDATOR = 'admission webhook "virtualmachine-validator.kubevirt.io" denied the request: '
DISK = "spec.template.spec.domain.devices.disks[1]"


def volumes_in(vm: Object) -> list[str]:
    return [volume["name"] for volume in vm["spec"]["template"]["spec"]["volumes"]]


def disks_in(vm: Object) -> list[str]:
    return [disk["name"] for disk in vm["spec"]["template"]["spec"]["domain"]["devices"]["disks"]]


async def machine_of(site: Site, endpoint: Endpoint) -> str:
    """A machine that the endpoint can change: a stopped VM, or a running VMI without a VM."""
    return await (site.create_vm(run_strategy="Halted") if endpoint == VM_ENDPOINT else site.lone_vmi())


# Success


async def test_adding_to_a_stopped_vm_answers_202_with_an_empty_body_and_writes_its_spec(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    answer = await site.add(vm, add_options("data", serial="abc", errorPolicy="report"))
    assert (answer.code, answer.text) == (202, "")
    written = (await site.vm(vm))["spec"]["template"]["spec"]
    assert written["volumes"][1] == {"name": "data", "dataVolume": {"name": "data", "hotpluggable": True}}
    assert written["domain"]["devices"]["disks"][1] == {
        "name": "data",
        "disk": {"bus": "scsi"},
        "serial": "abc",
        "errorPolicy": "report",
    }


async def test_removing_answers_202_with_an_empty_body_and_clears_the_spec(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted", volumes=(hotplug("data"),))
    answer = await site.remove(vm, {"name": "data"})
    assert (answer.code, answer.text) == (202, "")
    assert (volumes_in(await site.vm(vm)), disks_in(await site.vm(vm))) == (["root"], ["root"])


async def test_the_options_name_overrides_the_disks_name(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    assert (await site.add(vm, add_options("data") | {"disk": {"name": "other", "disk": {"bus": "scsi"}}})).code == 202
    assert disks_in(await site.vm(vm)) == ["root", "data"]


async def test_removing_by_the_claims_name_answers_202_and_does_nothing(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted", volumes=(hotplug("data") | {"name": "volume"},))
    assert (await site.remove(vm, {"name": "data"})).code == 202
    assert volumes_in(await site.vm(vm)) == ["root", "volume"]


async def test_the_older_version_of_the_group_is_served_too(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    path = f"{SUBRESOURCES}alpha3/namespaces/{site.namespace}/virtualmachines/{vm}/addvolume"
    assert (await site.client.call("PUT", path, add_options("data"))).code == 202


# Not found and wrong state


@pytest.mark.parametrize("call", ["add", "remove"])
@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        pytest.param(VM_ENDPOINT, "virtualmachine", id="VM does not exist"),
        pytest.param(VMI_ENDPOINT, "virtualmachineinstance", id="VMI does not exist"),
    ],
)
async def test_a_machine_that_does_not_exist_is_not_found(
    site: Site, endpoint: Endpoint, kind: str, call: Literal["add", "remove"]
) -> None:
    answer = await getattr(site, call)("ghost", add_options("data"), kind=endpoint)
    assert answer.refusal == (404, "NotFound", f'{kind}.kubevirt.io "ghost" not found')
    assert answer.body["details"] == {"name": "ghost", "group": "kubevirt.io", "kind": kind}


async def test_a_vmi_that_does_not_run_is_a_conflict(site: Site) -> None:
    vmi = await site.waiting_vmi()
    answer = await site.add(vmi, add_options("data"), kind=VMI_ENDPOINT)
    message = f'Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io "{vmi}": VMI is not running'
    assert answer.refusal == (409, "Conflict", message)


async def test_a_vmi_of_a_vm_is_refused_before_its_phase_is_looked_at(site: Site) -> None:
    vm = await site.create_vm(volumes=(hotplug("missing"),))
    await site.vmi_until(vm, lambda vmi: vmi is not None)
    answer = await site.add(vm, add_options("data"), kind=VMI_ENDPOINT)
    assert answer.refusal == (400, "BadRequest", f"VMI {site.namespace}/{vm} is owned by a VM")


async def test_a_vm_that_is_being_deleted_accepts_anything(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    await site.client.patch(f"{site.vms}/{vm}", {"metadata": {"finalizers": ["test.example.com/held"]}})
    await site.client.delete(f"{site.vms}/{vm}")
    try:
        answer = await site.add(vm, add_options("data", serial="not allowed"))
        assert (answer.code, answer.text) == (202, "")
    finally:
        await site.client.patch(f"{site.vms}/{vm}", {"metadata": {"finalizers": []}})


# Duplicates and missing


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        pytest.param(VM_ENDPOINT, "virtualmachine", id="VM"),
        pytest.param(VMI_ENDPOINT, "virtualmachineinstance", id="VMI"),
    ],
)
async def test_duplicates_and_missing_volumes_are_conflicts(site: Site, endpoint: Endpoint, kind: str) -> None:
    machine = await machine_of(site, endpoint)
    assert (await site.add(machine, add_options("data", source="claim"), kind=endpoint)).code == 202
    prefix = f'Operation cannot be fulfilled on {kind}.kubevirt.io "{machine}": '
    details = {"name": machine, "group": "kubevirt.io", "kind": kind}
    table: list[tuple[str, Any, str]] = [
        (
            "add",
            add_options("data", source="other"),
            "Unable to add volume [data] because volume with that name already exists",
        ),
        (
            "add",
            add_options("other", source="claim"),
            "Unable to add volume source [claim] because it already exists",
        ),
        (
            "add",
            add_options("other") | {"volumeSource": {"persistentVolumeClaim": {"claimName": "claim"}}},
            "Unable to add volume source [claim] because it already exists",
        ),
        ("remove", {"name": "ghost"}, "Unable to remove volume [ghost] because it does not exist"),
        ("remove", {"name": "root"}, "Unable to remove volume [root] because it is not hotpluggable"),
    ]
    for call, options, message in table:
        answer = await getattr(site, call)(machine, options, kind=endpoint)
        assert answer.refusal == (409, "Conflict", prefix + message)
        assert answer.body["details"] == details


# Body errors


@pytest.mark.parametrize(
    ("call", "body", "message"),
    [
        pytest.param("add", b"", "AddVolumeOptions requires name to be set", id="add: empty body"),
        pytest.param("add", b"{}", "AddVolumeOptions requires name to be set", id="add: no name"),
        pytest.param("remove", b"", "RemoveVolumeOptions requires name to be set", id="remove: empty body"),
        pytest.param("remove", b"{}", "RemoveVolumeOptions requires name to be set", id="remove: no name"),
        pytest.param(
            "add",
            b'{"name": "data", "volumeSource": {}}',
            "AddVolumeOptions requires disk to not be nil",
            id="no disk",
        ),
        pytest.param(
            "add",
            b'{"name": "data", "disk": {}}',
            "AddVolumeOptions requires VolumeSource to not be nil",
            id="no source",
        ),
        pytest.param("add", b"{", "Can not unmarshal Request body to struct, error: ", id="add: not parseable"),
        pytest.param("remove", b"[]", "Can not unmarshal Request body to struct, error: ", id="remove: not parseable"),
    ],
)
async def test_a_bad_body_is_a_bad_request(site: Site, call: str, body: bytes, message: str) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    code, reason, text = (await getattr(site, call)(vm, body)).refusal
    assert (code, reason) == (400, "BadRequest")
    assert text == message or (message.endswith("error: ") and text.startswith(message))


async def test_a_body_in_yaml_with_unknown_fields_is_good(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    body = b"name: data\ndisk: {disk: {bus: scsi}}\nvolumeSource: {dataVolume: {name: data}}\nunknown: field\n"
    path = f"{SUBRESOURCES}/namespaces/{site.namespace}/virtualmachines/{vm}/addvolume"
    assert (await site.client.call("PUT", path, body, content_type="text/plain")).code == 202
    assert volumes_in(await site.vm(vm)) == ["root", "data"]


# Admission errors, declarative VM


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            add_options("data", disk={"bus": "scsi"}, dedicatedIOThread=True),
            "IOThreads are not supported for disks on a scsi bus",
            id="dedicatedIOThread on scsi",
        ),
        pytest.param(
            add_options("data") | {"volumeSource": {}},
            "spec.template.spec.volumes[1] must have exactly one source type set",
            id="empty volumeSource",
        ),
        pytest.param(
            add_options("data", serial="a/b"),
            f"{DISK} must be made up of the following characters [A-Za-z0-9_.+-], if specified",
            id="serial characters",
        ),
        pytest.param(
            add_options("data", serial="a" * 257),
            f"{DISK} must be less than or equal to 256 in length, if specified",
            id="serial > 256",
        ),
        pytest.param(add_options("a" * 64), "must be no more than 63 characters", id="name > 63"),
        pytest.param(
            add_options("Data", source="data"),
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and"
            " end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
            " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            id="name not a DNS-1123 label",
        ),
        pytest.param(add_options("data", cache="fast"), f"{DISK}.cache has invalid value fast", id="cache"),
        pytest.param(
            add_options("data", errorPolicy="x"), f'{DISK}.errorPolicy has invalid value "x"', id="errorPolicy"
        ),
    ],
)
async def test_the_vms_webhook_refuses_with_422(site: Site, options: Object, message: str) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    answer = await site.add(vm, options)
    assert answer.refusal == (422, "Invalid", VM_VALIDATOR + message)
    assert [cause["message"] for cause in answer.body["details"]["causes"]] == [message]
    assert volumes_in(await site.vm(vm)) == ["root"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(add_options("data", disk={"bus": "sata"}), id="disk bus not scsi or virtio"),
        pytest.param(add_options("data", disk={}), id="disk bus empty"),
        pytest.param({**add_options("data"), "disk": {"lun": {"bus": "virtio"}}}, id="lun bus not scsi"),
        pytest.param({**add_options("data"), "disk": {"cdrom": {"bus": "scsi"}}}, id="neither disk nor lun"),
        pytest.param(add_options("data", shareable=True, cache="writeback"), id="shareable with cache writeback"),
        pytest.param(add_options("data", serial="a" * 256), id="serial of 256"),
        pytest.param(add_options("a" * 63), id="name of 63"),
    ],
)
async def test_the_vms_webhook_lets_through_what_fails_later(site: Site, options: Object) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    assert (await site.add(vm, options)).code == 202
    assert volumes_in(await site.vm(vm)) == ["root", options["name"]]


# Admission errors, VMI

VMI_VALIDATOR = 'admission webhook "virtualmachineinstances-update-validator.kubevirt.io" denied the request: '


async def test_the_vmis_webhook_refuses_impossible_devices_with_422(site: Site) -> None:
    vmi = await site.lone_vmi()
    table: list[tuple[Object, str]] = [
        (
            add_options("data", disk={"bus": "sata"}),
            "Hotplug configuration for disk [data] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted.",
        ),
        (
            add_options("data", disk={}),
            "Hotplug configuration for disk [data] requires bus to be 'scsi' or 'virtio'. [] is not permitted.",
        ),
        (
            {**add_options("data"), "disk": {"lun": {"bus": "virtio"}}},
            "Hotplug configuration for LUN [data] requires bus to be 'scsi'. [virtio] is not permitted.",
        ),
        (
            {**add_options("data"), "disk": {"cdrom": {"bus": "scsi"}}},
            "Hotplug configuration for [data] requires diskDevice of type 'disk' or 'lun' to be used.",
        ),
    ]
    for options, message in table:
        answer = await site.add(vmi, options, kind=VMI_ENDPOINT)
        assert answer.refusal == (422, "Invalid", VMI_VALIDATOR + message)
        assert [cause["message"] for cause in answer.body["details"]["causes"]] == [message]


# Dry runs


async def test_a_dry_run_answers_202_and_stores_nothing(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    assert (await site.add(vm, add_options("data") | {"dryRun": ["All"]})).code == 202
    assert volumes_in(await site.vm(vm)) == ["root"]


async def test_a_dry_run_is_validated(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    assert (await site.add(vm, add_options("data", serial="a/b") | {"dryRun": ["All"]})).code == 422


async def test_an_unknown_dry_run_is_really_done(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    assert (await site.add(vm, add_options("data") | {"dryRun": ["bogus"]})).code == 202
    assert volumes_in(await site.vm(vm)) == ["root", "data"]


async def test_an_empty_dry_run_list_drops_the_connection(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    answer = await site.add(vm, add_options("data") | {"dryRun": []})
    assert (answer.code, answer.text.strip()) == (503, "error trying to reach service: EOF")
    assert volumes_in(await site.vm(vm)) == ["root"]
