"""The contexts that splits need for themselves: none where counting answers, few, counted, and given back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Device, SMResourceOptions, SplitError, system
from cuda_gctx.partitions import Layout, plan

from ..common import DRIVERS, refusal, split

Machines = Callable[..., Any]


@pytest.mark.parametrize("driver", DRIVERS)
def test_dry_runs_make_no_context_where_counting_answers(sim: Machines, driver: str) -> None:
    machine = sim("h200", driver=driver)
    whole = Device(0).resources.sm
    whole.split(SMResourceOptions([64, 30], backfill=[False, True]), dry_run=True)
    whole.split(SMResourceOptions([64, 32, 16, 8, 8]), dry_run=True)
    (group,), rest = whole.split(SMResourceOptions(64))
    rest.split(SMResourceOptions([10, None], backfill=True), dry_run=True)
    rest.split(SMResourceOptions([7, 8, 9]), dry_run=True)
    refusal(SplitError, lambda: rest.split(SMResourceOptions([60, 10])))
    refusal(SplitError, lambda: group.split(SMResourceOptions([48, 24])))
    assert machine.ledger().green_contexts_made == 0


def test_plans_make_no_context(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    for aligned in range(8, 124, 8):
        plan(Device(0), Layout(aligned, SMResourceOptions(2, backfill=True)))
    assert machine.ledger().green_contexts_made == 0


def test_a_dry_run_makes_the_context_that_the_split_uses(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    (group,), _ = split(Device(0).resources.sm, 64)
    group.split(SMResourceOptions([8, 16]), dry_run=True)
    group.split(SMResourceOptions([8, 16]))
    assert machine.ledger().green_contexts_made == 1


def test_contexts_of_splits_are_idle_and_released(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    (a, b), _ = split(Device(0).resources.sm, [24, 32])
    for _ in range(3):
        split(a, 8)
        split(b, 8)
    use = system.memory()[0]
    assert (use.contexts, use.idle) == (2, 2)
    assert system.release_contexts().destroyed == 2
    assert machine.ledger().live_of("green context") == ()
    (inner,), _ = split(a, 8)
    assert inner.sm_count == 8


def test_threads_that_split_the_same_group_share_a_context(sim: Machines) -> None:
    machine = sim("h200", driver="13.0")
    (group,), _ = split(Device(0).resources.sm, 64)
    found: list[int] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        for _ in range(20):
            found.append(split(group, [8, 16])[1].sm_count)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [40] * 80
    assert machine.ledger().green_contexts_made == 1
