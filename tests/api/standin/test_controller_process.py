"""The controller as a program, on a cluster that has everything it watches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from grpclib.client import Channel

from kubevirt_csi._csi.csi import v1 as csi
from tests.api.standin.conftest import StandIn
from tests.api.standin.site import Site
from tests.api.standin.test_controller import create, publish
from tests.controller_process import Role, controller, until_ready

LIMIT_KIB = 120 * 1024
CALL_SECONDS = 60


def resident_kib(role: Role) -> int:
    status = Path(f"/proc/{role.process.pid}/status").read_text()
    [found] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
    return found


@pytest.mark.timeout(240)
async def test_a_controller_that_has_worked_keeps_to_its_memory(
    standin: StandIn, site: Site, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    node_id = f"{site.namespace}/{await site.running_vm()}"
    async with controller(tmp_path, standin.management.admin_kubeconfig, namespace=site.namespace) as role:
        await until_ready(role)
        async with Channel(path=str(role.socket)) as channel:
            stub = csi.ControllerStub(channel)
            await stub.create_volume(create("pvc-a"), timeout=CALL_SECONDS)
            await stub.controller_publish_volume(publish("pvc-a", node_id), timeout=CALL_SECONDS)
            await stub.controller_unpublish_volume(
                csi.ControllerUnpublishVolumeRequest(volume_id="pvc-a", node_id=node_id), timeout=CALL_SECONDS
            )
            await stub.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-a"), timeout=CALL_SECONDS)
        record_property("resident_mib", round(resident_kib(role) / 1024, 1))
        assert resident_kib(role) <= LIMIT_KIB
