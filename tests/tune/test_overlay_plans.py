"""Overlays, and switching between plans of every kind: who runs where, and what waits for what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from cuda_gctx import Device, Layout, PartitionPool, Stream
from cuda_gctx.measure.loop import TIMED
from cuda_gctx.tune import Plan, spin

pytestmark = pytest.mark.sim_only

MS = 1_000_000
PARTS = ("decode", "prefill")
OVERLAY = Plan(
    "overlay",
    PARTS,
    Layout(prefill=96),
    {"prefill": "prefill"},
    first="decode",
    sm_counts={"decode": 132, "prefill": 96},
)
PLANS = {
    "sequence": Plan("sequence", PARTS),
    "streams": Plan("streams", PARTS),
    "priority": Plan("priority", PARTS, first="decode"),
    "overlay": OVERLAY,
    "partitions": Plan("partitions", PARTS, Layout(decode=16, prefill=None), {part: part for part in PARTS}),
}


# ---- the plan


def test_the_urgent_part_of_an_overlay_has_the_whole_device_and_the_highest_priority(dev: Device) -> None:
    with OVERLAY.open(dev) as streams:
        assert list(streams) == ["decode", "prefill"]
        assert streams["decode"].priority == dev.priority_range[1]
        assert streams["decode"].resources.sm.sm_count == 132
        assert not streams["decode"].context.is_green
        assert streams["prefill"].resources.sm.sm_count == 96


def test_the_other_parts_of_an_overlay_may_share_its_partition(dev: Device) -> None:
    plan = Plan("overlay", ("a", "b", "c"), Layout(bulk=64), {"b": "bulk", "c": "bulk"}, first="a")
    with PartitionPool(dev) as pool, plan.open(pool) as streams:
        assert streams["b"].context == streams["c"].context == pool.prepare(bulk=64).bulk.context
        assert streams["b"] != streams["c"]
        assert plan.switch(pool)["b"] == streams["b"]


def test_an_overlay_is_the_same_after_json_and_names_its_sizes() -> None:
    assert Plan.from_json(OVERLAY.to_json()) == OVERLAY
    assert str(OVERLAY) == "decode=all, prefill=96"


@pytest.mark.parametrize(
    "change",
    [
        {"first": None},
        {"first": "other"},
        {"layout": None},
        {"places": {}},
        {"places": {"decode": "prefill", "prefill": "prefill"}},
        {"places": {"prefill": "elsewhere"}},
        {"parts": ("decode",), "places": {}},
    ],
)
def test_an_overlay_that_means_nothing_is_refused(change: dict[str, Any]) -> None:
    fields = {
        "kind": "overlay",
        "parts": PARTS,
        "layout": Layout(prefill=96),
        "places": {"prefill": "prefill"},
        "first": "decode",
    }
    with pytest.raises(ValueError, match=r"overlay|partitions of"):
        Plan(**{**fields, **change})


def test_verification_states_the_overlap_of_an_overlay(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        report = OVERLAY.verify(pool)
        assert not report.problems
        assert "decode over the others" in repr(report)
        assert "decode and prefill share SM " in str(report)
        assert "as requested" in str(report)
        assert {proof.name: len(proof.sm_ids) for proof in report.contexts} == {"decode": 132, "prefill": 96}
        assert sum(len(sms) for _, sms in report.sm_map().owners) == 132
        apart = PLANS["partitions"].verify(pool)
        assert not apart.problems
        assert not apart.shared_on_purpose
        assert "isolated" in repr(apart)
        assert PLANS["streams"].verify(pool).contexts[0].name == "decode and prefill"


# ---- switching


def ends(streams: dict[str, Stream], work: Callable[[Stream], None]) -> dict[str, Any]:
    """Enqueue work on each stream; the events behind it."""
    found = {}
    for part, stream in streams.items():
        work(stream)
        found[part] = stream.record(options=TIMED)
    return found


@pytest.mark.parametrize(("before", "after"), list(permutations(PLANS, 2)))
def test_a_switch_between_plans_of_any_kinds_is_ordered_on_the_device(dev: Device, before: str, after: str) -> None:
    with PartitionPool(dev) as pool:
        old = PLANS[before].switch(pool)
        first = ends(old, lambda stream: spin(stream, 8, 5 * MS))
        new = PLANS[after].switch(pool)
        # The switch did not wait on the host.
        assert not any(event.is_done for event in first.values())
        starts = {part: stream.record(options=TIMED) for part, stream in new.items()}
        for stream in {*old.values(), *new.values()}:
            stream.sync()
        for part, start in starts.items():
            if new[part] in old.values():
                continue  # goes on
            for event in (first[other] for other in first if old[other] not in new.values()):
                assert start - event >= 0


def test_work_that_two_plans_share_goes_on(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        old = PLANS["streams"].switch(pool)
        spin(old["prefill"], 8, 5 * MS)
        new = PLANS["priority"].switch(pool)
        assert new["prefill"] == old["prefill"]
        assert new["decode"] != old["decode"]
        quick = new["decode"].record()
        quick.sync()
        assert not old["prefill"].is_done
        assert getattr(pool, "current", None) is None  # a plan without partitions


def test_plans_and_layouts_are_ordered_behind_each_other(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        whole = PLANS["streams"].switch(pool)
        spin(whole["prefill"], 8, 5 * MS)
        behind = whole["prefill"].record(options=TIMED)
        parts = pool.switch(decode=16, prefill=None)
        start = parts.decode.stream.record(options=TIMED)
        start.sync()
        assert start - behind >= 0
        assert pool.current is parts


def test_a_switch_to_the_current_plan_makes_no_driver_calls_and_keeps_the_streams(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        for plan in PLANS.values():
            streams = plan.switch(pool)
            assert plan.switch(pool) == streams
        closed = list(streams.values())
    assert all(stream.is_closed for stream in closed)


def test_a_stream_that_was_closed_is_made_again(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        PLANS["streams"].switch(pool)["decode"].close()
        PLANS["partitions"].switch(pool)
        assert not PLANS["streams"].switch(pool)["decode"].is_closed
