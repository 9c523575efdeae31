"""Which way hot-plugs go, by KubeVirt's version and feature gates; and the KubeVirt object that says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.api.standin.conftest import StandIn
from tests.api.standin.hotplugging import stopped_vm
from tests.api.standin.modes import NEWEST, OBJECT, KubeVirt, Mode
from tests.api.standin.site import Site, add_options
from tests.api.standin.talking import Client, talk
from tests.api.standin.test_cluster import CRDS, allow

HOTPLUG, DECLARATIVE = "HotplugVolumes", "DeclarativeHotplugVolumes"
# A bus that queued requests must not have, while the VM's spec may. Only tried, so that nothing is stored.
PROBE = add_options("probe", disk={"bus": "sata"}) | {"dryRun": ["All"]}
ANSWERS: dict[int, Mode] = {422: "legacy", 202: "declarative", 400: "off"}


@pytest.mark.parametrize(
    ("version", "enabled", "disabled", "mode"),
    [
        pytest.param("v1.0.0", [], [], "off", id="v1.0: HotplugVolumes is Alpha and off"),
        pytest.param("v1.5.3", [], [], "off", id="v1.5: HotplugVolumes is Alpha and off"),
        pytest.param("v1.5.3", [HOTPLUG], [], "legacy", id="v1.5: HotplugVolumes switched on"),
        pytest.param("v1.5.3", [DECLARATIVE], [], "off", id="v1.5: DeclarativeHotplugVolumes is unknown"),
        pytest.param("v1.6.0", [], [], "off", id="v1.6: both Alpha and off"),
        pytest.param("v1.6.0", [DECLARATIVE], [], "declarative", id="v1.6: DeclarativeHotplugVolumes switched on"),
        pytest.param("v1.8.2", [], [], "off", id="v1.8: both Alpha and off"),
        pytest.param("v1.8.2", [HOTPLUG, DECLARATIVE], [], "legacy", id="v1.8: both on, legacy wins"),
        pytest.param("v1.7.0", [DECLARATIVE], [DECLARATIVE], "declarative", id="v1.7: nothing can be disabled yet"),
        pytest.param(NEWEST, [], [], "declarative", id="v1.9: DeclarativeHotplugVolumes is Beta and on"),
        pytest.param(NEWEST, [], [DECLARATIVE], "off", id="v1.9: DeclarativeHotplugVolumes disabled"),
        pytest.param(NEWEST, [HOTPLUG], [], "legacy", id="v1.9: HotplugVolumes is Deprecated and can be switched on"),
        pytest.param(NEWEST, [HOTPLUG], [DECLARATIVE], "legacy", id="v1.9: HotplugVolumes on, the other disabled"),
    ],
)
async def test_version_and_gates_decide_the_mode(
    site: Site, kubevirt: KubeVirt, *, version: str, enabled: Sequence[str], disabled: Sequence[str], mode: Mode
) -> None:
    vm = await stopped_vm(site)
    await kubevirt.configure(version=version, enabled=enabled, disabled=disabled)
    assert ANSWERS[(await site.add(vm, PROBE)).code] == mode


async def test_the_kubevirt_object_is_readable_for_every_account_and_writable_for_none(
    site: Site, standin: StandIn, tmp_path: Path
) -> None:
    await allow(site, "anybody", [])
    kubeconfig = await standin.management.token_kubeconfig(
        tmp_path / "anybody.kubeconfig", namespace=site.namespace, account="anybody"
    )
    async with talk(kubeconfig) as anybody:
        found = await anybody.get(f"{OBJECT}/kubevirt")
        denied = await anybody.call("PATCH", f"{OBJECT}/kubevirt", {}, content_type="application/merge-patch+json")
    assert found["status"]["observedKubeVirtVersion"] == NEWEST
    assert found["status"]["phase"] == "Deployed"
    assert denied.code == 403


async def test_the_kind_kubevirt_is_as_the_operator_installs_it(client: Client) -> None:
    spec = (await client.get(f"{CRDS}/kubevirts.kubevirt.io"))["spec"]
    assert (spec["names"]["kind"], spec["names"]["shortNames"]) == ("KubeVirt", ["kv", "kvs"])
    assert [version["name"] for version in spec["versions"]] == ["v1", "v1alpha3"]
    assert all("status" in version["subresources"] for version in spec["versions"])


async def test_the_configuration_says_what_is_installed_first_and_a_restart_leaves_it(
    client: Client, standin: StandIn, kubevirt: KubeVirt
) -> None:
    config = standin.directory / "config.json"
    before = config.read_text()
    release = {"version": "v1.8.1", "feature_gates": [DECLARATIVE], "disabled_feature_gates": ["Snapshot"]}
    await standin.kill()
    try:
        await client.delete(f"{OBJECT}/kubevirt")
        config.write_text(json.dumps(json.loads(before) | {"kubevirt": release}))
        await standin.start()
        first = await client.get(f"{OBJECT}/kubevirt")
    finally:
        config.write_text(before)
        await standin.kill()
        await standin.start()
    again = await client.get(f"{OBJECT}/kubevirt")
    await kubevirt.become("declarative")
    assert first["spec"]["configuration"]["developerConfiguration"] == {
        "featureGates": [DECLARATIVE],
        "disabledFeatureGates": ["Snapshot"],
    }
    assert first["status"]["observedKubeVirtVersion"] == "v1.8.1"
    assert (again["metadata"]["uid"], again["spec"]) == (first["metadata"]["uid"], first["spec"])
