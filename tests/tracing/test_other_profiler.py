"""A program with a profiler of its own, which takes CUPTI over while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.sim_only

# The callbacks of the other profiler are functions of C that do nothing, so that CUPTI gets no buffers.
PROGRAM = """
import ctypes, time
from cuda_gctx import Device, tune

dev = Device(0)
with dev.partition(control=16) as parts:
    tune.spin(parts.control.stream, 16, 1_000_000)
    dev.sync()
    time.sleep(0.6)
    nothing = ctypes.CDLL(None).labs
    ctypes.CDLL("libcupti.so.13").cuptiActivityRegisterCallbacks(nothing, nothing)
    tune.spin(parts.control.stream, 16, 1_000_000)
    dev.sync()
"""


def traced(*options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "cuda_gctx.cli", "trace", *options, "--", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_profiler_of_the_program_wins_and_the_report_says_so() -> None:
    document: dict[str, Any] = json.loads(traced("--json").stdout)
    [process] = document["processes"]
    assert process["was_replaced"]
    assert process["has_ended"]
    [lane] = document["lanes"]
    assert lane["kernels"] == 1  # before the other profiler


def test_the_report_has_one_sentence_about_it() -> None:
    assert traced().stderr.count("profiler") == 1
