"""The registry of one process and the series that every role has.

A registry of our own instead of prometheus-client's global one: tests make as many as they like, and nothing that a
library registers on import is exported by accident.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubevirt_csi.version import VERSION

# From an answer out of memory to the longest attach that a sidecar waits for.
DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)


class RpcMetrics:
    """Counts and times the calls of one process, by method (``/csi.v1.Node/NodeStageVolume``) and gRPC code name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("kubevirt_csi_rpc", "gRPC calls answered.", ["method", "code"], registry=registry)
        self._durations = Histogram(
            "kubevirt_csi_rpc_duration_seconds",
            "Time from a gRPC call's arrival to its answer.",
            ["method", "code"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._in_flight = Gauge(
            "kubevirt_csi_rpc_in_flight", "gRPC calls being answered now.", ["method"], registry=registry
        )
        self._mutations = Gauge(
            "kubevirt_csi_mutations_running",
            "Operations that change a volume and run now, also those whose caller has gone.",
            registry=registry,
        )

    def started(self, method: str) -> None:
        """A call has arrived; ``finished`` must follow."""
        self._in_flight.labels(method).inc()

    def finished(self, method: str, *, code: str, seconds: float) -> None:
        """The call was answered with the code, or its caller has gone."""
        self._in_flight.labels(method).dec()
        self._calls.labels(method, code).inc()
        self._durations.labels(method, code).observe(seconds)

    def mutations_running(self, count: int) -> None:
        """How many mutations run now."""
        self._mutations.set(count)


class AbnormalVolumes(Collector):
    """Shows which volumes of a node something is wrong with, read whenever the page is asked for.

    Args:
        abnormal: gives the volumes with the reason, each pair once. Healthy ones have no series.
    """

    def __init__(self, abnormal: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._abnormal = abnormal

    def collect(self) -> Iterator[Metric]:
        """One sample for each volume and reason."""
        shown = GaugeMetricFamily(
            "kubevirt_csi_volume_abnormal",
            "Constant 1 for each reason why a volume of this node is abnormal; no series when all are well.",
            labels=["volume", "reason"],
        )
        for volume, reason in self._abnormal():
            shown.add_metric([volume, reason], 1)
        yield shown


class Metrics:
    """Everything that one process exports; ``registry`` takes the series of its other parts."""

    def __init__(self, *, role: str) -> None:
        self.registry = CollectorRegistry()
        self.rpc = RpcMetrics(self.registry)
        ProcessCollector(registry=self.registry)
        build = Gauge(
            "kubevirt_csi_build_info",
            "Constant 1; the labels tell what runs.",
            ["version", "role", "python"],
            registry=self.registry,
        )
        build.labels(VERSION, role, platform.python_version()).set(1)
