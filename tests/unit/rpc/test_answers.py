"""Which status and text a caller gets, over a real socket, or without one where time is made up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.testing import ChannelFor

from kubevirt_csi import errors
from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.rpc.calls import Calls
from kubevirt_csi.rpc.gate import Gate
from kubevirt_csi.rpc.running import RunningMutations
from tests.unit.rpc.conftest import Served
from tests.unit.rpc.services import Latch, ScriptedController, raising

VOLUME = csi.DeleteVolumeRequest(volume_id="pvc-1")


async def refusal(served: Served) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await served.stub.delete_volume(VOLUME, timeout=30)
    return caught.value


async def test_a_reply_reaches_its_caller(served: Served) -> None:
    reply = await served.stub.create_volume(csi.CreateVolumeRequest(name="pvc-1"))
    assert reply.volume == csi.Volume(volume_id="pvc-1", capacity_bytes=1)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(kind("what was found"), id=kind.__name__)
        for kind in (
            errors.Aborted,
            errors.Unavailable,
            errors.DeadlineExceeded,
            errors.InvalidArgument,
            errors.NotFound,
            errors.AlreadyExists,
            errors.FailedPrecondition,
            errors.OutOfRange,
            errors.PermissionDenied,
            errors.ResourceExhausted,
            errors.Unimplemented,
            errors.Internal,
        )
    ],
)
async def test_an_error_of_ours_keeps_its_status_and_text_and_names_the_volume(
    served: Served, error: errors.DriverError
) -> None:
    served.controller.behaviour = raising(error)
    answer = await refusal(served)
    assert (answer.status, answer.message, answer.details) == (error.status, "volume pvc-1: what was found", None)


@pytest.mark.parametrize("text", ["volume pvc-1 is in use", "pvc-1: in use"])
async def test_an_error_that_names_the_volume_is_left_as_it_is(served: Served, text: str) -> None:
    served.controller.behaviour = raising(errors.FailedPrecondition(text))
    assert (await refusal(served)).message == text


async def test_a_volume_with_control_characters_is_named_without_them(served: Served) -> None:
    served.controller.behaviour = raising(errors.NotFound("no such volume"))
    with pytest.raises(GRPCError) as caught:
        await served.stub.delete_volume(csi.DeleteVolumeRequest(volume_id="own\n"))
    assert caught.value.message == r"volume 'own\n': no such volume"


async def test_an_error_of_a_call_that_is_about_no_volume_names_none(served: Served) -> None:
    served.controller.behaviour = raising(errors.InvalidArgument("name is empty"))
    with pytest.raises(GRPCError) as caught:
        await served.stub.create_volume(csi.CreateVolumeRequest())
    assert caught.value.message == "name is empty"


async def test_a_subclass_of_an_error_inherits_the_status(served: Served) -> None:
    class Busy(errors.Aborted):
        """Told by the type."""

    served.controller.behaviour = raising(Busy("busy"))
    assert (await refusal(served)).status is Status.ABORTED


@pytest.mark.parametrize(
    ("after_write", "status"),
    [
        pytest.param(False, Status.INTERNAL, id="before a write: nothing is happening"),
        pytest.param(True, Status.UNAVAILABLE, id="after a write: something may be under way"),
    ],
)
async def test_an_unforeseen_exception_says_whether_something_may_be_under_way(
    served: Served, after_write: bool, status: Status
) -> None:
    served.controller.behaviour = raising(RuntimeError("password=hunter2"), after_write=after_write)
    answer = await refusal(served)
    assert answer.status is status
    assert answer.message is not None
    assert "RuntimeError" in answer.message
    assert "hunter2" not in answer.message


async def test_a_timeout_inside_a_method_is_answered_as_one(served: Served) -> None:
    served.controller.behaviour = raising(TimeoutError())
    assert (await refusal(served)).status is Status.DEADLINE_EXCEEDED


async def test_unknown_is_never_answered(served: Served) -> None:
    served.controller.behaviour = raising(GRPCError(Status.UNKNOWN, "what?"))
    assert (await refusal(served)).status is Status.INTERNAL


@asynccontextmanager
async def in_memory(controller: ScriptedController) -> AsyncIterator[csi.ControllerStub]:
    """The controller without a socket, for tests in which time is made up."""
    mutations = RunningMutations()
    calls = Calls(gate=Gate(), mutations=mutations, metrics=Metrics(role="controller").rpc)
    async with ChannelFor([calls.wrap(controller)]) as channel:
        yield csi.ControllerStub(channel)
        await mutations.cancel()


@pytest.mark.looptime
async def test_a_mutation_that_outlasts_the_deadline_is_answered_before_it_with_the_reason() -> None:
    controller = ScriptedController()
    controller.behaviour = Latch(waiting_for="VM tenant-a/worker-1 to let go of pvc-1")
    async with in_memory(controller) as stub:
        with pytest.raises(GRPCError) as caught:
            await stub.delete_volume(VOLUME, timeout=20)
    assert caught.value.status is Status.DEADLINE_EXCEEDED
    # grpclib's own answer at the deadline has no text.
    waiting_for = "VM tenant-a/worker-1 to let go of pvc-1"
    assert caught.value.message == f"DeleteVolume of volume pvc-1: still waiting for {waiting_for}; it goes on"


@pytest.mark.looptime
async def test_a_read_that_outlasts_the_deadline_is_answered_before_it_and_given_up() -> None:
    controller = ScriptedController()
    controller.behaviour = latch = Latch(waiting_for="the cache")
    async with in_memory(controller) as stub:
        with pytest.raises(GRPCError) as caught:
            await stub.list_volumes(csi.ListVolumesRequest(), timeout=20)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert caught.value.message == "/csi.v1.Controller/ListVolumes: still waiting for the cache"
        latch.open()
        await stub.list_volumes(csi.ListVolumesRequest())
    assert (controller.runs, controller.ended) == (2, 1)


@pytest.mark.parametrize(
    ("given", "margin"),
    [pytest.param(5.0, 0.5, id="a tenth of a short time"), pytest.param(100.0, 2.0, id="two seconds of a long one")],
)
@pytest.mark.looptime
async def test_the_answer_leaves_a_margin_before_the_deadline(given: float, margin: float) -> None:
    controller = ScriptedController()
    controller.behaviour = Latch()
    loop = asyncio.get_running_loop()
    async with in_memory(controller) as stub:
        started = loop.time()
        with pytest.raises(GRPCError, match="no result within"):
            await stub.delete_volume(VOLUME, timeout=given)
        # grpclib sends whole seconds above ten, cut down.
        assert loop.time() - started == pytest.approx(given - margin, abs=1.1 if given > 10 else 0.2)


async def test_bytes_that_are_no_request_are_an_invalid_argument(served: Served) -> None:
    class Raw:
        """A message that is sent as it is."""

        def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
            return b"\x0a\x02\xff\xfe"  # field 1, a string that is no UTF-8

    with pytest.raises(GRPCError) as caught:
        await _send(served, Raw())
    assert caught.value.status is Status.INVALID_ARGUMENT


async def _send(served: Served, message: object) -> None:
    method: UnaryUnaryMethod[object, csi.DeleteVolumeResponse] = UnaryUnaryMethod(
        served.channel, "/csi.v1.Controller/DeleteVolume", type(message), csi.DeleteVolumeResponse
    )
    await method(message)


async def test_all_five_services_answer_unimplemented_and_not_unknown(served: Served) -> None:
    calls = [
        csi.NodeStub(served.channel).node_get_info(csi.NodeGetInfoRequest()),
        csi.GroupControllerStub(served.channel).group_controller_get_capabilities(
            csi.GroupControllerGetCapabilitiesRequest()
        ),
        served.stub.get_capacity(csi.GetCapacityRequest()),
        anext(csi.SnapshotMetadataStub(served.channel).get_metadata_allocated(csi.GetMetadataAllocatedRequest())),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answer.status for answer in answers if isinstance(answer, GRPCError)] == [Status.UNIMPLEMENTED] * 4
    assert await csi.IdentityStub(served.channel).probe(csi.ProbeRequest()) == csi.ProbeResponse(ready=True)
