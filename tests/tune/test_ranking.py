"""The decision, as a function of measurements: no device takes part."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import Layout
from cuda_gctx.measure.statistics import (
    NOISE,
    Estimate,
    calls_for,
    certainty_of,
    median,
    quantile,
    ratio_of_totals,
)
from cuda_gctx.tune import Plan, TailLatency, Throughput
from cuda_gctx.tune._causes import rivals
from cuda_gctx.tune._measure import Runner
from cuda_gctx.tune._measurement import Measurement, Record, Sample
from cuda_gctx.tune._objectives import Objective
from cuda_gctx.tune._ranking import Choice, Ranking, value_of
from cuda_gctx.tune._report import relation, times
from cuda_gctx.tune._work import Part

PARTS = ("a", "b")
ROUNDS = 15
SEQUENCE, STREAMS = Plan("sequence", PARTS), Plan("streams", PARTS)
FIRST = Plan("priority", PARTS, first="a")
PLACED = Plan("partitions", PARTS, Layout(a=8, b=None), {"a": "a", "b": "b"})


def record(plan: Plan, seconds: Sequence[float], **more: object) -> Record:
    """A plan that took so long in each round."""
    return Record(plan, {number: Sample(one) for number, one in enumerate(seconds)}, **more)  # type: ignore[arg-type]


def ranked(*records: Record, objective: Objective = "makespan") -> Ranking[Record]:
    return Ranking(Measurement(PARTS, objective, plans=list(records), final=0))


def chosen(*records: Record, objective: Objective = "makespan") -> Choice[Record]:
    return ranked(*records, objective=objective).choose()


def called(
    plan: Plan, levels: Sequence[float], numbers: random.Random, calls: int = 50, noise: float = 0.2, share: float = 0.9
) -> Record:
    """A plan whose calls took so long in each round, and the quantile of each round."""
    batches = [sorted(noisy(level, numbers, calls, noise)) for level in levels]
    return Record(plan, {n: Sample(quantile(one, share), latencies=tuple(one)) for n, one in enumerate(batches)})


def noisy(level: float, numbers: random.Random, rounds: int = ROUNDS, noise: float = 0.003) -> list[float]:
    return [level * math.exp(numbers.gauss(0, noise)) for _ in range(rounds)]


# ---- a makespan


def test_the_simplest_plan_that_no_other_beats_is_chosen() -> None:
    numbers = random.Random(1)
    records = [record(plan, noisy(level, numbers)) for plan, level in ((SEQUENCE, 1.1), (STREAMS, 1.0), (PLACED, 1.0))]
    found = chosen(*records)
    assert found.record.plan == STREAMS
    assert found.decided
    assert not found.sure  # it was not measured in blocks
    assert chosen(record(SEQUENCE, noisy(1, numbers)), record(STREAMS, noisy(1, numbers))).record.is_sequence


def test_what_a_choice_may_lose_is_bounded_by_the_intervals() -> None:
    numbers = random.Random(2)
    records = [record(plan, noisy(level, numbers, noise=0.02)) for plan, level in ((SEQUENCE, 1.0), (STREAMS, 0.99))]
    found = chosen(*records)
    assert found.record.is_sequence
    assert not found.decided
    assert found.regret is not None
    assert 1 / 0.99 - 1 < found.regret < 0.06
    few = chosen(*(record(plan, [1.0] * 3) for plan in (SEQUENCE, STREAMS)))
    assert few.regret is None


def test_a_plan_whose_median_wins_and_whose_mean_loses_is_not_called_decided() -> None:
    numbers = random.Random(3)
    stalls = noisy(0.95, numbers, 60)
    stalls[7] = stalls[40] = 10.0
    found = chosen(record(SEQUENCE, noisy(1.0, numbers, 60)), record(STREAMS, stalls))
    assert not found.decided
    [why] = found.why
    assert why.startswith("mean and median disagree: by the mean, in sequence is 1.")
    assert why.endswith("because of 2 batches that take far longer than the others")
    rate = chosen(record(SEQUENCE, noisy(1.0, numbers, 60)), record(STREAMS, stalls), objective=Throughput(a=1, b=1))
    assert not rate.decided
    assert rate.record.is_sequence


def test_a_mix_takes_its_total_time_per_total_work() -> None:
    samples = [Sample(1.0, steps=30), Sample(4.0, steps=10)]
    assert value_of(Throughput(a=1, b=1), samples) == pytest.approx(1.75)
    assert value_of("makespan", samples) == 2.5


def test_a_plan_that_is_slower_than_the_sequence_for_seconds_on_end_is_not_chosen() -> None:
    numbers = random.Random(4)
    hot = [([Sample(1.03)], [Sample(1.0)]), ([Sample(1.031)], [Sample(1.0)]), ([Sample(1.029)], [Sample(1.0)])]
    cool = [([Sample(0.95)], [Sample(1.0)]), ([Sample(0.951)], [Sample(1.0)]), ([Sample(0.949)], [Sample(1.0)])]
    sequence = record(SEQUENCE, noisy(1.0, numbers))
    heats, holds = (record(STREAMS, noisy(0.95, numbers), sustained=blocks) for blocks in (hot, cool))
    assert chosen(sequence, heats).record is sequence
    found = chosen(sequence, holds)
    assert found.record is holds
    assert found.sure
    told = ranked(sequence, holds).ratio(sequence, holds)
    assert told.low < 1 / 0.95 < told.high


def test_a_stall_in_the_part_of_a_block_that_settles_keeps_a_rate_from_being_sure() -> None:
    numbers = random.Random(11)

    def found(stall: float) -> Choice[Record]:
        blocks = [([Sample(one, settles=True), Sample(0.95)], [Sample(1.0)]) for one in (0.95, stall, 0.95, 0.95)]
        gains = record(STREAMS, noisy(0.95, numbers), sustained=blocks)
        return chosen(record(SEQUENCE, noisy(1.0, numbers)), gains, objective=Throughput(a=1, b=1))

    assert found(0.95).sure
    stalls = found(3.0)
    assert stalls.record.plan == STREAMS  # what counts of the blocks has no stall
    assert not stalls.decided
    [why] = stalls.why
    assert why.startswith("mean and median disagree: by the mean of blocks, in sequence is 1.21x faster")


def test_more_looks_make_an_interval_more_certain() -> None:
    certainties = [certainty_of(pairs) for pairs in (7, 14, 15, 16, 30, 31, 60, 120, 960)]
    assert certainties[:3] == [0.975, 0.975, 0.995]
    assert certainties == sorted(certainties)
    # The chances of all looks together.
    assert sum(1 - certainty_of(15 * 2**look) for look in range(40)) <= 0.01 + 1e-9


def test_total_times_are_compared_by_blocks() -> None:
    numbers = random.Random(5)
    held = 0
    for _ in range(300):
        pairs = [(1.2 * numbers.lognormvariate(0, 0.1), numbers.lognormvariate(0, 0.1)) for _ in range(40)]
        ratio = ratio_of_totals(pairs)
        held += ratio.low <= 1.2 <= ratio.high
    assert held >= 294


# ---- a latency

DISTRIBUTIONS: dict[str, tuple[Callable[[random.Random], float], Callable[[float], float]]] = {
    "lognormal": (
        lambda numbers: numbers.lognormvariate(0, 0.1),
        lambda share: math.exp(0.1 * NormalDist().inv_cdf(share)),
    ),
    "exponential": (lambda numbers: 1 + numbers.expovariate(2), lambda share: 1 - math.log(1 - share) / 2),
    "pareto": (lambda numbers: numbers.paretovariate(2), lambda share: (1 - share) ** -0.5),
}


def calls_a_batch(alone_s: float) -> int:
    """How many calls the tuner makes in a batch."""
    part = Part("a", lambda stream: None)
    with Runner(TailLatency("a"), deadline=0.0) as runner:
        runner.alone_s["a"] = alone_s
        return runner.calls_of_batch(part, [], TailLatency("a"))[0]


@pytest.mark.parametrize("alone_s", [20e-6, 10e-3, 25e-3, 50e-3, 150e-3])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_p99_is_neither_too_low_nor_too_high(alone_s: float, name: str) -> None:
    draw, true = DISTRIBUTIONS[name]
    numbers = random.Random(f"{alone_s} {name}")
    calls, runs = calls_a_batch(alone_s), 60
    rounds = max(ROUNDS, math.ceil(3000 / calls))
    known = covered = below = 0
    for _ in range(runs):
        blocks = [[draw(numbers) for _ in range(calls)] for _ in range(rounds)]
        found = Estimate.of(blocks, 0.99, certainty_of(rounds))
        known += found.is_known
        covered += found.low <= true(0.99) <= found.high
        below += found.value < true(0.99)
    assert known == runs
    assert covered >= 0.95 * runs
    assert 0.25 * runs < below < 0.75 * runs


def test_a_batch_has_two_calls_above_its_quantile_unless_they_are_long() -> None:
    assert [calls_a_batch(alone_s) for alone_s in (20e-6, 1e-3, 25e-3, 1.0)] == [200, 200, 40, 7]


@pytest.mark.parametrize("alone_s", [50e-3, 150e-3])
def test_a_p99_of_few_calls_is_not_sure(alone_s: float) -> None:
    numbers = random.Random(7)
    calls = calls_a_batch(alone_s)

    plans = [
        called(plan, [one] * ROUNDS, numbers, calls, 0.01, 0.99) for plan, one in ((SEQUENCE, 1.0), (STREAMS, 0.5))
    ]
    found = chosen(*plans, objective=TailLatency("a"))
    assert not found.decided
    assert found.regret is None
    assert found.why == (
        f"a p99 needs {calls_for(0.99, 0.9975)} calls of each plan, and there was time for {ROUNDS * calls}: increase "
        "budget_s or choose a lower quantile",
    )


@pytest.mark.parametrize("level", [7.0, 0.19])
def test_of_a_rival_with_too_few_calls_the_least_that_they_show_is_enough(level: float) -> None:
    numbers = random.Random(12)

    # The calls of a batch wait for each other, so that many of them count as few.
    rival = called(STREAMS, [level * (1 + number % 5) for number in range(ROUNDS)], numbers, 200, 0.01, 0.99)
    sequence = called(SEQUENCE, [1.0] * ROUNDS, numbers, 200, 0.01, 0.99)
    ranking = ranked(sequence, rival, objective=TailLatency("a"))
    assert not ranking.ratio(ranking.sequence, rival).is_known
    found = ranking.choose()
    assert found.record.is_sequence
    if level == 7.0:
        assert (found.regret, found.decided) == (0.0, True)
    else:  # the least that they show is less than the choice takes
        assert found.regret == pytest.approx(0.06, abs=0.02)
        assert ranking.undecided(ranking.sequence) == [rival]


def test_a_stall_in_a_batch_of_the_sequence_hides_no_gain() -> None:
    numbers = random.Random(13)

    sequence = called(SEQUENCE, [1.8e-3] * 6 + [16e-3], numbers)
    ranking = ranked(sequence, called(PLACED, [80e-6] * 7, numbers), objective=TailLatency("a", quantile=0.9))
    found = ranking.choose()
    assert not ranking.ratio(sequence, found.record).is_known
    assert found.record.plan == PLACED
    assert ranking.is_slower(sequence, found.record)
    assert not ranking.is_slower(found.record, sequence)
    assert ranking.ratio(sequence, found.record).low > 10
    assert found.why == ("in sequence there are too few calls: the speedup may be larger than its interval",)
    assert not found.decided


@pytest.mark.parametrize("stall", [1.8e-3, 16e-3], ids=["steady", "stalls"])
def test_a_plan_that_lacks_the_last_round_is_still_better_than_the_sequence(stall: float) -> None:
    # The time ended within the seventh final round, in which the sequence came first.
    numbers = random.Random(14)

    sequence = called(SEQUENCE, [1.8e-3] * 8 + [stall] + [1.8e-3], numbers)
    plans = [sequence, called(STREAMS, [3e-3] * 10, numbers), called(PLACED, [80e-6] * 9, numbers)]
    ranking = Ranking(Measurement(PARTS, TailLatency("a", quantile=0.9), plans=plans, final=3))
    found = ranking.choose()
    assert found.record.plan == PLACED
    assert ranking.is_slower(ranking.sequence, found.record)
    assert ranking.ratio(ranking.sequence, found.record).low > 10
    assert found.regret == 0


def test_a_plan_that_lacks_the_last_round_keeps_the_choice_from_being_decided() -> None:
    numbers = random.Random(15)
    plans = [record(SEQUENCE, noisy(1.0, numbers, 10)), record(STREAMS, noisy(1.05, numbers, 10))]
    plans.append(record(PLACED, noisy(0.9, numbers, 9)))
    ranking = Ranking(Measurement(PARTS, "makespan", plans=plans, final=3))
    found = ranking.choose()
    assert found.record.is_sequence  # six pairs are too few for an interval
    assert ranking.undecided(found.record) == [plans[2]]
    assert (found.regret, found.decided) == (None, False)


@pytest.mark.parametrize(
    ("calls", "late", "best"),
    [(500, (1, 1), PLACED), (500, (1, 2), STREAMS), (500, (2, 2), SEQUENCE), (30, (1, 1), SEQUENCE)],
)
def test_rounds_in_which_the_host_stalls_do_not_hide_a_latency_that_is_a_tenth(
    calls: int, late: tuple[int, int], best: Plan
) -> None:
    # As on an H100: in a round of each plan, all calls are late, and no quantile of all calls is known.
    numbers = random.Random(16)
    levels = ((SEQUENCE, 1.3e-3, 1), (STREAMS, 80e-6, late[0]), (PLACED, 40e-6, late[1]))
    plans = [called(plan, [one] * (13 - n) + [12e-3] * n, numbers, calls, 0.3) for plan, one, n in levels]
    ranking = ranked(*plans, objective=TailLatency("a", quantile=0.9))
    assert not any(map(ranking.gains, plans))
    found = ranking.choose()
    assert found.record.plan == best  # the fastest, as it is not known which are equal
    assert not found.decided
    assert found.regret is None
    assert any("in most rounds that of the choice is lower" in why for why in found.why) == (best != SEQUENCE)


def test_calls_that_drift_together_are_fewer_than_they_seem() -> None:
    numbers = random.Random(8)
    steady = [[numbers.lognormvariate(0, 0.1) for _ in range(200)] for _ in range(ROUNDS)]
    drifting = [[(1 + 0.05 * n) * call for call in block] for n, block in enumerate(steady)]
    one, other = (Estimate.of(blocks, 0.9, 0.99) for blocks in (steady, drifting))
    assert other.high / other.low > 2 * (one.high / one.low - 1) + 1


def test_a_latency_is_compared_by_all_calls_and_not_by_batches() -> None:
    # One call of sixty takes three times as long: of batches of twenty calls, most have none.
    numbers = random.Random(9)

    def measured(plan: Plan, level: float, rare: float) -> Record:
        batches = [
            tuple(level * (3.0 if numbers.random() < rare else numbers.lognormvariate(0, 0.02)) for _ in range(20))
            for _ in range(60)
        ]
        return Record(plan, {n: Sample(max(batch), latencies=batch) for n, batch in enumerate(batches)})

    found = chosen(measured(SEQUENCE, 1.0, 0.0), measured(STREAMS, 0.92, 1 / 60), objective=TailLatency("a"))
    assert found.record.is_sequence


# ---- in words


def test_a_ratio_in_words_lies_within_its_interval() -> None:
    numbers = random.Random(10)
    for _ in range(1000):
        middle = numbers.uniform(0.5, 2)
        ratio = Estimate(middle, middle / numbers.uniform(1, 1.2), middle * numbers.uniform(1, 1.2), 20, True)
        text = relation(ratio, " than the choice")
        value, low, high = map(float, re.findall(r"\d+\.\d+", text))
        assert low <= value <= high
        assert value >= 1
    assert relation(Estimate(1.35, 1.0, 2.0, 3, False)) == "1.35x slower (inconclusive: too few samples)"
    assert (
        relation(Estimate(0.8, 0.75, 0.9, 30, True), " than the choice")
        == "1.25x faster than the choice (1.11 to 1.33)"
    )
    assert times(Estimate(0.8, 0.75, 0.9, 30, True)) == "0.80x (0.75 to 0.90)"


def test_a_plan_that_was_left_out_although_it_was_faster_has_its_reason() -> None:
    numbers = random.Random(17)
    plans = [record(plan, noisy(1.0, numbers, 23)) for plan in (SEQUENCE, STREAMS)]
    plans.append(record(PLACED, noisy(0.9, numbers, 8)))
    ranking = Ranking(Measurement(PARTS, "makespan", plans=plans, final=8))
    assert ranking.choose().record.is_sequence
    report: Any = SimpleNamespace(objective="makespan")
    equal, faster = rivals(ranking, report, ranking.sequence)
    assert equal.endswith("), no difference beyond noise, and the choice is simpler")
    assert faster.startswith("a=8, b=None: 1.11x faster than the choice (1.1")
    assert faster.endswith("), but measured in too few rounds")


def test_a_difference_within_the_margin_is_none() -> None:
    assert not Estimate(1.02, 1 + NOISE / 2, 1.03, 30, True).is_slower
    assert Estimate(1.02, 1 + 2 * NOISE, 1.03, 30, True).is_slower
    assert not Estimate(1.02, 1 + 2 * NOISE, 1.03, 30, False).is_slower
    assert median([Estimate(2.0, 1.0, 4.0, 9, True).inverse.value]) == 0.5
