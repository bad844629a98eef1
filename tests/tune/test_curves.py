"""Curves: what a part takes over the sizes of partitions, alone and next to a load."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_gctx import Device, Stream, tune
from cuda_gctx.tune import Curve, spin
from cuda_software_driver import session

pytestmark = pytest.mark.sim_only

MS = 1_000_000


def product(stream: Stream) -> None:
    spin(stream, 132, 2 * MS)  # half of the device at once; in fewer SMs in waves


def bulk(stream: Stream) -> None:
    spin(stream, 264, 4 * MS)


@cache
def measured() -> str:
    """The JSON of a curve next to a load, which is measured once."""
    with session("h200"):
        return tune.curve(product, device=Device(0), sizes=[16, 32, 64], load=bulk).to_json()


def test_a_part_takes_as_many_waves_as_its_sms_need(dev: Device) -> None:
    curve = Curve.from_json(measured())
    assert [point.sm_count for point in curve.points] == [16, 32, 64, 132]
    for point in curve.points:
        waves = -(-132 // (2 * point.sm_count))
        assert point.seconds.value == pytest.approx(waves * 2e-3, rel=0.03)
        assert point.seconds.low <= point.seconds.value <= point.seconds.high
        assert point.seconds.samples >= 7
        assert point.rate == pytest.approx(1 / point.seconds.value)
    assert curve.complete
    assert (curve.part, curve.load) == ("product", "bulk")
    assert len(curve.conditions) == 2


def test_a_load_on_other_sms_slows_nothing_that_is_simulated(dev: Device) -> None:
    *placed, whole = Curve.from_json(measured()).points
    for point in placed:
        assert point.slowdown is not None
        assert point.slowdown.value == pytest.approx(1, rel=0.03)
        assert point.load_rate is not None
        waves = -(-264 // (2 * (132 - point.sm_count)))
        assert point.load_rate == pytest.approx(1 / (waves * 4e-3), rel=0.1)
    assert whole.loaded is None  # no room for the load


def test_what_a_load_slows_is_measured(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_gctx.tune import _measure

    batch = _measure.Runner._latency

    def slowed(self: Any, trial: Any, objective: Any) -> Any:
        sample = batch(self, trial, objective)
        sample.latencies = tuple(one * (1.3 if len(trial.parts) > 1 else 1.0) for one in sample.latencies)
        return sample

    monkeypatch.setattr(_measure.Runner, "_latency", slowed)
    point = tune.curve(product, device=dev, sizes=[32], load=bulk, closed_loop=True).points[0]
    assert point.slowdown is not None
    assert point.slowdown.value == pytest.approx(1.3, rel=0.03)


def test_latencies_are_those_of_calls_that_arrive_at_random_and_of_all_rounds(dev: Device) -> None:
    def point(**options: Any) -> Any:
        return tune.curve(product, device=dev, sizes=[64], load=bulk, **options).points[0]

    busy, single = point(quantile=0.9), point(quantile=0.9, closed_loop=True)
    # At half of what the part can take, one call in ten waits for more than a whole one.
    assert single.latency.value == pytest.approx(single.seconds.value, rel=0.05)
    assert busy.latency.value > 1.5 * single.latency.value
    assert busy.latency.low < busy.latency.value < busy.latency.high
    assert busy.latency.is_known
    assert busy.latency.samples >= 7 * 12
    assert busy.slowdown.low <= 1.0 <= busy.slowdown.high
    calm = point(quantile=0.9, rate=0.1 / busy.seconds.value)
    assert calm.latency.value < busy.latency.value


def test_a_size_that_was_not_measured_is_named() -> None:
    curve = Curve.from_json(measured())
    assert curve.point(64) == curve.points[2]
    with pytest.raises(KeyError, match="48 SMs were not measured; measured: 16, 32, 64, 132"):
        curve.point(48)


def test_a_curve_has_a_table_a_short_repr_and_a_picture(tmp_path: Path) -> None:
    curve = Curve.from_json(measured())
    assert len(repr(curve)) < 120
    assert "16 SMs" in repr(curve)
    assert "p50 next to bulk" in str(curve)
    text = curve.svg(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text() == text
    assert "prefers-color-scheme:dark" in text
    titles = [element.text or "" for element in ElementTree.fromstring(text).iter() if element.tag.endswith("title")]
    # Each point has its interval; the whole device has no load.
    assert sum("SMs: " in title for title in titles) == 2 * (4 + 3 + 3)
    for name in ("product, back to back", "product, the same next to bulk", "97.5% interval", ">10 ms<", ">120<"):
        assert name in text


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.update(schema=7),
        lambda saved: saved.update(points=[]),
        lambda saved: saved["points"][0].update(sm_count="many"),
        lambda saved: saved["points"][0].pop("slowdown"),
        lambda saved: saved.update(unknown=1),
    ],
)
def test_json_that_is_no_curve_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    saved = json.loads(measured())
    change(saved)
    with pytest.raises(ValueError, match="not a curve of schema 2"):
        Curve.from_json(json.dumps(saved))


def test_a_short_budget_measures_fewer_sizes(dev: Device) -> None:
    curve = tune.curve(lambda stream: spin(stream, 132, 100 * MS), device=dev, budget_s=6)
    assert not curve.complete
    assert 3 <= len(curve.points) < 17
    assert "incomplete" in str(curve)


def test_a_budget_for_two_sizes_measures_the_smallest_and_the_largest(dev: Device) -> None:
    # As long in any size, so that the time suffices for three: seven rounds of 0.4 s each.
    curve = tune.curve(lambda stream: spin(stream, 1, 400 * MS), device=dev, budget_s=13)
    assert [point.sm_count for point in curve.points] == [8, 128, 132]


def test_a_part_can_be_replayed_as_a_graph(dev: Device) -> None:
    curve = tune.curve(product, device=dev, sizes=[32], launch="graphs")
    assert curve.point(32).seconds.value == pytest.approx(3 * 2e-3, rel=0.03)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"part": 3}, "part must be a function"),
        ({"load": 3}, "load must be a function"),
        ({"launch": "threads"}, "launch must be one of calls, graphs"),
        ({"budget_s": 0}, "budget_s must be a positive number"),
        ({"sizes": [7]}, "cannot have 7 SMs"),
        ({"device": 0}, "device must be a Device"),
        ({"part": lambda stream: None}, "enqueued no work"),
    ],
)
def test_bad_requests_are_refused(dev: Device, options: dict[str, Any], words: str) -> None:
    given = {"part": product, "device": dev, **options}
    with pytest.raises((TypeError, ValueError), match=words):
        tune.curve(given.pop("part"), **given)
