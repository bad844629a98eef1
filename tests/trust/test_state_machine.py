"""A sample of the state machine; ``python -m tests.trust.state_machine`` runs more."""

from __future__ import annotations

import os

import pytest

from ..core.block_model import run, run_once
from .state_machine import DRIVERS, Program

for needed in ("trio", "gevent", "anyio", "greenlet"):
    pytest.importorskip(needed)

pytestmark = [pytest.mark.sim_only, pytest.mark.filterwarnings("ignore")]

OPERATIONS = int(os.environ.get("CUDA_GCTX_OPERATIONS", "5000"))


def test_random_programs_of_the_whole_api_do_what_the_model_says() -> None:
    assert run(OPERATIONS, seed=0, kind=Program, drivers=DRIVERS) == ""


def test_a_program_of_a_seed_is_the_same_each_time() -> None:
    first, second = (run_once(Program, "13.0", 3, 300, every, ()) for every in (1, 50))
    assert (first.failure, second.failure) == ("", "")
    assert first.log == second.log
