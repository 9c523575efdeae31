# ruff: noqa: INP001 - beside the program that uses it, not a package
"""Halves generated modules: what the node needs to start stays, the rest is imported when somebody asks for it.

Every start of every node would otherwise make 60 classes for calls that it never answers: a tenth of the time until it
serves, and much more in an emulated guest. A module keeps its name and all its names; the other half lies beside it in
``rest.py``, which a module-level ``__getattr__`` imports (PEP 562).

A class has to be in the same half as all that its fields name, because betterproto2 looks types up in the module of
the class. So a half is what can be reached from its roots.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

REST = "rest"
WORD = re.compile(r"\w+")
LAZY = """
if TYPE_CHECKING:
    from .rest import *  # noqa: F403
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        from . import rest

        return getattr(rest, name)
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A class with what is done to it after its definition, as it is written."""

    name: str
    source: str
    names: frozenset[str]
    """All that it mentions outside of its doc strings, in annotations too."""


class Module:
    """A generated module: documentation, ``__all__``, imports, classes, and imports that follow the classes."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        body = ast.parse(source).body
        first = next(index for index, node in enumerate(body) if isinstance(node, ast.ClassDef))
        self.exports = next(ast.literal_eval(node.value) for node in body if _assigns(node, "__all__"))
        self._all = next(node for node in body if _assigns(node, "__all__"))
        self._head = [node for node in body[:first] if node is not self._all]
        self._tail = [node for node in body[first:] if isinstance(node, ast.ImportFrom)]
        self.blocks = {block.name: block for block in self._blocks(body[first:])}

    def written(self, names: Iterable[str], *, borrowed: Iterable[str] = ()) -> str:
        """A module with these classes only, and the imports that they need; ``borrowed`` come from the other half."""
        chosen = [self.blocks[name] for name in self.blocks if name in set(names)]
        used = frozenset().union(*(block.names for block in chosen))
        exports = "".join(f'    "{name}",\n' for name in sorted(block.name for block in chosen))
        parts = ["".join(self._lines[: self._all.lineno - 1]), f"__all__ = (\n{exports})\n\n"]
        parts += [self._text(node) for node in self._head if _needed(node, used)]
        parts += [f"from . import {', '.join(borrowed)}\n"] if borrowed else []
        parts += [block.source for block in chosen]
        parts += [self._text(node) for node in self._tail if _needed(node, used)]
        return "".join(parts)

    def halved(self, first: frozenset[str]) -> dict[str, str]:
        """File name to source: the classes named, and the others."""
        others = [name for name in self.blocks if name not in first]
        kept = [name for name in self.blocks if name in first]
        mentioned = frozenset().union(*(self.blocks[name].names for name in others))
        whole = "".join(f'    "{name}",\n' for name in self.exports)
        start = self.written(kept)
        begin, end = start.index("__all__ = ("), start.index(")\n", start.index("__all__ = ("))
        lazy = LAZY if "import TYPE_CHECKING" in start else f"\nfrom typing import TYPE_CHECKING\n{LAZY}"
        start = f"{start[:begin]}__all__ = (\n{whole}{start[end:]}{lazy}"
        borrowed = sorted(name for name in kept if name in mentioned)
        return {"__init__.py": start, f"{REST}.py": self.written(others, borrowed=borrowed)}

    def _blocks(self, body: list[ast.stmt]) -> Iterator[Block]:
        """A class begins with its decorators and ends where the next one, or an import, begins."""
        classes = [index for index, node in enumerate(body) if isinstance(node, ast.ClassDef)]
        for index in classes:
            node = body[index]
            assert isinstance(node, ast.ClassDef)  # noqa: S101 - chosen so
            following = body[index + 1] if index + 1 < len(body) else None
            last = following if isinstance(following, ast.Expr) else node
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert last.end_lineno is not None  # noqa: S101 - a parsed file has them
            source = "".join(self._lines[begin - 1 : last.end_lineno])
            yield Block(node.name, f"\n\n{source}", frozenset(_mentioned(node)))

    def _text(self, node: ast.stmt) -> str:
        return "".join(self._lines[node.lineno - 1 : node.end_lineno])


def halves(sources: Mapping[str, str], *, roots: Iterable[str]) -> dict[str, str]:
    """All files, with those modules halved of which not everything can be reached from the classes named."""
    modules = {path: Module(source) for path, source in sources.items() if "\nclass " in source}
    reached = _reached(modules.values(), set(roots))
    written = dict(sources)
    for path, module in modules.items():
        first = frozenset(module.blocks) & reached
        if first and first != set(module.blocks):
            folder = path.removesuffix("__init__.py")
            written |= {f"{folder}{name}": text for name, text in module.halved(first).items()}
    return written


def _reached(modules: Iterable[Module], roots: set[str]) -> set[str]:
    blocks = {name: block for module in modules for name, block in module.blocks.items()}
    reached: set[str] = set()
    while roots:
        name = roots.pop()
        reached.add(name)
        roots |= {other for other in blocks[name].names if other in blocks} - reached
    return reached


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)


def _needed(node: ast.stmt, used: frozenset[str]) -> bool:
    """Imports are needed when one of their names is used; all else always."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return True
    bound = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    always = {"TYPE_CHECKING", "betterproto2", "default_message_pool"}
    return bool(bound & (used | always))


def _mentioned(node: ast.ClassDef) -> Iterator[str]:
    """Names, attributes, and the words of strings that are no documentation: annotations are strings here."""
    documentation = {
        id(statement.value)
        for statement in ast.walk(node)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(text)) if id(part) not in documentation:
                yield from WORD.findall(text)
            case _:
                pass
