"""What this node knows of its volumes' health: who says what is wrong with which volume, and since when.

Each source (a path that is looked at, an operation that fails) says all it knows and replaces by that what it said
before; a volume's health is what all its sources say together. Nothing here looks at anything itself, and nothing has
to survive a restart: the next look, or the next attempt of kubelet's, says it again.

A change is logged once, not at each poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from kubevirt_csi.domain.health import Ailment, Reason, Severity, worst_first
from kubevirt_csi.errors import FailedPrecondition, Internal, Unavailable

log = structlog.get_logger(__name__)

ATTEMPT_COUNTS_FOR = timedelta(minutes=10)
"""How long a failed attempt counts that is not repeated. kubelet repeats one after 2 min 2 s at the latest."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Statement:
    ailments: tuple[Ailment, ...]
    until: datetime | None


class VolumeHealth:
    """The health of the volumes that this node has dealt with.

    Args:
        now: the time of day, for "since when".
    """

    def __init__(self, *, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now
        self._statements: dict[str, dict[str, _Statement]] = {}
        self._since: dict[str, dict[Reason, datetime]] = {}

    def note(
        self, volume_id: str, *, source: str, ailments: Sequence[Ailment], counts_for: timedelta | None = None
    ) -> None:
        """Records all that the source knows to be wrong with the volume; nothing when it is well.

        Args:
            volume_id: the volume.
            source: who says so: a path, or the name of an operation. It replaces what it said before.
            ailments: what is wrong.
            counts_for: until it says something else, or for this long.
        """
        until = self._now() + counts_for if counts_for is not None else None
        self._statements.setdefault(volume_id, {})[source] = _Statement(tuple(ailments), until)
        self._settle(volume_id)

    @contextmanager
    def staging(self, volume_id: str) -> Iterator[None]:
        """An attempt to stage the volume: one that fails for its disk's or its content's sake makes it inaccessible.

        CSI spec: NodeGetVolumeHealth may be asked about a volume that could not be staged.
        """
        try:
            yield
        except (FailedPrecondition, Internal, Unavailable) as error:
            failed = Ailment(Severity.INACCESSIBLE, Reason.STAGING_FAILED, str(error))
            self.note(volume_id, source="staging", ailments=[failed], counts_for=ATTEMPT_COUNTS_FOR)
            raise
        self.note(volume_id, source="staging", ailments=[])

    def silence(self, volume_id: str, *, source: str) -> None:
        """Forgets what the source said, for example because its path is no longer the volume's."""
        if self._statements.get(volume_id, {}).pop(source, None) is not None:
            self._settle(volume_id)

    def sources(self, volume_id: str) -> tuple[str, ...]:
        """Everybody who has said something about the volume."""
        return tuple(self._statements.get(volume_id, ()))

    def forget(self, volume_id: str) -> None:
        """Forgets the volume: it has left this node."""
        self._statements.pop(volume_id, None)
        since = self._since.pop(volume_id, None)
        if since:
            log.info("abnormal volume has left", volume_id=volume_id, reasons=[reason.value for reason in since])

    def of(self, volume_id: str) -> tuple[Ailment, ...]:
        """All that is wrong with the volume, the gravest first, each with the time when it began."""
        self._expire()
        since = self._since.get(volume_id, {})
        return tuple(
            replace(ailment, message=f"since {since[ailment.reason]:%Y-%m-%dT%H:%M:%SZ}: {ailment.message}")
            for ailment in self._current(volume_id)
        )

    def abnormal(self) -> tuple[tuple[str, Reason], ...]:
        """Every volume that something is wrong with, once for each reason."""
        self._expire()
        return tuple((volume_id, reason) for volume_id, since in self._since.items() for reason in since)

    def _current(self, volume_id: str) -> tuple[Ailment, ...]:
        said = self._statements.get(volume_id, {}).values()
        return worst_first(ailment for statement in said for ailment in statement.ailments)

    def _expire(self) -> None:
        now = self._now()
        for volume_id, said in tuple(self._statements.items()):
            for source, statement in tuple(said.items()):
                if statement.until is not None and statement.until <= now:
                    self.silence(volume_id, source=source)

    def _settle(self, volume_id: str) -> None:
        """Logs what has begun and what is over, and keeps nothing of a volume that is well."""
        since = self._since.setdefault(volume_id, {})
        current = {ailment.reason: ailment for ailment in self._current(volume_id)}
        about = log.bind(volume_id=volume_id)
        for reason in current.keys() - since.keys():
            since[reason] = self._now()
            severity, message = current[reason].severity.value, current[reason].message
            about.warning("volume abnormal", reason=reason.value, severity=severity, message=message)
        for reason in since.keys() - current.keys():
            about.info("volume no longer abnormal", reason=reason.value, since=since.pop(reason).isoformat())
        if not current:
            self.forget(volume_id)
