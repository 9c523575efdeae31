"""How images are cached and put together, without making one."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from e2e.lab.images.artefacts import KEPT_PER_KIND, artefact, digest
from e2e.lab.images.commands import ImageError, run
from e2e.lab.images.initrd import load_order
from e2e.lab.images.seed import write_idle_seed, write_seed
from e2e.lab.machines.commandline import hotplug_ports
from e2e.lab.machines.hotplug import letters
from e2e.lab.machines.qemu import _pack


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBEVIRT_CSI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/images"


def silent(_: str) -> None:
    """Progress that nobody reads."""


def fill(folder: Path) -> None:
    (folder / "file").write_text("content")


def fail(_: Path) -> None:
    raise ImageError("the program failed")


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_an_artefact_is_made_once() -> None:
    made = artefact("tree", digest("a"), make=fill, progress=silent)
    assert artefact("tree", digest("a"), make=fail, progress=silent) == made
    assert (made / "file").read_text() == "content"


def test_a_failed_artefact_leaves_nothing(cache: Path) -> None:
    with pytest.raises(ImageError):
        artefact("tree", digest("a"), make=fail, progress=silent)
    assert names(cache) == []


def test_what_a_killed_run_left_is_deleted_by_the_next_one(cache: Path) -> None:
    left = cache / f".tree-{digest('old')}-abcdefgh"
    left.mkdir(parents=True)
    made = artefact("tree", digest("a"), make=fill, progress=silent)
    assert names(cache) == [made.name]


def test_only_the_latest_artefacts_of_a_kind_are_kept(cache: Path) -> None:
    other = artefact("other", digest("a"), make=fill, progress=silent)
    made = []
    for number in range(KEPT_PER_KIND + 2):
        made.append(artefact("tree", digest(str(number)), make=fill, progress=silent))
        os.utime(made[-1], (number, number))
    assert names(cache) == sorted(path.name for path in [other, *made[-KEPT_PER_KIND:]])


def test_a_digest_changes_with_content_and_names_but_not_with_byte_code(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    first = digest(folder)
    (folder / "__pycache__/a.pyc").write_text("compiled")
    assert digest(folder) == first
    (folder / "a.py").rename(folder / "b.py")
    renamed = digest(folder)
    (folder / "b.py").write_text("2")
    assert len({first, renamed, digest(folder)}) == 3


def test_a_program_that_fails_is_quoted() -> None:
    with pytest.raises(ImageError, match=r"sh -c echo words >&2; exit 3 ended with 3:\nwords"):
        run(["sh", "-c", "echo words >&2; exit 3"], timeout=10)


def test_a_missing_program_points_to_the_list_of_packages() -> None:
    with pytest.raises(ImageError, match=r"cannot run no-such-program: .*e2e/lab/packages.txt"):
        run(["no-such-program"], timeout=10)


def test_modules_are_loaded_after_what_they_need(tmp_path: Path) -> None:
    dependencies = tmp_path / "modules.dep"
    dependencies.write_text(
        "kernel/drivers/virtio_pci.ko: kernel/drivers/virtio-ring.ko kernel/drivers/virtio.ko\n"
        "kernel/drivers/virtio_blk.ko: kernel/drivers/virtio-ring.ko\n"
        "kernel/drivers/virtio-ring.ko: kernel/drivers/virtio.ko\n"
        "kernel/drivers/virtio.ko:\n"
    )
    order = [Path(file).stem for file in load_order(dependencies, ["virtio_pci", "virtio_blk", "ext4"])]
    assert order == ["virtio", "virtio-ring", "virtio_pci", "virtio_blk"]


@pytest.mark.parametrize(("index", "name"), [(0, "a"), (25, "z"), (26, "aa"), (51, "az"), (52, "ba"), (702, "aaa")])
def test_disks_are_counted_in_letters(index: int, name: str) -> None:
    assert letters(index) == name


@pytest.mark.parametrize(("memory_mib", "count"), [(1024, 3), (2048, 3), (2049, 11), (8192, 11)])
def test_free_ports_depend_on_the_memory(memory_mib: int, count: int) -> None:
    assert len(hotplug_ports(memory_mib)) == count


def test_a_seed_tells_kubelet_its_port_and_network(tmp_path: Path) -> None:
    write_seed(
        tmp_path / "seed",
        node="worker-1",
        api_port=6443,
        kubelet_port=40001,
        kubeconfig="a kubeconfig",
        client_ca="a CA",
        pod_subnet="10.244.7.0/24",
    )
    seed = tmp_path / "seed"
    configuration = json.loads((seed / "kubelet/config.yaml").read_text())
    network = json.loads((seed / "cni.conflist").read_text())
    assert configuration["port"] == 40001
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.244.7.0/24"}]]
    assert (seed / "api-server").read_text() == "10.0.2.2:6443\n"
    assert (seed / "kubelet/kubeconfig").stat().st_mode & 0o077 == 0


def test_a_seed_disk_is_a_tar_of_the_folder_for_root_only(tmp_path: Path) -> None:
    write_idle_seed(tmp_path / "seed", node="worker-1")
    _pack(tmp_path / "seed", tmp_path / "seed.tar")
    with tarfile.open(tmp_path / "seed.tar") as tar:
        assert sorted(tar.getnames()) == [".", "./mode", "./node"]
    assert (tmp_path / "seed.tar").stat().st_mode & 0o077 == 0
