"""Label selectors, as ``kubectl -l`` takes them.

Equality (``a=b``, ``a!=b``), sets (``a in (b,c)``, ``a notin (b)``) and existence (``a``, ``!a``), joined by commas.
Objects are matched here and not by the API server, because a fresh read of one object takes no selector.
Source: apimachinery pkg/labels; as there, ``!=`` and ``notin`` also match objects that lack the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_REQUIREMENT = re.compile(
    r"(?P<absent>!\s*)?(?P<key>[\w./-]+)"
    r"(?:\s*(?P<equality>==|=|!=)\s*(?P<value>[\w.-]*)|\s+(?P<set>in|notin)\s*\((?P<values>[\w.,\s-]*)\))?",
    re.ASCII,
)
_BETWEEN_REQUIREMENTS = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition: the key's value is among ``values`` (None: any value), or, if ``negated``, it is not."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
        value = labels.get(self.key)
        found = value is not None and (self.values is None or value in self.values)
        return found is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements together; without any it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Reads a selector; the empty text matches everything.

        Raises:
            ValueError: it is not a selector.
        """
        if not text.strip():
            return cls()
        return cls(tuple(_requirement(part.strip()) for part in _BETWEEN_REQUIREMENTS.split(text)))


def _requirement(text: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(text)
    if found is None or (found["absent"] and (found["equality"] or found["set"])):
        raise ValueError(f"{text!r} is no requirement of a label selector")
    if found["equality"]:
        return Requirement(key=found["key"], values=frozenset({found["value"]}), negated=found["equality"] == "!=")
    if found["set"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(key=found["key"], values=values, negated=found["set"] == "notin")
    return Requirement(key=found["key"], values=None, negated=bool(found["absent"]))
