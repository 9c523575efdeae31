"""Volume ids from CSI names: legal everywhere in the infra cluster, and the same for the same name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt_csi.domain.names import is_volume_id, shown, volume_id
from kubevirt_csi.errors import InvalidArgument

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def test_what_the_provisioner_sends_stays_as_it_is() -> None:
    name = "pvc-0f3a6c1e-7a41-4f7e-9d3c-2c1f5d1b9a77"
    assert volume_id(name) == name


@pytest.mark.parametrize("name", ["PVC-1", "a.b", "-a", "a-", "a" * 64, "a/b", "a b", "ü", "a\n"])
def test_what_is_no_label_is_hashed_to_one(name: str) -> None:
    identity = volume_id(name)
    assert identity != name
    assert LABEL.fullmatch(identity)


@pytest.mark.parametrize("name", ["", "a" * 129, "a\x00", "a\x1f", "a\x7f", "a\x9f"], ids=repr)
def test_what_the_specification_forbids_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        volume_id(name)


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=32))
def test_every_allowed_name_gives_a_label_and_always_the_same(name: str) -> None:
    identity = volume_id(name)
    assert LABEL.fullmatch(identity)
    assert is_volume_id(identity)
    assert volume_id(name) == identity


@given(st.lists(st.text(alphabet="aB/.", min_size=1, max_size=6), min_size=2, max_size=20, unique=True))
def test_different_names_give_different_ids(names: list[str]) -> None:
    assert len({volume_id(name) for name in names}) == len(names)


@pytest.mark.parametrize("text", ["", "..", "a/b", "A", "a" * 64, "a\n"], ids=repr)
def test_what_is_no_label_is_no_volume_id(text: str) -> None:
    assert not is_volume_id(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("bus", "bus", id="as it is"),
        pytest.param("bus\n", r"'bus\n'", id="quoted when it does not print"),
        pytest.param("k" * 200, "k" * 128 + "…", id="cut"),
    ],
)
def test_a_callers_text_is_shown_short_and_printable(text: str, expected: str) -> None:
    assert shown(text) == expected
