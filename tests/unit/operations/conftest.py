"""A cluster with two running VMs and one filled volume, and one replica of the driver on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.driver import Driver
from tests.fakes.infra_cluster import InfraCluster


@pytest.fixture
def cluster() -> Iterator[InfraCluster]:
    cluster = InfraCluster()
    cluster.have_vm("vm1")
    cluster.have_vm("vm2")
    cluster.have_volume("pvc-1")
    cluster.exclusive.add("pvc-1")
    yield cluster
    assert cluster.violations == []


@pytest.fixture
def driver(cluster: InfraCluster) -> Driver:
    return Driver(cluster)
