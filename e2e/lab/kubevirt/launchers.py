"""Launcher pods: one stands for a running machine in the API, two while the machine is being migrated.

Source: KubeVirt pkg/virt-controller/services/template.go and pkg/controller (CurrentVMIPod). The machine itself is
started by the handler and not by the pod.
"""

from __future__ import annotations

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.resources import POD, VMI, Object, dig, key_of, labels_of, owner_reference, uid_of

CREATED_BY = "kubevirt.io/created-by"
MIGRATION = "kubevirt.io/migrationJobUID"
LAUNCHER_IMAGE = "kubevirt/virt-launcher:v1.9.0"


def launchers_of(cluster: Cluster, instance: Object) -> list[Object]:
    """All launcher pods of the VMI."""
    pods = cluster.find(POD, key_of(instance)[0])
    return [pod for pod in pods if labels_of(pod).get(CREATED_BY) == uid_of(instance)]


def launcher_of(cluster: Cluster, instance: Object) -> Object | None:
    """The launcher pod in which the machine is: on the VMI's node, and before there is one the only pod."""
    pods = launchers_of(cluster, instance)
    node = dig(instance, "status", "nodeName")
    if node is not None:
        return next((pod for pod in pods if pod["spec"].get("nodeName") == node), None)
    return next((pod for pod in pods if MIGRATION not in labels_of(pod)), None)


def target_of(cluster: Cluster, instance: Object) -> Object | None:
    """The launcher pod that the present migration goes to."""
    job = dig(instance, "status", "migrationState", "migrationUid")
    pods = launchers_of(cluster, instance)
    return next((pod for pod in pods if job and labels_of(pod).get(MIGRATION) == job), None)


def launcher_pod(instance: Object) -> Object:
    """The launcher pod of a VMI that starts."""
    namespace, name = key_of(instance)
    labels = {"kubevirt.io": "virt-launcher", CREATED_BY: uid_of(instance), "vm.kubevirt.io/name": name}
    return {
        "metadata": {
            "namespace": namespace,
            "generateName": f"virt-launcher-{name}-",
            "labels": {**labels_of(instance), **labels},
            "ownerReferences": [owner_reference(VMI, instance)],
        },
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "compute", "image": LAUNCHER_IMAGE, "resources": _resources(instance)}],
            "restartPolicy": "Never",
        },
    }


def target_pod(instance: Object, *, job: str) -> Object:
    """The launcher pod of a migration, anywhere but on the node where the machine is now."""
    pod = launcher_pod(instance)
    pod["metadata"]["labels"][MIGRATION] = job
    hostname = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [instance["status"]["nodeName"]]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return pod


def _resources(instance: Object) -> Object:
    memory = dig(instance, "spec", "domain", "memory", "guest", default="1Gi")
    return {"requests": {"cpu": "100m", "memory": memory}}
