"""virt-api's own question whether a user may do what kube-apiserver has passed on.

Source: KubeVirt pkg/virt-api/rest/authorizer.go. kube-apiserver has asked the same before, and answers 403 by itself.
The surprising fact: who gets past it is refused here with 401 instead, in plain text, which is often empty because
RBAC gives no reason for a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.lab.kubevirt.connection import Connection
from e2e.lab.kubevirt.resources import Key, Resource

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
NOT_AUTHENTICATED = "request is not authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who kube-apiserver says asks; an empty name is nobody."""

    name: str
    groups: Sequence[str]


async def denial(connection: Connection, user: User, resource: Resource, *, key: Key, action: str) -> str | None:
    """Why the user may not have the subresource ``action`` of the machine; None when the user may.

    ``resource`` is VM or VMI, with the API group and version that the request names.
    """
    if not user.name:
        return NOT_AUTHENTICATED
    asked = {
        "namespace": key[0],
        "name": key[1],
        "verb": "update",
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
        "subresource": action,
    }
    spec = {"user": user.name, "groups": [*user.groups], "resourceAttributes": asked}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    status = (await connection.request("POST", REVIEWS, body=review))["status"]
    return None if status["allowed"] else str(status.get("reason", ""))
