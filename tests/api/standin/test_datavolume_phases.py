"""The phases and conditions of DataVolumes, and the quotas that show in them."""

from __future__ import annotations

import re

import pytest

from tests.api.standin.site import Site, phase_of
from tests.api.standin.talking import Object
from tests.api.standin.volumes import (
    LEGACY_PROVISIONER,
    VOLUMES,
    bare_claim,
    blank,
    claim_of,
    condition_of,
    made,
    phases_of,
    storage_class,
    volume_until,
)

WITHOUT_POPULATOR = {"cdi.kubevirt.io/storage.usePopulator": "false"}
BY_ITSELF = {
    "with populator": ({}, ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"]),
    "without": (WITHOUT_POPULATOR, ["Pending", "PVCBound", "ImportScheduled", "ImportInProgress", "Succeeded"]),
}


@pytest.mark.parametrize(("annotations", "phases"), BY_ITSELF.values(), ids=BY_ITSELF)
async def test_the_phases_of_a_blank_volume_on_an_immediate_class(
    site: Site, annotations: Object, phases: list[str]
) -> None:
    states = await made(site, blank("data", annotations=annotations))
    assert phases_of(states) == phases


async def test_the_conditions_follow_the_import(site: Site) -> None:
    states = await made(site, blank("data"))
    by_phase = {phase_of(state): state for state in reversed(states)}
    assert condition_of(by_phase["Pending"], "Bound") == ("False", "Pending", "PVC data Pending")
    importing = next(state for state in states if condition_of(state, "Running")[0] == "True")
    assert condition_of(importing, "Running") == ("True", "Pod is running", "")
    assert condition_of(importing, "Bound")[:2] == ("False", "Pending")
    assert condition_of(importing, "Ready")[:2] == ("False", "TransferRunning")
    assert (importing["status"]["phase"], importing["status"]["progress"]) == ("ImportInProgress", "N/A")
    done = by_phase["Succeeded"]
    assert condition_of(done, "Bound") == ("True", "Bound", "PVC data Bound")
    assert condition_of(done, "Running")[:2] == ("False", "Completed")
    assert condition_of(done, "Ready")[0] == "True"
    assert (done["status"]["claimName"], done["status"]["progress"]) == ("data", "100.0%")
    times = {"lastTransitionTime", "lastHeartbeatTime"}
    assert all(times <= set(condition) for condition in done["status"]["conditions"])


async def test_a_condition_keeps_its_time_as_long_as_it_keeps_its_value(site: Site) -> None:
    states = await made(site, blank("data"))
    times = {
        each["lastTransitionTime"]
        for state in states
        for each in state.get("status", {}).get("conditions", [])
        if (each["type"], each["status"]) == ("Ready", "False")
    }
    assert len(times) == 1


# Bound


async def test_bound_false_notfound_when_the_claim_of_a_finished_volume_has_gone(site: Site) -> None:
    await site.ready_volume("data")
    await site.client.delete(f"{site.claims}/data")
    volume = await volume_until(site, "data", "Bound", "False", "NotFound", "No PVC found")
    assert phase_of(volume) == "Succeeded"


async def test_bound_false_claimlost_and_phase_failed_when_the_volume_behind_the_claim_has_gone(site: Site) -> None:
    await site.ready_volume("data")
    volume = (await claim_of(site))["spec"]["volumeName"]
    await site.client.delete(f"{VOLUMES}/{volume}")
    await site.client.patch(f"{VOLUMES}/{volume}", {"metadata": {"finalizers": None}})
    failed = await volume_until(site, "data", "Bound", "False", "ClaimLost", "Claim Lost")
    assert phase_of(failed) == "Failed"


async def test_bound_false_pending_tells_what_the_storage_said_last(site: Site) -> None:
    name = await storage_class(site, "full", parameters={"capacity": "1Mi"})
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    prime = f"prime-{(await claim_of(site))['metadata']['uid']}"
    text = (
        f'target PVC data Pending and [{prime}] : failed to provision volume with StorageClass "{name}": rpc error: '
        "code = ResourceExhausted desc = no space in pool: 1048576 bytes free, 16777216 asked"
    )
    await volume_until(site, "data", "Bound", "False", "Pending", text)


async def test_bound_false_pending_tells_of_wrong_parameters(site: Site) -> None:
    name = await storage_class(site, "wrong", parameters={"poool": "a"})
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    states = await site.client.follow(
        site.datavolumes, "data", lambda volume: "InvalidArgument" in condition_of(volume, "Bound")[2]
    )
    assert condition_of(states[-1], "Bound")[2].endswith('code = InvalidArgument desc = unknown parameter "poool"')


async def test_bound_false_errresourceexists_when_a_foreign_claim_appears_later(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", storageClassName="missing"))
    await volume_until(site, "data", "Bound", "False", "ErrClaimNotValid")
    await site.client.create(site.claims, bare_claim("data"))
    text = 'Resource "data" already exists and is not managed by DataVolume'
    await volume_until(site, "data", "Bound", "False", "ErrResourceExists", text)


# Running


async def test_running_false_unschedulable_while_the_importer_cannot_be_scheduled(site: Site) -> None:
    name = await storage_class(site, "full", parameters={"capacity": "1Mi"})
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    text = "Importer pod cannot be scheduled"
    volume = await volume_until(site, "data", "Running", "False", "Unschedulable", text)
    assert phase_of(volume) == "ImportScheduled"


async def test_running_false_with_the_pods_reason_while_an_importer_crashes_for_ever(site: Site) -> None:
    body = blank("data")
    body["spec"]["source"] = {"http": {"url": "http://nowhere.invalid/image"}}
    await site.client.create(site.datavolumes, body)
    states = await site.client.follow(
        site.datavolumes, "data", lambda volume: (volume or {}).get("status", {}).get("restartCount") == 2
    )
    assert condition_of(states[-1], "Running") == ("False", "Error", "Unable to connect to http data source")
    assert phase_of(states[-1]) == "ImportInProgress"


async def test_phase_failed_after_an_import_error_that_cannot_be_retried(site: Site) -> None:
    await site.client.create(site.datavolumes, blank("data", annotations={"lab.csi.kubevirt.io/importing": "failed"}))
    states = await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Failed")
    assert condition_of(states[-1], "Running")[:2] == ("False", "Error")
    assert condition_of(states[-1], "Ready")[0] == "False"


# Quota


async def test_a_claim_that_exceeds_the_quota_shows_and_is_tried_again(site: Site) -> None:
    await site.quota({"requests.storage": "1Mi"})
    await site.client.create(site.datavolumes, blank("data"))
    volume = await volume_until(site, "data", "Bound", "False", "ErrExceededQuota")
    assert phase_of(volume) == "Pending"
    text = r'"data" is forbidden: exceeded quota: quota, requested: requests.storage=16Mi, used: .*, limited: '
    assert re.search(text, condition_of(volume, "Bound")[2])
    await site.event_until("data", "ErrExceededQuota")
    await site.client.delete(f"{site.quotas}/quota")
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")


async def test_a_quota_for_one_claim_is_exceeded_by_the_populators_second(site: Site) -> None:
    await site.quota({"requests.storage": "16Mi"})
    await site.client.create(site.datavolumes, blank("data"))
    volume = await volume_until(site, "data", "Bound", "False", "ErrExceededQuota")
    claim = await claim_of(site)
    assert phase_of(volume) == "Pending"
    text = f'"prime-{claim["metadata"]["uid"]}" is forbidden: exceeded quota: quota, requested: requests.storage=16Mi'
    assert text in condition_of(volume, "Bound")[2]
    assert phase_of(claim) == "Pending"
    await site.client.patch(f"{site.quotas}/quota", {"spec": {"hard": {"requests.storage": "32Mi"}}})
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")


async def test_a_quota_for_one_claim_is_enough_without_a_populator(site: Site) -> None:
    await site.quota({"requests.storage": "16Mi", "persistentvolumeclaims": "1"})
    await made(site, blank("data", annotations=WITHOUT_POPULATOR))


async def test_an_importer_that_exceeds_the_quota_shows_as_not_running(site: Site) -> None:
    await site.quota({"pods": "0"})
    await site.client.create(site.datavolumes, blank("data"))
    volume = await volume_until(site, "data", "Running", "False", "ErrExceededQuota")
    assert "exceeded quota: quota, requested: pods=1" in condition_of(volume, "Running")[2]
    assert condition_of(volume, "Bound")[:2] == ("False", "Pending")
    await site.client.delete(f"{site.quotas}/quota")
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")


async def test_only_a_quota_on_their_number_refuses_datavolumes_themselves(site: Site) -> None:
    await site.quota({"count/datavolumes.cdi.kubevirt.io": "0"})
    answer = await site.client.call("POST", site.datavolumes, blank("data"))
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert "exceeded quota: quota, requested: count/datavolumes.cdi.kubevirt.io=1" in answer.body["message"]


async def test_storage_that_is_not_there_fails_a_legacy_claim_without_a_word_in_the_datavolume(site: Site) -> None:
    name = await storage_class(site, "full", provisioner=LEGACY_PROVISIONER, parameters={"capacity": "1Mi"})
    await site.client.create(site.datavolumes, blank("data", storageClassName=name))
    await site.event_until("data", "ProvisioningFailed")
    volume = await volume_until(site, "data", "Bound", "False", "Pending", "PVC data Pending")
    assert phase_of(volume) == "Pending"
