"""docs/reference/flags.md says what the code accepts. Run this file as a program to print the page as it should be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kubevirt_csi.settings.flags import ROLES

if TYPE_CHECKING:
    from kubevirt_csi.settings.flags import Flag, Role

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "flags.md"
HEAD = """# Flags

Every value can come from the flag, else from the first environment variable that is set, else from the default. A wrong
value ends the program at once, naming the flag and what is accepted.
"""


def row(flag: Flag) -> str:
    default = "required" if flag.required else f"`{flag.default}`" if flag.default else ""
    variables = ", ".join(f"`{variable}`" for variable in flag.variables)
    return f"| `--{flag.name} {flag.metavar}` | {flag.help} | {default} | {variables} |"


def section(role: Role) -> str:
    lines = [f"## kubevirt-csi {role.name}", "", "| flag | meaning | default | environment |", "|---|---|---|---|"]
    return "\n".join([*lines, *(row(flag) for flag in role.flags)]) + "\n"


def page() -> str:
    return "\n".join([HEAD, *(section(role) for role in ROLES.values())])


def test_the_flags_reference_lists_every_flag_with_its_default_and_variables() -> None:
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page
