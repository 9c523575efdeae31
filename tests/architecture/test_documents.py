"""What the documents point at exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DATA_SAFETY = ROOT / "docs/explanation/data-safety.md"
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
TEST = re.compile(r"`(test_\w+)`")
FILE = re.compile(r"`(tests/[\w/.]+)`")


def names_of_tests() -> Iterator[str]:
    """The name of every test function."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_every_proof_of_data_safety_exists() -> None:
    text = DATA_SAFETY.read_text()
    named = set(TEST.findall(text))
    assert len(named) > 40
    assert named - set(names_of_tests()) == set()
    assert [path for path in FILE.findall(text) if not (ROOT / path).exists()] == []


def test_every_rule_of_data_safety_has_a_proof() -> None:
    rules = [line for line in DATA_SAFETY.read_text().splitlines() if line.startswith("| ") and "| rule" not in line]
    assert [rule for rule in rules if not TEST.search(rule)] == []
