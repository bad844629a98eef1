"""The tuner finds the plan that is best, and its sizes.

The software driver's clock is virtual, so that work of known cost has a known best plan and the same times in each run.
"""

from __future__ import annotations

import random
import re
from itertools import count
from typing import Any

import pytest

from cuda_gctx import Device, Layout, SMResourceOptions, Stream, tune
from cuda_gctx.tune import Plan, Report, TailLatency, _final, _measure, spin
from cuda_gctx.tune._plans import KINDS

from .pairs import (
    MS,
    PAIRS,
    Machines,
    of_kind,
    read_only,
    said,
    tuned,
    work,
)

pytestmark = pytest.mark.sim_only


def test_work_that_fits_side_by_side_goes_on_plain_streams(dev: Device) -> None:
    report = read_only("each fills half")
    assert report.choice.kind == "streams"
    assert report.sure
    assert report.complete
    assert report.gain == pytest.approx(2, rel=0.01)
    assert report.gain_low <= report.gain <= report.gain_high
    assert report.bound == pytest.approx(1e-3, rel=0.01)


def test_where_nothing_can_be_won_the_answer_is_the_sequence(dev: Device) -> None:
    report = read_only("each fills all")
    assert report.choice.kind == "sequence"
    assert report.sure
    assert (report.gain, report.gain_low, report.gain_high) == (1, 1, 1)
    assert "no overlap on plain streams" in report.reasons
    assert "choice: in sequence; no other plan is faster by more than noise" in str(report)


def test_partitions_win_where_short_kernels_wait_for_sms_of_long_ones(dev: Device) -> None:
    report = read_only("a chain")
    assert report.choice.kind == "partitions"
    assert report.choice.places == {"product": "product", "chain": "chain"}
    assert report.choice.layout == Layout(product=None, chain=16)
    assert str(report.choice) == "product=116, chain=16"
    best = report.result(report.choice)
    assert best.parts["chain"].sm_count == 16
    assert best.parts["product"].sm_count == 116
    assert best.seconds.value == pytest.approx(2e-3, rel=0.01)  # two waves of the product
    assert best.overlap is not None
    assert best.overlap > 0.9
    assert all(report.gain > 1.2 * best.seconds.value / r.seconds.value for r in of_kind(report, "priority"))


def test_a_short_kernel_next_to_bulk_work_belongs_into_a_partition(dev: Device) -> None:
    report = read_only("bulk work")
    assert report.choice.kind in ("overlay", "partitions")  # equally fast here
    chosen = report.result(report.choice)
    assert chosen.p50 is not None
    assert chosen.largest is not None
    assert chosen.p50 <= chosen.seconds.value <= chosen.largest
    [sequence] = of_kind(report, "sequence")
    assert sequence.seconds.value == pytest.approx(1e-3, rel=0.02)  # behind one call of the bulk work
    for result in of_kind(report, "streams") + of_kind(report, "priority"):
        assert result.seconds.value > 30 * chosen.seconds.value
    # Of plans with the same latency, one that leaves most to the others.
    rates = [result.parts["bulk"].calls_per_second or 0 for result in of_kind(report, "partitions")]
    assert chosen.parts["bulk"].calls_per_second == pytest.approx(max(rates), rel=0.01)
    if report.choice.kind == "partitions":
        assert "1.00x that next to the others\n" in said(report)
    assert "meanwhile bulk achieves 499.5 calls/s, 50% of its rate alone" in said(report)


def test_a_latency_may_cost_the_others_only_so_much(dev: Device) -> None:
    def critical(stream: Stream) -> None:
        spin(stream, 64, MS // 20)  # in 32 SMs and more at once, in fewer one after the other

    bulk = work(4 * 232, MS // 4)
    free = tune.overlap(
        bulk=bulk,
        critical=critical,
        objective=TailLatency("critical", quantile=0.9, closed_loop=True),
        device=dev,
        budget_s=6,
    )
    limited = TailLatency("critical", quantile=0.9, others=0.9, closed_loop=True)
    held = tune.overlap(bulk=bulk, critical=critical, objective=limited, device=dev, budget_s=6)
    counts = [report.result(report.choice).parts["critical"].sm_count for report in (free, held)]
    assert counts[0] >= 32
    assert counts[1] <= 16
    [traded] = [reason for reason in free.reasons if re.match(r"with bulk=\d+, critical=", reason)]
    assert re.search(r"the latency would be \d\.\d\dx( \(\d.* to \d.*\)| \(inconclusive: too few samples\))$", traded)
    assert any("but the others would only achieve" in reason for reason in held.reasons)
    rate = held.result(held.choice).parts["bulk"].calls_per_second
    assert rate is not None
    assert rate * held.alone["bulk"].value >= 0.9
    assert Report.from_json(held.to_json()) == held


def test_throughput_counts_a_mix_of_calls(dev: Device) -> None:
    report = read_only("a mix")
    [sequence] = of_kind(report, "sequence")
    assert sequence.seconds.value == pytest.approx(2.6e-3, rel=0.02)  # sixteen short calls and a long one
    assert report.bound == pytest.approx(1.6e-3, rel=0.02)  # the sixteen
    assert report.reasons[0].startswith("decode alone takes 1.6")
    assert report.choice == Plan("priority", ("decode", "prefill"), first="decode")
    assert sequence.parts["decode"].calls_per_second == pytest.approx(16 / sequence.seconds.value, rel=0.02)


def test_sizes_between_those_that_are_tried_first_are_found(dev: Device) -> None:
    def decode(stream: Stream) -> None:
        for _ in range(15):
            spin(stream, 48, MS // 10)
            spin(stream, 1, MS // 50)

    report = tune.overlap(product=work(2 * 216, MS), decode=decode, device=dev)
    best = min(of_kind(report, "partitions"), key=lambda result: result.seconds.value)
    assert best.parts["decode"].sm_count == 24
    assert best.seconds.value == pytest.approx(report.result(report.choice).seconds.value, rel=0.01)
    # What is not within 15% of the best is left out of later rounds.
    behind = [one for one in report.results if one.plan.kind in ("partitions", "overlay")]
    behind = [one for one in behind if one.seconds.value > 1.2 * best.seconds.value]
    assert len(behind) > 5
    assert max(one.seconds.samples for one in behind) <= 2


def test_what_cannot_win_is_not_measured_again(dev: Device) -> None:
    report = read_only("a chain")
    assert report.results[-1].seconds.samples == 1
    assert report.results[-1].seconds.value > 2 * report.result(report.choice).seconds.value
    assert report.result(report.choice).seconds.samples >= 6


def test_three_parts_get_sizes_of_their_own(dev: Device) -> None:
    report = tune.overlap(a=work(64, MS), b=work(64, MS), c=work(4 * 136, MS // 4), device=dev)
    sizes = {
        tuple(part.sm_count for part in result.parts.values()): result.seconds.value
        for result in of_kind(report, "partitions")
    }
    assert all(sum(counts) == dev.sm_count for counts in sizes)
    assert min(sizes, key=sizes.__getitem__) == (32, 32, 68)
    assert report.choice.kind == "streams"


@pytest.mark.parametrize("parts", [3, 5])
def test_of_many_parts_one_can_have_all_that_the_others_do_not_need(dev: Device, parts: int) -> None:
    def short(stream: Stream) -> None:
        for _ in range(5):
            spin(stream, 16, 3 * MS // 10)
            spin(stream, 1, 3 * MS // 50)

    chains = {f"chain{number}": short for number in range(1, parts)}
    report = tune.overlap(**chains, product=work(4 * (132 - 8 * (parts - 1)), MS), device=dev)
    best = report.result(report.choice)
    assert {name: part.sm_count for name, part in best.parts.items()} == {
        **dict.fromkeys(chains, 8),
        "product": 132 - 8 * (parts - 1),
    }
    assert report.complete
    assert "not tried" not in said(report)


def test_every_plan_ends_after_the_bound(dev: Device) -> None:
    for pair in PAIRS:
        report = read_only(pair)
        # A launch into the primary context takes more calls: 0.3 us of the 8.6 of the short kernel.
        assert all(result.seconds.value >= report.bound * 0.96 for result in report.results)
        assert [r.relative for r in report.results] == sorted(r.relative for r in report.results)
        assert {result.plan.kind for result in report.results} == {*KINDS} - {"together"}


def test_what_is_faster_by_noise_alone_does_not_win(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(3)
    measured = _measure.Runner.batch

    def noisy(self: Any, trial: Any, shape: Any) -> Any:
        sample = measured(self, trial, shape)
        sample.seconds *= numbers.uniform(0.9, 1.1)
        return sample

    monkeypatch.setattr(_measure.Runner, "batch", noisy)
    report = tuned("each fills all", budget_s=10)
    assert report.choice.kind == "sequence"
    assert not report.sure
    assert report.result(report.choice).seconds.samples > 15  # more rounds, because 15 left it open
    assert "no other plan was measured to be faster with certainty" in str(report)
    report = tuned("each fills half", budget_s=10)
    assert report.choice.kind == "streams"
    assert not report.sure  # a priority is as fast
    assert re.search(r"; it loses at most \d+\.\d%$", str(report).splitlines()[0])
    assert re.search(r"^undecided: .* may be up to 1\.\d\dx faster than the choice$", said(report), re.MULTILINE)
    assert 1.3 < report.gain_low < report.gain < report.gain_high < 2.6


def test_what_a_chip_does_while_it_is_fast_at_first_is_not_counted(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = read_only("a chain")
    measured = _measure.Runner.batch
    batches = count()

    def slower_and_slower(self: Any, trial: Any, shape: Any) -> Any:
        sample = measured(self, trial, shape)
        sample.seconds *= 0.6 + 0.4 * min(1.0, next(batches) / 15)
        return sample

    monkeypatch.setattr(_measure.Runner, "batch", slower_and_slower)
    monkeypatch.setattr(_measure, "MOST_SETTLING_S", 60.0)
    report = tuned("a chain")
    assert report.choice == steady.choice
    for result in report.results:
        assert result.seconds.value == pytest.approx(steady.result(result.plan).seconds.value, rel=0.01)


def test_a_plan_that_is_no_finalist_is_compared_by_the_rounds_in_which_it_was(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, compared = _measure.Runner.batch, _final.Final.compare
    slower = 1.0

    def batch(self: Any, trial: Any, shape: Any) -> Any:
        sample = measured(self, trial, shape)
        sample.seconds *= slower
        return sample

    def compare(self: Any) -> None:
        nonlocal slower
        slower = 3.0  # as if the clocks went down before the final rounds
        compared(self)

    monkeypatch.setattr(_measure.Runner, "batch", batch)
    monkeypatch.setattr(_final.Final, "compare", compare)
    assert "\nchain first: 1.22x slower than the choice (1.22 to 1.22)\n" in said(tuned("a chain"))


def test_only_the_sizes_that_were_asked_for_are_tried(dev: Device) -> None:
    report = tuned("a chain", sizes=[10, 16])
    counts = {min(p.sm_count for p in result.parts.values()) for result in of_kind(report, "partitions")}
    assert counts == {10, 16}
    exact = next(r.plan for r in of_kind(report, "partitions") if r.parts["chain"].sm_count == 10)
    assert exact.layout == Layout(product=None, chain=SMResourceOptions(10, backfill=True))


def test_a_size_that_leaves_nothing_for_the_others_is_reported(dev: Device) -> None:
    report = tuned("a chain", sizes=[16, 132])
    assert [reason for reason in report.reasons if "not tried" in reason] == [
        "132 SMs were not tried: no layout for these parts fits with a partition of that size"
    ]


@pytest.mark.parametrize("driver", ["12.4", "13.4"])
def test_it_works_on_other_drivers(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    assert tuned("a chain").choice.kind == "partitions"


def test_a_driver_without_partitions_gets_an_answer_too(sim: Machines) -> None:
    sim("h200", driver="12.3")
    report = tuned("each fills half")
    assert report.choice.kind == "streams"
    assert not of_kind(report, "partitions")
    assert any(reason.startswith("partitions were not measured: ") for reason in report.reasons)


def test_another_device_can_be_tuned(sim: Machines) -> None:
    machine = sim("h200", devices=2)
    seen = set()

    def left(stream: Stream) -> None:
        seen.add(stream.device.device_id)
        spin(stream, 132, MS)

    assert tune.overlap(left=left, right=work(132, MS), device=Device(1)).choice.kind == "streams"
    assert seen == {1}
    assert machine.memory(device=0)["lost"] == 0
