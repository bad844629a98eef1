"""The soak of a card on the software driver, where it computes no numbers: that it runs, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

pytestmark = pytest.mark.sim_only


def test_the_soak_runs_and_says_what_it_did() -> None:
    done = subprocess.run(
        [sys.executable, "tests/trust/soak.py", "--seconds", "1.5", "--seed", "5"],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, *rows, last = map(json.loads, done.stdout.splitlines())
    assert first["seed"] == 5
    assert last["wrong"] == []
    assert last["simulated"]
    assert rows[-1]["rounds"] > 0
    assert all(rows[-1]["right"][what] for what in ("results in a pool", "steps across switches", "replays"))


FAKE = """#!/bin/sh
shift 8
"$@"
code=$?
echo "========= ERROR SUMMARY: 0 errors"
exit $code
"""


def test_what_runs_under_compute_sanitizer_runs_without_it_too(tmp_path: Path) -> None:
    (tmp_path / "compute-sanitizer").write_text(FAKE)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    environment = {**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "tests/trust/device_sanitizers.py", "--limit", "100", "memcheck"],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    of_core, of_collectives = map(json.loads, done.stdout.splitlines())
    assert of_core["exit_code"] == 0
    assert of_core["summary"] == "0 errors"
    assert of_core["result"]["partitions"] == 3
    assert of_collectives["exit_code"] == 1  # they need a GPU, and a failure is no silence
