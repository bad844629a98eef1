"""The verdict on blocks: what is chosen, what is sure, and what is left open."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from cuda_gctx.tune._judge import Block, Sample, Verdict, judge, least_calls

LONG_S = 4.0


def blocks_of(
    level: float,
    rounds: int,
    chance: random.Random,
    *,
    noise: float = 0.0002,
    change: float = 0.0,
    block_s: float = LONG_S,
) -> list[Block]:
    """Blocks of a plan whose second halves are slower by a change."""

    def half(factor: float) -> Sample:
        return Sample(100, 50 * block_s / 100 * level * factor * math.exp(chance.gauss(0, noise)))

    return [Block(half(1.0), half(1.0 + change)) for _ in range(rounds)]


def verdict(levels: dict[str, float], rounds: int = 6, **options: float) -> Verdict[str]:
    chance = random.Random(4)
    judged = {key: blocks_of(level, rounds, chance, **options) for key, level in levels.items()}
    return judge(judged, list(levels))


def test_a_plan_that_is_faster_is_chosen_and_sure() -> None:
    found = verdict({"sequence": 1.0, "streams": 0.8, "partitions": 0.5})
    assert (found.choice, found.best, found.sure, found.doubts) == ("partitions", "partitions", True, ())
    assert found.low < 2.0 < found.high
    assert found.horizon_s == pytest.approx(0.5 * LONG_S, rel=0.01)


def test_the_simpler_one_of_equal_plans_is_chosen() -> None:
    assert verdict({"sequence": 1.0, "streams": 0.8, "partitions": 0.795}).choice == "streams"
    assert verdict({"sequence": 1.0, "streams": 0.99}).choice == "sequence"
    assert verdict({"sequence": 1.0, "streams": 0.96}).choice == "streams"


def test_nothing_is_chosen_where_the_blocks_do_not_decide() -> None:
    found = verdict({"sequence": 1.0, "streams": 0.96}, noise=0.1)
    assert found.choice is None
    assert not found.sure
    assert found.doubts[0] == "the blocks do not tell the finalists apart"


def test_a_clear_gain_is_chosen_among_rivals_that_are_hardly_apart() -> None:
    found = verdict({"sequence": 1.0, "one": 0.5, "other": 0.49}, noise=0.03)
    assert found.choice is not None
    assert found.choice != "sequence"
    assert not found.sure
    assert 0.0 < found.loses < 0.3


def test_a_large_gain_is_chosen_although_a_rival_that_differs_widely_may_be_faster_still() -> None:
    chance = random.Random(3)
    blocks = {"sequence": blocks_of(1.0, 6, chance), "one": blocks_of(0.33, 6, chance)}
    blocks["rival"] = [blocks_of(level, 1, chance)[0] for level in (0.1, 0.9, 0.2, 0.8, 0.3, 0.9)]
    found = judge(blocks, list(blocks))
    assert found.choice == "one"
    assert not found.sure
    assert found.loses > 1


@pytest.mark.parametrize("change", [0.01, -0.01])
def test_a_gain_that_still_changes_is_not_sure_and_a_small_one_is_not_chosen(change: float) -> None:
    chance = random.Random(1)
    small = {"sequence": blocks_of(1.0, 6, chance), "hot": blocks_of(0.95, 6, chance, change=change)}
    found = judge(small, list(small))
    assert found.choice is None
    assert any(doubt.startswith("still changing: ") and doubt.endswith("per 1.9 s") for doubt in found.doubts)
    large = {**small, "hot": blocks_of(0.3, 6, chance, change=change)}
    found = judge(large, list(large))
    assert found.choice == "hot"
    assert not found.sure


def test_a_change_of_all_plans_is_none() -> None:
    chance = random.Random(2)
    both = {key: blocks_of(level, 6, chance, change=0.02) for key, level in (("sequence", 1.0), ("streams", 0.8))}
    assert judge(both, list(both)).sure


@pytest.mark.parametrize(
    "doubt",
    [
        lambda blocks: judge({key: one[:3] for key, one in blocks.items()}, list(blocks)),
        lambda blocks: judge(blocks, list(blocks), complete=False),
        lambda blocks: judge(blocks, list(blocks), doubts=["too few calls"]),
    ],
)
def test_sure_needs_four_rounds_and_a_complete_race(doubt: Callable[..., Verdict[str]]) -> None:
    chance = random.Random(3)
    found = doubt({"sequence": blocks_of(1.0, 6, chance), "streams": blocks_of(0.5, 6, chance)})
    assert found.choice == "streams"
    assert not found.sure
    assert len(found.doubts) == 1


def test_short_blocks_are_sure_of_large_gains_only() -> None:
    chance = random.Random(5)
    for level, sure in ((0.5, True), (0.95, False)):
        blocks = {"sequence": blocks_of(1.0, 6, chance, noise=0), "plan": blocks_of(level, 6, chance, noise=0)}
        assert judge(blocks, list(blocks), least_s=100.0).sure is sure


def test_names_and_their_order_change_nothing() -> None:
    chance = random.Random(6)
    levels = {"sequence": 1.0, "a": 0.9, "b": 0.7, "c": 0.71}
    blocks = {key: blocks_of(level, 5, chance, noise=0.01) for key, level in levels.items()}
    renamed = dict(zip(levels, ("0", "zz", "m", "x"), strict=True))
    one = judge(blocks, list(levels))
    other = judge({renamed[key]: blocks[key] for key in reversed(levels)}, [renamed[key] for key in levels])
    assert other == replace(one, choice=renamed.get(one.choice or ""), best=renamed[one.best])


def test_an_interval_is_that_of_student_over_rounds() -> None:
    """It covers the truth as often as it says, which 1% of the runs may miss."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    missed = 0
    for _ in range(300):
        blocks = {"sequence": blocks_of(1.0, 5, chance, noise=0.05), "plan": blocks_of(0.8, 5, chance, noise=0.05)}
        found = judge(blocks, list(blocks))
        missed += not found.low <= 1.25 <= found.high
    assert missed <= 12, f"seed {seed}"


# ---- quantiles


def calls_of(level: float, rounds: int, chance: random.Random, stalls: float = 0.0) -> list[Block]:
    def half() -> Sample:
        calls = [level * math.exp(chance.gauss(0, 0.1)) * (10 if chance.random() < stalls else 1) for _ in range(250)]
        return Sample(len(calls), 2.0, tuple(calls), {"bulk": 100 / level})

    return [Block(half(), half()) for _ in range(rounds)]


def test_a_round_has_enough_calls_beyond_the_quantile() -> None:
    assert (least_calls(0.9), least_calls(0.99), least_calls(0.999)) == (50, 500, 5000)


def test_a_quantile_is_that_of_the_calls_of_all_rounds() -> None:
    chance = random.Random(7)
    blocks = {"sequence": calls_of(3e-3, 6, chance), "plan": calls_of(1e-3, 6, chance)}
    found = judge(blocks, list(blocks), share=0.99)
    assert found.choice == "plan"
    assert found.low < 3.0 < found.high < 4.0


def rounds_of_calls(level: float, between: float, chance: random.Random) -> list[Block]:
    """Seven rounds of 200 calls, which differ by more than their calls."""

    def block() -> Block:
        own = level * math.exp(chance.gauss(0, between))
        first, second = (tuple(own * math.exp(chance.gauss(0, 0.2)) for _ in range(100)) for _ in range(2))
        return Block(Sample(100, 2.0, first), Sample(100, 2.0, second))

    return [block() for _ in range(7)]


@pytest.mark.parametrize(("between", "seen"), [(0.05, 25), (0.2, 25), (0.5, 12)])
def test_a_large_gain_is_seen_where_rounds_differ_and_none_where_there_is_none(between: float, seen: int) -> None:
    chosen = {1.0: 0, 3.0: 0}
    for gain in chosen:
        for seed in range(30):
            chance = random.Random(seed)
            blocks = {"sequence": rounds_of_calls(gain, between, chance), "plan": rounds_of_calls(1.0, between, chance)}
            chosen[gain] += judge(blocks, list(blocks), share=0.99).choice == "plan"
    assert chosen[1.0] <= 3
    assert chosen[3.0] >= seen


def test_rare_stalls_do_not_bias_a_quantile_below_them() -> None:
    """A ratio of quantiles per round would say 2.3x, with certainty."""
    sure = 0
    for seed in range(30):
        chance = random.Random(seed)
        blocks = {"sequence": calls_of(1e-3, 7, chance, stalls=0.007), "plan": calls_of(1e-3, 7, chance)}
        found = judge(blocks, list(blocks), share=0.99)
        sure += found.sure and found.choice == "plan"
    assert sure == 0


def test_a_plan_that_leaves_others_too_little_is_not_chosen() -> None:
    chance = random.Random(8)
    blocks = {
        "sequence": calls_of(3e-3, 6, chance),
        "greedy": calls_of(1e-3, 6, chance),
        "fair": calls_of(2e-3, 6, chance),
    }
    blocks["greedy"] = [Block(*(replace(half, rates={"bulk": 10.0}) for half in block)) for block in blocks["greedy"]]
    keys = ["sequence", "greedy", "fair"]
    assert judge(blocks, keys, share=0.99).choice == "greedy"
    found = judge(blocks, keys, share=0.99, least_rates={"bulk": 20.0})
    assert (found.choice, found.best) == ("fair", "fair")
    found = judge(blocks, keys, share=0.99, least_rates={"bulk": 1e6})
    assert found.choice is None
    assert found.doubts[0] == "no finalist leaves the other parts the rate that they have to keep"
