"""The costs that are measured on a card are those of the card, and are kept after each layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from serving.costs import Costs, made_up  # noqa: E402
from serving.policy import plan_of  # noqa: E402
from serving.shapes import SHAPES  # noqa: E402
from serving.virtual import VirtualExecutor  # noqa: E402
from serving.work import Done, Lane, Placement, Step  # noqa: E402

COSTS = made_up(SHAPES["8B"])
HINTED = 0.9  # of the time without a hint
SIZES = (32, 16)
CHUNKS = (64, 256, 512, 1024, 2048)


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, without the kernels, which need Triton."""
    monkeypatch.setitem(sys.modules, "serving.kernels", ModuleType("serving.kernels"))
    monkeypatch.setattr("serving.kernels", ModuleType("serving.kernels"), raising=False)
    sys.modules.pop("serving.calibrate", None)
    import serving.calibrate as found

    yield found
    sys.modules.pop("serving.calibrate", None)


class FakeCard(VirtualExecutor):
    """A card on which steps take what the cost model says; hints pay for prefill."""

    def __init__(self, costs: Costs = COSTS) -> None:
        super().__init__(costs)
        self.model = SimpleNamespace(shape=SHAPES["8B"], length=31488, slots=12)
        self.device = SimpleNamespace(sm_count=132, name="made-up card")
        self.decodes = [1, 4, 12]
        self.hints: dict[tuple[int, str], bool] = {}

    def stream(self, lane: Lane, placement: Placement) -> Any:
        plan_of(placement, 132)
        sms = (placement.decode_sms if lane == "decode" else placement.prefill_sms) or 132
        return SimpleNamespace(resources=SimpleNamespace(sm=SimpleNamespace(sm_count=sms)))

    def seconds_on(self, stream: Any, lane: Lane, step: Step) -> float:
        sms = stream.resources.sm.sm_count
        hinted = lane == "prefill" and self.hints.get((sms, lane), False)
        return self._costs.seconds(step, sms) * (HINTED if hinted else 1.0)

    def shot(self, *step: Any) -> Any:
        return step

    def prepare(self, shots: Any) -> None:
        assert list(shots)

    @property
    def busy(self) -> bool:
        return bool(self._running or self._finished)

    def finished(self) -> list[Done]:
        if not self._finished and self._running:
            self.rest(float("inf"))
        return super().finished()


def measured(calibrate: ModuleType, until: float) -> list[tuple[Costs, list[dict[str, Any]]]]:
    saved: list[tuple[Costs, list[dict[str, Any]]]] = []
    save: Callable[[Costs, list[dict[str, Any]]], None] = lambda costs, times: saved.append((costs, list(times)))  # noqa: E731
    calibrate.measure_costs(FakeCard(), SIZES, CHUNKS, until=until, save=save)
    return saved


def test_the_costs_of_the_card_are_found(calibrate: ModuleType) -> None:
    costs, times = measured(calibrate, float("inf"))[-1]
    assert sorted(costs.rates) == [16, 32, 100, 116, 132]
    for sms, factor in ((132, 1.0), (116, HINTED), (100, HINTED)):
        step = calibrate._chunk(1024, 8192)
        assert costs.seconds(step, sms) == pytest.approx(COSTS.seconds(step, sms) * factor, rel=0.02)
    for sms in costs.rates:
        assert costs.decode_seconds(12, 200_000, sms) == pytest.approx(COSTS.decode_seconds(12, 200_000, sms), rel=0.02)
    assert set(costs.hints) == {(100, "prefill"), (116, "prefill")}
    assert set(costs.slowdowns) == {"disjoint", "overlay", "priority", "streams"}
    decode, prefill = COSTS.slowdowns["disjoint"]  # the executor gives no hints, which the time alone was measured with
    assert costs.slowdowns["disjoint"] == pytest.approx((decode, prefill / HINTED), rel=0.1)
    assert {one["what"] for one in times if one["sms"] == 116} >= {"chunk of 1792 at 0", "chunk of 896 at 0"}
    # What is not used of small partitions costs no time.
    assert not any("chunk of 2048" in one["what"] for one in times if one["sms"] == 16)


def test_costs_are_kept_after_each_layout(calibrate: ModuleType) -> None:
    saved = measured(calibrate, float("inf"))
    assert [len(costs.rates) for costs, _ in saved] == [1, 3, 5, 5]
    assert [len(measured(calibrate, 0.0)[-1][0].rates)] == [1]


def test_steps_of_decodes_and_prompts_are_measured_by_their_rows(calibrate: ModuleType) -> None:
    truth = ((256, 1.2), (2048, 1.1))
    # What is known of them already is not counted twice.
    found = calibrate.mixed_factors(FakeCard(replace(COSTS, mixed=truth)), replace(COSTS, mixed=((4096, 1.5),)))
    assert dict(found)[64] == dict(found)[256] == 1.2
    assert dict(found)[288] == dict(found)[2048] == 1.1
    assert max(rows for rows, _ in found) == 2048
