"""The example server measures, chooses, says why, and answers every request."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "serving" / "server.py"


@pytest.fixture(scope="module")
def server() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_server", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_server"] = module
    spec.loader.exec_module(module)
    return module


def printed(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, PROGRAM, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_prints_what_it_chose_and_why() -> None:
    text = printed("--limit", "25ms", "--requests", "3")
    assert "(simulated), limit 25 ms" in text
    assert "chosen: decode first: the highest rate of prefill within the limit; with plain streams prefill is" in text
    assert "partitions do not pay here" in text
    assert "3 requests, " in text


def test_a_shorter_limit_makes_it_partition() -> None:
    text = printed("--limit", "3ms", "--requests", "2")
    assert "chosen: overlay, 16 SMs left to decode" in text
    assert "faster, and gaps reach" in text
    assert int(text.split(" switches")[0].split()[-1]) > 0


def test_a_limit_that_nothing_keeps_is_said(server: ModuleType) -> None:
    trials = [server.Trial(plan, gap, 10.0) for plan, gap in zip(server.plans(), (50.0, 40.0), strict=False)]
    best, reason = server.choose(trials, 25.0)
    assert best is trials[1]
    assert "no plan keeps 90% of 25 ms" in reason


def test_the_simpler_plan_wins_where_rates_are_equal(server: ModuleType) -> None:
    trials = [server.Trial(plan, 10.0, 100.0 + number / 10) for number, plan in enumerate(server.plans())]
    best, reason = server.choose(trials, 25.0)
    assert best.plan.kind == "sequence"
    assert "partitions do not pay here" in reason


def test_limits_have_units(server: ModuleType) -> None:
    assert server.milliseconds("25ms") == server.milliseconds("25") == server.milliseconds("0.025s") == 25.0
    for wrong in ("0ms", "-1", "soon"):
        with pytest.raises(ValueError, match=r"limit is more than|could not convert"):
            server.milliseconds(wrong)


def test_it_is_short_enough_to_be_copied() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 300
