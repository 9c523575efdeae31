"""The hardware of a machine as QEMU's arguments.

What a driver can notice is as KubeVirt makes it: the q35 board, one virtio-scsi controller with index 0, and as many
free PCIe root ports for hot-plugged virtio disks as KubeVirt leaves for that size of memory and number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.lab.machines.accelerator import Accelerator

# Nobody attacks a guest of the lab, and under emulation the mitigations cost a sixth of all its time. Timers of
# microseconds, which Go's runtime sets all the time, each wake QEMU's main loop: another tenth.
KERNEL_ARGUMENTS = "console=ttyS0 net.ifnames=0 apparmor=0 panic=-1 mitigations=off highres=off"
# Emulated, every feature costs: a kernel that finds the newest ones saves more registers, checks more accesses, and
# copies byte by byte because real processors are fast at that. This is what Debian and Go need, and TLS's ciphers.
EMULATED_CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+aes,+pclmulqdq"
# Root disk, seed, network card, virtio-scsi, virtio-serial: what KubeVirt would put on ports of their own.
FIXED_DEVICES = 5
BOOT_VIRTIO_DISKS = 2  # vda and vdb
LARGE_MEMORY_MIB = 2048
LOGS = ("containerd", "kubelet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What every machine of a lab has in common."""

    kernel: Path
    initrd: Path
    memory_mib: int
    cpus: int
    kernel_arguments: str = ""
    """More of them."""


def hotplug_ports(memory_mib: int) -> list[str]:
    """The ids of the free PCIe ports: of 16 or 8 in all, but never below 6 or 3 (KubeVirt docs/pci-topology.md, v2)."""
    ports, least = (16, 6) if memory_mib > LARGE_MEMORY_MIB else (8, 3)
    count = max(ports - FIXED_DEVICES, least)
    return [f"hotplug-{number}" for number in range(1, count + 1)]


def command_line(
    name: str, *, folder: Path, hardware: Hardware, ports: Sequence[int], accelerator: Accelerator
) -> list[str]:
    """The complete argument list; ``ports`` of the host's 127.0.0.1 are forwarded to the same ports of the guest."""
    return [
        *("qemu-system-x86_64", "-name", name, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", "q35", "-accel", "tcg,thread=multi" if accelerator == "tcg" else "kvm"),
        *("-cpu", EMULATED_CPU if accelerator == "tcg" else "max"),
        *("-smp", str(hardware.cpus), "-m", str(hardware.memory_mib)),
        *("-kernel", str(hardware.kernel), "-initrd", str(hardware.initrd)),
        *("-append", f"{KERNEL_ARGUMENTS} {hardware.kernel_arguments}".strip()),
        *_channels(folder),
        *_disks(folder),
        *_network(ports),
        *("-device", "virtio-scsi-pci,id=scsi0"),
        *_root_ports(hardware.memory_mib),
    ]


def _channels(folder: Path) -> list[str]:
    """Monitor and guest agent as sockets; the console and the guest's logs as files that grow over starts."""
    arguments = [
        *("-chardev", f"socket,id=monitor,path={folder}/qmp.sock,server=on,wait=off", "-mon", "monitor,mode=control"),
        *("-chardev", f"file,id=console,path={folder}/console.log,append=on", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=agent,path={folder}/agent.sock,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
    ]
    for log in LOGS:
        arguments += ["-chardev", f"file,id={log},path={folder}/{log}.log,append=on"]
        arguments += ["-device", f"virtserialport,chardev={log},name=lab.{log}"]
    return arguments


def _disks(folder: Path) -> list[str]:
    return [
        # The root disk survives a killed QEMU in the host's page cache, so its flushes need not reach the medium.
        *("-drive", f"if=none,id=root,file={folder}/root.qcow2,format=qcow2,cache=unsafe,discard=unmap"),
        *("-device", "virtio-blk-pci,drive=root,serial=lab-root"),
        *("-drive", f"if=none,id=seed,file={folder}/seed.tar,format=raw,read-only=on"),
        *("-device", "virtio-blk-pci,drive=seed,serial=lab-seed"),
    ]


def _network(ports: Sequence[int]) -> list[str]:
    forwards = "".join(f",hostfwd=tcp:127.0.0.1:{port}-:{port}" for port in ports)
    return ["-netdev", f"user,id=net{forwards}", "-device", "virtio-net-pci,netdev=net,romfile="]


def _root_ports(memory_mib: int) -> list[str]:
    arguments: list[str] = []
    for number, port in enumerate(hotplug_ports(memory_mib), start=1):
        arguments += ["-device", f"pcie-root-port,id={port},chassis={number},slot={number}"]
    return arguments
