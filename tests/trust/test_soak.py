"""The soak of a card on the software driver, where it computes no numbers: that it runs, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY
from .soak import growth

pytestmark = pytest.mark.sim_only


def test_the_soak_runs_and_says_what_it_did() -> None:
    done = subprocess.run(
        [sys.executable, "tests/trust/soak.py", "--seconds", "1.5", "--seed", "5", "--programs"],
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
    assert last["too_much"] == []
    checked = ("results in a pool", "steps across switches", "replays", "traces", "programs")
    assert all(rows[-1]["right"][what] for what in checked)


def test_memory_that_grows_after_the_half_is_named() -> None:
    def settled(rounds: int, torch_mib: float, host_mib: float) -> dict[str, float]:
        return {"rounds": rounds, "torch_mib": torch_mib, "host_mib": host_mib, "contexts": 20}

    flat = [settled(20, 10, 500), settled(40, 100, 600), settled(60, 100, 605), settled(80, 100.5, 610)]
    assert growth(flat) == {"grown": {"torch_mib": 0.5, "host_mib": 10, "contexts": 0}, "too_much": []}
    assert growth([*flat[:3], settled(80, 102, 610)])["too_much"] == ["torch_mib"]
    assert growth([*flat[:3], {**flat[3], "contexts": 23}])["too_much"] == ["contexts"]
    assert "not measured" in growth([settled(1, 0, 0), settled(2, 0, 0), settled(3, 0, 0), settled(4, 9, 9)])["grown"]


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
