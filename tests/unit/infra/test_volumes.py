"""A new DataVolume: whose name is taken, the driver finds out by trying."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kubevirt_csi.domain.growth import Growth
from kubevirt_csi.domain.infra_volumes import Claim, InfraVolume, NewVolume
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import DriverError, InvalidArgument, OutOfRange, PermissionDenied, ResourceExhausted
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.volumes import InfraVolumes
from kubevirt_csi.ports.infra import Stale
from tests.unit.infra.fake_api import FakeApi, found, status

WEBHOOK = 'admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: '
NEW = NewVolume(
    id="pvc-1",
    name="pvc-1",
    size_bytes=2**30,
    storage_class=None,
    read_write_many=False,
    serial="0123456789abcdef0123",
    bus=Bus.SCSI,
    digest="",
)


@pytest.fixture
def volumes(connection: Connection) -> InfraVolumes:
    return InfraVolumes(connection, labels={"tenant": "a"})


@pytest.mark.parametrize(
    ("code", "reason", "text"),
    [
        pytest.param(409, "AlreadyExists", 'datavolumes "pvc-1" already exists', id="by a DataVolume"),
        pytest.param(422, "Invalid", f"{WEBHOOK}Destination PVC tenant-a/pvc-1 already exists", id="by a claim"),
    ],
)
async def test_a_name_that_is_taken_is_no_error_yet(
    volumes: InfraVolumes, api: FakeApi, code: int, reason: str, text: str
) -> None:
    api.answers(status(code, reason, text))
    assert await volumes.create(NEW) is None


async def test_what_cdi_refuses_otherwise_is_told(volumes: InfraVolumes, api: FakeApi) -> None:
    api.answers(status(422, "Invalid", f"{WEBHOOK}PVC size is missing"))
    with pytest.raises(InvalidArgument, match="PVC size is missing"):
        await volumes.create(NEW)


HELD = InfraVolume(
    id="pvc-1",
    data_volume=None,
    claim=Claim(uid="c", resource_version="7", phase="Bound", size_bytes=2**30, storage_class="fast"),
    serial="s",
    bus=None,
)
LARGER = Growth(claim_bytes=2 * 2**30, size_bytes=2**30 + 2**20)
NO_RESIZE = "the storageclass that provisions the pvc must support resize"
RESIZE = 'persistentvolumeclaims "pvc-1" is forbidden: '


async def test_a_growth_is_one_write_of_size_and_promise_guarded_by_what_was_read(
    volumes: InfraVolumes, api: FakeApi
) -> None:
    written = {
        "metadata": {"uid": "c", "resourceVersion": "8", "annotations": {"csi.kubevirt.io/size": "1074790400"}},
        "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "2Gi"}}},
        "status": {
            "phase": "Bound",
            "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
            "conditions": [{"type": "Resizing", "status": "True", "message": "soon"}],
        },
    }
    api.answers(found(written))
    volume = await volumes.resize(HELD, LARGER)
    (seen,) = api.seen
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/tenant-a/persistentvolumeclaims/pvc-1")
    assert [(step["path"], step["value"]) for step in seen.body if step["op"] != "test"] == [
        ("/metadata/annotations", {}),
        ("/metadata/annotations/csi.kubevirt.io~1size", "1074790400"),
        ("/spec/resources/requests/storage", "2Gi"),
    ]
    tested = {step["path"]: step["value"] for step in seen.body if step["op"] == "test"}
    assert (tested["/metadata/uid"], tested["/metadata/resourceVersion"]) == ("c", "7")
    assert volume.promised_bytes == 1074790400
    claim = volume.claim
    assert claim is not None
    assert (claim.size_bytes, claim.capacity_bytes, claim.allocated_bytes) == (2 * 2**30, 2**30, 2 * 2**30)
    assert claim.resize_state == "ControllerResizeInProgress"
    assert [(each.type, each.message) for each in claim.conditions] == [("Resizing", "soon")]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        pytest.param(
            (403, "Forbidden", f"{RESIZE}{NO_RESIZE}"),
            OutOfRange,
            id="a class that does not let its claims grow",
        ),
        pytest.param((403, "Forbidden", f"{RESIZE}exceeded quota: full"), ResourceExhausted, id="a quota"),
        pytest.param((403, "Forbidden", f'{RESIZE}User "u" cannot patch it'), PermissionDenied, id="no right"),
        pytest.param((422, "Invalid", "spec is immutable after creation"), InvalidArgument, id="the API server"),
        pytest.param((409, "Conflict", "the object has been modified"), Stale, id="a change meanwhile"),
        pytest.param((404, "NotFound", f"{RESIZE}not found"), Stale, id="a deletion meanwhile"),
    ],
)
async def test_a_growth_that_is_refused_says_by_whom_in_the_servers_words(
    volumes: InfraVolumes, api: FakeApi, refusal: tuple[int, str, str], error: type[DriverError]
) -> None:
    api.answers(status(*refusal))
    with pytest.raises(error) as refused:
        await volumes.resize(HELD, LARGER)
    assert refusal[2] in str(refused.value)


@pytest.mark.parametrize(
    ("overhead", "expected"),
    [
        pytest.param({"global": "0.08", "storageClass": {"fast": "0.1"}}, Fraction(1, 10), id="of the class"),
        pytest.param({"global": "0.08", "storageClass": {"slow": "0.1"}}, Fraction(8, 100), id="of all classes"),
        pytest.param({}, Fraction(6, 100), id="none"),
        pytest.param({"global": "1.0"}, Fraction(6, 100), id="one that leaves nothing"),
    ],
)
async def test_the_overhead_is_what_cdi_is_configured_with(
    volumes: InfraVolumes, api: FakeApi, overhead: dict[str, object], expected: Fraction
) -> None:
    api.answers(found({"status": {"filesystemOverhead": overhead}}))
    assert await volumes.file_system_overhead(HELD) == expected
    assert api.seen[0].path == "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config"


async def test_without_cdis_configuration_its_default_overhead_counts(volumes: InfraVolumes, api: FakeApi) -> None:
    for refusal in (status(404, "NotFound", 'cdiconfigs "config" not found'), status(403, "Forbidden", "cannot get")):
        api.answers(refusal)
        assert await volumes.file_system_overhead(HELD) == Fraction(6, 100)
