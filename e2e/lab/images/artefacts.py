"""Expensive results that are made once: a folder named by the hash of all that decides what is in it.

An artefact is made in a temporary folder beside its final place and renamed when it is complete, under a lock of its
own kind, so an interrupted or a parallel run leaves no half of one. Nothing here knows what an artefact contains.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from e2e.cache import cache_root
from e2e.tools.build import locked

DIGEST_CHARACTERS = 16
KEPT_PER_KIND = 2  # each driver edit makes a new guest disk of about 1 GB
Progress = Callable[[str], None]


def images_root() -> Path:
    root = cache_root() / "images"
    root.mkdir(parents=True, exist_ok=True)
    return root


def digest(*inputs: str | bytes | Path) -> str:
    """A short hash over texts, and over the content and relative names of the files below paths."""
    total = hashlib.sha256()
    for item in inputs:
        for piece in _pieces(item):
            total.update(hashlib.sha256(piece).digest())
    return total.hexdigest()[:DIGEST_CHARACTERS]


def _pieces(item: str | bytes | Path) -> Iterable[bytes]:
    match item:
        case str():
            yield item.encode()
        case bytes():
            yield item
        case Path() if item.is_dir():
            for file in sorted(item.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield str(file.relative_to(item)).encode()
                    yield file.read_bytes()
        case Path():
            yield item.read_bytes()


def artefact(kind: str, key: str, *, make: Callable[[Path], None], progress: Progress) -> Path:
    """Returns the folder ``KIND-KEY``; when there is none, lets ``make`` fill a temporary one first.

    The oldest folders of the kind are deleted when there are more than a few: what a running guest has open stays
    readable for it, but a guest of an old image cannot be started again.
    """
    root = images_root()
    result = root / f"{kind}-{key}"
    if not result.exists():
        progress(f"making {result.name}")
        with locked(root / f".{kind}.lock"):
            if not result.exists():
                _prune(root, kind)
                _make_into(result, make)
    os.utime(result)
    return result


def _make_into(result: Path, make: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=f".{result.name}-") as temporary:
        folder = Path(temporary) / "result"
        folder.mkdir()
        make(folder)
        folder.rename(result)


def _prune(root: Path, kind: str) -> None:
    """Makes room for one: deletes the oldest, and what killed runs have left; the caller holds the kind's lock."""
    key = "[0-9a-f]" * DIGEST_CHARACTERS
    made = sorted(root.glob(f"{kind}-{key}"), key=lambda path: path.stat().st_mtime)
    for old in [*root.glob(f".{kind}-{key}-*"), *made[: 1 - KEPT_PER_KIND]]:
        shutil.rmtree(old)
