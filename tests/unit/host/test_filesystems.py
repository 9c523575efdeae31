"""The programs for file systems, run by a runner that only writes down what it was told to run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from kubevirt_csi.domain.blank import Probe, Probed
from kubevirt_csi.domain.disks import DeviceNumber, Disk
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable
from kubevirt_csi.host.commands import Commands, Finished
from kubevirt_csi.host.filesystems import PARALLEL, PROGRAMS, HostFilesystems
from kubevirt_csi.observe import context

pytestmark = pytest.mark.looptime


def disk(name: str = "vdb", size: int = 2**30) -> Disk:
    return Disk(name=name, path=f"/dev/{name}", number=DeviceNumber(253, 1), size_bytes=size)


class WrittenDown(Commands):
    """Answers every program with the same result, and holds those that change a disk until ``go`` is set."""

    def __init__(self, *, code: int = 0, output: str = "", errors: str = "") -> None:
        super().__init__(search_path="")
        self.ran: list[tuple[str, ...]] = []
        self.result = (code, output, errors)
        self.go = asyncio.Event()
        self.go.set()

    async def run(self, *argv: str, timeout: float = 60.0) -> Finished:
        assert timeout < float("inf")
        return self._finished(argv)

    async def run_to_end(self, *argv: str, fds: Sequence[int] = ()) -> Finished:
        assert [*fds] == [int(word.rpartition("/")[2]) for word in argv if word.startswith("/proc/self/fd/")]
        finished = self._finished(argv)
        await self.go.wait()
        return finished

    def _finished(self, argv: tuple[str, ...]) -> Finished:
        self.ran.append(argv)
        code, output, errors = self.result
        return Finished(argv=argv, code=code, output=output, errors=errors)


@asynccontextmanager
async def pinned(disk: Disk) -> AsyncIterator[int]:
    """The letter of the disk stands for its file descriptor."""
    yield ord(disk.name[-1])


async def settled() -> None:
    """Lets every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_only_a_few_make_file_systems_at_once_and_the_others_say_that_they_wait() -> None:
    commands = WrittenDown()
    commands.go.clear()
    filesystems = HostFilesystems(commands, pinned=pinned)
    works = [context.Work() for _ in range(PARALLEL + 2)]

    async def make(work: context.Work, name: str) -> None:
        context.begin(work)
        await filesystems.make(disk(name), "ext4")

    async def check(work: context.Work, name: str) -> None:
        context.begin(work)
        await filesystems.check(disk(name), "ext4")

    async with asyncio.TaskGroup() as group:
        for number, work in enumerate(works):
            group.create_task((check if number % 2 else make)(work, f"vd{number}"))
        await settled()
        assert len(commands.ran) == PARALLEL
        assert works[0].waiting_for == "ext4 to be made on disk /dev/vd0 (253:1, serial unknown, 1073741824 bytes)"
        assert [
            work.waiting_for.endswith("after one of the 4 that are being made or checked now") for work in works
        ] == [
            *[False] * PARALLEL,
            True,
            True,
        ]
        commands.go.set()
    assert len(commands.ran) == PARALLEL + 2
    assert "after one of" not in works[-1].waiting_for


async def test_who_is_cancelled_while_waiting_starts_nothing() -> None:
    commands = WrittenDown()
    commands.go.clear()
    filesystems = HostFilesystems(commands, parallel=1, pinned=pinned)
    async with asyncio.TaskGroup() as group:
        group.create_task(filesystems.make(disk("vdb"), "xfs"))
        waiting = group.create_task(filesystems.make(disk("vdc"), "xfs"))
        await settled()
        waiting.cancel()
        await settled()
        assert waiting.cancelled()
        commands.go.set()
    assert [argv[-1] for argv in commands.ran] == [f"/proc/self/fd/{ord('b')}"]
    await filesystems.make(disk("vdd"), "xfs")


@pytest.mark.parametrize("code", [0, 1, 2, 3])
async def test_what_fsck_could_repair_is_mounted(code: int) -> None:
    await HostFilesystems(WrittenDown(code=code)).check(disk(), "ext4")


@pytest.mark.parametrize("code", [4, 5, 6, 12, 4 | 128])
async def test_what_fsck_left_uncorrected_is_not_mounted_whatever_other_bits_are_set(code: int) -> None:
    with pytest.raises(FailedPrecondition, match=r"Run fsck\.ext4 by hand on this node"):
        await HostFilesystems(WrittenDown(code=code, output="UNEXPECTED INCONSISTENCY")).check(disk(), "ext4")


@pytest.mark.parametrize("code", [8, 16, 32, 128, 1 | 8])
async def test_a_fsck_that_could_not_work_is_no_reason_to_keep_a_volume_from_its_pod(code: int) -> None:
    await HostFilesystems(WrittenDown(code=code)).check(disk(), "ext4")


@pytest.mark.parametrize("signal", [6, 9, 11, 15])
async def test_a_fsck_that_was_killed_is_run_again_before_anything_is_mounted(signal: int) -> None:
    with pytest.raises(Unavailable, match=f"fsck.ext4 ended with -{signal}"):
        await HostFilesystems(WrittenDown(code=-signal)).check(disk(), "ext4")


@pytest.mark.parametrize("fs_type", ["xfs", "btrfs"])
async def test_a_file_system_that_its_kernel_repairs_is_not_checked(fs_type: str) -> None:
    commands = WrittenDown()
    await HostFilesystems(commands).check(disk(), fs_type)
    assert commands.ran == []


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("TYPE=ext4\nUSAGE=filesystem\n", Probe(result=Probed.FOUND, kind="ext4", is_file_system=True)),
        ("TYPE=LVM2_member\nUSAGE=raid\n", Probe(result=Probed.FOUND, kind="LVM2_member")),
        ("PTTYPE=gpt\n", Probe(result=Probed.FOUND, kind="gpt")),
        ("PTTYPE=dos\nTYPE=ext4\nUSAGE=filesystem\n", Probe(result=Probed.FOUND, kind="ext4")),
        ("", Probe(result=Probed.FOUND)),
    ],
)
async def test_what_blkid_found_is_told_and_a_partition_table_is_never_a_file_system(output: str, found: Probe) -> None:
    assert await HostFilesystems(WrittenDown(output=output)).probe(disk()) == found


async def test_nothing_found_is_an_answer_and_a_complaint_is_none() -> None:
    assert await HostFilesystems(WrittenDown(code=2)).probe(disk()) == Probe(result=Probed.NOTHING)
    assert await HostFilesystems(WrittenDown(code=8)).probe(disk()) == Probe(result=Probed.AMBIVALENT)
    for code, errors in ((2, "blkid: error: /dev/vdb: Input/output error"), (1, ""), (4, "usage"), (-9, "")):
        with pytest.raises(Unavailable, match="cannot be probed"):
            await HostFilesystems(WrittenDown(code=code, errors=errors)).probe(disk())


async def test_a_failed_mkfs_or_wipefs_is_told_in_its_own_words() -> None:
    filesystems = HostFilesystems(WrittenDown(code=1, output="no space left"), pinned=pinned)
    with pytest.raises(Internal, match=r"making btrfs on disk /dev/vdb .* failed: mkfs.btrfs ended with 1: no space"):
        await filesystems.make(disk(), "btrfs")
    with pytest.raises(Internal, match=r"signatures cannot be taken off disk /dev/vdb .*wipefs ended with 1"):
        await filesystems.wipe(disk())


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_nothing_is_discarded_and_the_class_options_come_after_the_fixed_ones(fs_type: str) -> None:
    commands = WrittenDown()
    await HostFilesystems(commands, pinned=pinned).make(disk(), fs_type, options=("-n", "7"))
    (argv,) = commands.ran
    assert argv[0] == f"mkfs.{fs_type}"
    assert "-K" in argv or "nodiscard" in ",".join(argv)
    assert argv.index("-n", argv.index("-n") + (argv.count("-n") > 1)) < argv.index(f"/proc/self/fd/{ord('b')}")
    assert argv[0] in PROGRAMS
