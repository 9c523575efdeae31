"""DataVolumes: what CDI's webhook refuses, how a blank one is populated, and how failures show."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.api.standin.site import Site, datavolume, phase_of
from tests.api.standin.talking import Object

VALIDATOR = 'admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: '
BLANK: Object = {"source": {"blank": {}}}
MODES = '"ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"'


def sized(size: str | None, **fields: Any) -> Object:
    requests = {} if size is None else {"resources": {"requests": {"storage": size}}}
    return {**requests, **fields}


def condition_of(volume: Object | None, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    conditions = (volume or {}).get("status", {}).get("conditions", [])
    found = [(each["status"], each["reason"], each["message"]) for each in conditions if each["type"] == kind]
    return found[0] if found else ("", "", "")


# Validation


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(BLANK, "Missing Data volume PVC", id="neither pvc nor storage"),
        pytest.param(
            {**BLANK, "pvc": sized("1Gi", accessModes=["ReadWriteOnce"]), "storage": sized("1Gi")},
            "Duplicate storage definition, both target storage and target pvc defined",
            id="both pvc and storage",
        ),
        pytest.param(
            {**BLANK, "pvc": sized(None, accessModes=["ReadWriteOnce"])}, "PVC size is missing", id="pvc: no size"
        ),
        pytest.param(
            {**BLANK, "storage": sized(None, volumeMode="Block")}, "Storage size is missing", id="storage: no size"
        ),
        pytest.param(
            {**BLANK, "pvc": sized("0", accessModes=["ReadWriteOnce"])},
            "PVC size can't be equal or less than zero",
            id="pvc: size zero",
        ),
        pytest.param(
            {**BLANK, "storage": sized("-1Gi")},
            "Storage size can't be equal or less than zero",
            id="storage: negative size",
        ),
        pytest.param(
            {**BLANK, "storage": sized("1023Ki")}, "Storage size should be at least 1MiB", id="storage: below 1 MiB"
        ),
        pytest.param(
            {**BLANK, "pvc": sized("1023Ki", accessModes=["ReadWriteOnce"])},
            "PVC size should be at least 1MiB",
            id="pvc: below 1 MiB",
        ),
        pytest.param(
            {**BLANK, "pvc": sized("1Gi")},
            "Required value: at least 1 access mode is required",
            id="pvc: no access mode",
        ),
        pytest.param(
            {**BLANK, "pvc": sized("1Gi", accessModes=["ReadWriteOnce", "ReadWriteMany"])},
            "PVC multiple accessModes",
            id="pvc: several access modes",
        ),
        pytest.param(
            {**BLANK, "storage": sized("1Gi", accessModes=["ReadWriteNever"])},
            f'Unsupported value: "ReadWriteNever": supported values: {MODES}',
            id="storage: unknown access mode",
        ),
        pytest.param(
            {**BLANK, "pvc": sized("1Gi", accessModes=["ReadWriteNever"])},
            f'Unsupported value: "ReadWriteNever": supported values: {MODES}',
            id="pvc: unknown access mode",
        ),
        pytest.param(
            {"storage": sized("1Gi")},
            "Data volume should have either Source or SourceRef, or be externally populated",
            id="no source",
        ),
        pytest.param(
            {**BLANK, "storage": sized("1Gi", dataSourceRef={"kind": "VolumeSnapshot", "name": "snapshot"})},
            "External population is incompatible with Source and SourceRef",
            id="source and external population",
        ),
        pytest.param(
            {
                "storage": sized(
                    "1Gi", dataSourceRef={"kind": "VolumeSnapshot", "name": "snapshot", "namespace": "other"}
                )
            },
            "Invalid value: DataSourceRef namespace not supported",
            id="external population from another namespace",
        ),
    ],
)
async def test_the_webhook_refuses_with_422(site: Site, spec: Object, message: str) -> None:
    answer = await site.client.call("POST", site.datavolumes, datavolume("data", **spec))
    assert answer.refusal == (422, "Invalid", VALIDATOR + message)
    assert [cause["message"] for cause in answer.body["details"]["causes"]] == [message]


async def test_the_size_may_be_left_out_where_a_clone_brings_its_own(site: Site) -> None:
    spec = {"source": {"pvc": {"namespace": site.namespace, "name": "source"}}, "storage": {"volumeMode": "Block"}}
    assert (await site.client.call("POST", site.datavolumes, datavolume("data", **spec))).code == 201


async def test_the_spec_can_never_be_changed(site: Site) -> None:
    await site.ready_volume("data")
    patch = {"spec": {"storage": {"resources": {"requests": {"storage": "32Mi"}}}}}
    answer = await site.client.call(
        "PATCH", f"{site.datavolumes}/data", patch, content_type="application/merge-patch+json"
    )
    assert answer.refusal == (422, "Invalid", VALIDATOR + "Cannot update DataVolume Spec")
    labelled = await site.client.patch(f"{site.datavolumes}/data", {"metadata": {"labels": {"may": "change"}}})
    assert labelled["metadata"]["labels"] == {"may": "change"}


async def test_a_foreign_claim_of_the_name_is_refused(site: Site) -> None:
    await site.client.create(site.claims, bare_claim("data"))
    await site.claim_seen("data")
    answer = await site.client.call("POST", site.datavolumes, datavolume("data"))
    message = f"Destination PVC {site.namespace}/data already exists"
    assert answer.refusal == (422, "Invalid", VALIDATOR + message)


# Population


async def test_a_blank_volume_is_imported_and_then_bound(site: Site) -> None:
    created = await site.client.create(site.datavolumes, datavolume("data"))
    states = await site.client.follow(
        site.datavolumes,
        "data",
        lambda volume: phase_of(volume) == "Succeeded",
        since=created["metadata"]["resourceVersion"],
    )
    phases = list(dict.fromkeys(phase_of(state) for state in states))
    assert phases == ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"]
    by_phase = {phase_of(state): state or {} for state in reversed(states)}
    assert condition_of(by_phase["Pending"], "Bound") == ("False", "Pending", "PVC data Pending")
    assert condition_of(by_phase["ImportInProgress"], "Running") == ("True", "Pod is running", "")
    assert condition_of(by_phase["ImportInProgress"], "Ready")[:2] == ("False", "TransferRunning")
    done = by_phase["Succeeded"]
    assert condition_of(done, "Bound") == ("True", "Bound", "PVC data Bound")
    assert condition_of(done, "Running")[:2] == ("False", "Completed")
    assert condition_of(done, "Ready")[0] == "True"
    assert (done["status"]["claimName"], done["status"]["progress"]) == ("data", "100.0%")


async def test_the_claim_is_named_owned_and_marked_like_its_datavolume(site: Site) -> None:
    body = datavolume("data")
    body["metadata"] |= {"labels": {"tenant": "a"}, "annotations": {"note": "b"}}
    volume = await site.client.create(site.datavolumes, body)
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")
    claim = await site.client.get(f"{site.claims}/data")
    assert claim["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "cdi.kubevirt.io/v1beta1",
            "kind": "DataVolume",
            "name": "data",
            "uid": volume["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert claim["metadata"]["labels"]["tenant"] == "a"
    assert claim["metadata"]["annotations"]["note"] == "b"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert (claim["spec"]["volumeMode"], claim["spec"]["storageClassName"]) == ("Block", "local-block")
    assert claim["status"]["capacity"] == {"storage": "16Mi"}


async def test_access_modes_that_are_given_win_over_the_profile(site: Site) -> None:
    spec = {**BLANK, "storage": sized("16Mi", accessModes=["ReadWriteOnce"])}
    await site.client.create(site.datavolumes, datavolume("data", **spec))
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")
    claim = await site.client.get(f"{site.claims}/data")
    assert (claim["spec"]["accessModes"], claim["spec"]["volumeMode"]) == (["ReadWriteOnce"], "Block")


async def test_the_volume_behind_the_claim_is_a_file_of_its_size_until_the_claim_is_gone(site: Site) -> None:
    await site.ready_volume("data")
    volume = (await site.client.get(f"{site.claims}/data"))["spec"]["volumeName"]
    image = site.storage / f"{volume}.raw"
    assert image.stat().st_size == 16 * 1024**2
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.follow(site.claims, "data", lambda claim: claim is None)
    await site.client.follow("/api/v1/persistentvolumes", volume, lambda volume: volume is None)
    assert not image.exists()


# Failures that show in conditions only


async def test_a_claim_that_exceeds_the_quota_shows_and_is_tried_again(site: Site) -> None:
    await site.quota({"requests.storage": "1Mi"})
    await site.client.create(site.datavolumes, datavolume("data"))
    states = await site.client.follow(
        site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[1] == "ErrExceededQuota"
    )
    status, _, message = condition_of(states[-1], "Bound")
    assert (status, phase_of(states[-1])) == ("False", "Pending")
    assert re.search(r"exceeded quota: quota, requested: requests.storage=16Mi, used: .*, limited: ", message)
    await site.client.delete(f"{site.quotas}/quota")
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")


async def test_an_importer_that_exceeds_the_quota_shows_as_not_running(site: Site) -> None:
    await site.quota({"pods": "0"})
    await site.client.create(site.datavolumes, datavolume("data"))
    states = await site.client.follow(
        site.datavolumes, "data", lambda volume: condition_of(volume, "Running")[1] == "ErrExceededQuota"
    )
    status, _, message = condition_of(states[-1], "Running")
    assert status == "False"
    assert "exceeded quota: quota" in message
    assert condition_of(states[-1], "Bound") == ("False", "Pending", "PVC data Pending")


async def test_a_missing_class_without_access_modes_makes_no_claim(site: Site) -> None:
    spec = {**BLANK, "storage": sized("16Mi", storageClassName="missing")}
    await site.client.create(site.datavolumes, datavolume("data", **spec))
    states = await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[0])
    assert phase_of(states[-1]) == ""
    assert condition_of(states[-1], "Bound") == (
        "False",
        "ErrClaimNotValid",
        "PVC spec is missing accessMode and no storageClass to choose profile",
    )
    assert (await site.client.call("GET", f"{site.claims}/data")).code == 404


async def test_a_missing_class_with_access_modes_makes_a_claim_that_stays_pending(site: Site) -> None:
    spec = {**BLANK, "storage": sized("16Mi", storageClassName="missing", accessModes=["ReadWriteOnce"])}
    await site.client.create(site.datavolumes, datavolume("data", **spec))
    states = await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[0])
    assert phase_of(states[-1]) == "Pending"
    assert condition_of(states[-1], "Bound") == ("False", "Pending", "PVC data Pending")
    assert phase_of(await site.client.get(f"{site.claims}/data")) == "Pending"


async def test_a_class_of_which_nothing_is_known_makes_no_claim(site: Site) -> None:
    storage_class = f"unknown-{site.namespace}"
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": storage_class},
        "provisioner": "example.com/unknown",
    }
    await site.client.create("/apis/storage.k8s.io/v1/storageclasses", body)
    profiles = "/apis/cdi.kubevirt.io/v1beta1/storageprofiles"
    await site.client.follow(profiles, storage_class, lambda profile: (profile or {}).get("status"))
    spec = {**BLANK, "storage": sized("16Mi", storageClassName=storage_class)}
    await site.client.create(site.datavolumes, datavolume("data", **spec))
    states = await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[0])
    assert condition_of(states[-1], "Bound") == (
        "False",
        "ErrClaimNotValid",
        f"no accessMode specified in StorageProfile {storage_class}",
    )
    await site.client.delete(f"/apis/storage.k8s.io/v1/storageclasses/{storage_class}")


async def test_a_foreign_claim_that_appears_later_is_an_error(site: Site) -> None:
    spec = {**BLANK, "storage": sized("16Mi", storageClassName="missing")}
    await site.client.create(site.datavolumes, datavolume("data", **spec))
    await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[0])
    await site.client.create(site.claims, bare_claim("data"))
    states = await site.client.follow(
        site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[1] != "ErrClaimNotValid"
    )
    assert condition_of(states[-1], "Bound")[:2] == ("False", "ErrResourceExists")


async def test_a_claim_that_an_older_datavolume_left_holds_the_new_one_up(site: Site) -> None:
    old = await site.client.create(site.datavolumes, datavolume("data"))
    # A finalizer keeps the old claim, as its use by a pod would.
    await site.client.follow(site.claims, "data", lambda claim: claim is not None)
    await site.client.patch(f"{site.claims}/data", {"metadata": {"finalizers": ["test.example.com/held"]}})
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.delete(f"{site.claims}/data")
    await site.client.create(site.datavolumes, datavolume("data"))
    states = await site.client.follow(site.datavolumes, "data", lambda volume: condition_of(volume, "Bound")[0])
    assert condition_of(states[-1], "Bound")[:2] == ("False", "ErrResourceMarkedForDeletion")
    await site.client.patch(f"{site.claims}/data", {"metadata": {"finalizers": []}})
    states = await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")
    assert (states[-1] or old)["metadata"]["uid"] != old["metadata"]["uid"]


def bare_claim(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": sized("16Mi", accessModes=["ReadWriteOnce"], volumeMode="Block", storageClassName="local-block"),
    }
