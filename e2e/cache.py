"""Where the expensive results live between runs: outside the tree, named by the content that made them."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``KUBEVIRT_CSI_CACHE``, else ``kubevirt-csi`` in the user's cache directory."""
    chosen = os.environ.get("KUBEVIRT_CSI_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kubevirt-csi"
