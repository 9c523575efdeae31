"""The TLS servers behind kube-apiserver: virt-api (``subresources.kubevirt.io`` and KubeVirt's webhooks) and cdi-api.

kube-apiserver has checked RBAC before it passes a request on, and says so with its front-proxy certificate. Without
that certificate anybody on loopback could hot-plug, so such a request gets 401. Webhooks are called without any.
virt-api can be down by a fault; then nothing listens there, VMs cannot be changed at all, and cdi-api goes on.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from e2e.lab.kubevirt import admission
from e2e.lab.kubevirt.authorization import User, denial
from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.connection import ApiError, Connection
from e2e.lab.kubevirt.faults import faults_of
from e2e.lab.kubevirt.gates import KUBEVIRT_KEY
from e2e.lab.kubevirt.hotplug_requests import Action, CrashError, change_volume
from e2e.lab.kubevirt.installation import SUBRESOURCE_GROUP, SUBRESOURCE_VERSIONS
from e2e.lab.kubevirt.request_faults import DroppedError, faulty, ordered_faults, refuse_data_volume
from e2e.lab.kubevirt.resources import DATA_VOLUME, KUBEVIRT, VM, VMI, Object, Resource
from e2e.lab.kubevirt.settings import Serving

AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
ACTIONS: tuple[Action, ...] = ("addvolume", "removevolume")
GROUP_PATH = f"/apis/{SUBRESOURCE_GROUP}"
SHUTDOWN_SECONDS = 1.0

log = structlog.get_logger()


class FrontProxyError(Exception):
    """The management cluster has no aggregation layer configured, so its proxy cannot be told from anybody else."""


@asynccontextmanager
async def serve(cluster: Cluster, serving: Serving) -> AsyncIterator[Serving]:
    """Serves while the block runs; yields where, with the port that was chosen for CDI if none was given.

    Raises:
        FrontProxyError: kube-apiserver runs without --requestheader-client-ca-file.
        OSError: an address is taken (in an exception group), or the certificate cannot be read.
    """
    published = (await cluster.connection.request("GET", AUTHENTICATION)).get("data", {})
    authority = published.get("requestheader-client-ca-file")
    if not authority:
        raise FrontProxyError(f"no requestheader-client-ca-file in {AUTHENTICATION}: set kube-apiserver's flags")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority)
    trust.verify_mode = ssl.CERT_OPTIONAL
    trust.load_cert_chain(serving.certificate, serving.key)
    names = frozenset(json.loads(published.get("requestheader-allowed-names", "[]")))

    virt_api = _Server(serving.address, serving.port, trust)
    cdi_api = _Server(serving.address, serving.cdi_port, trust)

    def virt_api_application() -> web.Application:
        application = web.Application(middlewares=[_authenticated(names)])
        application.add_routes([*_subresource_routes(cluster), *admission.routes(cluster, VM.group)])
        return application

    cdi = web.Application(middlewares=[_refusing_data_volumes(cluster.connection)])
    cdi.add_routes(admission.routes(cluster, DATA_VOLUME.group))
    async with cdi_api.listening(cdi) as cdi_port, _as_ordered(cluster, virt_api, virt_api_application):
        yield replace(serving, cdi_port=cdi_port)


@dataclass(frozen=True, slots=True)
class _Server:
    """Where one of the two listens."""

    address: str
    port: int
    trust: ssl.SSLContext

    @asynccontextmanager
    async def listening(self, application: web.Application) -> AsyncIterator[int]:
        """Serves the application while the block runs, on the port that is yielded."""
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.address, self.port, ssl_context=self.trust).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


@asynccontextmanager
async def _as_ordered(
    cluster: Cluster, server: _Server, application: Callable[[], web.Application]
) -> AsyncIterator[None]:
    """While the block runs the server listens, except while the KubeVirt object orders that it is down."""
    changed, settled = asyncio.Event(), asyncio.Event()
    cluster.caches[KUBEVIRT].listen(lambda _: changed.set())

    def is_down() -> bool:
        return faults_of(cluster.get(KUBEVIRT, KUBEVIRT_KEY)).virt_api_down

    async def until(*, down: bool) -> None:
        while is_down() != down:
            settled.set()
            changed.clear()
            await changed.wait()

    async def keep() -> NoReturn:
        while True:
            await until(down=False)
            async with server.listening(application()):
                await until(down=True)
            log.info("virt-api is down, as ordered")

    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(keep())
        await settled.wait()
        try:
            yield
        finally:
            keeper.cancel()


def _refusing_data_volumes(connection: Connection) -> Middleware:
    """Refuses new DataVolumes while a fault orders it."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = (await request.json())["request"]
        try:
            if asked["operation"] == "CREATE":
                await refuse_data_volume(connection, dry_run=asked.get("dryRun", False))
        except DroppedError:
            _drop(request)
            raise
        except ApiError as error:
            return web.json_response(admission.answer(asked, error.body))
        return await handler(request)

    return check


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


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


def _subresource_routes(cluster: Cluster) -> list[web.RouteDef]:
    return [
        web.get("/apis", _document({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]})),
        web.get(GROUP_PATH, _document(_group())),
        *(web.get(f"{GROUP_PATH}/{version}", _document(_resources(version))) for version in SUBRESOURCE_VERSIONS),
        *(
            web.put(
                f"{GROUP_PATH}/{version}/namespaces/{{namespace}}/{resource.plural}/{{name}}/{action}",
                _changing(cluster, resource, version=version, action=action),
            )
            for version in SUBRESOURCE_VERSIONS
            for resource in (VM, VMI)
            for action in ACTIONS
        ),
    ]


def _changing(cluster: Cluster, resource: Resource, *, version: str, action: Action) -> Handler:
    asked = replace(resource, group=SUBRESOURCE_GROUP, version=version)

    async def handle(request: web.Request) -> web.StreamResponse:
        key = (request.match_info["namespace"], request.match_info["name"])
        user = request.headers.get("X-Remote-User", "")
        asking = User(name=user, groups=request.headers.getall("X-Remote-Group", []))
        try:
            denied, faults = await asyncio.gather(
                denial(cluster.connection, asking, asked, key=key, action=action),
                ordered_faults(cluster.connection, resource, key),
            )
            if denied is not None:
                return web.Response(status=401, text=denied)
            async with faulty(cluster.connection, faults, action=action) as owner:
                body = await request.read()
                await change_volume(cluster, resource, key, action=action, body=body, owner=owner)
        except (CrashError, DroppedError):
            _drop(request)
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
