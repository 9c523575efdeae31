"""The annotations in which CDI's controllers tell each other how a claim is getting on.

Source: CDI pkg/controller/common/util.go. A condition is one annotation with its value (``true``, ``false``) and two
more with its reason and message.
"""

from __future__ import annotations

from e2e.lab.kubevirt.resources import Object, annotations_of

POD_PHASE = "cdi.kubevirt.io/storage.pod.phase"
RESTARTS = "cdi.kubevirt.io/storage.pod.restarts"
RUNNING = "cdi.kubevirt.io/storage.condition.running"
BOUND = "cdi.kubevirt.io/storage.condition.bound"
REASON = ".reason"
MESSAGE = ".message"
IMPORT_SOURCE_MARK = "cdi.kubevirt.io/storage.import.source"
CONTENT_TYPE = "cdi.kubevirt.io/storage.contentType"
QUOTA_EXCEEDED = "ErrExceededQuota"


def told(claim: Object, condition: str) -> tuple[bool, str, str]:
    """Value, reason and message of the condition in the claim's annotations; False and empty where there is none."""
    marks = annotations_of(claim)
    return marks.get(condition) == "true", marks.get(condition + REASON, ""), marks.get(condition + MESSAGE, "")
