"""Where the suites run: two kubeconfigs that are given, or a lab that is started for the session.

A given pair is any tenant cluster with the driver installed and its management cluster; the lab is one such pair.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.kubectl import Kubectl
from e2e.lab.killing import Killing
from e2e.lab.state import lab_directory
from e2e.lab.surroundings import surroundings_of
from e2e.walk import Surroundings

UP_SECONDS = 1500


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clusters", "the clusters to test in; without them a lab is started and ended")
    group.addoption("--tenant-kubeconfig", type=Path, help="kubeconfig of the tenant cluster")
    group.addoption("--infra-kubeconfig", type=Path, help="kubeconfig of the management cluster")
    group.addoption("--infra-namespace", default="tenant-a", help="the VMs' namespace there (default: %(default)s)")
    group.addoption("--kubectl", type=Path, default=Path("kubectl"), help="the kubectl program")
    group.addoption("--pod-image", default="busybox:1.37", help="an image with sh, dd and sha256sum")


def lab(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "e2e.lab", *arguments], check=True, timeout=UP_SECONDS)


@pytest.fixture(scope="session")
def lab_name(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The lab of this session, which runs; None when clusters are given."""
    if request.config.getoption("--tenant-kubeconfig"):
        yield None
        return
    name = f"e2e-{os.getpid()}"
    try:
        lab("up", "--name", name)
        yield name
    finally:
        lab("down", "--name", name)


@pytest.fixture(scope="session")
def surroundings(request: pytest.FixtureRequest, lab_name: str | None) -> Surroundings:
    if lab_name is not None:
        return surroundings_of(lab_name)
    given = request.config.getoption
    kubectl = given("--kubectl")
    return Surroundings(
        tenant=Kubectl(kubectl, given("--tenant-kubeconfig")),
        infra=Kubectl(kubectl, given("--infra-kubeconfig")),
        infra_namespace=given("--infra-namespace"),
        storage_class="kubevirt",
        pod_image=given("--pod-image"),
    )


@pytest.fixture(scope="session")
def killing(lab_name: str | None) -> Killing:
    if lab_name is None:
        pytest.skip("only the lab's processes can be killed from outside their containers")
    return Killing(lab_directory(lab_name))
