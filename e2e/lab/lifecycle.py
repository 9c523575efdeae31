"""Starting, describing and ending a lab from outside its namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from e2e.lab.images import ImageError, guest_image
from e2e.lab.isolation import Launched, host_pids, launch, members
from e2e.lab.state import LabDirectory, LabError, State
from e2e.tools.build import BuildError, build, compiled_packages

PROGRAMS = ("unshare", "setpriv", "mount")
POLL_SECONDS = 0.2
READY_SECONDS = 600.0
END_SECONDS = 60.0
KILL_SECONDS = 10.0

Say = Callable[[str], None]


class RunningLab:
    """A lab that is ready; it ends with the block that started it, unless it is kept."""

    def __init__(self, directory: LabDirectory, launched: Launched | None) -> None:
        self.directory = directory
        self._launched = launched

    def keep(self) -> None:
        """Lets the lab run on after the block."""
        if self._launched is not None:
            self._launched.keep()
            self._launched = None

    def end(self) -> None:
        """Ends a lab that was started here and is not kept; a lab that ran before is left alone."""
        if self._launched is not None:
            with suppress(BrokenPipeError):
                self._launched.lifeline.close()
            _wait_for_end(self.directory)
            self._launched.launcher.wait()
            self._launched = None


@contextmanager
def bring_up(
    directory: LabDirectory,
    *,
    machines: str,
    clusters: str,
    say: Say,
    durations: Mapping[str, float] | None = None,
    audit: bool = False,
) -> Iterator[RunningLab]:
    """Starts the lab, yields it when it is ready, and ends it with the block unless it is kept.

    A lab of that name that runs already is said and yielded. ``durations`` (of the stand-in) and ``audit`` (whether
    the driver's requests are logged) are for the lab without machines.

    Raises:
        LabError: it cannot be started or did not become ready; what was started is gone again.
    """
    _check_machine()
    image = _prepare(machines, clusters, say)
    lock = directory.lock()
    if lock is None:
        say(f"lab {directory.name} runs already")
        yield RunningLab(directory, None)
        return
    try:
        _forget(directory)
        launched = launch(
            ["supervise", "--name", directory.name, "--machines", machines, "--clusters", clusters],
            log=directory.logs / "supervisor.log",
            lock=lock,
            orders={"image": image, "durations": dict(durations or {}), "audit": audit},
        )
    finally:
        os.close(lock)
    lab = RunningLab(directory, launched)
    try:
        _follow(directory, launched, say)
        yield lab
    finally:
        lab.end()


def take_down(directory: LabDirectory, *, say: Say) -> None:
    """Ends the lab and waits until nothing of it is left; no lab is not an error.

    Raises:
        LabError: processes of it survive even SIGKILL.
    """
    state = directory.read()
    if state is None or not directory.running():
        directory.clear()
        say(f"lab {directory.name} does not run")
        return
    with suppress(ProcessLookupError):
        os.kill(state.init, signal.SIGTERM)
    _wait_for_end(directory)
    say(f"lab {directory.name} is gone; its logs are in {directory.logs}")


def describe(directory: LabDirectory) -> Iterator[str]:
    """Lines for a person: status, processes with their host pids, kubeconfigs, logs."""
    state = directory.read()
    if state is None:
        yield f"lab {directory.name}: never started"
        return
    running = directory.running()
    status = state.status if running or state.status in {"failed", "stopped"} else "killed"
    yield f"lab {directory.name}: {status}"
    if state.error:
        yield state.error
    if running:
        pids = host_pids(state.init)
        yield f"  {'supervisor':32} pid {state.init}"
        for name, pid in state.pids.items():
            yield f"  {name:32} pid {pids.get(pid, '-')}"
        for name, path in state.kubeconfigs.items():
            yield f"  {name} cluster: export KUBECONFIG={path}"
        for name, path in state.sockets.items():
            yield f"  CSI socket of {name}: {path}"
    yield f"  logs: {directory.logs}"


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes namespaces, mounts and virtual machines")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise LabError(f"not on PATH: {', '.join(missing)}; install util-linux and mount")


def _prepare(machines: str, clusters: str, say: Say) -> dict[str, str]:
    """Builds what the cache does not have, here rather than inside the lab, where an end would cut it short.

    Returns the files of the guests' image: it is named by the source tree, which may change under a running lab.
    """
    say("programs: etcd, Kubernetes, sidecars")
    try:
        if clusters == "management" or machines == "loop":
            build("kubernetes")
            return {}
        if machines == "none":
            build("kubernetes")
            build("sidecars")
            return {}
        # Side by side: the image waits for packages and disks while Go computes, and for Go only at its end.
        with compiled_packages() as packages, ThreadPoolExecutor(max_workers=1) as pool:
            image = pool.submit(guest_image, progress=say)
            build("kubernetes", packages=packages)
            build("sidecars", packages=packages)
            return image.result().to_config()
    except (BuildError, ImageError) as error:
        raise LabError(str(error)) from error


def _forget(directory: LabDirectory) -> None:
    """Removes what an earlier lab of this name left, logs included: they would be mixed up with the new ones."""
    directory.clear()
    shutil.rmtree(directory.logs, ignore_errors=True)
    (directory.path / "state.json").unlink(missing_ok=True)


def _follow(directory: LabDirectory, launched: Launched, say: Say) -> None:
    """Says every step of the start, and returns when the lab is ready."""
    said = 0
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        ended = launched.launcher.poll() is not None  # read before the state, so that its last words are seen
        state = directory.read()
        for step in state.steps[said:] if state else ():
            say(step.text)
            said += 1
        if state is not None and state.status == "ready":
            return
        if ended:
            raise LabError(_failure(directory, state))
        time.sleep(POLL_SECONDS)
    raise LabError(f"lab {directory.name} is not ready after {READY_SECONDS:g} s; see {directory.logs}")


def _failure(directory: LabDirectory, state: State | None) -> str:
    log = directory.logs / "supervisor.log"
    words = state.error if state is not None and state.error else log.read_text(errors="replace").strip()[-2000:]
    return f"lab {directory.name} did not start: {words}\nlogs: {directory.logs}"


def _wait_for_end(directory: LabDirectory) -> None:
    """Waits for the orderly end, and kills what is left after its deadline."""
    state = directory.read()
    if _until(lambda: not directory.running(), END_SECONDS) or state is None:
        return
    survivors = members(state.init)
    with suppress(ProcessLookupError):
        os.kill(state.launcher, signal.SIGKILL)
    if not _until(lambda: not directory.running(), KILL_SECONDS):
        raise LabError(f"lab {directory.name}: processes survive SIGKILL, among them {survivors}")
    directory.clear()


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(POLL_SECONDS)
    return condition()
