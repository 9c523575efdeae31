"""The reference page knows every reason, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from kubevirt_csi.domain.health import Reason

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "health.md"


def test_every_reason_is_explained_and_nothing_else() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(reason.value for reason in Reason)
