"""A plan opens what it names, on a device and with a pool."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from cuda_gctx import Device, Layout, PartitionPool, SMResourceOptions, tune
from cuda_gctx.tune import Plan
from cuda_gctx.tune._plans import partition_names
from cuda_software_driver import session

from ..common import refusal
from .pairs import (
    MS,
    chain,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


PARTS = ("a", "b")


def plan_of(kind: str) -> Plan:
    if kind == "also":
        return Plan("also", ("a", "b"), way="chunked")
    if kind == "partitions":
        return Plan("partitions", ("a", "b"), Layout(a=16), {"a": "a", "b": "background"})
    return Plan(kind, ("a", "b"), first="b" if kind == "priority" else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sequence", "streams", "priority", "also", "partitions"])
def test_a_plan_opens_on_a_device_and_with_a_pool(dev: Device, kind: str) -> None:
    plan = plan_of(kind)
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(Plan.from_json(plan.to_json())) == hash(plan)
    with PartitionPool(dev) as pool:
        for where in (dev, pool):
            with plan.open(where) as streams:
                assert list(streams) == ["a", "b"]
                assert (streams["a"] == streams["b"]) == (kind in ("sequence", "also"))
                counts = [stream.resources.sm.sm_count for stream in streams.values()]
                assert counts == ([16, 116] if kind == "partitions" else [132, 132])
                priorities = [stream.priority for stream in streams.values()]
                assert priorities == ([0, -5] if kind == "priority" else [0, 0])
            assert all(stream.is_closed for stream in streams.values()) == (kind != "partitions" or where is dev)


def test_a_plan_that_another_process_reads_has_the_hash_of_its_equals_there() -> None:
    plan = plan_of("partitions")
    hash(plan)  # which the plan keeps
    program = (
        "import pickle, sys; from cuda_gctx.tune import Plan; plan = pickle.loads(sys.stdin.buffer.read());"
        "assert hash(plan) == hash(Plan.from_json(plan.to_json()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(plan), env=environment, check=True)


def test_a_plan_is_refused_where_a_part_would_get_another_number_of_sms(dev: Device) -> None:
    plan = Plan("partitions", PARTS, Layout(a=16, b=None), {"a": "a", "b": "b"}, sm_counts={"a": 16, "b": 116})
    with PartitionPool(dev) as pool:
        assert plan.switch(pool)["b"].resources.sm.sm_count == 116
    for uses in (Plan.switch, lambda plan, pool: plan.open(pool).__enter__(), lambda plan, pool: plan.verify(pool)):
        with session("a100", driver="13.0"), PartitionPool(Device(0)) as pool:
            error = refusal(ValueError, lambda pool=pool, uses=uses: uses(plan, pool))
            assert str(error).startswith("this plan is for another device: b was to get 116 SMs, and gets 92")
            unsized = replace(plan, sm_counts={})
            assert unsized.switch(pool)["b"].resources.sm.sm_count == 92


def test_the_plan_feeds_a_pool(dev: Device) -> None:
    plan = tuned("a chain").choice
    assert plan is not None
    assert plan.layout is not None
    with PartitionPool(dev) as pool:
        parts = pool.prepare(plan.layout)
        with plan.open(pool) as streams:
            assert streams == {name: parts[place].stream for name, place in plan.places.items()}


@pytest.mark.parametrize("name", ["background", "class", "pre-fill"])
def test_a_part_may_have_a_name_that_partitions_cannot_have(dev: Device, name: str) -> None:
    report = tune.overlap(**{name: chain, "product": work(2 * 232, MS)}, device=dev, budget_s=4)
    assert report.choice is not None
    assert report.choice.places == {name: "part_0", "product": "product"}
    assert report.choice.sm_counts[name] == 16


def test_renamed_parts_keep_out_of_each_others_way(dev: Device) -> None:
    names = ["part_0", "a b", "close", "part_2", "ok"]
    assert partition_names(names) == {
        "part_0": "part_0",
        "a b": "part_1",
        "close": "part_3",
        "part_2": "part_2",
        "ok": "ok",
    }


@pytest.mark.parametrize("name", ["", " ", "a\nb"])
def test_a_part_needs_a_name_that_can_be_read(dev: Device, name: str) -> None:
    with pytest.raises(ValueError, match="is not readable in a table"):
        tune.overlap(**{name: chain, "product": chain}, device=dev)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "fast"},
        {"parts": ()},
        {"parts": ("a", "a")},
        {"first": "a"},
        {"kind": "priority"},
        {"kind": "priority", "first": "c"},
        {"library_sms": True},
        {"way": "chunked"},
        {"kind": "also"},
        {"layout": Layout(a=8)},
        {"kind": "partitions", "layout": Layout(a=8)},
        {"kind": "partitions", "layout": Layout(a=8), "places": {"a": "a", "b": "a"}},
        {"kind": "partitions", "layout": Layout(a=8), "places": {"a": "a", "b": "b"}},
    ],
)
def test_a_plan_that_means_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"plan|part"):
        Plan(**{"kind": "sequence", "parts": ("a", "b"), **fields})


@pytest.mark.parametrize(
    "fields",
    [{"parts": "ab"}, {"parts": (1, 2)}, {"layout": 8}, {"places": ["a"]}, {"places": {"a": 1}}, {"library_sms": "no"}],
)
def test_a_plan_of_wrong_types_is_refused(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(TypeError, match=rf"^{name}\S* must be "):
        Plan(**{"kind": "sequence", "parts": ("a", "b"), **fields})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layuot": None}, "not a plan of schema 5: layuot is unknown"),
        ({"kind": ...}, "not a plan of schema 5: kind is missing"),
        ({"layout": {}}, "not a plan of schema 5: layout: "),
        ({"places": {"a": 1}}, "not a plan of schema 5: places.a must be a string, not int"),
    ],
)
def test_a_saved_plan_with_a_wrong_field_is_refused_with_the_field(change: dict[str, Any], message: str) -> None:
    saved = json.loads(Plan("sequence", ("a", "b")).to_json()) | change
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan.from_json(json.dumps({name: value for name, value in saved.items() if value is not ...}))


def test_a_plan_for_another_device_is_refused(dev: Device) -> None:
    whole = SMResourceOptions(dev.sm_count - 8, backfill=True)
    plan = Plan("partitions", ("a", "b", "c"), Layout(a=whole, b=8), {"a": "a", "b": "b", "c": "background"})
    with pytest.raises(ValueError, match=r"leaves no SMs of .* for background"), plan.open(dev):
        pass
    with pytest.raises(TypeError, match="not on int"), plan.open(0):  # type: ignore[arg-type]
        pass
