"""Worlds for the tuner: contestants with known true times, models of noise and of change, and virtual time.

    python tests/tune/worlds.py [--runs 200] [--seed 7] [--world NAME] [--out FILE]

runs the race, the finals and the verdict so many times in each world, without a driver, and prints how often the
verdict is sure and wrong, how often it is an answer, and how often it is a right one. The seed is fixed, so that the
outcome is the same in each run; test_worlds.py runs a sample.

The truth of a world is that of a plan that runs on and on. Wrong is a verdict that is sure although its choice loses
more than 2% to the best contestant, or whose interval misses the true gain by more than 1%.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cuda_gctx.measure.results import write_result
from cuda_gctx.measure.statistics import quantile
from cuda_gctx.tune._judge import Sample, Verdict, judge, least_calls
from cuda_gctx.tune._race import Amount, Raced, finals, race, step_cost

BATCH_S = 0.03  # noise of batches is alike for so long
REGRET, MISSED = 0.02, 0.01
SIZES = (8, 16, 24, 32, 48, 64)
Key = tuple[Any, ...]

CONTESTANTS: list[Key] = [
    ("sequence",),
    *(("streams", order) for order in (0, 1)),
    *(("priority", first) for first in (0, 1)),
    *(("partitions", size, placed) for size in SIZES for placed in (0, 1)),
    *(("overlay", size, first) for size in (66, 99, 116) for first in (0, 1)),
]
SEQUENCE = CONTESTANTS[0]
BEST = ("partitions", 16, 0)


def kind_of(key: Key) -> str:
    """Streams and priorities are one kind, because they share all SMs."""
    return "streams" if key[0] == "priority" else key[0]


@dataclass
class World:
    """What contestants take. Times are factors of the step in sequence.

    times: the true time of each contestant at first. noise: the deviation of a step. batches: the factor of each
    BATCH_S. stalls, stall: the share of steps that stall, and how many times as long they take. slow, slow_steps: the
    first steps of partitions, and of all contestants at their first start. after, after_s: the factor of a
    contestant for so long after another one. heat, heats_s: by how much a contestant gets slower when it has heated
    the chip, and how long that takes. wander, wander_s: the deviation and the time of a level that each kind has.
    common: a factor of all contestants at a time. late: the factor of a contestant from its late_steps-th step on.
    """

    random: random.Random
    times: Mapping[Key, float] = field(default_factory=dict)
    step_s: float = 4e-3
    noise: float = 0.004
    batches: Callable[[random.Random], float] | None = None
    stalls: float = 0.0
    stall: float = 1.0
    slow: float = 1.0
    slow_steps: int = 0
    after: Mapping[str, float] = field(default_factory=dict)
    after_s: float = 0.0
    heat: Mapping[str, float] = field(default_factory=dict)
    heats_s: float = 10.0
    wander: float = 0.0
    wander_s: float = 8.0
    modes: float = 1.0
    common: Callable[[float], float] | None = None
    kinds_at: Callable[[str, float], float] | None = None
    late: Mapping[str, float] = field(default_factory=dict)
    late_steps: int = 0
    own_stalls: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    luck: float = 0.0
    steady: Mapping[str, float] = field(default_factory=dict)
    share: float | None = None
    contestants: list[Key] = field(default_factory=lambda: list(CONTESTANTS))
    now: float = 1000.0
    hot: float = 0.0
    last: Key | None = None
    since: float = 0.0
    done: dict[Key, int] = field(default_factory=dict)
    state: dict[Hashable, Any] = field(default_factory=dict)
    lucks: dict[Key, float] = field(default_factory=dict)

    def true_s(self, key: Key) -> float:
        """The time of a step if the contestant runs on and on; for a latency, the quantile."""
        kind = key[0]
        seconds = self.times.get(key, 1.0) * self.steady.get(kind, 1.0) * self.lucks.get(key, 1.0)
        seconds *= (1 + self.heat.get(kind, 0.0)) * self.late.get(kind, 1.0)
        if kind in self.own_stalls:
            every_s, stall_s = self.own_stalls[kind]
            seconds *= 1 + stall_s / every_s
        return seconds

    def run(self, key: Key, amount: Amount) -> Sample:
        """Let steps pass; the sums of what single steps would take."""
        chance, kind = self.random, key[0]
        if key != self.last:
            self.last, self.since = key, self.now
        if self.luck:
            self.lucks.setdefault(key, math.exp(chance.gauss(0, self.luck)))
        level = self.step_s * self.times.get(key, 1.0) * self.lucks.get(key, 1.0)
        level *= self.wandered(kind) * self.mode(kind)
        if self.common is not None:
            level *= self.common(self.now)
        if self.kinds_at is not None:
            level *= self.kinds_at(kind, self.now)
        pace = level * (self.after[kind] if kind in self.after and self.now - self.since < self.after_s else 1.0)
        steps = max(1, amount.calls, math.ceil(amount.seconds / pace - 1e-9))
        done = self.done.get(key, 0)
        self.done[key] = done + steps
        total = level * steps
        total += level * (self.slow - 1) * max(0, min(steps, self.slow_steps - done)) if self.slow != 1 else 0.0
        if kind in self.late:
            total += level * (self.late[kind] - 1) * max(0, min(steps, done + steps - self.late_steps))
        if kind in self.after:
            still = max(0.0, min(total, self.after_s - (self.now - self.since)))
            total += (self.after[kind] - 1) * still
        target = self.heat.get(kind, 0.0)
        if self.heat:
            kept = math.exp(-total / self.heats_s)
            mean = target + (self.hot - target) * (1 - kept) * self.heats_s / total
            self.hot = target + (self.hot - target) * kept
            total *= 1 + mean
        if kind in self.own_stalls:
            every_s, stall_s = self.own_stalls[kind]
            ran = self.state.get(kind, chance.uniform(0, every_s))
            self.state[kind] = ran + total
            total += stall_s * (int((ran + total) / every_s) - int(ran / every_s))
        if self.batches is not None:
            count = max(1, round(total / BATCH_S))
            total *= sum(self.batches(chance) for _ in range(count)) / count
        latencies: tuple[float, ...] = ()
        if self.share is not None:
            # Of many calls, as many as a sample needs: drawing them takes most of the time of a campaign.
            latencies = tuple(self.call(key, total / steps) for _ in range(min(steps, max(250, amount.calls))))
            total = sum(latencies) * steps / len(latencies)
        else:
            total *= max(0.05, 1 + chance.gauss(0, self.noise / math.sqrt(steps))) if self.noise else 1.0
            if self.stalls:
                mean = steps * self.stalls
                count = (
                    sum(chance.random() < self.stalls for _ in range(steps))
                    if steps < 60
                    else max(0, round(chance.gauss(mean, math.sqrt(mean))))
                )
                total += total / steps * (self.stall - 1) * count
        self.now += total + 2e-4
        return Sample(steps, total, latencies)

    def call(self, key: Key, level: float) -> float:
        late = self.stalls if key != SEQUENCE or not self.state.get("only others stall") else 0.0
        factor = self.stall if late and self.random.random() < late else 1.0
        return level * factor * math.exp(self.random.gauss(0, self.noise))

    def wandered(self, kind: str) -> float:
        if not self.wander:
            return 1.0
        then, at = self.state.get(("wander", kind), (self.now, self.random.gauss(0, self.wander)))
        keep = math.exp(-(self.now - then) / self.wander_s)
        at = keep * at + math.sqrt(1 - keep * keep) * self.random.gauss(0, self.wander)
        self.state["wander", kind] = self.now, at
        return math.exp(at)

    def mode(self, kind: str) -> float:
        if self.modes == 1:
            return 1.0
        until, low = self.state.get(("mode", kind), (0.0, False))
        if self.now > until:
            until, low = self.now + self.random.uniform(3, 20), self.random.random() < 0.5
            self.state["mode", kind] = until, low
        return self.modes if low else 1.0


# ---- worlds

Maker = Callable[[random.Random], World]
WORLDS: dict[str, Maker] = {}
# Stationary worlds with a gain of more than 20%, which the tuner has to answer.
ANSWERED: set[str] = set()
# Worlds that change more slowly than a quarter of the budget.
SLOW: set[str] = set()


def lognormal(deviation: float) -> Callable[[random.Random], float]:
    return lambda chance: math.exp(chance.gauss(0, deviation))


def outliers(chance: random.Random) -> float:
    return math.exp(chance.gauss(0, 0.01)) * (3.0 if chance.random() < 0.1 else 1.0)


def heavy_tail(chance: random.Random) -> float:
    return 1 + 0.03 * (chance.paretovariate(1.5) - 1)


def both_tails(chance: random.Random) -> float:
    """Student's t with two degrees of freedom, which has no variance."""
    spread = math.sqrt(sum(chance.gauss(0, 1) ** 2 for _ in range(2)) / 2)
    return max(0.3, 1 + 0.01 * chance.gauss(0, 1) / spread)


def two_levels(chance: random.Random) -> float:
    return math.exp(chance.gauss(0, 0.005)) * (1.1 if chance.random() < 0.5 else 1.0)


def of_kinds(**factors: float) -> dict[Key, float]:
    return {key: factors.get(key[0], 1.0) for key in CONTESTANTS}


TRUTHS: dict[str, dict[Key, float]] = {
    "nothing to gain": {},
    "almost a gain": {key: 1 / 1.009 for key in CONTESTANTS if key != SEQUENCE},
    "all are slower": {key: 1.015 for key in CONTESTANTS if key != SEQUENCE},
    "streams gain a little": {**dict.fromkeys(CONTESTANTS, 1.02), SEQUENCE: 1.0, ("streams", 0): 1 / 1.03},
    "one partition is best": {
        **of_kinds(partitions=1.1, overlay=1.1, priority=1.02),
        ("streams", 0): 1 / 1.08,
        ("streams", 1): 1 / 1.08,
        BEST: 1 / 1.15,
    },
    "many are equal": of_kinds(partitions=1 / 1.1, overlay=1.02, streams=1.02, priority=1.02),
    "one overlay is best": {**of_kinds(partitions=1 / 1.06, overlay=1.08), ("overlay", 99, 0): 1 / 1.12},
    "sizes make a bowl": {
        key: 0.8 + 0.1 * abs(math.log2(key[1] / 32)) for key in CONTESTANTS if key[0] == "partitions"
    },
}
NOISES: dict[str, dict[str, Any]] = {
    "0.3%": {"batches": lognormal(0.003)},
    "1%": {"batches": lognormal(0.01)},
    "3%": {"batches": lognormal(0.03)},
    "10%": {"batches": lognormal(0.1)},
    "outliers": {"batches": outliers},
    "heavy tail": {"batches": heavy_tail},
    "two tails": {"batches": both_tails},
    "two levels": {"batches": two_levels},
    "drift": {"common": lambda now: 1 + 0.005 * (now - 1000)},
    "throttling": {"common": lambda now: 1.08 if now % 2.0 < 1.0 else 1.0},
    "luck 2%": {"luck": 0.02},
}
for _truth, _times in TRUTHS.items():
    for _name, _options in NOISES.items():
        WORLDS[f"{_truth}, {_name}"] = partial(World, times=_times, **_options)

HOT = {"streams": 0.09, "priority": 0.09}
WARM_TIMES = of_kinds(streams=1 / 1.05, partitions=1.04, overlay=1.06)
for _tau in (0.1, 1.0, 2.0, 5.0, 10.0, 30.0):
    WORLDS[f"heat, {_tau:g} s"] = partial(World, times=WARM_TIMES, heat=HOT, heats_s=_tau)
SLOW |= {"heat, 10 s", "heat, 30 s"}

LOSES = of_kinds(partitions=1 / 1.03)
WORLDS |= {
    "a cool partition": partial(World, times={**WARM_TIMES, BEST: 1 / 1.025}, heat=HOT, heats_s=1.0),
    "a slow start": partial(World, times=of_kinds(partitions=1 / 1.12), slow=1.6, slow_steps=50),
    "a stall each second": partial(World, common=lambda now: 1 + 0.06 * (now % 1.0 < 0.25) / 0.25),
    "a plan stalls": partial(
        World,
        times=of_kinds(streams=1 / 1.04, priority=1 / 1.03, partitions=1.05, overlay=1.05),
        own_stalls={"streams": (4.0, 0.4), "priority": (4.0, 0.4)},
    ),
    "rare stalls of a plan": partial(
        World,
        times=of_kinds(streams=1 / 1.05, priority=1 / 1.05, partitions=1.05, overlay=1.05),
        own_stalls={"streams": (1.0, 0.2), "priority": (1.0, 0.2)},
    ),
    "work grows": partial(
        World,
        times=of_kinds(streams=1 / 1.05, partitions=1.04, overlay=1.06),
        common=lambda now: 1 + (now - 1000) / 200,
    ),
    "own clocks": partial(World, modes=1.10),
    "a neighbour": partial(
        World,
        times=of_kinds(partitions=1 / 1.06),
        kinds_at=lambda kind, now: (1.2 if kind in ("partitions", "overlay") else 1.1) if now % 40 < 15 else 1.0,
        steady={
            kind: 1 + 15 / 40 * (0.2 if kind in ("partitions", "overlay") else 0.1)
            for kind in ("sequence", "streams", "priority", "partitions", "overlay")
        },
    ),
    "a late autotuner": partial(
        World, times=of_kinds(partitions=1.06), late={"partitions": 1 / 1.08 / 1.06}, late_steps=400
    ),
    "slow after others": partial(World, times=LOSES, after={"partitions": 1.09}, after_s=0.1),
    "slow after others, short": partial(World, times=LOSES, after={"partitions": 1.09}, after_s=0.05),
    "boost": partial(World, times=of_kinds(partitions=1.03), after={"partitions": 1 / 1.11}, after_s=0.1),
    "boost, 2.5 s": partial(World, times=of_kinds(partitions=1.03), after={"partitions": 1 / 1.11}, after_s=2.5),
    "levels wander, 3 s": partial(World, wander=0.03, wander_s=3.0),
    "levels wander, 8 s": partial(World, wander=0.03, wander_s=8.0),
    "levels wander, 30 s": partial(World, wander=0.03, wander_s=30.0),
}


def one_best(gain: float) -> dict[Key, float]:
    """One partition gains, its neighbours a third as much, and everything else nothing."""
    third = math.exp(-math.log(gain) / 3)
    near = {("partitions", 8, 0), ("partitions", 24, 0)}
    return {key: 1 / gain if key == BEST else third if key in near else 1.0 for key in CONTESTANTS}


for _gain in (1.25, 1.5, 3.0):
    for _noise in (0.004, 0.05, 0.2):
        _plain = {"times": one_best(_gain), "noise": _noise}
        for _name, _options in {
            "": {},
            ", stalls 0.3%": {"stalls": 0.003, "stall": 5.0},
            ", stalls 0.7%": {"stalls": 0.007, "stall": 5.0},
            ", stalls 1.5%": {"stalls": 0.015, "stall": 5.0},
            ", slow first steps": {"slow": 2.0, "slow_steps": 5},
        }.items():
            _world = f"gain {_gain:g}, noise {_noise:.1%}{_name}"
            WORLDS[_world] = partial(World, **_plain, **_options)
            ANSWERED.add(_world)
for _step, _noise in ((0.15, 0.1), (0.4, 0.03)):
    _world = f"gain 1.3, steps of {_step:g} s"
    WORLDS[_world] = partial(World, times=one_best(1.3), noise=_noise, step_s=_step)
    ANSWERED.add(_world)

LATE = {"noise": 0.2, "share": 0.99, "step_s": 2e-3}
WORLDS |= {
    "p99, stalls in 0.7% of the calls": partial(
        World, **LATE, stalls=0.007, stall=10.0, state={"only others stall": True}
    ),
    "p99, gain 3": partial(World, **LATE, times={BEST: 1 / 3}),
    "p99, gain 1.5, rounds differ by 20%": partial(World, **LATE, times={BEST: 1 / 1.5}, batches=lognormal(0.2)),
}
ANSWERED |= {"p99, gain 3"}


# ---- outcomes


@dataclass(frozen=True)
class Outcome:
    """A run of the tuner in a world, and what the truth says of it.

    regret: how much longer the choice takes than the best contestant, in truth; that of the best estimate where nothing
    is chosen. missed: by how much the interval misses the true gain.
    """

    verdict: Verdict[Key] | None
    raced: Raced[Key]
    regret: float
    missed: float
    seconds: float

    @property
    def answered(self) -> bool:
        return self.verdict is not None and self.verdict.choice is not None

    @property
    def sure(self) -> bool:
        return self.verdict is not None and self.verdict.sure

    @property
    def is_wrong(self) -> bool:
        return self.sure and (self.regret > REGRET or self.missed > MISSED)

    @property
    def is_right(self) -> bool:
        return self.answered and self.regret <= REGRET


def run_in(world: World, *, budget_s: float = 60.0, seed: int = 0, fresh: bool = True) -> Outcome:
    """The race, the finals and the verdict in a world, as overlap() runs them."""
    chance = random.Random(seed)
    began, until = world.now, world.now + budget_s
    share = world.share
    world.state = dict(world.state)

    def cost(samples: list[Sample]) -> float:
        if share is None:
            return step_cost(samples)
        return quantile([one for sample in samples for one in sample.latencies], share)

    raced = race(
        world.contestants,
        world.run,
        lambda: world.now,
        until=until,
        unit=Amount(BATCH_S) if share is None else Amount(0.0, 200),
        warm_s=min(0.2, budget_s / 300) if share is None else 0.0,
        cost=cost,
        kind=kind_of,
        chance=chance,
    )
    verdict = None
    if SEQUENCE in raced.samples and raced.finalists:
        finalists = [key for key in world.contestants if key == SEQUENCE or key in raced.finalists]
        verdict = finals(
            finalists,
            world.run,
            lambda: world.now,
            until=until,
            block_s=budget_s / 20,
            calls=0 if share is None else least_calls(share),
            cost=lambda key: cost(raced.samples[key][-1]),
            step_s=lambda key: step_cost(raced.samples[key][-1]),
            verdict=lambda blocks, lengths: judge(
                blocks,
                finalists,
                share=share,
                lengths=lengths,
                least_s=0.8 * budget_s / 20,
                complete=not raced.untried,
            ),
            chance=chance,
        )
    chosen = SEQUENCE
    if verdict is not None:
        chosen = verdict.choice if verdict.choice is not None else verdict.best
    truth = world.true_s(SEQUENCE) / world.true_s(chosen)
    best = min(map(world.true_s, world.contestants))
    missed = 0.0
    if verdict is not None:
        missed = max(verdict.low / truth - 1, truth / verdict.high - 1, 0.0)
    return Outcome(verdict, raced, world.true_s(chosen) / best - 1, missed, world.now - began)


def outcomes(name: str, runs: int, seed: int = 7) -> list[Outcome]:
    """The outcomes of so many runs in a world."""
    numbers = random.Random(f"{name} {seed}")
    found = []
    for _ in range(runs):
        chance = random.Random(numbers.randrange(2**32))
        found.append(run_in(WORLDS[name](chance), seed=numbers.randrange(2**32)))
    return found


def row_of(name: str, found: list[Outcome]) -> dict[str, Any]:
    runs = len(found)
    return {
        "world": name,
        "runs": runs,
        "wrong": sum(one.is_wrong for one in found),
        "sure": sum(one.sure for one in found),
        "answered": sum(one.answered for one in found),
        "right": sum(one.is_right for one in found),
        "chosen_and_wrong": sum(one.answered and not one.is_right for one in found),
        "seconds": round(sum(one.seconds for one in found) / runs, 1),
    }


def is_bad(row: dict[str, Any]) -> bool:
    """More wrong than one of 200, too few answers, or sure where a world changes slowly."""
    many = row["runs"] >= 200
    if row["wrong"] > (row["runs"] // 200 if many else 1):
        return True
    if row["world"] in ANSWERED and row["right"] < 0.9 * row["runs"]:
        return True
    return row["world"] in SLOW and row["sure"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--world", choices=list(WORLDS), action="append")
    parser.add_argument("--out", type=Path, help="write the rows as JSON to this file")
    arguments = parser.parse_args()
    rows = []
    began = time.perf_counter()
    for name in arguments.world or WORLDS:
        row = row_of(name, outcomes(name, arguments.runs, arguments.seed))
        rows.append(row)
        print(
            f"{name:45} wrong {row['wrong']:3}, sure {row['sure']:3}, answered {row['answered']:3}, "
            f"right {row['right']:3} of {row['runs']}; chosen and wrong {row['chosen_and_wrong']:3}; {row['seconds']} s"
            f"{'  BAD' if is_bad(row) else ''}",
            flush=True,
        )
    print(f"{len(rows)} worlds in {time.perf_counter() - began:.0f} s")
    if arguments.out is not None:
        write_result({"_what": "The tuner in worlds, written by tests/tune/worlds.py", "rows": rows}, arguments.out)
    return 1 if any(map(is_bad, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
