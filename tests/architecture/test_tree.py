"""Rules about the tree that no linter checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("kubevirt_csi", "protos", "e2e", "tests", "bench")
GENERATED = ROOT / "kubevirt_csi" / "_csi"
LONGEST = 400
# Names under which things gather that have no name of their own.
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "shared"}


def sources() -> list[Path]:
    """Every Python file that people write."""
    found = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [path for path in found if not path.is_relative_to(GENERATED)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_a_file_has_one_subject_and_so_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


def test_no_module_is_named_after_nothing() -> None:
    assert [
        name_of(path) for path in sources() if BANNED_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
    ] == []


def imported(path: Path) -> set[str]:
    """The dotted names that a file imports, `from a import b` as a.b."""
    found: set[str] = set()
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            found |= {f"{statement.module}.{alias.name}" for alias in statement.names}
    return found


def test_nobody_uses_mocks() -> None:
    uses = {name_of(path): [name for name in imported(path) if name.startswith("unittest")] for path in sources()}
    assert {path: names for path, names in uses.items() if names} == {}


def test_the_rules_look_at_the_whole_product() -> None:
    assert ROOT / "kubevirt_csi" / "rpc" / "calls.py" in sources()
    assert len(sources()) > 50
