"""The measuring loop on the virtual clock: gates, batches, single calls, background load and rounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cuda_gctx import Device, Event
from cuda_gctx.measure.loop import (
    AHEAD,
    QUEUED,
    Bursts,
    CallTimer,
    Load,
    RandomCalls,
    hold,
    in_rounds,
    is_apart,
    timed_batch,
)
from cuda_gctx.tune import spin

pytestmark = pytest.mark.sim_only

MS = 1_000_000
Machines = Callable[..., Any]


def test_nothing_starts_before_the_gate_opens(dev: Device) -> None:
    with dev.create_stream() as one, dev.create_stream() as two, hold([one, two], 0.001) as opened:
        for stream in (one, two):
            spin(stream, 1, 10)
            with stream.record() as done:
                assert not done.is_done
                assert not opened.is_done
        two.sync()
        assert opened.is_done


def test_a_batch_is_timed_without_its_launches(sim: Machines) -> None:
    machine = sim("h200")
    with Device().create_stream() as one, Device().create_stream() as two:

        def enqueue() -> list[Event]:
            for _ in range(10):
                machine.advance(50_000)  # a slow host
                spin(one, 1, MS // 10)
            spin(two, 1, 2 * MS)
            return []

        batch = timed_batch([one, two], enqueue, 0.005)
        assert batch.seconds == pytest.approx((1e-3, 2e-3), rel=0.05)
        assert not batch.gate_opened
        assert timed_batch([one, two], enqueue, 1e-6).gate_opened
        # Without a head start the launches are part of the time.
        assert timed_batch([one, two], enqueue, 1e-6).seconds[0] > 1e-3


def test_a_device_that_waits_for_the_host_is_noted(sim: Machines) -> None:
    machine = sim("h200")
    with Device().create_stream() as stream, stream.record() as mark:

        def enqueue(host_ns: int) -> list[Event]:
            for step in range(4):
                machine.advance(host_ns)
                spin(stream, 1, 1000)
                if step == 2:
                    stream.record(mark)
            return [mark]

        assert timed_batch([stream], partial(enqueue, 100_000), 1e-6).late
        assert not timed_batch([stream], partial(enqueue, 0), 0.001).late


def test_a_gate_gives_the_host_a_head_start_within_limits() -> None:
    for limits in (AHEAD, QUEUED):
        assert limits.gate_s(0) == limits.least_s
        assert limits.gate_s(10) == limits.most_s
        assert limits.gate_s(limits.least_s) == 4 * limits.least_s


def test_single_calls_are_timed_from_the_launch_to_the_end_of_their_work(dev: Device) -> None:
    with dev.create_stream() as stream, CallTimer(stream) as timer:
        taken = [timer.seconds(partial(spin, stream, 1, MS)) for _ in range(3)]
    assert taken == pytest.approx([1e-3] * 3, rel=0.05)


def test_a_load_stays_queued_and_counts_its_calls(dev: Device) -> None:
    with dev.create_stream() as stream:
        with Load(stream, partial(spin, stream, 1, MS), 3) as load:
            for _ in range(4):
                load.fill()
                stream.sync()
        calls, seconds = load.completed()
        assert calls == 11
        assert seconds == pytest.approx(11e-3, rel=0.05)
        with Load(stream, partial(spin, stream, 1, MS), 1) as unused:
            pass
        assert unused.completed() == (0, 0.0)


def test_a_load_whose_calls_fail_keeps_no_event(sim: Machines) -> None:
    machine = sim("h200")
    with Device().create_stream() as stream:

        def fails() -> None:
            raise KeyError

        with pytest.raises(KeyError), Load(stream, fails, 3) as load:
            load.fill()
        assert not machine.ledger().live_of("event")


def test_each_contestant_is_in_each_round_once_in_random_order() -> None:
    turns = list(in_rounds("abcdef", 20, random.Random(1)))
    rounds = [[entry for number, entry in turns if number == wanted] for wanted in range(20)]
    assert all(sorted(entries) == list("abcdef") for entries in rounds)
    assert len({tuple(entries) for entries in rounds}) > 10
    assert [entry for _, entry in in_rounds("ab", 2)] == ["a", "b", "a", "b"]


class Steadily(random.Random):
    """Arrivals at equal distances."""

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd


def test_calls_that_arrive_while_others_run_have_waited_for_them(dev: Device) -> None:
    with dev.create_stream() as stream, dev.create_stream() as idle:
        calls = RandomCalls(stream, idle, rate=10_000, most=10, chance=Steadily())
        taken: list[float] = []
        while calls.left:
            taken += calls.make(lambda: spin(stream, 1, 1_000_000))
        taken += calls.rest()
        calls.close()
    # A call takes a millisecond, and ten arrive in the first one.
    assert taken == pytest.approx([1e-3 + n * 0.9e-3 for n in range(10)], rel=0.05)
    assert calls.passed_s < 2e-3


def test_a_stream_that_shares_a_hardware_queue_is_not_apart(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    sim("h200")
    with Device(0).create_stream() as one, Device(0).create_stream() as other:
        assert not is_apart(one, [other])
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    sim("h200")
    with Device(0).create_stream() as one, Device(0).create_stream() as other:
        assert is_apart(one, [other])
        assert not is_apart(one, [one])


def test_bursts_time_a_call_that_finds_the_part_idle_and_those_queued_behind_it(dev: Device) -> None:
    looked: list[int] = []
    with dev.create_stream() as stream, dev.create_stream() as idle:
        bursts = Bursts(stream, idle, 1e-3, 3, random.Random(1), lambda: looked.append(0))
        found = [bursts.make(partial(spin, stream, 8, MS // 10)) for _ in range(20)]
        passed_s = bursts.passed_s
        bursts.close()
    gaps = [gap for gap, _, _ in found]
    assert 0 <= min(gaps) < 2e-4
    assert 8e-4 < max(gaps) <= 1e-3
    for _, first, queued in found:
        assert first == pytest.approx(1e-4, rel=0.15)
        assert queued == pytest.approx([1e-4, 1e-4], rel=0.1)
    assert passed_s == pytest.approx(sum(gap + first + sum(queued) for gap, first, queued in found), rel=0.05)
    assert looked


def test_a_burst_next_to_bulk_work_waits_for_its_blocks(dev: Device) -> None:
    blocks = 2 * dev.sm_count
    with dev.create_stream() as stream, dev.create_stream() as other, dev.create_stream() as idle:
        with Load(other, partial(spin, other, blocks, MS), 3) as load:
            load.fill()
            bursts = Bursts(stream, idle, 2.5e-3, 2, random.Random(2), load.fill, look_s=5e-5)
            firsts = [bursts.make(partial(spin, stream, blocks, MS // 50))[1] for _ in range(40)]
            bursts.close()
        calls, seconds = load.completed()
    assert calls / seconds > 800  # the load did not run dry
    # Behind the load that is queued: between none of it and all of it.
    assert max(firsts) > 1.5e-3
