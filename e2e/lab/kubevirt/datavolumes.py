"""DataVolumes: CDI's loop from a blank source to a populated claim of the same name.

Source: CDI pkg/controller/datavolume. The importer is a real Pod, run by the infra Node. For a CSI class the claim
carries a ``dataSourceRef`` and stays Pending until the importer is done, as with CDI's populators; the second claim
that CDI makes meanwhile (``prime-…``) is not modelled. Other sources than blank are accepted and never finish.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.claims import USE_POPULATOR, ClaimNotValidError, claim_spec, default_class, uses_populator
from e2e.lab.kubevirt.conditions import set_condition
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import (
    CLAIM,
    DATA_VOLUME,
    POD,
    Key,
    Object,
    annotations_of,
    controlled_by,
    deleting,
    dig,
    key_of,
    labels_of,
    owner_reference,
    uid_of,
)
from e2e.lab.kubevirt.storage import POD_PHASE, POPULATED_BY

IMPORTER_IMAGE = "kubevirt/cdi-importer:v1.66.0"
IMPORTER_LABELS = {"app": "containerized-data-importer", "cdi.kubevirt.io": "importer"}
CLAIM_LABELS = {"app": "containerized-data-importer", "app.kubernetes.io/managed-by": "cdi-controller"}
RETRY_SECONDS = 1.0
FORBIDDEN = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a DataVolume is: its phase and its conditions, each a value, a reason and a message."""

    phase: str
    bound: tuple[bool, str, str]
    running: tuple[bool, str, str] = (False, "", "")
    ready: tuple[bool, str, str] = (False, "", "")
    claim: str = ""
    progress: str = "N/A"
    again: float | None = None


class DataVolumes:
    """Reconciles DataVolumes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._recorder = Recorder(cluster, "datavolume-import-controller")

    async def reconcile(self, key: Key) -> float | None:
        """Takes the DataVolume one step further and reports it in its status."""
        volume = self._cluster.get(DATA_VOLUME, key)
        if volume is None or deleting(volume):
            return None
        progress = await self._advance(volume)
        await self._report(volume, progress)
        return progress.again

    async def _advance(self, volume: Object) -> Progress:
        claim = self._cluster.get(CLAIM, key_of(volume))
        phase = dig(volume, "status", "phase", default="")
        if claim is None and phase == "Succeeded":
            return Progress(phase=phase, bound=(False, "NotFound", "No PVC found"))
        if claim is None:
            return await self._create_claim(volume, phase)
        name = key_of(volume)[1]
        if not controlled_by(claim, volume):
            reason = "ErrResourceMarkedForDeletion" if deleting(claim) else "ErrResourceExists"
            what = "marked for deletion" if deleting(claim) else "already exists and is not managed by DataVolume"
            return Progress(phase=phase, bound=(False, reason, f'Resource "{name}" {what}'), again=RETRY_SECONDS)
        claim_phase = dig(claim, "status", "phase", default="Pending")
        if claim_phase == "Lost":
            return Progress(phase="Failed", bound=(False, "ClaimLost", "Claim Lost"), claim=name)
        is_bound = claim_phase == "Bound"
        bound = (True, "Bound", f"PVC {name} Bound") if is_bound else (False, "Pending", f"PVC {name} Pending")
        return await self._import(volume, claim, is_bound=is_bound, bound=bound)

    async def _create_claim(self, volume: Object, phase: str) -> Progress:
        try:
            await self._cluster.create(CLAIM, self._claim(volume))
        except ClaimNotValidError as error:
            return Progress(phase=phase, bound=(False, "ErrClaimNotValid", str(error)), again=RETRY_SECONDS)
        except ApiError as error:
            if not _exceeds_quota(error):
                raise
            bound = (False, "ErrExceededQuota", error.message)
            return Progress(phase="Pending", bound=bound, again=RETRY_SECONDS)
        name = key_of(volume)[1]
        return Progress(phase="Pending", bound=(False, "Pending", f"PVC {name} Pending"), claim=name)

    async def _import(self, volume: Object, claim: Object, *, is_bound: bool, bound: tuple[bool, str, str]) -> Progress:
        name = key_of(volume)[1]
        populated = dig(claim, "spec", "dataSourceRef", "kind") == POPULATED_BY
        pod = self._cluster.get(POD, (key_of(volume)[0], importer_name(claim)))
        if annotations_of(claim).get(POD_PHASE) == "Succeeded":
            return await self._after_import(pod, Progress(phase="", bound=bound, claim=name), is_bound=is_bound)
        waiting = Progress(phase="PVCBound" if is_bound and not populated else "Pending", bound=bound, claim=name)
        if "blank" not in (dig(volume, "spec", "source") or {}) or not (populated or is_bound):
            return waiting
        if pod is None:
            return await self._create_importer(claim, waiting)
        pod_phase = pod["status"]["phase"]
        if pod_phase == "Succeeded":
            await self._cluster.patch(CLAIM, key_of(claim), {"metadata": {"annotations": {POD_PHASE: pod_phase}}})
        if pod_phase == "Pending":
            return Progress(phase="ImportScheduled", bound=bound, claim=name)
        running = (True, "Pod is running", "") if pod_phase == "Running" else (False, "Completed", "Import Complete")
        ready = (False, "TransferRunning", "")
        return Progress(phase="ImportInProgress", bound=bound, claim=name, running=running, ready=ready)

    async def _create_importer(self, claim: Object, waiting: Progress) -> Progress:
        try:
            await self._cluster.create(POD, _importer(claim))
        except ApiError as error:
            if not _exceeds_quota(error):
                raise
            return Progress(
                phase=waiting.phase,
                bound=waiting.bound,
                claim=waiting.claim,
                running=(False, "ErrExceededQuota", error.message),
                again=RETRY_SECONDS,
            )
        return Progress(phase="ImportScheduled", bound=waiting.bound, claim=waiting.claim)

    async def _after_import(self, pod: Object | None, so_far: Progress, *, is_bound: bool) -> Progress:
        """The importer is done; the DataVolume is when its claim is bound."""
        if pod is not None and is_bound and not deleting(pod):
            await self._cluster.delete(POD, pod, now=True)
        return Progress(
            phase="Succeeded" if is_bound else "ImportInProgress",
            bound=so_far.bound,
            claim=so_far.claim,
            running=(False, "Completed", "Import Complete"),
            ready=(is_bound, "" if is_bound else "TransferRunning", ""),
            progress="100.0%",
        )

    def _claim(self, volume: Object) -> Object:
        """The claim: named, labelled and annotated as the DataVolume is at this moment."""
        namespace, name = key_of(volume)
        spec = claim_spec(self._cluster, volume)
        populated = uses_populator(self._cluster, volume, spec.get("storageClassName") or default_class(self._cluster))
        if populated:
            spec["dataSourceRef"] = {
                "apiGroup": DATA_VOLUME.group,
                "kind": POPULATED_BY,
                "name": f"volume-import-source-{uid_of(volume)}",
            }
        marks = {"cdi.kubevirt.io/storage.contentType": "kubevirt", USE_POPULATOR: "true" if populated else "false"}
        return {
            "metadata": {
                "namespace": namespace,
                "name": name,
                "labels": {**CLAIM_LABELS, **labels_of(volume)},
                "annotations": {**annotations_of(volume), **marks},
                "ownerReferences": [owner_reference(DATA_VOLUME, volume)],
            },
            "spec": spec,
        }

    async def _report(self, volume: Object, progress: Progress) -> None:
        old = volume.get("status", {})
        status = copy.deepcopy(old)
        status |= {"phase": progress.phase, "progress": progress.progress}
        if progress.claim:
            status["claimName"] = progress.claim
        for kind, (value, reason, message) in (
            ("Bound", progress.bound),
            ("Running", progress.running),
            ("Ready", progress.ready),
        ):
            set_condition(status, kind, value=value, reason=reason, message=message)
        for condition in status["conditions"]:
            condition.setdefault("lastHeartbeatTime", condition["lastTransitionTime"])
        if status == old:
            return
        await self._cluster.replace(DATA_VOLUME, volume | {"status": status}, subresource="/status")
        value, reason, message = progress.bound
        if reason.startswith("Err"):
            await self._recorder.record(DATA_VOLUME, volume, reason=reason, message=message, kind="Warning")
        elif progress.phase and progress.phase != old.get("phase"):
            text = f"{progress.phase} of {key_of(volume)[1]}"
            await self._recorder.record(DATA_VOLUME, volume, reason=progress.phase, message=text)


def importer_name(claim: Object) -> str:
    """The importer pod that populates the claim."""
    return f"importer-prime-{uid_of(claim)}"


def _importer(claim: Object) -> Object:
    return {
        "metadata": {
            "namespace": key_of(claim)[0],
            "name": importer_name(claim),
            "labels": IMPORTER_LABELS,
            "ownerReferences": [owner_reference(CLAIM, claim)],
        },
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "OnFailure",
            "containers": [
                {
                    "name": "importer",
                    "image": IMPORTER_IMAGE,
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "60M"},
                        "limits": {"cpu": "750m", "memory": "600M"},
                    },
                }
            ],
        },
    }


def _exceeds_quota(error: ApiError) -> bool:
    return error.status == FORBIDDEN and "exceeded quota" in error.message
