"""The importer pod: what it is made of, and what the process in it does.

Source: CDI pkg/controller/import-controller.go and cmd/cdi-importer. Only a blank source can be reached here: the
process takes its time, makes ``disk.img`` in a Filesystem claim (a Block claim is blank as it is) and ends. With any
other source it fails to connect, and is started again for ever with growing pauses, as in reality.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.configuration import overhead
from e2e.lab.kubevirt.faults import faults_of
from e2e.lab.kubevirt.pods import report_pod
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.reconciling import Stopwatch
from e2e.lab.kubevirt.recording import now
from e2e.lab.kubevirt.resources import (
    CLAIM,
    DATA_VOLUME,
    KUBEVIRT,
    POD,
    Key,
    Object,
    controller_of,
    deleting,
    dig,
    key_of,
    labels_of,
    owner_reference,
    uid_of,
)
from e2e.lab.kubevirt.scheduling import claim_keys
from e2e.lab.kubevirt.settings import Durations
from e2e.lab.kubevirt.sizes import image_bytes
from e2e.lab.kubevirt.storage import image_path, make_image, volume_of

IMPORTER_IMAGE = "kubevirt/cdi-importer:v1.66.0"
IMPORTER_LABELS = {"app": "containerized-data-importer", "cdi.kubevirt.io": "importer"}
SOURCE_VARIABLE = "IMPORTER_SOURCE"
BLANK = "blank"
LONGEST_DOUBLING = 6


def importer_pod(name: str, claim: Object, source: str) -> Object:
    """The pod that brings the source's data into the claim."""
    block = claim["spec"].get("volumeMode") == "Block"
    use = {"volumeDevices": [{"name": "cdi-data-vol", "devicePath": "/dev/cdi-block-volume"}]}
    if not block:
        use = {"volumeMounts": [{"name": "cdi-data-vol", "mountPath": "/data"}]}
    return {
        "metadata": {
            "namespace": key_of(claim)[0],
            "name": name,
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
                    "env": [{"name": SOURCE_VARIABLE, "value": source}],
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "60M"},
                        "limits": {"cpu": "750m", "memory": "600M"},
                    },
                    **use,
                }
            ],
            "volumes": [{"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": key_of(claim)[1]}}],
        },
    }


class Importer:
    """The processes in running importer pods."""

    def __init__(self, cluster: Cluster, directory: Path, durations: Durations) -> None:
        self._cluster = cluster
        self._directory = directory
        self._durations = durations
        self._steps = Stopwatch()

    async def reconcile(self, key: Key) -> float | None:
        """Lets the pod's process go on."""
        pod = self._cluster.get(POD, key)
        if pod is None or deleting(pod) or dig(pod, "status", "phase") != "Running":
            return None
        if labels_of(pod) != IMPORTER_LABELS:
            return None
        faults = faults_of(*self._filled_by(pod), *self._cluster.find(KUBEVIRT))
        if faults.importing == "stuck":
            return self._durations.retry
        restarts = pod["status"]["containerStatuses"][0]["restartCount"]
        pause = self._durations.importer * 2 ** min(restarts, LONGEST_DOUBLING) + faults.slow_import
        left = self._steps.left(pause, uid_of(pod), restarts)
        if left:
            return left
        if faults.importing == "failed":
            await self._end(pod, phase="Failed", code=1, message="Unable to process data: ordered by the lab")
        elif _source(pod) != BLANK:
            await self._crash(pod, restarts + 1)
        else:
            await self._write(pod)
            await self._end(pod, phase="Succeeded", code=0, message="Import Complete")
        return None

    def _filled_by(self, pod: Object) -> list[Object | None]:
        """The claim that the pod is to fill in the end, and its DataVolume."""
        namespace = key_of(pod)[0]
        claim = self._cluster.get(CLAIM, (namespace, dig(controller_of(pod), "name", default="")))
        owner = controller_of(claim) if claim is not None else None
        if owner is not None and owner["kind"] == CLAIM.kind:
            claim = self._cluster.get(CLAIM, (namespace, owner["name"]))
            owner = controller_of(claim) if claim is not None else None
        volume = self._cluster.get(DATA_VOLUME, (namespace, owner["name"])) if owner is not None else None
        return [claim, volume]

    async def _write(self, pod: Object) -> None:
        for key in claim_keys(pod):
            claim = self._cluster.get(CLAIM, key)
            volume = volume_of(self._cluster, claim) if claim is not None else None
            if claim is not None and volume is not None and volume["spec"]["volumeMode"] == "Filesystem":
                share = overhead(self._cluster, claim["spec"].get("storageClassName"))
                size = image_bytes(bytes_of(claim["spec"]["resources"]["requests"]["storage"]), share)
                await asyncio.to_thread(make_image, image_path(self._directory, volume), size)

    async def _end(self, pod: Object, *, phase: str, code: int, message: str) -> None:
        self._steps.forget(uid_of(pod))
        reason = "Error" if code else "Completed"
        ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": now()}
        await report_pod(self._cluster, pod, phase=phase, state={"terminated": ended})

    async def _crash(self, pod: Object, restarts: int) -> None:
        message = f"Unable to connect to {_source(pod)} data source"
        ended = {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": now()}
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container=importer"}
        container = {"state": {"waiting": waiting}, "lastState": {"terminated": ended}, "restartCount": restarts}
        await report_pod(self._cluster, pod, phase="Running", **container)


def _source(pod: Object) -> str:
    variables = {each["name"]: str(each["value"]) for each in pod["spec"]["containers"][0]["env"]}
    return variables[SOURCE_VARIABLE]
