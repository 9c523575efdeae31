"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, and a scheduler if asked.

Ready in about three seconds, without containers. The lab has two of them, tests of the API tier have one. Programs can
be killed and started again one by one, and etcd can be compacted, because clients have to survive that.
What runs in the cluster is not this module's business.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from e2e.lab.api import Api, connect, eventually
from e2e.lab.pki import Authority, Files, KeyPair, SigningKey, kubeconfig, write_private
from e2e.lab.ports import Ports
from e2e.lab.processes import Probe, Process, Processes, Program

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"

SERVICE_RANGE = "10.0.0.0/24"
SERVICE_ADDRESS = "10.0.0.1"  # the first of the range is the API server's
GUEST_VIEW = "10.0.2.2"  # the host's loopback, as a guest on QEMU's user network sees it
HOSTS = (
    *("127.0.0.1", GUEST_VIEW, SERVICE_ADDRESS, "localhost"),
    *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
)
ISSUER = "https://kubernetes.default.svc"
FRONT_PROXY_CLIENT = "front-proxy-client"
DAY_SECONDS = 24 * 3600
# The heap of a small cluster is collected every few moments otherwise, most of all while it starts.
UNHURRIED_COLLECTOR = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}
PROBE_SECONDS = 2.0
ACCOUNTS_SECONDS = 30.0

END_SECONDS = 1.0


class ControlPlane:
    """One control plane, running while its ``async with`` block is.

    Attributes:
        server: its URL on the host; ``port`` is the port of it.
        admin_kubeconfig: file of a client certificate in ``system:masters``.
        authority: signs serving and client certificates of this cluster (kubelets' too).
        processes: its programs, named ``NAME-etcd`` and so on.
        answering: set when the API answers, which is before the other programs are ready.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        binaries: Path,
        *,
        scheduler: bool = False,
        logs: Path | None = None,
        api_server_flags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.directory = directory
        self.authority = Authority(f"{name}-ca")
        # kube-apiserver would wait for its clients to go; its data goes with it, so it need not.
        self.processes = Processes(end_seconds=END_SECONDS)
        self._front_proxy = Authority(f"{name}-front-proxy-ca")
        self._signing_key = SigningKey.generate()
        self._binaries = binaries
        self._logs = logs or directory / "logs"
        self._pki = directory / "pki"
        self._ports = Ports()
        self._scheduler = scheduler
        self._api_server_flags = tuple(api_server_flags)
        self.answering = asyncio.Event()
        self.port = self._ports.take()
        self.server = f"https://127.0.0.1:{self.port}"
        self.admin_kubeconfig = directory / "admin.kubeconfig"
        self._etcd_port = self._ports.take()
        self._etcd_peer_port = self._ports.take()
        self._component_ports = {CONTROLLER_MANAGER: self._ports.take(), SCHEDULER: self._ports.take()}
        self._stack = AsyncExitStack()

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of its programs in the order of their start."""
        return (ETCD, API_SERVER, CONTROLLER_MANAGER, *([SCHEDULER] if self._scheduler else []))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._ports.close)
            await stack.enter_async_context(self.processes)
            self._write_files()
            # kube-apiserver has enough to do before it needs etcd, and waits for it.
            await self.start(ETCD, API_SERVER)
            self.answering.set()
            await self.start(*(program for program in self.programs if program not in (ETCD, API_SERVER)))
            await self._wait_for_service_accounts()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start(self, *programs: str) -> None:
        """Starts some of `programs` beside each other, each of which takes a second, and waits until all are ready.

        Raises:
            ProcessError: one died or was not ready in time.
        """
        started = [await self._spawn(program) for program in programs]
        for process, probe in started:
            await process.ready(probe)

    async def stop(self, program: str) -> None:
        """Ends one of `programs` in an orderly way."""
        await self.processes.stop(self._process_name(program))

    async def know_new_kinds(self) -> None:
        """Starts kube-controller-manager anew: its garbage collector looks for new kinds twice a minute only."""
        await self.kill(CONTROLLER_MANAGER)
        await self.start(CONTROLLER_MANAGER)

    async def kill(self, program: str) -> None:
        """Kills one of `programs`, as a crash would."""
        await self.processes.kill(self._process_name(program))

    async def compact(self) -> None:
        """Compacts etcd at its present revision: watches and lists from older revisions get 410 afterwards."""
        async with aiohttp.ClientSession(self._etcd_url, raise_for_status=True) as session:
            async with session.post("/v3/kv/range", json={"key": "AA=="}) as answer:
                revision = (await answer.json())["header"]["revision"]
            async with session.post("/v3/kv/compaction", json={"revision": revision, "physical": True}):
                pass

    def api(self) -> AbstractAsyncContextManager[Api]:
        """A connection as the administrator, for ``async with``."""
        return connect(self.admin_kubeconfig)

    def client_kubeconfig(self, user: str, groups: Sequence[str] = (), *, server: str | None = None) -> bytes:
        """A kubeconfig with a client certificate of this user, e.g. ``system:node:NAME``."""
        return self._kubeconfig(self.authority.issue_client(user, groups), server=server)

    async def token_kubeconfig(
        self, path: Path, *, namespace: str, account: str, server: str | None = None, expiry_seconds: int = DAY_SECONDS
    ) -> Path:
        """Writes a kubeconfig with a fresh token of the service account, which must exist, and returns its path.

        Args:
            path: of the file.
            namespace: of the account, and the kubeconfig's own.
            account: its name.
            server: a URL that leads to this cluster's API server, if not that of the server itself.
            expiry_seconds: of the token.

        Raises:
            ApiError: there is no such service account.
        """
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": expiry_seconds},
        }
        async with self.api() as api:
            answer = await api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
        token = answer["status"]["token"]
        return write_private(path, self._kubeconfig(token, namespace=namespace, server=server))

    @property
    def authority_certificate(self) -> bytes:
        """What clients trust, PEM."""
        return self.authority.pair.certificate

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._etcd_port}"

    async def _spawn(self, program: str) -> tuple[Process, Probe]:
        """Starts one of `programs`; it is ready when the probe says so."""
        argv = [str(self._binaries / program), *self._arguments(program)]
        name = self._process_name(program)
        started = Program(
            name=name,
            argv=argv,
            log=self._logs / f"{name}.log",
            environment=UNHURRIED_COLLECTOR if program == API_SERVER else {},
        )
        process = await self.processes.start(started)
        return process, self._probe(program)

    def _process_name(self, program: str) -> str:
        return f"{self.name}-{program}"

    def _kubeconfig(self, credential: KeyPair | str, *, namespace: str = "default", server: str | None = None) -> bytes:
        return kubeconfig(
            server=server or self.server,
            authority=self.authority_certificate,
            credential=credential,
            namespace=namespace,
        )

    def _write_files(self) -> None:
        """Certificates and kubeconfigs, as the programs' arguments name them."""
        self._pki.mkdir(parents=True, exist_ok=True)
        self.authority.pair.write(self._pki, "ca")
        self._front_proxy.pair.write(self._pki, "front-proxy-ca")
        self._front_proxy.issue_client(FRONT_PROXY_CLIENT).write(self._pki, "front-proxy-client")
        self.authority.issue_server("kube-apiserver", HOSTS).write(self._pki, "serving")
        kubelet_client = self.authority.issue_client("kube-apiserver-kubelet-client", ["system:masters"])
        kubelet_client.write(self._pki, "kubelet-client")
        write_private(self._pki / "service-account.key", self._signing_key.private)
        (self._pki / "service-account.pub").write_bytes(self._signing_key.public)
        write_private(self.admin_kubeconfig, self.client_kubeconfig("kubernetes-admin", ["system:masters"]))
        for component in (CONTROLLER_MANAGER, SCHEDULER):
            write_private(self._component_kubeconfig(component), self.client_kubeconfig(f"system:{component}"))

    def _component_kubeconfig(self, component: str) -> Path:
        return self.directory / f"{component}.kubeconfig"

    def _file(self, name: str) -> Files:
        return Files(certificate=self._pki / f"{name}.crt", key=self._pki / f"{name}.key")

    def _arguments(self, program: str) -> list[str]:
        if program == ETCD:
            return self._etcd_arguments()
        if program == API_SERVER:
            return self._api_server_arguments()
        if program == CONTROLLER_MANAGER:
            return self._controller_manager_arguments()
        return self._component_arguments(program)

    def _etcd_arguments(self) -> list[str]:
        peers = f"http://127.0.0.1:{self._etcd_peer_port}"
        return [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            # A cluster of one has no peers, yet etcd insists on listening for them.
            f"--name={self.name}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster={self.name}={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _api_server_arguments(self) -> list[str]:
        serving, proxy, kubelet = self._file("serving"), self._file("front-proxy-client"), self._file("kubelet-client")
        return [
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            # Without it the address of a default route is looked for, and a machine without network has none.
            f"--advertise-address={GUEST_VIEW}",
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self._file('ca').certificate}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={self._pki / 'service-account.pub'}",
            f"--service-account-signing-key-file={self._pki / 'service-account.key'}",
            f"--requestheader-client-ca-file={self._file('front-proxy-ca').certificate}",
            f"--requestheader-allowed-names={FRONT_PROXY_CLIENT}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxy.certificate}",
            f"--proxy-client-key-file={proxy.key}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            "--kubelet-preferred-address-types=InternalIP",
            *self._api_server_flags,
        ]

    def _controller_manager_arguments(self) -> list[str]:
        ca = self._file("ca")
        return [
            *self._component_arguments(CONTROLLER_MANAGER),
            f"--root-ca-file={ca.certificate}",
            f"--cluster-signing-cert-file={ca.certificate}",
            f"--cluster-signing-key-file={ca.key}",
            f"--service-account-private-key-file={self._pki / 'service-account.key'}",
            "--use-service-account-credentials=true",
            # With the default of 20 requests a second its controllers need four seconds to start.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]

    def _component_arguments(self, component: str) -> list[str]:
        config, serving = self._component_kubeconfig(component), self._file("serving")
        return [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._component_ports[component]}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
        ]

    def _probe(self, program: str) -> Probe:
        url = {
            ETCD: f"{self._etcd_url}/health",
            API_SERVER: f"{self.server}/readyz",
            CONTROLLER_MANAGER: f"https://127.0.0.1:{self._component_ports[CONTROLLER_MANAGER]}/healthz",
            SCHEDULER: f"https://127.0.0.1:{self._component_ports[SCHEDULER]}/healthz",
        }[program]
        trust = ssl.create_default_context(cadata=self.authority_certificate.decode())
        return lambda: answers_ok(url, trust)

    async def _wait_for_service_accounts(self) -> None:
        """Pods can be created once the controller manager has made their namespace's default account."""

        async def account() -> object:
            return await api.find("/api/v1/namespaces/default/serviceaccounts/default")

        async with self.api() as api:
            await eventually(
                account, what=f"{self.name}: service account default exists", deadline_seconds=ACCOUNTS_SECONDS
            )


async def answers_ok(url: str, trust: ssl.SSLContext) -> bool:
    """Whether the URL answers 200 within two seconds."""
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=trust) as answer:
            return answer.ok
    except (aiohttp.ClientError, TimeoutError):
        return False
