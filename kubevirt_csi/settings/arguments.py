"""Reads the command line: which role, its flags, and what is said about a wrong one.

The predecessor chooses a role with ``--run-node-service=false`` or ``--run-controller-service=false`` instead of a
word, and its flags may have a single dash; both work, so that its manifests start this driver unchanged.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from kubevirt_csi.settings import values
from kubevirt_csi.settings.flags import ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kubevirt_csi.settings.flags import Role
    from kubevirt_csi.settings.roles import Settings

PROGRAM = "kubevirt-csi"
USAGE_ERROR = 2
SINGLE_DASH = re.compile(r"^-(?=[a-z][a-z-])|^-(?=v(=|$))")
# Role -> the flag that says whether an older manifest's process has it.
OLDER_CHOICE = {"controller": "run-controller-service", "node": "run-node-service"}


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, Settings]:
    """The chosen role's name and its settings; ends the program for --help and for a wrong value.

    Raises:
        SystemExit: with 0 after --help, with 2 after saying what is wrong.
    """
    role, rest = _chosen(list(arguments))
    namespace = _parser(role).parse_args(rest)
    fields: dict[str, Any] = {}
    for flag in role.flags:
        try:
            value = flag.value(getattr(namespace, flag.name), environment)
        except ValueError as error:
            _stop(f"{PROGRAM} {role.name}: {error}")
        if flag.field is not None:
            fields[flag.field] = value
    return role.name, role.settings(**fields)


def _chosen(arguments: list[str]) -> tuple[Role, list[str]]:
    if arguments and arguments[0] in ROLES:
        return ROLES[arguments[0]], arguments[1:]
    older = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for role, flag in OLDER_CHOICE.items():
        older.add_argument(f"--{flag}", dest=role, nargs="?", const="true", default="true")
    choice, rest = older.parse_known_args([SINGLE_DASH.sub("--", argument) for argument in arguments])
    roles = [role for role, flag in OLDER_CHOICE.items() if _runs(flag, getattr(choice, role))]
    if len(roles) != 1:
        _help_or_stop(arguments)
    return ROLES[roles[0]], rest


def _runs(flag: str, given: str) -> bool:
    try:
        return values.boolean(given)
    except ValueError as error:
        _stop(f"{PROGRAM}: --{flag}: {given!r} is not accepted: {error}")


def _help_or_stop(arguments: list[str]) -> NoReturn:
    roles = "\n".join(f"  {role.name:<11} {role.summary}" for role in ROLES.values())
    text = f"usage: {PROGRAM} ROLE [--help] [FLAG...]\n\nroles:\n{roles}\n"
    if arguments and arguments[0] in {"-h", "--help", "help"}:
        sys.stdout.write(f"{text}\nEach role tells its flags: {PROGRAM} ROLE --help\n")
        raise SystemExit(0)
    found = f"{arguments[0]!r} is no role" if arguments and not arguments[0].startswith("-") else "no role is chosen"
    _stop(f"{PROGRAM}: {found}, and a process has exactly one (older manifests: --run-node-service=false)\n\n{text}")


def _parser(role: Role) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {role.name}",
        usage=f"{PROGRAM} {role.name} [FLAG...]",
        description=f"{role.summary[0].upper()}{role.summary[1:]}.",
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for flag in role.flags:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        groups[flag.group].add_argument(
            f"--{flag.name}", dest=flag.name, metavar=flag.metavar, help=flag.description().replace("%", "%%")
        )
    return parser


def _stop(message: str) -> NoReturn:
    sys.stderr.write(f"{message.rstrip()}\n")
    raise SystemExit(USAGE_ERROR)
