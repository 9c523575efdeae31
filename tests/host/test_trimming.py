"""Trims of real file systems: what a pod has deleted leaves the image, and a trim is in nobody's way."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kubevirt_csi.errors import Internal
from tests.host.conftest import Plugin
from tests.host.machine import MIB, run
from tests.host.volumes import SERIAL, PodVolume


async def test_a_trim_gives_back_what_a_pod_has_deleted(plugin: Plugin) -> None:
    disk = plugin.machine.plug("vdb", serial=SERIAL, size=128 * MIB)
    foreign = plugin.machine.plug("vdc", serial="another")
    run("mkfs.ext4", "-q", str(foreign.path))
    run("mount", str(foreign.path), str(plugin.machine.folder("foreign")))
    volume = PodVolume(plugin)
    target = await volume.publish("a")
    (target / "data").write_bytes(os.urandom(32 * MIB))
    os.sync()
    full = disk.image.stat().st_blocks * 512
    (target / "data").unlink()
    os.sync()
    await plugin.trimming.trim_all()
    assert full - disk.image.stat().st_blocks * 512 > 30 * MIB
    assert [argv for argv in plugin.commands.ran if argv[0] == "fstrim"] == [
        ("fstrim", "--verbose", str(volume.staging))
    ]


async def test_a_trim_that_runs_is_killed_by_unstage(plugin: Plugin, tmp_path: Path) -> None:
    plugin.machine.plug("vdb", serial=SERIAL)
    volume = PodVolume(plugin)
    await volume.stage()
    slow, started = tmp_path / "fstrim", tmp_path / "pid"
    slow.write_text(f'#!/bin/sh\ncd "$2"\necho $$ > {started}\nexec sleep 600\n')
    slow.chmod(0o755)
    plugin.commands._environment["PATH"] = f"{tmp_path}:{plugin.commands._environment['PATH']}"
    trimming = asyncio.ensure_future(plugin.trimming.trim_all())
    while not started.exists() or not started.read_text():  # noqa: ASYNC110 - a program tells nobody
        await asyncio.sleep(0.01)
    await volume.unstage()
    await trimming
    assert plugin.machine.mounts_below() == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


async def test_a_disk_that_cannot_discard_is_left_alone(plugin: Plugin) -> None:
    folder = plugin.machine.folder("memory")
    run("mount", "-t", "tmpfs", "none", str(folder))
    assert await plugin.trimmer.trim(str(folder)) is None
    with pytest.raises(Internal, match="cannot be trimmed"):
        await plugin.trimmer.trim(str(folder / "missing"))
