"""CDI's work on the claims of DataVolumes: a populator's second claim, the importer pod, and the change of owner.

Source: CDI pkg/controller/populators and pkg/controller/import-controller.go. With a populator the claim stays Pending
while a second one (``prime-…``) and its importer do the work; then the PersistentVolume is given to the claim. Without,
the importer works on the claim itself. The surprising fact: while that runs, the namespace's quota counts both claims.

What is found is told in annotations of the claim; DataVolumes read nothing else (``datavolumes``).
"""

from __future__ import annotations

from collections.abc import Mapping

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.claims import IMMEDIATE, lacks_consumer
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.importer import IMPORTER_LABELS, importer_pod
from e2e.lab.kubevirt.marks import (
    BOUND,
    IMPORT_SOURCE_MARK,
    MESSAGE,
    POD_PHASE,
    QUOTA_EXCEEDED,
    REASON,
    RESTARTS,
    RUNNING,
)
from e2e.lab.kubevirt.reconciling import Pauses
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import (
    CLAIM,
    EVENT,
    IMPORT_SOURCE,
    POD,
    VOLUME,
    Key,
    Object,
    annotations_of,
    deleting,
    dig,
    key_of,
    owner_reference,
    uid_of,
)
from e2e.lab.kubevirt.scheduling import SELECTED_NODE, is_unschedulable
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.storage import claim_reference, volume_of

FORBIDDEN = 403
IMPORTS = ("blank", "http", "registry", "s3", "gcs", "imageio", "vddk")
Marks = Mapping[str, str | None]
CLEAR: Marks = {BOUND: None, BOUND + REASON: None, BOUND + MESSAGE: None}


class Imports:
    """Reconciles the claims that CDI is to fill."""

    def __init__(self, cluster: Cluster, durations: Durations) -> None:
        self._cluster = cluster
        self._pauses = Pauses(durations.retry)
        self._recorder = Recorder(cluster, "import-populator")

    async def reconcile(self, key: Key) -> float | None:
        """Takes the claim's population one step further."""
        claim = self._cluster.get(CLAIM, key)
        if claim is None:
            return None
        if deleting(claim):
            await self._stop(claim)
            return None
        if dig(claim, "spec", "dataSourceRef", "kind") == IMPORT_SOURCE.kind:
            return await self._populate(claim)
        source = annotations_of(claim).get(IMPORT_SOURCE_MARK)
        if source is not None and annotations_of(claim).get(POD_PHASE) != "Succeeded":
            return await self._fill(claim, source)
        return None

    async def _stop(self, claim: Object) -> None:
        """Ends the importer, which would keep a claim that is to go under protection for ever."""
        pod = self._cluster.get(POD, _pod_key(claim))
        if pod is not None and not deleting(pod):
            await self._cluster.delete(POD, pod, now=True)

    # Without a populator

    async def _fill(self, claim: Object, source: str) -> float | None:
        """The importer works on the claim itself, once it is bound or where it is to be the first consumer."""
        if not _is_bound(claim) and IMMEDIATE not in annotations_of(claim):
            return None
        return await self._import(claim, claim, source)

    # With a populator

    async def _populate(self, claim: Object) -> float | None:
        prime = self._cluster.get(CLAIM, (key_of(claim)[0], prime_name(claim)))
        if _is_bound(claim):
            return await self._clean_up(claim, prime)
        source = self._cluster.get(IMPORT_SOURCE, (key_of(claim)[0], claim["spec"]["dataSourceRef"]["name"]))
        kind = next(iter(dig(source, "spec", "source", default={})), "")
        if kind not in IMPORTS or lacks_consumer(self._cluster, claim):
            return None
        if prime is None:
            return await self._create_prime(claim)
        if annotations_of(claim).get(POD_PHASE) == "Succeeded":
            return await self._rebind(claim, prime)
        again = await self._import(claim, prime, kind)
        return again if _is_bound(prime) else await self._tell_waiting(claim, prime)

    async def _create_prime(self, claim: Object) -> float | None:
        marks = annotations_of(claim)
        node = {SELECTED_NODE: marks[SELECTED_NODE]} if SELECTED_NODE in marks else {}
        asked = claim["spec"]
        prime = {
            "metadata": {
                "namespace": key_of(claim)[0],
                "name": prime_name(claim),
                "labels": {**IMPORTER_LABELS, "app.kubernetes.io/managed-by": "cdi-controller"},
                "annotations": {IMMEDIATE: "", "cdi.kubevirt.io/storage.populator.kind": IMPORT_SOURCE.kind, **node},
                "ownerReferences": [owner_reference(CLAIM, claim)],
            },
            "spec": {key: asked[key] for key in ("accessModes", "resources", "storageClassName", "volumeMode")},
        }
        try:
            await self._cluster.create(CLAIM, prime)
        except ApiError as error:
            await self._recorder.record(
                CLAIM, claim, reason="ErrCreatingPVCPrime", message=error.message, kind="Warning"
            )
            if not exceeds_quota(error):
                raise
            return await self._tell(claim, _negative(BOUND, QUOTA_EXCEEDED, error.message), again=True)
        message = "PVC Prime created successfully"
        await self._recorder.record(CLAIM, claim, reason="CreatedPVCPrimeSuccessfully", message=message)
        await self._tell(claim, CLEAR)
        return 0.0

    async def _tell_waiting(self, claim: Object, prime: Object) -> float | None:
        """What was last said about the second claim: here the storage's own troubles come to light."""
        query = {"fieldSelector": f"involvedObject.uid={uid_of(prime)}"}
        path = EVENT.collection(key_of(claim)[0])
        events = (await self._cluster.connection.request("GET", path, query=query))["items"]
        if events:
            latest = max(events, key=lambda event: int(event["metadata"]["resourceVersion"]))
            message = f"[{key_of(prime)[1]}] : {latest['message']}"
            if annotations_of(claim).get(BOUND + MESSAGE) != message:
                kind, reason = latest["type"], latest["reason"]
                await self._recorder.record(CLAIM, claim, reason=reason, message=message, kind=kind)
            await self._tell(claim, _negative(BOUND, "Pending", message))
        return self._pauses.longer(uid_of(claim))

    async def _rebind(self, claim: Object, prime: Object) -> float | None:
        """Gives the volume to the claim; kube-controller-manager binds them."""
        volume = volume_of(self._cluster, prime)
        if volume is not None and dig(volume, "spec", "claimRef", "uid") != uid_of(claim):
            patch = {"spec": {"claimRef": claim_reference(claim["metadata"]) | {"resourceVersion": None}}}
            await self._cluster.patch(VOLUME, key_of(volume), patch)
        return None

    async def _clean_up(self, claim: Object, prime: Object | None) -> float | None:
        await self._tell(claim, CLEAR)
        self._pauses.forget(uid_of(claim))
        if prime is None or deleting(prime):
            return None
        pod = self._cluster.get(POD, _pod_key(prime))
        if pod is not None and not deleting(pod):
            await self._cluster.delete(POD, pod, now=True)
        await self._cluster.delete(CLAIM, prime)
        return None

    # The importer pod, on either kind of claim

    async def _import(self, claim: Object, target: Object, source: str) -> float | None:
        """Has an importer pod on ``target`` and tells about it in the claim."""
        key = _pod_key(target)
        pod = self._cluster.get(POD, key)
        if pod is None:
            return await self._create_pod(claim, importer_pod(key[1], target, source))
        phase = pod["status"]["phase"]
        await self._tell(claim, {POD_PHASE: phase, **(CLEAR if _is_bound(target) else {}), **_running(pod)})
        if phase == "Succeeded" and target is claim:
            await self._cluster.delete(POD, pod, now=True)
        return None

    async def _create_pod(self, claim: Object, pod: Object) -> float | None:
        try:
            await self._cluster.create(POD, pod)
        except ApiError as error:
            if not exceeds_quota(error):
                raise
            return await self._tell(claim, _negative(RUNNING, QUOTA_EXCEEDED, error.message), again=True)
        return None

    async def _tell(self, claim: Object, marks: Marks, *, again: bool = False) -> float | None:
        """Annotates the claim where it does not say so already."""
        present = annotations_of(self._cluster.get(CLAIM, key_of(claim)) or claim)
        changed = {key: value for key, value in marks.items() if present.get(key) != value}
        if changed:
            await self._cluster.patch(CLAIM, key_of(claim), {"metadata": {"annotations": changed}})
        return self._pauses.longer(uid_of(claim)) if again else None


def prime_name(claim: Object) -> str:
    """The second claim that a populator works on."""
    return f"prime-{uid_of(claim)}"


def exceeds_quota(error: ApiError) -> bool:
    """Whether a ResourceQuota refused the object."""
    return error.status == FORBIDDEN and "exceeded quota" in error.message


def _pod_key(target: Object) -> Key:
    namespace, name = key_of(target)
    return namespace, f"importer-{name}"


def _negative(condition: str, reason: str, message: str) -> Marks:
    return {condition: "false", condition + REASON: reason, condition + MESSAGE: message}


def _running(pod: Object) -> Marks:
    """How the pod's container is, as CDI writes it down."""
    container: Object = next(iter(dig(pod, "status", "containerStatuses", default=[])), {})
    restarts = {RESTARTS: str(container["restartCount"])} if container else {}
    if "running" in container.get("state", {}):
        return {RUNNING: "true", RUNNING + REASON: "Pod is running", RUNNING + MESSAGE: "", **restarts}
    ended = dig(container, "state", "terminated") or dig(container, "lastState", "terminated", default={})
    if ended:
        return {**_negative(RUNNING, ended["reason"], ended.get("message", "")), **restarts}
    if is_unschedulable(pod):
        return _negative(RUNNING, "Unschedulable", "Importer pod cannot be scheduled")
    return _negative(RUNNING, "", "")


def _is_bound(claim: Object) -> bool:
    return bool(dig(claim, "status", "phase") == "Bound")
