"""A sample of the races: `python -m tests.trust.races all` runs all of them, for half an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ..conftest import REPOSITORY

pytestmark = pytest.mark.sim_only

SAMPLES = {
    "closes of partitions": 50,
    "closes of pools": 50,
    "time limits": 50,
    "forks": 25,
    "finalizers": 1,
    "garbage": 1,
    "closes next to blocks": 500,
    "blocks of threads": 5000,
    "nested blocks": 5000,
    "captures": 300,
    "captures of other code": 300,
}


@pytest.mark.parametrize("race", SAMPLES)
def test_nothing_is_lost_at_a_random_moment(race: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.trust.races", race, str(SAMPLES[race])],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_GCTX_DRIVER": "sim:h200@13.0,devices=3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["wrong"] == 0
