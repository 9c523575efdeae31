"""``python -m e2e.lab fault``: puts a running lab out of order, shows what is ordered, and ends it.

Two kinds are behind one command. Faults of the network before the management API server are told to the gateway that
the controller goes through; all others are annotations, which the stand-in reads, so kubectl can set them as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.kubectl import Kubectl, KubectlError
from e2e.lab import gatewaycontrol
from e2e.lab.gateway import Door
from e2e.lab.kubevirt.faults import (
    ATTACH_PHASES,
    DETACH_PHASES,
    FAULTS,
    KUBEVIRT_KIND,
    PREFIX,
    check,
    duration,
    ordered,
)
from e2e.lab.kubevirt.gates import KUBEVIRT_KEY
from e2e.lab.kubevirt.resources import CLAIM, DATA_VOLUME, KUBEVIRT, VM, VMI
from e2e.lab.management import NAMESPACE
from e2e.lab.state import LabDirectory, LabError
from e2e.tools.build import build

SHORT = {"vm": VM, "vmi": VMI, "dv": DATA_VOLUME, "pvc": CLAIM, "kubevirt": KUBEVIRT}
GATEWAY_FAULTS = {
    "api-slow": ("DURATION", "what the API server sends comes so much later"),
    "api-gone": ("", "connections are refused, and those that are open are closed"),
    "api-half-open": ("", "connections are accepted, and nothing is answered"),
    "api-closes": ("", "closes all connections, watches too; once, so there is nothing to clear"),
}
DESCRIPTION = """\
Puts a running lab out of order. The faults named api-... are those of the management cluster's API server as the
controller sees it; everybody else still reaches it. The others are annotations: `fault set NAME VALUE --on pvc/x`
does what `kubectl annotate pvc x lab.csi.kubevirt.io/NAME=VALUE` does in the management cluster.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An object that takes annotations."""

    kind: str
    namespace: str
    name: str

    @property
    def arguments(self) -> list[str]:
        """The object for kubectl."""
        return ["--namespace", self.namespace, self.kind.lower(), self.name]

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def add_to(commands: Any, parent: argparse.ArgumentParser) -> None:
    """Adds the command to those of the lab."""
    parser = commands.add_parser(
        "fault",
        parents=[parent],
        help="put a running lab out of order: list, set or clear faults",
        description=DESCRIPTION,
        epilog="\n".join(_help()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=("list", "set", "clear"), help="what to do")
    parser.add_argument("fault", nargs="?", metavar="FAULT", help="one of those below; clear without it clears all")
    parser.add_argument("value", nargs="?", default="", metavar="VALUE", help="as below; true where there is no choice")
    parser.add_argument(
        "--on", metavar="KIND/NAME", help=f"vm, vmi, dv or pvc and its name in {NAMESPACE}; default: the whole cluster"
    )
    parser.set_defaults(command=run)


def run(directory: LabDirectory, options: argparse.Namespace) -> int:
    """Carries one command out.

    Raises:
        LabError: the lab does not run, or there is no such fault, value or object.
    """
    try:
        match options.verb:
            case "list":
                lines = _list(directory)
            case "set":
                lines = _set(directory, options.fault or "", value=options.value, on=options.on)
            case _:
                lines = _clear(directory, options.fault, on=options.on)
        for line in lines:
            print(line)
    except KubectlError as error:
        raise LabError(str(error)) from error
    return 0


def _list(directory: LabDirectory) -> Iterator[str]:
    kubectl = _kubectl(directory)
    if directory.gateway.exists():
        yield f"the API server, as the controller sees it: {_told(gatewaycontrol.ask(directory.gateway))}"
    else:
        yield "no controller in this lab, so no gateway in front of the API server"
    found = list(_annotated(kubectl))
    for target, name, text in found:
        yield f"{target}: {name}={text}"
    if not found:
        yield "no fault is ordered by annotation"


def _set(directory: LabDirectory, fault: str, *, value: str, on: str | None) -> Iterator[str]:
    if fault in GATEWAY_FAULTS:
        yield _told(_order(directory.gateway, fault, value))
        return
    value = value or "true"
    target = _target(fault, on)
    try:
        check(fault, value, target.kind)
    except ValueError as error:
        known = "" if fault in FAULTS else f", {', '.join(GATEWAY_FAULTS)}"
        raise LabError(f"{fault} {value}: {error}{known}") from error
    _kubectl(directory).run("annotate", "--overwrite", *target.arguments, f"{PREFIX}{fault}={value}")
    yield f"{target}: {fault}={value}"


def _clear(directory: LabDirectory, fault: str | None, *, on: str | None) -> Iterator[str]:
    if fault not in {None, *GATEWAY_FAULTS, *FAULTS}:
        raise LabError(f"no fault {fault!r}; there are: {', '.join([*GATEWAY_FAULTS, *FAULTS])}")
    if (fault is None or fault in GATEWAY_FAULTS) and on is None and directory.gateway.exists():
        yield _told(gatewaycontrol.tell(directory.gateway, Door()))
    if fault in GATEWAY_FAULTS:
        return
    kubectl = _kubectl(directory)
    only = _named(on) if on else None
    for target, name, _ in list(_annotated(kubectl)):
        if fault in (None, name) and only in (None, target):
            kubectl.run("annotate", *target.arguments, f"{PREFIX}{name}-")
            yield f"{target}: {name} is cleared"


def _order(gateway: Path, fault: str, value: str) -> gatewaycontrol.Report:
    if fault == "api-closes":
        return gatewaycontrol.close_connections(gateway)
    if fault == "api-gone":
        return gatewaycontrol.tell(gateway, Door(mode="gone"))
    if fault == "api-half-open":
        return gatewaycontrol.tell(gateway, Door(mode="half-open"))
    try:
        return gatewaycontrol.tell(gateway, Door(mode="slow", seconds=duration(value)))
    except ValueError as error:
        raise LabError(f"{fault} {value}: {error}") from error


def _told(report: gatewaycontrol.Report) -> str:
    delay = f" by {report.door.seconds:g} s" if report.door.mode == "slow" else ""
    closed = f", {report.closed} closed" if report.closed else ""
    return f"{report.door.mode}{delay}, {report.connections} connections{closed}"


def _annotated(kubectl: Kubectl) -> Iterator[tuple[Target, str, str]]:
    """Every fault annotation of the cluster: on what, its name and its text."""
    kinds = ",".join(f"{resource.plural}.{resource.group}".rstrip(".") for resource in SHORT.values())
    for obj in json.loads(kubectl.run("get", kinds, "--all-namespaces", "-o", "json"))["items"]:
        metadata = obj["metadata"]
        target = Target(kind=obj["kind"], namespace=metadata["namespace"], name=metadata["name"])
        for name, text in ordered(obj).items():
            yield target, name, text


def _target(fault: str, on: str | None) -> Target:
    """What is meant: the object that is named, else the whole cluster by its KubeVirt object."""
    if on:
        return _named(on)
    if fault in FAULTS and KUBEVIRT_KIND not in FAULTS[fault].kinds:
        places = [f"{short}/NAME" for short, resource in SHORT.items() if resource.kind in FAULTS[fault].kinds]
        raise LabError(f"{fault} is not for the whole cluster: say --on {' or '.join(places)}")
    namespace, name = KUBEVIRT_KEY
    return Target(kind=KUBEVIRT.kind, namespace=namespace, name=name)


def _named(on: str) -> Target:
    short, _, name = on.partition("/")
    if short not in SHORT or short == "kubevirt" or not name:
        raise LabError(f"--on {on}: must be vm/NAME, vmi/NAME, dv/NAME or pvc/NAME")
    return Target(kind=SHORT[short].kind, namespace=NAMESPACE, name=name)


def _kubectl(directory: LabDirectory) -> Kubectl:
    state = directory.read() if directory.running() else None
    if state is None or "management" not in state.kubeconfigs:
        raise LabError(f"lab {directory.name} does not run: python -m e2e.lab up --name {directory.name}")
    return Kubectl(build("kubernetes") / "kubectl", Path(state.kubeconfigs["management"]))


def _help() -> Iterator[str]:
    yield "the management cluster's API server, as the controller sees it:"
    for name, (value, effect) in GATEWAY_FAULTS.items():
        yield _row(f"{name} {value}", effect)
    shorts = {resource.kind: short for short, resource in SHORT.items()}
    yield "annotations, and what they can be on (kubevirt is the whole cluster, the default):"
    for name, fault in FAULTS.items():
        yield _row(f"{name} {fault.value}", f"{fault.effect} ({', '.join(shorts[kind] for kind in fault.kinds)})")
    yield "values:"
    yield _row("DURATION", "1.5, 500ms, 5s, 2m, 1h")
    yield _row("PHASE", f"attaching: {', '.join(ATTACH_PHASES)}; detaching: {', '.join(DETACH_PHASES)}")
    yield _row("ANSWER", "an HTTP code, drop (the connection), or code, reason, text and for how many requests:")
    yield _row("", "'{code: 409, reason: Conflict, text: not now, times: 1}', '{code: drop, times: 1}'")


def _row(left: str, right: str) -> str:
    return f"  {left:26}  {right}"
