"""What an API server's answer means: the one table from HTTP status, reason and text to the driver's errors.

No I/O. Bodies are ``Status`` objects, except where a proxy or the aggregator speaks: a 503 for an aggregated API that
is down and a 404 for a group that is not served are plain text. Such a 404 must never pass for "the object does not
exist".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any

from kubevirt_csi.errors import (
    DriverError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from kubevirt_csi.infra.resources import Call, Verb
from kubevirt_csi.ports.infra import Stale

TEXT_LIMIT = 500
LOST_RACE = "the server rejected our request due to an error in our request"
"""A JSON patch whose ``test`` failed: ours of a claim, or that inside virt-api (pkg/virt-api/rest/volumes.go)."""


class Missing(Exception):
    """404 about the very object: it does not exist. Every adapter decides what that means."""


class Exists(Exception):
    """409 AlreadyExists: the name is taken."""


class Expired(Exception):
    """410: the resourceVersion, or the list's continuation, is no longer kept; list again."""


class Refused(InvalidArgument):
    """400 or 422: refused by validation or an admission rule; ``message`` is the server's own text."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(text)
        self.message = message


class Again(Enum):
    """Whether a failed attempt may be made again within the call's deadline."""

    NEVER = "never"
    SAFE = "safe"
    """It was certainly not carried out."""
    UNKNOWN = "unknown"
    """It may have been carried out: only a repeatable call is sent again."""
    CREDENTIALS = "credentials"
    """After the credentials were read anew, and only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is raised when the attempt was the last, whether there may be another, and after how many seconds."""

    error: Exception
    again: Again = Again.NEVER
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which cluster and namespace a call goes to, for error texts."""

    cluster: str
    namespace: str

    def failed(self, call: Call, found: str, advice: str = "") -> str:
        """One sentence: where, what, what was found, what to do."""
        return f"{self.cluster}, namespace {self.namespace}: {call}: {found}" + (f"; {advice}" if advice else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is not 2xx, as far as it can be read."""

    status: int
    text: str
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    is_status: bool = False
    """Whether the body is a Kubernetes ``Status``."""
    retry_after: float | None = None

    @property
    def found(self) -> str:
        """Code and text, for people."""
        return f"{self.status} {self.text}".strip()


def read(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Reads a ``Status`` object, or takes the body as text."""
    after = headers.get("Retry-After", "")
    retry_after = float(after) if after.isdecimal() else None
    text = body.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("kind") != "Status":
        return Answer(status=status, text=text[:TEXT_LIMIT], retry_after=retry_after)
    details = found.get("details") or {}
    return Answer(
        status=status,
        text=str(found.get("message") or "")[:TEXT_LIMIT],
        reason=str(found.get("reason") or ""),
        details=details if isinstance(details, dict) else {},
        is_status=True,
        retry_after=retry_after,
    )


def judge(call: Call, place: Place, answer: Answer) -> Failure:
    """The meaning of an answer that is not 2xx."""
    rule = _RULES.get(answer.status)
    if rule is not None:
        return rule(call, place, answer)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _unavailable(call, place, answer, Again.UNKNOWN)
    return Failure(error=Internal(place.failed(call, answer.found)))


def unreachable(call: Call, place: Place, cause: Exception, *, sent: bool) -> Failure:
    """No answer, or half of one: ``sent`` tells whether the request may have reached the server."""
    again = Again.UNKNOWN if sent else Again.SAFE
    found = "no answer in time" if isinstance(cause, TimeoutError) else f"connection failed: {cause!r}"
    return Failure(error=Unavailable(place.failed(call, found, _outcome(call, again))), again=again)


def _refused(call: Call, place: Place, answer: Answer) -> Failure:
    if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY and LOST_RACE in answer.text:
        return Failure(error=Stale(place.failed(call, answer.found)))
    return Failure(error=Refused(place.failed(call, answer.found), answer.text))


def _unauthorized(call: Call, place: Place, answer: Answer) -> Failure:
    advice = "check the credentials: they were read anew and are still not accepted"
    return Failure(error=Unavailable(place.failed(call, answer.found, advice)), again=Again.CREDENTIALS)


def _forbidden(call: Call, place: Place, answer: Answer) -> Failure:
    return Failure(error=_forbidden_error(call, place, answer))


def _forbidden_error(call: Call, place: Place, answer: Answer) -> DriverError:
    """403 is said by RBAC, but also by quotas, by a namespace on its way out and by other admission rules."""
    if call.verb in (Verb.CREATE, Verb.PATCH) and "exceeded quota" in answer.text:
        return ResourceExhausted(place.failed(call, answer.found, "raise the quota or delete volumes"))
    causes = answer.details.get("causes") or ()
    if any(isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return FailedPrecondition(place.failed(call, answer.found, "the namespace is being deleted"))
    advice = f"grant the driver's account the verb {call.verb} there"
    return PermissionDenied(place.failed(call, answer.found, advice if " cannot " in answer.text else ""))


def _not_found(call: Call, place: Place, answer: Answer) -> Failure:
    if not answer.is_status or (not answer.reason and not answer.details):
        advice = f"is {call.resource.group or 'the API'} installed and served as {call.resource.version}?"
        return Failure(error=Unavailable(place.failed(call, answer.found, advice)), again=Again.SAFE)
    if answer.details.get("kind") == "namespaces":
        return Failure(error=FailedPrecondition(place.failed(call, answer.found, "create the namespace")))
    return Failure(error=Missing(place.failed(call, answer.found)))


def _conflict(call: Call, place: Place, answer: Answer) -> Failure:
    kind = Exists if answer.reason == "AlreadyExists" else Stale
    return Failure(error=kind(place.failed(call, answer.found)))


def _gone(call: Call, place: Place, answer: Answer) -> Failure:
    return Failure(error=Expired(place.failed(call, answer.found)))


def _too_many(call: Call, place: Place, answer: Answer) -> Failure:
    return _unavailable(call, place, answer, Again.SAFE)


def _not_ready(call: Call, place: Place, answer: Answer) -> Failure:
    """kube-apiserver asks to come again only for what it turned away at the door (it starts, or shuts down)."""
    return _unavailable(call, place, answer, Again.UNKNOWN if answer.retry_after is None else Again.SAFE)


def _unavailable(call: Call, place: Place, answer: Answer, again: Again) -> Failure:
    error = Unavailable(place.failed(call, answer.found, _outcome(call, again)))
    return Failure(error=error, again=again, after=answer.retry_after)


def _outcome(call: Call, again: Again) -> str:
    return "it may have been carried out all the same" if again is Again.UNKNOWN and call.writes else ""


_RULES: dict[int, Callable[[Call, Place, Answer], Failure]] = {
    HTTPStatus.BAD_REQUEST: _refused,
    HTTPStatus.UNAUTHORIZED: _unauthorized,
    HTTPStatus.FORBIDDEN: _forbidden,
    HTTPStatus.NOT_FOUND: _not_found,
    HTTPStatus.CONFLICT: _conflict,
    HTTPStatus.GONE: _gone,
    HTTPStatus.UNPROCESSABLE_ENTITY: _refused,
    HTTPStatus.TOO_MANY_REQUESTS: _too_many,
    HTTPStatus.SERVICE_UNAVAILABLE: _not_ready,
}
