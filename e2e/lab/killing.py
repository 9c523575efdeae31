"""Ends the driver's processes of a running lab at the worst moment, as a crash or the kernel would.

Killed from outside: a process that is pid 1 of its container cannot be killed from within it. What is killed is started
again by what started it, the lab for the controller and the guest's kubelet for the node plugin.
"""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from e2e.lab.isolation import host_pids
from e2e.lab.machines.agent import run_in_guest
from e2e.lab.state import LabDirectory, LabError

CONTROLLER = "driver"
GUEST_SECONDS = 300.0
# Runs in the guest. The plugin is found by a flag that only it has, mkfs by its name, among the processes that are new:
# to read about them all can take an emulated guest longer than mkfs does.
KILL_PLUGIN = """
import os, signal, sys, time

def processes():
    return {name for name in os.listdir("/proc") if name.isdigit()}

def commands(pids):
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield int(pid), file.read().split(b"\\0")
        except OSError:
            pass

def plugin():
    found = commands(processes())
    return [pid for pid, words in found if any(word.startswith(b"--node-id-file=") for word in words)]

def formatting():
    found = commands(processes() - old)
    return [pid for pid, words in found if os.path.basename(words[0]).startswith(b"mkfs.")]

old = processes()
deadline = time.monotonic() + float(sys.argv[2])
while sys.argv[1] == "formatting" and not formatting():
    if time.monotonic() > deadline:
        sys.exit("no mkfs was seen")
    time.sleep(0.005)
[pid] = plugin()
os.kill(pid, signal.SIGKILL)
print(f"killed pid {pid}")
"""


@dataclass(frozen=True, slots=True)
class Killing:
    """What can be killed in one lab."""

    directory: LabDirectory

    def controller(self) -> None:
        """SIGKILL to the controller's process.

        Raises:
            LabError: it does not run.
        """
        state = self.directory.read()
        pids = host_pids(state.init) if state is not None else {}
        pid = pids.get(state.pids.get(CONTROLLER, 0)) if state is not None else None
        if pid is None:
            raise LabError(f"lab {self.directory.name}: the controller does not run")
        os.kill(pid, signal.SIGKILL)

    def node_plugin(self, vm: str) -> str:
        """SIGKILL to the node plugin in this guest, at once; returns what was killed.

        Raises:
            MachineError: the guest does not answer.
            LabError: there is no such process.
        """
        return self._in_guest(vm, "now")

    def node_plugin_while_it_formats(self, vm: str) -> str:
        """Waits in the guest until a mkfs runs, kills the node plugin then, and returns what was killed.

        Raises:
            MachineError: the guest does not answer.
            LabError: no mkfs was seen.
        """
        return self._in_guest(vm, "formatting")

    def _in_guest(self, vm: str, when: str) -> str:
        socket = self.directory.data / "machines" / vm / "agent.sock"
        program = ["python3", "-c", KILL_PLUGIN, when, str(GUEST_SECONDS)]
        talk = run_in_guest(vm, socket, program, seconds=GUEST_SECONDS + 30)
        with ThreadPoolExecutor(max_workers=1) as thread:  # this thread's event loop, if it has one, is the caller's
            result = thread.submit(asyncio.run, talk).result()
        if result.code != 0:
            raise LabError(f"lab {self.directory.name}, {vm}: the node plugin was not killed: {result.stderr}")
        return result.stdout.strip()
