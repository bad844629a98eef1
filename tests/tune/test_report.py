"""A report: as JSON, as a table and as one line."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from cuda_gctx import Device, tune
from cuda_gctx.tune import Plan, Report, _report
from cuda_software_driver import session

from .pairs import (
    MS,
    PAIRS,
    read_only,
    table_of,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize("pair", PAIRS)
def test_a_report_is_the_same_after_json(dev: Device, pair: str) -> None:
    report = read_only(pair)
    assert Report.from_json(report.to_json()) == report
    assert str(Report.from_json(report.to_json())) == str(report)
    assert "simulated" in str(report)
    assert sum(line.startswith("> ") for line in str(report).splitlines()) == 1
    for same in (copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert same == report
    assert dataclasses.asdict(report)["bound"] == report.bound


@pytest.mark.parametrize("pair", PAIRS)
def test_the_table_fits_a_terminal(dev: Device, pair: str) -> None:
    assert max(map(len, table_of(read_only(pair)).splitlines())) <= 80


def test_long_plans_are_named_by_their_sizes_in_the_table(dev: Device) -> None:
    names = [f"attention_block_{number}" for number in range(5)]
    report = tune.overlap(**dict.fromkeys(names, work(20, MS)), device=dev, sizes=[8], budget_s=5)
    assert max(map(len, table_of(report).splitlines())) <= 80
    assert "  100/8/8/8/8 " in table_of(report)
    assert "with /: the SMs of the parts" in str(report)
    assert "left out for width: overlap" in str(report)
    assert names[-1] in str(report).split("left out for width: ")[1].split("to_json")[0]
    assert sum(line.startswith("plan ") for line in str(report).splitlines()) == 1


def test_a_report_has_one_table_whatever_its_width(dev: Device) -> None:
    # A pair whose columns do not fit next to the range of the times.
    parts = {"tensor_parallel_gemm": work(80, MS), "sigmoid_of_activations": work(20, MS)}
    for objective in ("makespan", tune.TailLatency("sigmoid_of_activations", quantile=0.5)):
        text = str(tune.overlap(**parts, device=dev, sizes=[8], objective=objective, budget_s=2))
        assert sum(line.startswith("plan ") for line in text.splitlines()) == 1
        assert max(map(len, text[text.index("\nplan ") + 1 :].split("\n\n")[0].splitlines())) <= 80
        assert "/sequence" in text


def test_a_table_of_latencies_has_the_rates_of_the_others(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report, "WIDTH", 200)  # wide enough for every column
    head = table_of(read_only("bulk work")).splitlines()[0]
    assert "bulk, calls/s" in head
    assert "critical, calls/s" not in head


def test_a_table_has_sixteen_rows_at_the_most(dev: Device) -> None:
    report = read_only("a chain")
    assert len(report.results) > 16
    assert len(table_of(report).split("\n\n")[0].splitlines()) == 1 + 16


@cache
def a_report() -> str:
    with session("h200"):
        return tuned("each fills half", sizes=[8]).to_json()


def changed(report: Report, change: Callable[[dict[str, Any]], object]) -> str:
    saved = json.loads(report.to_json())
    change(saved)
    return json.dumps(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.update(schema=99),
        lambda saved: saved.pop("schema"),
        lambda saved: saved.update(colour="red"),
        lambda saved: saved.pop("gain"),
        lambda saved: saved.pop("choice"),
        lambda saved: saved["choice"].update(kind="fast"),
        lambda saved: saved["choice"].update(colour="red"),
        lambda saved: saved["results"][0].update(colour="red"),
        lambda saved: saved["results"][0].update(parts=3),
        lambda saved: saved["alone"]["left"].pop("p10"),
        lambda saved: saved.update(gain=1.03, gain_low=0.95, gain_high=0.99),
        lambda saved: saved.update(objective="fast"),
        lambda saved: saved.update(results=None),
    ],
)
def test_json_that_is_no_report_is_refused(dev: Device, change: Callable[[dict[str, Any]], object]) -> None:
    text = changed(read_only("each fills half"), change)
    with pytest.raises(ValueError, match="not a report of schema"):
        Report.from_json(text)
    with pytest.raises(ValueError, match="not a report of schema"):
        Report.from_json("[]")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bound", 0),
        ("bound", "x"),
        ("gain", None),
        ("gain", "fast"),
        ("sure", "maybe"),
        ("complete", 1),
        ("device", None),
        ("driver", 13),
        ("sm_count", 132.0),
        ("sm_count", True),
        ("reasons", "hello"),
        ("reasons", [1]),
        ("alone", []),
        ("alone", {}),
        ("alone.left.value", True),
        ("alone.left.value", 0),
        ("choice", {}),
        ("choice.layout", {}),
        ("choice.parts", "left"),
        ("choice.places", "ab"),
        ("choice.library_sms", "no"),
        ("choice.kind", "sequence"),
        ("objective", {"throughput": {"left": 1}}),
        ("objective", {"throughput": 3}),
        ("objective", {"tail_latency": "left", "quantile": "p99", "others": 0}),
        ("results", "abc"),
        ("results", []),
        ("results.0.parts", {}),
        ("results.0.plan.parts", ["x", "y"]),
        ("results.0.seconds", 1),
        ("results.0.seconds.value", "fast"),
        ("results.0.seconds.value", -1),
        ("results.0.seconds.p90", float("inf")),
        ("results.0.parts.left.sm_count", None),
        ("results.0.overlap", "x"),
        ("results.0.largest", "x"),
    ],
)
def test_a_wrong_field_of_a_report_is_named(dev: Device, field: str, value: Any) -> None:
    saved = json.loads(a_report())
    if saved["choice"]["kind"] != "sequence" and field == "choice.kind":
        # A plan that can be, and was not measured.
        saved["results"] = [result for result in saved["results"] if result["plan"]["kind"] != "sequence"]
    *path, last = [int(key) if key.isdigit() else key for key in field.split(".")]
    place = saved
    for key in path:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = value
    with pytest.raises(ValueError, match=r"not a report of schema 5: .*\b(" + "|".join(field.split(".")) + r")\b"):
        Report.from_json(json.dumps(saved))


def test_a_plan_that_was_not_measured_is_reported(dev: Device) -> None:
    with pytest.raises(KeyError, match="this plan was not measured"):
        read_only("each fills half").result(Plan("sequence", ("x", "y")))


def test_a_report_in_an_interpreter_is_one_line_with_the_answer(dev: Device) -> None:
    report = read_only("a chain")
    assert repr(report) == (
        f"<Report: choice: product=116, chain=16; {report.gain:.2f}x speedup over sequential "
        f"({report.gain_low:.2f} to {report.gain_high:.2f}); product and chain on NVIDIA H200 (simulated)>"
    )
    assert repr(report).startswith(f"<Report: {str(report).splitlines()[0]}")


RATIO = re.compile(r"(\d+\.\d+)x (?:slower|faster|speedup)[^(\n]*\((\d+\.\d+) to (\d+\.\d+)\)")


def ratios_in(text: str) -> list[tuple[float, ...]]:
    """The ratios of a text with their intervals."""
    return [tuple(map(float, found)) for found in RATIO.findall(text)]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_ratio_of_a_report_lies_within_its_interval(dev: Device, pair: str) -> None:
    report = read_only(pair)
    found = ratios_in(str(report))
    assert found
    assert all(low <= value <= high and value >= 1 for value, low, high in found)


def test_a_table_begins_with_the_choice(dev: Device) -> None:
    for pair in PAIRS:
        rows = table_of(read_only(pair)).splitlines()
        assert rows[1].startswith("> ")


@pytest.mark.parametrize(
    "field",
    [
        "gain",
        "bound",
        "sm_count",
        "openings",
        "alone.left.value",
        "alone.left.samples",
        "results.-1.plan.sm_counts.left",
    ],
)
def test_a_number_of_400_digits_is_refused(dev: Device, field: str) -> None:
    saved = json.loads(a_report())
    *path, last = field.split(".")
    place = saved
    for key in path:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = 10**400
    with pytest.raises(ValueError, match="not a report of schema 5"):
        Report.from_json(json.dumps(saved))


@pytest.mark.parametrize("kind", [Report, Plan])
def test_json_that_is_nested_too_deeply_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        kind.from_json("[" * 100_000)
