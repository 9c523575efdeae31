"""Mutations of one volume: an equal one joins, another is turned away, and none depends on its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from kubevirt_csi import errors
from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.rpc.mutations import VOLUME_FIELDS, mutation_of
from tests.unit.rpc.conftest import Served
from tests.unit.rpc.services import Latch, raising, succeed

DELETE = csi.DeleteVolumeRequest(volume_id="pvc-1")


async def status_of(call: Awaitable[object]) -> Status:
    try:
        await call
    except GRPCError as error:
        return error.status
    return Status.OK


async def test_an_equal_request_joins_the_running_mutation(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    first = asyncio.create_task(served.stub.delete_volume(DELETE))
    await latch.entered.wait()
    second = asyncio.create_task(served.stub.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-1")))
    await served.joined("pvc-1", calls=2)
    latch.open()
    await asyncio.gather(first, second)
    assert served.controller.runs == 1


async def test_equal_maps_written_in_another_order_are_equal_requests(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    one = csi.CreateVolumeRequest(name="pvc-1", parameters={"a": "1", "b": "2"})
    other = csi.CreateVolumeRequest(name="pvc-1", parameters={"b": "2", "a": "1"})
    assert bytes(one) != bytes(other)
    first = asyncio.create_task(served.stub.create_volume(one))
    await latch.entered.wait()
    second = asyncio.create_task(served.stub.create_volume(other))
    await served.joined("pvc-1", calls=2)
    latch.open()
    assert await first == await second
    assert served.controller.runs == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            csi.ControllerPublishVolumeRequest(volume_id="pvc-1", node_id="tenant-a/worker-2"), id="another node"
        ),
        pytest.param(
            csi.ControllerPublishVolumeRequest(volume_id="pvc-1", node_id="tenant-a/worker-1", readonly=True),
            id="the same node with another digest",
        ),
    ],
)
async def test_another_mutation_of_the_volume_is_aborted_at_once(
    served: Served, other: csi.ControllerPublishVolumeRequest
) -> None:
    latch = Latch(waiting_for="the hot-plug")
    served.controller.behaviour = latch
    publish = csi.ControllerPublishVolumeRequest(volume_id="pvc-1", node_id="tenant-a/worker-1")
    first = asyncio.create_task(served.stub.controller_publish_volume(publish))
    await latch.entered.wait()
    with pytest.raises(GRPCError) as caught:
        await served.stub.controller_publish_volume(other)
    assert caught.value.status is Status.ABORTED
    assert caught.value.message is not None
    assert "ControllerPublishVolume for node tenant-a/worker-1 is still running, still waiting for the hot-plug" in (
        caught.value.message
    )
    latch.open()
    await first


async def test_a_create_and_a_delete_of_one_volume_meet(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    first = asyncio.create_task(served.stub.create_volume(csi.CreateVolumeRequest(name="pvc-1")))
    await latch.entered.wait()
    assert await status_of(served.stub.delete_volume(DELETE)) is Status.ABORTED
    latch.open()
    await first


async def test_mutations_of_two_volumes_run_side_by_side(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    first = asyncio.create_task(served.stub.delete_volume(DELETE))
    await latch.entered.wait()
    served.controller.behaviour = succeed
    await served.stub.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-2"))
    latch.open()
    await first


async def test_a_mutation_goes_on_when_its_caller_goes_away_and_the_retry_joins_it(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    caller = asyncio.create_task(served.stub.delete_volume(DELETE))
    await latch.entered.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    retry = asyncio.create_task(served.stub.delete_volume(DELETE))
    await served.joined("pvc-1", calls=2)
    latch.open()
    await retry
    assert (served.controller.runs, served.controller.ended) == (1, 1)


async def test_the_next_mutation_starts_anew_when_the_last_has_failed(served: Served) -> None:
    served.controller.behaviour = raising(errors.Unavailable("no answer"))
    assert await status_of(served.stub.delete_volume(DELETE)) is Status.UNAVAILABLE
    served.controller.behaviour = succeed
    assert await status_of(served.stub.delete_volume(DELETE)) is Status.OK


async def test_all_who_joined_get_the_same_error(served: Served) -> None:
    latch = Latch()

    async def fail_later() -> None:
        await latch()
        raise errors.FailedPrecondition("in use")

    served.controller.behaviour = fail_later
    first = asyncio.create_task(status_of(served.stub.delete_volume(DELETE)))
    await latch.entered.wait()
    second = asyncio.create_task(status_of(served.stub.delete_volume(DELETE)))
    await served.joined("pvc-1", calls=2)
    latch.open()
    assert list(await asyncio.gather(first, second)) == [Status.FAILED_PRECONDITION, Status.FAILED_PRECONDITION]
    assert served.controller.runs == 1


@pytest.mark.parametrize("method", sorted(VOLUME_FIELDS))
def test_each_mutation_names_its_volume_by_a_field_of_its_request(method: str) -> None:
    service, name = method.removeprefix("/csi.v1.").split("/")
    request = getattr(csi, f"{name}Request")(**{VOLUME_FIELDS[method]: "pvc-1"})
    assert method in getattr(csi, f"{service}Base")().__mapping__()
    mutation = mutation_of(method, request)
    assert mutation is not None
    assert mutation.volume == "pvc-1"


def test_a_request_without_a_volume_is_left_to_the_service_to_refuse() -> None:
    assert mutation_of("/csi.v1.Controller/DeleteVolume", csi.DeleteVolumeRequest()) is None
