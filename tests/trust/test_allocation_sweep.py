"""A sample of the sweep; ``python -m tests.trust.allocation_sweep`` runs all of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from ..conftest import REPOSITORY

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler, which builds what lets allocations fail"),
]


def test_whatever_allocation_fails_the_caller_gets_a_memory_error_and_nothing_is_left() -> None:
    program = [sys.executable, "-m", "tests.trust.allocation_sweep", "--each", "1", "--seed", "20261124"]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["tried"] > 25
