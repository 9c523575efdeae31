"""The order of the end: no new calls, running ones finish, then the socket goes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from kubevirt_csi._csi.csi import v1 as csi
from kubevirt_csi.rpc.serving import termination
from tests.unit.rpc.conftest import Served
from tests.unit.rpc.services import Latch

DELETE = csi.DeleteVolumeRequest(volume_id="pvc-1")
PROGRAM = """
import asyncio, sys
from pathlib import Path
from kubevirt_csi.observe.metrics import Metrics
from kubevirt_csi.rpc.endpoint import Endpoint
from kubevirt_csi.rpc.serving import RpcServer, csi_services, termination
from kubevirt_csi.services.identity import IdentityService
from tests.unit.rpc.services import Latch, ScriptedController

async def main(folder):
    controller, latch = ScriptedController(), Latch()
    controller.behaviour = latch
    services = csi_services(identity=IdentityService(ready=lambda: True), controller=controller)
    endpoint = Endpoint(folder / "csi.sock")
    server = RpcServer(endpoint=endpoint, services=services, metrics=Metrics(role="controller").rpc)
    with termination() as terminated:
        await server.start()
        print("serving", flush=True)
        await latch.entered.wait()
        print("entered", flush=True)
        await terminated.wait()
    stopping = asyncio.create_task(server.stop(grace_seconds=30))
    await asyncio.sleep(0)
    print("draining", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    latch.open()
    await stopping

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_signal_that_comes_while_the_role_still_starts_is_not_lost() -> None:
    with termination() as terminated:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(terminated.wait(), timeout=5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_closed_gate_turns_new_calls_away_while_running_ones_finish(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    running = asyncio.create_task(served.stub.delete_volume(DELETE))
    await latch.entered.wait()
    stopping = asyncio.create_task(served.server.stop(grace_seconds=30))
    await asyncio.sleep(0)
    with pytest.raises(GRPCError) as caught:
        await served.stub.list_volumes(csi.ListVolumesRequest())
    assert caught.value.status is Status.UNAVAILABLE
    assert not stopping.done()
    latch.open()
    await running
    await stopping
    assert not served.path.exists()


async def test_a_mutation_whose_caller_has_gone_is_drained_too(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    caller = asyncio.create_task(served.stub.delete_volume(DELETE))
    await latch.entered.wait()
    caller.cancel()
    await served.server._gate.empty()
    stopping = asyncio.create_task(served.server.stop(grace_seconds=30))
    for _turn in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    latch.open()
    await stopping
    assert served.controller.ended == 1


async def test_what_outlasts_the_grace_period_is_cut_short_and_its_caller_told_so(served: Served) -> None:
    latch = Latch()
    served.controller.behaviour = latch
    running = asyncio.create_task(served.stub.delete_volume(DELETE))
    await latch.entered.wait()
    await served.server.stop(grace_seconds=0)
    with pytest.raises(GRPCError) as caught:
        await running
    assert caught.value.status is Status.UNAVAILABLE
    assert served.controller.ended == 0


async def test_stopping_twice_is_stopping_once(served: Served) -> None:
    await asyncio.gather(served.server.stop(grace_seconds=1), served.server.stop(grace_seconds=1))
    await served.server.stop(grace_seconds=1)
    assert not served.path.exists()


async def said(output: asyncio.StreamReader, wanted: bytes) -> None:
    while (line := await output.readline()) != wanted:
        assert line, f"the process ended before it said {wanted!r}"


async def test_a_process_told_to_terminate_answers_what_runs_and_ends_well(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(tmp_path),
        cwd=Path(__file__).parents[3],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        await said(process.stdout, b"serving\n")
        channel = Channel(path=str(tmp_path / "csi.sock"))
        stub = csi.ControllerStub(channel)
        running = asyncio.create_task(stub.delete_volume(DELETE))
        await said(process.stdout, b"entered\n")
        process.send_signal(signal.SIGTERM)
        await said(process.stdout, b"draining\n")
        with pytest.raises(GRPCError) as caught:
            await stub.delete_volume(csi.DeleteVolumeRequest(volume_id="pvc-2"))
        assert caught.value.status is Status.UNAVAILABLE
        process.stdin.write(b"go on\n")
        assert await running == csi.DeleteVolumeResponse()
        channel.close()
        assert await process.wait() == 0
        assert not (tmp_path / "csi.sock").exists()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
