"""The command line of one lab in a folder of its own, as a person has it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.lab.state import LabDirectory, State

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCommands:
    """``up`` are the arguments with which it is started, ``seconds`` what each command may take."""

    root: Path
    name: str
    up: tuple[str, ...]
    seconds: float

    @property
    def directory(self) -> LabDirectory:
        return LabDirectory(self.root / self.name)

    def command(self, verb: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of ``up``, ``down`` or ``status``."""
        arguments = self.up if verb == "up" else ()
        argv = [sys.executable, "-m", "e2e.lab", verb, "--name", self.name, *arguments]
        return argv, os.environ | {"KUBEVIRT_CSI_LABS": str(self.root)}

    def run(self, verb: str) -> str:
        """What the command prints; it must succeed."""
        argv, environment = self.command(verb)
        result = subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.seconds,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    def state(self) -> State:
        state = self.directory.read()
        assert state is not None
        return state
