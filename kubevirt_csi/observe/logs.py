"""JSON lines on stderr, one a record, with what the current call has bound to its context.

structlog and the standard library's loggers end in the same handler, so that a library's warning looks like ours.
Secrets are kept out twice: values under a name that may hold one are replaced wherever they are nested, and an object
that JSON does not know is written as its type, never as its repr (a request's repr shows its secrets).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = ("debug", "info", "warning", "error")
REDACTED = "[redacted]"
FIRST = ("time", "level", "event")
"""What a person looks for in a line comes before everything else in it."""
SECRET_NAME = re.compile(r"secret|token|passw|passphrase|credential|authorization|private_?key", re.IGNORECASE)

# The first writes whole API responses, Secrets included, at debug; others each byte of a connection. What grpclib says
# at info about a call is in our own line about it.
QUIETER = {
    "kubernetes_asyncio.client.rest": logging.INFO,
    "hpack": logging.INFO,
    "h2": logging.INFO,
    "aiohttp": logging.INFO,
    "asyncio": logging.INFO,
    "grpclib": logging.WARNING,
}


def may_hold_secret(name: str) -> bool:
    """Whether a value under this name is kept out of the log."""
    return SECRET_NAME.search(name) is not None


def redact(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that replaces what may be secret, at any depth."""
    return {name: _redacted(name, value) for name, value in event.items()}


def in_reading_order(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that puts the fields of FIRST first."""
    return {name: event[name] for name in FIRST if name in event} | dict(event)


def configure(level: str, *, stream: TextIO | None = None) -> None:
    """Sets up both logging systems of this process; to be called once, before anything logs.

    Args:
        level: one of LEVELS.
        stream: where the lines go, stderr when left out.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                redact,
                in_reading_order,
                structlog.processors.JSONRenderer(default=_as_json),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name, least in QUIETER.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def _redacted(name: str, value: Any) -> Any:
    if may_hold_secret(name):
        return REDACTED
    if isinstance(value, Mapping):
        return {key: _redacted(str(key), nested) for key, nested in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted("", nested) for nested in value]
    return value


def _as_json(value: object) -> str:
    match value:
        case BaseException() | PurePath():
            return str(value)
        case datetime():
            return value.isoformat()
        case Enum():
            return value.name
        case _:
            return f"<{type(value).__name__}>"
