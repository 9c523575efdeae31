"""How fault annotations are read: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from e2e.lab.kubevirt.faults import FAULTS, Answer, Faults, complaints, faults_of, ordered, used_once

PREFIX = "lab.csi.kubevirt.io/"


def annotated(**annotations: str) -> dict[str, Any]:
    """An object with these faults; underscores stand for dashes."""
    faults = {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}
    return {"metadata": {"name": "x", "uid": "1", "annotations": {**faults, "other/annotation": "1"}}}


def test_every_fault_is_a_field_of_the_value_and_the_other_way_round() -> None:
    assert [each.name.replace("_", "-") for each in fields(Faults)] == list(FAULTS)


def test_an_object_without_annotations_has_no_faults() -> None:
    assert faults_of({"metadata": {"name": "x"}}, None) == Faults()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("409", Answer(code=409, reason="Conflict", text="ordered by the lab")),
        ("599", Answer(code=599, reason="Unknown", text="ordered by the lab")),
        ("drop", Answer(code=0)),
        ("{code: drop, times: 2}", Answer(code=0, times=2)),
        (
            "{code: 422, reason: Odd, text: 'not now', times: 1}",
            Answer(code=422, reason="Odd", text="not now", times=1),
        ),
        ('{"code": 500, "text": "in JSON"}', Answer(code=500, reason="InternalError", text="in JSON")),
    ],
)
def test_an_answer_is_a_code_or_a_mapping(text: str, answer: Answer) -> None:
    assert faults_of(annotated(refuse_addvolume=text)).refuse_addvolume == answer


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5", 1.5), ("500ms", 0.5), ("5s", 5.0), ("2m", 120.0), ("1h", 3600.0), ("0", 0.0)]
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert faults_of(annotated(slow_attach=text)).slow_attach == seconds


def test_the_most_special_object_decides_and_the_others_add_what_it_leaves_open() -> None:
    claim = annotated(slow_attach="1s")
    cluster = annotated(slow_attach="9s", slow_detach="9s", virt_handler_down="true")
    assert faults_of(claim, None, cluster) == Faults(slow_attach=1.0, slow_detach=9.0, virt_handler_down=True)


def test_a_switch_can_be_off_where_it_is_on_for_the_cluster() -> None:
    assert not faults_of(annotated(migration="false"), annotated(migration="true")).migration


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("refuse-addvolume", "200", "code is 200, but must be an HTTP code from 400 to 599, or drop"),
        ("refuse-addvolume", "true", "code is True, but must be an HTTP code"),
        ("refuse-addvolume", "{code: 409, txt: x}", "unknown key txt; known are code, reason, text and times"),
        ("refuse-addvolume", "{code: 409, times: 0}", "times is 0, but must be a number of requests of 1 or more"),
        ("refuse-addvolume", "{text: x}", "code is None, but must be"),
        ("refuse-addvolume", "{code: [", "is not YAML"),
        ("virt-handler-down", "yes", "must be true or false"),
        ("slow-attach", "soon", "must be a duration of at most 24h, such as 1.5, 500ms, 5s or 2m"),
        ("slow-attach", "-1", "must be a duration"),
        ("slow-attach", "25h", "must be a duration of at most 24h"),
        ("stuck-attach", "Ready", "must be one of: Bound, AttachedToNode, MountedToPod"),
        ("stuck-detach", "Bound", "must be one of: Ready, UnMountedFromPod, Detaching"),
        ("lost-status", "all", "must be one of: target, entry"),
    ],
)
def test_a_malformed_annotation_is_complained_about_and_is_not_in_force(name: str, text: str, complaint: str) -> None:
    obj = annotated(**{name: text})
    [told] = complaints(obj, "VirtualMachineInstance")
    assert told.startswith(f"{PREFIX}{name}={text!r}: ")
    assert complaint in told
    assert faults_of(obj) == Faults()


def test_an_unknown_fault_is_complained_about_with_those_that_there_are() -> None:
    [told] = complaints(annotated(slow="1s"), "VirtualMachine")
    assert "no such fault; there are: refuse-addvolume, " in told
    assert faults_of(annotated(slow="1s")) == Faults()


def test_a_fault_on_the_wrong_kind_of_object_is_complained_about() -> None:
    [told] = complaints(annotated(importing="stuck"), "VirtualMachine")
    assert told.endswith(
        "has no effect on a VirtualMachine; it belongs on: PersistentVolumeClaim, DataVolume, KubeVirt"
    )


def test_one_malformed_annotation_leaves_the_others_in_force() -> None:
    assert faults_of(annotated(slow_attach="soon", slow_detach="3s")) == Faults(slow_detach=3.0)


def test_what_is_ordered_is_told_as_it_is_written() -> None:
    assert ordered(annotated(slow_attach="soon")) == {"slow-attach": "soon"}


def test_a_counted_answer_is_used_up_one_by_one() -> None:
    once = used_once("{code: 409, text: not now, times: 2}")
    assert once is not None
    assert faults_of(annotated(refuse_addvolume=once)).refuse_addvolume == Answer(
        code=409, reason="Conflict", text="not now", times=1
    )
    assert used_once(once) is None


def test_a_status_says_what_was_ordered() -> None:
    assert Answer(code=409, reason="Conflict", text="not now").status() == {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": "not now",
        "reason": "Conflict",
        "code": 409,
    }
