"""A value and its interval are one quantity, wherever both are printed: in reports, in their reasons and on pages."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from cuda_gctx import Device
from cuda_gctx.measure.statistics import Estimate
from cuda_gctx.tune import Report
from cuda_gctx.tune._causes import beyond_noise
from cuda_gctx.tune._report import relation, times

from ..common import refusal
from .worlds import OBJECTIVES, STEPWISE, TRUTHS, World, lognormal, measured, stepwise

REPOSITORY = Path(__file__).resolve().parents[2]
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
# Such as "1.35x slower than the choice (1.31 to 1.40)" and "27.5% (26 to 28)".
VALUE_AND_INTERVAL = re.compile(
    rf"(?<![\w.,]){NUMBER}(?:x|%)?(?: [A-Za-z%][\w%]*){{0,6}} \({NUMBER} to {NUMBER}(?:x|%| \w+)?[);,]"
)

NOISE = re.compile(rf"\({NUMBER} to {NUMBER}\), no difference beyond noise")


def outside(text: str) -> list[str]:
    """What a text states with an interval that does not contain it: a value, or that there is no difference."""
    found = [match[0] for match in NOISE.finditer(text) if not float(match[1]) <= 1.02 <= float(match[2]) + 0.02]
    for match in VALUE_AND_INTERVAL.finditer(text):
        value, low, high = (float(number.replace(",", "")) for number in match.groups())
        counted = "." not in match[1] and "." in match[2]  # "140 cases (1.08 to 5.9 times)"
        if not counted and not low <= value <= high:
            found.append(match[0])
    return found


def test_what_is_outside_of_its_interval_is_found() -> None:
    assert outside("1.03x faster than best (0.95 to 0.99)") == ["1.03x faster than best (0.95 to 0.99)"]
    assert outside("1.03x faster than best (0.95 to 1.09); 12% (11 to 13), of 140 cases (1.08 to 5.9 times)") == []


def test_a_difference_that_is_certain_is_not_called_noise() -> None:
    assert outside("17.33x faster than the choice (15.70 to 18.82), no difference beyond noise") == [
        "(15.70 to 18.82), no difference beyond noise"
    ]
    assert outside("1.02x faster than the choice (0.98 to 1.06), no difference beyond noise") == []
    certain = Estimate(1 / 17, 1 / 18, 1 / 16, 15, True)
    assert [beyond_noise(one) for one in (certain, certain.inverse)] == ["", ""]
    assert beyond_noise(Estimate(1.01, 0.99, 1.03, 15, True)) == ", no difference beyond noise"


def test_a_ratio_outside_of_its_interval_cannot_be_made() -> None:
    assert "does not contain 1.03" in str(refusal(ValueError, lambda: Estimate(1.03, 0.95, 0.99, 15, True)))
    faster = Estimate(1 / 1.03, 1 / 1.05, 1 / 1.01, 15, True)
    assert relation(faster, " than the choice") == "1.03x faster than the choice (1.01 to 1.05)"
    assert times(faster.inverse, " speedup") == "1.03x speedup (1.01 to 1.05)"


@pytest.mark.parametrize(
    "path", sorted(REPOSITORY.glob("benchmarks/results/*-studies.json")), ids=lambda path: path.name
)
def test_stored_reports_state_values_within_their_intervals(path: Path) -> None:
    reports = [
        Report.from_json(json.dumps(one))
        for study in json.loads(path.read_text())["studies"]
        for one in study["reports"]
    ]
    assert reports
    assert [one for report in reports for one in outside(str(report))] == []


@pytest.mark.sim_only
def test_new_reports_state_values_within_their_intervals(dev: Device) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    reports = [
        measured(World(TRUTHS[truth], lognormal(0.03), random.Random(numbers.random()), luck=0.01), dev)
        for truth in ("streams_gain_a_little", "one_overlay_is_best")
    ]
    for name, objective in ((next(iter(STEPWISE)), "rate"), ("calls of 2 ms, a gain", "latency")):
        world = stepwise(name, objective, random.Random(numbers.random()))
        reports.append(measured(world, dev, objective=OBJECTIVES[objective]))
    texts = [str(report) for report in reports]
    assert all(map(VALUE_AND_INTERVAL.search, texts))
    assert [one for text in texts for one in outside(text)] == []
