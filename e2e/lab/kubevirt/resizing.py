"""Growth of claims: what external-resizer and kubelet do when a bound claim asks for more than it has.

Source: kubernetes-csi/external-resizer pkg/controller and Kubernetes pkg/volume/util. A Block claim is done when its
file has grown; a Filesystem claim only when a pod that uses it runs, because the file system grows on the node. The
surprising fact: an infeasible request stays in the claim and in its status until somebody asks for less.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.offers import DRIVERS
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.reconciling import Pauses, Stopwatch
from e2e.lab.kubevirt.recording import Recorder, now
from e2e.lab.kubevirt.resources import CLAIM, POD, VOLUME, Key, Object, deleting, dig, key_of, uid_of
from e2e.lab.kubevirt.scheduling import claim_keys
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.storage import (
    VolumeRefusedError,
    check_room,
    image_path,
    make_image,
    provisioned_by,
    volume_of,
)

RESIZING, PENDING, ERROR = "Resizing", "FileSystemResizePending", "ControllerResizeError"
PENDING_TEXT = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."


class Resizer:
    """Grows volumes when their claims ask for it."""

    def __init__(self, cluster: Cluster, directory: Path, durations: Durations) -> None:
        self._cluster = cluster
        self._directory = directory
        self._durations = durations
        self._steps = Stopwatch()
        self._pauses = Pauses(durations.retry)
        self._recorders = {name: Recorder(cluster, f"external-resizer {name}") for name in DRIVERS}

    async def reconcile(self, key: Key) -> float | None:
        """Takes the growth of a bound claim of a CSI driver one step further."""
        claim = self._cluster.get(CLAIM, key)
        if claim is None or deleting(claim) or dig(claim, "status", "phase") != "Bound":
            return None
        volume = volume_of(self._cluster, claim)
        if volume is None or provisioned_by(volume) not in DRIVERS or "capacity" not in claim["status"]:
            return None
        asked = claim["spec"]["resources"]["requests"]["storage"]
        if bytes_of(asked) <= bytes_of(claim["status"]["capacity"]["storage"]):
            await self._settle(claim)
            return None
        if bytes_of(asked) > bytes_of(volume["spec"]["capacity"]["storage"]):
            return await self._grow_volume(claim, volume, asked)
        if not _is_block(volume):
            return await self._grow_file_system(claim, asked)
        await self._finish(claim, asked)
        return None

    async def _settle(self, claim: Object) -> None:
        """Clears what is left of a request that has been taken back."""
        if dig(claim, "status", "allocatedResourceStatuses"):
            await self._report(claim, state=None)

    async def _grow_volume(self, claim: Object, volume: Object, asked: str) -> float | None:
        """The controller's part."""
        if _state(claim) == "ControllerResizeInfeasible" and dig(claim, "status", "allocatedResources") == {
            "storage": asked
        }:
            return None
        if _state(claim) != "ControllerResizeInProgress":
            await self._tell(claim, volume, "Resizing", f"External resizer is resizing volume {key_of(volume)[1]}")
            await self._report(claim, state="ControllerResizeInProgress", asked=asked, conditions={RESIZING: ""})
            return 0.0
        left = self._steps.left(self._durations.resized, uid_of(claim), asked)
        if left:
            return left
        new, old = bytes_of(asked), bytes_of(volume["spec"]["capacity"]["storage"])
        try:
            check_room(self._cluster, volume["spec"]["storageClassName"], new=new, old=old)
        except VolumeRefusedError as error:
            return await self._refuse(claim, volume, asked, error)
        if _is_block(volume):
            await asyncio.to_thread(make_image, image_path(self._directory, volume), new)
        await self._cluster.patch(VOLUME, key_of(volume), {"spec": {"capacity": {"storage": asked}}})
        self._steps.forget(uid_of(claim))
        self._pauses.forget(uid_of(claim))
        return 0.0

    async def _refuse(self, claim: Object, volume: Object, asked: str, error: VolumeRefusedError) -> float | None:
        """Some refusals are for ever (external-resizer: IsInfeasibleError), the others are tried again."""
        for_ever = "code = ResourceExhausted" not in str(error)
        state = "ControllerResizeInfeasible" if for_ever else "ControllerResizeInProgress"
        name = key_of(volume)[1]
        message = f'resize volume "{name}" by resizer "{provisioned_by(volume)}" failed: rpc error: {error}'
        await self._report(claim, state=state, asked=asked, conditions={RESIZING: "", ERROR: message})
        await self._tell(claim, volume, "VolumeResizeFailed", message, failed=True)
        return None if for_ever else self._pauses.longer(uid_of(claim))

    async def _grow_file_system(self, claim: Object, asked: str) -> float | None:
        """The node's part: it waits for a pod that uses the claim and runs."""
        if _state(claim) != "NodeResizePending":
            await self._report(claim, state="NodeResizePending", asked=asked, conditions={PENDING: PENDING_TEXT})
            return 0.0
        key = key_of(claim)
        users = (pod for pod in self._cluster.find(POD, key[0]) if key in claim_keys(pod))
        if not any(pod["status"]["phase"] == "Running" for pod in users):
            return None
        left = self._steps.left(self._durations.resized, uid_of(claim), "node")
        if not left:
            await self._finish(claim, asked)
        return left or None

    async def _finish(self, claim: Object, asked: str) -> None:
        self._steps.forget(uid_of(claim))
        await self._report(claim, state=None, asked=asked, capacity=asked)
        volume = volume_of(self._cluster, claim)
        if volume is not None:
            await self._tell(claim, volume, "VolumeResizeSuccessful", "Resize volume succeeded")

    async def _report(
        self,
        claim: Object,
        *,
        state: str | None,
        asked: str | None = None,
        conditions: dict[str, str] | None = None,
        capacity: str | None = None,
    ) -> None:
        """Replaces the claim's resize conditions and states; an empty state means that nothing is under way."""
        ours = (RESIZING, PENDING, ERROR)
        kept = [each for each in claim["status"].get("conditions", []) if each["type"] not in ours]
        new = [
            {"type": kind, "status": "True", "message": message, "lastTransitionTime": now()}
            for kind, message in (conditions or {}).items()
        ]
        status: Object = {
            "conditions": [*kept, *new],
            "allocatedResourceStatuses": {"storage": state} if state else None,
        }
        if asked is not None:
            status["allocatedResources"] = {"storage": asked}
        if capacity is not None:
            status["capacity"] = {"storage": capacity}
        await self._cluster.patch(CLAIM, key_of(claim), {"status": status}, subresource="/status")

    async def _tell(self, claim: Object, volume: Object, reason: str, message: str, *, failed: bool = False) -> None:
        recorder = self._recorders[provisioned_by(volume) or ""]
        kind: Literal["Normal", "Warning"] = "Warning" if failed else "Normal"
        await recorder.record(CLAIM, claim, reason=reason, message=message, kind=kind)


def _is_block(volume: Object) -> bool:
    return bool(volume["spec"].get("volumeMode") == "Block")


def _state(claim: Object) -> str:
    state: str = dig(claim, "status", "allocatedResourceStatuses", "storage", default="")
    return state
