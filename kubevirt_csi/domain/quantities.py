"""Kubernetes quantities to bytes and back.

Exact numbers throughout: a float would lose bytes beyond 8 PiB. Source: apimachinery pkg/api/resource.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

from kubevirt_csi.domain.capacity import MAX_BYTES

_BINARY = {suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_LARGE = {suffix: Fraction(1000**power) for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_FACTORS: dict[str, Fraction | int] = {**_BINARY, **_SMALL, **_LARGE}
_QUANTITY = re.compile(
    r"(?P<number>\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3}(?!\w))?)(?P<suffix>[KMGTPE]i|[numkMGTPE]?)", re.ASCII
)


def parse_quantity(text: str | int) -> int:
    """The bytes of a Kubernetes quantity such as ``1Gi``, ``1.5G``, ``1e9`` or ``1073741824``, rounded up.

    Raises:
        ValueError: it is not a quantity, negative, or more than 64 bits hold.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity of bytes")
    exact = Fraction(Decimal(found["number"])) * _FACTORS[found["suffix"]]
    if exact > MAX_BYTES:
        raise ValueError(f"{text!r} is more than 64 bits hold")
    return math.ceil(exact)


def format_quantity(size_bytes: int) -> str:
    """The shortest exact quantity: ``1Gi`` for 2**30, plain bytes where no binary unit divides.

    Raises:
        ValueError: it is negative.
    """
    if size_bytes < 0:
        raise ValueError(f"{size_bytes} bytes is no size")
    for suffix, factor in reversed(_BINARY.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{suffix}"
    return str(size_bytes)
