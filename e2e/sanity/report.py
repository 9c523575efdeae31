"""Reads the report that csi-sanity (Ginkgo) writes in JUnit's format.

A report that is missing, cut off or of a run in which nothing ran is an error: silence must never look like success.
Ginkgo counts its set-up and clean-up as test cases too; they are told apart by the mark before the name.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["passed", "failed", "skipped"]

SPEC_MARK = "[It] "
# What Ginkgo writes as a test case's status; every other one (failed, panicked, timedout, interrupted) is a failure.
OUTCOMES: dict[str, Outcome] = {"passed": "passed", "skipped": "skipped", "pending": "skipped"}


class ReportError(Exception):
    """There is no report of a run; the text says what was found instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One spec of csi-sanity: how it ended, and why, in csi-sanity's words."""

    name: str
    outcome: Outcome
    words: str = ""


def read(path: Path) -> list[Spec]:
    """The specs in the report, in their order; failed set-ups and clean-ups are among them.

    Raises:
        ReportError: there is none, it cannot be read, or no spec ran.
    """
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - written by our own csi-sanity
    except FileNotFoundError as error:
        raise ReportError(f"csi-sanity has left no report at {path}") from error
    except ET.ParseError as error:
        raise ReportError(f"the report {path} is cut off or no XML: {error}") from error
    cases = [_spec(case) for case in root.iter("testcase")]
    specs = [spec for spec, is_spec in cases if is_spec or spec.outcome == "failed"]
    if not any(spec.outcome != "skipped" for spec in specs):
        raise ReportError(f"no spec ran, says the report {path}: {len(specs)} are skipped")
    return specs


def count(specs: Sequence[Spec], outcome: Outcome) -> int:
    """How many ended so."""
    return sum(spec.outcome == outcome for spec in specs)


def _spec(case: ET.Element) -> tuple[Spec, bool]:
    """The test case, and whether it is a spec."""
    name, status = case.get("name", ""), case.get("status", "")
    told = next((child for tag in ("failure", "error", "skipped") if (child := case.find(tag)) is not None), None)
    words = "" if told is None else f"{told.get('message') or ''}\n{told.text or ''}".strip()
    spec = Spec(name=name.removeprefix(SPEC_MARK), outcome=OUTCOMES.get(status, "failed"), words=words)
    return spec, name.startswith(SPEC_MARK)
