"""How much memory the plug-in has while it answers many calls on a real disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from tests.host.lives import KINDS, Do, LivingVolume
from tests.host.mortal import MortalPlugin

CALLS = (
    *(Do.STAGE, Do.PUBLISH, Do.STATS, Do.STATS, Do.STATS, Do.STATS),
    *(Do.PUBLISH_READ_ONLY, Do.STATS, Do.STATS, Do.UNPUBLISH_READ_ONLY, Do.STATS, Do.UNPUBLISH),
)
EVERY = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory after so many calls."""

    calls: int
    mebibytes: float


async def resident_over(plugin: MortalPlugin, *, calls: int) -> list[Sample]:
    """Sends the calls of one pod after another, with as many questions for figures, and looks now and then."""
    volume = LivingVolume(plugin.machine, KINDS[0], number=1)
    samples = []
    for number, call in enumerate(islice(cycle(CALLS), calls), start=1):
        await _send(plugin, volume, call)
        if number % EVERY == 0:
            samples.append(Sample(number, plugin.resident_mib()))
    for call in (Do.UNPUBLISH, Do.UNPUBLISH_READ_ONLY, Do.UNSTAGE):
        await _send(plugin, volume, call)
    return samples


async def _send(plugin: MortalPlugin, volume: LivingVolume, call: Do) -> None:
    """By a connection of its own, as kubelet does."""
    async with plugin.node() as node:
        await volume.do(call, node)


def slope_kib(samples: Sequence[Sample]) -> float:
    """The growth in KiB for each 1,000 calls, by least squares over the second half; the first warms up."""
    late = samples[len(samples) // 2 :]
    mean_calls = sum(sample.calls for sample in late) / len(late)
    mean_memory = sum(sample.mebibytes for sample in late) / len(late)
    covariance = sum((sample.calls - mean_calls) * (sample.mebibytes - mean_memory) for sample in late)
    return 1024 * 1000 * covariance / sum((sample.calls - mean_calls) ** 2 for sample in late)
