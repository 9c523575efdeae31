"""What a node knows of its volumes' health: who said it, since when, and one log line for each change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from kubevirt_csi.domain.health import Ailment, Reason, Severity
from kubevirt_csi.errors import Aborted, FailedPrecondition, InvalidArgument, Unavailable
from kubevirt_csi.operations.health import VolumeHealth

READ_ONLY = Ailment(Severity.DEGRADED, Reason.FILE_SYSTEM_READ_ONLY, "it is read-only")
GONE = Ailment(Severity.INACCESSIBLE, Reason.DEVICE_GONE, "it is gone")


class Clock:
    """The time of day."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> VolumeHealth:
    return VolumeHealth(now=clock)


def test_an_ailment_tells_since_when_however_often_it_is_found(health: VolumeHealth, clock: Clock) -> None:
    health.note("pvc-1", source="/pod", ailments=[READ_ONLY])
    clock.time += timedelta(minutes=7)
    health.note("pvc-1", source="/pod", ailments=[READ_ONLY, GONE])
    assert [ailment.message for ailment in health.of("pvc-1")] == [
        "since 2026-01-02T03:11:05Z: it is gone",
        "since 2026-01-02T03:04:05Z: it is read-only",
    ]


def test_a_volume_is_well_again_when_the_source_says_so(health: VolumeHealth) -> None:
    health.note("pvc-1", source="/pod", ailments=[READ_ONLY])
    health.note("pvc-1", source="/pod", ailments=[])
    assert health.of("pvc-1") == ()
    assert health.abnormal() == ()


def test_a_source_takes_back_only_what_it_said_itself(health: VolumeHealth) -> None:
    health.note("pvc-1", source="growth", ailments=[READ_ONLY])
    health.note("pvc-1", source="/pod", ailments=[GONE])
    health.note("pvc-1", source="/pod", ailments=[])
    assert health.abnormal() == (("pvc-1", Reason.FILE_SYSTEM_READ_ONLY),)
    assert health.of("pvc-2") == ()


def test_what_was_found_at_a_path_does_not_outlive_it(health: VolumeHealth) -> None:
    health.note("pvc-1", source="/pod", ailments=[GONE])
    health.note("pvc-1", source="growth", ailments=[READ_ONLY])
    health.silence("pvc-1", source="/pod")
    assert health.abnormal() == (("pvc-1", Reason.FILE_SYSTEM_READ_ONLY),)
    with capture_logs() as logs:
        health.forget("pvc-1")
    assert [(line["event"], line["reasons"]) for line in logs] == [("abnormal volume has left", ["FileSystemReadOnly"])]
    assert health.of("pvc-1") == ()


def test_only_a_change_is_logged(health: VolumeHealth) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            health.note("pvc-1", source="/pod", ailments=[READ_ONLY])
            health.note("pvc-1", source="/other pod", ailments=[READ_ONLY])
        for source in ("/pod", "/other pod", "/pod"):
            health.note("pvc-1", source=source, ailments=[])
    assert [(line["log_level"], line["event"], line["reason"]) for line in logs] == [
        ("warning", "volume abnormal", "FileSystemReadOnly"),
        ("info", "volume no longer abnormal", "FileSystemReadOnly"),
    ]
    assert logs[0]["message"] == "it is read-only"
    assert logs[0]["volume_id"] == "pvc-1"


@pytest.mark.parametrize("error", [Unavailable("no disk"), FailedPrecondition("not blank")])
def test_a_volume_that_cannot_be_staged_is_inaccessible_until_it_can(health: VolumeHealth, error: Exception) -> None:
    with pytest.raises(type(error)), health.staging("pvc-1"):
        raise error
    assert [(each.severity, each.reason) for each in health.of("pvc-1")] == [
        (Severity.INACCESSIBLE, Reason.STAGING_FAILED)
    ]
    assert str(error) in health.of("pvc-1")[0].message
    with health.staging("pvc-1"):
        pass
    assert health.of("pvc-1") == ()


@pytest.mark.parametrize("error", [InvalidArgument("no serial"), Aborted("busy")])
def test_a_request_that_was_refused_says_nothing_about_the_volume(health: VolumeHealth, error: Exception) -> None:
    with pytest.raises(type(error)), health.staging("pvc-1"):
        raise error
    assert health.of("pvc-1") == ()


def test_a_failed_attempt_that_nobody_repeats_is_forgotten(health: VolumeHealth, clock: Clock) -> None:
    with pytest.raises(Unavailable), health.staging("pvc-1"):
        raise Unavailable("no disk")
    clock.time += timedelta(minutes=9, seconds=59)
    assert health.abnormal() == (("pvc-1", Reason.STAGING_FAILED),)
    clock.time += timedelta(seconds=1)
    assert health.abnormal() == ()
    assert health.of("pvc-1") == ()
