"""What csi-sanity must find, and how what it found differs from that: the rules of ``expected.toml``.

Both directions count. A skip that is not on the list is a feature that fell silent; a listed skip that ran, or a
capability that is new, means that the list has to be brought up to date by the person who made the feature.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from e2e.sanity.report import Spec

EXPECTED = Path(__file__).parent / "expected.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedSkip:
    """A spec that may be skipped, and for which access types; ``reason`` is for people."""

    spec: str
    reason: str
    access: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The committed list.

    Attributes:
        capabilities: names by service (``plugin``, ``controller``, ``node``).
        skips: the specs that may be skipped.
    """

    capabilities: Mapping[str, frozenset[str]]
    skips: Sequence[AllowedSkip]

    @classmethod
    def read(cls, path: Path = EXPECTED) -> Self:
        """Reads the list; a mistake in it is a KeyError or TOMLDecodeError."""
        document = tomllib.loads(path.read_text())
        everywhere = document["access"]
        return cls(
            capabilities={service: frozenset(names) for service, names in document["capabilities"].items()},
            skips=[
                AllowedSkip(spec=spec, reason=group["reason"], access=frozenset(group.get("access", everywhere)))
                for group in document.get("skips", ())
                for spec in group["specs"]
            ],
        )

    def reasons(self, access: str) -> dict[str, str]:
        """Why each spec may be skipped with this access type, by the spec's name."""
        return {skip.spec: skip.reason for skip in self.skips if access in skip.access}


def capability_differences(expected: Expectation, found: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """A sentence for each capability that is missing or extra."""
    for service in sorted(expected.capabilities.keys() | found.keys()):
        wanted, advertised = expected.capabilities.get(service, frozenset()), found.get(service, frozenset())
        for name in sorted(wanted - advertised):
            yield f"the {service} service does not advertise {name}"
        for name in sorted(advertised - wanted):
            yield f"the {service} service advertises {name}, which {EXPECTED.name} does not have"


def spec_differences(expected: Expectation, specs: Sequence[Spec], *, access: str) -> Iterator[str]:
    """A sentence for each spec that failed, was skipped without leave, or was not skipped though it is listed."""
    allowed = expected.reasons(access)
    for spec in specs:
        if spec.outcome == "failed":
            yield f"failed: {spec.name}"
        elif spec.outcome == "skipped" and spec.name not in allowed:
            yield f"skipped, and {EXPECTED.name} does not allow it: {spec.name} ({spec.words})"
        elif spec.outcome == "passed" and spec.name in allowed:
            yield f"ran, though {EXPECTED.name} says that it is skipped: {spec.name}"
    for name in sorted(allowed.keys() - {spec.name for spec in specs}):
        yield f"{EXPECTED.name} names a spec that csi-sanity does not have: {name}"
