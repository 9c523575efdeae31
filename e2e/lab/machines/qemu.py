"""Machines that are QEMU guests on this host, with the buses and the hot-plug slots that a KubeVirt guest has.

A machine is a folder (its disk over the shared image, its seed, its logs and sockets) and a QEMU process that dies with
ours. Disks are plugged and unplugged by QMP, so what the guest sees is what a real guest sees; what Kubernetes says
about it is not known here. The root disk stays in the folder over a stop and start, plugged disks do not.
"""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from e2e.lab.machines import Disk, MachineError, Machines
from e2e.lab.machines.accelerator import Accelerator, accelerator
from e2e.lab.machines.agent import GuestResult, run_in_guest
from e2e.lab.machines.commandline import Hardware, command_line, hotplug_ports
from e2e.lab.machines.hotplug import Operation, Plugs
from e2e.lab.machines.qmp import Monitor
from e2e.lab.processes import Process, ProcessError, Program, run_to_end

START_SECONDS = 20.0
POWER_OFF_SECONDS = 15.0
DEFAULT_MEMORY_MIB = 1536
# With two emulated processors for each of two guests on two cores everything takes twice as long: they spin on locks
# whose holders do not run.
DEFAULT_CPUS = 1
STALE_AT_START = ("qmp.sock", "agent.sock")


@dataclass(slots=True)
class Machine:
    """One named machine; ``process``, ``monitor`` and ``plugs`` are those of the current run."""

    name: str
    folder: Path
    seed: Path
    ports: Sequence[int]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    process: Process | None = None
    monitor: Monitor | None = None
    plugs: Plugs | None = None


class QemuMachines(Machines):
    """The machines of one lab, made by `from_config`."""

    def __init__(
        self, machines: Mapping[str, Machine], *, hardware: Hardware, disk: Path, wanted: Accelerator | None
    ) -> None:
        self._machines = dict(machines)
        self._hardware = hardware
        self._disk = disk
        self._wanted = wanted

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Makes the machines of a JSON-able configuration; nothing is started.

        Keys: ``directory`` (state, one folder per machine), ``image`` (``kernel``, ``initrd``, ``disk``), ``vms``
        (by name: ``seed``, a folder; ``ports``, forwarded from 127.0.0.1 under the same number), and optionally
        ``memory_mib`` (1536), ``cpus`` (1), ``accelerator`` (``auto``, ``kvm``, ``tcg``), ``kernel_arguments`` ("").
        """
        directory = Path(config["directory"])
        wanted = config.get("accelerator", "auto")
        return cls(
            {
                name: Machine(name, directory / name, Path(vm["seed"]), tuple(vm.get("ports", ())))
                for name, vm in config["vms"].items()
            },
            hardware=Hardware(
                kernel=Path(config["image"]["kernel"]),
                initrd=Path(config["image"]["initrd"]),
                memory_mib=config.get("memory_mib", DEFAULT_MEMORY_MIB),
                cpus=config.get("cpus", DEFAULT_CPUS),
                kernel_arguments=config.get("kernel_arguments", ""),
            ),
            disk=Path(config["image"]["disk"]),
            wanted=None if wanted == "auto" else wanted,
        )

    async def start(self, vm: str) -> None:
        machine = self._machine(vm)
        async with machine.lock:
            if _runs(machine):
                return
            await _forget(machine)
            await self._prepare(machine)
            await self._launch(machine)

    async def stop(self, vm: str) -> None:
        """Presses the power button, and cuts the power of a guest that has not ended after 15 s."""
        machine = self._machine(vm)
        async with machine.lock:
            if machine.process is not None and machine.monitor is not None and machine.process.alive:
                await _power_button(machine.process, machine.monitor)
            await _forget(machine)

    def running(self, vm: str) -> bool:
        return _runs(self._machine(vm))

    async def set_paused(self, vm: str, *, paused: bool) -> None:
        machine = self._machine(vm)
        async with machine.lock:
            if machine.monitor is None or not _runs(machine):
                raise MachineError(f"{vm} does not run")
            await machine.monitor.execute("stop" if paused else "cont")

    async def plug(self, vm: str, disk: Disk) -> str:
        machine = self._machine(vm)
        async with machine.lock:
            return await _plugs(machine).plug(disk)

    async def unplug(self, vm: str, name: str) -> None:
        """See the protocol; a virtio disk that the guest does not give up within 30 s is a MachineError."""
        machine = self._machine(vm)
        async with machine.lock:
            if _runs(machine):
                await _plugs(machine).unplug(name)

    async def resize(self, vm: str, name: str, size: int) -> None:
        machine = self._machine(vm)
        async with machine.lock:
            await _plugs(machine).resize(name, size)

    async def throttle(self, vm: str, name: str, bytes_per_second: int) -> None:
        """Lets the plugged disk read and write so many bytes a second together; 0 takes the limit away."""
        machine = self._machine(vm)
        async with machine.lock:
            await _plugs(machine).throttle(name, bytes_per_second)

    async def fail(self, vm: str, name: str, operations: Sequence[Operation]) -> None:
        """Has the plugged disk answer these operations with an I/O error, and carry out all others."""
        machine = self._machine(vm)
        async with machine.lock:
            await _plugs(machine).fail(name, operations)

    def plugged(self, vm: str) -> AbstractSet[str]:
        machine = self._machine(vm)
        return set(machine.plugs.names) if machine.plugs is not None and _runs(machine) else set()

    async def run(self, vm: str, argv: Sequence[str], *, timeout: float = 60.0) -> GuestResult:
        """Runs a program in the guest and returns its result, waiting for the guest's userspace first.

        Raises:
            MachineError: the machine does not run, or the program did not end within ``timeout`` seconds.
        """
        machine = self._machine(vm)
        _plugs(machine)
        return await run_in_guest(vm, machine.folder / "agent.sock", argv, seconds=timeout)

    async def close(self) -> None:
        """Cuts the power of every machine and reaps it."""
        for machine in self._machines.values():
            await _forget(machine)

    def _machine(self, vm: str) -> Machine:
        if vm not in self._machines:
            raise MachineError(f"no machine {vm!r} in this lab, there are: {', '.join(self._machines)}")
        return self._machines[vm]

    async def _prepare(self, machine: Machine) -> None:
        """Lays out the folder: the overlay when there is none yet, and a fresh seed."""
        machine.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in STALE_AT_START:
            (machine.folder / name).unlink(missing_ok=True)
        overlay = machine.folder / "root.qcow2"
        if not overlay.exists():
            await _make_overlay(machine, base=self._disk, overlay=overlay)
        await asyncio.to_thread(_pack, machine.seed, machine.folder / "seed.tar")

    async def _launch(self, machine: Machine) -> None:
        if self._wanted is None:
            self._wanted = await accelerator(self._hardware.kernel)
        argv = command_line(
            machine.name, folder=machine.folder, hardware=self._hardware, ports=machine.ports, accelerator=self._wanted
        )
        socket = machine.folder / "qmp.sock"

        async def listening() -> bool:
            return socket.exists()

        async with AsyncExitStack() as undo:
            try:
                process = Process.start(Program(name=machine.name, argv=argv, log=machine.folder / "qemu.log"))
                undo.push_async_callback(process.kill)
                await process.ready(listening, deadline_seconds=START_SECONDS)
            except ProcessError as error:
                raise MachineError(f"{machine.name} did not start: {error}") from error
            monitor = await Monitor.connect(machine.name, socket)
            undo.push_async_callback(monitor.close)
            status = await monitor.execute("query-status")
            if not status["running"]:
                raise MachineError(f"{machine.name} does not run after its start, QEMU says {status['status']}")
            undo.pop_all()
        machine.process, machine.monitor = process, monitor
        machine.plugs = Plugs(machine.name, monitor, ports=hotplug_ports(self._hardware.memory_mib))


def _runs(machine: Machine) -> bool:
    return machine.process is not None and machine.process.alive


def _plugs(machine: Machine) -> Plugs:
    if machine.plugs is None or not _runs(machine):
        raise MachineError(f"{machine.name} does not run")
    return machine.plugs


async def _power_button(process: Process, monitor: Monitor) -> None:
    """Asks the guest to power off and waits for it; a guest that does not is left as it is."""
    try:
        await monitor.execute("system_powerdown")
        async with asyncio.timeout(POWER_OFF_SECONDS):
            await process.wait()
    except (MachineError, TimeoutError):
        return


async def _forget(machine: Machine) -> None:
    """Cuts the power of what still runs and reaps it, so that the machine can be started again."""
    process, monitor = machine.process, machine.monitor
    if process is not None:
        await process.kill()
    machine.process = machine.monitor = machine.plugs = None
    if monitor is not None:
        await monitor.close()


async def _make_overlay(machine: Machine, *, base: Path, overlay: Path) -> None:
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base), str(overlay)]
    program = Program(name="qemu-img", argv=argv, log=machine.folder / "qemu.log")
    try:
        await run_to_end(program, seconds=START_SECONDS)
    except ProcessError as error:
        raise MachineError(f"{machine.name}: cannot make its disk over {base}: {error}") from error


def _pack(seed: Path, archive: Path) -> None:
    archive.touch(mode=0o600)  # a kubeconfig is in it
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(seed, arcname=".")
