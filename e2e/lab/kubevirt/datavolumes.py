"""DataVolumes: CDI's loop from a DataVolume to a claim of the same name, and what it tells about it in its status.

Source: CDI pkg/controller/datavolume. The claim is filled elsewhere (``importing``), which annotates it; phase and
conditions follow from the claim alone. Almost nothing is a failure: what cannot be done now shows in the conditions
and is tried again for ever. Claims with other sources than an import's are made and never filled.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.claims import (
    USE_POPULATOR,
    ClaimNotValidError,
    NoProfileYetError,
    claim_spec,
    lacks_consumer,
    uses_populator,
)
from e2e.lab.kubevirt.conditions import set_condition
from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.importing import IMPORTS, exceeds_quota
from e2e.lab.kubevirt.marks import (
    BOUND,
    CONTENT_TYPE,
    IMPORT_SOURCE_MARK,
    POD_PHASE,
    QUOTA_EXCEEDED,
    RESTARTS,
    RUNNING,
    told,
)
from e2e.lab.kubevirt.reconciling import Pauses
from e2e.lab.kubevirt.recording import Recorder
from e2e.lab.kubevirt.resources import (
    CLAIM,
    DATA_VOLUME,
    IMPORT_SOURCE,
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
from e2e.lab.kubevirt.settings import Durations

CLAIM_LABELS = {"app": "containerized-data-importer", "app.kubernetes.io/managed-by": "cdi-controller"}
PHASES = {"Pending": "ImportScheduled", "Running": "ImportInProgress", "Failed": "Failed"}
"""The DataVolume's phase by that of the importer pod, until the import has succeeded."""

Condition = tuple[bool, str, str]  # value, reason, message
NONE: Condition = (False, "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a DataVolume is: its phase and its conditions."""

    phase: str
    bound: Condition
    running: Condition = NONE
    claim: str = ""
    progress: str = "N/A"
    restarts: int | None = None
    again: bool = False

    @property
    def ready(self) -> Condition:
        return self.phase == "Succeeded", "TransferRunning" if self.phase == "ImportInProgress" else "", ""


class DataVolumes:
    """Reconciles DataVolumes."""

    def __init__(self, cluster: Cluster, durations: Durations) -> None:
        self._cluster = cluster
        self._pauses = Pauses(durations.retry)
        self._recorder = Recorder(cluster, "datavolume-import-controller")

    async def reconcile(self, key: Key) -> float | None:
        """Takes the DataVolume one step further and reports it in its status."""
        volume = self._cluster.get(DATA_VOLUME, key)
        if volume is None or deleting(volume):
            return None
        progress = await self._advance(volume)
        await self._report(volume, progress)
        if progress.again:
            return self._pauses.longer(uid_of(volume))
        self._pauses.forget(uid_of(volume))
        return None

    async def _advance(self, volume: Object) -> Progress:
        claim = self._cluster.get(CLAIM, key_of(volume))
        phase = dig(volume, "status", "phase", default="")
        if claim is None and phase == "Succeeded":
            return Progress(phase=phase, bound=(False, "NotFound", "No PVC found"))
        if claim is None:
            return await self._create_claim(volume, phase)
        if not controlled_by(claim, volume):
            reason = "ErrResourceMarkedForDeletion" if deleting(claim) else "ErrResourceExists"
            what = "marked for deletion" if deleting(claim) else "already exists and is not managed by DataVolume"
            message = f'Resource "{key_of(volume)[1]}" {what}'
            return Progress(phase=phase, bound=(False, reason, message), again=True)
        return self._judge(volume, claim)

    async def _create_claim(self, volume: Object, phase: str) -> Progress:
        try:
            spec = claim_spec(self._cluster, volume)
            populated = self._is_populated(volume, spec)
            if populated:
                await self._create_source(volume)
            await self._cluster.create(CLAIM, _claim(volume, spec, populated=populated))
        except NoProfileYetError:
            return Progress(phase=phase, bound=(False, "NotFound", "No PVC found"), again=True)
        except ClaimNotValidError as error:
            return Progress(phase=phase, bound=(False, "ErrClaimNotValid", str(error)), again=True)
        except ApiError as error:
            if not exceeds_quota(error):
                raise
            return Progress(phase="Pending", bound=(False, QUOTA_EXCEEDED, error.message), again=True)
        name = key_of(volume)[1]
        return Progress(phase="Pending", bound=(False, "Pending", f"PVC {name} Pending"), claim=name)

    def _is_populated(self, volume: Object, spec: Object) -> bool:
        """Whether CDI's own populator fills the claim; a claim with a data source has another one."""
        named = spec.get("dataSource") or spec.get("dataSourceRef")
        return not named and uses_populator(self._cluster, volume, spec.get("storageClassName"))

    async def _create_source(self, volume: Object) -> None:
        """The object that tells the populator what to fill the claim with."""
        key = (key_of(volume)[0], _source_name(volume))
        if self._cluster.get(IMPORT_SOURCE, key) is not None:
            return
        metadata = {"namespace": key[0], "name": key[1], "ownerReferences": [owner_reference(DATA_VOLUME, volume)]}
        source = {"source": volume["spec"].get("source", {}), "contentType": "kubevirt"}
        await self._cluster.create(IMPORT_SOURCE, {"metadata": metadata, "spec": source})

    def _judge(self, volume: Object, claim: Object) -> Progress:
        name = key_of(volume)[1]
        claim_phase = dig(claim, "status", "phase", default="Pending")
        if claim_phase == "Lost":
            return Progress(phase="Failed", bound=(False, "ClaimLost", "Claim Lost"), claim=name)
        is_bound = claim_phase == "Bound"
        done = annotations_of(claim).get(POD_PHASE) == "Succeeded"
        restarts = annotations_of(claim).get(RESTARTS)
        bound = (True, "Bound", f"PVC {name} Bound") if is_bound else _unbound(claim)
        running = (False, "Completed", "Import Complete") if done else told(claim, RUNNING)
        return Progress(
            phase=self._phase(volume, claim, is_bound=is_bound, done=done),
            bound=bound,
            running=running,
            claim=name,
            progress="100.0%" if done else "N/A",
            restarts=int(restarts) if restarts is not None else None,
        )

    def _phase(self, volume: Object, claim: Object, *, is_bound: bool, done: bool) -> str:
        if is_bound and (done or _has_other_populator(volume)):
            return "Succeeded"
        populated = dig(claim, "spec", "dataSourceRef", "kind") == IMPORT_SOURCE.kind
        if not is_bound and lacks_consumer(self._cluster, claim):
            return "PendingPopulation" if populated else "WaitForFirstConsumer"
        if done:
            return "ImportInProgress"
        if told(claim, BOUND)[1] == QUOTA_EXCEEDED:
            return "Pending"
        return PHASES.get(annotations_of(claim).get(POD_PHASE, ""), "PVCBound" if is_bound else "Pending")

    async def _report(self, volume: Object, progress: Progress) -> None:
        old = volume.get("status", {})
        status = copy.deepcopy(old)
        status |= {"phase": progress.phase, "progress": progress.progress}
        if progress.claim:
            status["claimName"] = progress.claim
        if progress.restarts is not None:
            status["restartCount"] = progress.restarts
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


def _claim(volume: Object, spec: Object, *, populated: bool) -> Object:
    """The claim: named, labelled and annotated as the DataVolume is at this moment."""
    namespace, name = key_of(volume)
    marks = {CONTENT_TYPE: "kubevirt", USE_POPULATOR: "true" if populated else "false"}
    source = next(iter(volume["spec"].get("source") or {}), "")
    if populated:
        spec["dataSourceRef"] = {
            "apiGroup": IMPORT_SOURCE.group,
            "kind": IMPORT_SOURCE.kind,
            "name": _source_name(volume),
        }
    elif source in IMPORTS:
        marks[IMPORT_SOURCE_MARK] = source
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


def _source_name(volume: Object) -> str:
    return f"volume-import-source-{uid_of(volume)}"


def _has_other_populator(volume: Object) -> bool:
    return not volume["spec"].get("source") and not volume["spec"].get("sourceRef")


def _unbound(claim: Object) -> Condition:
    """Why the claim is not bound: CDI's own trouble, or what was last said about the populator's claim."""
    _, reason, message = told(claim, BOUND)
    name = key_of(claim)[1]
    if reason == QUOTA_EXCEEDED:
        return False, reason, message
    return False, "Pending", f"target PVC {name} Pending and {message}" if message else f"PVC {name} Pending"
