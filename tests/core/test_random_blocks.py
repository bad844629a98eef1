"""A sample of the random program on blocks: see random_blocks.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("random_blocks.py")


@pytest.mark.sim_only
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_destroyed_while_it_is_current(seed: int) -> None:
    command = [sys.executable, PROGRAM, "--seed", str(seed), "--operations", "20000"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (child.returncode, child.stderr) == (0, ""), child.stdout
    assert "no misuse" in child.stdout
