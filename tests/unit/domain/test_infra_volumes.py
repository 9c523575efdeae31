"""What can be done with a volume as its infra objects are."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.infra_volumes import Claim, DataVolume, InfraVolume

GIB = 2**30


def volume(*, phase: str | None = "Succeeded", claim: str | None = "Bound", deleting: bool = False) -> InfraVolume:
    made = DataVolume(uid="d", phase=phase, size_bytes=GIB) if phase is not None else None
    held = None
    if claim is not None:
        held = Claim(uid="c", resource_version="1", phase=claim, volume_mode="Block", deleting=deleting)
    return InfraVolume(id="v", data_volume=made, claim=held, serial="s", bus=None)


@pytest.mark.parametrize(
    ("found", "decided", "on_use", "hopeless"),
    [
        pytest.param(volume(), True, False, False, id="filled"),
        pytest.param(volume(phase="", claim=None), False, False, False, id="CDI has not looked at it"),
        pytest.param(volume(phase="ImportInProgress"), False, False, False, id="being filled"),
        pytest.param(volume(phase="WaitForFirstConsumer", claim="Pending"), True, True, False, id="waits for use"),
        pytest.param(volume(phase="PendingPopulation", claim="Pending"), True, True, False, id="waits for population"),
        pytest.param(volume(phase="PendingPopulation", claim=None), False, True, False, id="its claim is yet to come"),
        pytest.param(volume(deleting=True), False, False, False, id="an older claim is still going"),
        pytest.param(volume(claim=None), False, False, True, id="its claim is gone"),
        pytest.param(volume(claim="Lost"), False, False, True, id="its storage is gone"),
        pytest.param(volume(phase="Failed"), False, False, True, id="given up"),
        pytest.param(volume(phase=None), True, False, False, id="bare claim"),
        pytest.param(volume(phase=None, claim="Pending"), True, True, False, id="bare claim, unbound"),
        pytest.param(volume(phase=None, claim="Lost"), False, False, True, id="bare claim, lost"),
    ],
)
def test_when_a_volume_can_be_plugged_and_when_never(
    found: InfraVolume, *, decided: bool, on_use: bool, hopeless: bool
) -> None:
    assert (found.decided, found.populates_on_use, found.hopeless) == (decided, on_use, hopeless)


def sized(
    *, mode: str, asks: int, has: int | None, made: int = GIB, promised: int = 0, of_disk: bool = True
) -> InfraVolume:
    claim = Claim(uid="c", resource_version="1", phase="Bound", size_bytes=asks, capacity_bytes=has, volume_mode=mode)
    dv = DataVolume(uid="d", phase="Succeeded", size_bytes=made, of_disk=of_disk) if made else None
    return InfraVolume(id="v", data_volume=dv, claim=claim, serial="s", bus=None, promised_bytes=promised)


@pytest.mark.parametrize(
    ("found", "least"),
    [
        pytest.param(sized(mode="Block", asks=GIB, has=GIB), GIB, id="block as made"),
        pytest.param(sized(mode="Block", asks=2 * GIB, has=GIB), GIB, id="block that grows"),
        pytest.param(sized(mode="Block", asks=2 * GIB, has=2 * GIB), 2 * GIB, id="block that has grown"),
        pytest.param(sized(mode="Block", asks=2 * GIB, has=None, made=0), 2 * GIB, id="bare block, not bound"),
        pytest.param(
            sized(mode="Filesystem", asks=2 * GIB, has=2 * GIB), GIB, id="file in an overhead that we do not know"
        ),
        pytest.param(sized(mode="Filesystem", asks=3 * GIB, has=2 * GIB, promised=2 * GIB), GIB, id="file that grows"),
        pytest.param(
            sized(mode="Filesystem", asks=3 * GIB, has=3 * GIB, promised=2 * GIB), 2 * GIB, id="file that has grown"
        ),
    ],
)
def test_the_guest_is_promised_no_more_than_the_claim_has(found: InfraVolume, least: int) -> None:
    assert found.size_bytes == least
