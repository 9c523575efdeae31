"""The committed code is what the protos generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kubevirt_csi._csi.csi.v1 import _COMPILER_VERSION

ROOT = Path(__file__).parents[2]


def python_files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.py"))}


def test_the_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "protos" / "generate.py", tmp_path], check=True, capture_output=True, timeout=120
    )
    generated, committed = python_files(tmp_path), python_files(ROOT / "kubevirt_csi" / "_csi")
    assert sorted(generated) == sorted(committed)
    assert [name for name, text in generated.items() if committed[name] != text] == []


def test_the_committed_code_was_written_by_the_locked_compiler() -> None:
    lock = (ROOT / "requirements" / "test.txt").read_text()
    assert f"betterproto2-compiler=={_COMPILER_VERSION} " in lock
