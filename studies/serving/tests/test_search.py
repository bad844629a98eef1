"""The search for goodput asks for trials in order of worth, ends, and goes on from what is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from random import Random
from typing import Any

import pytest
from serving import search
from serving.search import (
    GRID,
    Goodput,
    Outcome,
    Question,
    Trial,
    bracket,
    goodput,
    next_rate,
    next_trial,
    on_grid,
    questions,
)
from serving.store import DISTURBED, Store, merged, outcomes_of, settings_of

QUESTION = Question("8B", "documents", 25.0, "chunked")
# With a share of the limit, as the contenders have it that know the limit.
A, B = '{"margin": 0.9}', '{"margin": 0.85}'
HEAD = {"card": "a card", "cuda": "13.0", "simulated": True, "date": "2026-11-22"}


def answered(
    truth: dict[tuple[str, int], float], start: float, starts: Sequence[float] = ()
) -> tuple[Goodput, list[Trial]]:
    """Runs trials against a truth (the highest rate by settings and seed) until the question is answered."""
    settings = list(dict.fromkeys(name for name, _ in truth))
    outcomes: list[Outcome] = []
    starts = starts or [start] * 3
    while (trial := next_trial(outcomes, QUESTION, settings, starts)) is not None:
        outcomes.append(Outcome(trial, trial.rate <= truth[trial.settings, trial.seed]))
        assert len(outcomes) < 100
    return goodput(outcomes, QUESTION, settings, starts), [one.trial for one in outcomes]


@pytest.mark.parametrize("start", [0.1, 0.9, 1.0, 1.1, 3.0])
def test_bisection_finds_the_rate_from_any_start(start: float) -> None:
    tried: list[tuple[float, bool]] = []
    while (rate := next_rate(tried, start)) is not None:
        tried.append((rate, rate <= 1.0))
    low, high = bracket(tried)
    assert low <= 1.0 < high
    assert high / low <= GRID * (1 + 1e-6)
    assert len(tried) < 20


def test_trials_that_were_not_of_a_search_are_no_steps_of_it() -> None:
    """Those that compare contenders, count under several limits, or ran on several cards."""
    lower = [(on_grid(1.0, -steps), True) for steps in range(1, 10)]
    assert next_rate(lower, 1.0) == on_grid(1.0)
    assert next_rate([*lower, (on_grid(1.0), True)] * 5, 1.0) == on_grid(1.0, 1)
    assert next_rate([(on_grid(1.0, 2), True)], 1.0) == on_grid(1.0, 3)
    higher = [(on_grid(1.0, steps), False) for steps in range(1, 10)]
    assert next_rate(higher, 1.0) == on_grid(1.0)
    assert next_rate([*higher, (on_grid(1.0, -1), False)] * 5, 1.0) == on_grid(1.0, -3)
    # On another card, a rate below all that were kept was missed.
    assert next_rate([*lower, *higher, (on_grid(1.0, -10), False)], 1.0) == on_grid(1.0, -15)


@pytest.mark.parametrize("seed", range(40))
def test_contenders_with_rates_at_random_compete_to_the_end_without_a_trial_too_much(seed: int) -> None:
    random = Random(seed)
    spread, of_seeds = random.choice([0.02, 0.1, 0.5]), random.choice([0.02, 0.1, 0.4])
    truth = {
        (name, setting, n): random.uniform(1 - spread, 1 + spread) * random.uniform(1 - of_seeds, 1 + of_seeds)
        for name in ("chunked", "layers", "policy")
        for setting in "abc"
        for n in (1, 2, 3)
    }
    starts = {name: [random.uniform(0.7, 1.4) for _ in range(3)] for name, *_ in truth}
    asked = {name: replace(QUESTION, contender=name) for name in starts}
    outcomes: list[Outcome] = []

    def settings(name: str) -> list[str]:
        return settings_of({"predictions": {str(asked[name]): {"settings": list("abc")}}}, outcomes, asked[name])

    def following() -> Trial | None:
        every = (
            next_trial(outcomes, asked[name], settings(name), starts[name], depth=depth)
            for depth in search.DEPTHS
            for name in asked
        )
        return next(filter(None, every), None)

    while (trial := following()) is not None:
        known = [
            (one.trial.rate, one.kept)
            for one in outcomes
            if (one.trial.question, one.trial.settings, one.trial.seed) == (trial.question, trial.settings, trial.seed)
        ]
        low, high = bracket(known)
        assert low * (1 + 1e-6) < trial.rate < high * (1 - 1e-6), "its outcome was known"
        name = trial.question.contender
        outcomes.append(Outcome(trial, trial.rate <= truth[name, trial.settings, trial.seed]))
        assert len(outcomes) < 300
    for name, question in asked.items():
        found = goodput(outcomes, question, settings(name), starts[name])
        assert found.settled
        assert found.raced
        assert found.seeds == 3
        kept = [truth[name, str(found.settings), n] for n in (1, 2, 3)]
        assert found.rate is not None
        assert found.confirmed is not None
        assert found.rate <= kept[0] < found.rate * GRID * 1.001
        assert found.confirmed <= min(kept)
        assert min(*kept, found.rate) < found.confirmed * GRID * 1.001


def test_a_search_ends_where_every_rate_is_kept() -> None:
    found, trials = answered({("a", seed): 1e9 for seed in (1, 2, 3)}, 1.0)
    assert found.settled
    assert found.seeds == 3
    assert len(trials) <= 10


def test_a_rate_that_nothing_keeps_is_given_up() -> None:
    found, trials = answered({("a", seed): 0.0 for seed in (1, 2, 3)}, 1.0)
    assert found.rate == 0
    assert found.settled
    assert len(trials) <= 8


def test_a_search_that_goes_on_knows_what_was_not_kept() -> None:
    kept, missed = (Outcome(Trial(QUESTION, "a", rate, 1), rate < 1.1) for rate in (on_grid(1.0), on_grid(1.2)))
    found = goodput([kept, missed], QUESTION, ["a"], [1.0] * 3)
    assert (found.rate, found.below, found.settled) == (kept.trial.rate, missed.trial.rate, False)


def test_contenders_are_compared_at_the_same_rates() -> None:
    """Wherever their searches began, and whatever was tried before the grid."""
    truth = 1.0
    found = []
    for start, before in ((0.7, []), (1.3, []), (0.9, [(0.95, True), (1.07, False)])):
        tried: list[tuple[float, bool]] = list(before)
        while (rate := next_rate(tried, start)) is not None:
            assert rate == pytest.approx(GRID ** round(log(rate) / log(GRID)))
            tried.append((rate, rate <= truth))
        found.append(bracket(tried))
    assert found[0] == found[1] == pytest.approx((GRID**0, GRID))
    assert found[2] == found[0]


@pytest.mark.parametrize("seed", range(10))
def test_the_best_settings_win_and_three_seeds_confirm(seed: int) -> None:
    random = Random(seed)
    base = {name: random.uniform(0.5, 2.0) for name in "abc"}
    truth = {
        (name, n): rate * (1.0 if n == 1 else random.uniform(0.8, 1.2))
        for name, rate in base.items()
        for n in (1, 2, 3)
    }
    found, trials = answered(truth, 1.0)
    assert found.settled
    assert found.raced
    assert found.seeds == 3
    assert found.settings is not None
    assert max(base.values()) / GRID**2 <= base[found.settings]
    assert base[found.settings] / GRID**2 <= found.rate <= base[found.settings]  # type: ignore[operator]
    worst_seed = min(truth[found.settings, n] for n in (1, 2, 3))
    assert worst_seed / GRID**2 <= found.confirmed <= worst_seed  # type: ignore[operator]
    # To race settings takes one trial, or few.
    assert all(sum((one.settings, one.seed) == (name, 1) for one in trials) <= 12 for name in base)


def test_settings_that_are_worse_cost_one_trial_each() -> None:
    truth = {(name, seed): rate for name, rate in (("best", 1.0), ("b", 0.7), ("c", 0.5)) for seed in (1, 2, 3)}
    _, trials = answered(truth, 1.0)
    assert [sum(one.settings == name for one in trials) for name in ("b", "c")] == [1, 1]


def test_a_rate_is_confirmed_before_other_settings_are_raced() -> None:
    truth = {("a", 1): 1.0, ("a", 2): 0.9, ("a", 3): 0.8, ("b", 1): 1.2, ("b", 2): 0.7, ("b", 3): 1.2}
    found, trials = answered(truth, 1.0)
    assert list(dict.fromkeys((one.settings, one.seed) for one in trials)) == [
        ("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3),
    ]  # fmt: skip
    assert found.settings == "b"
    assert found.rate == pytest.approx(1.2, rel=GRID - 1)
    assert found.confirmed == pytest.approx(0.7, rel=GRID - 1)
    outcomes = [Outcome(one, one.rate <= truth[one.settings, one.seed]) for one in trials]
    for depth, last in (("rate", ("a", 1)), ("seeds", ("a", 3)), ("settings", ("b", 3))):
        count = next(i for i in range(len(trials) + 1) if next_of(outcomes[:i], depth) is None)
        assert (trials[count - 1].settings, trials[count - 1].seed) == last


def next_of(outcomes: list[Outcome], depth: str) -> Trial | None:
    return next_trial(outcomes, QUESTION, ["a", "b"], [1.0] * 3, depth=depth)


@pytest.mark.parametrize("off", [1 - 1e-9, 1.0, 1 + 1e-9])
def test_a_rate_that_differs_by_rounding_is_not_tried_again(off: float) -> None:
    missed, lower = on_grid(0.8) * off, on_grid(on_grid(0.8), -1)
    assert next_rate([(missed, False)], 0.8) == pytest.approx(lower)
    assert next_rate([(missed, False), (lower / off, True)], 0.8) is None


def competes(truth: dict[str, Sequence[float]], depth: str) -> tuple[list[Outcome], dict[str, list[Trial]]]:
    """Runs trials of contenders in turn against a truth (the rate that each keeps with each seed), to a depth."""
    outcomes: list[Outcome] = []
    asked = {name: replace(QUESTION, contender=name) for name in truth}
    trials: dict[str, list[Trial]] = {name: [] for name in truth}
    depths = search.DEPTHS[: search.DEPTHS.index(depth) + 1]
    while True:
        following = (
            next_trial(outcomes, one, ["a"], [1.0] * 3, depth=deep) for deep in depths for one in asked.values()
        )
        trial = next(filter(None, following), None)
        if trial is None:
            return outcomes, trials
        name = trial.question.contender
        outcomes.append(Outcome(trial, trial.rate <= truth[name][trial.seed - 1]))
        trials[name].append(trial)
        assert len(outcomes) < 200


def test_a_contender_that_is_behind_costs_one_trial_at_the_rate_of_the_best() -> None:
    kept = Outcome(Trial(QUESTION, "a", on_grid(1.0), 1), True)
    other = replace(QUESTION, contender="layers")
    trial = next_trial([kept], other, ["a"], [0.2] * 3, depth="best")
    assert trial == Trial(other, "a", kept.trial.rate, 1)
    assert next_trial([kept, Outcome(trial, False)], other, ["a"], [0.2] * 3, depth="best") is None
    assert next_trial([kept, Outcome(trial, True)], other, ["a"], [0.2] * 3, depth="best") is None
    # Nobody else keeps anything, or what others keep is of another limit.
    assert next_trial([kept], QUESTION, ["a"], [0.2] * 3, depth="best") is None
    assert next_trial([kept], replace(other, gap_ms=50.0), ["a"], [0.2] * 3, depth="best") is None
    # Its own rate is then searched from where it is expected.
    lower = next_trial([kept, Outcome(trial, False)], other, ["a"], [0.2] * 3, depth="rate")
    assert lower == Trial(other, "a", on_grid(0.2), 1)


def test_a_contender_that_is_behind_with_all_seeds_costs_one_trial_with_the_seed_expected_to_keep_least() -> None:
    rates = [on_grid(0.8), on_grid(0.7), on_grid(0.6)]
    best = [Outcome(Trial(QUESTION, "a", rate, seed), True) for seed, rate in enumerate(rates, 1)]
    other = replace(QUESTION, contender="layers")

    def following(*own: tuple[float, int, bool]) -> tuple[float, int] | None:
        tried = [Outcome(Trial(other, "a", on_grid(rate), seed), kept) for rate, seed, kept in own]
        trial = next_trial([*best, *tried], other, ["a"], [0.9, 0.5, 0.6], depth="best")
        return trial and (trial.rate, trial.seed)

    assert following() == (rates[0], 1)
    assert following((0.8, 1, False)) == (rates[2], 2)
    assert following((0.6, 1, False)) is None, "it is behind with the first seed, so with all"
    assert following((0.8, 1, False), (0.6, 2, False)) is None
    assert following((0.8, 1, False), (0.6, 2, True)) == (rates[2], 3)
    assert following((0.7, 1, True), (0.8, 1, False), (0.6, 2, True), (0.6, 3, True)) is None
    assert following((0.8, 1, True), (0.6, 2, False)) is None
    # Each setting keeps one of the two, so nothing is left to try.
    both = [
        Outcome(Trial(other, "b", rates[0], 1), True),
        *(Outcome(Trial(other, "a", rates[2], n), True) for n in (1, 2, 3)),
    ]
    assert next_trial([*best, *both], other, ["a"], [1.0] * 3, depth="best") is None


def test_contenders_compete_before_any_rate_is_searched_to_its_end() -> None:
    outcomes, trials = competes({"chunked": [1.5] * 3, "layers": [0.7] * 3, "policy": [1.6] * 3}, "best")
    assert not trials["chunked"], "nothing is known that it could be compared with"
    outcomes, trials = competes({"chunked": [1.5] * 3, "layers": [0.7] * 3, "policy": [1.6] * 3}, "rate")
    assert [one.rate for one in trials["layers"]][:1] == [on_grid(1.0)]
    assert search.best_other(outcomes, QUESTION) == ("policy", pytest.approx(1.6, rel=GRID - 1))
    assert search.best_other(outcomes, QUESTION, 3)[1] == 0, "no other seed has been run"


@pytest.mark.parametrize(
    ("rates", "shares"),
    [
        ([0.985] * 3, {(1, True), (2, True), (3, True)}),
        ([0.975] * 3, {(1, False)}),
        ([1.0, 1.0, 0.975], {(3, False)}),
        ([1.0] * 3, set()),
        ([0.9] * 3, set()),
    ],
)
def test_what_the_grid_leaves_open_is_tried_at_a_share_of_the_best(
    rates: Sequence[float], shares: set[tuple[int, bool]]
) -> None:
    best = GRID**5
    of_policy = [rate * best * 1.0001 for rate in rates]
    outcomes, _ = competes({"chunked": [best * 1.0001] * 3, "policy": of_policy}, "share")
    tried = {(one.trial.seed, one.kept) for one in outcomes if one.trial.rate == pytest.approx(search.SHARE * best)}
    assert tried == shares
    policy = replace(QUESTION, contender="policy")
    assert all(next_trial(outcomes, policy, ["a"], [1.0] * 3, depth=deep) is None for deep in search.DEPTHS[:4])


def test_the_search_of_another_seed_begins_where_it_is_expected() -> None:
    truth = {("a", 1): 1.5, ("a", 2): 1.2, ("a", 3): 1.3}
    blind, trials = answered(truth, 1.5)
    helped, fewer = answered(truth, 1.0, [1.0, 0.82, 0.87])
    assert helped.confirmed == blind.confirmed == pytest.approx(1.2, rel=GRID - 1)
    assert [one.seed for one in fewer].count(2) == 2 < [one.seed for one in trials].count(2)
    assert [one.rate for one in fewer if one.seed == 3] == [helped.confirmed]


def test_the_seed_that_is_expected_to_keep_least_comes_first() -> None:
    truth = {("a", 1): 1.5, ("a", 2): 1.3, ("a", 3): 1.2}
    found, trials = answered(truth, 1.0, [1.0, 0.87, 0.82])
    assert found.confirmed == pytest.approx(1.2, rel=GRID - 1)
    assert list(dict.fromkeys(one.seed for one in trials)) == [1, 3, 2]
    assert [one.rate for one in trials if one.seed == 2] == [found.confirmed]


def other_limits(
    run: Question, rate: float, p99: float, settings: str, gaps_kept: float = 1.0
) -> list[tuple[str, bool]]:
    """What a trial that keeps 1.0/s says of other limits: settings, and whether they are kept."""
    shown = {"gaps_ms": {"p99": p99}, "gaps_kept": gaps_kept}
    one = row(Trial(run, settings, rate, 1), {(settings, 1): 1.0}) | shown
    return [(one.trial.settings, one.kept) for one in outcomes_of({"trials": [one]}) if one.trial.question != run]


AT_50 = replace(QUESTION, gap_ms=50.0)


@pytest.mark.parametrize(
    ("at_25", "at_50"),
    [
        ('{"chunk": 1024}', '{"chunk": 1024}'),
        ('{"margin": 0.9}', '{"margin": 0.45}'),
        ('{"margin": 1.0}', '{"margin": 0.5}'),
    ],
)
def test_a_trial_answers_for_the_same_one_under_other_limits(at_25: str, at_50: str) -> None:
    """By its gaps, if it was kept; else it misses lower limits, and all if first tokens were late."""
    assert other_limits(QUESTION, 0.9, 20.0, at_25) == [(at_50, True)]
    assert other_limits(AT_50, 0.9, 20.0, at_50) == [(at_25, True)]
    assert other_limits(AT_50, 0.9, 26.0, at_50) == [(at_25, False)]
    assert other_limits(AT_50, 1.1, 20.0, at_50, gaps_kept=0.9) == [(at_25, False)]
    assert other_limits(QUESTION, 1.1, 20.0, at_25, gaps_kept=0.9) == []
    assert other_limits(QUESTION, 1.1, 20.0, at_25, gaps_kept=0.99) == [(at_50, False)]


def test_a_trial_under_another_limit_does_not_choose_the_settings(tmp_path: Path) -> None:
    """What is half of the limit at 50 ms is all of it at 25 ms, and not what is predicted to be best at 50 ms."""
    half = '{"margin": 0.45}'
    store = Store(tmp_path / "results.json", HEAD)
    store.content["predictions"][str(AT_50)] = {"settings": [A, B, half]}
    store.add("trials", row(Trial(QUESTION, A, 1.0, 1), {(A, 1): 1.0}) | {"gaps_ms": {"p99": 20.0}})
    assert settings_of(store.content, store.outcomes, AT_50) == [A, half, B]
    other = replace(AT_50, contender="layers")
    store.add("trials", row(Trial(other, A, 1.2, 1), {(A, 1): 1.2}))
    following = next_trial(store.outcomes, AT_50, [A, half, B], [0.9] * 3, depth="best")
    assert following == Trial(AT_50, A, 1.2, 1)
    # What it keeps with other settings is known meanwhile.
    assert goodput(store.outcomes, AT_50, [A, half, B], [0.9] * 3).rate == 1.0
    # One that was run and has kept nothing does not lead either; one that has kept a rate does.
    missed = Trial(AT_50, half, 1.1, 1)
    store.add("trials", row(missed, {(half, 1): 1.0}))
    assert settings_of(store.content, store.outcomes, AT_50) == [A, half, B]
    store.add("trials", row(replace(missed, rate=0.9, settings=B), {(B, 1): 1.0}))
    assert settings_of(store.content, store.outcomes, AT_50) == [B, A, half]


def test_the_search_on_one_card_goes_by_its_trials_only(tmp_path: Path) -> None:
    truth = {(A, 1): 1.0}
    store = Store(tmp_path / "results.json", HEAD)
    trial = Trial(QUESTION, A, 0.5, 1)
    for gpu in ("GPU-1", "GPU-2"):
        store.add("trials", {**row(trial, truth), "gpu": gpu})
        store.gpu = gpu
        assert own(store.content["trials"][-1:]) == [one for one in store.outcomes if one.trial.question == QUESTION]
    store.gpu = "GPU-3"
    assert store.outcomes == []
    store.gpu = None
    assert [one.trial for one in store.outcomes].count(trial) == 2


def test_steps_that_are_longer_than_a_limit_say_nothing_of_it() -> None:
    assert other_limits(AT_50, 0.9, 20.0, A) == []


def test_the_search_goes_on_from_any_point(tmp_path: Path) -> None:
    """Whatever was recorded, the same trials follow as without a break."""
    truth = {(A, 1): 0.8, (A, 2): 0.7, (A, 3): 0.9, (B, 1): 1.1, (B, 2): 1.0, (B, 3): 1.3}
    found, trials = answered(truth, 0.5)
    for stop in range(len(trials)):
        store = Store(tmp_path / f"{stop}.json", HEAD)
        for trial in trials[:stop]:
            store.add("trials", row(trial, truth))
        again = Store(tmp_path / f"{stop}.json", {**HEAD, "date": "2026-11-23"})
        assert next_trial(again.outcomes, QUESTION, [A, B], [0.5] * 3) == trials[stop]
        again.add("trials", row(trials[stop], truth))
        assert [one["run"] for one in again.content["trials"]] == [0] * stop + [1 if stop else 0]
    assert found.seeds == 3


def row(trial: Trial, truth: dict[tuple[str, int], float], late: int = 0) -> dict[str, Any]:
    return {
        "model": trial.question.model,
        "load": trial.question.load,
        "gap_ms": trial.question.gap_ms,
        "contender": trial.question.contender,
        "settings": trial.settings,
        "rate": trial.rate,
        "seed": trial.seed,
        "kept": trial.rate <= truth[trial.settings, trial.seed],
        "gaps_ms": {"p99": 30.0},
        "gaps_kept": 0.9,
        "late_captures": late,
        "gpu": "GPU-1",
        "out_of_time": False,
        "revision": search.revision(trial.question),
    }


def own(rows: list[dict[str, Any]]) -> list[Outcome]:
    """What trials say of the limits that they were run with."""
    return [one for one in outcomes_of({"trials": rows}) if one.trial.question == QUESTION]


def test_a_failure_with_captures_on_the_way_is_tried_again() -> None:
    trial = Trial(QUESTION, A, 2.0, 1)
    truth = {(A, 1): 1.0}
    assert own([row(trial, truth, late=1)]) == []
    assert len(own([row(trial, truth), row(Trial(QUESTION, A, 0.5, 1), truth, late=1)])) == 2
    # A failure that comes again and again counts.
    assert own([row(trial, truth, late=1)] * DISTURBED) == []
    assert len(own([row(trial, truth, late=1)] * (DISTURBED + 1))) == 1
    # Each card captures its own graphs.
    assert own([{**row(trial, truth, late=1), "gpu": f"GPU-{n}"} for n in range(DISTURBED + 1)]) == []


def test_trials_of_an_earlier_revision_say_nothing() -> None:
    trial, truth = Trial(QUESTION, A, 0.5, 1), {(A, 1): 1.0}
    now = row(trial, truth)
    assert len(own([now, {**now, "revision": now["revision"] - 1}])) == 1


def test_a_good_start_needs_few_trials() -> None:
    for truth in (0.92, 1.0, 1.05, 1.15):
        found, trials = answered({("a", seed): truth for seed in (1, 2, 3)}, 1.0)
        assert found.settled
        assert sum(one.seed == 1 for one in trials) <= 6


def test_a_file_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "results.json", HEAD)
    store.add("trials", {"n": 1})
    before = store.path.read_text()

    def fails(*arguments: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("serving.store.os.replace", fails)
    with pytest.raises(OSError, match="disk"):
        store.add("trials", {"n": 2})
    assert store.path.read_text() == before
    assert json.loads(before)["trials"] == [{"n": 1, "run": 0}]


def test_a_file_has_a_line_for_each_row(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.json", HEAD)
    for number in range(3):
        store.add("trials", {"n": number, "timeline": [[1, 2], [3, 4]]})
    store.put_costs("8B", {"costs": {"rates": {"132": [1, 2]}}})
    text = store.path.read_text()
    assert json.loads(text) == store.content
    assert [line.count("timeline") for line in text.splitlines() if "timeline" in line] == [1, 1, 1]


def test_results_of_another_card_are_not_mixed(tmp_path: Path) -> None:
    Store(tmp_path / "results.json", HEAD).add("trials", {"n": 1})
    with pytest.raises(ValueError, match="use another folder"):
        Store(tmp_path / "results.json", {**HEAD, "card": "another card"})


def test_results_of_several_processes_are_merged_without_doubles(tmp_path: Path) -> None:
    base = Store(tmp_path / "base.json", HEAD)
    base.add("trials", {"n": 0})
    base.put_costs("8B", {"costs": 1})
    parts = []
    for name, head in (("a", {**HEAD, "date": "2026-11-23"}), ("b", {**HEAD, "date": "2026-11-24"})):
        (tmp_path / f"{name}.json").write_text(base.path.read_text())
        part = Store(tmp_path / f"{name}.json", head)
        part.add("trials", {"n": name})
        part.content["predictions"][name] = {"start": 1.0}
        parts.append(part.content)
    found = merged(base.content, [*parts, *parts])
    assert [row["n"] for row in found["trials"]] == [0, "a", "b"]
    assert [found["runs"][row["run"]]["date"] for row in found["trials"]] == ["2026-11-22", "2026-11-23", "2026-11-24"]
    assert found["predictions"].keys() == {"a", "b"}
    assert found["costs"] == {"8B": {"costs": 1, "run": 0}}
    assert base.content["trials"] == [{"n": 0, "run": 0}]
    # Also of a file that has a run twice.
    twice = [{**row, "run": row["run"] + 3} for row in found["trials"]]
    doubled = {**found, "runs": 2 * found["runs"], "trials": [*found["trials"], *twice]}
    assert merged(doubled, []) == found
    with pytest.raises(ValueError, match="different cards"):
        merged(base.content, [{**parts[0], "card": "another card"}])


def test_runs_with_equal_facts_stay_apart(tmp_path: Path) -> None:
    """Two idle cards of one kind may have the same clocks and temperature, and one process may follow another."""
    parts = []
    for name in "ab":
        part = Store(tmp_path / f"{name}.json", HEAD)
        part.put_costs("8B", {})
        part.add("trials", {"n": name, "costs_run": part.content["costs"]["8B"]["run"]})
        parts.append(part.content)
    found = merged(parts[0], parts)
    assert [(row["n"], row["run"]) for row in found["trials"]] == [("a", 0), ("b", 1)]
    # A trial goes on naming the run that measured its costs.
    assert [row["costs_run"] for row in found["trials"]] == [0, 1]
    assert found["costs"]["8B"]["run"] == 1
    again = Store(tmp_path / "a.json", HEAD)
    again.add("trials", {"n": "c"})
    assert [row["run"] for row in again.content["trials"]] == [0, 1]


def test_new_costs_make_old_predictions_void(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.json", HEAD)
    store.content["predictions"] = {"8B documents 25 ms chunked": {}, "34B documents 60 ms chunked": {}}
    store.put_costs("8B", {})
    assert list(store.content["predictions"]) == ["34B documents 60 ms chunked"]


def test_long_documents_with_four_contenders_come_first() -> None:
    first, *others = questions()
    assert {one.load for one in first} == {"documents"}
    assert {one.gap_ms for one in first} == {25.0, 50.0}
    assert {one.contender for one in first} == {"chunked", "overlay", "disjoint", "policy"}
    everything = [one for group in (first, *others) for one in group]
    assert len(everything) == len(set(everything)) == 8 * 3 * (2 + 1)
    assert search.SEEDS[0] == 1
