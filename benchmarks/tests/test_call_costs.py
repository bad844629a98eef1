"""The cost of each call, measured in one run for the raw driver, this package and cuda.core."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import call_costs
import pytest
from call_costs import CALLS, Effort, measure, measure_in_fresh_process

LEAST = Effort(rounds=2, context_pairs=1, imports=1)
DRIVERS = ["12.4", "12.5", "12.8", "13.0", "13.1", "13.4"]  # the versions with green contexts


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A measurement from a folder whose modules must not be imported."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "cuda_gctx.py").write_text("raise SystemExit('the wrong module')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return measure_in_fresh_process(Effort(rounds=20, context_pairs=5, imports=3), "sim:b200@13.1,devices=2")


def test_the_result_names_what_was_measured(output: Any) -> None:
    assert output["card"] == "NVIDIA B200 (simulated)"
    assert output["cuda"] == "13.1"
    assert output["imports"]


def test_every_call_is_timed_raw_and_with_this_package(output: Any) -> None:
    calls = {call["name"]: call["contestants"] for call in output["calls"]}
    assert list(calls) == [call.name for call in CALLS]
    assert all("ns" in contestants["cuda_gctx"] for contestants in calls.values())
    assert {name for name, contestants in calls.items() if "ns" not in contestants.get("raw", {})} == {"is_green"}
    for contestants in calls.values():
        for contestant in contestants.values():
            if "ns" in contestant:
                assert 0 <= contestant["ns"]["p10"] <= contestant["ns"]["median"] <= contestant["ns"]["p90"]


@pytest.mark.skipif(importlib.util.find_spec("cuda.core") is None, reason="cuda.core is not installed here")
def test_cuda_core_runs_on_the_simulated_card_that_this_package_uses(output: Any) -> None:
    assert all("ns" in call["contestants"].get("cuda.core", {"ns": {}}) for call in output["calls"])


def test_simulated_times_are_compared_with_nothing(output: Any) -> None:
    assert not any(call["targets"] or call["ratios"] for call in output["calls"])


def test_calls_can_be_timed_on_another_device() -> None:
    measured = measure_in_fresh_process(Effort(rounds=1, context_pairs=1, imports=1, device=1), "sim:h200,devices=2")
    assert all("ns" in call["contestants"]["cuda_gctx"] for call in measured["calls"])


def test_calls_are_compared_in_the_same_rounds() -> None:
    """The host has two speeds, and this package meets the slow one once more often."""
    call = next(call for call in CALLS if call.name == "is_current")
    fast, slow = (100.0, 160.0), (200.0, 300.0)  # the raw call, and ours: the limits are 180 and 310
    rounds = [fast, fast, slow, slow, slow]
    samples = {"raw": [raw for raw, _ in rounds], "cuda_gctx": [ours for _, ours in rounds], "cuda.core": [170.0] * 5}
    to_raw, to_core = call_costs.targets(call, samples)
    assert (to_raw["met"], to_raw["over_ns"]) == (True, -10)
    assert (to_core["met"], to_core["over_ns"]) == (False, 130)
    assert call_costs.ratios(samples) == {"raw": 1.5, "cuda.core": round(300 / 170, 3)}
    assert call_costs.targets(call, {"raw": [1.0]}) == [{"what": "runs", "met": False}]
    assert call_costs.ratios({"raw": [1.0]}) == {}


@pytest.mark.parametrize("driver", DRIVERS)
def test_measuring_leaves_nothing_behind(sim: Callable[..., Any], driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(number: int) -> dict[str, object]:
        raise ImportError("not here")

    monkeypatch.setattr(call_costs, "names_of_core", absent)
    sim("h200", driver=driver)
    calls = {call["name"]: call["contestants"] for call in measure(LEAST)["calls"]}
    assert calls["query"]["cuda.core"]["refused"] == "ImportError: not here"
    assert "ns" in calls["stream"]["raw"]
