"""Attachment pods as objects: what they hold, which of them serves, which are replaced, and what they look like.

Source: KubeVirt pkg/virt-controller/watch/vmi/volume-hotplug.go and pkg/virt-controller/services/template.go. The
surprising fact: the pod that serves is the one that holds exactly the wanted volumes, whatever its age.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from e2e.lab.kubevirt.disks import claim_name, volumes_of
from e2e.lab.kubevirt.resources import POD, Object, annotations_of, deleting, dig, key_of, owner_reference, uid_of

POD_LABELS = {"kubevirt.io": "hotplug-disk"}
POD_IMAGE = "kubevirt/virt-launcher:v1.9.0"
DISKS_VOLUME = "hotplug-disks"
TRIGGER = "kubevirt.io/ephemeral-provisioning"
# Since v1.8 a disk can be attached on a Node that is cordoned or short of something.
TOLERATED = ("unschedulable", "memory-pressure", "disk-pressure", "pid-pressure")


def is_trigger(pod: Object) -> bool:
    """Whether the pod is there only to be the first consumer of a claim."""
    return TRIGGER in annotations_of(pod)


def held(pod: Object) -> set[str]:
    """The names of the volumes that the pod holds."""
    return {volume["name"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume}


def holding(pods: Sequence[Object], volumes: Sequence[Object]) -> Object | None:
    """The pod that holds exactly these volumes."""
    names = {volume["name"] for volume in volumes}
    return next((pod for pod in pods if names and held(pod) == names and not deleting(pod)), None)


def replaced(instance: Object, pods: Sequence[Object], current: Object | None, *, any_ready: bool) -> Iterator[Object]:
    """The pods to delete, without one that serves until its successor runs and without those still in use."""
    successor_runs = current is not None and dig(current, "status", "phase") == "Running"
    kept_one = successor_runs or not any_ready
    in_spec = {volume["name"] for volume in volumes_of(instance["spec"])}
    in_use = {
        entry["name"]
        for entry in dig(instance, "status", "volumeStatus", default=[])
        if entry["name"] not in in_spec and entry.get("phase") in ("Ready", "MountedToPod")
    }
    for pod in pods:
        if (current is not None and uid_of(pod) == uid_of(current)) or deleting(pod):
            continue
        if not kept_one and pod["status"]["phase"] == "Running":
            kept_one = True
        elif not held(pod) & in_use:
            yield pod


def attachment_pod(instance: Object, launcher: Object, volumes: Sequence[Object], *, block: Collection[str]) -> Object:
    """The pod that holds the volumes beside the launcher; ``block`` names those whose claims are block devices."""
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [launcher["spec"]["nodeName"]]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}
    paths = [(volume["name"], f"/path/{volume['name']}") for volume in volumes]
    return {
        "metadata": {
            "namespace": key_of(instance)[0],
            "generateName": "hp-volume-",
            "labels": POD_LABELS,
            "ownerReferences": [owner_reference(POD, launcher)],
        },
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "tolerations": [*launcher["spec"].get("tolerations", []), *_tolerations()],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "hotplug-disk",
                    "image": POD_IMAGE,
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "2M"},
                        "limits": {"cpu": "100m", "memory": "80M"},
                    },
                    "volumeDevices": [{"name": name, "devicePath": path} for name, path in paths if name in block],
                    "volumeMounts": [
                        {"name": DISKS_VOLUME, "mountPath": "/path"},
                        *({"name": name, "mountPath": path} for name, path in paths if name not in block),
                    ],
                }
            ],
            "volumes": [
                {"name": DISKS_VOLUME, "emptyDir": {}},
                *(
                    {"name": volume["name"], "persistentVolumeClaim": {"claimName": claim_name(volume)}}
                    for volume in volumes
                ),
            ],
        },
    }


def trigger_pod(instance: Object, launcher: Object, volume: Object, *, block: Collection[str]) -> Object:
    """A pod whose only purpose is to be the first consumer of the volume's claim."""
    pod = attachment_pod(instance, launcher, [volume], block=block)
    pod["metadata"]["annotations"] = {TRIGGER: "true"}
    return pod


def _tolerations() -> list[Object]:
    return [{"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoSchedule"} for what in TOLERATED]
