"""Plans that take a share of the bulk work into the urgent step: which share, when they win, and when they lose."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_gctx import Device, PartitionPool, Stream, tune
from cuda_gctx.tune import Plan, Report, TailLatency, Throughput, spin
from cuda_gctx.tune._guard import sitting
from cuda_gctx.tune._search import Search
from cuda_gctx.tune._work import Part, Task

from ..common import refusal
from .pairs import WHOLE

pytestmark = pytest.mark.sim_only

US = 1_000
PARTS = ("prefill", "decode")


def prefill(stream: Stream) -> None:
    """Fills the device for 4 ms, in which no other block begins."""
    spin(stream, WHOLE, 4_000 * US)


def decode(stream: Stream) -> None:
    """Reads the weights for 400 us, with more blocks than a small partition has room for."""
    spin(stream, WHOLE, 400 * US)


def sharing_reads(stream: Stream, share: float) -> None:
    """The weights are read once for both."""
    spin(stream, WHOLE, round(400 * US + 0.5 * share * 4_000 * US))


def slower_than_both(stream: Stream, share: float) -> None:
    spin(stream, WHOLE, round(600 * US + 1.5 * share * 4_000 * US))


def tuned(together: Any, objective: Any, **options: Any) -> Report:
    return tune.overlap(
        prefill,
        decode,
        together=together,
        objective=objective,
        device=Device(0),
        sizes=[32, 64],
        library_sms="off",
        **options,
    )


@pytest.mark.parametrize(
    "objective",
    ["makespan", Throughput(decode=8, prefill=1), TailLatency("decode", others=0.3, quantile=0.9, rate=1000)],
    ids=str,
)
def test_work_that_shares_its_reads_is_taken_together(dev: Device, objective: Any) -> None:
    # With less time, too few calls are measured for the smallest share that is enough.
    report = tuned(sharing_reads, objective, budget_s=24 if isinstance(objective, TailLatency) else 16)
    assert report.choice.kind == "together"
    assert report.choice.first == "decode"
    assert report.gain_low > 1.1
    result = report.result(report.choice)
    if objective == "makespan":
        assert report.choice.share == 1
        assert result.seconds.value == pytest.approx(2.4e-3, rel=0.02)
    if isinstance(objective, Throughput):
        # Eight steps take all of the work, in whatever shares.
        assert result.seconds.value == pytest.approx(8 * 0.4e-3 + 2e-3, rel=0.02)
    shares = {one.plan.share for one in report.results if one.plan.kind == "together"}
    assert len(shares) >= (1 if objective == "makespan" else 4)
    assert str(report.choice) in str(report)
    assert Report.from_json(report.to_json()) == report
    if isinstance(objective, TailLatency):
        # A call takes in as much as the others have to achieve, and little more.
        rate = result.parts["prefill"].calls_per_second
        assert rate is not None
        assert 0.3 <= rate * 4e-3 < 0.45


def test_a_call_takes_in_all_of_the_bulk_work_at_the_most(dev: Device) -> None:
    parts = tuple(Part(name, decode) for name in PARTS)
    with sitting(dev, progress=False) as held:
        search = Search(Task(dev, parts, TailLatency("decode")), held)
        assert [search._snapped(share) for share in (0.7, 1.4)] == [0.7, 1.0]


def test_a_function_that_is_slower_than_both_is_not_chosen(dev: Device) -> None:
    report = tuned(slower_than_both, Throughput(decode=8, prefill=1), budget_s=5)
    assert report.choice.kind != "together"
    found = [result for result in report.results if result.plan.kind == "together"]
    assert found
    assert all(result.relative > 1.1 for result in found)


@pytest.mark.parametrize(
    ("weights", "shares"), [((3, 2), {1.0}), ((2, 7), {2 / 7, 2 / 4, 1.0})], ids=["more bulk", "more urgent"]
)
def test_a_mix_is_the_same_work_with_each_share(dev: Device, weights: tuple[int, int], shares: set[float]) -> None:
    done: list[float] = []

    def counted(stream: Stream, share: float) -> None:
        done.append(share)
        spin(stream, WHOLE, 100 * US)

    report = tuned(counted, Throughput(prefill=weights[0], decode=weights[1]), budget_s=2)
    assert shares <= set(done)
    for share in set(done) - {1.0}:  # some calls take all of the bulk work
        assert weights[0] / share == pytest.approx(round(weights[0] / share))
    assert report.choice.kind == "together"


def test_a_plan_together_is_one_stream_for_both(dev: Device) -> None:
    plan = Plan("together", PARTS, first="decode", share=0.25)
    assert str(plan) == "decode with 25% of prefill"
    assert Plan.from_json(plan.to_json()) == plan
    assert plan != Plan("together", PARTS, first="decode", share=0.5)
    with PartitionPool(dev) as pool:
        streams = plan.switch(pool)
        assert streams["decode"] == streams["prefill"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": None}, "a plan of the kind together, and of no other, has a share, not None"),
        ({"share": 0}, "share must be above 0 and at most 1, not 0"),
        ({"share": float("nan")}, "share must be a number, not nan"),
        ({"first": None}, "together and overlay, and of no other, puts one of its parts first"),
        ({"kind": "streams", "first": None}, "a plan of the kind together, and of no other, has a share"),
        ({"parts": ("prefill", "decode", "more")}, "a plan of the kind together has two parts, not 3"),
    ],
)
def test_a_plan_without_sense_is_refused(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"kind": "together", "parts": PARTS, "first": "decode", "share": 0.5, **options}
    assert words in str(refusal(ValueError, lambda: Plan(**given)))


def test_together_needs_two_parts_and_a_function(dev: Device) -> None:
    work = {"a": prefill, "b": decode, "c": decode}
    error = refusal(ValueError, lambda: tune.overlap(device=dev, together=sharing_reads, **work))
    assert "pass two parts, not 3" in str(error)
    wrong: Any = 3
    error = refusal(TypeError, lambda: tune.overlap(prefill, decode, device=dev, together=wrong))
    assert "a function of a stream and a share, not int" in str(error)
