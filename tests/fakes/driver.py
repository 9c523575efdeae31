"""One replica of the controller on a fake infra cluster, with the event loop's time for a wall clock."""

from __future__ import annotations

import asyncio

from kubevirt_csi.domain.access import AccessMode, Block, Capability, Mount
from kubevirt_csi.domain.nodeids import NodeNamespace
from kubevirt_csi.operations.attachment import Attacher
from kubevirt_csi.operations.detachment import Detacher
from kubevirt_csi.operations.entries import Entries
from kubevirt_csi.operations.expansion import Expander
from kubevirt_csi.operations.holding import Holding
from kubevirt_csi.operations.pacing import Pacing
from kubevirt_csi.operations.provisioning import Provisioner
from kubevirt_csi.operations.stuck import StuckAttaches
from tests.fakes.infra import Replica
from tests.fakes.infra_cluster import InfraCluster
from tests.fakes.infra_ground import NAMESPACE

WRITER = Capability(access=Mount(fs_type="ext4"), mode=AccessMode.SINGLE_NODE_MULTI_WRITER)
BLOCK = Capability(access=Block(), mode=AccessMode.SINGLE_NODE_WRITER)
SHARED_BLOCK = Capability(access=Block(), mode=AccessMode.MULTI_NODE_MULTI_WRITER)


def node(vm: str) -> str:
    return f"{NAMESPACE}/{vm}"


def now() -> float:
    return 1_700_000_000.0 + asyncio.get_running_loop().time()


class Driver:
    """The operations of one process."""

    def __init__(self, cluster: InfraCluster, *, process: str = "replica-1", lag: float = 0.0) -> None:
        self.replica = Replica(cluster, lag=lag)
        machines = self.replica.machines
        self.entries = Entries(volumes=self.replica.volumes, process=process, now=now)
        self.holding = Holding(
            volumes=self.replica.volumes,
            machines=machines,
            entries=self.entries,
            nodes=NodeNamespace(name=NAMESPACE, aliases=("old-name",)),
        )
        pacing, stuck = Pacing(machines), StuckAttaches()
        self.detacher = Detacher(holding=self.holding, pacing=pacing, stuck=stuck)
        self.attacher = Attacher(holding=self.holding, pacing=pacing, stuck=stuck, detacher=self.detacher)
        self.provisioner = Provisioner(holding=self.holding)
        self.expander = Expander(volumes=self.replica.volumes)
        self.publish = self.attacher.publish
        self.unpublish = self.detacher.unpublish
        self.create = self.provisioner.create
        self.delete = self.provisioner.delete
        self.expand = self.expander.expand
