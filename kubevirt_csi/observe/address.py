"""Where the health and metrics pages are served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where an HTTP server listens; ``host`` None means every address, IPv4 and IPv6."""

    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
