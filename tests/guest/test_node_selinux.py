"""SELinux contexts of mounts, as kubelet asks for them with ``seLinuxMount: true``, on a kernel that has them.

The kernel of the guest loads the policy of ``selinux.cil`` here, which tells contexts apart and forbids nothing, so
tests that come later are not concerned.
"""

from __future__ import annotations

import base64
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.guest.disks import Disks
from tests.guest.node import GuestNode
from tests.guest.volumes import MIB, Volume

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

POLICY = Path(__file__).with_name("selinux.cil")
POLICY_VERSION = "33"
POD = "system_u:object_r:container_file_t:s0:c1,c2"
OTHER_POD = "system_u:object_r:container_file_t:s0:c3,c4"
SELINUXFS = "/sys/fs/selinux"
LABEL = "import os, sys; print(os.getxattr(sys.argv[1], 'security.selinux').decode().rstrip(chr(0)))"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The policy as the kernel reads it."""
    folder = tmp_path_factory.mktemp("selinux")
    command = ["secilc", "-c", POLICY_VERSION, "-o", str(folder / "policy"), "-f", "/dev/null", str(POLICY)]
    subprocess.run(command, check=True, timeout=60)
    return (folder / "policy").read_bytes()


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def policy(node: GuestNode, compiled: bytes) -> None:
    """What makes SELinux be on: the policy, selinuxfs, and the file without which programs take it for off."""
    text = base64.b64encode(compiled).decode()
    await node.sh(
        f"mount -t selinuxfs selinuxfs {SELINUXFS} && echo {text} | base64 -d > /run/policy"
        f" && dd if=/run/policy of={SELINUXFS}/load bs=1M 2>/dev/null"
        " && mkdir -p /etc/selinux && echo SELINUX=permissive > /etc/selinux/config"
    )


def with_context(node: GuestNode, context: str, fs_type: str = "ext4", size: int = 64 * MIB) -> Volume:
    """A volume as kubelet asks for it: the context in quotes, among the class's options."""
    return Volume(node=node, fs_type=fs_type, size=size, flags=("noatime", f'context="{context}"'))


@pytest.mark.parametrize(("fs_type", "size"), [("ext4", 64 * MIB), ("xfs", 320 * MIB)])
async def test_the_files_of_a_volume_have_the_context_of_its_pod(
    node: GuestNode, disks: Disks, fs_type: str, size: int
) -> None:
    volume = with_context(node, POD, fs_type, size)
    await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("labelled")
    label = await node.sh(f'python3 -c "{LABEL}" {volume.target("a")}/data')
    assert label.strip() == POD
    await volume.stage()  # kubelet repeats itself
    await replace(volume, flags=('context="system_u:object_r:container_file_t:s0:c1.c2"',)).stage()
    await volume.unpublish()
    await volume.unstage()
    assert await node.mount_points() == []


async def test_a_pod_with_another_context_has_to_wait_until_the_volume_is_free(node: GuestNode, disks: Disks) -> None:
    volume = with_context(node, POD)
    await disks.plug(volume)
    await volume.stage()
    await volume.publish()
    await volume.write("ours")
    other = replace(volume, flags=("noatime", f'context="{OTHER_POD}"'))
    with pytest.raises(GRPCError) as refused:
        await other.stage()
    assert refused.value.status is Status.ALREADY_EXISTS
    assert POD in str(refused.value.message)
    assert await volume.read() == "ours"
    await volume.unpublish()
    await volume.unstage()
    await other.stage()
    await other.publish()
    assert (await node.sh(f'python3 -c "{LABEL}" {other.target("a")}/data')).strip() == OTHER_POD
    assert await other.read() == "ours"
    await other.unpublish()
    await other.unstage()


async def test_where_programs_take_selinux_for_off_the_volume_is_not_mounted_without_its_context(
    node: GuestNode, disks: Disks
) -> None:
    volume = with_context(node, POD)
    await disks.plug(volume)
    await node.sh("mv /etc/selinux/config /etc/selinux/away")
    try:
        with pytest.raises(GRPCError) as refused:
            await volume.stage()
    finally:
        await node.sh("mv /etc/selinux/away /etc/selinux/config")
    assert refused.value.status is Status.FAILED_PRECONDITION
    assert "deploy/tenant/components/selinux" in str(refused.value.message)
    assert await node.mount_points() == []
    await volume.stage()
    await volume.unstage()
