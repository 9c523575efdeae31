"""SELinux contexts of mounts: when two spellings are the same context, and which one a mount has.

With ``seLinuxMount: true`` kubelet asks for ``context="USER:ROLE:TYPE:LEVEL"`` in the mount flags, and the kernel shows
the context of a mount in mountinfo. The level is where spellings differ: its categories are a set, written in any
order or as ranges (``c1.c3`` is ``c1,c2,c3``), and the kernel writes them in its own way. A file system has one context
for as long as it is mounted anywhere. Source: selinux(8), mount(8), KEP-1710.
"""

from __future__ import annotations

from collections.abc import Iterable

KEYS = ("context", "fscontext", "defcontext", "rootcontext")

_PARTS_BEFORE_LEVEL = 3
_LARGEST_RANGE = 4096
"""More categories than any policy has; a range beyond that is compared as text."""

Level = tuple[str, frozenset[str]]


def contexts(options: Iterable[str]) -> dict[str, str]:
    """The context options among mount options, without their quotes."""
    pairs = (option.partition("=")[::2] for option in options)
    return {key: value.replace('"', "") for key, value in pairs if key in KEYS}


def differing(wanted: Iterable[str], *, present: Iterable[str]) -> dict[str, str]:
    """The wanted context options that are not among the present ones, each with what is there instead ("" = none)."""
    there = contexts(present)
    return {
        f"{key}={value}": there.get(key, "")
        for key, value in contexts(wanted).items()
        if key not in there or not same(value, there[key])
    }


def same(one: str, other: str) -> bool:
    """Whether both are the same context, however their levels are spelt."""
    return _canonical(one) == _canonical(other)


def _canonical(context: str) -> tuple[str, ...] | tuple[tuple[str, ...], Level, Level]:
    parts = context.split(":", _PARTS_BEFORE_LEVEL)
    if len(parts) <= _PARTS_BEFORE_LEVEL:
        return tuple(parts)
    low, dash, high = parts[_PARTS_BEFORE_LEVEL].partition("-")
    lowest = _level(low)
    return tuple(parts[:_PARTS_BEFORE_LEVEL]), lowest, _level(high) if dash else lowest


def _level(text: str) -> Level:
    sensitivity, _, categories = text.partition(":")
    return sensitivity, frozenset(category for part in categories.split(",") if part for category in _range(part))


def _range(part: str) -> tuple[str, ...]:
    first, dot, last = part.partition(".")
    low, high = first.removeprefix("c"), last.removeprefix("c")
    if not dot or not low.isdecimal() or not high.isdecimal() or int(high) - int(low) > _LARGEST_RANGE:
        return (part,)
    return tuple(f"c{number}" for number in range(int(low), int(high) + 1))
