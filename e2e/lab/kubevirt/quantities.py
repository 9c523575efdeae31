"""Kubernetes quantities of storage as numbers of bytes."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

FACTORS = {
    "": 1,
    **{suffix: 1000**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    "m": Decimal("0.001"),
}
QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")


def bytes_of(quantity: str | int) -> int:
    """Bytes, rounded up.

    Raises:
        ValueError: not a quantity.
    """
    match = QUANTITY.fullmatch(str(quantity))
    if match is None or match[2] not in FACTORS:
        raise ValueError(f"{quantity!r} is not a quantity")
    return int((Decimal(match[1]) * FACTORS[match[2]]).to_integral_value(rounding=ROUND_CEILING))
