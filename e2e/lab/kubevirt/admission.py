"""The validating webhooks of KubeVirt and CDI: which there are, and how a review is answered.

kube-apiserver puts ``admission webhook "NAME" denied the request: `` before our text and keeps our code, reason and
causes. What is checked is in ``vm_validation`` and ``datavolume_validation``. A webhook has no side effects, so
dry runs pass through it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from e2e.lab.kubevirt import datavolume_validation, vm_validation
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.resources import DATA_VOLUME, VM, VMI, Object, Resource

Validate = Callable[[Object, Object | None, Cluster], list[Cause]]
"""Causes to refuse the new object, given the old one (None at creation); none when it is fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One webhook, as it is registered and served."""

    configuration: str
    name: str
    path: str
    resource: Resource
    versions: Sequence[str]
    operations: Sequence[str]
    validate: Validate


WEBHOOKS = (
    Webhook(
        configuration="virt-api-validator",
        name="virtualmachine-validator.kubevirt.io",
        path="/virtualmachines-validate",
        resource=VM,
        versions=("v1", "v1alpha3"),
        operations=("CREATE", "UPDATE"),
        validate=vm_validation.validate_vm,
    ),
    Webhook(
        configuration="virt-api-validator",
        name="virtualmachineinstances-update-validator.kubevirt.io",
        path="/virtualmachineinstances-validate-update",
        resource=VMI,
        versions=("v1", "v1alpha3"),
        operations=("UPDATE",),
        validate=vm_validation.validate_vmi_update,
    ),
    Webhook(
        configuration="cdi-api-datavolume-validate",
        name="datavolume-validate.cdi.kubevirt.io",
        path="/datavolume-validate",
        resource=DATA_VOLUME,
        versions=("v1beta1",),
        operations=("CREATE", "UPDATE"),
        validate=datavolume_validation.validate,
    ),
)


def routes(cluster: Cluster) -> list[web.RouteDef]:
    """The webhooks' routes for the TLS server."""
    return [web.post(webhook.path, _handler(webhook, cluster)) for webhook in WEBHOOKS]


def _handler(webhook: Webhook, cluster: Cluster) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def review(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["request"]
        causes = webhook.validate(asked["object"], asked.get("oldObject"), cluster)
        return web.json_response(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {"uid": asked["uid"], "allowed": not causes}
                | ({"status": refusal(causes)} if causes else {}),
            }
        )

    return review


def refusal(causes: Sequence[Cause]) -> Object:
    """The Status of a refusal: 422 with every cause, their texts joined."""
    return {
        "status": "Failure",
        "message": ", ".join(cause.message for cause in causes),
        "reason": "Invalid",
        "code": 422,
        "details": {"causes": [cause.to_json() for cause in causes]},
    }
