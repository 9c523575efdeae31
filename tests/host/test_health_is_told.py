"""What a person sees of an abnormal volume: kubelet's answer, the metrics page and the log of the running process."""

from __future__ import annotations

import json

import aiohttp

from kubevirt_csi._csi.csi import v1 as csi
from tests.host.fuse import hanging
from tests.host.machine import Machine
from tests.host.test_process import NodeProcess, running, stage


async def stats(node: NodeProcess, path: str, *, volume_id: str = "pvc-1") -> csi.NodeGetVolumeStatsResponse:
    async with node.node() as stub:
        return await stub.node_get_volume_stats(csi.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=path))


async def series(node: NodeProcess) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{node.port}/metrics") as response:
        page = await response.text()
    return [line for line in page.splitlines() if line.startswith("kubevirt_csi_volume_abnormal{")]


def logged(machine: Machine, **fields: str) -> int:
    """How many lines of the log have these fields."""
    records = [json.loads(line) for line in (machine.root / "node.log").read_text().splitlines()]
    return sum(fields.items() <= record.items() for record in records)


async def test_an_error_of_the_file_system_is_told_in_the_answer_the_metrics_and_once_in_the_log(
    machine: Machine,
) -> None:
    async with running(machine) as node:
        await stage(node)
        assert await series(node) == []
        (machine.sysfs / "fs" / "ext4" / "vdb" / "trigger_fs_error").write_text("1")
        for _ in range(3):
            answer = await stats(node, str(node.staging))
            assert answer.volume_condition is not None
            assert answer.volume_condition.abnormal
            assert answer.usage[0].total > 0
        assert 'kubevirt_csi_volume_abnormal{reason="FileSystemErrors",volume="pvc-1"} 1.0' in await series(node)
        assert logged(machine, event="volume abnormal", reason="FileSystemErrors", volume_id="pvc-1") == 1
        assert logged(machine, event="rpc", method="/csi.v1.Node/NodeStageVolume") == 1
        assert logged(machine, event="rpc", method="/csi.v1.Node/NodeGetVolumeStats") == 0
        async with node.node() as stub:
            await stub.node_unstage_volume(
                csi.NodeUnstageVolumeRequest(volume_id="pvc-1", staging_target_path=str(node.staging))
            )
        assert await series(node) == []


async def test_a_hung_volume_holds_up_neither_other_calls_nor_the_end_of_the_process(machine: Machine) -> None:
    target = machine.folder("pods/pvc-2/a")
    with hanging(target):
        async with running(machine) as node:
            answer = await stats(node, str(target), volume_id="pvc-2")
            assert answer.volume_condition is not None
            assert answer.volume_condition.abnormal
            assert "does not answer within 5 s" in answer.volume_condition.message
            assert answer.usage == []
            await stage(node)
            assert (await stats(node, str(node.staging))).volume_condition == csi.VolumeCondition(
                abnormal=False, message="nothing is known to be wrong with the volume"
            )
            assert await node.process.stop() == 0
