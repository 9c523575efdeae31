"""The attachment entry as a fence: refusals, lost races, answers that never came, and what another replica began."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.domain.infra_volumes import ATTACHMENTS, CONTENT, FORMAT_OVERRIDE, OVERRIDE_IN_FORCE
from kubevirt_csi.domain.volumes import Content
from kubevirt_csi.errors import Aborted, FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable
from kubevirt_csi.ports.infra import Stale
from tests.fakes.driver import WRITER, Driver, node, now
from tests.fakes.infra_cluster import InfraCluster

pytestmark = pytest.mark.looptime


def verbs(cluster: InfraCluster) -> list[tuple[str, str, str]]:
    return [(verb, vm, volume) for _, verb, vm, volume in cluster.journal]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (InvalidArgument("requires bus to be 'scsi' or 'virtio'"), InvalidArgument),
        (PermissionDenied("cannot update virtualmachines/addvolume"), PermissionDenied),
    ],
    ids=["admission", "rbac"],
)
async def test_a_refused_plug_is_final_with_its_text_and_leaves_no_entry(
    cluster: InfraCluster, driver: Driver, refusal: Exception, kind: type[Exception]
) -> None:
    cluster.fail("add_volume", refusal)
    with pytest.raises(kind, match=str(refusal)):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    assert ATTACHMENTS not in cluster.volumes["pvc-1"].claim_annotations
    assert cluster.volumes["pvc-1"].claim_annotations[CONTENT] == "used"


async def test_a_conflict_is_decided_by_state_and_sent_again(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("add_volume", Stale("the server rejected our request due to an error in our request"), times=3)
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert context.content is Content.NONE
    assert verbs(cluster) == [("add", "vm1", "pvc-1")]


async def test_a_conflict_because_the_disk_is_there_already_is_success(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("add_volume", Stale("already exists"), carried_out_after=0.0)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert verbs(cluster) == [("add", "vm1", "pvc-1")]


async def test_an_entry_that_changes_under_the_write_is_decided_anew(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("annotate", Stale("the claim has changed"), times=2)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    assert cluster.machines["vm1"].attached("pvc-1")


async def test_another_replicas_young_attempt_on_the_same_vm_is_left_alone_until_it_has_aged(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.fail("add_volume", Unavailable("no answer"))
    other = Driver(cluster, process="replica-2")
    with pytest.raises(Unavailable):
        await other.publish("pvc-1", node("vm1"), WRITER)
    with pytest.raises(Aborted, match="another process"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    await asyncio.sleep(45)
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert context.content is Content.USED


async def test_another_replicas_young_attempt_elsewhere_keeps_the_volume_away_until_it_has_aged(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.fail("add_volume", Unavailable("no answer"))
    other = Driver(cluster, process="replica-2")
    with pytest.raises(Unavailable):
        await other.publish("pvc-1", node("vm2"), WRITER)
    with pytest.raises(FailedPrecondition, match="tenant-a/vm2"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    await asyncio.sleep(45)
    await driver.publish("pvc-1", node("vm1"), WRITER)
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert list(volume.attachments) == ["vm1"]


async def test_a_plug_whose_answer_takes_too_long_is_in_doubt_before_the_entry_can_be_free(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.timing.request = 11.0
    with pytest.raises(Unavailable, match="no answer"):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert not driver.entries.is_free("pvc-1", volume.attachments["vm1"])


async def test_a_plug_without_an_answer_is_not_trusted_to_be_lost(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("add_volume", Unavailable("no answer"), carried_out_after=20.0)
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm2"), WRITER)
    with pytest.raises(FailedPrecondition):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    await asyncio.sleep(30)
    assert cluster.machines["vm2"].attached("pvc-1")


async def test_a_plug_without_an_answer_is_repeated_on_the_same_entry(cluster: InfraCluster, driver: Driver) -> None:
    cluster.fail("add_volume", Unavailable("no answer"))
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    entry = cluster.volumes["pvc-1"].claim_annotations[ATTACHMENTS]
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert context.content is Content.NONE
    assert cluster.volumes["pvc-1"].claim_annotations[ATTACHMENTS] == entry


async def test_an_attempt_that_has_become_too_old_to_send_is_renewed_first(
    cluster: InfraCluster, driver: Driver
) -> None:
    cluster.fail("add_volume", Unavailable("no answer"))
    with pytest.raises(Unavailable):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    await asyncio.sleep(31)
    started = now()
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    volume = cluster.volume("pvc-1")
    assert volume is not None
    assert volume.attachments["vm1"].attempted_at >= started
    assert context.content is Content.USED


def permit_format(cluster: InfraCluster) -> None:
    """What an operator does with kubectl annotate."""
    cluster.annotate(cluster.volumes["pvc-1"].value("pvc-1"), {FORMAT_OVERRIDE: "0123456789abcdef0123"})


async def test_a_format_override_is_handed_over_with_one_attachment_and_ends_with_it(
    cluster: InfraCluster, driver: Driver
) -> None:
    claim = cluster.volumes["pvc-1"].claim_annotations
    permit_format(cluster)
    first = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert first.to_map()["override"] == "0123456789abcdef0123"
    assert FORMAT_OVERRIDE not in claim
    assert await driver.publish("pvc-1", node("vm1"), WRITER) == first
    await driver.unpublish("pvc-1", node("vm1"))
    assert OVERRIDE_IN_FORCE not in claim
    again = await driver.publish("pvc-1", node("vm2"), WRITER)
    assert "override" not in again.to_map()


async def test_a_format_override_outlives_an_attachment_that_did_not_come_about(
    cluster: InfraCluster, driver: Driver
) -> None:
    permit_format(cluster)
    cluster.fail("add_volume", InvalidArgument("requires bus to be 'scsi' or 'virtio'"))
    with pytest.raises(InvalidArgument):
        await driver.publish("pvc-1", node("vm1"), WRITER)
    context = await driver.publish("pvc-1", node("vm1"), WRITER)
    assert context.override == "0123456789abcdef0123"
