"""Order and ownership in a pool on a GPU, by stamps of its own timer: random programs, all pairs of plans, and races.

`python tests/partitions/order_model.py --seeds 200` runs more programs, of other seeds each time.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from cuda_gctx import Device, Layout, PartitionPool, Timeline
from cuda_gctx.tune import Plan, spin

from .order_model import Program, pairs_of_plans
from .test_order import OrdersNothing

pytestmark = [
    pytest.mark.gpu_only,
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore::cuda_gctx.ResourceOverlapWarning"),
]

PARTS = ("decode", "prefill")
TURNS = 20
STEP_NS = 2_000_000
APART_NS = 2_000  # stamps that are written by different SMs differ by less


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_keep_both_orders_and_own_their_sms(dev: Device, seed: int) -> None:
    assert Program(dev, seed).run() == []


def test_the_model_finds_a_pool_that_orders_nothing(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_gctx.partitions.pool.Switching", OrdersNothing)
    assert any(Program(dev, seed).run() for seed in range(10))


def test_every_pair_of_plans_that_share_layouts_keeps_both_orders(dev: Device) -> None:
    assert pairs_of_plans(dev) == []


def plans() -> dict[str, Plan]:
    """An overlay whose layout also has a partition for decode, as a server has that uses both, and other plans."""
    layout = Layout(decode=16, prefill=None)
    return {
        "sequence": Plan("sequence", PARTS),
        "priority": Plan("priority", PARTS, first="decode"),
        "overlay": Plan("overlay", PARTS, layout, {"prefill": "prefill"}, first="decode"),
        "partitions": Plan("partitions", PARTS, layout, {part: part for part in PARTS}),
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [("overlay", "partitions"), ("sequence", "partitions"), ("priority", "partitions"), ("priority", "overlay")],
)
def test_a_part_never_runs_next_to_its_own_last_step(dev: Device, one: str, other: str) -> None:
    timeline = Timeline(dev, spans=2 * TURNS)
    with PartitionPool(dev) as pool:
        found = plans()
        for name in (one, other):
            found[name].switch(pool)
        dev.sync()
        for number in range(2 * TURNS):  # each switch comes while the step before runs
            stream = found[one if number % 2 == 0 else other].switch(pool)["decode"]
            with timeline.span(stream, str(number)):
                spin(stream, 1, STEP_NS)
        dev.sync()
        spans = sorted(timeline.read().spans, key=lambda span: int(span.name))
    assert len(spans) == 2 * TURNS
    early = [
        f"step {later.name} began {before.end_ns - later.start_ns} ns before the end of the one before"
        for before, later in pairwise(spans)
        if later.start_ns + APART_NS < before.end_ns
    ]
    assert early == []
    assert all(span.duration_ns >= STEP_NS * 0.99 for span in spans)
