"""``python -m e2e.lab.kubevirt --config FILE.json``: runs the stand-in until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from e2e.lab.kubevirt.settings import Settings, SettingsError
from e2e.lab.kubevirt.standin import run
from e2e.lab.machines import Machines
from e2e.lab.machines.none import NoMachines


@asynccontextmanager
async def machines_of(settings: Settings) -> AsyncIterator[Machines]:
    """The backend that the configuration names, closed at the end.

    Raises:
        SettingsError: there is no such kind.
    """
    match settings.machines.get("kind", "none"):
        case "none":
            yield NoMachines.from_config(settings.machines)
        case "qemu":
            from e2e.lab.machines.qemu import QemuMachines  # noqa: PLC0415 - only that backend needs a hypervisor

            machines = QemuMachines.from_config(settings.machines)
            try:
                yield machines
            finally:
                await machines.close()
        case "loop":
            from e2e.lab.machines.loop import LoopMachines  # noqa: PLC0415 - only that backend needs root

            loops = LoopMachines.from_config(settings.machines)
            try:
                yield loops
            finally:
                await loops.close()
        case other:
            raise SettingsError(f"machines.kind is {other!r}, known are 'none', 'qemu' and 'loop'")


async def serve(settings: Settings) -> None:
    """Runs until a signal asks for the end."""
    async with machines_of(settings) as machines:
        task = asyncio.ensure_future(run(settings, machines))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.lab.kubevirt", description="KubeVirt and CDI, stood in for.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="JSON, see settings.py")
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    )
    try:
        settings = Settings.read(parser.parse_args(arguments).config)
        asyncio.run(serve(settings))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
