"""``python -m e2e.lab up|status|demo|down``: what a person does with a lab.

Everything expensive is built before the lab is started, so that a lab that starts is a lab that comes up in a minute.
Nothing here outlives the command but a lab that was told to. A command imports what it needs when it runs: some of it
takes a second, and a lab without machines is up in a few.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from e2e.lab.lifecycle import bring_up, describe, take_down
from e2e.lab.state import LabDirectory, LabError, lab_directory
from e2e.tools.build import build

MACHINES = ("qemu", "loop", "none")
CLUSTERS = ("both", "management")
STARTING = ("up", "supervise")

Say = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 1 when the lab failed or does not run, 2 for wrong usage."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser(given[0] if given else "").parse_args(given)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated command ends its lab as Ctrl-C does
    try:
        directory = lab_directory(options.name)
        code: int = options.command(directory, options)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


def _up(directory: LabDirectory, options: argparse.Namespace) -> int:
    with bring_up(
        directory,
        machines=options.machines,
        clusters=options.clusters,
        say=_stopwatch(),
        durations={"scale": options.durations_scale},
        audit=options.audit,
    ) as lab:
        lab.keep()
    for line in describe(directory):
        print(line)
    return 0


def _demo(directory: LabDirectory, options: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415 - see above

    from e2e.lab.demo import play  # noqa: PLC0415 - see above
    from e2e.lab.surroundings import surroundings_of  # noqa: PLC0415 - see above

    started = time.monotonic()
    with bring_up(directory, machines=options.machines, clusters="both", say=_stopwatch()) as lab:
        passed = play(surroundings_of(directory.name), Console(), started=started)
        if options.keep:
            lab.keep()
    if options.keep:
        for line in [*describe(directory), *_what_next(directory)]:
            print(line)
    return 0 if passed else 1


def _what_next(directory: LabDirectory) -> list[str]:
    kubectl = build("kubernetes") / "kubectl"
    return [
        f"  kubectl: {kubectl}",
        "try: kubectl get pvc,pv,volumeattachments in the tenant, kubectl get vm,vmi,dv -A in the management cluster",
        f"end it: {os.path.relpath(sys.executable)} -m e2e.lab down --name {directory.name}",
    ]


def _status(directory: LabDirectory, _options: argparse.Namespace) -> int:
    for line in describe(directory):
        print(line)
    return 0 if directory.running() else 1


def _down(directory: LabDirectory, _options: argparse.Namespace) -> int:
    take_down(directory, say=_stopwatch())
    return 0


def _supervise(directory: LabDirectory, options: argparse.Namespace) -> int:
    from e2e.lab.supervisor import supervise  # noqa: PLC0415 - see above

    return asyncio.run(supervise(directory, machines=options.machines, clusters=options.clusters))


def _stopwatch() -> Say:
    """Prints lines with the seconds since now in front."""
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  {text}", flush=True)

    return say


def _add_machineless_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --machines none")
    group.add_argument(
        "--durations-scale",
        type=float,
        default=0.1,
        metavar="FACTOR",
        help="how long KubeVirt, CDI and kubelets take, as a part of what real ones do: 1 is as long, 0.01 a hundredth "
        "of it (%(default)s)",
    )
    group.add_argument(
        "--audit", action="store_true", help="log every request of the driver to the management cluster's API"
    )


def _parser(given: str) -> argparse.ArgumentParser:
    """All commands; those that the given one has no time for may be missing."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.lab",
        description="A management cluster with KubeVirt (stood in for), and a tenant cluster of its VMs, on this host.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--name", default="default", help="labs of different names do not touch each other (%(default)s)"
    )
    start = argparse.ArgumentParser(add_help=False)
    start.add_argument(
        "--machines",
        choices=MACHINES,
        default="qemu",
        help="what the tenant's nodes are: qemu guests, (loop) processes on this host without a tenant cluster, or "
        "(none) nodes by name only, with everything but kubelets and guests, in seconds (%(default)s)",
    )
    start.add_argument(
        "--clusters", choices=CLUSTERS, default="both", help="management: its bare control plane only (%(default)s)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, parents, text in (
        ("up", _up, [common, start], "start a lab and wait until it is ready; a running one is reported"),
        ("demo", _demo, [common, start], "start a lab, play a newcomer's walk in it, and end it"),
        ("status", _status, [common], "what runs, and where its logs and kubeconfigs are"),
        ("down", _down, [common], "end a lab and everything in it; its logs stay"),
    ):
        added = commands.add_parser(name, parents=parents, help=text, description=text)
        added.set_defaults(command=command)
        if command is _up:
            _add_machineless_options(added)
        if command is _demo:
            added.add_argument("--keep", action="store_true", help="leave the lab running and say how to use it")
    if given not in STARTING:
        from e2e.lab import faultcommand  # noqa: PLC0415 - see above

        faultcommand.add_to(commands, common)
    # What `up` runs inside the lab's namespaces; of no use elsewhere, so not in the help.
    commands.add_parser("supervise", parents=[common, start]).set_defaults(command=_supervise)
    return parser
