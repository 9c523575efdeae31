"""The plug-in stays small, however long it works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.host.footprint import resident_over, slope_kib
from tests.host.machine import Machine
from tests.host.mortal import MortalPlugin

LARGEST_MIB = 44
FLAT_KIB = 256
"""What the second thousand calls may add: a page here and there, less than a quarter of a KiB a call."""


@pytest.mark.timeout(120)
async def test_after_a_thousand_calls_the_memory_stays_as_it_is(
    machine: Machine, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    plugin = MortalPlugin(machine, counted=False)
    try:
        await plugin.compile()
        await plugin.start()
        samples = await resident_over(plugin, calls=2000)
    finally:
        await plugin.end()
    largest, slope = max(sample.mebibytes for sample in samples), slope_kib(samples)
    record_property("resident_mib", round(largest, 1))
    record_property("slope_kib_per_1000_calls", round(slope))
    with capsys.disabled():
        print(f"\nmemory of the node: {largest:.1f} MiB, {slope:+.0f} KiB for each 1000 calls")  # noqa: T201 - its report
    assert largest <= LARGEST_MIB
    assert slope <= FLAT_KIB
