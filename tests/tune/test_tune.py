"""The tuner: that it finds the plan that is best, says why, and leaves nothing behind.

The software driver's clock is virtual, so that work of known cost has a known best plan and the same times in each run.
"""

from __future__ import annotations

import ast
import copy
import ctypes
import dataclasses
import json
import pickle
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_gctx import CUDAError, Device, Layout, PartitionPool, SMResourceOptions, Stream, tune
from cuda_gctx.measure import clock
from cuda_gctx.measure.loop import TIMED
from cuda_gctx.measure.statistics import Ratio, ratio_of
from cuda_gctx.sim import session
from cuda_gctx.tune import Plan, Report, TailLatency, Throughput, _measure, _report, _search, _work, spin
from cuda_gctx.tune._plans import KINDS, partition_names

from ..common import refusal, run_python
from ..raw import Raw
from .conftest import host_takes

pytestmark = pytest.mark.sim_only

MS = 1_000_000
WHOLE = 264  # blocks of the kernel that fill the device, two for each SM
Machines = Callable[..., Any]


def work(blocks: int, ns: int) -> Callable[[Stream], None]:
    return lambda stream: spin(stream, blocks, ns)


def chain(stream: Stream) -> None:
    """Short kernels one after the other: next to a kernel that fills the device, each has to wait for SMs again."""
    for _ in range(15):
        spin(stream, 32, MS // 10)
        spin(stream, 1, MS // 50)


PAIRS: dict[str, dict[str, Any]] = {
    "each fills half": {"left": work(WHOLE // 2, MS), "right": work(WHOLE // 2, MS)},
    "each fills all": {"product": work(4 * WHOLE, MS // 5), "sigmoid": work(WHOLE, MS // 5)},
    "a chain": {"product": work(2 * 232, MS), "chain": chain},
    "bulk work": {"bulk": work(WHOLE, MS), "critical": work(16, MS // 200), "objective": TailLatency("critical")},
    "a mix": {
        "decode": work(32, MS // 10),
        "prefill": work(WHOLE, MS),
        "objective": Throughput(decode=16, prefill=1),
    },
}


def tuned(pair: str, **options: Any) -> Report:
    return tune.overlap(device=Device(0), **{**PAIRS[pair], **options})


@cache
def read_only(pair: str) -> Report:
    """The report of a pair, for tests that only read it: measured once."""
    with session("h200"):
        return tuned(pair)


def of_kind(report: Report, kind: str) -> list[tune.Result]:
    return [result for result in report.results if result.plan.kind == kind]


def table_of(report: Report) -> str:
    """The table of a printed report: between the head and the reasons."""
    return str(report).partition("\n\n")[2].rpartition("\n\n- ")[0]


def said(report: Report) -> str:
    return "\n".join(report.reasons)


# ---- what it finds


def test_work_that_fits_side_by_side_goes_on_plain_streams(dev: Device) -> None:
    report = read_only("each fills half")
    assert report.choice.kind == "streams"
    assert report.sure
    assert report.complete
    assert report.gain == pytest.approx(2, rel=0.01)
    assert report.gain_low <= report.gain <= report.gain_high
    assert report.bound == pytest.approx(1e-3, rel=0.01)
    assert report.plan is report.choice


def test_where_nothing_can_be_won_the_answer_is_the_sequence(dev: Device) -> None:
    report = read_only("each fills all")
    assert report.choice.kind == "sequence"
    assert report.sure
    assert (report.gain, report.gain_low, report.gain_high) == (1, 1, 1)
    assert "no overlap on plain streams" in report.reasons
    assert "best: in sequence; no other plan is faster by more than noise" in str(report)


def test_partitions_win_where_short_kernels_wait_for_sms_of_long_ones(dev: Device) -> None:
    report = read_only("a chain")
    assert report.choice.kind == "partitions"
    assert report.choice.places == {"product": "product", "chain": "chain"}
    assert report.choice.layout == Layout(product=None, chain=16)
    assert str(report.choice) == "product=116, chain=16"
    best = report.result(report.choice)
    assert best.parts["chain"].sm_count == 16
    assert best.parts["product"].sm_count == 116
    assert best.seconds.median == pytest.approx(2e-3, rel=0.01)  # two waves of the product
    assert best.overlap is not None
    assert best.overlap > 0.9
    assert all(report.gain > 1.2 * best.seconds.median / r.seconds.median for r in of_kind(report, "priority"))


def test_a_short_kernel_next_to_bulk_work_belongs_into_a_partition(dev: Device) -> None:
    report = read_only("bulk work")
    assert report.choice.kind in ("overlay", "partitions")  # equally fast here
    chosen = report.result(report.choice)
    assert chosen.latency is not None
    assert chosen.latency.p99 < 20e-6
    assert chosen.latency.p50 <= chosen.latency.p90 <= chosen.latency.p99 <= chosen.latency.largest
    [sequence] = of_kind(report, "sequence")
    assert sequence.seconds.median == pytest.approx(1e-3, rel=0.02)  # behind one call of the bulk work
    for result in of_kind(report, "streams") + of_kind(report, "priority"):
        assert result.seconds.median > 30 * chosen.seconds.median
    # Of plans with the same latency, one that leaves most to the others.
    rates = [result.parts["bulk"].calls_per_second or 0 for result in of_kind(report, "partitions")]
    assert chosen.parts["bulk"].calls_per_second == pytest.approx(max(rates), rel=0.01)
    assert "on plain streams the p99 of critical is " in said(report)
    assert "(a priority does not preempt running blocks)" in said(report)
    assert re.search(r"1\.00x that (next to the others|alone)\n", said(report))
    assert "meanwhile bulk achieves 499.5 calls/s, 50% of its rate alone" in said(report)


def test_a_latency_may_cost_the_others_only_so_much(dev: Device) -> None:
    def critical(stream: Stream) -> None:
        spin(stream, 64, MS // 20)  # in 32 SMs and more at once, in fewer one after the other

    bulk = work(4 * 232, MS // 4)
    free = tune.overlap(bulk=bulk, critical=critical, objective=TailLatency("critical"), device=dev)
    held = tune.overlap(bulk=bulk, critical=critical, objective=TailLatency("critical", others=0.9), device=dev)
    counts = [report.result(report.choice).parts["critical"].sm_count for report in (free, held)]
    assert counts[0] >= 32
    assert counts[1] <= 16
    [traded] = [reason for reason in free.reasons if re.match(r"with bulk=\d+, critical=", reason)]
    assert re.search(r"the latency would be \d\.\d\dx( \(\d.* to \d.*\)| \(inconclusive: too few rounds\))$", traded)
    assert any("but the others would only achieve" in reason for reason in held.reasons)
    rate = held.result(held.choice).parts["bulk"].calls_per_second
    assert rate is not None
    assert rate * held.alone["bulk"].median >= 0.9
    assert Report.from_json(held.to_json()) == held


def test_throughput_counts_a_mix_of_calls(dev: Device) -> None:
    report = read_only("a mix")
    [sequence] = of_kind(report, "sequence")
    assert sequence.seconds.median == pytest.approx(2.6e-3, rel=0.02)  # sixteen short calls and a long one
    assert report.bound == pytest.approx(1.6e-3, rel=0.02)  # the sixteen
    assert report.reasons[0].startswith("decode alone takes 1.6")
    assert report.choice == Plan("priority", ("decode", "prefill"), first="decode")
    assert sequence.parts["decode"].calls_per_second == pytest.approx(16 / sequence.seconds.median, rel=0.02)


def test_sizes_between_those_that_are_tried_first_are_found(dev: Device) -> None:
    def decode(stream: Stream) -> None:
        for _ in range(15):
            spin(stream, 48, MS // 10)
            spin(stream, 1, MS // 50)

    report = tune.overlap(product=work(2 * 216, MS), decode=decode, device=dev)
    best = min(of_kind(report, "partitions"), key=lambda result: result.seconds.median)
    assert best.parts["decode"].sm_count == 24
    assert best.seconds.median == pytest.approx(report.result(report.choice).seconds.median, rel=0.01)


def test_what_cannot_win_is_not_measured_again(dev: Device) -> None:
    report = read_only("a chain")
    assert report.results[-1].seconds.samples == 1
    assert report.results[-1].seconds.median > 2 * report.result(report.choice).seconds.median
    assert report.result(report.choice).seconds.samples >= 6


def test_three_parts_get_sizes_of_their_own(dev: Device) -> None:
    report = tune.overlap(a=work(64, MS), b=work(64, MS), c=work(4 * 136, MS // 4), device=dev)
    sizes = {
        tuple(part.sm_count for part in result.parts.values()): result.seconds.median
        for result in of_kind(report, "partitions")
    }
    assert all(sum(counts) == dev.sm_count for counts in sizes)
    assert min(sizes, key=sizes.__getitem__) == (32, 32, 68)
    assert report.choice.kind == "streams"


@pytest.mark.parametrize("parts", [3, 6])
def test_of_many_parts_one_can_have_all_that_the_others_do_not_need(dev: Device, parts: int) -> None:
    def short(stream: Stream) -> None:
        for _ in range(15):
            spin(stream, 16, MS // 10)
            spin(stream, 1, MS // 50)

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
        # A launch into the primary context asks whether it was reset: 0.1 us of the 8.5 of the short kernel.
        assert all(result.seconds.median >= report.bound * 0.98 for result in report.results)
        assert [r.relative for r in report.results] == sorted(r.relative for r in report.results)
        assert {result.plan.kind for result in report.results} == set(KINDS)


def test_what_is_faster_by_noise_alone_does_not_win(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(3)
    measured = _measure.Runner.batch

    def noisy(self: Any, trial: Any, shape: Any) -> Any:
        sample = measured(self, trial, shape)
        sample.seconds *= numbers.uniform(0.9, 1.1)
        return sample

    monkeypatch.setattr(_measure.Runner, "batch", noisy)
    report = tuned("each fills all")
    assert report.choice.kind == "sequence"
    assert not report.sure
    assert report.result(report.choice).seconds.samples == 60  # more rounds, because 15 left it open
    assert "no other plan was measured to be faster with certainty" in str(report)
    report = tuned("each fills half")
    assert report.choice.kind == "streams"
    assert not report.sure  # a priority is as fast
    assert str(report).splitlines()[0].endswith("; another plan may be faster")
    assert re.search(r"^undecided: .* may be up to 1\.\d\dx faster than best$", said(report), re.MULTILINE)
    assert 1.6 < report.gain_low < report.gain < report.gain_high < 2.4


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
        assert result.seconds.median == pytest.approx(steady.result(result.plan).seconds.median, rel=0.01)


def test_a_plan_that_is_no_finalist_is_compared_by_the_rounds_in_which_it_was(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, compared = _measure.Runner.batch, _search.Search._compare
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
    monkeypatch.setattr(_search.Search, "_compare", compare)
    assert "\nchain first: 1.35x slower than best (inconclusive: too few rounds)\n" in said(tuned("a chain"))


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


# ---- reasons


def test_reasons_say_what_could_be_won_and_what_fewer_sms_cost(dev: Device) -> None:
    report = read_only("each fills all")
    assert report.reasons[0] == (
        "product alone takes 804 us, and sequential takes 1.005 ms: hiding the rest would be a speedup of 1.25x"
    )
    assert any(r.startswith("product alone is ") and "SMs than on the whole device" in r for r in report.reasons)


def test_work_that_is_launch_bound_is_called_so(dev: Device) -> None:
    def slowly(stream: Stream) -> None:
        host_takes(5_000)  # more than the kernel takes
        spin(stream, 1, 100)

    report = tune.overlap(a=slowly, b=slowly, device=dev, sizes=[8])
    assert any(reason.startswith("launch-bound: the host needs ") for reason in report.reasons)
    assert of_kind(report, "sequence")[0].launch_bound
    assert str(report).splitlines()[0].endswith("; but launch-bound: use CUDA graphs first")
    assert "launch-bound" not in str(read_only("each fills half"))


def test_an_interruption_of_the_host_in_a_warm_up_makes_no_plan_faster(dev: Device) -> None:
    interrupted = False

    def launches(stream: Stream) -> None:
        host_takes(2 * MS if interrupted else 0)
        for _ in range(10):
            spin(stream, 1, 100)

    parts = (_work.Part("a", launches), _work.Part("b", launches))
    runner = _measure.Runner("makespan", deadline=1e12)
    with dev.create_stream() as one, dev.create_stream() as two:
        trials = [_measure.Trial(s, parts, {"a": s, "b": s}, s) for s in (one, two)]
        runner.warm(trials[0])
        interrupted = True
        runner.warm(trials[1])
        interrupted = False
        for _ in range(3):
            shape = runner.shape(trials)
            first, second = (runner.batch(trial, shape) for trial in trials)
            assert first.seconds == pytest.approx(second.seconds, rel=0.01)
            assert first.launch_bound == second.launch_bound


def test_the_plans_of_a_round_have_one_number_of_steps(dev: Device) -> None:
    parts = (_work.Part("a", work(1, 1)), _work.Part("b", work(1, 1)))
    runner = _measure.Runner("makespan", deadline=1e12)
    with dev.create_stream() as stream:
        fast, slow, alone = (
            _measure.Trial("", some, {part.name: stream for part in some}, stream, step_s=step_s, host_s=1e-5)
            for some, step_s in ((parts, 1e-3), (parts, 2e-3), (parts[:1], 1e-4))
        )
        assert runner.shape([fast, slow, alone]) == runner.shape([slow, fast]) == (30, 50e-6)
        slow.step_s = 1.0
        assert runner.shape([fast, slow]).steps == 1  # a batch of the slow one must not take half a minute
        slow.host_s = 1e-4
        assert runner.shape([fast, slow]).gate_s == 4e-4


def test_a_step_that_takes_the_host_long_but_the_device_longer_is_not_launch_bound(dev: Device) -> None:
    bulk, short = work(WHOLE, MS), work(16, MS // 50)
    report = tune.overlap(bulk=bulk, short=short, objective=Throughput(bulk=1, short=2000), device=dev, sizes=[8])
    assert "launch-bound" not in said(report)
    assert not any(result.launch_bound for result in report.results)


def test_only_known_causes_of_no_overlap_are_reported(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    [reason] = [reason for reason in tuned("each fills all").reasons if "no overlap" in reason]
    assert reason.startswith("no overlap on plain streams: 1 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) for 2")


def test_a_step_shorter_than_its_parts_has_them_at_once(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = _measure.Runner.profile

    def apart(self: Any, trial: Any) -> Any:
        # As if the events around the parts kept them apart.
        return [{"left": (0.0, 1e-3), "right": (1e-3, 2e-3)} if len(s) == 2 else s for s in profiled(self, trial)]

    monkeypatch.setattr(_measure.Runner, "profile", apart)
    report = tuned("each fills half")
    assert [round(result.overlap or 0, 2) for result in of_kind(report, "streams")] == [1]
    assert [result.overlap for result in of_kind(report, "sequence")] == [0]
    assert "no overlap" not in said(report)


def test_a_function_that_waits_for_the_device_is_named(dev: Device) -> None:
    def product(stream: Stream) -> None:
        spin(stream, 132, MS)
        stream.sync()

    report = tune.overlap(product, right=work(132, MS), device=dev)
    assert any(reason.startswith("product waits for the device inside its function") for reason in report.reasons)
    assert "waits for the device" not in said(read_only("each fills half"))


def test_disjoint_sms_that_slow_each_other_are_reported(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = _measure.Runner.profile
    slower = {}

    def shared(self: Any, trial: Any) -> Any:
        # As if they were held up by memory: the virtual SMs share nothing else.
        times = slower if isinstance(trial.name, Plan) and trial.name.kind == "partitions" else {}
        return [
            {name: (begin, begin + times.get(name, 1) * (end - begin)) for name, (begin, end) in step.items()}
            for step in profiled(self, trial)
        ]

    monkeypatch.setattr(_measure.Runner, "profile", shared)
    assert "although their SMs are disjoint" not in said(tuned("a chain"))
    slower.update(chain=1.3)
    assert "the others slow chain by 1.3x (product=116, chain=16), although their SMs are disjoint" in said(
        tuned("a chain")
    )
    slower.update(product=1.5)
    assert "the parts slow each other, product by 1.5x and chain by 1.3x (product=116, chain=16), although" in said(
        tuned("a chain")
    )


def test_parts_alone_in_their_partitions_are_measured_by_turns_with_the_plan(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = _measure.Runner.batch
    order = []

    def watched(self: Any, trial: Any, shape: Any) -> Any:
        order.append(str(trial.name))
        return measured(self, trial, shape)

    monkeypatch.setattr(_measure.Runner, "batch", watched)
    report = tuned("a chain")
    alone = f"chain alone in {report.choice}"
    first = order.index(alone)
    assert order.count(alone) == 7
    turns = [name for name in order[first:] if name in (alone, str(report.choice))]
    assert turns != sorted(turns)
    assert turns != sorted(turns, reverse=True)
    assert {part.alone.samples for part in report.result(report.choice).parts.values() if part.alone} == {7}


def test_a_report_does_without_what_there_was_no_time_to_look_at(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = _measure.Runner.profile

    def out_of_time(self: Any, trial: Any) -> Any:
        if "=" in str(trial.name) and "alone" not in str(trial.name):
            raise _measure.OutOfTime
        return profiled(self, trial)

    monkeypatch.setattr(_measure.Runner, "profile", out_of_time)
    report = tuned("a chain", sizes=[16])
    assert not report.complete
    assert of_kind(report, "partitions") + of_kind(report, "overlay")


# ---- what is refused, and what goes wrong


def nothing(stream: Stream) -> None: ...


def test_a_function_that_enqueues_nothing_is_refused(dev: Device) -> None:
    with dev.create_stream() as other:
        for function in (nothing, lambda stream: spin(other, WHOLE, MS)):
            error = refusal(ValueError, lambda f=function: tune.overlap(a=work(1, MS), b=f, device=dev))  # type: ignore[misc]
            assert str(error).startswith("part 'b' enqueued no work on the stream")


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (lambda: tune.overlap(nothing), ValueError, "from 2 to 8 parts, not 1"),
        (lambda: tune.overlap(nothing, nothing), ValueError, "two parts are named nothing"),
        (lambda: tune.overlap(nothing, lambda stream: None), ValueError, "needs one: overlap(decode="),
        (lambda: tune.overlap(nothing, 3), TypeError, "not int"),  # type: ignore[arg-type]
        (lambda: tune.overlap(a=nothing, b=3), TypeError, "b must be a function"),  # type: ignore[arg-type]
        (lambda: tuned("a chain", objective="fast"), ValueError, "not 'fast'"),
        (lambda: tuned("a chain", objective=TailLatency("other")), ValueError, "the parts are product, chain"),
        (lambda: tuned("a chain", objective=Throughput(chain=2)), ValueError, "a number of calls for each part"),
        (lambda: tuned("a chain", sizes=[9]), ValueError, "cannot have 9 SMs; near to it are 8, 10"),
        (lambda: tuned("a chain", sizes=[]), ValueError, "at least one"),
        (lambda: tuned("a chain", sizes=8), TypeError, "like [8, 16], not int"),
        (lambda: tuned("a chain", sizes="8"), TypeError, "like [8, 16], not str"),
        (lambda: tuned("a chain", sizes=["8"]), TypeError, "'8' is not one"),
        (lambda: tuned("a chain", sizes=[8, None]), TypeError, "None is not one"),
        (lambda: tuned("a chain", sizes=[True]), TypeError, "True is not one"),
        (lambda: tuned("a chain", library_sms="on"), ValueError, "neither is imported"),
        (lambda: tuned("a chain", library_sms=True), ValueError, "off, on, auto"),
        (lambda: tuned("a chain", budget_s=0), ValueError, "positive"),
        (lambda: tuned("a chain", budget_s="1"), TypeError, "not str"),
        (lambda: tune.overlap(a=nothing, b=nothing, device=0), TypeError, "not int"),  # type: ignore[arg-type]
        (lambda: TailLatency("a", quantile=1.0), ValueError, "0.99 is the p99"),
        (lambda: TailLatency("a", others=1.0), ValueError, "less than 1"),
        (lambda: TailLatency(3), TypeError, "part must be the name of a part, not int"),  # type: ignore[arg-type]
        (lambda: TailLatency("a", quantile="p99"), TypeError, "quantile must be a number, not str"),  # type: ignore[arg-type]
        (lambda: TailLatency("a", others=None), TypeError, "others must be a number, not NoneType"),  # type: ignore[arg-type]
        (lambda: Throughput(a=0), ValueError, "from 1 to"),
        (lambda: Throughput(a=1.5), TypeError, "number of calls"),  # type: ignore[arg-type]
    ],
)
def test_bad_requests_are_refused_with_what_would_work(
    dev: Device, given: Callable[[], Any], kind: type[Exception], words: str
) -> None:
    assert words in str(refusal(kind, given))


@pytest.mark.parametrize("objective", [Throughput(self=2, other=1), TailLatency("self", 0.9, others=0.5)])
def test_an_objective_is_a_value(objective: Throughput | TailLatency) -> None:
    for same in (copy.copy(objective), copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert same == objective
        assert hash(same) == hash(objective)
        assert repr(same) == repr(objective)
    for name in ("weights", "part", "colour"):
        with pytest.raises(AttributeError):
            setattr(objective, name, 1)
    if isinstance(objective, Throughput):
        with pytest.raises(TypeError):
            objective.weights["self"] = 3  # type: ignore[index]
        with pytest.raises(AttributeError):
            del objective.weights
    assert objective not in (Throughput(self=1, other=1), TailLatency("self"), "makespan")


@contextmanager
def captured(stream: Stream) -> Iterator[None]:
    handle, graph, raw = ctypes.c_void_p(stream.handle), ctypes.c_void_p(), Raw()
    raw.call("cuStreamBeginCapture_v2", handle, 2)
    try:
        yield
    finally:
        raw.call("cuStreamEndCapture", handle, ctypes.byref(graph))
        raw.call("cuGraphDestroy", graph)


class Failing:
    """Work that fails at its n-th call."""

    def __init__(self, nth: int, error: BaseException) -> None:
        self.calls, self.nth, self.error = 0, nth, error

    def __call__(self, stream: Stream) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise self.error
        spin(stream, WHOLE // 2, MS)


def calls_until(event: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many calls of its second part the tuner makes before it measures a plan that is looked for."""
    counted = Failing(0, Exception())
    batch = _measure.Runner.batch

    class FoundError(Exception):
        pass

    def watched(self: Any, trial: Any, shape: Any) -> Any:
        if event(str(trial.name)):
            raise FoundError
        return batch(self, trial, shape)

    with monkeypatch.context() as patched:
        patched.setattr(_measure.Runner, "batch", watched)
        refusal(FoundError, lambda: tune.overlap(left=work(WHOLE // 2, MS), right=counted, device=Device(0)))
    return counted.calls


@pytest.mark.parametrize("plan", [None, "plain streams"])
def test_what_a_part_raises_comes_out_with_its_name_and_the_plan(
    dev: Device, plan: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nth = 1 if plan is None else calls_until(lambda name: name.startswith(plan), monkeypatch) + 1
    failing = Failing(nth, KeyError("no such layer"))
    error = refusal(RuntimeError, lambda: tune.overlap(left=work(1, MS), right=failing, device=dev))
    assert str(error).startswith("right failed (")
    assert ("alone" in str(error)) == (plan is None)
    assert str(error).endswith("KeyError: 'no such layer'")
    assert isinstance(error.__cause__, KeyError)
    error.__cause__.with_traceback(None)


def test_partitions_in_which_a_part_fails_are_left_out(sim: Machines) -> None:
    machine = sim("h200")

    def cooperative(stream: Stream) -> None:
        if stream.resources.sm.sm_count < 32:
            raise OSError("too few SMs")
        spin(stream, 64, MS)

    report = tune.overlap(cooperative, chain=chain, device=Device(0))
    assert report.complete
    assert min(result.parts["cooperative"].sm_count for result in report.results) == 32
    [reason] = [reason for reason in report.reasons if "excluded" in reason]
    assert reason == "cooperative=8, chain=124 and 1 more excluded: cooperative failed: OSError: too few SMs"
    assert not machine.ledger().live_of("event")


def test_an_error_of_the_device_comes_out_with_the_plan(sim: Machines) -> None:
    machine = sim("h200")
    for nth, plan in ((1, "left alone"), (300, "in sequence|streams|first|=")):
        machine.fail("cuEventRecord", nth=nth, code="CUDA_ERROR_UNKNOWN")
        error = refusal(CUDAError, lambda: tuned("each fills half"))
        machine.clear_faults()
        assert re.search(rf"\(({plan}).*\)$|({plan})\)$", str(error))
        assert error.name == "CUDA_ERROR_UNKNOWN"


def test_only_events_that_cannot_be_subtracted_are_reported_as_that(sim: Machines) -> None:
    machine = sim("h200")
    machine.fail("cuEventElapsedTime", nth=1, code="CUDA_ERROR_INVALID_HANDLE")
    assert "work on different streams cannot be timed" in str(refusal(RuntimeError, lambda: tuned("each fills half")))
    machine.fail("cuEventElapsedTime", nth=1, code="CUDA_ERROR_LAUNCH_FAILED")
    error = refusal(CUDAError, lambda: tuned("each fills half"))
    assert "CUDA_ERROR_LAUNCH_FAILED" in str(error)
    assert "cannot be timed" not in str(error)


def test_a_part_that_leaves_its_stream_capturing_in_partitions_is_named(dev: Device) -> None:
    def cap(stream: Stream) -> None:
        if stream.resources.sm.sm_count <= 64:
            Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 2)
        spin(stream, 8, MS)

    error = refusal(RuntimeError, lambda: tune.overlap(cap, right=work(1, MS), device=dev))
    assert str(error).startswith("cap leaves its stream capturing a graph (cap=")


def test_what_the_caller_enqueued_before_is_waited_for(dev: Device) -> None:
    done = []
    with dev.create_stream() as stream:
        spin(stream, 1, 50 * MS)
        with stream.record() as event:

            def reads(stream: Stream) -> None:
                done.append(event.is_done)
                spin(stream, 8, MS)

            tune.overlap(reads, other=work(8, MS), device=dev, sizes=[8])
    assert done[0]


def test_a_second_tuning_at_the_same_time_is_refused(dev: Device) -> None:
    reported: list[str] = []

    def tuning(stream: Stream) -> None:
        if not reported:
            reported.append(str(refusal(RuntimeError, lambda: tuned("each fills half"))))
        spin(stream, 8, MS)

    assert tune.overlap(tuning, other=work(8, MS), device=dev, sizes=[8]).complete
    assert reported[0].startswith("another tuning of NVIDIA H200 (simulated) is in progress")


def test_contexts_of_the_caller_are_no_warning_of_the_tuner(dev: Device) -> None:
    with PartitionPool(dev) as pool, warnings.catch_warnings():
        pool.prepare(Layout(decode=16))
        warnings.simplefilter("error")
        assert tuned("a chain").choice.kind == "partitions"


def test_tuning_during_a_capture_is_refused(dev: Device) -> None:
    part = Failing(0, Exception())
    with dev.create_stream() as stream, captured(stream):
        error = refusal(RuntimeError, lambda: tune.overlap(part=part, other=work(1, MS), device=dev))
        assert "is capturing a graph" in str(error)
    assert part.calls == 0


def test_a_part_that_leaves_its_stream_capturing_is_refused(dev: Device) -> None:
    def left(stream: Stream) -> None:
        Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 2)

    error = refusal(RuntimeError, lambda: tune.overlap(left, right=work(1, MS), device=dev))
    assert "left leaves its stream capturing a graph" in str(error)


# ---- ending early


def test_ctrl_c_before_anything_is_known_goes_on(dev: Device) -> None:
    right = Failing(3, KeyboardInterrupt())
    refusal(KeyboardInterrupt, lambda: tune.overlap(left=work(1, MS), right=right, device=dev))


def test_ctrl_c_gives_what_was_measured_so_far(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in (lambda name: "=" in name, lambda name: "alone in" in name):
        nth = calls_until(event, monkeypatch) + 1
        right = Failing(nth, KeyboardInterrupt())
        report = tune.overlap(left=work(WHOLE // 2, MS), right=right, device=dev)
        assert right.calls == nth
        assert not report.complete
        assert {"sequence", "streams"} <= {result.plan.kind for result in report.results}
        assert report == Report.from_json(report.to_json())
        assert "incomplete" in str(report)


class Ticking:
    """A host clock on which each look at it takes a millisecond."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 0.001
        return self.seconds


def test_what_was_enqueued_before_ctrl_c_is_waited_for(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200")
    nth = calls_until(lambda name: name.startswith("left="), monkeypatch)
    right = Failing(nth + 1, KeyboardInterrupt())
    tune.overlap(left=work(50 * WHOLE, MS), right=right, device=Device(0))
    with (
        Device(0).create_stream() as stream,
        stream.record(options=TIMED) as start,
    ):
        spin(stream, WHOLE, MS)
        with stream.record(options=TIMED) as end:
            end.sync()
            assert end - start < 1.1


def test_a_batch_is_no_longer_than_the_time_that_is_left(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking()
    monkeypatch.setattr(clock, "now", ticking.now)
    with dev.create_stream() as stream:
        trial = _measure.Trial("alone", (), {}, stream, step_s=0.01)
        runner = _measure.Runner("makespan", deadline=0.0255)
        assert runner.steps_for(trial) == 2
        ticking.seconds = 0.02
        with pytest.raises(_measure.OutOfTime):
            runner.steps_for(trial)


def test_the_budget_ends_it(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking()
    monkeypatch.setattr(clock, "now", ticking.now)
    error = refusal(RuntimeError, lambda: tuned("each fills half", budget_s=0.02))
    assert "budget_s=0.02 is too short" in str(error)
    began = ticking.seconds
    report = tuned("each fills half", budget_s=0.3)
    assert ticking.seconds - began < 0.32
    assert not report.complete
    assert not report.sure or report.choice.kind == "streams"
    assert tuned("each fills half", budget_s=10).complete


# ---- what it leaves behind


def test_a_second_run_makes_no_contexts_and_loses_no_memory(sim: Machines) -> None:
    machine = sim("h200")
    tuned("a chain")
    made, streams = machine.ledger().green_contexts_made, len(machine.ledger().live_of("stream"))
    assert made > 0
    assert 0 < streams <= made  # those that the contexts keep; background partitions of overlays have none
    tuned("a chain")
    assert machine.ledger().green_contexts_made == made
    assert machine.memory(device=0)["lost"] == 0
    assert len(machine.ledger().live_of("stream")) == streams
    assert not machine.ledger().live_of("event")


def test_device_memory_that_is_used_up_is_a_reason_and_no_error(sim: Machines) -> None:
    machine = sim("h200")
    machine.limit_contexts(6)
    report = tuned("each fills half")
    machine.clear_faults()
    assert report.choice.kind == "streams"
    assert "more partitions were not tried: no device memory is left for their contexts" in report.reasons
    assert not report.complete


def test_device_memory_may_be_used_up_near_the_best_sizes(sim: Machines) -> None:
    machine = sim("h200")
    machine.limit_contexts(9)
    report = tune.overlap(one=work(80, MS), other=work(264, MS), device=Device(0))
    machine.clear_faults()
    assert "more partitions were not tried: no device memory is left for their contexts" in report.reasons
    assert not report.complete


def test_partitions_that_cannot_win_are_closed_for_others(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = sim("h200")
    monkeypatch.setattr(_search, "CONTEXTS_AT_ONCE", 8)
    divisions = tuned("a chain").results
    assert len(of_kind(tuned("a chain"), "partitions")) > 8
    assert {result.plan.kind for result in divisions} == set(KINDS)
    assert machine.memory(device=0)["lost"] == 0


def test_many_parts_are_ended_by_the_budget(dev: Device) -> None:
    parts = {f"part{number}": work(16, MS // 4) for number in range(5)}
    many = tune.overlap(device=dev, **parts)
    few = tune.overlap(device=dev, budget_s=5, **parts)
    assert many.complete
    assert len(of_kind(many, "partitions")) > len(of_kind(few, "partitions")) > 0
    assert not few.complete
    assert re.search(
        r"\d+ of \d+ divisions of the SMs were not tried, such as .*: budget_s=5 allows no more", said(few)
    )


# ---- what a step is


def test_in_a_step_all_parts_start_when_the_step_before_has_ended(dev: Device) -> None:
    parts = [_work.Part("short", work(1, MS // 10)), _work.Part("long", work(1, MS)), _work.Part("chain", chain)]
    plan = Plan("streams", ("short", "long", "chain"))
    for order in (parts, parts[::-1]):
        with plan.open(dev) as streams, dev.create_stream() as idle:
            runner = _measure.Runner("makespan", deadline=1e12)
            steps = runner.profile(_measure.Trial.of(plan, order, streams, idle))
        assert len(steps) == 10
        for before, after in pairwise(steps):
            last = max(end for _, end in before.values())
            assert all(last <= begin < last + 50e-6 for begin, _ in after.values())


# ---- plans


def plan_of(kind: str) -> Plan:
    if kind == "partitions":
        return Plan("partitions", ("a", "b"), Layout(a=16), {"a": "a", "b": "background"})
    return Plan(kind, ("a", "b"), first="b" if kind == "priority" else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sequence", "streams", "priority", "partitions"])
def test_a_plan_opens_on_a_device_and_with_a_pool(dev: Device, kind: str) -> None:
    plan = plan_of(kind)
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(Plan.from_json(plan.to_json())) == hash(plan)
    with PartitionPool(dev) as pool:
        for where in (dev, pool):
            with plan.open(where) as streams:
                assert list(streams) == ["a", "b"]
                assert (streams["a"] == streams["b"]) == (kind == "sequence")
                counts = [stream.resources.sm.sm_count for stream in streams.values()]
                assert counts == ([16, 116] if kind == "partitions" else [132, 132])
                priorities = [stream.priority for stream in streams.values()]
                assert priorities == ([0, -5] if kind == "priority" else [0, 0])
            assert all(stream.is_closed for stream in streams.values()) == (kind != "partitions" or where is dev)


def test_the_plan_feeds_a_pool(dev: Device) -> None:
    plan = tuned("a chain").plan
    assert plan.layout is not None
    with PartitionPool(dev) as pool:
        parts = pool.prepare(plan.layout)
        with plan.open(pool) as streams:
            assert streams == {name: parts[place].stream for name, place in plan.places.items()}


@pytest.mark.parametrize("name", ["background", "class", "pre-fill"])
def test_a_part_may_have_a_name_that_partitions_cannot_have(dev: Device, name: str) -> None:
    report = tune.overlap(**{name: chain, "product": work(2 * 232, MS)}, device=dev)
    assert report.choice.places == {name: "part_0", "product": "product"}
    assert report.result(report.choice).parts[name].sm_count == 16


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
    with pytest.raises(TypeError, match=f"^{name} must be "):
        Plan(**{"kind": "sequence", "parts": ("a", "b"), **fields})


def test_a_plan_for_another_device_is_refused(dev: Device) -> None:
    whole = SMResourceOptions(dev.sm_count - 8, backfill=True)
    plan = Plan("partitions", ("a", "b", "c"), Layout(a=whole, b=8), {"a": "a", "b": "b", "c": "background"})
    with pytest.raises(ValueError, match=r"leaves no SMs of .* for background"), plan.open(dev):
        pass
    with pytest.raises(TypeError, match="not with int"), plan.open(0):  # type: ignore[arg-type]
        pass


# ---- reports


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
    report = tune.overlap(**dict.fromkeys(names, work(20, MS)), device=dev, sizes=[8])
    assert max(map(len, table_of(report).splitlines())) <= 80
    assert "  100/8/8/8/8 " in table_of(report)
    assert "with /: the SMs of the parts" in str(report)
    assert "left out for width: p10 to p90" in str(report)
    assert names[-1] in str(report).split("left out for width: ")[1].split("to_json")[0]
    assert sum(line.startswith("plan ") for line in str(report).splitlines()) == 1


def test_a_report_has_one_table_whatever_its_width(dev: Device) -> None:
    # A pair whose columns do not fit next to the range of the times.
    parts = {"tensor_parallel_gemm": work(80, MS), "sigmoid_of_activations": work(20, MS)}
    for objective in ("makespan", tune.TailLatency("sigmoid_of_activations")):
        text = str(tune.overlap(**parts, device=dev, sizes=[8], objective=objective))
        assert sum(line.startswith("plan ") for line in text.splitlines()) == 1
        assert max(map(len, text[text.index("plan ") :].split("\n\n")[0].splitlines())) <= 80
        assert "/sequence" in text


def test_a_spread_is_reported_where_there_are_samples_enough(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report, "WIDTH", 120)  # wide enough for every column
    report = read_only("a chain")
    lines = str(report).splitlines()
    for result in report.results:
        line = next((line for line in lines if line[2:].startswith(f"{result.plan} ")), "")
        if not line:
            continue  # one of the slowest, which are left out
        assert (" to " in line) == (result.seconds.samples >= 5)


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
        lambda saved: saved.update(objective="fast"),
        lambda saved: saved.update(results=None),
    ],
)
def test_json_that_is_no_report_is_refused(dev: Device, change: Callable[[dict[str, Any]], object]) -> None:
    text = changed(tuned("each fills half"), change)
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
        ("alone.left.median", True),
        ("alone.left.median", 0),
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
        ("results.0.seconds.median", "fast"),
        ("results.0.seconds.median", -1),
        ("results.0.seconds.p90", float("inf")),
        ("results.0.parts.left.sm_count", None),
        ("results.0.overlap", "x"),
        ("results.0.latency", {"p50": 1}),
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
        place = place[key]
    place[last] = value
    with pytest.raises(ValueError, match=r"not a report of schema 3: .*\b(" + "|".join(field.split(".")) + r")\b"):
        Report.from_json(json.dumps(saved))


def test_a_plan_that_was_not_measured_is_reported(dev: Device) -> None:
    with pytest.raises(KeyError, match="this plan was not measured"):
        tuned("each fills half").result(Plan("sequence", ("x", "y")))


def shown_in(svg: str) -> list[str]:
    """The texts of a picture, without its hover texts."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [(text[0].tail if len(text) else text.text) or "" for text in texts]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_picture_shows_the_plans_the_bound_and_its_legend(dev: Device, pair: str, tmp_path: Path) -> None:
    report = read_only(pair)
    svg = report.svg(tmp_path / "report.svg")
    assert (tmp_path / "report.svg").read_text() == svg == report._repr_html_()
    assert report.html(tmp_path / "report.html") == (tmp_path / "report.html").read_text()
    texts = shown_in(svg)
    for result in [r for i, r in enumerate(report.results) if i < 14 or r.plan.kind == "sequence"]:
        assert str(result.plan) in texts
    assert {"p10 to p90", "other plans"} < set(texts)
    assert any(text.startswith("bound: ") for text in texts)
    assert "prefers-color-scheme:dark" in svg
    assert svg.count('class="gctx-best"') == 2  # the bar of the best plan and the legend
    # Bars, spreads and parts are inside of the sheet.
    root = ElementTree.fromstring(svg)
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.attrib["x"]) >= 0
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= float(root.attrib["width"])


def test_parts_in_sequence_are_drawn_one_after_the_other(dev: Device) -> None:
    report = read_only("each fills half")
    for result in report.results:
        left, right = _report._pieces(report, result)
        assert left.start_ns == 0
        assert right.start_ns == (left.end_ns if result.plan.kind == "sequence" else 0)


def test_parts_of_a_mix_in_sequence_are_drawn_as_long_as_the_mix(dev: Device) -> None:
    report = tune.overlap(
        a=work(8, MS), b=work(8, MS), objective=Throughput(a=1, b=2), device=dev, sizes=[8], budget_s=2
    )
    [sequence] = [result for result in report.results if result.plan.kind == "sequence"]
    for piece in _report._pieces(report, sequence):
        assert piece.start_ns == 0
        assert piece.end_ns == pytest.approx(sequence.seconds.median * 1e9, rel=0.01)


def test_the_picture_has_the_whole_answer_and_explains_what_it_shows(dev: Device) -> None:
    measured = read_only("bulk work")
    assert isinstance(measured.objective, TailLatency)

    def hinted(plan: Plan) -> Plan:
        return dataclasses.replace(plan, library_sms=plan.layout is not None)

    report = dataclasses.replace(
        measured,
        sure=False,
        objective=dataclasses.replace(measured.objective, others=0.75),
        choice=hinted(measured.choice),
        results=tuple(dataclasses.replace(result, plan=hinted(result.plan)) for result in measured.results),
    )
    assert len(report.results) > _report.MOST_BARS
    texts = " ".join(shown_in(report.svg()))
    for words in (
        str(report).splitlines()[0],
        "hint: libraries use the SM counts of their partitions",
        "a plan is chosen only if the others keep 75% of their rate",
        "over the others",
        "slower plans",
    ):
        assert words in texts


def test_a_picture_shows_names_as_they_are_and_finds_room_for_long_ones(dev: Device) -> None:
    parts = {"_decode": chain, "cost $a_{<": work(8, MS), "x" * 300: work(8, MS)}
    texts = shown_in(tune.overlap(**parts, device=dev, budget_s=5).svg())
    assert {"_decode", "cost $a_{<"} < set(texts)
    assert any(text.startswith("xxx") and text.endswith("\N{HORIZONTAL ELLIPSIS}") for text in texts)
    assert any("/" in text for text in texts)


def test_a_report_in_an_interpreter_is_one_line_with_the_answer(dev: Device) -> None:
    report = read_only("a chain")
    assert repr(report) == (
        f"<Report: best: product=116, chain=16; {report.gain:.2f}x speedup over sequential "
        f"({report.gain_low:.2f} to {report.gain_high:.2f}); product and chain on NVIDIA H200 (simulated)>"
    )
    assert repr(report).startswith(f"<Report: {str(report).splitlines()[0]}")


def test_a_function_that_takes_no_stream_is_refused_with_how_parts_are_called(dev: Device) -> None:
    error = refusal(RuntimeError, lambda: tune.overlap(a=lambda: None, b=work(1, MS), device=dev))  # type: ignore[arg-type, misc]
    assert "takes 0 positional arguments but 1 was given" in str(error)
    assert str(error).endswith("; parts are called with one argument, as f(stream)")


def test_all_that_is_wrong_with_the_parts_is_reported_at_once() -> None:
    error = refusal(ValueError, lambda: tune.overlap(lambda stream: None))
    assert "from 2 to 8 parts, not 1; a function without a name, such as a lambda, needs one" in str(error)


def test_the_bar_is_shown_where_it_is_wanted_and_gone_at_the_end(
    dev: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned("each fills half")
    tuned("each fills half", progress=False)
    assert capsys.readouterr().err == ""
    tuned("each fills half", progress=True)
    shown = capsys.readouterr().err
    assert "[" in shown
    assert shown.endswith("\r")
    assert shown.split("\r")[-2].strip() == ""
    assert "\n" not in shown


def test_the_bar_is_no_wider_than_the_terminal(
    dev: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    tune.overlap(an_attention_with_a_long_name=chain, another_one_with_a_long_name=chain, device=dev, progress=True)
    lines = capsys.readouterr().err.split("\r")
    assert max(map(len, lines)) == 39


# ---- libraries


def test_the_stream_is_the_current_one_of_torch_while_a_part_is_called(torch: Any, dev: Device) -> None:
    wrong = []

    def left(stream: Stream) -> None:
        if torch.cuda.current_stream().cuda_stream != stream.handle:
            wrong.append(stream)
        spin(stream, WHOLE // 2, MS)

    before = torch.cuda.current_stream()
    report = tune.overlap(left, right=work(WHOLE // 2, MS), device=dev, library_sms="off")
    assert not wrong
    assert torch.cuda.current_stream() == before
    assert torch.waits == []
    assert not any(result.plan.library_sms for result in report.results)


def test_partitions_are_measured_without_and_with_library_sms(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []

    @contextmanager
    def library_sms(stream: Stream, on: bool) -> Iterator[None]:
        assert on
        reported.append(stream.resources.sm.sm_count)
        try:
            yield
        finally:
            reported.pop()

    monkeypatch.setattr(_work, "_library_sms", library_sms)

    def product(stream: Stream) -> None:
        # A library that knows how few SMs it has does with less work here.
        spin(stream, 2 * 232, MS // 2 if reported else MS)

    report = tune.overlap(product, chain=chain, device=dev)
    assert {result.plan.library_sms for result in of_kind(report, "partitions")} == {False, True}
    assert {r.plan.library_sms for r in of_kind(report, "overlay")} == {False, True}
    assert not any(r.plan.library_sms for r in report.results if r.plan.layout is None)
    assert report.choice.library_sms
    assert "SM count hint" in str(report.choice)
    [reason] = [reason for reason in report.reasons if reason.startswith("the SM count hint")]
    # Seven final rounds at the least: enough for an interval.
    assert re.fullmatch(
        r"the SM count hint for libraries \(product=1\d\d, chain=\w+\) makes it 1\.\d\dx faster \(1.* to 1.*\)", reason
    )
    assert "  hint: libraries use the SM counts of their partitions" in str(report)
    assert "SM count hint" not in table_of(report)
    assert max(map(len, table_of(report).splitlines())) <= 80
    assert Plan.from_json(report.choice.to_json()) == report.choice
    always = tune.overlap(product, chain=chain, device=dev, library_sms="on")
    assert {result.plan.library_sms for result in of_kind(always, "partitions")} == {True}


def test_a_torch_without_a_gpu_takes_no_hint(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(ValueError, match="needs torch or CuPy with a GPU"):
        tune.overlap(chain, other=chain, device=dev, library_sms="on")


def test_each_library_that_is_loaded_is_reported(torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = []

    @contextmanager
    def block(library: Any, stream: Stream, choice: str) -> Iterator[None]:
        reported.append((library, stream.resources.sm.sm_count, choice))
        yield

    cupy = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr("cuda_gctx.interop.library_sms.torch_block", block)
    monkeypatch.setattr("cuda_gctx.interop.library_sms.cupy_block", block)
    with dev.partition(a=16) as parts:
        with _work._library_sms(parts.a.stream, True):
            assert reported == [(torch, 16, "on")]
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        with _work._library_sms(parts.a.stream, True):
            assert len(reported) == 2  # CuPy has no device
        cupy.cuda.is_available = lambda: True
        with _work._library_sms(parts.a.stream, True):
            assert reported[3:] == [(cupy, 16, "on")]
        with _work._library_sms(parts.a.stream, False):
            assert len(reported) == 4


def test_libraries_without_a_hint_are_left_out_with_the_reason(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def library_sms(stream: Stream, on: bool) -> Iterator[None]:
        raise RuntimeError("libcublas is not loaded")
        yield

    monkeypatch.setattr(_work, "_library_sms", library_sms)
    report = tuned("a chain")
    assert report.choice.kind == "partitions"
    assert "the SM count hint was not measured: RuntimeError: libcublas is not loaded" in report.reasons
    error = refusal(RuntimeError, lambda: tuned("a chain", library_sms="on"))
    assert "is not possible here: RuntimeError: libcublas" in str(error)


# ---- statistics


def test_an_interval_covers_what_samples_cannot_tell() -> None:
    assert ratio_of([(2.0, 1.0)] * 7) == Ratio(2.0, 2.0, 2.0, 7)
    assert not ratio_of([(2.0, 1.0)] * 6).is_slower  # too few to be sure of anything
    ratios = [1.01 + n / 100 for n in range(12)]
    found = ratio_of([(ratio, 1.0) for ratio in ratios])
    assert (found.low, found.high) == (ratios[1], ratios[10])  # the sign test for twelve
    assert found.is_slower
    assert not ratio_of([(1.009, 1.0)] * 20).is_slower  # clocks drift by as much


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    seed = random.randrange(2**32)
    numbers = random.Random(seed)
    held = 0
    for _ in range(400):
        found = ratio_of([(numbers.lognormvariate(0, 0.1) * 1.2, 1.0) for _ in range(15)])
        held += found.low <= 1.2 <= found.high
    assert held >= 360, f"seed {seed}"


# ---- the package


def test_importing_the_tuner_loads_nothing() -> None:
    done = run_python(
        "import sys, cuda_gctx.tune\n"
        "print({'torch', 'cupy', 'numpy', 'matplotlib', 'cuda_gctx._core.probe'} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    block = next(
        node
        for node in ast.parse(Path(tune.__file__).read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    module_of_name = {name: module for module, names in tune._NAMES_OF_MODULE.items() for name in names}
    assert {alias.asname: node.module for node in imports for alias in node.names} == module_of_name
    for name in tune.__all__:
        assert getattr(tune, name) is getattr(sys.modules[module_of_name[name]], name)
    with pytest.raises(AttributeError, match="no attribute 'tuner'"):
        tune.tuner  # noqa: B018
