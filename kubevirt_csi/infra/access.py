"""Asks the API server at start whether the driver's account has what the driver needs.

So the first sign of a missing right is a log line that names it, and not a volume that is stuck months later. Nothing
depends on the answer.
"""

from __future__ import annotations

import structlog

from kubevirt_csi.errors import DriverError
from kubevirt_csi.infra.answers import Missing
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.resources import ACCESS_REVIEWS, GRANTS, Call, Grant, Verb

log = structlog.get_logger()


async def missing_grants(connection: Connection) -> list[Grant]:
    """Those of ``GRANTS`` that the API server says this account lacks.

    Raises:
        Unavailable, PermissionDenied: it does not say.
    """
    return [grant for grant in GRANTS if not await _allowed(connection, grant)]


async def log_missing_grants(connection: Connection) -> bool:
    """Logs each missing verb with resource and namespace; returns whether the API server could be asked."""
    try:
        missing = await missing_grants(connection)
    except (DriverError, Missing) as error:
        log.warning("access not checked", error=str(error))
        return False
    for grant in missing:
        log.error(
            "access missing",
            verb=grant.verb,
            resource=grant.resource,
            group=grant.group,
            namespace=connection.place.namespace,
            cluster=connection.place.cluster,
        )
    log.info("access checked", needed=len(GRANTS), missing=len(missing))
    return True


async def _allowed(connection: Connection, grant: Grant) -> bool:
    resource, _, subresource = grant.resource.partition("/")
    attributes = {
        "namespace": connection.place.namespace,
        "group": grant.group,
        "resource": resource,
        "subresource": subresource,
        "verb": grant.verb,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    call = Call(verb=Verb.CREATE, resource=ACCESS_REVIEWS, body=body, repeatable=True)
    answer = await connection.request(call)
    return bool((answer.get("status") or {}).get("allowed"))
