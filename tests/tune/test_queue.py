"""Latencies at a rate, computed from single calls and bursts, against a simulation of every arrival."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cuda_gctx.measure.statistics import quantile
from cuda_gctx.tune._queue import Calls, computed_latencies, latencies_at_rate, refutes

BLOCK_S, CALL_S = 1e-3, 20e-6


class Server:
    """A part with priority next to bulk work whose blocks are not interrupted.

    A call that finds the part idle waits for the end of the running block. A queued call starts behind its
    predecessor. The bulk work starts a block when the part has no call left.
    """

    def __init__(self, block_s: float = BLOCK_S, call_s: float = CALL_S) -> None:
        self.block_s, self.call_s, self.ended = block_s, call_s, 0.0

    def latency(self, arrived: float) -> float:
        start = self.ended
        if arrived > self.ended:
            blocks = -(-(arrived - self.ended) // self.block_s)
            start += blocks * self.block_s
        self.ended = start + self.call_s
        return self.ended - arrived


def arrivals(server: Server, rate: float, count: int, chance: random.Random) -> Iterator[float]:
    arrived = server.ended
    for _ in range(count):
        arrived += chance.expovariate(rate)
        yield server.latency(arrived)


def measured(count: int, chance: random.Random, block_s: float = BLOCK_S, call_s: float = CALL_S) -> Calls:
    """Bursts of two calls, each after a random gap over two blocks."""
    server, idle, queued = Server(block_s, call_s), [], []
    for _ in range(count):
        gap = chance.uniform(0, 2 * block_s)
        arrived = server.ended + gap
        idle.append((gap, server.latency(arrived)))
        before = server.ended
        server.latency(arrived)
        queued.append(server.ended - before)
    return Calls(count, server.ended, idle=tuple(idle), queued=tuple(queued))


@pytest.mark.parametrize("load", [0.01, 0.1, 0.5, 0.8])
@pytest.mark.parametrize("block_s", [BLOCK_S, 1e-4])
def test_the_computed_queue_is_that_of_the_arrivals(load: float, block_s: float) -> None:
    """load: the share of the time that calls themselves take."""
    chance = random.Random(int(100 * load))
    rate = load / CALL_S
    calls = measured(2000, chance, block_s)
    computed, _ = computed_latencies(calls.idle, calls.queued, rate, 60_000, chance)
    observed = list(arrivals(Server(block_s), rate, 60_000, chance))
    for share in (0.5, 0.99):
        assert quantile(computed, share) == pytest.approx(quantile(observed, share), rel=0.1)


def test_arrivals_do_not_refute_their_own_queue_and_refute_another_one() -> None:
    chance = random.Random(3)
    calls = measured(500, chance)
    computed, busy = computed_latencies(calls.idle, calls.queued, 200.0, 10_000, chance)
    assert busy < 0.3
    wrongly = sum(refutes(list(arrivals(Server(), 200.0, 100, chance)), computed) for _ in range(100))
    assert wrongly <= 3
    slower = [list(arrivals(Server(3 * BLOCK_S), 200.0, 100, chance)) for _ in range(20)]
    assert all(refutes(observed, computed) for observed in slower)


def pair(chance: random.Random, observed: list[float]) -> tuple[Calls, Calls]:
    first, second = (measured(250, chance) for _ in range(2))
    half = len(observed) // 2
    return (
        Calls(250, first.seconds, tuple(observed[:half]), idle=first.idle, queued=first.queued),
        Calls(250, second.seconds, tuple(observed[half:]), idle=second.idle, queued=second.queued),
    )


def test_the_queue_decides_where_it_holds_and_arrivals_where_it_does_not() -> None:
    chance = random.Random(5)
    true = [pair(chance, list(arrivals(Server(), 200.0, 60, chance))) for _ in range(4)]
    found = latencies_at_rate(true, 200.0, 500)
    assert found.computed
    assert found.enough
    other = [pair(chance, list(arrivals(Server(3 * BLOCK_S), 200.0, 60, chance))) for _ in range(4)]
    found = latencies_at_rate(other, 200.0, 500)
    assert not found.computed
    assert not found.enough  # of 60 arrivals in a block no p99 is known
    assert found.blocks[0].first.latencies == other[0][0].latencies
    assert latencies_at_rate(other, 200.0, 50).enough


def test_the_queue_does_not_decide_where_most_calls_find_the_part_busy() -> None:
    chance = random.Random(6)
    rate = 0.9 / CALL_S
    busy = [pair(chance, list(arrivals(Server(), rate, 600, chance))) for _ in range(4)]
    found = latencies_at_rate(busy, rate, 500)
    assert not found.computed
    assert found.enough
