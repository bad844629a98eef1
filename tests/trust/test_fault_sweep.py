"""A sample of the sweep; ``python -m tests.trust.fault_sweep`` runs all of it."""

from __future__ import annotations

import pytest

from .fault_sweep import DRIVERS, TOLERATED, faults, run, some_cases, sweep

pytestmark = pytest.mark.sim_only


def test_whatever_call_fails_the_caller_is_told_and_nothing_is_left() -> None:
    outcomes, wrong = sweep(some_cases(each=6, seed=20261124))
    assert not wrong, "\n".join(wrong)
    assert outcomes["raised"] > 150
    assert outcomes["warned"] > 5


# Of the failures that many operations swallow, one operation that does.
EXAMPLES = {
    "cuCtxGetId": "Context.close",
    "cuCtxGetCurrent": "Device.partition",
    "cuCtxPopCurrent": "Context.current",
    "cuDevSmResourceSplit": "SMResource.split",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", TOLERATED)
def test_each_failure_that_is_swallowed_is_one_after_which_the_answer_is_safe(function: str) -> None:
    """Each row of the list is needed; of the stack of contexts, leaks and later calls, `run` judges."""
    operations_of = TOLERATED[function][0] or {EXAMPLES[function]}
    chosen = (
        case
        for driver in reversed(DRIVERS)
        for operation in sorted(operations_of)
        for case in faults(driver, operation, 0)
        if case.function == function
    )
    for case in chosen:
        outcome, wrong = run(case)
        assert not wrong, case
        if outcome == "tolerated":
            return
    pytest.fail(f"no failure of {function} is swallowed any more: take it off the list")
