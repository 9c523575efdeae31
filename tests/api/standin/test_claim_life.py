"""Names, deletion and growth of the claims of DataVolumes."""

from __future__ import annotations

from tests.api.standin.site import Site, datavolume, phase_of
from tests.api.standin.talking import Answer, Object
from tests.api.standin.volumes import (
    MIB,
    VOLUMES,
    blank,
    claim_of,
    condition_of,
    consumer,
    image_behind,
    made,
    storage_class,
    volume_until,
)

HELD: Object = {"metadata": {"finalizers": ["test.example.com/held"]}}
FREE: Object = {"metadata": {"finalizers": []}}


# Names


async def test_the_claim_is_named_owned_and_marked_like_its_datavolume(site: Site) -> None:
    body = datavolume("data")
    body["metadata"] |= {"labels": {"tenant": "a"}, "annotations": {"note": "b"}}
    volume = await site.client.create(site.datavolumes, body)
    await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")
    claim = await claim_of(site)
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
    assert claim["status"]["capacity"] == {"storage": "16Mi"}


async def test_labels_and_annotations_are_copied_once(site: Site) -> None:
    await site.ready_volume("data")
    patch = {"metadata": {"labels": {"later": "a"}, "annotations": {"later": "b"}}}
    await site.client.patch(f"{site.datavolumes}/data", patch)
    await site.ready_volume("other")  # the controller has seen what came before
    metadata = (await claim_of(site))["metadata"]
    assert "later" not in {**metadata["labels"], **metadata["annotations"]}


async def test_a_blank_volume_has_no_finalizer(site: Site) -> None:
    await site.ready_volume("data")
    assert "finalizers" not in (await site.client.get(f"{site.datavolumes}/data"))["metadata"]


# Deletion


async def test_the_volume_behind_the_claim_is_a_file_of_its_size_until_the_claim_is_gone(site: Site) -> None:
    await site.ready_volume("data")
    image = await image_behind(site, "data")
    assert image.stat().st_size == 16 * MIB
    volume = (await claim_of(site))["spec"]["volumeName"]
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.follow(site.claims, "data", lambda claim: claim is None)
    await site.client.follow(VOLUMES, volume, lambda volume: volume is None)
    assert not image.exists()


async def test_a_filesystem_volume_goes_with_all_that_is_in_it(site: Site) -> None:
    await made(site, blank("data", storageClassName="local-filesystem"))
    image = await image_behind(site, "data")
    volume = (await claim_of(site))["spec"]["volumeName"]
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.follow(VOLUMES, volume, lambda volume: volume is None)
    assert not image.parent.exists()


async def test_the_claim_outlives_its_datavolume_as_long_as_a_pod_uses_it(site: Site) -> None:
    await site.ready_volume("data")
    await site.client.create(site.pods, consumer("user", "data"))
    await site.client.follow(site.pods, "user", lambda pod: phase_of(pod) == "Running")
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.follow(site.datavolumes, "data", lambda volume: volume is None)
    states = await site.client.follow(
        site.claims, "data", lambda claim: "deletionTimestamp" in (claim or {})["metadata"]
    )
    assert (states[-1] or {})["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    await site.client.delete(f"{site.pods}/user")
    await site.client.follow(site.claims, "data", lambda claim: claim is None)


async def test_foreground_deletion_keeps_the_datavolume_until_the_claim_is_gone(site: Site) -> None:
    await site.ready_volume("data")
    await site.client.patch(f"{site.claims}/data", HELD)
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    assert (await site.client.call("DELETE", f"{site.datavolumes}/data", options)).code == 200
    await site.client.follow(site.claims, "data", lambda claim: "deletionTimestamp" in (claim or {})["metadata"])
    volume = await site.client.get(f"{site.datavolumes}/data")
    assert volume["metadata"]["finalizers"] == ["foregroundDeletion"]
    await site.client.patch(f"{site.claims}/data", FREE)
    await site.client.follow(site.datavolumes, "data", lambda volume: volume is None)
    assert (await site.client.call("GET", f"{site.claims}/data")).code == 404


async def test_a_claim_that_an_older_datavolume_left_holds_the_new_one_up(site: Site) -> None:
    old = await site.client.create(site.datavolumes, datavolume("data"))
    await claim_of(site)
    await site.client.patch(f"{site.claims}/data", HELD)
    await site.client.delete(f"{site.datavolumes}/data")
    await site.client.delete(f"{site.claims}/data")
    await site.client.create(site.datavolumes, datavolume("data"))
    text = 'Resource "data" marked for deletion'
    await volume_until(site, "data", "Bound", "False", "ErrResourceMarkedForDeletion", text)
    await site.client.patch(f"{site.claims}/data", FREE)
    states = await site.client.follow(site.datavolumes, "data", lambda volume: phase_of(volume) == "Succeeded")
    assert (states[-1] or old)["metadata"]["uid"] != old["metadata"]["uid"]


# Growth


async def ask(site: Site, size: str) -> Answer:
    """Asks for another size of the claim ``data``."""
    patch = {"spec": {"resources": {"requests": {"storage": size}}}}
    return await site.client.call("PATCH", f"{site.claims}/data", patch, content_type="application/merge-patch+json")


async def claim_until(site: Site, *, capacity: str | None = None, state: str | None = None) -> Object:
    """The claim ``data`` as soon as it has this capacity, or this state of its growth."""

    def reached(claim: Object | None) -> bool:
        status = (claim or {}).get("status", {})
        allocated = status.get("allocatedResourceStatuses", {}).get("storage")
        return bool(capacity is None or status["capacity"]["storage"] == capacity) and bool(allocated == state)

    states = await site.client.follow(site.claims, "data", reached)
    assert states[-1] is not None
    return states[-1]


def growing_of(claim: Object) -> list[str]:
    """The conditions that tell of growth; Kubernetes' own of claims that no pod uses is none of them."""
    return [each["type"] for each in claim["status"].get("conditions", []) if each["type"] != "Unused"]


async def test_a_block_claim_that_asks_for_more_gets_it(site: Site) -> None:
    await site.ready_volume("data")
    assert (await ask(site, "32Mi")).code == 200
    claim = await claim_until(site, capacity="32Mi")
    assert growing_of(claim) == []
    volume = await site.client.get(f"{VOLUMES}/{claim['spec']['volumeName']}")
    assert volume["spec"]["capacity"]["storage"] == "32Mi"
    assert (await image_behind(site, "data")).stat().st_size == 32 * MIB
    await site.event_until("data", "VolumeResizeSuccessful")


async def test_growth_leaves_the_datavolume_as_it_is_and_is_not_taken_back(site: Site) -> None:
    await site.ready_volume("data")
    assert (await ask(site, "32Mi")).code == 200
    await claim_until(site, capacity="32Mi")
    volume = await site.client.patch(f"{site.datavolumes}/data", {"metadata": {"labels": {"look": "again"}}})
    assert volume["spec"]["storage"]["resources"]["requests"]["storage"] == "16Mi"
    await site.ready_volume("other")  # the controller has seen what came before
    assert (await claim_of(site))["spec"]["resources"]["requests"]["storage"] == "32Mi"


async def test_a_filesystem_claim_grows_when_a_pod_that_uses_it_runs(site: Site) -> None:
    await made(site, blank("data", storageClassName="local-filesystem"))
    assert (await ask(site, "32Mi")).code == 200
    waiting = await claim_until(site, state="NodeResizePending")
    text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
    assert condition_of(waiting, "FileSystemResizePending") == ("True", "", text)
    assert waiting["status"]["capacity"]["storage"] != "32Mi"
    await site.client.create(site.pods, consumer("user", "data", block=False))
    claim = await claim_until(site, capacity="32Mi")
    assert condition_of(claim, "FileSystemResizePending")[0] == ""


async def test_what_the_storage_can_never_give_is_infeasible_until_less_is_asked_for(site: Site) -> None:
    name = await storage_class(site, "small", parameters={"capacity": "64Mi"})
    await made(site, blank("data", storageClassName=name))
    assert (await ask(site, "65Mi")).code == 200
    claim = await claim_until(site, state="ControllerResizeInfeasible")
    assert claim["status"]["capacity"]["storage"] == "16Mi"
    text = "code = OutOfRange desc = 68157440 bytes are more than the pool's 67108864"
    assert condition_of(claim, "ControllerResizeError")[2].endswith(text)
    await site.event_until("data", "VolumeResizeFailed")
    assert (await ask(site, "32Mi")).code == 200
    assert growing_of(await claim_until(site, capacity="32Mi")) == []


async def test_what_the_storage_cannot_give_now_is_tried_again(site: Site) -> None:
    name = await storage_class(site, "shared", parameters={"capacity": "64Mi"})
    await made(site, blank("other", size="40Mi", storageClassName=name))
    await made(site, blank("data", storageClassName=name))
    assert (await ask(site, "32Mi")).code == 200
    states = await site.client.follow(
        site.claims, "data", lambda claim: "ResourceExhausted" in condition_of(claim, "ControllerResizeError")[2]
    )
    allocated = (states[-1] or {})["status"]["allocatedResourceStatuses"]["storage"]
    assert allocated == "ControllerResizeInProgress"
    await site.client.delete(f"{site.datavolumes}/other")
    await claim_until(site, capacity="32Mi")


async def test_a_class_that_does_not_allow_expansion_is_refused_by_kube_apiserver(site: Site) -> None:
    await made(site, blank("data", storageClassName="local-legacy"))
    answer = await ask(site, "32Mi")
    text = (
        'persistentvolumeclaims "data" is forbidden: only dynamically provisioned pvc can be resized and the '
        "storageclass that provisions the pvc must support resize"
    )
    assert answer.refusal == (403, "Forbidden", text)


async def test_growth_beyond_the_quota_is_refused_by_kube_apiserver(site: Site) -> None:
    await site.ready_volume("data")
    await site.quota({"requests.storage": "20Mi"})
    answer = await ask(site, "32Mi")
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert "exceeded quota: quota, requested: requests.storage=16Mi" in answer.body["message"]


async def test_a_claim_cannot_become_smaller_than_it_is(site: Site) -> None:
    await site.ready_volume("data")
    answer = await ask(site, "8Mi")
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
