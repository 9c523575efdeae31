"""Which volumes are abnormal, as a scraper reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from kubevirt_csi.observe.metrics import AbnormalVolumes


def samples(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_abnormal_volumes_have_a_series_for_each_reason_as_long_as_they_are() -> None:
    abnormal = [("pvc-1", "IoError"), ("pvc-1", "FileSystemReadOnly"), ("pvc-2", "IoError")]
    registry = CollectorRegistry()
    registry.register(AbnormalVolumes(lambda: abnormal))
    assert samples(registry) == [
        'kubevirt_csi_volume_abnormal{reason="IoError",volume="pvc-1"} 1.0',
        'kubevirt_csi_volume_abnormal{reason="FileSystemReadOnly",volume="pvc-1"} 1.0',
        'kubevirt_csi_volume_abnormal{reason="IoError",volume="pvc-2"} 1.0',
    ]
    abnormal.clear()
    assert samples(registry) == []
