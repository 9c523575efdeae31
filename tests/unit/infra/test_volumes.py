"""A new DataVolume: whose name is taken, the driver finds out by trying."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.infra_volumes import NewVolume
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import InvalidArgument
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.volumes import InfraVolumes
from tests.unit.infra.fake_api import FakeApi, status

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
