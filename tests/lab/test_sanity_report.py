"""csi-sanity's report as specs with an outcome, and the reports that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.sanity.report import ReportError, Spec, count, read

PASSED = '<testcase name="[It] Node Service should work" status="passed" time="0.1"></testcase>'
SKIPPED = (
    '<testcase name="[It] ListVolumes pages" status="skipped"><skipped message="skipped - no ListVolumes"/></testcase>'
)
FAILED = (
    '<testcase name="[It] CreateVolume works" status="failed">'
    '<failure message="Expected OK" type="failed">file.go:1</failure></testcase>'
)
SET_UP = '<testcase name="[BeforeSuite]" status="{}"></testcase>'


def report(tmp_path: Path, *cases: str) -> Path:
    path = tmp_path / "report.xml"
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return path


def test_each_spec_has_its_outcome_and_csi_sanitys_words(tmp_path: Path) -> None:
    specs = read(report(tmp_path, PASSED, SKIPPED, FAILED))
    assert specs == [
        Spec(name="Node Service should work", outcome="passed"),
        Spec(name="ListVolumes pages", outcome="skipped", words="skipped - no ListVolumes"),
        Spec(name="CreateVolume works", outcome="failed", words="Expected OK\nfile.go:1"),
    ]
    assert [count(specs, outcome) for outcome in ("passed", "failed", "skipped")] == [1, 1, 1]


@pytest.mark.parametrize("status", ["failed", "panicked", "timedout", "interrupted", "aborted", "", "new in Ginkgo 3"])
def test_whatever_is_not_known_to_be_good_is_a_failure(tmp_path: Path, status: str) -> None:
    case = f'<testcase name="[It] CreateVolume works" status="{status}"></testcase>'
    assert [spec.outcome for spec in read(report(tmp_path, PASSED, case))] == ["passed", "failed"]


def test_set_up_is_no_spec_but_its_failure_is_a_failure(tmp_path: Path) -> None:
    assert [spec.name for spec in read(report(tmp_path, SET_UP.format("passed"), PASSED))] == [
        "Node Service should work"
    ]
    failed = read(report(tmp_path, SET_UP.format("failed"), PASSED))
    assert [(spec.name, spec.outcome) for spec in failed] == [
        ("[BeforeSuite]", "failed"),
        ("Node Service should work", "passed"),
    ]


def test_a_missing_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"csi-sanity has left no report at .*report\.xml"):
        read(tmp_path / "report.xml")


def test_a_report_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = report(tmp_path, PASSED)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ReportError, match=r"is cut off or no XML"):
        read(path)


@pytest.mark.parametrize(
    "cases", [(), (SKIPPED,), (SET_UP.format("passed"),)], ids=["empty", "all skipped", "set-up only"]
)
def test_a_report_of_a_run_in_which_nothing_ran_is_an_error(tmp_path: Path, cases: tuple[str, ...]) -> None:
    with pytest.raises(ReportError, match=r"no spec ran"):
        read(report(tmp_path, *cases))
