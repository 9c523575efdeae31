"""From the command line and the environment to settings, the predecessor's manifests among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubevirt_csi.rpc.endpoint import Endpoint
from kubevirt_csi.settings import ControllerSettings, HttpAddress, NodeIdSettings, NodeSettings
from kubevirt_csi.settings.arguments import parse
from kubevirt_csi.settings.flags import ROLES, Flag
from kubevirt_csi.settings.roles import Settings

NEEDED = ("--infra-cluster-namespace=tenant-a", "--infra-cluster-labels=csi.kubevirt.io/cluster=tenant-a")


def settings(*arguments: str, **environment: str) -> Settings:
    return parse(arguments, environment)[1]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, **environment: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        parse(arguments, environment)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_controller_needs_a_namespace_and_labels_and_has_defaults_for_the_rest() -> None:
    assert settings("controller", *NEEDED) == ControllerSettings(
        endpoint=Endpoint(Path("/csi/csi.sock")),
        infra_namespace="tenant-a",
        infra_labels={"csi.kubevirt.io/cluster": "tenant-a"},
        infra_kubeconfig=None,
        tenant_kubeconfig=None,
        infra_vm_selector=None,
        infra_namespace_aliases=(),
        http_address=HttpAddress(None, 8080),
        log_level="info",
        grace_period_seconds=25.0,
    )


def test_a_node_needs_nothing() -> None:
    assert settings("node") == NodeSettings(
        endpoint=Endpoint(Path("/var/lib/kubelet/plugins/csi.kubevirt.io/csi.sock")),
        node_id=None,
        node_id_file=Path("/run/kubevirt-csi/node-id.json"),
        kubelet_dir=Path("/var/lib/kubelet"),
        state_dir=Path("/var/lib/kubevirt-csi"),
        sysfs_root=Path("/sys"),
        dev_root=Path("/dev"),
        max_disks="auto",
        fstrim_interval_seconds=None,
        http_address=HttpAddress(None, 8080),
        log_level="info",
        grace_period_seconds=25.0,
    )


def test_the_init_container_needs_the_name_of_its_node() -> None:
    assert settings("node-id", "--node-name=worker-1", "--timeout=30s") == NodeIdSettings(
        node_name="worker-1",
        infra_namespace=None,
        output=Path("/run/kubevirt-csi/node-id.json"),
        timeout_seconds=30.0,
        log_level="info",
    )


def test_every_flag_of_the_controller_is_heard() -> None:
    assert settings(
        "controller",
        *NEEDED,
        "--endpoint=unix:///tmp/c.sock",
        "--infra-cluster-kubeconfig=/infra",
        "--tenant-cluster-kubeconfig=/tenant",
        "--infra-vm-selector=role=worker",
        "--infra-namespace-alias=old,older",
        "--http-address=127.0.0.1:1",
        "--log-level=debug",
        "--grace-period=1m",
    ) == ControllerSettings(
        endpoint=Endpoint(Path("/tmp/c.sock")),
        infra_namespace="tenant-a",
        infra_labels={"csi.kubevirt.io/cluster": "tenant-a"},
        infra_kubeconfig=Path("/infra"),
        tenant_kubeconfig=Path("/tenant"),
        infra_vm_selector="role=worker",
        infra_namespace_aliases=("old", "older"),
        http_address=HttpAddress("127.0.0.1", 1),
        log_level="debug",
        grace_period_seconds=60.0,
    )


def test_the_environment_stands_in_for_a_flag_and_a_flag_beats_it() -> None:
    assert settings("node", KUBEVIRT_CSI_LOG_LEVEL="debug").log_level == "debug"
    assert settings("node", "--log-level=error", KUBEVIRT_CSI_LOG_LEVEL="debug").log_level == "error"


def test_an_empty_value_counts_as_none_given() -> None:
    chosen = settings("controller", *NEEDED, "--log-level=", KUBEVIRT_CSI_GRACE_PERIOD="")
    assert isinstance(chosen, ControllerSettings)
    assert (chosen.log_level, chosen.grace_period_seconds) == ("info", 25.0)


def test_the_predecessors_variables_stand_in_for_flags() -> None:
    chosen = settings(
        "controller", CSI_ENDPOINT="unix:///p.sock", INFRACLUSTER_NAMESPACE="tenant-b", INFRACLUSTER_LABELS="a=b"
    )
    assert isinstance(chosen, ControllerSettings)
    assert (chosen.endpoint.path, chosen.infra_namespace, dict(chosen.infra_labels)) == (
        Path("/p.sock"),
        "tenant-b",
        {"a": "b"},
    )
    node = settings("node-id", KUBE_NODE_NAME="worker-1")
    assert isinstance(node, NodeIdSettings)
    assert node.node_name == "worker-1"


@pytest.mark.parametrize("dash", ["-", "--"])
def test_the_predecessors_controller_manifest_starts_a_controller(dash: str) -> None:
    arguments = [
        "endpoint=unix:///var/lib/csi/sockets/pluginproxy/csi.sock",
        "infra-cluster-namespace=tenant-a",
        "infra-cluster-labels=csi-driver/cluster=tenant",
        "tenant-cluster-kubeconfig=/var/run/secrets/tenantcluster/value",
        "volume-prefix=pvc",
        "run-node-service=false",
        "run-controller-service=true",
        "v=5",
    ]
    role, chosen = parse([dash + argument for argument in arguments], {"KUBE_NODE_NAME": "infra-1"})
    assert role == "controller"
    assert isinstance(chosen, ControllerSettings)
    assert chosen.tenant_kubeconfig == Path("/var/run/secrets/tenantcluster/value")


def test_the_predecessors_node_manifest_starts_a_node_that_kubelet_finds() -> None:
    role, chosen = parse(
        [
            "--endpoint=unix:/csi/csi.sock",
            "--node-name=worker-1",
            "--run-node-service=true",
            "--run-controller-service=false",
            "--v=5",
        ],
        {},
    )
    assert role == "node"
    assert isinstance(chosen, NodeSettings)
    assert chosen.endpoint.path == Path("/csi/csi.sock")
    assert chosen.csi_socket == Path("/var/lib/kubelet/plugins/csi.kubevirt.io/csi.sock")


def test_another_kubelet_folder_moves_socket_and_registration() -> None:
    chosen = settings("node", "--kubelet-dir=/data/kubelet")
    assert isinstance(chosen, NodeSettings)
    assert chosen.csi_socket == chosen.endpoint.path == Path("/data/kubelet/plugins/csi.kubevirt.io/csi.sock")
    assert chosen.plugins_registry == Path("/data/kubelet/plugins_registry")


def test_the_disks_of_a_node_can_be_shown_elsewhere_than_in_sys_and_dev() -> None:
    chosen = settings("node", "--sysfs-root=/lab/sys", "--dev-root=/lab/dev")
    assert isinstance(chosen, NodeSettings)
    assert (chosen.sysfs_root, chosen.dev_root) == (Path("/lab/sys"), Path("/lab/dev"))


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        pytest.param(
            ["node", "--log-level=loud"],
            {},
            "kubevirt-csi node: --log-level: 'loud' is not accepted: accepted are debug, info, warning, error",
            id="a wrong flag",
        ),
        pytest.param(
            ["node"],
            {"KUBEVIRT_CSI_LOG_LEVEL": "loud"},
            "kubevirt-csi node: --log-level (from the environment variable KUBEVIRT_CSI_LOG_LEVEL): 'loud' is not",
            id="a wrong variable",
        ),
        pytest.param(
            ["node", "--endpoint=tcp://:1"],
            {},
            "--endpoint: 'tcp://:1' is not accepted: accepted is unix://",
            id="endpoint",
        ),
        pytest.param(
            ["controller", "--infra-cluster-namespace=a"],
            {},
            "--infra-cluster-labels is required",
            id="labels are missing",
        ),
        pytest.param(
            ["controller", *NEEDED],
            {"INFRA_STORAGE_CLASS_ENFORCEMENT": "allowList: [gold]"},
            "--infra-storage-class-enforcement (from the environment variable INFRA_STORAGE_CLASS_ENFORCEMENT):"
            " 'allowList: [gold]' is not accepted: limits on infra storage classes are not supported yet",
            id="an enforcement that would be ignored",
        ),
        pytest.param(["node", "--bus=scsi"], {}, "unrecognized arguments: --bus=scsi", id="an unknown flag"),
        pytest.param(["node", "--log=info"], {}, "unrecognized arguments: --log=info", id="an abbreviation"),
        pytest.param([], {}, "no role is chosen, and a process has exactly one", id="no role"),
        pytest.param(["manager"], {}, "'manager' is no role", id="an unknown role"),
        pytest.param(["--v=5"], {}, "no role is chosen", id="both of the predecessor's services"),
        pytest.param(
            ["--run-node-service=no"],
            {},
            "--run-node-service: 'no' is not accepted: accepted are true and false",
            id="boolean",
        ),
    ],
)
def test_a_wrong_value_stops_the_program_with_flag_and_accepted_values(
    capsys: pytest.CaptureFixture[str], arguments: list[str], environment: dict[str, str], text: str
) -> None:
    assert text in refusal(capsys, *arguments, **environment)


@pytest.mark.parametrize("text", ["", "allowAll: true\nallowDefault: true"])
def test_an_enforcement_that_allows_everything_is_none(text: str) -> None:
    chosen = settings("controller", *NEEDED, INFRA_STORAGE_CLASS_ENFORCEMENT=text)
    assert isinstance(chosen, ControllerSettings)


def test_help_without_a_role_tells_the_roles(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(["--help"], {})
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert [name for name in ROLES if f"\n  {name} " not in text] == []


@pytest.mark.parametrize(
    ("role", "flag"),
    [pytest.param(role, flag, id=f"{role} {flag.name}") for role in ROLES for flag in ROLES[role].flags],
)
def test_the_help_of_a_role_tells_each_flag_with_default_and_variables(
    capsys: pytest.CaptureFixture[str], role: str, flag: Flag
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse([role, "--help"], {})
    assert stopped.value.code == 0
    text = "".join(capsys.readouterr().out.split())
    assert f"--{flag.name}{flag.metavar}" in text.replace(" ", "")
    for part in (flag.default, *flag.variables):
        assert part is None or part in text


def test_no_variable_of_ours_has_the_prefix_that_csi_keeps_for_itself() -> None:
    names = {name for role in ROLES.values() for flag in role.flags for name in flag.variables}
    assert {name for name in names if name.startswith("CSI_")} == {"CSI_ENDPOINT"}


@pytest.mark.parametrize(("value", "expected"), [("", "auto"), ("auto", "auto"), ("ports", "ports"), ("24", 24)])
def test_the_number_of_disks_is_a_number_or_how_to_find_it_out(value: str, expected: object) -> None:
    chosen = settings("node", f"--max-disks-per-node={value}")
    assert isinstance(chosen, NodeSettings)
    assert chosen.max_disks == expected
