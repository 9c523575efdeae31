"""Hot-plug requests: what is sent, and what virt-api's answers mean."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.machines import Plug
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unavailable
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.machines import InfraMachines
from kubevirt_csi.infra.selectors import Selector
from kubevirt_csi.ports.infra import Postponed, Stale
from tests.unit.infra.fake_api import FakeApi, Handler, answer, status

PLUG = Plug(volume_id="pvc-1", serial="0123456789abcdef0123", bus=Bus.VIRTIO)
WEBHOOK = 'admission webhook "virtualmachine-validator.kubevirt.io" denied the request: '
GATES_OFF = "Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API."
OLD_GATE_OFF = "Unable to Add Volume because HotplugVolumes feature gate is not enabled."
CONFLICT = 'Operation cannot be fulfilled on virtualmachine.kubevirt.io "worker-1": '
VM = {"name": "worker-1", "kind": "virtualmachine"}


@pytest.fixture
def machines(connection: Connection) -> InfraMachines:
    return InfraMachines(connection, selector=Selector())


async def test_a_disk_is_plugged_by_the_subresource_of_the_vm(machines: InfraMachines, api: FakeApi) -> None:
    api.answers(answer(202))
    await machines.add_volume("worker-1", PLUG)
    seen = api.seen[0]
    path = "/apis/subresources.kubevirt.io/v1/namespaces/tenant-a/virtualmachines/worker-1/addvolume"
    assert (seen.method, seen.path) == ("PUT", path)
    assert seen.body == {
        "name": "pvc-1",
        "disk": {
            "name": "pvc-1",
            "disk": {"bus": "virtio"},
            "serial": "0123456789abcdef0123",
            "errorPolicy": "report",
        },
        "volumeSource": {"dataVolume": {"name": "pvc-1", "hotpluggable": True}},
    }


async def test_a_shared_read_only_disk_of_a_bare_claim_says_so(machines: InfraMachines, api: FakeApi) -> None:
    api.answers(answer(202))
    plug = Plug(volume_id="pvc-1", serial="s", bus=Bus.SCSI, read_only=True, shared=True, bare_claim=True)
    await machines.add_volume("worker-1", plug)
    body = api.seen[0].body
    assert body["disk"]["disk"] == {"bus": "scsi", "readonly": True}
    assert body["disk"]["shareable"] is True
    assert body["volumeSource"] == {"persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": True}}


async def test_a_disk_is_unplugged_by_its_volume_name(machines: InfraMachines, api: FakeApi) -> None:
    api.answers(answer(202))
    await machines.remove_volume("worker-1", "pvc-1")
    await machines.remove_volume_from_instance("worker-1", "pvc-1")
    root = "/apis/subresources.kubevirt.io/v1/namespaces/tenant-a"
    assert [(seen.path, seen.body) for seen in api.seen] == [
        (f"{root}/virtualmachines/worker-1/removevolume", {"name": "pvc-1"}),
        (f"{root}/virtualmachineinstances/worker-1/removevolume", {"name": "pvc-1"}),
    ]


@pytest.mark.parametrize(
    ("handler", "error", "text"),
    [
        pytest.param(
            status(409, "Conflict", f"{CONFLICT}Unable to add volume [pvc-1] because volume with that name exists"),
            Stale,
            "with that name",
            id="exists",
        ),
        pytest.param(status(409, "Conflict", f"{CONFLICT}VMI is not running"), Stale, "not running", id="not running"),
        pytest.param(
            status(422, "Invalid", "the server rejected our request due to an error in our request"),
            Stale,
            "rejected",
            id="lost race",
        ),
        pytest.param(
            status(422, "Invalid", f"{WEBHOOK}spec.template.spec.volumes[1] must have exactly one source type set"),
            InvalidArgument,
            "exactly one source",
            id="admission",
        ),
        pytest.param(
            status(400, "BadRequest", GATES_OFF),
            FailedPrecondition,
            r"enable the feature gate DeclarativeHotplugVolumes .* or HotplugVolumes",
            id="both gates off",
        ),
        pytest.param(
            status(400, "BadRequest", OLD_GATE_OFF),
            FailedPrecondition,
            r"enable the feature gate DeclarativeHotplugVolumes .* or HotplugVolumes",
            id="gate off, KubeVirt before 1.6",
        ),
        pytest.param(
            status(400, "BadRequest", "VMI tenant-a/worker-1 is owned by a VM"),
            FailedPrecondition,
            "HotplugVolumes off only the VM can be changed",
            id="owned",
        ),
        pytest.param(
            status(422, "Invalid", f"{WEBHOOK}Cannot handle volume requests while VMI migration is in progress"),
            Postponed,
            "repeated when that has ended",
            id="migration",
        ),
        pytest.param(
            status(422, "Invalid", f'{WEBHOOK}Cannot update vm disks or volumes until snapshot "s" completes'),
            Postponed,
            "repeated when that has ended",
            id="snapshot",
        ),
        pytest.param(
            status(404, "NotFound", 'virtualmachine.kubevirt.io "worker-1" not found', details=VM),
            NotFound,
            '"worker-1" not found',
            id="no VM",
        ),
        pytest.param(answer(503, "service unavailable\n"), Unavailable, "service unavailable", id="virt-api down"),
        pytest.param(
            status(403, "Forbidden", 'User "u" cannot update resource "virtualmachines/addvolume"'),
            PermissionDenied,
            "update virtualmachines/addvolume",
            id="403",
        ),
        pytest.param(
            status(500, "InternalError", "unable to patch vm: x"), Unavailable, "unable to patch vm", id="500"
        ),
    ],
)
async def test_each_refusal_says_what_it_means_for_the_caller(
    machines: InfraMachines, api: FakeApi, handler: Handler, error: type[Exception], text: str
) -> None:
    api.answers(handler)
    with pytest.raises(error, match=text) as raised:
        await machines.add_volume("worker-1", PLUG)
    assert type(raised.value) is error
    assert "'worker-1'" in str(raised.value)
    assert len(api.seen) == 1
