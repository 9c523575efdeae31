"""Lines, events and the store, without I/O."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt_csi.infra.watching import Distrusted, Kind, Lines, Store, parse_event, parse_page

NAMES = st.sampled_from(["a", "b", "c", "d"])


def thing(name: str, version: int, value: Any = "v") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def line(kind: str, body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


def store() -> Store[str]:
    def parse(found: dict[str, Any]) -> str:
        if found["value"] == "bad":
            raise ValueError("no value")
        return str(found["value"])

    return Store(parse)


@given(st.lists(st.binary(max_size=20).filter(lambda part: b"\n" not in part and bool(part.strip()))), st.data())
def test_lines_are_the_same_however_the_stream_is_cut(written: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(part + b"\n" for part in written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    lines = Lines()
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [found for chunk in chunks for found in lines.feed(chunk)] == written


def test_a_line_that_grows_beyond_the_limit_is_distrusted_before_it_ends() -> None:
    lines = Lines(limit_bytes=10)
    assert list(lines.feed(b"0123456789\n01234")) == [b"0123456789"]
    with pytest.raises(Distrusted, match="longer than 10 bytes"):
        list(lines.feed(b"567890"))


@pytest.mark.parametrize(
    "malformed",
    [
        b"<html>",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": null}',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "1"}}}',
        b'{"type": "OTHER", "object": {"metadata": {"name": "a", "resourceVersion": "1"}}}',
        b'{"type": "BOOKMARK", "object": {"metadata": {}}}',
        b'{"type": "ERROR", "object": null}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_event_is_distrusted(malformed: bytes) -> None:
    with pytest.raises(Distrusted, match="no event"):
        parse_event(malformed)


@given(st.binary(max_size=60))
def test_any_line_is_an_event_or_distrusted(noise: bytes) -> None:
    with suppress(Distrusted):
        assert parse_event(noise).resource_version


def test_an_error_event_tells_its_code_and_text() -> None:
    with pytest.raises(Distrusted, match="410 too old resource version"):
        parse_event(line("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version: 1 (9)"}))


def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    known = store()
    known.replace([thing("a", 1)], "1")
    assert known.apply(parse_event(line("BOOKMARK", {"metadata": {"resourceVersion": "7"}}))) == set()
    assert known.resource_version == "7"
    assert known.names == ["a"]


def test_a_new_list_tells_what_appeared_changed_and_went() -> None:
    known = store()
    known.replace([thing("same", 1), thing("changes", 1), thing("goes", 1)], "1")
    assert known.replace([thing("same", 1), thing("changes", 5), thing("comes", 6)], "6") == {
        "changes",
        "goes",
        "comes",
    }
    assert known.find("goes") is None


def test_a_new_list_parses_only_what_changed() -> None:
    parsed: list[str] = []
    known = Store(lambda found: parsed.append(found["metadata"]["name"]))
    known.replace([thing("same", 1), thing("changes", 1)], "1")
    known.replace([thing("same", 1), thing("changes", 2)], "2")
    assert parsed == ["same", "changes", "changes"]


def test_one_unreadable_object_does_not_hide_the_others() -> None:
    known = store()
    known.replace([thing("good", 1), thing("broken", 1, "bad")], "1")
    assert known.find("good") == "v"
    with pytest.raises(ValueError, match="no value"):
        known.find("broken")
    known.apply(parse_event(line("MODIFIED", thing("broken", 2))))
    assert known.find("broken") == "v"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"kind": "Status", "metadata": {}, "code": 200},
        {"kind": "PodList", "metadata": {}, "items": []},
        {"kind": "PodList", "metadata": {"resourceVersion": "1"}},
        {"kind": "Pod", "metadata": {"resourceVersion": "1"}, "items": []},
        {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [{}]},
        {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": ["a"]},
    ],
)
def test_what_is_no_list_never_passes_for_an_empty_one(answer: dict[str, Any]) -> None:
    with pytest.raises(Distrusted):
        parse_page(answer)


@given(st.lists(st.tuples(st.sampled_from(["put", "delete", "relist"]), NAMES)))
def test_lists_and_events_always_lead_to_what_the_server_has(steps: list[tuple[str, str]]) -> None:
    """A model of the server: after each step the store has its objects, and every change was told by name."""
    known, server = store(), {"a": thing("a", 1, "1")}
    known.replace(server.values(), "1")
    for version, (step, name) in enumerate(steps, start=2):
        value = str(version)
        if step == "put":
            kind = Kind.MODIFIED if name in server else Kind.ADDED
            server[name] = thing(name, version, value)
            assert known.apply(parse_event(line(kind, server[name]))) == {name}
        elif step == "delete" and name in server:
            gone = server.pop(name) | thing(name, version)
            assert known.apply(parse_event(line("DELETED", gone))) == {name}
        elif step == "relist":
            known.distrust()
            assert known.resource_version is None
            server[name] = thing(name, version, value)  # seen by the list only
            assert known.replace(server.values(), value) == {name}
        assert {found: known.find(found) for found in known.names} == {
            found: item["value"] for found, item in server.items()
        }
