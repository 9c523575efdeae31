"""The guests' runtime says in containerd's words when a container is gone, and changes nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab.commands import REPOSITORY

RUNTIME = REPOSITORY / "e2e/lab/images/rootfs/usr/local/lib/lab/crun"
STATE = "/run/containerd/runc/k8s.io/c1"
GONE = {
    "kill": f"error opening file `{STATE}/status`: No such file or directory",
    "delete": f"cannot open directory `{STATE}`: No such file or directory",
}


def call(folder: Path, *arguments: str, says: str, code: int) -> subprocess.CompletedProcess[str]:
    """Calls the runtime over a crun that says this, with its arguments, and ends with that code."""
    crun = folder / "crun"
    crun.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\necho \"$@\"\nexit {code}\n")
    crun.chmod(0o755)
    return subprocess.run(
        [RUNTIME, *arguments],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )


@pytest.mark.parametrize("verb", GONE)
def test_a_container_that_is_gone_does_not_exist(tmp_path: Path, verb: str) -> None:
    done = call(tmp_path, "--root", "/run/containerd/runc/k8s.io", verb, "c1", says=GONE[verb], code=1)
    assert GONE[verb] in done.stderr
    assert "container does not exist" in done.stderr
    assert done.returncode == 1


def test_another_failure_is_told_as_it_is(tmp_path: Path) -> None:
    done = call(tmp_path, "kill", "c1", "9", says="kill container: No such process", code=1)
    assert "No such process" in done.stderr
    assert "does not exist" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("verb", ["create", "start", "delete"])
def test_arguments_and_success_are_passed_on(tmp_path: Path, verb: str) -> None:
    done = call(tmp_path, "--root", "/run", verb, "--bundle", "a b", says="", code=0)
    assert f"--root /run {verb} --bundle a b" in done.stdout + done.stderr
    assert "does not exist" not in done.stderr
    assert done.returncode == 0
