"""What CDI's webhook refuses in DataVolumes: every text it has, and what it lets through."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.standin.site import Site, datavolume
from tests.api.standin.talking import Object
from tests.api.standin.volumes import BLANK, bare_claim, sized

VALIDATOR = 'admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: '
MODES = '"ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"'
RWO = ["ReadWriteOnce"]
SNAPSHOT: Object = {"kind": "VolumeSnapshot", "name": "snapshot"}


def pvc(size: str | None, **fields: Any) -> Object:
    return {**BLANK, "pvc": sized(size, **({"accessModes": RWO} | fields))}


def storage(size: str | None, **fields: Any) -> Object:
    return {**BLANK, "storage": sized(size, **fields)}


REFUSED = {
    "neither pvc nor storage": (BLANK, "Missing Data volume PVC"),
    "both pvc and storage": (
        pvc("1Gi") | storage("1Gi"),
        "Duplicate storage definition, both target storage and target pvc defined",
    ),
    "pvc: no size": (pvc(None), "PVC size is missing"),
    "storage: no size": (storage(None, volumeMode="Block"), "Storage size is missing"),
    "pvc: size zero": (pvc("0"), "PVC size can't be equal or less than zero"),
    "storage: size zero": (storage("0"), "Storage size can't be equal or less than zero"),
    "pvc: negative size": (pvc("-1Gi"), "PVC size can't be equal or less than zero"),
    "storage: negative size": (storage("-1Gi"), "Storage size can't be equal or less than zero"),
    "pvc: below 1 MiB": (pvc("1023Ki"), "PVC size should be at least 1MiB"),
    "storage: below 1 MiB": (storage("1023Ki"), "Storage size should be at least 1MiB"),
    "pvc: no access mode": (pvc("1Gi", accessModes=[]), "Required value: at least 1 access mode is required"),
    "pvc: several access modes": (pvc("1Gi", accessModes=[*RWO, "ReadWriteMany"]), "PVC multiple accessModes"),
    "pvc: unknown access mode": (
        pvc("1Gi", accessModes=["ReadWriteNever"]),
        f'Unsupported value: "ReadWriteNever": supported values: {MODES}',
    ),
    "storage: unknown access mode": (
        storage("1Gi", accessModes=["ReadWriteNever"]),
        f'Unsupported value: "ReadWriteNever": supported values: {MODES}',
    ),
    "no source": (
        {"storage": sized("1Gi")},
        "Data volume should have either Source or SourceRef, or be externally populated",
    ),
    "source and external population": (
        storage("1Gi", dataSourceRef=SNAPSHOT),
        "External population is incompatible with Source and SourceRef",
    ),
    "sourceRef and external population": (
        {"sourceRef": {"kind": "DataSource", "name": "image"}, "storage": sized("1Gi", dataSource=SNAPSHOT)},
        "External population is incompatible with Source and SourceRef",
    ),
    "external population from another namespace": (
        {"storage": sized("1Gi", dataSourceRef={**SNAPSHOT, "namespace": "other"})},
        "Invalid value: DataSourceRef namespace not supported",
    ),
}
ADMITTED = {
    "blank": storage("1Gi"),
    "1 MiB": storage("1Mi"),
    "pvc": pvc("1Gi"),
    "sourceRef": {"sourceRef": {"kind": "DataSource", "name": "image"}, "storage": sized("1Gi")},
    "externally populated by dataSourceRef": {"storage": sized("1Gi", dataSourceRef=SNAPSHOT)},
    "externally populated by dataSource": {"storage": sized("1Gi", dataSource=SNAPSHOT)},
    "storage: several access modes": storage("1Gi", accessModes=[*RWO, "ReadWriteMany"]),
    "clone without a size": {
        "source": {"pvc": {"namespace": "default", "name": "source"}},
        "storage": {"volumeMode": "Block"},
    },
}


@pytest.mark.parametrize(("spec", "message"), REFUSED.values(), ids=REFUSED)
async def test_the_webhook_refuses_with_422(site: Site, spec: Object, message: str) -> None:
    answer = await site.client.call("POST", site.datavolumes, datavolume("data", **spec))
    assert answer.refusal == (422, "Invalid", VALIDATOR + message)
    assert [cause["message"] for cause in answer.body["details"]["causes"]] == [message]


@pytest.mark.parametrize("spec", ADMITTED.values(), ids=ADMITTED)
async def test_the_webhook_admits(site: Site, spec: Object) -> None:
    answer = await site.client.call("POST", f"{site.datavolumes}?dryRun=All", datavolume("data", **spec))
    assert answer.code == 201


async def test_several_mistakes_are_told_together(site: Site) -> None:
    answer = await site.client.call("POST", site.datavolumes, datavolume("data", storage=sized("0")))
    messages = [
        "Data volume should have either Source or SourceRef, or be externally populated",
        "Storage size can't be equal or less than zero",
    ]
    assert answer.refusal == (422, "Invalid", VALIDATOR + ", ".join(messages))
    assert [cause["message"] for cause in answer.body["details"]["causes"]] == messages


async def test_of_a_name_that_is_too_long_kube_apiserver_speaks_before_the_webhook(site: Site) -> None:
    answer = await site.client.call("POST", site.datavolumes, datavolume("x" * 254))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert "must be no more than 253 characters" in answer.body["message"]


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
