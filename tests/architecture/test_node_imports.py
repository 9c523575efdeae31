"""The node stays small: what it loads is measured in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from kubevirt_csi.cli import COMPOSITION_ROOTS

# Costs in memory: 50 MiB and 12 MiB.
TOO_BIG = ("kubernetes_asyncio", "aiohttp")
# A node that serves must fit into 44 MiB; what it works with comes on top of what it loads.
LARGEST_LOADED_MIB = 41
# rich is installed here for people and not in the node's image; structlog loads it where it finds it.
PROGRAM = """
import importlib, json, sys
sys.modules["rich"] = None
for module in sys.argv[1:]:
    importlib.import_module(module)
with open("/proc/self/status") as status:
    kibibytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
print(json.dumps({"modules": sorted(sys.modules), "mebibytes": kibibytes / 1024}))
"""


def loaded_by(*modules: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules], check=True, capture_output=True, text=True, timeout=60
    )
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


@pytest.mark.parametrize("module", ["kubevirt_csi.cli", COMPOSITION_ROOTS["node"]])
def test_the_node_loads_neither_the_kubernetes_client_nor_aiohttp(module: str) -> None:
    modules = loaded_by(module)["modules"]
    assert "kubevirt_csi" in modules
    assert [name for name in modules if name.partition(".")[0] in TOO_BIG] == []


def test_the_node_loads_no_messages_that_it_never_answers() -> None:
    """Each costs a millisecond of every start, and forty in an emulated guest (see protos/halving.py)."""
    modules = loaded_by(COMPOSITION_ROOTS["node"])["modules"]
    assert "kubevirt_csi._csi.csi.v1" in modules
    assert [name for name in modules if name.endswith(".rest") or name.startswith("dateutil")] == []


def test_what_the_node_loads_leaves_room_for_its_work() -> None:
    assert loaded_by("kubevirt_csi.cli", COMPOSITION_ROOTS["node"])["mebibytes"] <= LARGEST_LOADED_MIB
