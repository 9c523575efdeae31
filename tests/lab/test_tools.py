"""The pinned programs: what is built is what go.mod names, and says so."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from e2e.tools.build import GROUPS, TOOLS, binary_name, build, cache_key, tools_of


def pinned_kubernetes() -> str:
    [version] = re.findall(r"k8s\.io/kubernetes (v\S+)", (TOOLS / "kubernetes" / "go.mod").read_text())
    return str(version)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_found_again_by_its_content_and_has_a_program_for_every_tool(group: str) -> None:
    binaries = build(group)
    assert binaries.name == cache_key(group)
    assert {binary.name for binary in binaries.iterdir()} == {binary_name(tool) for tool in tools_of(group)}


def test_the_kubernetes_programs_know_their_version() -> None:
    kubectl = build("kubernetes") / "kubectl"
    printed = subprocess.run(
        [kubectl, "version", "--client", "--output=json"], check=True, capture_output=True, timeout=60
    ).stdout
    assert json.loads(printed)["clientVersion"]["gitVersion"] == pinned_kubernetes()
