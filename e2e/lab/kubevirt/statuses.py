"""The refusals that virt-api words itself, as the Status objects of Kubernetes' apimachinery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from e2e.lab.kubevirt.connection import ApiError
from e2e.lab.kubevirt.resources import Key, Object, Resource


def bad_request(message: str) -> ApiError:
    return _refusal(400, "BadRequest", message)


def not_found(resource: Resource, key: Key) -> ApiError:
    return _refusal(404, "NotFound", f"{_named(resource, key)} not found", details=_details(resource, key))


def conflict(resource: Resource, key: Key, why: str) -> ApiError:
    message = f"Operation cannot be fulfilled on {_named(resource, key)}: {why}"
    return _refusal(409, "Conflict", message, details=_details(resource, key))


def internal_error(why: str) -> ApiError:
    details = {"causes": [{"message": why}]}
    return _refusal(500, "InternalError", f"Internal error occurred: {why}", details=details)


def _named(resource: Resource, key: Key) -> str:
    return f'{resource.kind.lower()}.{resource.group} "{key[1]}"'


def _details(resource: Resource, key: Key) -> Object:
    return {"name": key[1], "group": resource.group, "kind": resource.kind.lower()}


def _refusal(code: int, reason: str, message: str, *, details: Mapping[str, Any] | None = None) -> ApiError:
    body: Object = {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return ApiError(code, body | ({"details": dict(details)} if details else {}))
