"""The share of a Filesystem claim that CDI leaves to the file system around the disk image."""

from __future__ import annotations

import math
from fractions import Fraction

from kubevirt_csi.domain.capacity import MIB, round_up

FILE_SYSTEM_OVERHEAD = Fraction(6, 100)
"""CDI's default share."""


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
