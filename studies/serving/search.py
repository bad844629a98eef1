"""The search for goodput: the highest rate that a contender keeps with its best settings, on a grid for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any, NamedTuple

# Rates are powers of it, so that contenders are compared at the same ones. Cards differ by as much.
GRID = 1.03
SEEDS = (1, 2, 3)
# A search goes down or up from its start by at most so many steps of the grid: by a factor of 44.
FARTHEST = 128

Settings = dict[str, Any]
Keeps = Callable[[Settings, float, int], bool]  # settings, rate and seed


class Goodput(NamedTuple):
    """Requests per second: with the first seed, and with all. Both are 0 if no rate was kept."""

    settings: Settings
    kept: float
    kept_by_all: float


def highest(keeps: Callable[[float], bool], start: float) -> float:
    """The highest rate of the grid that is kept: from a start in steps that double, then by bisection."""
    first = round(log(start) / log(GRID))

    def is_kept(step: int) -> bool:
        return keeps(GRID ** (first + step))

    low, high, step = (0, None, 1) if is_kept(0) else (None, 0, 1)
    while low is None or high is None:
        if step > FARTHEST:
            return 0.0 if low is None else float(GRID ** (first + low))
        if high is None:
            low, high = (step, None) if is_kept(step) else (low, step)
        else:
            low, high = (-step, high) if is_kept(-step) else (None, -step)
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return float(GRID ** (first + low))


def goodput(settings: Sequence[Settings], keeps: Keeps, start: float) -> Goodput:
    """Search with the first seed: settings that come later have to beat those before. Then confirm with the others."""
    best, best_rate = settings[0], 0.0
    for one in settings:
        wanted = best_rate * GRID if best_rate else start
        if best_rate and not keeps(one, wanted, SEEDS[0]):
            continue
        rate = highest(lambda rate, one=one: keeps(one, rate, SEEDS[0]), wanted)  # type: ignore[misc]
        if rate > best_rate:
            best, best_rate = one, rate
    kept = best_rate
    for seed in SEEDS[1:]:
        if kept and not keeps(best, kept, seed):
            kept = highest(lambda rate, seed=seed: keeps(best, rate, seed), kept / GRID)  # type: ignore[misc]
    return Goodput(best, best_rate, kept)
