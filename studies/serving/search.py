"""Which trial is next: bisection for goodput, a race of settings, confirmation by further seeds.

All of it follows from the list of the trials so far, so a later run goes on where an earlier one ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, floor, inf, log, sqrt
from operator import itemgetter
from typing import Any

# Rates are powers of it, so that contenders are compared at the same ones.
GRID = 1.03
SEEDS = (1, 2, 3)
# A search goes up or down from its start by so many steps of the grid, and ends behind the last one.
STEPS = (1, 2, 4, 8, 16, 32, 32)
# How far a question is answered: whether the contender keeps what the best other one keeps, with the first seed and
# with all; by a rate of its own with the first seed, and with all; whether it keeps SHARE of the best other one, where
# the grid leaves that open; or with the other settings raced.
DEPTHS = ("best", "rate", "seeds", "share", "settings")
# What a contender keeps of the best one, to count as equal to it.
SHARE = 0.98
# Settings that are raced on the card for one question, in the order that the cost model predicts.
RACED = 3


@dataclass(frozen=True)
class Question:
    """What goodput is asked of: a model, a load, a limit on gaps, and a contender."""

    model: str
    load: str
    gap_ms: float
    contender: str

    def __str__(self) -> str:
        return f"{self.model} {self.load} {self.gap_ms:g} ms {self.contender}"


@dataclass(frozen=True)
class Trial:
    """One run of a load: a contender with its settings, a rate of requests per second, and a seed."""

    question: Question
    settings: str  # as JSON, so that it can be compared
    rate: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """A trial that was run, and whether it kept its limits.

    implied: it was run under another limit on gaps, which answers for this one.
    """

    trial: Trial
    kept: bool
    implied: bool = False


@dataclass(frozen=True)
class Goodput:
    """What is known of a question.

    rate: the highest one that was kept with the first seed; 0 if none was; None if nothing is known yet. settings:
    those of that rate. settled: whether the search with the first seed has ended for the first settings that keep
    anything. raced: whether it has ended for all settings. confirmed: the highest rate that each of `seeds` seeds has
    kept. below: while a search with the first seed goes on, the lowest rate that was not kept.
    """

    rate: float | None = None
    settings: str | None = None
    settled: bool = False
    raced: bool = False
    confirmed: float | None = None
    seeds: int = 0
    below: float = inf

    @property
    def depth(self) -> str:
        """What of DEPTHS the search of its own rate does next."""
        return "rate" if not self.settled else "seeds" if self.seeds < len(SEEDS) else "settings"


def written(settings: Mapping[str, Any]) -> str:
    """Settings as text that compares equal for equal settings."""
    return json.dumps(settings, sort_keys=True)


def under(trial: Trial, gap_ms: float) -> Trial | None:
    """The same trial under another limit on gaps, or None if there is none.

    A contender uses the limit only through its margin, the share of the limit that a step may take.
    """
    settings = json.loads(trial.settings)
    if "margin" in settings:
        settings["margin"] = round(settings["margin"] * trial.question.gap_ms / gap_ms, 4)
        if settings["margin"] > 1:
            return None
    return replace(trial, question=replace(trial.question, gap_ms=gap_ms), settings=written(settings))


def bracket(tried: Iterable[tuple[float, bool]]) -> tuple[float, float]:
    """The highest rate that was kept below all that failed, and the lowest that failed."""
    found = list(tried)
    high = min((rate for rate, kept in found if not kept), default=inf)
    low = max((rate for rate, kept in found if kept and rate < high), default=0.0)
    return low, high


def on_grid(rate: float, steps: int = 0) -> float:
    """The rate of the grid that is nearest, or so many steps above or below a rate that need not be one of it."""
    at = log(rate) / log(GRID)
    # Of a rate on the grid, the logarithm is a whole number but for rounding.
    first = floor(at + 1e-6) if steps > 0 else ceil(at - 1e-6) if steps < 0 else round(at)
    return float(GRID ** (first + steps))


def _is_below(rate: float, other: float) -> bool:
    """Whether a rate is below another one, by more than rounding."""
    return rate < other * (1 - 1e-6)


def next_rate(tried: Sequence[tuple[float, bool]], start: float) -> float | None:
    """The rate to try next; None once no rate of the grid is between those that were kept and those that were not, or
    if everything or nothing is kept.
    """
    low, high = bracket(tried)
    if low == 0 or high == inf:
        first = on_grid(start)
        if _between(low, first, high):
            return first
        # Other searches have left trials too, so the next step follows from how far it has gone, not from their number.
        way = 1 if high == inf else -1
        gone = way * log((low if high == inf else high) / first) / log(GRID)
        steps = next((steps for steps in accumulate(STEPS) if steps > gone + 1e-6), None)
        return None if steps is None else on_grid(first, way * steps)
    least, most = on_grid(low, 1), on_grid(high, -1)
    return None if _is_below(most, least) else on_grid(sqrt(least * most))


def _tried(outcomes: Iterable[Outcome], question: Question, settings: str, seed: int) -> list[tuple[float, bool]]:
    return [
        (one.trial.rate, one.kept)
        for one in outcomes
        if (one.trial.question, one.trial.settings, one.trial.seed) == (question, settings, seed)
    ]


def goodput(
    outcomes: Sequence[Outcome], question: Question, settings: Sequence[str], starts: Sequence[float]
) -> Goodput:
    """What the trials so far say of a question."""
    return _searched(outcomes, question, settings, starts)[0]


def next_trial(
    outcomes: Sequence[Outcome],
    question: Question,
    settings: Sequence[str],
    starts: Sequence[float],
    *,
    depth: str = DEPTHS[-1],
) -> Trial | None:
    """The next trial of a question, or None once it is answered to a depth.

    starts: the rate at which the search begins, for each of SEEDS.
    """
    if depth == "best":
        return _at_best(outcomes, question, settings[0], starts)
    found, trial = _searched(outcomes, question, settings, starts)
    if found.depth == "settings" and depth in ("share", "settings"):
        trial = _at_share(outcomes, question) or (trial if depth == "settings" else None)
    elif DEPTHS.index(found.depth) > DEPTHS.index(depth):
        trial = None
    return trial


def kept_by_seed(outcomes: Iterable[Outcome], question: Question) -> tuple[str, list[float]]:
    """The settings that keep the highest rates, by the first seed and then by all, and what they keep with each: 0 if
    nothing yet.
    """
    mine = [one for one in outcomes if one.trial.question == question]
    found = [("", [0.0] * len(SEEDS))]
    for settings in dict.fromkeys(one.trial.settings for one in mine):
        found.append((settings, [bracket(_tried(mine, question, settings, seed))[0] for seed in SEEDS]))
    return max(found, key=lambda one: (one[1][0], min(one[1])))


def best_other(outcomes: Sequence[Outcome], question: Question, seeds: int = 1) -> tuple[str, float]:
    """The other contender that keeps the highest rate with the first seeds, and that rate: 0 if none keeps any."""
    others = {one.trial.question for one in outcomes} - {question}
    rates = {
        one.contender: min(kept_by_seed(outcomes, one)[1][:seeds])
        for one in others
        if replace(one, contender=question.contender) == question
    }
    return max(sorted(rates.items()), key=itemgetter(1), default=("", 0.0))


def _at_best(outcomes: Sequence[Outcome], question: Question, settings: str, starts: Sequence[float]) -> Trial | None:
    """The trial that shows whether a contender keeps what the best other one does, with the settings that come first:
    with the first seed, then with all; None where that is known. One seed with which it does not is enough, so the one
    that is expected to keep least comes first.
    """
    _, kept = kept_by_seed(outcomes, question)
    lows, highs = zip(*(bracket(_tried(outcomes, question, settings, seed)) for seed in SEEDS), strict=True)
    for seeds in (1, len(SEEDS)):
        _, rate = best_other(outcomes, question, seeds)
        if _between(min(kept[:seeds]), rate, min(highs[:seeds])):
            lacking = [(starts[n], seed) for n, seed in enumerate(SEEDS[:seeds]) if _is_below(lows[n], rate)]
            if lacking:
                return Trial(question, settings, rate, min(lacking)[1])
    return None


def _at_share(outcomes: Sequence[Outcome], question: Question) -> Trial | None:
    """The trial that shows whether a contender that was searched keeps SHARE of the best other one; None where that is
    known.
    """
    settings, lows = kept_by_seed(outcomes, question)
    for seeds in (1, len(SEEDS)):
        rate = SHARE * best_other(outcomes, question, seeds)[1]
        missed = [bracket(_tried(outcomes, question, settings, seed))[1] for seed in SEEDS[:seeds]]
        lacking = [seed for seed, low in zip(SEEDS[:seeds], lows, strict=False) if _between(low, rate, min(missed))]
        if lacking:
            return Trial(question, settings, rate, lacking[0])
    return None


def _between(low: float, rate: float, high: float) -> bool:
    return _is_below(low, rate) and _is_below(rate, high)


def _searched(
    outcomes: Sequence[Outcome], question: Question, settings: Sequence[str], starts: Sequence[float]
) -> tuple[Goodput, Trial | None]:
    mine = [one for one in outcomes if one.trial.question == question]
    first, *others = SEEDS
    best_rate, best = 0.0, None
    settled = False
    race = None
    for one in settings[:RACED]:
        tried = _tried(mine, question, one, first)
        # The first settings are bisected; others have to beat the best so far, and are left after one failure at that.
        low, high = bracket(tried)
        if best is not None:
            wanted = on_grid(best_rate, 1)
            if high <= wanted:
                continue
            if low < wanted:
                race = Trial(question, one, wanted, first)
                break
        rate = next_rate(tried, starts[0])
        if low > best_rate:
            best_rate, best = low, one
        if rate is not None:
            # What other settings keep, it keeps at least.
            name, lows = kept_by_seed(mine, question)
            low = lows[0]
            known = Goodput(low if mine else None, name or None, settled, below=high if high > low else inf)
            return known, Trial(question, one, rate, first)
        settled = best is not None
    if best is None:
        return Goodput(0.0, None, True, True, 0.0, len(SEEDS)), None
    # What was found is confirmed before other settings are raced. Seeds that were searched say what the others have to
    # keep, so the one that is expected to keep least comes first.
    rate = best_rate
    waiting = []
    for seed, start in sorted(zip(others, starts[1:], strict=True), key=itemgetter(1)):
        tried = _tried(mine, question, best, seed)
        low, _ = bracket(tried)
        following = next_rate(tried, start * best_rate / starts[0])
        if following is None:
            rate = min(rate, low)
        else:
            waiting.append((low, following, seed))
    # One that keeps the rate needs no search.
    waiting = [one for one in waiting if one[0] < rate]
    if waiting:
        _, following, seed = waiting[0]
        known = Goodput(best_rate, best, True, False, rate, len(SEEDS) - len(waiting))
        return known, Trial(question, best, min(following, rate), seed)
    return Goodput(best_rate, best, True, race is None, rate, len(SEEDS)), race


MODELS = ("8B", "34B")
GAPS_MS = {"8B": (25.0, 50.0), "34B": (60.0,)}
FIRST = ("chunked", "overlay", "disjoint", "policy")
THEN = ("priority", "layers", "streams", "prefill-first")
# Of the way in which a contender decides: trials of earlier ones say nothing about it.
REVISIONS = {"prefill-first": 1, "streams": 1, "priority": 1, "overlay": 1, "disjoint": 1}
REVISIONS |= {"chunked": 5, "layers": 3, "policy": 6}
# Of loads on which a contender has changed although it has not on others: their rehearsals are the same as before.
REVISIONS_OF_LOAD = {(model, "chat", "policy"): 11 for model in MODELS}
REVISIONS_OF_LOAD |= {("8B", "documents", "policy"): 9}
REVISIONS_OF_LOAD |= {(model, "retrieval", "policy"): 9 for model in MODELS}
LOADS_BY_WORTH = ("documents", "retrieval", "chat")


def revision(question: Question) -> int:
    """The present one of what a question asks for."""
    one = question.model, question.load, question.contender
    return REVISIONS_OF_LOAD.get(one, REVISIONS[question.contender])


def questions(models: Sequence[str] = MODELS) -> list[list[Question]]:
    """All questions in groups, the ones of most worth first."""
    return [
        [Question(model, load, gap, contender) for gap in GAPS_MS[model] for contender in contenders]
        for model in models
        for load in LOADS_BY_WORTH
        for contenders in (FIRST, THEN)
    ]
