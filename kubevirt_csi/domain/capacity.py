"""Sizes: what a CSI capacity range comes to.

A volume is made in whole MiB, because CDI rounds to them anyway and the size that is promised has to be the size that
the guest sees. Source: CSI spec: CreateVolume, CapacityRange.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubevirt_csi.errors import InvalidArgument, OutOfRange

MIB = 1024**2
DEFAULT_BYTES = 1024**3
"""What is made when the request names no size."""
MAX_BYTES = 2**63 - 1
"""Both CSI and Kubernetes carry sizes as signed 64-bit integers."""


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
