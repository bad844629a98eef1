"""A sample of the sweep; ``python -m tests.trust.fault_sweep`` runs all of it."""

from __future__ import annotations

import pytest

from .fault_sweep import some_cases, sweep

pytestmark = pytest.mark.sim_only


def test_whatever_call_fails_the_caller_is_told_and_nothing_is_left() -> None:
    outcomes, wrong = sweep(some_cases(each=6, seed=20261124))
    assert not wrong, "\n".join(wrong)
    assert outcomes["raised"] > 150
    assert outcomes["warned"] > 5
