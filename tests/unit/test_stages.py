"""The runner of the test stages leaves nothing behind when it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
STAGE = """
import os, sys, time
try:
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[2], "w").write("cleaned up")
"""
RUNNER = """
import asyncio, sys
from pathlib import Path
from tests import stages
stages.LOGS = Path(sys.argv[1])
stage = stages.Stage(name="long", command=(sys.executable, "-c", *sys.argv[2:]), timeout=60)
asyncio.run(stages.until_signalled(stages.run(stage)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_interrupted_and_cleans_up_before_the_runner_ends(tmp_path: Path, number: signal.Signals) -> None:
    began, trace = tmp_path / "began", tmp_path / "trace"
    os.mkfifo(began)
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path), STAGE, str(began), str(trace)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pid = began.read_text()  # returns when the stage has written it
        runner.send_signal(number)
        told, _ = runner.communicate(timeout=30)
    finally:
        runner.kill()
    assert told == "ended by a signal\n"
    assert trace.read_text() == "cleaned up"
    assert not Path(f"/proc/{pid}").exists()
