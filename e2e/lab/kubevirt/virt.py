"""The controllers of KubeVirt and of the infra Nodes, and which change concerns which of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from e2e.lab.kubevirt.backing import Backing
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.domain import Domain
from e2e.lab.kubevirt.gates import Operator
from e2e.lab.kubevirt.handler import Handler
from e2e.lab.kubevirt.instances import Instances
from e2e.lab.kubevirt.pods import Pods
from e2e.lab.kubevirt.reconciling import Reconciler
from e2e.lab.kubevirt.resources import CLAIM, DATA_VOLUME, KUBEVIRT, NODE, POD, VM, VMI, Key, Object, Resource, key_of
from e2e.lab.kubevirt.scheduling import claim_keys
from e2e.lab.kubevirt.settings import Settings
from e2e.lab.kubevirt.vms import VirtualMachines
from e2e.lab.machines import Machines

WATCHED = (KUBEVIRT, VM, VMI, NODE)
Keys = Callable[[Object], Iterable[Key]]
Wire = Callable[[Resource, Reconciler, Keys], None]


def controllers(cluster: Cluster, settings: Settings, machines: Machines, *, wire: Wire) -> list[Reconciler]:
    """Every controller; ``wire`` has it reconcile those keys whenever an object of the resource changes."""
    durations = settings.durations
    backing = Backing(cluster)
    domain = Domain(cluster, machines, backing, storage=settings.storage, durations=durations)
    operator = Reconciler("kubevirt", Operator(cluster, settings.kubevirt).reconcile)
    vms = Reconciler("vm", VirtualMachines(cluster).reconcile)
    instances = Reconciler("vmi", Instances(cluster, backing, durations).reconcile)
    handler = Reconciler("handler", Handler(cluster, machines, backing, domain=domain, durations=durations).reconcile)
    pods = Reconciler("pod", Pods(cluster, backing, nodes=settings.nodes, durations=durations).reconcile)

    def neighbours(obj: Object) -> Iterable[Key]:
        """All VMIs of the namespace: pods and claims do not say which of them they are for."""
        return [key_of(instance) for instance in cluster.find(VMI, key_of(obj)[0])]

    def all_vms(_: Object) -> Iterable[Key]:
        return [key_of(vm) for vm in cluster.find(VM)]

    def all_instances(_: Object) -> Iterable[Key]:
        return [key_of(instance) for instance in cluster.find(VMI)]

    def users(claim: Object) -> Iterable[Key]:
        """The pods that use the claim."""
        key = key_of(claim)
        return [key_of(pod) for pod in cluster.find(POD, key[0]) if key in claim_keys(pod)]

    for resource, controller, keys in (
        (KUBEVIRT, operator, _itself),
        (KUBEVIRT, vms, all_vms),
        (VM, vms, _itself),
        (VMI, vms, _itself),
        (POD, instances, neighbours),
        (CLAIM, pods, users),
        (POD, pods, _itself),
        # Faults are ordered at any of these, and wherever they are ordered they are in force at once.
        *((KUBEVIRT, each, all_instances) for each in (instances, handler)),
        *((resource, each, _itself) for resource in (VM, VMI) for each in (instances, handler)),
        *((resource, each, neighbours) for resource in (CLAIM, DATA_VOLUME) for each in (instances, handler)),
    ):
        wire(resource, controller, keys)
    return [operator, vms, instances, handler, pods]


def _itself(obj: Object) -> Iterable[Key]:
    return (key_of(obj),)
