from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from kubevirt_csi.infra.cluster import Infra
from tests.unit.infra.fake_api import FakeApi


def infra_of(kubeconfig: Path, **more: str) -> Infra:
    return Infra(kubeconfig=kubeconfig, namespace="tenant-a", labels={"tenant": "a"}, **more)


def test_without_labels_there_is_no_tenant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without labels"):
        Infra(kubeconfig=tmp_path / "kubeconfig", namespace="tenant-a", labels={})


def test_a_wrong_selector_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no requirement"):
        infra_of(tmp_path / "kubeconfig", vm_selector="a in b")


def test_before_it_runs_every_cache_says_that_it_has_nothing_yet(tmp_path: Path) -> None:
    infra = infra_of(tmp_path / "kubeconfig")
    assert not infra.synced
    assert infra.troubles == dict.fromkeys(
        (
            "datavolumes.cdi.kubevirt.io",
            "persistentvolumeclaims",
            "virtualmachines.kubevirt.io",
            "virtualmachineinstances.kubevirt.io",
        ),
        "not listed yet",
    )


async def test_a_cache_that_dies_ends_the_whole_run(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lists(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            return web.json_response({"status": {"allowed": True}})
        metadata = {"name": "a", "labels": {"tenant": "a"}}
        body = {"kind": "XList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": metadata}]}
        return web.json_response(body)

    def defective(_: object) -> None:
        raise ZeroDivisionError

    api.answers(lists)
    monkeypatch.setattr("kubevirt_csi.infra.virtualmachines.instance", defective)
    async with infra_of(api.kubeconfig(tmp_path / "kubeconfig")) as infra:
        with pytest.raises(ExceptionGroup) as ended:
            await infra.run()
    assert ended.group_contains(ZeroDivisionError)
