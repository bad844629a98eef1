"""Policies: which plan for a load and a limit, from curves and a few measured pairs, checked by measurement."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from cuda_gctx import Device, Layout, PartitionPool, Stream, tune
from cuda_gctx.sim import session
from cuda_gctx.tune import Check, Plan, Policy, Prediction, _policy_building, spin

pytestmark = pytest.mark.sim_only

MS = 1_000_000
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
        for plan, latency_s, rate in (
            (APART, 1e-3, 5.0),
            (OVERLAY, 1.5e-3, 6.0),
            (PRIORITY, 3e-3, 6.1),
            (STREAMS, 8e-3, 9.0),
        )
    ]
    return Policy.of(rows, latency="decode", bulk="prefill", **options)


# ---- asking


@pytest.mark.parametrize(
    ("limit_s", "load", "plan"),
    [
        (1e-3, {"batch": 8, "kind": "short"}, APART),
        (1.4e-3, {"batch": 8, "kind": "short"}, APART),
        (1.6e-3, {"batch": 8, "kind": "short"}, OVERLAY),
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
        {"batch": 8, "kind": "short", "more": 1},
        {},
    ],
)
def test_a_load_that_the_policy_does_not_know_is_refused_with_those_it_knows(load: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"knows loads of batch=\.\.\. \(at most 32\), kind=long/short, and not"):
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


# ---- building


def parts_of(batch: int, context: int) -> Mapping[str, Callable[[Stream], None]]:
    def decode(stream: Stream) -> None:
        spin(stream, batch, MS * (context // 1024))

    return {"decode": decode, "prefill": lambda stream: spin(stream, 264, 4 * MS)}


@cache
def built() -> str:
    """The JSON of a policy that is measured once."""
    loads = {"batch": [16, 48], "context": [1024, 4096]}
    with (
        session("h200"),
        patch.object(_policy_building, "CURVE_ROUNDS", 2),
        patch.object(_policy_building, "BATCHES", 1),
    ):
        return tune.policy(
            parts_of, latency="decode", loads=loads, device=Device(0), quantile=0.8, checks=4, budget_s=600
        ).to_json()


def test_a_policy_is_built_from_curves_and_a_few_pairs_and_checks_itself(dev: Device) -> None:
    policy = Policy.from_json(built())
    known = [one for row in policy.predictions for one in row if one is not None]
    measured = sum(one.measured for one in known)
    assert len(known) == 4 * len(policy.plans)
    assert measured == 2 * len(policy.plans) + len(policy.checks)
    assert {plan.kind for plan in policy.plans} == {"sequence", "streams", "priority", "overlay", "partitions"}
    assert len(policy.checks) == 4
    for check in policy.checks:
        # What was measured afterwards has replaced the prediction.
        assert policy.predict(check.plan, **check.load) == check.found
        if check.plan.kind == "partitions":
            assert abs(check.latency_error) < 0.05
            assert abs(check.rate_error) < 0.05
    assert policy.latency_error == max(0.0, *(check.latency_error for check in policy.checks))


def test_what_a_policy_predicts_for_partitions_is_what_a_measurement_finds(dev: Device) -> None:
    policy = Policy.from_json(built())
    for plan in policy.plans:
        if plan.kind == "partitions":
            urgent = plan.sm_counts["decode"]
            for load in policy.loads:
                waves = -(-int(load["batch"]) // (2 * urgent))
                alone_s = waves * 1e-3 * int(load["context"]) / 1024
                assert policy.predict(plan, **load).latency_s == pytest.approx(alone_s, rel=0.05)


def test_a_limit_that_a_prediction_only_just_keeps_is_not_trusted() -> None:
    policy = Policy.from_json(built())
    document = json.loads(built())
    for check in document["checks"]:
        check["found"]["latency_s"] = 1.5 * check["predicted"]["latency_s"]
    doubtful = Policy.from_json(json.dumps(document))
    assert doubtful.latency_error == pytest.approx(0.5)
    for load in policy.loads:
        for plan in policy.plans:
            one = policy.predict(plan, **load)
            if not one.measured:
                chosen = doubtful.choose(1.4 * one.latency_s, **load)
                if chosen == plan:  # then none keeps the limit
                    assert doubtful.predict(chosen, **load).latency_s * 1.5 > 1.4 * one.latency_s


def test_a_policy_has_a_table_and_a_short_repr() -> None:
    policy = Policy.from_json(built())
    assert len(repr(policy)) < 100
    text = str(policy)
    assert "checked 4 predictions: latency at most " in text
    assert "batch  context  p80 of decode from" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.update(schema=7),
        lambda saved: saved.update(plans=[]),
        lambda saved: saved.update(keys=["batch"]),
        lambda saved: saved["buckets"][0].reverse(),
        lambda saved: saved["predictions"].pop(),
        lambda saved: saved["predictions"][0][0].update(latency_s="long"),
        lambda saved: saved["checks"][0].update(plan=99),
        lambda saved: saved.update(hysteresis=2),
        lambda saved: saved.pop("conditions"),
    ],
)
def test_json_that_is_no_policy_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(built())
    change(document)
    with pytest.raises(ValueError, match="not a policy of schema 1"):
        Policy.from_json(json.dumps(document))


def test_json_of_a_policy_is_read_as_it_was() -> None:
    policy = Policy.from_json(built())
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_json(made().to_json()) == made()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"latency": "other"}, "two parts by name, one of them 'other'"),
        ({"loads": {}}, "loads must be a mapping"),
        ({"loads": {"batch": 16, "context": [1024]}}, "the buckets of batch must be numbers or texts"),
        ({"parts_of": 3}, "parts_of must be a function"),
        ({"budget_s": 0.5}, "budget_s=.* is too short"),
        ({"quantile": 2}, "quantile must be"),
    ],
)
def test_bad_requests_are_refused(dev: Device, change: dict[str, Any], words: str) -> None:
    given = {"parts_of": parts_of, "latency": "decode", "loads": {"batch": [16], "context": [1024]}, **change}
    with pytest.raises((TypeError, ValueError, RuntimeError), match=words):
        tune.policy(given.pop("parts_of"), device=dev, **given)


def test_a_prediction_that_keeps_the_limit_by_less_than_its_error_is_not_chosen() -> None:
    predicted, safe = Prediction(0.9e-3, 9.0, False), Prediction(0.5e-3, 1.0, True)
    options: dict[str, Any] = {
        "keys": ("batch",),
        "buckets": ((8,),),
        "latency": "decode",
        "bulk": "prefill",
        "quantile": 0.99,
        "plans": (STREAMS, APART),
        "predictions": ((predicted, safe),),
    }
    assert Policy(**options).choose(1e-3, batch=8) == STREAMS
    check = Check({"batch": 8}, STREAMS, Prediction(1e-3, 1.0, False), Prediction(1.3e-3, 1.0, True))
    doubtful = Policy(**options, checks=(check,))
    assert doubtful.choose(1e-3, batch=8) == APART
    assert doubtful.choose(1.2e-3, batch=8) == STREAMS
    assert "it may be up to 30% longer" in doubtful.explain(1.2e-3, batch=8)


def test_a_small_gain_is_no_reason_to_switch() -> None:
    policy = made()
    overlay = policy.plans[policy.plans.index(OVERLAY)]
    # Also well inside a bucket, where a somewhat larger load changes nothing.
    assert policy.choose(3.5e-3, overlay, batch=4, kind="short") is overlay
    assert made(hysteresis=0.0).choose(3.5e-3, overlay, batch=4, kind="short") == PRIORITY


def test_a_load_that_is_no_number_is_refused() -> None:
    policy = Policy.of([({"batch": 8}, Plan("sequence", ("a", "b")), 0.01, 1.0)], latency="a", bulk="b")
    with pytest.raises(ValueError, match="this policy knows loads of batch"):
        policy.choose(0.02, batch=math.nan)
