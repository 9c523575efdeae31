from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kubevirt_csi.settings import HttpAddress, values


@pytest.mark.parametrize(
    ("parse", "given", "value"),
    [
        (values.http_address, ":8080", HttpAddress(None, 8080)),
        (values.http_address, "127.0.0.1:0", HttpAddress("127.0.0.1", 0)),
        (values.http_address, "[::1]:8080", HttpAddress("::1", 8080)),
        (values.seconds, "25s", 25.0),
        (values.seconds, "2m", 120.0),
        (values.seconds, "1h", 3600.0),
        (values.seconds, "500ms", 0.5),
        (values.seconds, "1.5", 1.5),
        (values.interval, "168h", 604800.0),
        (values.interval, "1m", 60.0),
        (values.interval, "0", None),
        (values.log_level, "INFO", "info"),
        (values.namespace, "tenant-a", "tenant-a"),
        (values.namespaces, "", ()),
        (values.namespaces, "a, b", ("a", "b")),
        (values.object_name, "worker-1.example.org", "worker-1.example.org"),
        (values.node_id, "tenant-a/worker-1", "tenant-a/worker-1"),
        (values.absolute_path, "/var/lib/kubelet", Path("/var/lib/kubelet")),
        (values.labels, "csi.kubevirt.io/cluster=tenant-a,x=", {"csi.kubevirt.io/cluster": "tenant-a", "x": ""}),
        (values.labels, "a=b, a=b,", {"a": "b"}),
        (
            values.label_selector,
            "a=b,c!=d,e in (f, g),h notin (i),!j,k,l==m",
            "a=b,c!=d,e in (f, g),h notin (i),!j,k,l==m",
        ),
        (values.boolean, "true", True),
        (values.boolean, "F", False),
        (values.allows_every_class, "allowAll: true\nallowDefault: true\n", "allowAll: true\nallowDefault: true\n"),
        (values.allows_every_class, "{}", "{}"),
    ],
)
def test_an_accepted_text_becomes_its_value(parse: Callable[[str], object], given: str, value: object) -> None:
    assert parse(given) == value


@pytest.mark.parametrize(
    ("parse", "given", "reason"),
    [
        (values.http_address, "8080", "accepted are :PORT, HOST:PORT and [IPV6]:PORT"),
        (values.http_address, ":65536", "accepted are :PORT"),
        (values.http_address, "::1:8080", "accepted are :PORT"),
        (values.seconds, "-1s", "accepted is a duration such as 25s"),
        (values.seconds, "1d", "accepted is a duration such as 25s"),
        (values.interval, "59s", "accepted is a duration of 1m at least"),
        (values.interval, "weekly", "accepted is a duration such as 25s"),
        (values.log_level, "loud", "accepted are debug, info, warning, error"),
        (values.namespace, "Tenant", "accepted is the name of a namespace"),
        (values.namespace, "$(INFRACLUSTER_NAMESPACE)", "accepted is the name of a namespace"),
        (values.namespace, "a" * 64, "accepted is the name of a namespace"),
        (values.namespaces, "a,B", "accepted is the name of a namespace"),
        (values.object_name, "worker_1", "accepted is the name of a Kubernetes object"),
        (values.node_id, "worker-1", "accepted is NAMESPACE/VM"),
        (values.node_id, "a/b/c", "accepted is NAMESPACE/VM"),
        (values.absolute_path, "kubeconfig", "accepted is an absolute path"),
        (values.labels, "", "at least one label"),
        (values.labels, "tenant", "'tenant' is no label: accepted is KEY=VALUE,KEY=VALUE"),
        (values.labels, "a=b c", "'a=b c' is no label"),
        (values.labels, "-a=b", "'-a=b' is no label"),
        (values.labels, "a=b,a=c", "label a is given twice"),
        (values.label_selector, "a in ()", "'a in ()' is no requirement"),
        (values.label_selector, "a=b,,c", "'' is no requirement"),
        (values.boolean, "no", "accepted are true and false"),
        (values.allows_every_class, "allowAll: true", "limits on infra storage classes are not supported yet"),
        (values.allows_every_class, "allowList: [gold]", "limits on infra storage classes are not supported yet"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(
    parse: Callable[[str], object], given: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse(given)


@pytest.mark.parametrize("text", [":8080", "127.0.0.1:8080", "[::1]:8080"])
def test_an_address_prints_as_it_is_given(text: str) -> None:
    assert str(values.http_address(text)) == text
