"""Each role of the command line has a composition root."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from kubevirt_csi.cli import COMPOSITION_ROOTS
from kubevirt_csi.settings.flags import ROLES


@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_role_has_a_composition_root_that_takes_its_settings(role: str) -> None:
    run = import_module(COMPOSITION_ROOTS[role]).run
    assert inspect.iscoroutinefunction(run)
    assert list(inspect.signature(run).parameters) == ["settings"]
