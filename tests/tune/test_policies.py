"""Policies: which plan for a load and a limit, from measurements, and what service shows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Device, Layout, PartitionPool
from cuda_gctx.tune import Plan, Policy
from cuda_software_driver import session

from ..common import refusal

pytestmark = pytest.mark.sim_only

PARTS = ("decode", "prefill")
STREAMS = Plan("streams", PARTS)
PRIORITY = Plan("priority", PARTS, first="decode")
OVERLAY = Plan("overlay", PARTS, Layout(prefill=96), {"prefill": "prefill"}, first="decode")
APART = Plan("partitions", PARTS, Layout(decode=32, prefill=None), {part: part for part in PARTS})


MENU = ((APART, 1e-3, 5.0), (OVERLAY, 1.5e-3, 6.0), (PRIORITY, 3e-3, 6.1), (STREAMS, 8e-3, 9.0))


def made(**options: Any) -> Policy:
    """A policy of measurements: the higher the rate, the longer the latency, and all longer with more requests."""
    rows = [
        ({"batch": batch, "kind": kind}, plan, latency_s * batch / 8 * (2 if kind == "long" else 1), rate)
        for batch in (8, 16, 32)
        for kind in ("short", "long")
        for plan, latency_s, rate in MENU
    ]
    return Policy.of(rows, **{"latency": "decode", "bulk": "prefill", "device": Device(0), **options})


# ---- asking


@pytest.mark.parametrize(
    ("limit_s", "load", "plan"),
    [
        (1e-3, {"batch": 8, "kind": "short"}, APART),
        (1.4e-3, {"batch": 8, "kind": "short"}, APART),
        (1.6e-3, {"batch": 8, "kind": "short"}, OVERLAY),
        (1.5e-3, {"batch": 8, "kind": "short"}, OVERLAY),  # exactly
        (math.nextafter(1.5e-3, 0), {"batch": 8, "kind": "short"}, APART),
        (math.inf, {"batch": 8, "kind": "short"}, STREAMS),
        (1, {"batch": 0, "kind": "short"}, STREAMS),
        (20e-3, {"batch": 8, "kind": "short"}, STREAMS),
        (1.6e-3, {"batch": 5, "kind": "short"}, OVERLAY),  # counts as 8
        (3.5e-3, {"batch": 9, "kind": "short"}, OVERLAY),  # counts as 16
        (3.5e-3, {"kind": "long", "batch": 8}, OVERLAY),  # in any order
        (0.1e-3, {"batch": 32, "kind": "long"}, APART),  # no plan keeps it: the closest
    ],
)
def test_the_fastest_plan_that_keeps_the_limit_is_chosen(limit_s: float, load: dict[str, Any], plan: Plan) -> None:
    assert made().choose(limit_s, **load) == plan


def test_a_plan_is_kept_unless_another_is_better_by_more_than_the_hysteresis() -> None:
    policy = made()
    overlay, priority = policy.choose(2e-3, batch=8, kind="short"), policy.choose(3.5e-3, batch=8, kind="short")
    assert (overlay, priority) == (OVERLAY, PRIORITY)
    # The priority gains less than 5% over the overlay.
    assert policy.choose(3.5e-3, overlay, batch=8, kind="short") is overlay
    assert policy.choose(20e-3, overlay, batch=8, kind="short") == STREAMS
    # A plan that misses the limit is left at once.
    assert policy.choose(2e-3, priority, batch=8, kind="short") is overlay
    # An equal plan from elsewhere counts as the same, an unknown one as none.
    assert policy.choose(3.5e-3, Plan.from_json(OVERLAY.to_json()), batch=8, kind="short") == OVERLAY
    assert policy.choose(3.5e-3, Plan("sequence", PARTS), batch=8, kind="short") == PRIORITY


def test_a_load_that_moves_around_the_edge_of_a_bucket_does_not_switch_to_and_fro() -> None:
    policy, current, switches = made(), None, 0
    for number in range(100):
        batch = 8.1 if number % 2 else 7.9
        chosen = policy.choose(10e-3, current, batch=batch, kind="short")
        switches += current is not None and chosen is not current
        current = chosen
        assert policy.predict(chosen, batch=batch, kind="short").latency_s <= 10e-3
    assert switches <= 1
    # Well inside the smaller bucket the faster plan is used again.
    assert policy.choose(10e-3, current, batch=4, kind="short") == STREAMS
    assert made(hysteresis=0.0).choose(10e-3, current, batch=7.9, kind="short") == STREAMS


@pytest.mark.parametrize(
    "load",
    [
        {"batch": 33, "kind": "short"},
        {"batch": 8, "kind": "other"},
        {"batch": 8},
        {"batch": "8", "kind": "short"},
        {"batch": -1, "kind": "short"},
        {"batch": math.nan, "kind": "short"},
        {"batch": math.inf, "kind": "short"},
        {"batch": 8, "kind": "short", "more": 1},
        {},
    ],
)
def test_a_load_that_the_policy_does_not_know_is_refused_with_those_it_knows(load: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expects a load with batch=\.\.\. \(0 to 32\), kind=long/short, not"):
        made().choose(1.0, **load)


def test_a_choice_is_explained() -> None:
    policy = made()
    assert policy.explain(2e-3, batch=6, kind="short") == (
        "decode=all, prefill=96 for batch=8, kind=short within 2 ms: p99 of decode 1.5 ms (measured), prefill 6 calls/s"
    )
    assert policy.explain(1e-4, batch=6, kind="short").endswith("no plan keeps the limit, and this one is the closest")
    assert policy.explain(3.5e-3, policy.plans[policy.plans.index(OVERLAY)], batch=8, kind="short").endswith("; kept")


def test_a_choice_opens_with_a_pool(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        for limit_s in (1e-3, 2e-3, 20e-3):
            streams = made().choose(limit_s, batch=8, kind="short").switch(pool)
            assert list(streams) == ["decode", "prefill"]


# ---- service


SHORT: dict[str, Any] = {"batch": 8, "kind": "short"}


def test_a_plan_that_misses_the_limit_in_service_is_left_and_comes_back_when_it_keeps_it() -> None:
    policy = made()
    assert policy.choose(2e-3, **SHORT) == OVERLAY
    before = policy.to_json()
    policy.observe(SHORT, OVERLAY, 2.6e-3, 6.0)
    # At once, for every load, and also for the limit that it kept.
    assert policy.choose(2e-3, **SHORT) == APART
    assert policy.choose(4e-3, batch=16, kind="short") == APART
    assert policy.predict(OVERLAY, **SHORT).latency_s == pytest.approx(1.5e-3 + 0.5 * 1.1e-3)
    assert "(measured, times 1.37 as observed since)" in policy.explain(2.2e-3, **SHORT)
    for _ in range(5):
        policy.observe(SHORT, OVERLAY, 1.5e-3, 6.0)
    assert policy.choose(1.6e-3, **SHORT) == APART  # it has to last
    for _ in range(40):
        policy.observe(SHORT, OVERLAY, 1.5e-3, 6.0)
    assert policy.choose(1.6e-3, **SHORT) == OVERLAY
    assert policy.to_json() == before
    assert policy == made()


def test_a_rate_that_is_lower_in_service_loses() -> None:
    policy = made()
    for _ in range(10):
        policy.observe(SHORT, STREAMS, 8e-3, 4.5)
    assert policy.predict(STREAMS, **SHORT).rate == pytest.approx(4.5, rel=0.02)
    assert policy.choose(20e-3, **SHORT) == PRIORITY


def test_a_plan_that_was_not_observed_is_corrected_like_its_kind() -> None:
    wide = Plan("partitions", PARTS, Layout(decode=64, prefill=None), {part: part for part in PARTS})
    rows = [
        ({"batch": 8}, plan, latency_s, 1.0) for plan, latency_s in ((APART, 1e-3), (wide, 0.8e-3), (STREAMS, 2e-3))
    ]
    policy = Policy.of(rows, latency="decode", bulk="prefill")
    policy.observe({"batch": 8}, APART, 1.2e-3, 1.0)
    assert policy.predict(wide, batch=8).latency_s == pytest.approx(0.8e-3 * 1.1)
    assert policy.predict(STREAMS, batch=8).latency_s == 2e-3
    policy.observe({"batch": 8}, wide, 0.8e-3, 1.0)
    assert policy.predict(wide, batch=8).latency_s == 0.8e-3  # its own


def test_one_pause_of_the_host_counts_as_twice_the_time_at_the_most() -> None:
    policy = made()
    policy.observe(SHORT, APART, 1.0, 5.0)
    assert policy.predict(APART, **SHORT).latency_s == pytest.approx(1.5e-3)
    for _ in range(30):
        policy.observe(SHORT, APART, 10e-3, 5.0)
    assert policy.predict(APART, **SHORT).latency_s == pytest.approx(10e-3, rel=0.01)


@pytest.mark.parametrize(
    ("load", "plan", "latency_s", "rate", "error"),
    [
        (SHORT, OVERLAY, math.nan, 1.0, ValueError),
        (SHORT, OVERLAY, -1e-3, 1.0, ValueError),
        (SHORT, OVERLAY, 0.0, 1.0, ValueError),
        (SHORT, OVERLAY, math.inf, 1.0, ValueError),
        (SHORT, OVERLAY, 1e-3, -1.0, ValueError),
        (SHORT, OVERLAY, 1e-3, math.nan, ValueError),
        ({"batch": 64, "kind": "short"}, OVERLAY, 1e-3, 1.0, ValueError),
        (SHORT, Plan("sequence", PARTS), 1e-3, 1.0, KeyError),
    ],
)
def test_an_observation_that_cannot_be_is_refused_and_changes_nothing(
    load: dict[str, Any], plan: Plan, latency_s: float, rate: float, error: type[Exception]
) -> None:
    policy = made()
    refusal(error, lambda: policy.observe(load, plan, latency_s, rate))
    assert policy.predict(OVERLAY, **SHORT) == made().predict(OVERLAY, **SHORT)


@pytest.mark.parametrize("limit_s", [math.nan, -1.0, -1])
def test_a_limit_that_cannot_be_is_refused(limit_s: float) -> None:
    assert str(refusal(ValueError, lambda: made().choose(limit_s, **SHORT))).startswith("limit_s must be a number")


# ---- making


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (({"batch": 8}, APART, math.nan, 1.0), "latency_s must be a number"),
        (({"batch": 8}, APART, 0.0, 1.0), "latency_s must be a number of seconds above 0, not 0"),
        (({"batch": 8}, APART, 1e-3, -1.0), "rate must be a number of calls per second of 0 or more, not -1"),
        (({"batch": -8}, APART, 1e-3, 1.0), "the buckets of batch must be ascending numbers of 0 or more"),
        (({"batch": math.nan}, APART, 1e-3, 1.0), "the buckets of batch must be ascending numbers of 0 or more"),
        (({"size": 8}, APART, 1e-3, 1.0), "every load needs the keys batch"),
    ],
)
def test_measurements_that_cannot_be_are_refused(row: Any, words: str) -> None:
    rows = [({"batch": 8}, STREAMS, 1e-3, 1.0), row]
    assert words in str(refusal(ValueError, lambda: Policy.of(rows, latency="decode", bulk="prefill")))
    assert "at least one measurement" in str(refusal(ValueError, lambda: Policy.of([], latency="a", bulk="b")))


def test_a_policy_of_another_card_is_refused_and_another_driver_is_a_warning(dev: Device) -> None:
    policy = made(device=dev)
    assert (policy.sm_count, policy.driver) == (dev.sm_count, "13.0")
    assert f"on {dev.name}, {dev.sm_count} SMs, driver 13.0" in str(policy)
    text = policy.to_json()
    assert Policy.from_json(text, dev) == Policy.from_json(text) == policy
    with session("a100", driver="13.0"):
        error = refusal(ValueError, lambda: Policy.from_json(text, Device(0)))
        assert re.search(r"measured on .*H200.* with 132 SMs, and the device is .*A100.* with 108: measure", str(error))
        refusal(ValueError, lambda: Policy.from_json(text))
    with session("h200", driver="13.1"), pytest.warns(UserWarning, match=r"with driver 13\.0, and the driver is 13\.1"):
        Policy.from_json(text, Device(0))


def test_a_policy_of_no_card_can_be_asked_and_not_saved(dev: Device) -> None:
    policy = made(device=None)
    assert policy.choose(1.6e-3, **SHORT) == OVERLAY
    assert "loads, of no card" in str(policy)
    for use in (policy.to_json, lambda: policy.demand_device(dev)):
        assert "does not record its device" in str(refusal(ValueError, use))


def test_a_policy_has_a_table_and_a_short_repr() -> None:
    policy = made()
    assert len(repr(policy)) < 100
    assert "batch  kind   p99 of decode from" in str(policy)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.update(schema=7),
        lambda saved: saved.update(plans=[]),
        lambda saved: saved.update(keys=["batch"]),
        lambda saved: saved["buckets"][0].reverse(),
        lambda saved: saved["predictions"].pop(),
        lambda saved: saved["predictions"][0].__setitem__(0, ["long", 1.0]),
        lambda saved: saved["predictions"][0].__setitem__(0, [1.0]),
        lambda saved: saved["predictions"][0].__setitem__(0, [0.0, 1.0]),
        lambda saved: saved.update(hysteresis=2),
        lambda saved: saved.update(quantile=2),
        lambda saved: saved.pop("driver"),
        lambda saved: saved.update(device="", sm_count=0),
    ],
)
def test_json_that_is_no_policy_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(made().to_json())
    change(document)
    with pytest.raises(ValueError, match="not a policy of schema 2"):
        Policy.from_json(json.dumps(document))


def test_json_of_a_policy_is_read_as_it_was() -> None:
    assert Policy.from_json(made().to_json()) == made()


def test_a_small_gain_is_no_reason_to_switch() -> None:
    policy = made()
    overlay = policy.plans[policy.plans.index(OVERLAY)]
    # Also well inside a bucket, where a somewhat larger load changes nothing.
    assert policy.choose(3.5e-3, overlay, batch=4, kind="short") is overlay
    assert made(hysteresis=0.0).choose(3.5e-3, overlay, batch=4, kind="short") == PRIORITY
