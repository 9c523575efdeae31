"""Turns the text of a flag into a value; a ValueError says what is accepted, and its caller adds the flag's name."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from kubevirt_csi.observe.address import HttpAddress
from kubevirt_csi.observe.logs import LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubevirt_csi.domain.limits import DiskLimit

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{LABEL_PART}")
LABEL_VALUE = re.compile(rf"({LABEL_PART})?")
DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s|m|h)?")
UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
HIGHEST_PORT = 65535
SHORTEST_INTERVAL_SECONDS = 60.0

# One requirement of a selector: key, !key, key=value, key!=value, key in (a,b), key notin (a,b).
_VALUES = rf"\(\s*{LABEL_PART}(\s*,\s*{LABEL_PART})*\s*\)"
_KEY = LABEL_KEY.pattern
SELECTOR_REQUIREMENT = re.compile(rf"!?{_KEY}|{_KEY}\s*(==?|!=)\s*({LABEL_PART})?|{_KEY}\s+(in|notin)\s*{_VALUES}")
OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


def text(value: str) -> str:
    """As it is."""
    return value


def http_address(value: str) -> HttpAddress:
    """``:8080``, ``127.0.0.1:8080`` or ``[::1]:8080``; port 0 lets the system choose."""
    host, separator, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not port.isdecimal() or int(port) > HIGHEST_PORT or (":" in host and not bracketed):
        raise ValueError("accepted are :PORT, HOST:PORT and [IPV6]:PORT")
    return HttpAddress(host=host.strip("[]") or None, port=int(port))


def seconds(value: str) -> float:
    """``25s``, ``2m``, ``1h``, ``500ms``, or a bare number of seconds."""
    match = DURATION.fullmatch(value)
    if match is None:
        raise ValueError("accepted is a duration such as 25s, 2m or 500ms")
    return float(match["number"]) * UNIT_SECONDS[match["unit"]]


def interval(value: str) -> float | None:
    """A duration of a minute at least, in seconds; 0 is none."""
    found = seconds(value)
    if 0 < found < SHORTEST_INTERVAL_SECONDS:
        raise ValueError("accepted is a duration of 1m at least, such as 24h or 168h, or 0 for never")
    return found or None


def disk_limit(value: str) -> DiskLimit:
    """A number of disks, or how it is found out."""
    if value == "auto":
        return "auto"
    if value == "ports":
        return "ports"
    if not value.isdecimal() or int(value) < 1:
        raise ValueError("accepted are auto, ports and a number of disks")
    return int(value)


def log_level(value: str) -> str:
    """One of the levels, in any case."""
    level = value.lower()
    if level not in LEVELS:
        raise ValueError(f"accepted are {', '.join(LEVELS)}")
    return level


def namespace(value: str) -> str:
    """The name of a namespace."""
    if DNS_LABEL.fullmatch(value) is None:
        raise ValueError("accepted is the name of a namespace: lower-case letters, digits and '-', at most 63")
    return value


def namespaces(value: str) -> tuple[str, ...]:
    """Names of namespaces with commas between them."""
    return tuple(namespace(part.strip()) for part in value.split(",") if part.strip())


def object_name(value: str) -> str:
    """The name of a Node or another Kubernetes object."""
    if DNS_SUBDOMAIN.fullmatch(value) is None:
        raise ValueError("accepted is the name of a Kubernetes object: lower-case letters, digits, '-' and '.'")
    return value


def node_id(value: str) -> str:
    """``namespace/vm``."""
    first, separator, second = value.partition("/")
    if not separator or DNS_LABEL.fullmatch(first) is None or DNS_SUBDOMAIN.fullmatch(second) is None:
        raise ValueError("accepted is NAMESPACE/VM")
    return value


def absolute_path(value: str) -> Path:
    """The absolute path of a file or folder; whether it exists is for the role to see."""
    path = Path(value)
    if not path.is_absolute():
        raise ValueError("accepted is an absolute path")
    return path


def labels(value: str) -> Mapping[str, str]:
    """``key=value,key=value``, at least one: without a label every object of the namespace would be ours."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        key, separator, content = part.partition("=")
        if not separator or LABEL_KEY.fullmatch(key) is None or LABEL_VALUE.fullmatch(content) is None:
            raise ValueError(f"{part!r} is no label: accepted is KEY=VALUE,KEY=VALUE")
        if found.setdefault(key, content) != content:
            raise ValueError(f"label {key} is given twice")
    if not found:
        raise ValueError("accepted is KEY=VALUE,KEY=VALUE with at least one label")
    return MappingProxyType(found)


def label_selector(value: str) -> str:
    """A Kubernetes label selector, equality or set based, as text."""
    for requirement in OUTSIDE_PARENTHESES.split(value):
        if SELECTOR_REQUIREMENT.fullmatch(requirement.strip()) is None:
            raise ValueError(f"{requirement.strip()!r} is no requirement: accepted is a Kubernetes label selector")
    return value


def boolean(value: str) -> bool:
    """The spellings that Go's flag package takes."""
    if value in {"1", "t", "T", "true", "TRUE", "True"}:
        return True
    if value in {"0", "f", "F", "false", "FALSE", "False"}:
        return False
    raise ValueError("accepted are true and false")


def allows_every_class(value: str) -> str:
    """The predecessor's storage class enforcement, as long as it enforces nothing."""
    lines = {line.strip() for line in value.splitlines()} - {
        "",
        "---",
        "{}",
        "allowList: []",
        "storageSnapshotMapping: []",
    }
    if lines and lines != {"allowAll: true", "allowDefault: true"}:
        raise ValueError(
            "limits on infra storage classes are not supported yet, and ignoring them would open every class to the"
            " tenant: accepted is nothing, or allowAll: true with allowDefault: true"
        )
    return value
