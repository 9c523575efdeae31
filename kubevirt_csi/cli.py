"""The console script: arguments to settings, then one role.

Only the chosen role's composition root is imported, because the node must stay small: the controller's Kubernetes
client alone costs more memory than the whole node has.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import structlog

from kubevirt_csi.observe import logs
from kubevirt_csi.settings.arguments import parse
from kubevirt_csi.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger(__name__)

# Each has `async def run(settings) -> int`.
COMPOSITION_ROOTS = {
    "controller": "kubevirt_csi.controller",
    "node": "kubevirt_csi.node",
    "node-id": "kubevirt_csi.tenant.nodes",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the role that the arguments choose and returns the exit code."""
    role, settings = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    logs.configure(settings.log_level)
    log.info("starting", role=role, version=VERSION)
    root = _composition_root(role)
    try:
        return int(asyncio.run(root.run(settings)))
    except KeyboardInterrupt:
        return 130
    except Exception:
        log.exception("stopped by an error", role=role)
        return 1


def _composition_root(role: str) -> ModuleType:
    """The role's module. What is imported stays: it is no garbage now, and need not be looked through ever after."""
    gc.disable()
    root = import_module(COMPOSITION_ROOTS[role])
    gc.freeze()
    gc.enable()
    return root
