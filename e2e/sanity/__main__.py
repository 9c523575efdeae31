"""``python -m e2e.sanity``: csi-sanity on real mounts, for mount and block volumes on each bus.

Prints what passed, failed and was skipped in each round, every skip with its reason, and what differs from
``expected.toml``; the exit code is 1 when anything does. The lab is started for it and ended with it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e.lab.lifecycle import bring_up
from e2e.lab.state import LabDirectory, LabError, State, lab_directory
from e2e.sanity.capabilities import advertised
from e2e.sanity.expectation import Expectation, capability_differences, spec_differences
from e2e.sanity.leftovers import left_behind
from e2e.sanity.report import Outcome, ReportError, count
from e2e.sanity.running import Result, Round, run
from e2e.tools.build import BuildError, build

ACCESS = ("mount", "block")
# Each bus on a node of its own, so that the disks of one never stand in for those of the other.
NODES = {"scsi": "worker-1", "virtio": "worker-2"}
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "skipped")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs every round; returns 0 when nothing differs from what is expected."""
    parser = argparse.ArgumentParser(prog="python -m e2e.sanity", description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="sanity", help="of the lab (%(default)s)")
    parser.add_argument("--access", nargs="+", choices=ACCESS, default=ACCESS, help="kinds of volume (all)")
    parser.add_argument("--bus", nargs="+", choices=tuple(NODES), default=tuple(NODES), help="buses (all)")
    options = parser.parse_args(arguments)
    rounds = [Round(access=access, bus=bus, node=NODES[bus]) for access in options.access for bus in options.bus]
    try:
        differences = list(_differences(lab_directory(options.name), rounds))
    except (BuildError, LabError, ReportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    for difference in differences:
        print(f"DIFFERENT  {difference}")
    print("as expected" if not differences else f"{len(differences)} differences")
    return 1 if differences else 0


def _differences(lab: LabDirectory, rounds: Sequence[Round]) -> Iterator[str]:
    """Runs the rounds in a lab and yields what is not as expected."""
    program = build("sanity") / "csi-sanity"
    expected = Expectation.read()
    started = time.monotonic()
    with bring_up(lab, machines="loop", clusters="both", say=_say):
        _say(f"the lab took {time.monotonic() - started:.1f} s")
        state = lab.read()
        if state is None:
            raise LabError(f"lab {lab.name} has gone")
        found = asyncio.run(advertised(controller=_socket(state, "controller"), node=_socket(state, rounds[0].node)))
        yield from capability_differences(expected, found)
        for wanted in rounds:
            result = _run(wanted, lab=lab, program=program)
            yield from _judge(result, expected, wanted=wanted)
        yield from asyncio.run(left_behind(lab, state))
    _tell_skips({spec: reason for access in ACCESS for spec, reason in expected.reasons(access).items()})


def _socket(state: State, name: str) -> Path:
    return Path(state.sockets[name])


def _run(wanted: Round, *, lab: LabDirectory, program: Path) -> Result:
    """Runs one round and says its figures."""
    started = time.monotonic()
    result = run(wanted, lab=lab, program=program)
    passed, failed, skipped = (count(result.specs, outcome) for outcome in OUTCOMES)
    seconds = time.monotonic() - started
    _say(f"{wanted.name:14} {passed} passed, {failed} failed, {skipped} skipped in {seconds:.1f} s")
    return result


def _judge(result: Result, expected: Expectation, *, wanted: Round) -> Iterator[str]:
    """What of the round is not as expected; the words of failed specs are said."""
    for spec in result.specs:
        if spec.outcome == "failed":
            _say(f"--- {spec.name}\n{spec.words}\n---")
    found = list(spec_differences(expected, result.specs, access=wanted.access))
    if result.code != 0 and not found:
        found = [f"csi-sanity ended with {result.code}; see {result.log}"]
    yield from (f"{wanted.name}: {each}" for each in found)


def _tell_skips(reasons: dict[str, str]) -> None:
    print("skipped:")
    for reason in dict.fromkeys(reasons.values()):
        print(f"  {reason}")
        for spec in (name for name, why in reasons.items() if why == reason):
            print(f"    {spec}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
