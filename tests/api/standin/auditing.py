"""What one user has tried to write, as kube-apiserver itself records it.

The audit log is written when a request comes in, before anything is done about it and so before its caller has an
answer: whoever has the answer of a call finds all that was written for it. Requests that only read, and reviews of the
user's own rights, are not recorded.
"""

from __future__ import annotations

import json
from pathlib import Path

AUDITED_GROUP = "audited"
"""Users of this group are recorded."""


class Audit:
    """The log's folder, kube-apiserver's flags for it, and what is in it."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "audit.log"
        policy = directory / "policy.json"
        policy.write_text(json.dumps(_POLICY))
        self.flags = (f"--audit-policy-file={policy}", f"--audit-log-path={self._log}", "--audit-log-mode=blocking")

    def writes(self, user: str) -> list[str]:
        """The user's requests that are no reads, oldest first, as ``VERB resource/subresource name``."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        events = [json.loads(line) for line in lines]
        return [_told(event) for event in events if event["user"]["username"] == user]


_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "authorization.k8s.io"}]},
        {"level": "Metadata", "userGroups": [AUDITED_GROUP]},
        {"level": "None"},
    ],
}


def _told(event: dict[str, object]) -> str:
    target = event.get("objectRef")
    if not isinstance(target, dict):
        return f"{event['verb']} {event['requestURI']}"
    resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
    return f"{event['verb']} {resource} {target.get('name', '')}".strip()
