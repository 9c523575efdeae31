"""Live migration of a VMI, as far as others notice: its state, a second launcher and its attachment pod, another node.

Source: KubeVirt pkg/virt-controller/watch/migration. It is ordered by a fault and lasts until the order is taken back.
The machine itself stays where it is: a guest does not notice a migration. The surprising fact: one hot-plugged volume
that only one node may use makes the whole VMI immovable.
"""

from __future__ import annotations

import uuid

from e2e.lab.kubevirt.attachments import Attachments
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.conditions import set_condition
from e2e.lab.kubevirt.launchers import target_of, target_pod
from e2e.lab.kubevirt.pods import is_ready
from e2e.lab.kubevirt.recording import Recorder, now
from e2e.lab.kubevirt.resources import POD, VMI, Object, dig, uid_of

NODE_LABEL = "kubevirt.io/nodeName"
NOT_MIGRATABLE = "DisksNotLiveMigratable"


def in_progress(instance: Object) -> bool:
    """Whether a migration has begun and not ended."""
    state = dig(instance, "status", "migrationState")
    return bool(state) and not any(state.get(field) for field in ("endTimestamp", "completed", "failed"))


def judge_migratable(instance: Object) -> None:
    """Sets the condition LiveMigratable from the access modes of the VMI's claims."""
    status = instance["status"]
    for entry in status.get("volumeStatus", []):
        info = entry.get("persistentVolumeClaimInfo")
        if info and "ReadWriteMany" not in info["accessModes"]:
            message = (
                f"cannot migrate VMI: PVC {info['claimName']} is not shared, live migration requires that all PVCs "
                "must be shared (using ReadWriteMany access mode)"
            )
            set_condition(status, "LiveMigratable", value=False, reason=NOT_MIGRATABLE, message=message)
            return
    set_condition(status, "LiveMigratable", value=True)


class Migrations:
    """Begins and ends migrations."""

    def __init__(self, cluster: Cluster, attachments: Attachments, *, recorder: Recorder) -> None:
        self._cluster = cluster
        self._attachments = attachments
        self._recorder = recorder

    async def advance(self, instance: Object, *, wanted: bool) -> None:
        """Takes the migration that ``wanted`` asks for one step further, changing ``instance``."""
        if in_progress(instance):
            await self._work(instance, ending=not wanted)
        elif wanted and dig(instance, "status", "phase") == "Running":
            await self._begin(instance)

    async def _begin(self, instance: Object) -> None:
        conditions = dig(instance, "status", "conditions", default=[])
        movable = next((each for each in conditions if each["type"] == "LiveMigratable"), None)
        if movable is None:
            return
        if movable["status"] != "True":
            message = f"Cannot migrate VMI, Reason: {movable['reason']}, Message: {movable['message']}"
            await self._recorder.record(VMI, instance, reason="FailedMigration", message=message, kind="Warning")
            return
        instance["status"]["migrationState"] = {
            "startTimestamp": now(),
            "migrationUid": str(uuid.uuid4()),
            "sourceNode": instance["status"]["nodeName"],
        }

    async def _work(self, instance: Object, *, ending: bool) -> None:
        """Makes launcher and attachment pod at the target; the machine moves when both run and it is to end."""
        state = instance["status"]["migrationState"]
        target = target_of(self._cluster, instance)
        if target is None:
            await self._cluster.create(POD, target_pod(instance, job=state["migrationUid"]))
            return
        if not is_ready(target):
            return
        node = target["spec"]["nodeName"]
        state |= {"targetNode": node, "targetPod": target["metadata"]["name"]}
        attachment = await self._attachments.prepare(instance, target)
        if attachment is not None:
            state["targetAttachmentPodUID"] = uid_of(attachment)
        if not ending or (attachment is not None and not is_ready(attachment)):
            return
        state |= {"endTimestamp": now(), "completed": True}
        instance["status"] |= {"nodeName": node, "activePods": {uid_of(target): node}}
        instance["metadata"].setdefault("labels", {})[NODE_LABEL] = node
