"""Attachment pods, and the part of a VMI's volume status that virt-controller writes.

Source: KubeVirt pkg/virt-controller/watch/vmi (volume-hotplug.go, storage.go). One pod holds all hot-plug volumes of a
VMI that are ready, and each change replaces it. The surprising facts: the status is judged by the pod that holds *all*
hot-plugs of the spec, so one volume that is not ready takes the others' attachment back unless they are Ready; and a
claim that does not exist stops everything.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.disks import by_name, claim_name, hotplugs_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.node import is_ready
from e2e.lab.kubevirt.reconciling import Stopwatch, soonest
from e2e.lab.kubevirt.resources import (
    CLAIM,
    DATA_VOLUME,
    POD,
    Object,
    controlled_by,
    controller_of,
    deleting,
    dig,
    key_of,
    owner_reference,
    uid_of,
)
from e2e.lab.kubevirt.settings import Durations

POD_LABELS = {"kubevirt.io": "hotplug-disk"}
POD_IMAGE = "kubevirt/virt-launcher:v1.9.0"
DISKS_VOLUME = "hotplug-disks"
READY_DATA_VOLUME = ("Succeeded", "PendingPopulation")


class ClaimMissingError(Exception):
    """A claim of the VMI's spec does not exist."""


class Attachments:
    """Attachment pods of VMIs."""

    def __init__(self, cluster: Cluster, durations: Durations) -> None:
        self._cluster = cluster
        self._durations = durations
        self._steps = Stopwatch()

    def pods(self, launcher: Object) -> list[Object]:
        """The attachment pods of the launcher pod."""
        return [pod for pod in self._cluster.find(POD, key_of(launcher)[0]) if controlled_by(pod, launcher)]

    async def create_pod(self, instance: Object, launcher: Object) -> list[Object]:
        """Makes a pod of the ready volumes unless there is one or another is pending; returns those to be deleted.

        Raises:
            ClaimMissingError: see there.
        """
        ready = [volume for volume in hotplugs_of(instance["spec"]) if self._is_ready(instance, volume)]
        pods = self.pods(launcher)
        current = _holding(pods, ready)
        if current is None and ready and not any(pod["status"]["phase"] == "Pending" for pod in pods):
            current = await self._cluster.create(POD, _manifest(instance, launcher, ready))
        return list(_doomed(instance, pods, current, any_ready=bool(ready)))

    async def delete_pods(self, instance: Object, pods: Sequence[Object]) -> float | None:
        """Deletes those pods whose time has come, with grace period 0; returns when the next one's comes."""
        pauses = []
        for pod in pods:
            left = self._steps.left(self._durations.pod_gone, uid_of(instance), uid_of(pod))
            if left:
                pauses.append(left)
            else:
                await self._cluster.delete(POD, pod, now=True)
                self._steps.forget(uid_of(instance), uid_of(pod))
        return soonest(*pauses)

    def volume_status(self, instance: Object, launcher: Object, doomed: Sequence[Object]) -> list[Object]:
        """The new ``status.volumeStatus``, sorted by name."""
        old = by_name(dig(instance, "status", "volumeStatus", default=[]))
        pods = self.pods(launcher)
        attachment = _holding(pods, hotplugs_of(instance["spec"]))
        entries = []
        for volume in volumes_of(instance["spec"]):
            entry = copy.deepcopy(old.pop(volume["name"], {"name": volume["name"], "target": ""}))
            if is_hotplug(volume):
                self._judge(instance, volume, entry, attachment)
            self._describe_claim(instance, volume, entry)
            entries.append(entry)
        for entry in old.values():
            entries += _leaving(copy.deepcopy(entry), pods, doomed)
        return sorted(entries, key=lambda entry: str(entry["name"]))

    def _judge(self, instance: Object, volume: Object, entry: Object, attachment: Object | None) -> None:
        """Sets phase and pod of a hot-plug volume that is in the spec."""
        pod = entry.setdefault("hotplugVolume", {})
        if attachment is None:
            if entry.get("phase") != "Ready":
                pod.clear()
                entry |= self._claim_phase(instance, volume)
            return
        pod["attachPodName"] = attachment["metadata"]["name"]
        pod.pop("attachPodUID", None)
        if is_ready(attachment):
            pod["attachPodUID"] = uid_of(attachment)
        if entry.get("phase") in (None, "Pending", "Bound"):
            name = attachment["metadata"]["name"]
            entry |= {
                "phase": "AttachedToNode",
                "reason": "SuccessfulCreate",
                "message": f"Created hotplug attachment pod {name}, for volume {volume['name']}",
            }

    def _claim_phase(self, instance: Object, volume: Object) -> Object:
        claim = self._claim(instance, volume)
        if claim is None:
            message = f"PVC {claim_name(volume)} not found"
            return {"phase": "Pending", "reason": "FailedPvcNotFound", "message": message}
        phase = dig(claim, "status", "phase", default="Pending")
        shown = "ClaimPending" if phase == "Pending" else phase
        return {
            "phase": "Bound" if phase == "Bound" else "Pending",
            "reason": "PVCNotReady",
            "message": f"PVC is in phase {shown}",
        }

    def _describe_claim(self, instance: Object, volume: Object, entry: Object) -> None:
        claim = self._claim(instance, volume)
        if claim is None:
            return
        spec = claim["spec"]
        block = spec.get("volumeMode") == "Block"
        entry["persistentVolumeClaimInfo"] = {
            "claimName": claim["metadata"]["name"],
            "accessModes": spec["accessModes"],
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "capacity": dig(claim, "status", "capacity", default={}),
            "requests": dig(spec, "resources", "requests", default={}),
            "filesystemOverhead": "0" if block else "0.06",
        }

    def _is_ready(self, instance: Object, volume: Object) -> bool:
        """Whether the claim may be attached: it exists, and the DataVolume that made it, if any, is done."""
        claim = self._claim(instance, volume)
        if claim is None:
            raise ClaimMissingError(f"Error determining volume status didn't find PVC {claim_name(volume)}")
        owner = controller_of(claim)
        if owner is None or owner["kind"] != DATA_VOLUME.kind:
            return True
        data_volume = self._cluster.get(DATA_VOLUME, (key_of(instance)[0], owner["name"]))
        return data_volume is None or dig(data_volume, "status", "phase") in READY_DATA_VOLUME

    def _claim(self, instance: Object, volume: Object) -> Object | None:
        name = claim_name(volume)
        return self._cluster.get(CLAIM, (key_of(instance)[0], name)) if name else None


def phase_events(old: Object, new: Object) -> Iterator[tuple[str, str]]:
    """Reason and message of each volume whose phase is another now, or that has gone."""
    before, after = (by_name(dig(each, "status", "volumeStatus", default=[])) for each in (old, new))
    for name, entry in after.items():
        if "phase" in entry and entry["phase"] != before.get(name, {}).get("phase"):
            yield entry["reason"], entry["message"]
    for name in before.keys() - after.keys():
        yield "VolumeUnplugged", f"Volume {name} has been unplugged from VM"


def _held(pod: Object) -> set[str]:
    return {volume["name"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume}


def _holding(pods: Sequence[Object], volumes: Sequence[Object]) -> Object | None:
    """The pod that holds exactly these volumes."""
    names = {volume["name"] for volume in volumes}
    return next((pod for pod in pods if names and _held(pod) == names and not deleting(pod)), None)


def _doomed(instance: Object, pods: Sequence[Object], current: Object | None, *, any_ready: bool) -> Iterator[Object]:
    """The replaced pods, without one that serves until its successor runs and without those still in use."""
    successor_runs = current is not None and dig(current, "status", "phase") == "Running"
    kept_one = successor_runs or not any_ready
    in_spec = {volume["name"] for volume in volumes_of(instance["spec"])}
    in_use = {
        entry["name"]
        for entry in dig(instance, "status", "volumeStatus", default=[])
        if entry["name"] not in in_spec and entry.get("phase") in ("Ready", "MountedToPod")
    }
    for pod in pods:
        if pod is current or (current is not None and uid_of(pod) == uid_of(current)) or deleting(pod):
            continue
        if not kept_one and pod["status"]["phase"] == "Running":
            kept_one = True
        elif not _held(pod) & in_use:
            yield pod


def _leaving(entry: Object, pods: Sequence[Object], doomed: Sequence[Object]) -> list[Object]:
    """A volume that has left the spec keeps its entry while a pod holds it."""
    holders = [pod for pod in pods if entry["name"] in _held(pod)]
    if not holders:
        return []
    if holders[0] in doomed:
        name = holders[0]["metadata"]["name"]
        entry["hotplugVolume"] = {"attachPodName": name, "attachPodUID": uid_of(holders[0])}
        entry |= {
            "phase": "Detaching",
            "reason": "SuccessfulDelete",
            "message": f"Deleted hotplug attachment pod {name}, for volume {entry['name']}",
        }
    return [entry]


def _manifest(instance: Object, launcher: Object, volumes: Sequence[Object]) -> Object:
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [launcher["spec"]["nodeName"]]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}
    return {
        "metadata": {
            "namespace": key_of(instance)[0],
            "generateName": "hp-volume-",
            "labels": POD_LABELS,
            "ownerReferences": [owner_reference(POD, launcher)],
        },
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "tolerations": launcher["spec"].get("tolerations", []),
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
                    "volumeDevices": [
                        {"name": volume["name"], "devicePath": f"/path/{volume['name']}"} for volume in volumes
                    ],
                    "volumeMounts": [{"name": DISKS_VOLUME, "mountPath": "/path"}],
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
