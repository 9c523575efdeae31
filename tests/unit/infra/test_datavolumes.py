from __future__ import annotations

from typing import Any

import pytest

from kubevirt_csi.domain import attachments
from kubevirt_csi.domain.attachments import Attachment
from kubevirt_csi.domain.infra_volumes import Condition, NewVolume
from kubevirt_csi.domain.volumes import Bus, Content
from kubevirt_csi.infra import datavolumes

ENTRY = Attachment(node_id="tenant-a/worker-1", vm="worker-1", vm_uid="u", process="p", attempted_at=1.5)
ATTACHED = attachments.encode({"worker-1": ENTRY}) or ""


def dv(annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": "pvc-1", "uid": "dv-uid", "annotations": annotations}
    return {"metadata": metadata, "spec": {"storage": {"resources": {"requests": {"storage": "1Gi"}}}}, **more}


def pvc(annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": "pvc-1", "uid": "pvc-uid", "resourceVersion": "7", "annotations": annotations}
    spec = {"volumeMode": "Block", "resources": {"requests": {"storage": "2Gi"}}}
    return {"metadata": metadata, "spec": spec, **more}


def joined(data_volume: dict[str, Any] | None, claim: dict[str, Any] | None) -> Any:
    return datavolumes.join(
        "pvc-1",
        datavolumes.data_volume(data_volume) if data_volume else None,
        datavolumes.claim(claim) if claim else None,
    )


def test_the_claim_says_what_is_true_where_both_are_annotated() -> None:
    volume = joined(
        dv({"csi.kubevirt.io/content": "none", "csi.kubevirt.io/serial": "abc", "other/key": "x"}),
        pvc({"csi.kubevirt.io/content": "used", "csi.kubevirt.io/attachments": ATTACHED}),
    )
    assert volume.content is Content.USED
    assert volume.serial == "abc"
    assert volume.attachments == {"worker-1": ENTRY}
    assert volume.size_bytes == 2 * 1024**3  # a Block claim is what the guest sees


def test_a_volume_of_the_predecessor_has_its_uid_as_serial_and_counts_as_used() -> None:
    volume = joined(dv(), pvc())
    assert (volume.serial, volume.bus, volume.content) == ("dv-uid", None, Content.USED)
    assert (volume.name, volume.digest, volume.override, volume.attachments) == (None, None, None, {})


def test_a_bare_claim_is_a_volume_of_its_own_size() -> None:
    volume = joined(None, pvc({"csi.kubevirt.io/serial": "abc", "csi.kubevirt.io/bus": "virtio"}))
    assert (volume.serial, volume.bus, volume.size_bytes) == ("abc", Bus.VIRTIO, 2 * 1024**3)


def test_a_bare_claim_that_nobody_annotated_is_plugged_with_its_own_uid_and_never_without_a_serial() -> None:
    assert joined(None, pvc()).serial == "pvc-uid"


def test_a_filesystem_claim_has_less_than_its_size_unless_the_data_volume_names_the_disks() -> None:
    claim = pvc()
    claim["spec"]["volumeMode"] = "Filesystem"
    by_claim = dv(spec={"pvc": {"resources": {"requests": {"storage": "2Gi"}}}})
    assert joined(dv(), claim).size_bytes == 1024**3
    assert joined(by_claim, claim).size_bytes == joined(None, claim).size_bytes < 2 * 1024**3
    assert joined(by_claim, pvc()).size_bytes == 2 * 1024**3


def test_conditions_and_phase_of_the_data_volume_are_kept_for_error_texts() -> None:
    conditions = [{"type": "Bound", "status": "False", "reason": "ErrExceededQuota", "message": "exceeded quota: q"}]
    found = datavolumes.data_volume(dv(status={"phase": "Pending", "conditions": conditions})).value
    assert found.phase == "Pending"
    assert found.conditions == (
        Condition(type="Bound", status="False", reason="ErrExceededQuota", message="exceeded quota: q"),
    )


def test_a_bound_claim_has_a_capacity_and_a_pending_one_has_none() -> None:
    status = {"phase": "Bound", "capacity": {"storage": "3Gi"}}
    assert datavolumes.claim(pvc(status=status)).value.capacity_bytes == 3 * 1024**3
    assert datavolumes.claim(pvc(status={"phase": "Pending"})).value.capacity_bytes is None


@pytest.mark.parametrize(
    "annotations",
    [
        {"csi.kubevirt.io/attachments": "{"},
        {"csi.kubevirt.io/attachments": '{"worker-1": {}}'},
        {"csi.kubevirt.io/content": "maybe"},
        {"csi.kubevirt.io/bus": "ide"},
    ],
)
def test_annotations_that_nobody_of_ours_wrote_are_refused_and_not_guessed_at(annotations: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ, the adapter names the object
        joined(dv(), pvc(annotations))


def test_a_raw_block_volume_for_several_nodes_asks_for_both_modes_and_others_leave_them_to_the_profile() -> None:
    def storage(*, read_write_many: bool) -> Any:
        volume = NewVolume(
            id="v",
            name="V",
            size_bytes=5 * 1024**2,
            storage_class=None,
            read_write_many=read_write_many,
            serial="s",
            bus=Bus.SCSI,
            digest="d",
        )
        return datavolumes.new(volume, {"tenant": "a"})["spec"]["storage"]

    assert storage(read_write_many=False) == {"resources": {"requests": {"storage": "5Mi"}}}
    assert storage(read_write_many=True) == {
        "resources": {"requests": {"storage": "5Mi"}},
        "accessModes": ["ReadWriteMany"],
        "volumeMode": "Block",
    }


@pytest.mark.parametrize("options", ["", "-m 5"])
def test_mkfs_options_are_written_once_and_read_from_either_half(options: str) -> None:
    volume = NewVolume(
        id="v",
        name="V",
        size_bytes=2**30,
        storage_class=None,
        read_write_many=False,
        serial="s",
        bus=Bus.SCSI,
        digest="d",
        mkfs_options=options,
    )
    written = datavolumes.new(volume, {})["metadata"]["annotations"]
    assert ("csi.kubevirt.io/mkfs-options" in written) == bool(options)
    found = joined(dv(written), None)
    assert found.mkfs_options == joined(None, pvc(written)).mkfs_options == options
    half = datavolumes.half_of(found)
    assert half is not None
    assert half.annotations.get("csi.kubevirt.io/mkfs-options", "") == options


def test_an_override_is_read_with_what_has_become_of_it() -> None:
    volume = joined(
        dv(), pvc({"csi.kubevirt.io/format-override": "s", "csi.kubevirt.io/format-override-in-force": "t"})
    )
    assert (volume.override, volume.override_in_force) == ("s", "t")
