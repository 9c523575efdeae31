"""What a VMI tells of its volumes and its machine, and what attachment pods hold, as these tests read it."""

from __future__ import annotations

from itertools import pairwise

from tests.api.standin.site import Site, add_options, entry_of, phase_of
from tests.api.standin.talking import Object
from tests.api.standin.volumes import bare_claim

PREFIX = "lab.csi.kubevirt.io/"
Step = tuple[str, str, str]

PENDING_CLAIM: Step = ("Pending", "PVCNotReady", "PVC is in phase ClaimPending")
BOUND: Step = ("Bound", "PVCNotReady", "PVC is in phase Bound")


def mounted(volume: str) -> Step:
    return "MountedToPod", "VolumeMountedToPod", f"Volume {volume} has been mounted in virt-launcher pod"


def ready(volume: str) -> Step:
    return "Ready", "VolumeReady", f"Successfully attach hotplugged volume {volume} to VM"


def unmounted(volume: str) -> Step:
    return "UnMountedFromPod", "VolumeUnMountedFromPod", f"Volume {volume} has been unmounted from virt-launcher pod"


def attached_by(pod: Object, volume: str) -> Step:
    name = pod["metadata"]["name"]
    return "AttachedToNode", "SuccessfulCreate", f"Created hotplug attachment pod {name}, for volume {volume}"


def deleted_with(pod: Object, volume: str) -> Step:
    name = pod["metadata"]["name"]
    return "Detaching", "SuccessfulDelete", f"Deleted hotplug attachment pod {name}, for volume {volume}"


def step_in(vmi: Object | None, volume: str) -> Step:
    """Phase, reason and message of the volume, empty when it has no entry."""
    entry = entry_of(vmi, volume)
    return entry.get("phase", ""), entry.get("reason", ""), entry.get("message", "")


def steps_of(states: list[Object], volume: str) -> list[Step]:
    """Phase, reason and message of the volume, each change once; states without it are left out."""
    steps = [step_in(state, volume) for state in states if entry_of(state, volume)]
    return steps[:1] + [after for before, after in pairwise(steps) if before != after]


def phases_in(states: list[Object], volume: str) -> list[str]:
    """The phases of the volume, each change once."""
    phases = [phase for phase, _, _ in steps_of(states, volume)]
    return phases[:1] + [after for before, after in pairwise(phases) if before != after]


def phase_in(vmi: Object | None, volume: str) -> str:
    return step_in(vmi, volume)[0]


def target_in(vmi: Object | None, volume: str) -> str:
    target: str = entry_of(vmi, volume).get("target", "")
    return target


def pod_in(vmi: Object | None, volume: str) -> Object:
    """The attachment pod that the entry names."""
    pod: Object = entry_of(vmi, volume).get("hotplugVolume", {})
    return pod


def in_spec(vmi: Object | None) -> list[str]:
    return [volume["name"] for volume in (vmi or {}).get("spec", {}).get("volumes", [])]


def condition_in(obj: Object | None, kind: str) -> Object:
    conditions = (obj or {}).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def held_by(pod: Object | None) -> set[str]:
    """The volumes of claims that the pod holds."""
    volumes = (pod or {}).get("spec", {}).get("volumes", [])
    return {volume["name"] for volume in volumes if "persistentVolumeClaim" in volume}


def running_with(pod: Object, *volumes: str) -> bool:
    return held_by(pod) == set(volumes) and phase_of(pod) == "Running"


async def version_of(site: Site, vm: str) -> str:
    """The present resourceVersion of the VMI, to follow it from."""
    version: str = (await site.vmi(vm))["metadata"]["resourceVersion"]
    return version


async def order(site: Site, path: str, **faults: str | None) -> None:
    """Orders faults at the object, or takes the orders back; underscores stand for dashes."""
    annotations = {PREFIX + name.replace("_", "-"): value for name, value in faults.items()}
    await site.client.patch(path, {"metadata": {"annotations": annotations}})


async def plug_until(site: Site, vm: str, volume: str, phase: str) -> Object:
    """Sends addvolume; the VMI as it is when the volume is in that phase."""
    assert (await site.add(vm, add_options(volume))).code == 202
    return (await site.vmi_until(vm, lambda vmi: phase_in(vmi, volume) == phase))[-1]


async def unplug(site: Site, vm: str, volume: str) -> None:
    assert (await site.remove(vm, {"name": volume})).code == 202


async def pod_of(site: Site, vmi: Object, volume: str) -> Object:
    """The attachment pod that the volume's entry names."""
    return await site.client.get(f"{site.pods}/{pod_in(vmi, volume)['attachPodName']}")


async def bare_volume(site: Site, name: str) -> str:
    """A bound Block claim without a DataVolume; returns its name."""
    await site.client.create(site.claims, bare_claim(name))
    await site.claim_seen(name)
    return name
