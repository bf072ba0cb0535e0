"""Both type checkers, strict, see the tools' own types through the decorators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def test_pyright_strict_sees_types_untouched() -> None:
    command = [sys.executable, "-m", "pyright", "-p", str(FOLDER), "--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)
    assert found.returncode == 0, found.stdout + found.stderr


def test_mypy_strict_sees_types_untouched(tmp_path: Path) -> None:
    root = FOLDER.parent.parent
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(FOLDER / "api.py")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert found.returncode == 0, found.stdout + found.stderr
