from __future__ import annotations

import pytest

from kubevirt_csi.infra.selectors import Selector


@pytest.mark.parametrize("text", ["a=b=c", "a in b", "!a=b", "a b", "in (a)", ",", "a,", "a in (b", "a in(b)c", "=b"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no requirement of a label selector"):
        Selector.parse(text)


def test_inequality_matches_objects_without_the_key() -> None:
    assert Selector.parse("role!=worker").matches({})
    assert Selector.parse("role notin (worker, master)").matches({})
    assert not Selector.parse("role!=worker").matches({"role": "worker"})


def test_all_requirements_must_hold() -> None:
    selector = Selector.parse("role in (worker, master),zone,!old")
    assert selector.matches({"role": "master", "zone": "a"})
    assert not selector.matches({"role": "master", "zone": "a", "old": ""})
    assert not selector.matches({"role": "master"})
