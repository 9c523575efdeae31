"""The part of ``VMI.status.volumeStatus`` that virt-controller writes, and the events that every change of it is.

Source: KubeVirt pkg/virt-controller/watch/vmi/storage.go. The surprising facts: a volume is judged by the pod that
holds *all* hot-plugs of the spec, so one volume that is not ready takes the others' attachment back unless they are
Ready; and a volume that has left the spec keeps its entry while any attachment pod holds it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from e2e.lab.kubevirt.attachment_pods import held, holding
from e2e.lab.kubevirt.backing import Backing
from e2e.lab.kubevirt.disks import by_name, claim_name, hotplugs_of, is_hotplug, volumes_of
from e2e.lab.kubevirt.pods import is_ready
from e2e.lab.kubevirt.resources import Object, dig, uid_of

ATTACHABLE = (None, "Pending", "Bound")


def volume_status(
    instance: Object, backing: Backing, *, pods: Sequence[Object], doomed: Sequence[Object]
) -> list[Object]:
    """The new list, sorted by name, given all attachment pods of the VMI and those of them that are being deleted."""
    old = by_name(dig(instance, "status", "volumeStatus", default=[]))
    attachment = holding(pods, hotplugs_of(instance["spec"]))
    entries = []
    for volume in volumes_of(instance["spec"]):
        name = volume["name"]
        known = old.pop(name, None)
        if is_hotplug(volume) and _is_lost(known) and backing.faults(instance, volume).lost_status == "entry":
            continue
        entry = copy.deepcopy(known or {"name": name, "target": ""})
        if is_hotplug(volume):
            _judge(entry, attachment, waiting=_claim_phase(volume, backing.claim(instance, volume)))
        if (info := backing.info(instance, volume)) is not None:
            entry["persistentVolumeClaimInfo"] = info
        entries.append(entry)
    for entry in old.values():
        entries += _leaving(copy.deepcopy(entry), pods, doomed)
    return sorted(entries, key=lambda entry: str(entry["name"]))


def phase_events(old: Object, new: Object) -> Iterator[tuple[str, str]]:
    """Reason and message of each volume whose phase is another now, or that has gone."""
    before, after = (by_name(dig(each, "status", "volumeStatus", default=[])) for each in (old, new))
    for name, entry in after.items():
        if "phase" in entry and entry["phase"] != before.get(name, {}).get("phase"):
            yield entry["reason"], entry["message"]
    in_spec = by_name(volumes_of(new["spec"]))
    for name in before.keys() - after.keys() - in_spec.keys():
        yield "VolumeUnplugged", f"Volume {name} has been unplugged from VM"


def _is_lost(entry: Object | None) -> bool:
    """Whether the order to lose an entry concerns it: it is Ready, or lost already."""
    return entry is None or entry.get("phase") == "Ready"


def _judge(entry: Object, attachment: Object | None, *, waiting: Object) -> None:
    """Sets phase and pod of a hot-plug volume that is in the spec; without a pod it is ``waiting``."""
    pod = entry.setdefault("hotplugVolume", {})
    if attachment is None:
        if entry.get("phase") != "Ready":
            pod.clear()
            entry |= waiting
        return
    name = attachment["metadata"]["name"]
    pod["attachPodName"] = name
    pod.pop("attachPodUID", None)
    if is_ready(attachment):
        pod["attachPodUID"] = uid_of(attachment)
    if entry.get("phase") in ATTACHABLE:
        entry |= {
            "phase": "AttachedToNode",
            "reason": "SuccessfulCreate",
            "message": f"Created hotplug attachment pod {name}, for volume {entry['name']}",
        }


def _claim_phase(volume: Object, claim: Object | None) -> Object:
    """What is said of a volume that no pod holds."""
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


def _leaving(entry: Object, pods: Sequence[Object], doomed: Sequence[Object]) -> list[Object]:
    """A volume that has left the spec keeps its entry while a pod holds it."""
    holders = [pod for pod in pods if entry["name"] in held(pod)]
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
