"""Runs csi-sanity once, inside of the lab's namespaces, where the mounts of the node role are seen.

The report is csi-sanity's own; its exit code is looked at too, because a run that was cut off may have left the report
of all that had passed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.lab.loopnodes import NODES
from e2e.lab.state import LabDirectory, LabError, State
from e2e.sanity.report import Spec, read

INFRA_STORAGE_CLASS = "local-block"
VOLUME_BYTES = 1024**3
RUN_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run: which kind of volume on which bus, and on which node."""

    access: str
    bus: str
    node: str

    @property
    def name(self) -> str:
        """For files and people."""
        return f"{self.access}-{self.bus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run reported, and how csi-sanity itself ended."""

    specs: Sequence[Spec]
    code: int
    log: Path


def run(wanted: Round, *, lab: LabDirectory, program: Path) -> Result:
    """Runs csi-sanity against the lab's sockets to its end.

    Raises:
        LabError: it did not end in time, or the lab has no such node.
        ReportError: it left no report of a run.
    """
    state = lab.read()
    if state is None or wanted.node not in state.sockets:
        raise LabError(f"lab {lab.name} has no socket for node {wanted.node}")
    report, log = (lab.logs / f"sanity-{wanted.name}.{kind}" for kind in ("xml", "log"))
    report.unlink(missing_ok=True)  # one of an earlier run in the same lab
    parameters = lab.data / f"sanity-{wanted.name}.yaml"
    parameters.write_text(f"infraStorageClassName: {INFRA_STORAGE_CLASS}\nbus: {wanted.bus}\n")
    argv = [*_inside(state), str(program), *_arguments(wanted, state, parameters=parameters, report=report)]
    with log.open("wb") as output:
        try:
            done = subprocess.run(argv, stdout=output, stderr=output, check=False, timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"csi-sanity ({wanted.name}) did not end within {RUN_SECONDS:g} s; see {log}") from error
    return Result(specs=read(report), code=done.returncode, log=log)


def _inside(state: State) -> list[str]:
    """Into the lab's mounts, and among its processes, so that the end of the lab is its end too."""
    return ["nsenter", "--target", str(state.init), "--mount", "--pid", "--"]


def _arguments(wanted: Round, state: State, *, parameters: Path, report: Path) -> list[str]:
    places = NODES / wanted.node / "kubelet"
    return [
        f"--csi.endpoint=unix:{state.sockets[wanted.node]}",
        f"--csi.controllerendpoint=unix:{state.sockets['controller']}",
        f"--csi.stagingdir={places}/sanity-staging",
        f"--csi.mountdir={places}/sanity-mount",
        f"--csi.testvolumesize={VOLUME_BYTES}",
        f"--csi.testvolumeparameters={parameters}",
        f"--csi.testvolumeaccesstype={wanted.access}",
        f"--ginkgo.junit-report={report}",
        "--ginkgo.no-color",
        "--ginkgo.v",
    ]
