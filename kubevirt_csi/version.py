"""Which version of the driver this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

UNINSTALLED = "0.0.0+source"


def driver_version() -> str:
    """The installed package's version; a run from a source tree that is not installed says so."""
    try:
        return version("kubevirt-csi")
    except PackageNotFoundError:
        return UNINSTALLED
