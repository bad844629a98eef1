"""overlap() on the software driver: the right answer for work of known cost, or none."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cuda_gctx import Device, PartitionPool, Stream, tune
from cuda_gctx.tune import Plan, Report, TailLatency, Throughput, _overlap, spin
from cuda_gctx.tune._bench import Bench
from cuda_gctx.tune._judge import Sample
from cuda_gctx.tune._race import Amount

from ..common import refusal
from .conftest import host_takes
from .pairs import MS, WHOLE, Failing, Machines, of_kind, read_only, said, tuned, work

pytestmark = pytest.mark.sim_only


def pair(times: int) -> dict[str, Callable[[Stream], None]]:
    """The best division is 116 and 16 SMs, with 1.91x; each step is so many times as long."""

    def prefill(stream: Stream) -> None:
        for _ in range(times):
            spin(stream, 464, MS)

    def decode(stream: Stream) -> None:
        for _ in range(15 * times):
            spin(stream, 32, MS // 10)
            spin(stream, 1, MS // 50)

    return {"prefill": prefill, "decode": decode}


def is_right(report: Report) -> bool:
    return report.choice is not None and report.choice.sm_counts == {"prefill": 116, "decode": 16}


@pytest.mark.parametrize(
    ("times", "budget_s", "answered"),
    [(1, 2, True), (1, 16, True), (40, 16, True), (40, 60, True), (100, 16, False), (100, 60, True), (200, 16, False)],
)
def test_the_answer_is_right_or_undecided_however_short_the_budget(
    dev: Device, times: int, budget_s: float, answered: bool
) -> None:
    report = tune.overlap(**pair(times), device=dev, budget_s=budget_s)
    assert is_right(report) if answered else report.choice is None
    assert not report.sure or report.complete
    if answered:
        assert report.gain == pytest.approx(1.91, abs=0.01)


def test_at_most_is_said_only_where_every_plan_was_tried(dev: Device) -> None:
    report = tune.overlap(**pair(200), device=dev, budget_s=16)
    assert not report.complete
    assert report.untried
    assert report.loses is None
    assert "at most" not in str(report)
    assert str(report).startswith("undecided; best estimate: ")
    assert f"{len(report.untried)} of 23 plans were not tried" in said(report)
    assert any(reason.startswith("to decide: more time, as with budget_s=32") for reason in report.reasons)


def test_halves_run_together_on_streams(dev: Device) -> None:
    report = read_only("each fills half")
    assert report.choice is not None
    assert report.choice.kind == "streams"
    assert report.gain == pytest.approx(2, rel=0.05)
    assert report.sure
    assert report.horizon_s is not None


def test_what_fills_the_device_stays_in_sequence(dev: Device) -> None:
    report = read_only("each fills all")
    assert report.choice is not None
    assert report.choice.kind == "sequence"
    assert str(report).startswith("choice: in sequence; no other plan is faster by more than 2%")


def test_streams_are_tried_in_both_orders_and_partitions_in_both_orientations(dev: Device) -> None:
    report = read_only("a chain")
    assert {result.plan.parts for result in of_kind(report, "streams")} == {("product", "chain"), ("chain", "product")}
    counts = {tuple(result.plan.sm_counts.values()) for result in of_kind(report, "partitions")}
    assert {(116, 16), (16, 116)} <= counts
    assert {result.plan.first for result in of_kind(report, "overlay")} == {"product", "chain"}
    assert {result.plan.first for result in of_kind(report, "priority")} == {"product", "chain"}


def test_the_sizes_that_are_asked_for_are_tried_and_no_others(dev: Device) -> None:
    report = tuned("a chain", sizes=[16, 10, 132], budget_s=3)
    assert {count for result in of_kind(report, "partitions") for count in result.plan.sm_counts.values()} == {
        10,
        122,
        16,
        116,
    }
    assert "132 SMs were not tried: no layout for these parts fits with a partition of that size" in report.reasons


def test_three_parts_are_divided(dev: Device) -> None:
    report = tune.overlap(a=work(88, MS), b=work(88, MS), c=work(88, MS), device=dev, budget_s=4)
    assert report.gain == pytest.approx(3, rel=0.05)
    assert any(len(set(result.plan.sm_counts.values())) > 1 for result in of_kind(report, "partitions"))


def test_a_mix_runs_its_parts_without_waiting_for_each_other(dev: Device) -> None:
    report = read_only("a mix")
    assert report.choice is not None
    assert report.gain > 1.2
    assert report.results[0].seconds < report.alone["prefill"] + 16 * report.alone["decode"]


# ---- further ways


def chunk(stream: Stream, share: float) -> None:
    """The reads of decode are also those of prefill. Does the work of a mix of eight and one."""
    for _ in range(8):
        spin(stream, WHOLE, round((0.35 if share else 0.4) * MS))
    spin(stream, WHOLE, MS // 2)


def test_another_way_to_do_the_work_is_one_more_contestant(dev: Device) -> None:
    report = tune.overlap(
        prefill=work(WHOLE, 2 * MS),
        decode=work(WHOLE, 4 * MS // 10),
        also={f"chunk {eighth}/8": partial(chunk, share=eighth / 8) for eighth in (0, 4)},
        objective=Throughput(prefill=1, decode=8),
        device=dev,
        budget_s=4,
    )
    assert {str(result.plan) for result in of_kind(report, "also")} == {"chunk 0/8", "chunk 4/8"}
    assert report.choice is not None
    assert (report.choice.kind, report.choice.way) == ("also", "chunk 4/8")
    assert report.gain == pytest.approx(5.2 / 3.3, rel=0.02)
    with report.choice.open(dev) as streams:
        assert streams["prefill"] == streams["decode"]


# ---- latencies


def test_a_latency_next_to_bulk_work_is_that_of_a_partition_or_an_overlay(dev: Device) -> None:
    report = read_only("bulk work")
    assert report.best.kind in ("partitions", "overlay")
    assert report.choice is not None
    assert report.gain > 5
    assert report.result(report.choice).p50 == pytest.approx(7.5e-6, rel=0.5)


def test_others_keep_the_rate_that_is_demanded(dev: Device) -> None:
    objective = TailLatency("critical", quantile=0.9, rate=200, others=0.9)
    report = tuned("bulk work", objective=objective, sizes=[8, 64])
    for result in report.results:
        if result.plan.kind == "partitions" and result.plan.sm_counts["critical"] == 64:
            assert not result.keeps
    assert report.result(report.best).rates["bulk"] * report.alone["bulk"] >= 0.9
    assert "a plan is chosen only if the others keep 90% of their rate" in str(report)


def test_a_finalist_that_leaves_others_too_little_gives_its_place_to_the_next_plan(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy: list[Plan] = []  # those that meet first: they keep the rate in the race, and not in the finals
    meet, run = _overlap.finals, Bench.run

    def finals(finalists: Sequence[Plan], *arguments: Any, **options: Any) -> Any:
        greedy.extend(() if greedy else finalists[1:])
        return meet(finalists, *arguments, **options)

    def measured(bench: Bench, plan: Plan, amount: Amount) -> Sample:
        found = run(bench, plan, amount)
        slower = 4 if plan in greedy else 1
        return replace(found, rates={name: rate / slower for name, rate in found.rates.items()})

    monkeypatch.setattr(_overlap, "finals", finals)
    monkeypatch.setattr(Bench, "run", measured)
    report = tuned("bulk work", objective=TailLatency("critical", quantile=0.9, rate=200, others=0.3), budget_s=16)
    assert greedy
    assert report.best.kind in ("partitions", "overlay")
    assert report.best not in greedy
    assert report.result(report.best).finalist
    assert report.gain > 5
    assert all(not report.result(plan).keeps for plan in greedy)


def test_a_closed_loop_measures_one_call_at_a_time(dev: Device) -> None:
    report = tuned("bulk work", objective=TailLatency("critical", quantile=0.9, closed_loop=True))
    assert report.gain > 5


@pytest.mark.parametrize("rate", [50, 1000])
def test_a_control_loop_is_answered_at_any_rate_with_the_default_budget(dev: Device, rate: float) -> None:
    """Blocks of a millisecond fill the device, and a call of 20 us finds room in a partition only."""
    report = tune.overlap(
        control=work(8, 20_000),
        vision=work(4 * WHOLE, MS),
        device=dev,
        objective=TailLatency("control", rate=rate),
        sizes=[8],
    )
    assert report.choice is not None
    assert report.choice.kind in ("partitions", "overlay")
    assert report.gain > 20


# ---- what a report says of the work


def test_launch_bound_work_is_told_to_be_captured(dev: Device) -> None:
    def slow(stream: Stream) -> None:
        host_takes(MS // 5)
        spin(stream, 8, MS // 100)

    report = tune.overlap(one=slow, other=slow, device=dev, sizes=[64], budget_s=2)
    assert any(result.launch_bound for result in report.results)
    assert 'launch-bound: the device waits for the host; capture the work as a graph, or measure launch="graphs"' in (
        report.reasons
    )


def test_graphs_are_captured_once_on_each_stream_and_replayed(sim: Machines) -> None:
    sim("h200")
    calls: list[int] = []

    def counted(stream: Stream) -> None:
        calls.append(stream.handle)
        spin(stream, WHOLE // 2, MS)

    report = tune.overlap(
        counted, other=work(WHOLE // 2, MS), device=Device(0), sizes=[64], budget_s=2, launch="graphs"
    )
    assert report.gain == pytest.approx(2, rel=0.05)
    assert report.launch == "graphs"
    assert len(calls) < 60


def test_work_that_cannot_be_captured_is_refused_for_graphs(dev: Device) -> None:
    def waits(stream: Stream) -> None:
        spin(stream, 8, MS)
        stream.sync()

    error = refusal(
        tune.PartError, lambda: tune.overlap(waits, other=work(8, MS), device=dev, launch="graphs", budget_s=2)
    )
    assert "cannot be captured as a graph" in str(error)


def test_a_part_that_waits_for_the_device_is_named(dev: Device) -> None:
    def waits(stream: Stream) -> None:
        spin(stream, 8, MS)
        stream.sync()

    report = tune.overlap(waits, other=work(8, MS), device=dev, sizes=[64], budget_s=2)
    assert "waits waits for the device inside its function" in said(report)


# ---- ending early


def test_ctrl_c_returns_what_was_measured(dev: Device) -> None:
    done = False

    def interrupted(stream: Stream) -> None:
        nonlocal done
        spin(stream, WHOLE // 2, MS)
        # The sequence, which comes first, has been measured when the first partition runs.
        if stream.context.is_green and not done:
            done = True
            signal.raise_signal(signal.SIGINT)

    # A shell that runs the tests in the background lets them ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        report = tune.overlap(interrupted, other=work(WHOLE // 2, MS), device=dev)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (report.choice, report.sure, report.complete) == (None, False, False)
    assert report.results


def test_ctrl_c_before_anything_is_known_ends_the_call(dev: Device) -> None:
    failing = Failing(2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        tune.overlap(failing=failing, other=work(1, MS), device=dev)


def test_a_budget_that_is_too_short_for_the_sequence_is_refused(dev: Device) -> None:
    error = refusal(RuntimeError, lambda: tune.overlap(**pair(100), device=dev, budget_s=0.5))
    assert str(error).startswith("budget_s=0.5 is too short to measure each part alone and the sequence")


def test_a_device_without_memory_for_contexts_leaves_plans_untried(sim: Machines) -> None:
    machine = sim("h200")
    machine.fail("cuGreenCtxCreate")
    report = tuned("a chain", budget_s=3)
    assert report.untried
    assert not report.complete
    assert "no device memory is left for its contexts" in said(report)


def test_nothing_of_a_tuning_is_left_behind(sim: Machines) -> None:
    machine = sim("h200")
    tuned("a chain", sizes=[16], budget_s=2)
    assert not machine.ledger().live_of("event")


# ---- the report


@pytest.mark.parametrize("name", ["a chain", "each fills all", "bulk work", "a mix"])
def test_a_report_is_short_and_is_the_same_after_json(name: str) -> None:
    report = read_only(name)
    assert Report.from_json(report.to_json()) == report
    assert len(str(report).splitlines()) <= 20
    assert max(map(len, str(report).splitlines())) <= 165
    assert report.results[0].relative <= 1.01
    assert report.svg().startswith("<svg")
    assert "<html" in report.html()
    assert repr(report).startswith("<Report: ")
    assert report.result(report.best).plan == report.best


def test_the_first_lines_are_the_answer_and_the_choice_leads_the_table() -> None:
    report = read_only("a chain")
    first, second, third, *_ = str(report).splitlines()
    assert re.fullmatch(
        r"choice: product=116, chain=16; \d\.\d\dx \(.* to .*\) over sequential, sure, sustained for \S+ s", first
    )
    assert second.startswith("step ")
    assert "2 parts" not in third
    [chosen] = [line for line in str(report).splitlines() if line.startswith("> ")]
    assert chosen.startswith("> product=116, chain=16")
    table = str(report).split("\n\n")[1].splitlines()
    assert table[1] == chosen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 5}, "measure again with this version"),
        ({"gain": "fast"}, "gain must be a number"),
        ({"choice": {"schema": 5}}, "choice: "),
        ({"sure": True, "choice": None}, "sure needs a choice"),
        ({"gain_low": 99.0}, "does not contain"),
        ({"alone": {"product": 0.0, "chain": 1.0}}, "alone.product must be more than 0"),
        ({"results": []}, "is not a plan of results"),
        ({"objective": {"throughput": {"other": 1}}}, "objective: "),
    ],
)
def test_a_saved_report_with_a_wrong_field_is_refused(change: dict[str, Any], message: str) -> None:
    import json

    saved = json.loads(read_only("a chain").to_json()) | change
    with pytest.raises(ValueError, match=re.escape(message)):
        Report.from_json(json.dumps(saved))


def test_the_choice_opens_in_a_pool(dev: Device) -> None:
    choice = read_only("a chain").choice
    assert choice is not None
    with PartitionPool(dev) as pool:
        assert choice.switch(pool)["chain"].resources.sm.sm_count == 16


def test_a_plan_that_was_not_measured_has_no_result() -> None:
    with pytest.raises(KeyError, match="was not measured"):
        read_only("a chain").result(tune.Plan("sequence", ("other",)))


def test_progress_is_shown_on_a_terminal_and_removed(dev: Device, capsys: pytest.CaptureFixture[str]) -> None:
    tuned("each fills half", sizes=[64], budget_s=1, progress=True)
    shown = capsys.readouterr().err
    assert "measuring left" in shown
    assert "in sequence" in shown
    assert shown.endswith("\r")
    tuned("each fills half", sizes=[64], budget_s=1, progress=False)
    assert capsys.readouterr().err == ""
