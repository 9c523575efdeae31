"""virt-controller's work on attachment pods: one pod holds all ready hot-plugs of a VMI, and each change replaces it.

Source: KubeVirt pkg/virt-controller/watch/vmi/volume-hotplug.go. The surprising facts: no pod is made while another is
pending, however long that takes; and a claim that does not exist stops everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from e2e.lab.kubevirt.attachment_pods import (
    POD_LABELS,
    attachment_pod,
    held,
    holding,
    is_trigger,
    replaced,
    trigger_pod,
)
from e2e.lab.kubevirt.backing import Backing
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.disks import hotplugs_of
from e2e.lab.kubevirt.reconciling import Stopwatch, soonest
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import POD, VMI, Object, controlled_by, deleting, key_of, labels_of, uid_of
from e2e.lab.kubevirt.settings import Durations

FORBIDDEN = 403


class Attachments:
    """Attachment pods of VMIs."""

    def __init__(self, cluster: Cluster, backing: Backing, *, recorder: Recorder, durations: Durations) -> None:
        self._cluster = cluster
        self._backing = backing
        self._recorder = recorder
        self._durations = durations
        self._steps = Stopwatch()

    def pods(self, launcher: Object) -> list[Object]:
        """The attachment pods of the launcher pod."""
        return [pod for pod in self.all_pods(launcher) if not is_trigger(pod)]

    def all_pods(self, launcher: Object) -> list[Object]:
        """Attachment and trigger pods of the launcher pod."""
        pods = self._cluster.find(POD, key_of(launcher)[0])
        return [pod for pod in pods if controlled_by(pod, launcher) and POD_LABELS.items() <= labels_of(pod).items()]

    async def work(self, instance: Object, launcher: Object) -> list[Object]:
        """Makes a pod of the ready volumes unless there is one or another is pending; returns those to be deleted.

        Raises:
            ClaimMissingError: a claim of the spec does not exist; nothing was done.
        """
        hotplugs = hotplugs_of(instance["spec"])
        readiness = [(volume, self._backing.readiness(instance, volume)) for volume in hotplugs]
        idle = await self._trigger(instance, launcher, [each for each, state in readiness if state == "wants consumer"])
        ready = [volume for volume, state in readiness if state == "ready"]
        pods = self.pods(launcher)
        current = holding(pods, ready)
        if current is None and ready and not any(pod["status"]["phase"] == "Pending" for pod in pods):
            current = await self._create(instance, self._pod(instance, launcher, ready))
        doomed = replaced(instance, pods, current, any_ready=bool(ready))
        return [*idle, *(pod for pod in doomed if not self._stuck(instance, pod, "UnMountedFromPod"))]

    async def prepare(self, instance: Object, target: Object) -> Object | None:
        """Makes the attachment pod of a migration's target launcher, once; returns it, None without hot-plugs."""
        hotplugs = hotplugs_of(instance["spec"])
        pods = self.pods(target)
        if pods or not hotplugs:
            return pods[0] if pods else None
        return await self._create(instance, self._pod(instance, target, hotplugs))

    async def delete(self, instance: Object, pods: Sequence[Object]) -> float | None:
        """Deletes those pods whose time has come, with grace period 0; returns when the next one's comes."""
        pauses = []
        for pod in pods:
            left = self._steps.left(self._durations.pod_gone, uid_of(instance), uid_of(pod))
            if left:
                pauses.append(left)
            elif not self._stuck(instance, pod, "Detaching"):
                await self._cluster.delete(POD, pod, now=True)
                self._steps.forget(uid_of(instance), uid_of(pod))
        return soonest(*pauses)

    async def _trigger(self, instance: Object, launcher: Object, volumes: Sequence[Object]) -> list[Object]:
        """Gives each volume a first consumer; returns the trigger pods that have done their service."""
        wanted = {volume["name"]: volume for volume in volumes}
        triggers = [pod for pod in self.all_pods(launcher) if is_trigger(pod)]
        present = {name for pod in triggers for name in held(pod)}
        for name in wanted.keys() - present:
            block = self._block(instance, volumes)
            await self._create(instance, trigger_pod(instance, launcher, wanted[name], block=block))
        return [pod for pod in triggers if not held(pod) & wanted.keys() and not deleting(pod)]

    def _pod(self, instance: Object, launcher: Object, volumes: Sequence[Object]) -> Object:
        return attachment_pod(instance, launcher, volumes, block=self._block(instance, volumes))

    def _block(self, instance: Object, volumes: Sequence[Object]) -> set[str]:
        return {volume["name"] for volume in volumes if self._backing.is_block(instance, volume)}

    async def _create(self, instance: Object, manifest: Object) -> Object | None:
        """Creates the pod; a refusal, by a quota for example, is an event and no more."""
        try:
            return await self._cluster.create(POD, manifest)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            message = f"Error creating attachment pod: {error.message}"
            await self._recorder.record(VMI, instance, reason="FailedCreate", message=message, kind="Warning")
            return None

    def _stuck(self, instance: Object, pod: Object, phase: str) -> bool:
        """Whether a volume of the pod that has left the spec was ordered not to leave this phase."""
        leaving = held(pod) - {volume["name"] for volume in hotplugs_of(instance["spec"])}
        claims = (each for each in pod["spec"]["volumes"] if each["name"] in leaving)
        return any(self._backing.faults(instance, volume).stuck_detach == phase for volume in claims)
