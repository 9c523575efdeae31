"""KubeVirt's mutating webhook for VMIs, as far as it guards their status.

Source: KubeVirt pkg/virt-api/webhooks/mutating-webhook/mutators/vmi-mutator.go. A VMI has no status subresource, so
whoever may write it writes its status too; what others than KubeVirt write there is put back, without an error.
"""

from __future__ import annotations

import base64
import json

from aiohttp import web

from e2e.lab.kubevirt.connection import ACCOUNT
from e2e.lab.kubevirt.resources import VMI, Object
from e2e.lab.kubevirt.reviews import Registration

MUTATOR = Registration(
    configuration="virt-api-mutator",
    name="virtualmachineinstances-mutator.kubevirt.io",
    path="/virtualmachineinstances-mutate",
    resource=VMI,
    versions=("v1", "v1alpha3"),
    operations=("UPDATE",),
)
# Spares KubeVirt's own many writes the way to the webhook, which would let them pass.
OTHERS_ONLY = {"name": "not-by-kubevirt", "expression": f"request.userInfo.username != '{ACCOUNT}'"}


def route() -> web.RouteDef:
    """Where the webhook is served."""
    return web.post(MUTATOR.path, _review)


async def _review(request: web.Request) -> web.StreamResponse:
    asked = (await request.json())["request"]
    response: Object = {"uid": asked["uid"], "allowed": True}
    if patch := status_patch(asked["oldObject"], asked["object"]):
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def status_patch(old: Object, new: Object) -> list[Object]:
    """The JSON patch that gives the new object the old one's status."""
    if new.get("status") == old.get("status"):
        return []
    if "status" not in old:
        return [{"op": "remove", "path": "/status"}]
    return [{"op": "add", "path": "/status", "value": old["status"]}]
