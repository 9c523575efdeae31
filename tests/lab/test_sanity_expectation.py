"""What csi-sanity found against the committed list: every difference is told, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.sanity.expectation import AllowedSkip, Expectation, capability_differences, spec_differences
from e2e.sanity.report import Outcome, Spec

EXPECTED = Expectation(
    capabilities={"controller": frozenset({"CREATE_DELETE_VOLUME"}), "node": frozenset({"STAGE_UNSTAGE_VOLUME"})},
    skips=[
        AllowedSkip(spec="snapshots", reason="none yet", access=frozenset({"mount", "block"})),
        AllowedSkip(spec="files", reason="block has none", access=frozenset({"block"})),
    ],
)


def specs(**outcomes: Outcome) -> list[Spec]:
    return [Spec(name=name, outcome=outcome, words="csi-sanity's words") for name, outcome in outcomes.items()]


def differences(access: str, **outcomes: Outcome) -> list[str]:
    return list(spec_differences(EXPECTED, specs(**outcomes), access=access))


def test_a_run_as_expected_differs_in_nothing() -> None:
    assert differences("mount", create="passed", snapshots="skipped", files="passed") == []
    assert differences("block", create="passed", snapshots="skipped", files="skipped") == []


def test_a_failed_spec_is_told_even_when_it_may_be_skipped() -> None:
    assert differences("mount", create="failed", snapshots="failed", files="passed") == [
        "failed: create",
        "failed: snapshots",
    ]


def test_a_skip_that_is_not_on_the_list_is_told_with_csi_sanitys_words() -> None:
    assert differences("mount", create="skipped", snapshots="skipped") == [
        "skipped, and expected.toml does not allow it: create (csi-sanity's words)"
    ]


def test_a_skip_is_allowed_for_its_access_types_only() -> None:
    assert differences("mount", snapshots="skipped", files="skipped") == [
        "skipped, and expected.toml does not allow it: files (csi-sanity's words)"
    ]


def test_a_listed_skip_that_ran_is_told() -> None:
    assert differences("mount", snapshots="passed") == ["ran, though expected.toml says that it is skipped: snapshots"]


def test_a_listed_spec_that_csi_sanity_does_not_have_is_told() -> None:
    assert differences("mount", create="passed") == [
        "expected.toml names a spec that csi-sanity does not have: snapshots"
    ]


def test_capabilities_that_are_missing_or_extra_are_told_for_each_service() -> None:
    found = {"controller": frozenset({"LIST_VOLUMES"}), "plugin (node)": frozenset({"CONTROLLER_SERVICE"})}
    assert list(capability_differences(EXPECTED, found)) == [
        "the controller service does not advertise CREATE_DELETE_VOLUME",
        "the controller service advertises LIST_VOLUMES, which expected.toml does not have",
        "the node service does not advertise STAGE_UNSTAGE_VOLUME",
        "the plugin (node) service advertises CONTROLLER_SERVICE, which expected.toml does not have",
    ]


def test_the_same_capabilities_differ_in_nothing() -> None:
    assert list(capability_differences(EXPECTED, EXPECTED.capabilities)) == []


def test_the_list_is_read_with_a_reason_for_every_skip(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(
        'access = ["mount", "block"]\n[capabilities]\nnode = ["A", "B"]\n'
        '[[skips]]\nreason = "everywhere"\nspecs = ["one", "two"]\n'
        '[[skips]]\nreason = "block only"\naccess = ["block"]\nspecs = ["three"]\n'
    )
    read = Expectation.read(path)
    assert read.capabilities == {"node": frozenset({"A", "B"})}
    assert read.reasons("mount") == {"one": "everywhere", "two": "everywhere"}
    assert read.reasons("block") == {"one": "everywhere", "two": "everywhere", "three": "block only"}


def test_a_skip_without_a_reason_is_no_list(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text('access = ["mount"]\n[capabilities]\n[[skips]]\nspecs = ["one"]\n')
    with pytest.raises(KeyError, match="reason"):
        Expectation.read(path)


def test_the_committed_list_gives_every_skip_a_reason_of_its_own_words_and_names_no_spec_twice() -> None:
    committed = Expectation.read()
    assert all(len(skip.reason) > 20 for skip in committed.skips)
    names = [(skip.spec, access) for skip in committed.skips for access in skip.access]
    assert len(names) == len(set(names))
