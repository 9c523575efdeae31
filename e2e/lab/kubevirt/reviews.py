"""Webhooks as they are registered, and what one is asked, in the words of this program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.resources import Object, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One webhook as kube-apiserver knows it."""

    configuration: str
    name: str
    path: str
    resource: Resource
    versions: Sequence[str]
    operations: Sequence[str]
    subresource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One change of an object.

    Attributes:
        new: the object as it is to become.
        old: as it is; None at its creation.
        user: who asks for the change.
        cluster: what else there is.
    """

    new: Object
    old: Object | None
    user: str
    cluster: Cluster


Validate = Callable[[Review], Awaitable[list[Cause]]]
"""Causes to refuse the change; none when it is fine."""
