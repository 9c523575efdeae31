"""StorageClass parameters: known ones understood, unknown ones refused."""

from __future__ import annotations

import pytest

from kubevirt_csi.domain.classes import ClassParameters
from kubevirt_csi.domain.volumes import Bus
from kubevirt_csi.errors import InvalidArgument


def test_an_empty_class_is_scsi_on_the_infra_clusters_default_class() -> None:
    assert ClassParameters.parse({}) == ClassParameters(infra_storage_class=None, bus=Bus.SCSI)


def test_both_parameters_are_read() -> None:
    parameters = {"infraStorageClassName": "fast", "bus": "virtio"}
    assert ClassParameters.parse(parameters) == ClassParameters(infra_storage_class="fast", bus=Bus.VIRTIO)


def test_mkfs_options_are_kept_in_one_spelling_and_leave_no_trace_where_there_are_none() -> None:
    assert ClassParameters.parse({"mkfsOptions": " -m  5 -i\t8192"}).mkfs_options == "-m 5 -i 8192"
    assert ClassParameters.parse({"mkfsOptions": "-m 5"}).canonical()["mkfsOptions"] == "-m 5"
    assert "mkfsOptions" not in ClassParameters.parse({"mkfsOptions": ""}).canonical()


def test_the_sidecars_keys_do_not_count() -> None:
    parameters = {"csi.storage.k8s.io/pvc/name": "x", "csi.storage.k8s.io/fstype": "xfs", "fsType": "ext4"}
    assert ClassParameters.parse(parameters) == ClassParameters()


@pytest.mark.parametrize("key", ["Bus", "infraStorageClass", "csi.storage.k8s.io"])
def test_an_unknown_key_is_refused_with_the_known_ones(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{key}; this driver knows infraStorageClassName, bus"):
        ClassParameters.parse({key: "x"})


@pytest.mark.parametrize("bus", ["sata", "SCSI", "usb"])
def test_a_bus_that_cannot_be_hot_plugged_is_refused(bus: str) -> None:
    with pytest.raises(InvalidArgument, match="scsi, virtio"):
        ClassParameters.parse({"bus": bus})


@pytest.mark.parametrize("name", ["../x", "Fast", "fast\n", "f" * 254, ".fast", "fast.", "a b", "\x00"], ids=repr)
def test_what_cannot_be_a_storage_class_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"infraStorageClassName: .* cannot be the name of a StorageClass"):
        ClassParameters.parse({"infraStorageClassName": name})


@pytest.mark.parametrize("name", ["fast", "f" * 253, "rook-ceph.block"])
def test_the_name_of_a_storage_class_may_have_dots_and_253_characters(name: str) -> None:
    assert ClassParameters.parse({"infraStorageClassName": name}).infra_storage_class == name
