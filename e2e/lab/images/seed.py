"""The per-guest files that a machine finds on its seed disk, and what each means to the guest's init.

A seed is a plain folder; the machine packs it into a tar on a read-only disk at every start. The guest's init
(rootfs/usr/local/lib/lab) is the only reader. The names of the files are the contract between the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.lab.pki import Authority

GUEST_ADDRESS = "10.0.2.15"
HOST_ADDRESS = "10.0.2.2"  # the host's loopback, as QEMU's user network shows it to the guest

# Those that kubelet has a limit for when nobody gives one.
EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
)


def write_seed(
    directory: Path,
    *,
    node: str,
    api_port: int,
    kubelet_port: int,
    kubeconfig: str,
    client_ca: str,
    pod_subnet: str = "10.244.0.0/24",
) -> None:
    """Writes the seed of a guest that is a node of the tenant cluster.

    Args:
        directory: made when missing; its files are for root only, as the kubeconfig is a credential.
        node: the Node's name, also the guest's host name.
        api_port: of the tenant's kube-apiserver on the host's loopback.
        kubelet_port: kubelet listens on it in the guest; the machine must forward the same number of the host.
        kubeconfig: kubelet's, complete in itself, with https://10.0.2.2:API_PORT as its server.
        client_ca: PEM of the CA whose client certificates kubelet accepts, which kube-apiserver uses.
        pod_subnet: IPv4 network of this guest's pods.
    """
    # kubelet would make a certificate of its own, which takes an emulated guest three seconds.
    serving = Authority(f"{node}-kubelet").issue_server(node, [node, "127.0.0.1", GUEST_ADDRESS])
    _write(
        directory,
        {
            "mode": "kubelet\n",
            "node": f"{node}\n",
            "api-server": f"{HOST_ADDRESS}:{api_port}\n",
            "cni.conflist": json.dumps(_network(pod_subnet)),
            "kubelet/kubeconfig": kubeconfig,
            "kubelet/ca.crt": client_ca,
            "kubelet/serving.crt": serving.certificate.decode(),
            "kubelet/serving.key": serving.key.decode(),
            # JSON is YAML, and kubelet reads either.
            "kubelet/config.yaml": json.dumps(_kubelet_configuration(kubelet_port), indent=1),
        },
    )


def write_idle_seed(directory: Path, *, node: str) -> None:
    """Writes the seed of a guest that only boots: no containerd, no kubelet; commands are run by the guest agent."""
    _write(directory, {"mode": "idle\n", "node": f"{node}\n"})


def _write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(text)


def _network(pod_subnet: str) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": pod_subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
        ],
    }


def _kubelet_configuration(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "port": port,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "tlsCertFile": "/etc/kubernetes/serving.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/serving.key",
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        # The guest has no systemd, and its disk is shared by all it does: no accounting by cgroups or quotas.
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        # Nothing is evicted, and so nothing has to be measured for it every ten seconds.
        "localStorageCapacityIsolation": False,
        "evictionHard": dict.fromkeys(EVICTION_SIGNALS, "0%"),
        "failSwapOn": False,
        # The images cannot be fetched again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "resolvConf": "/etc/resolv.conf",
        "clusterDNS": ["10.0.2.3"],  # QEMU's; without any, each pod gets a warning event
        "nodeStatusUpdateFrequency": "5s",
    }
