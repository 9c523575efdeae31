"""How large a claim must be for a disk image of a size, and how large an image fits into a claim.

Source: CDI pkg/util (from v1.63 on) and KubeVirt pkg/virt-launcher/virtwrap/manager.go. The surprising fact: the two
count differently. CDI makes an image of ``claim / (1 + overhead)``, KubeVirt grows it to ``claim * (1 - overhead)``,
so growing a claim by a little does not grow its image at all. All sizes are bytes.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

MIB = 1024**2


def claim_bytes(image: int, overhead: Decimal) -> int:
    """The claim that CDI asks for so that an image of the size fits beside the file system's own needs."""
    whole = -(-image // MIB) * MIB
    return int((whole * (1 + overhead)).to_integral_value(rounding=ROUND_CEILING))


def image_bytes(claim: int, overhead: Decimal) -> int:
    """The image that CDI makes in a claim."""
    return int(claim / (1 + overhead)) // MIB * MIB


def grown_image_bytes(capacity: int, requested: int, overhead: Decimal) -> int:
    """The size that virt-launcher gives an image when its claim has grown; a larger image is left as it is."""
    return int(min(capacity, requested) * (1 - overhead)) // MIB * MIB
