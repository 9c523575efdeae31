"""What a Node that exists by name only tells of itself to stay Ready: its lease, and a status with a fresh heartbeat.

Both clusters of a lab have such Nodes. Who they are, and when they tell it, is not known here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.recording import now
from e2e.lab.kubevirt.resources import LEASE, NODE, Object

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}


async def beat(cluster: Cluster, name: str, *, addresses: Sequence[Object]) -> None:
    """Renews the Node's lease and says that it is Ready, with room for everything.

    Raises:
        ApiError: kube-apiserver did not take it.
    """
    renewed = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
    await cluster.apply(LEASE, {"metadata": {"namespace": LEASE_NAMESPACE, "name": name}, "spec": spec})
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now(),
    }
    status = {"capacity": CAPACITY, "allocatable": CAPACITY, "addresses": list(addresses), "conditions": [ready]}
    await cluster.apply(NODE, {"metadata": {"name": name}, "status": status}, subresource="/status")
