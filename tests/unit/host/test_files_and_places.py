"""Records, and the folders and files that mounts are put on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubevirt_csi.errors import FailedPrecondition, Internal
from kubevirt_csi.host.places import HostPlaces
from kubevirt_csi.host.records import HostRecords
from kubevirt_csi.ports.host import Record


def everything_below(folder: Path) -> list[Path]:
    return list(folder.glob("**/*"))


def files_below(folder: Path) -> list[Path]:
    return [path for path in everything_below(folder) if not path.is_dir()]


@pytest.fixture
def places() -> HostPlaces:
    return HostPlaces()


@pytest.mark.parametrize("volume_id", ["pvc-1", "../../etc/passwd", "Some Volume/1", "x" * 128, "."])
async def test_a_record_is_found_again_after_a_restart_whatever_the_id(tmp_path: Path, volume_id: str) -> None:
    folder = tmp_path / "state" / "volumes"
    assert await HostRecords(folder).recall(volume_id) is None
    await HostRecords(folder).remember(Record(volume_id=volume_id, serial="s1"))
    await HostRecords(folder).remember(Record(volume_id=volume_id, serial="s2"))
    assert await HostRecords(folder).recall(volume_id) == Record(volume_id=volume_id, serial="s2")
    (file,) = files_below(tmp_path)
    assert file.parent == folder


async def test_a_damaged_record_is_an_error_and_not_a_fresh_volume(tmp_path: Path) -> None:
    (tmp_path / "pvc-1.json").write_text("{")
    with pytest.raises(Internal, match="damaged"):
        await HostRecords(tmp_path).recall("pvc-1")


async def test_all_records_are_known_but_those_that_are_damaged(tmp_path: Path) -> None:
    records = HostRecords(tmp_path / "volumes")
    assert await records.known() == ()
    kept = (Record(volume_id="Some Volume/2", serial="s2"), Record(volume_id="pvc-1", serial="s1"))
    for record in kept:
        await records.remember(record)
    (tmp_path / "volumes" / "pvc-3.json").write_text("{")
    assert await records.known() == kept


async def test_a_target_is_made_once_and_removed_once(places: HostPlaces, tmp_path: Path) -> None:
    for make, name in ((places.make_directory, "folder"), (places.make_file, "file")):
        path = str(tmp_path / name)
        await make(path)
        await make(path)
        await places.remove(path)
        await places.remove(path)
    assert everything_below(tmp_path) == []


async def test_a_target_in_a_missing_folder_is_an_error(places: HostPlaces, tmp_path: Path) -> None:
    with pytest.raises(Internal, match="cannot be made"):
        await places.make_directory(str(tmp_path / "missing" / "target"))


async def test_what_holds_something_is_neither_covered_nor_removed(places: HostPlaces, tmp_path: Path) -> None:
    folder, file, link = tmp_path / "folder", tmp_path / "file", tmp_path / "link"
    folder.mkdir()
    (folder / "data").write_text("kept")
    file.write_text("kept")
    link.symlink_to(folder)
    for path in (folder, file, link):
        with pytest.raises(Internal, match="is kept"):
            await places.remove(str(path))
    with pytest.raises(FailedPrecondition):
        await places.make_directory(str(folder))
    with pytest.raises(FailedPrecondition):
        await places.make_file(str(file))
    assert (folder / "data").read_text() == file.read_text() == "kept"


async def test_a_path_is_spelt_as_the_kernel_does(places: HostPlaces, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    assert places.canonical(f"{tmp_path}/alias/../alias//target/") == str(tmp_path / "real" / "target")


async def test_only_a_block_device_node_has_a_number(places: HostPlaces, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert await places.device_at(str(tmp_path / "file")) is None
    assert await places.device_at(str(tmp_path / "missing")) is None
    assert await places.device_at("/dev/null") is None
