"""The TLS server behind kube-apiserver: ``subresources.kubevirt.io`` as an aggregated API, and the webhooks.

kube-apiserver has checked RBAC before it passes a request on, and says so with its front-proxy certificate. Without
that certificate anybody on loopback could hot-plug, so such a request gets 401. Webhooks are called without any.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from e2e.lab.kubevirt import admission
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError, Connection
from e2e.lab.kubevirt.hotplug_requests import Action, CrashError, change_volume
from e2e.lab.kubevirt.installation import SUBRESOURCE_GROUP, SUBRESOURCE_VERSIONS
from e2e.lab.kubevirt.resources import VM, VMI, Object, Resource
from e2e.lab.kubevirt.settings import Serving

AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
ACTIONS: tuple[Action, ...] = ("addvolume", "removevolume")
GROUP_PATH = f"/apis/{SUBRESOURCE_GROUP}"

log = structlog.get_logger()


class FrontProxyError(Exception):
    """The management cluster has no aggregation layer configured, so its proxy cannot be told from anybody else."""


@asynccontextmanager
async def serve(cluster: Cluster, serving: Serving) -> AsyncIterator[None]:
    """Serves while the block runs.

    Raises:
        FrontProxyError: kube-apiserver runs without --requestheader-client-ca-file.
        OSError: the address is taken, or the certificate cannot be read.
    """
    published = (await cluster.connection.request("GET", AUTHENTICATION)).get("data", {})
    authority = published.get("requestheader-client-ca-file")
    if not authority:
        raise FrontProxyError(f"no requestheader-client-ca-file in {AUTHENTICATION}: set kube-apiserver's flags")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority)
    trust.verify_mode = ssl.CERT_OPTIONAL
    trust.load_cert_chain(serving.certificate, serving.key)
    names = frozenset(json.loads(published.get("requestheader-allowed-names", "[]")))

    application = web.Application(middlewares=[_authenticated(names)])
    application.add_routes([*_subresource_routes(cluster.connection), *admission.routes(cluster)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, serving.address, serving.port, ssl_context=trust, shutdown_timeout=1.0).start()
        yield
    finally:
        await runner.cleanup()


def _authenticated(names: frozenset[str]) -> Middleware:
    """Lets only the front proxy through to the API; no names means that any certificate of its authority is good."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/apis") and not _is_front_proxy(request, names):
            return web.Response(status=401, text="request is not authenticated")
        return await handler(request)

    return check


def _is_front_proxy(request: web.Request, names: frozenset[str]) -> bool:
    certificate = request.get_extra_info("peercert")
    if not certificate:
        return False
    subject = {key: value for part in certificate["subject"] for key, value in part}
    return not names or subject.get("commonName") in names


def _subresource_routes(connection: Connection) -> list[web.RouteDef]:
    return [
        web.get("/apis", _document({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]})),
        web.get(GROUP_PATH, _document(_group())),
        *(web.get(f"{GROUP_PATH}/{version}", _document(_resources(version))) for version in SUBRESOURCE_VERSIONS),
        *(
            web.put(
                f"{GROUP_PATH}/{version}/namespaces/{{namespace}}/{resource.plural}/{{name}}/{action}",
                _changing(connection, resource, action=action),
            )
            for version in SUBRESOURCE_VERSIONS
            for resource in (VM, VMI)
            for action in ACTIONS
        ),
    ]


def _changing(connection: Connection, resource: Resource, *, action: Action) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        key = (request.match_info["namespace"], request.match_info["name"])
        user = request.headers.get("X-Remote-User", "")
        try:
            await change_volume(connection, resource, key, action=action, body=await request.read())
        except CrashError:
            if request.transport is not None:
                request.transport.abort()
            raise
        except ApiError as error:
            log.info(action, resource=resource.plural, key="/".join(key), user=user, code=error.status, text=str(error))
            return web.json_response(error.body, status=error.status)
        log.info(action, resource=resource.plural, key="/".join(key), user=user, code=202)
        return web.Response(status=202)

    return handle


def _document(content: Object) -> Handler:
    async def handle(_request: web.Request) -> web.StreamResponse:
        return web.json_response(content)

    return handle


def _group() -> Object:
    versions = [
        {"groupVersion": f"{SUBRESOURCE_GROUP}/{version}", "version": version} for version in SUBRESOURCE_VERSIONS
    ]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": SUBRESOURCE_GROUP,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def _resources(version: str) -> Object:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{SUBRESOURCE_GROUP}/{version}",
        "resources": [
            {
                "name": f"{resource.plural}/{action}",
                "singularName": "",
                "namespaced": True,
                "kind": "",
                "verbs": ["update"],
            }
            for resource in (VM, VMI)
            for action in ACTIONS
        ],
    }
