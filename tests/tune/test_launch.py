"""How the tuner enqueues work: launch-bound work by a host thread for each part, or as graphs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from cuda_gctx import Device, Stream, tune
from cuda_gctx.tune import TailLatency, Throughput, _batches, _measure, _work, spin
from cuda_gctx.tune._hosts import Hosts
from cuda_gctx.tune._rounds import Rounds
from cuda_gctx.tune._work import Part

from .conftest import host_takes

pytestmark = pytest.mark.sim_only

MS = 1_000_000
SOON_S = 30  # only a failure waits for so long


def slowly(stream: Stream) -> None:
    host_takes(20_000)  # more than the kernel takes
    spin(stream, 1, 4_000)


OBJECTIVES: dict[str, Any] = {
    "makespan": "makespan",
    "mix": Throughput(a=2, b=1),
    "latency": TailLatency("a", quantile=0.9),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_launch_bound_work_is_enqueued_by_a_host_thread_for_each_part(dev: Device, objective: str) -> None:
    threads: dict[str, set[str]] = {"a": set(), "b": set()}

    def part(name: str) -> Any:
        def enqueue(stream: Stream) -> None:
            threads[name].add(threading.current_thread().name)
            slowly(stream)

        return enqueue

    budget_s = 1.5 if objective == "latency" else 0.6  # a batch of latencies has more calls
    report = tune.overlap(
        a=part("a"), b=part("b"), device=dev, sizes=[8], objective=OBJECTIVES[objective], budget_s=budget_s
    )
    assert report.launch == "by a host thread for each part"
    # The first look at the work, and all of what is in sequence, is by the caller's thread.
    assert "tune b_0" in threads["b"]
    assert not threads["a"] & threads["b"] - {"MainThread"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tune ")]


def test_each_round_has_new_host_threads(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # How fast two threads enqueue depends on how they are scheduled, so one pair of them is not enough for an answer.
    rounds: list[set[int]] = []
    in_round = threading.Event()
    measure, batch = Rounds.measure, _measure.Runner.batch

    def one_by_one(self: Any, candidates: Any, number: int, **options: Any) -> None:
        for _ in range(number):
            rounds.append(set())
            in_round.set()
            measure(self, candidates, 1, **options)
            in_round.clear()

    def seen(self: Any, trial: Any, shape: Any) -> Any:
        if self.hosts is not None and in_round.is_set():  # the blocks of the end are not rounds
            rounds[-1].add(id(self.hosts))
            kept.append(self.hosts)  # so that no other one gets its identity
        return batch(self, trial, shape)

    kept: list[Hosts] = []
    monkeypatch.setattr(Rounds, "measure", one_by_one)
    monkeypatch.setattr(_measure.Runner, "batch", seen)
    tune.overlap(a=slowly, b=lambda s: slowly(s), device=dev, sizes=[8], budget_s=0.6)
    found = [one for one in rounds if one]
    assert len(found) > 5
    assert all(len(one) == 1 for one in found)
    assert len(set().union(*found)) == len(found)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tune ")]


def test_the_parts_of_a_mix_are_enqueued_at_the_same_time(dev: Device) -> None:
    meeting = threading.Barrier(2)

    def meets(stream: Stream) -> None:
        meeting.wait(SOON_S)  # for ever, if one thread called both
        spin(stream, 1, 100)

    runner = _measure.Runner(Throughput(a=1, b=1), deadline=1e12, launch="auto")
    with runner, dev.create_stream() as one, dev.create_stream() as two:
        runner.start_hosts(["a", "b"])
        trial = _batches.Trial("", (Part("a", meets), Part("b", meets)), {"a": one, "b": two}, one)
        assert runner.batch(trial, _measure.Shape(3, 0.0)).calls["a"][0] == 3


@pytest.mark.parametrize("names", [("short", "long"), ("long", "short")])
def test_no_part_of_a_mix_waits_until_the_queue_has_room_for_it(dev: Device, names: tuple[str, str]) -> None:
    # 3000 launches are more than the driver's queue holds, so the host waits while it enqueues them.
    weights = {"short": 3000, "long": 4}
    parts = {
        "short": Part("short", lambda stream: spin(stream, 1, 8_000)),
        "long": Part("long", lambda stream: spin(stream, 1, 6 * MS)),
    }
    with _measure.Runner(Throughput(**weights), deadline=1e12) as runner, ExitStack() as closing:
        streams = {name: closing.enter_context(dev.create_stream()) for name in names}
        trial = _batches.Trial("", tuple(parts[name] for name in names), streams, streams["long"])
        found = runner.batch(trial, _measure.Shape(1, 0.0))
    both = {name: calls / seconds for name, (calls, seconds) in found.calls.items()}
    assert found.seconds == pytest.approx(3000 / both["short"], rel=0.01)
    assert found.seconds < 1.2 * 4 * 6e-3


def test_calls_of_a_mix_are_spread_evenly() -> None:
    a, b = parts = [Part(name, slowly) for name in "ab"]
    assert _batches._evenly(parts, {"a": 1, "b": 1}) == [(a, 1), (b, 1)]
    assert _batches._evenly(parts, {"a": 4, "b": 2}) == [(a, 1), (b, 1), (a, 2), (b, 1), (a, 1)]
    assert _batches._evenly(parts, {"a": 1, "b": 5}) == [(a, 1), (b, 5)]


def test_steps_of_host_threads_are_joined(dev: Device) -> None:
    runner = _measure.Runner("makespan", deadline=1e12, launch="auto")
    parts = (Part("a", lambda s: spin(s, 1, MS)), Part("b", lambda s: spin(s, 1, 2 * MS)))
    with runner, dev.create_stream() as one, dev.create_stream() as two:
        runner.start_hosts(["a", "b"])
        trial = _batches.Trial("", parts, {"a": one, "b": two}, one)
        sample = runner.batch(trial, _measure.Shape(4, 0.0))
        assert sample.seconds == pytest.approx(2e-3, rel=0.05)
        steps = runner.profile(trial)
    for before, after in pairwise(steps):
        assert after["a"][0] >= before["b"][1]
        assert after["b"][0] >= before["a"][1]


def test_a_part_that_fails_on_its_thread_ends_the_others(dev: Device) -> None:
    count = 0

    def fails(stream: Stream) -> None:
        nonlocal count
        count += threading.current_thread() is not threading.main_thread()
        if count > 5:
            raise ValueError("the sixth call")
        slowly(stream)

    with pytest.raises(RuntimeError, match=r"b failed \(.*\): ValueError: the sixth call"):
        tune.overlap(a=slowly, b=fails, device=dev, sizes=[8], budget_s=0.6)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tune ")]


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the gate of each batch was closed."""
    found: list[float] = []

    def timed_batch(streams: Any, enqueue: Any, gate_s: float) -> Any:
        found.append(gate_s)
        return measured(streams, enqueue, gate_s)

    measured = _batches.timed_batch
    monkeypatch.setattr(_batches, "timed_batch", timed_batch)
    return found


@pytest.mark.parametrize("launch", _work.LAUNCHES)
def test_launch_bound_work_is_measured_without_a_gate(dev: Device, gates: list[float], launch: Any) -> None:
    tune.overlap(a=slowly, b=lambda s: slowly(s), device=dev, sizes=[8], launch=launch, budget_s=0.3)
    assert gates[0] > 0
    # A graph takes the host no longer than the device here: the host's part of the function is not in it.
    assert (gates[-1] > 0) == (launch == "graphs")


def test_what_launch_bound_work_takes_does_not_depend_on_the_number_of_steps(dev: Device) -> None:
    with _measure.Runner("makespan", deadline=1e12) as runner, dev.create_stream() as stream:
        parts = (Part("a", slowly), Part("b", slowly))
        trial = _batches.Trial("", parts, {"a": stream, "b": stream}, stream, step_s=1e-5, host_s=1e-5)
        assert runner.shape([trial]).gate_s > 0
        runner.gated = False
        assert runner.shape([trial]).gate_s == 0
        few, many = (runner.batch(trial, _measure.Shape(steps, 0.0)).seconds for steps in (20, 200))
        assert few == pytest.approx(many, rel=0.1)


def test_a_curve_of_launch_bound_work_is_measured_without_a_gate(dev: Device, gates: list[float]) -> None:
    tune.curve(slowly, device=dev, sizes=[8], budget_s=0.5)
    assert set(gates) == {0}
    tune.curve(lambda stream: spin(stream, 132, MS), device=dev, sizes=[8], budget_s=0.5)
    assert gates[-1] > 0


@pytest.mark.parametrize("objective", ["makespan", Throughput(a=1, b=1)])
def test_a_gain_is_not_one_of_the_gate(dev: Device, objective: Any) -> None:
    # In sequence the device is busy, and the host ahead. If the parts overlap, a step takes the device 2.6 ms and the
    # host 4: behind a gate, most steps of a batch would be enqueued before the first one begins.
    def part(stream: Stream) -> None:
        host_takes(2 * MS)
        spin(stream, 132, 2_600_000)

    report = tune.overlap(
        a=part, b=lambda s: part(s), device=dev, sizes=[64], objective=objective, launch="calls", budget_s=6
    )
    [streams] = [result for result in report.results if result.plan.kind == "streams"]
    assert streams.seconds.value == pytest.approx(4e-3, rel=0.15)
    assert 1.1 < report.gain < 1.35
    assert streams.launch_bound
    assert any(reason.startswith("launch-bound: the host needs 4") for reason in report.reasons)


def test_a_gate_is_left_out_only_if_the_host_takes_longer_than_the_longest_part(dev: Device) -> None:
    def part(stream: Stream) -> None:
        host_takes(MS)
        spin(stream, 132, 2_600_000)

    report = tune.overlap(a=part, b=lambda s: part(s), device=dev, sizes=[64], budget_s=6)
    assert report.launch == "by one host thread"
    assert report.gain == pytest.approx(2, rel=0.01)
    assert "launch-bound" not in str(report)


@pytest.mark.parametrize("launch", ["calls", "auto"])
def test_other_work_is_enqueued_by_one_thread(dev: Device, launch: Any) -> None:
    def long(stream: Stream) -> None:
        spin(stream, 132, MS)

    report = tune.overlap(a=long, b=lambda s: long(s), device=dev, sizes=[8], launch=launch, budget_s=1)
    assert report.launch == "by one host thread"
    report = tune.overlap(a=slowly, b=lambda s: slowly(s), device=dev, sizes=[8], launch="calls", budget_s=0.6)
    assert report.launch == "by one host thread"


def test_graphs_are_captured_once_for_each_stream_and_replayed(dev: Device) -> None:
    calls = 0

    def part(stream: Stream) -> None:
        nonlocal calls
        calls += 1
        slowly(stream)

    report = tune.overlap(a=part, b=lambda s: part(s), device=dev, sizes=[8], launch="graphs", budget_s=0.5)
    assert report.launch == "as graphs"
    assert report.result(report.choice).seconds.samples >= 7
    # Each opening calls a part once before the capture and once in it; the first look at each part calls it some times.
    opened = sum(report.openings for _ in report.results)
    assert calls <= 4 * (opened + 8) + 12
    assert "launch-bound" not in "\n".join(report.reasons)
    assert "excluded" not in "\n".join(report.reasons)


def test_what_cannot_be_captured_is_named(dev: Device) -> None:
    def waits(stream: Stream) -> None:
        spin(stream, 1, 100)
        stream.sync()

    with pytest.raises(RuntimeError, match=r'b .*cannot be captured as a graph.*launch="graphs" needs functions'):
        tune.overlap(a=slowly, b=waits, device=dev, sizes=[8], launch="graphs")


def test_another_way_to_launch_is_refused(dev: Device) -> None:
    with pytest.raises(ValueError, match="launch must be one of auto, calls, graphs, not 'both'"):
        tune.overlap(a=slowly, b=slowly, device=dev, launch="both")  # type: ignore[arg-type]


def test_a_job_that_fails_is_raised_and_the_threads_end() -> None:
    hosts = Hosts(["a", "b"])
    meeting = threading.Barrier(2)

    def fails() -> None:
        raise KeyError("mine")

    jobs = {"a": lambda: meeting.wait(SOON_S), "b": fails}
    with pytest.raises(KeyError, match="mine"), hosts.running(jobs, meeting):
        pass
    hosts.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tune ")]
