"""Answers of addvolume and removevolume to bodies that say too little or cannot be read; the same in every mode."""

from __future__ import annotations

import pytest

from tests.api.standin.hotplugging import VM_ENDPOINT, VMI_ENDPOINT, Call, Endpoint, volumes_in
from tests.api.standin.modes import KubeVirt, Mode
from tests.api.standin.site import SUBRESOURCES, Site

UNREADABLE = "Can not unmarshal Request body to struct, error: "


@pytest.mark.parametrize("endpoint", [VM_ENDPOINT, VMI_ENDPOINT])
@pytest.mark.parametrize("mode", ["legacy", "declarative"])
@pytest.mark.parametrize(
    ("call", "body", "message"),
    [
        pytest.param("add", b"", "AddVolumeOptions requires name to be set", id="add: empty body"),
        pytest.param("add", b"{}", "AddVolumeOptions requires name to be set", id="add: no name"),
        pytest.param("remove", b"", "RemoveVolumeOptions requires name to be set", id="remove: empty body"),
        pytest.param("remove", b"{}", "RemoveVolumeOptions requires name to be set", id="remove: no name"),
        pytest.param(
            "add", b'{"name": "data", "volumeSource": {}}', "AddVolumeOptions requires disk to not be nil", id="no disk"
        ),
        pytest.param(
            "add",
            b'{"name": "data", "disk": {}}',
            "AddVolumeOptions requires VolumeSource to not be nil",
            id="no source",
        ),
        pytest.param("add", b"{", UNREADABLE, id="add: not parseable"),
        pytest.param("remove", b"[]", UNREADABLE, id="remove: not parseable"),
    ],
)
async def test_a_bad_body_is_a_bad_request(
    site: Site, kubevirt: KubeVirt, *, mode: Mode, endpoint: Endpoint, call: Call, body: bytes, message: str
) -> None:
    await kubevirt.become(mode)
    # The body is looked at before the machine, so there need be none.
    code, reason, text = (await getattr(site, call)("ghost", body, kind=endpoint)).refusal
    assert (code, reason) == (400, "BadRequest")
    assert text == message or (message == UNREADABLE and text.startswith(UNREADABLE))


async def test_a_body_in_yaml_with_unknown_fields_is_good(site: Site) -> None:
    vm = await site.create_vm(run_strategy="Halted")
    body = b"name: data\ndisk: {disk: {bus: scsi}}\nvolumeSource: {dataVolume: {name: data}}\nunknown: field\n"
    path = f"{SUBRESOURCES}/namespaces/{site.namespace}/virtualmachines/{vm}/addvolume"
    assert (await site.client.call("PUT", path, body, content_type="text/plain")).code == 202
    assert volumes_in(await site.vm(vm)) == ["root", "data"]
