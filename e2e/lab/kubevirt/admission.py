"""The webhooks of KubeVirt and CDI: which validating ones there are, and how a review is answered.

kube-apiserver puts ``admission webhook "NAME" denied the request: `` before our text and keeps our code, reason and
causes. What is checked is in ``vm_validation``, ``vmi_validation`` and ``datavolume_validation``. A webhook has no side
effects, so dry runs pass through it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from e2e.lab.kubevirt import datavolume_validation, vm_validation, vmi_mutation, vmi_validation
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.resources import DATA_VOLUME, VM, VMI, Object
from e2e.lab.kubevirt.reviews import Registration, Review, Validate


async def _validate_datavolume(review: Review) -> list[Cause]:
    return datavolume_validation.validate(review.new, review.old, review.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(Registration):
    """One validating webhook."""

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
        name="kubevirt-crd-status-validator.kubevirt.io",
        path="/status-validate",
        resource=VM,
        subresource="/status",
        versions=("v1", "v1alpha3"),
        operations=("CREATE", "UPDATE"),
        validate=vm_validation.validate_vm_status,
    ),
    Webhook(
        configuration="virt-api-validator",
        name="virtualmachineinstances-update-validator.kubevirt.io",
        path="/virtualmachineinstances-validate-update",
        resource=VMI,
        versions=("v1", "v1alpha3"),
        operations=("UPDATE",),
        validate=vmi_validation.validate_vmi_update,
    ),
    Webhook(
        configuration="cdi-api-datavolume-validate",
        name="datavolume-validate.cdi.kubevirt.io",
        path="/datavolume-validate",
        resource=DATA_VOLUME,
        versions=("v1beta1",),
        operations=("CREATE", "UPDATE"),
        validate=_validate_datavolume,
    ),
)


def routes(cluster: Cluster, group: str) -> list[web.RouteDef]:
    """The routes of the webhooks for the resources of this API group, which one TLS server has."""
    served = [webhook for webhook in WEBHOOKS if webhook.resource.group == group]
    mutators = [vmi_mutation.route()] if group == vmi_mutation.MUTATOR.resource.group else []
    return [*mutators, *(web.post(webhook.path, _handler(webhook, cluster)) for webhook in served)]


def _handler(webhook: Webhook, cluster: Cluster) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def review(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["request"]
        causes = await webhook.validate(
            Review(new=asked["object"], old=asked.get("oldObject"), user=asked["userInfo"]["username"], cluster=cluster)
        )
        return web.json_response(answer(asked, refusal(causes) if causes else None))

    return review


def answer(asked: Object, status: Object | None) -> Object:
    """The review that admits what was asked, or refuses it with the Status."""
    refused = {"status": status} if status else {}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": asked["uid"], "allowed": not refused, **refused},
    }


def refusal(causes: Sequence[Cause]) -> Object:
    """The Status of a refusal: 422 with every cause, their texts joined."""
    return {
        "status": "Failure",
        "message": ", ".join(cause.message for cause in causes),
        "reason": "Invalid",
        "code": 422,
        "details": {"causes": [cause.to_json() for cause in causes]},
    }
