"""Sizes: Kubernetes quantities to bytes and back, and what a CSI capacity range comes to.

Exact integers throughout: a float would lose bytes beyond 8 PiB. A volume is made in whole MiB, because CDI rounds to
them anyway and the size that is promised has to be the size that the guest sees.
Sources: apimachinery pkg/api/resource (quantities), CSI spec: CreateVolume, CapacityRange.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from kubevirt_csi.errors import InvalidArgument, OutOfRange

MIB = 1024**2
DEFAULT_BYTES = 1024**3
"""What is made when the request names no size."""
FILE_SYSTEM_OVERHEAD = Fraction(6, 100)
"""CDI's default share of a Filesystem claim that it leaves to the file system around the disk image."""
MAX_BYTES = 2**63 - 1
"""Both CSI and Kubernetes carry sizes as signed 64-bit integers."""

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


def image_bytes(claim_bytes: int, overhead: Fraction = FILE_SYSTEM_OVERHEAD) -> int:
    """The least that the disk image in a Filesystem claim has, in whole MiB.

    CDI makes it claim / (1 + overhead) since 1.63 and claim x (1 - overhead) before, which is the smaller one and also
    what KubeVirt grows it to; both round down. Sources: CDI pkg/util, KubeVirt pkg/virt-launcher/virtwrap/manager.go.
    """
    return math.floor(claim_bytes * (1 - overhead)) // MIB * MIB


def grown_claim_bytes(size_bytes: int, overhead: Fraction) -> int:
    """The Filesystem claim, in whole MiB, in which KubeVirt grows a disk image to this many bytes.

    KubeVirt makes it claim x (1 - overhead), which is less than CDI makes it in a new claim of the same size. Source:
    KubeVirt pkg/virt-launcher/virtwrap/manager.go.
    """
    return round_up(math.ceil(size_bytes / (1 - overhead)))


def round_up(size_bytes: int) -> int:
    """The next whole MiB, in bytes."""
    return -(-size_bytes // MIB) * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRange:
    """What a request allows, in bytes; 0 means that it says nothing.

    Raises:
        InvalidArgument: a bound is negative.
    """

    required: int = 0
    limit: int = 0

    def __post_init__(self) -> None:
        if self.required < 0 or self.limit < 0:
            raise InvalidArgument(
                f"capacity_range: required_bytes {self.required} and limit_bytes {self.limit} must not be negative"
            )

    def choose(self) -> int:
        """The size to make, in bytes: what is required in whole MiB, else 1 GiB or the largest that the limit allows.

        Raises:
            OutOfRange: no whole number of MiB lies in the range.
        """
        size = round_up(self.required) if self.required else DEFAULT_BYTES
        if self.limit and not self.required:
            size = min(size, self.limit // MIB * MIB)
        if size == 0 or (self.limit and size > self.limit) or size > MAX_BYTES:
            limit = f" and at most {self.limit}" if self.limit else ""
            raise OutOfRange(
                f"no volume has at least {self.required}{limit} bytes: volumes are made in whole MiB (of {MIB} bytes); "
                "widen the range"
            )
        return size

    def grown_from(self, present_bytes: int) -> int:
        """The size that a volume of ``present_bytes`` has to grow to: its own when that is enough.

        Raises:
            OutOfRange: the volume is too large already, or no whole number of MiB lies in the range.
        """
        if present_bytes < self.required:
            return self.choose()
        if not self.admits(present_bytes):
            raise OutOfRange(
                f"the volume has {present_bytes} bytes already, more than limit_bytes {self.limit}, and never shrinks"
            )
        return present_bytes

    def admits(self, size_bytes: int) -> bool:
        """Whether a volume that exists with this size satisfies the request."""
        return size_bytes >= self.required and (not self.limit or size_bytes <= self.limit)
