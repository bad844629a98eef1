"""Random programs of blocks, set_current and other code's pushes, on threads and tasks: a sample of block_model.py.

CUDA_GCTX_OPERATIONS sets how many operations there are (a million takes about two minutes of one core).
"""

from __future__ import annotations

import os

import pytest

from cuda_software_driver import session

from . import block_model
from .block_model import PROGRAM, Program, run, run_program

pytest.importorskip("trio")
pytest.importorskip("gevent")

pytestmark = [pytest.mark.sim_only, pytest.mark.filterwarnings("ignore::cuda_gctx.ResourceOverlapWarning")]

OPERATIONS = int(os.environ.get("CUDA_GCTX_OPERATIONS", "20000"))


def test_random_programs_use_nothing_that_is_gone_and_restore_what_was_current() -> None:
    assert run(OPERATIONS, seed=0) == ""


@pytest.mark.long
def test_many_random_programs() -> None:
    assert run(1_000_000, seed=0) == ""


@pytest.mark.parametrize("seed", [20275, 50253, 80598])
def test_programs_that_found_a_fault_once_find_none(seed: int) -> None:
    """What was current before was put back twice; what was set was found above blocks, or in the place of one."""
    assert run(PROGRAM, seed) == ""


def test_a_program_of_a_seed_is_the_same_each_time() -> None:
    logs = []
    for every in (1, 50):
        with session("h200", driver="13.0", check=False) as machine:
            program = Program(machine, 5, 200, every)
            assert program.run() == ""
            logs.append(program.log)
    assert logs[0] == logs[1]


def test_a_restore_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_model.Line, "restore", lambda self, block: None)
    report = run_program(0, 500, "13.0")
    assert report.startswith("seed 0, driver 13.0, ")
    assert " is current instead of " in report
    assert 2 <= report.count("\n") <= 3, report  # an entrance and an end are enough


def test_a_context_that_is_destroyed_while_it_is_current_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def destroy(self: Program, line: block_model.Line, task: int) -> None:
        with self.raw.green_context(8) as context:
            self.raw.push(context)
        line.stack = [block_model.Place(handle) for handle in self.whole_stack()]

    monkeypatch.setattr(Program, "push", destroy)
    assert "is destroyed while it is current" in run_program(0, 500, "13.0")
