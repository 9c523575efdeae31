"""A newcomer's walk: one volume from claim to removal, seen in both clusters, with what a user would look at.

``make demo`` plays it on the terminal and the nested suite runs it as a test; both get the same checks, since every
step raises when what it shows is not what it should be. It takes two kubeconfigs and knows no lab.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.kubectl import Kubectl, NotYet, wait_until

DRIVER = "csi.kubevirt.io"
DRIVER_NAMESPACE = "kubevirt-csi-driver"
MEBIBYTES = 64
ATTACH_SECONDS = 240.0
DETACH_SECONDS = 240.0

# Serials come from sysfs, where the kernel keeps them: the udev database, which lsblk reads, may be late or absent.
SHOW_DISKS = """
for disk in /sys/block/[sv]d*; do
  serial=$(tr -d '\\0' < $disk/serial 2>/dev/null || tail -c +5 $disk/device/vpd_pg80 2>/dev/null | tr -d '\\0')
  echo "/dev/${disk##*/}  $(($(cat $disk/size) / 2048)) MiB  serial ${serial:--}"
done
"""


class WalkError(Exception):
    """A step saw something else than it should have; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where the walk happens: two clusters, the infra namespace of the VMs, the class and image to use."""

    tenant: Kubectl
    infra: Kubectl
    infra_namespace: str
    storage_class: str
    pod_image: str
    namespace: str = "default"
    name: str = "first"


@dataclass(slots=True)
class Seen:
    """What earlier steps found and later ones need."""

    nodes: list[str] = field(default_factory=list)
    claim_uid: str = ""
    persistent_volume: str = ""
    volume_id: str = ""
    infra_persistent_volume: str = ""
    device: str = ""
    digest: str = ""


Step = Callable[[Surroundings, Seen], Iterator[str]]
"""Yields what to show; raises WalkError or NotYet when it is not as it should be."""


def require(*, that: bool, otherwise: str) -> None:
    """Raises WalkError with the text unless the condition holds."""
    if not that:
        raise WalkError(otherwise)


def claim(where: Surroundings) -> dict[str, Any]:
    """The tenant's claim: 1 GiB of the class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": where.name, "namespace": where.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": where.storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def pod(where: Surroundings, *, name: str, node: str, script: str) -> dict[str, Any]:
    """A pod on the given node that runs the script with the claim mounted at /data and then stays."""
    source = {"name": "data", "persistentVolumeClaim": {"claimName": where.name}}
    seen_as = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return pod_with_volume(where, name=name, node=node, script=script, source=source, seen_as=seen_as)


def pod_with_volume(
    where: Surroundings, *, name: str, node: str, script: str, source: Mapping[str, Any], seen_as: Mapping[str, Any]
) -> dict[str, Any]:
    """The same with any volume: ``source`` is its entry in the pod, ``seen_as`` how the container has it."""
    # As PID 1 a shell ignores a signal that it has no trap for, and sleep would let kubelet wait for its grace period.
    stays = "trap 'exit 0' TERM; sleep 3600 & wait"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": where.namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": where.pod_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", f"{script} && {{ {stays}; }}"],
                    **seen_as,
                }
            ],
            "volumes": [dict(source)],
        },
    }


def writer(where: Surroundings, *, node: str) -> dict[str, Any]:
    """The pod that writes random bytes and prints their sha256."""
    script = f"dd if=/dev/urandom of=/data/random bs=1M count={MEBIBYTES} && sync && sha256sum /data/random"
    return pod(where, name=writer_of(where), node=node, script=script)


def writer_of(where: Surroundings) -> str:
    """The name of the pod that writes."""
    return f"{where.name}-writer"


def reader_of(where: Surroundings) -> str:
    """The name of the pod that reads on the other node."""
    return f"{where.name}-reader"


def the_driver_is_installed(where: Surroundings, seen: Seen) -> Iterator[str]:
    """The driver is installed: its CSIDriver, the nodes that have it, the class."""
    yield where.tenant.run("get", "csidrivers,storageclasses")

    def nodes() -> list[str]:
        names = []
        for item in where.tenant.items("csinodes"):
            for driver in item["spec"].get("drivers") or []:
                if driver["name"] == DRIVER:
                    expected = f"{where.infra_namespace}/"
                    require(
                        that=driver["nodeID"].startswith(expected),
                        otherwise=f"node id {driver['nodeID']!r} does not begin with {expected!r}",
                    )
                    names.append(item["metadata"]["name"])
        return names if len(names) > 1 else []

    seen.nodes = wait_until(nodes, what=f"{DRIVER} registered on two nodes", timeout=ATTACH_SECONDS)
    yield where.tenant.run("get", "csinodes", "-o", "custom-columns=NAME:.metadata.name,NODEID:.spec.drivers[*].nodeID")


def data_volumes(where: Surroundings, seen: Seen) -> set[str]:
    """The DataVolumes of the claim: csi-provisioner calls a volume after its claim's UID."""
    names = {item["metadata"]["name"] for item in where.infra.items("datavolumes", where.infra_namespace)}
    return {name for name in names if seen.claim_uid in name}


def a_claim_waits_for_a_pod(where: Surroundings, seen: Seen) -> Iterator[str]:
    """A claim is made and waits for its first consumer: nothing exists in the management cluster yet."""
    where.tenant.apply(claim(where))

    def waits() -> bool:
        events = where.tenant.run(
            "get", "events", "-n", where.namespace,
            f"--field-selector=involvedObject.name={where.name},reason=WaitForFirstConsumer", "-o", "name",
        )  # fmt: skip
        return bool(events)

    wait_until(waits, what="event WaitForFirstConsumer on the claim", timeout=60)
    found = where.tenant.get("pvc", where.name, where.namespace) or {}
    phase = found["status"]["phase"]
    require(that=phase == "Pending", otherwise=f"the claim is {phase}, expected Pending")
    seen.claim_uid = found["metadata"]["uid"]
    made = data_volumes(where, seen)
    require(that=not made, otherwise=f"it has DataVolumes already: {made}")
    yield where.tenant.run("get", "pvc", where.name, "-n", where.namespace)


def a_pod_writes(where: Surroundings, seen: Seen) -> Iterator[str]:
    """A pod on the first node writes 64 MiB of random bytes."""
    where.tenant.apply(writer(where, node=seen.nodes[0]))
    seen.digest = wait_for_digest(where, writer_of(where))
    yield where.tenant.run("get", "pod", writer_of(where), "-n", where.namespace, "-o", "wide")
    yield where.tenant.run("logs", writer_of(where), "-n", where.namespace)


def wait_for_digest(where: Surroundings, name: str) -> str:
    """The sha256 that the pod printed, once it runs."""

    def digest() -> str:
        for line in where.tenant.run("logs", name, "-n", where.namespace).splitlines():
            words = line.split()
            if len(words) == 2 and words[1] == "/data/random" and len(words[0]) == 64:  # noqa: PLR2004 - sha256sum's line
                return words[0]
        return ""

    def describe() -> str:
        return where.tenant.run("describe", "pod", name, "-n", where.namespace)

    try:
        where.tenant.wait(f"pod/{name}", "condition=Ready", where.namespace, timeout=ATTACH_SECONDS)
    except NotYet as error:
        raise NotYet(f"{error}\n{describe()}") from error
    return wait_until(digest, what=f"pod {name} prints a sha256", timeout=ATTACH_SECONDS, last=describe)


def the_tenant_sees_a_bound_claim(where: Surroundings, seen: Seen) -> Iterator[str]:
    """In the tenant: the claim is Bound and its VolumeAttachment attached."""
    found = where.tenant.get("pvc", where.name, where.namespace) or {}
    require(that=found["status"]["phase"] == "Bound", otherwise=f"the claim is {found['status']['phase']}")
    seen.persistent_volume = found["spec"]["volumeName"]
    volume = where.tenant.get("pv", seen.persistent_volume) or {}
    seen.volume_id = volume["spec"]["csi"]["volumeHandle"]
    yield where.tenant.run("get", "pvc", where.name, "-n", where.namespace)
    [attachment] = attachments(where, seen)
    require(that=attachment["status"]["attached"], otherwise=f"not attached: {json.dumps(attachment['status'])}")
    yield where.tenant.run("get", "volumeattachments")


def attachments(where: Surroundings, seen: Seen) -> list[dict[str, Any]]:
    """The volume's VolumeAttachments."""
    found = where.tenant.items("volumeattachments")
    return [item for item in found if item["spec"]["source"].get("persistentVolumeName") == seen.persistent_volume]


def the_management_cluster_sees_a_hot_plugged_disk(where: Surroundings, seen: Seen) -> Iterator[str]:
    """In the management cluster: the DataVolume, its claim, and the disk in the VM's status."""
    yield where.infra.run("get", "datavolumes,pvc", "-n", where.infra_namespace)
    statuses = [
        status
        for vmi in where.infra.items("vmi", where.infra_namespace)
        for status in vmi["status"].get("volumeStatus") or []
        if status["name"] == seen.volume_id
    ]
    phases = [status["phase"] for status in statuses]
    require(that=phases == ["Ready"], otherwise=f"volume {seen.volume_id} is in VMI status as {statuses}")
    infra_claim = where.infra.get("pvc", seen.volume_id, where.infra_namespace) or {}
    seen.infra_persistent_volume = infra_claim["spec"]["volumeName"]
    yield "VMI status: " + json.dumps(statuses[0], indent=2)


def the_guest_has_the_disk(where: Surroundings, seen: Seen) -> Iterator[str]:
    """In the guest: a new disk, known by its serial."""
    [attachment] = attachments(where, seen)
    serial = attachment["status"]["attachmentMetadata"]["serial"]
    plugins = where.tenant.items("pods", DRIVER_NAMESPACE, "-l", "app=kubevirt-csi-node")
    [plugin] = [item["metadata"]["name"] for item in plugins if item["spec"]["nodeName"] == seen.nodes[0]]
    disks = where.tenant.run("exec", plugin, "-n", DRIVER_NAMESPACE, "-c", "driver", "--", "sh", "-c", SHOW_DISKS)
    found = [line for line in disks.splitlines() if line.endswith(f"serial {serial}")]
    require(that=len(found) == 1, otherwise=f"not one disk with serial {serial} in the guest:\n{disks}")
    seen.device = found[0].split()[0]
    yield disks


def another_node_reads_the_same_bytes(where: Surroundings, seen: Seen) -> Iterator[str]:
    """The pod is deleted; a new one on the other VM finds the same bytes."""
    where.tenant.delete("pod", writer_of(where), where.namespace)
    for attachment in attachments(where, seen):
        where.tenant.wait(f"volumeattachment/{attachment['metadata']['name']}", "delete", timeout=DETACH_SECONDS)
    reader = pod(where, name=reader_of(where), node=seen.nodes[1], script="sha256sum /data/random")
    where.tenant.apply(reader)
    digest = wait_for_digest(where, reader_of(where))
    require(that=digest == seen.digest, otherwise=f"other bytes: wrote {seen.digest}, read {digest}")
    yield where.tenant.run("get", "pod", reader_of(where), "-n", where.namespace, "-o", "wide")
    yield f"the same sha256: {digest}"


def the_events_tell_the_story(where: Surroundings, _seen: Seen) -> Iterator[str]:
    """What happened, as the events of claim and pods tell it."""
    for name in (where.name, writer_of(where), reader_of(where)):
        yield where.tenant.run(
            "get", "events", "-n", where.namespace, f"--field-selector=involvedObject.name={name}",
            "-o", "custom-columns=OBJECT:.involvedObject.name,TYPE:.type,REASON:.reason,MESSAGE:.message",
            "--sort-by=.metadata.creationTimestamp",
        )  # fmt: skip


def nothing_is_left(where: Surroundings, seen: Seen) -> Iterator[str]:
    """Pod and claim are deleted, and nothing is left in either cluster."""
    where.tenant.delete("pod", reader_of(where), where.namespace)
    where.tenant.delete("pvc", where.name, where.namespace)
    where.tenant.wait(f"pv/{seen.persistent_volume}", "delete", timeout=DETACH_SECONDS)
    wait_until(lambda: not remains(where, seen), what="both clusters clean", timeout=DETACH_SECONDS,
               last=lambda: "left: " + ", ".join(remains(where, seen)))  # fmt: skip
    yield "tenant:     no PersistentVolume, no VolumeAttachment"
    yield "management: no DataVolume, no claim, no volume, no disk in any VM"


def remains(where: Surroundings, seen: Seen) -> list[str]:
    """What of the volume is still there, in either cluster."""
    wanted = (
        (where.tenant, "pv", seen.persistent_volume, None),
        (where.infra, "datavolume", seen.volume_id, where.infra_namespace),
        (where.infra, "pvc", seen.volume_id, where.infra_namespace),
        (where.infra, "pv", seen.infra_persistent_volume, None),
    )
    objects = [cluster.get(kind, name, namespace) for cluster, kind, name, namespace in wanted]
    objects += attachments(where, seen)
    found = [f"{item['kind']} {item['metadata']['name']}" for item in objects if item is not None]
    for vm in where.infra.items("vm", where.infra_namespace):
        volumes = vm["spec"]["template"]["spec"].get("volumes") or []
        found += [f"VM {vm['metadata']['name']} spec" for volume in volumes if volume["name"] == seen.volume_id]
    for vmi in where.infra.items("vmi", where.infra_namespace):
        statuses = vmi["status"].get("volumeStatus") or []
        found += [f"VMI {vmi['metadata']['name']} status" for status in statuses if status["name"] == seen.volume_id]
    return found


STEPS: tuple[Step, ...] = (
    the_driver_is_installed,
    a_claim_waits_for_a_pod,
    a_pod_writes,
    the_tenant_sees_a_bound_claim,
    the_management_cluster_sees_a_hot_plugged_disk,
    the_guest_has_the_disk,
    another_node_reads_the_same_bytes,
    the_events_tell_the_story,
    nothing_is_left,
)


def title(step: Step) -> str:
    """The step's headline: the first line of its docstring."""
    return (step.__doc__ or "").splitlines()[0].rstrip(".")
