"""Synthetic worlds for the tuner: plans have known true times, batches come from a model of noise, and time is virtual.

    python tests/tune/worlds.py [--runs 200] [--seed 7] [--truth NAME] [--noise NAME] [--jobs 1] [--out FILE]

runs the tuner so many times in each world, and prints how often it is wrong although it is sure, how often something
wins that is no better, the regret, and how often the interval of the gain covers the truth. The search, its rounds and
its statistics are the real ones. The seed is fixed, so the outcome is the same in each run; test_worlds.py runs a
sample.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import cuda_software_driver
from cuda_gctx import Device, tune
from cuda_gctx._core import clock
from cuda_gctx.measure.results import write_result
from cuda_gctx.measure.statistics import NOISE, quantile
from cuda_gctx.tune import Plan, Report, TailLatency, Throughput, _batches, _final, _measure, _search
from cuda_gctx.tune._measurement import Sample
from cuda_gctx.tune._objectives import Objective
from cuda_gctx.tune._work import PartFacts

STEP_S = 4e-3  # in sequence
WRONG = 0.02
Truth = Callable[[str, dict[str, int]], float]
Noise = Callable[["World"], float]


@dataclass
class World:
    """True times of plans by their kind and SM counts, and noise; both as factors of the time in sequence.

    luck: the deviation of a factor that belongs to an opening of a plan, for as long as it is open. threads: that of a
    factor that belongs to host threads, as long as they live; work that they enqueue is launch-bound.
    """

    truth: Truth
    noise: Noise
    random: random.Random
    luck: float = 0.0
    threads: float = 0.0
    step_s: float = STEP_S
    now: float = 1000.0
    batches: int = 0
    state: dict[str, float] = field(default_factory=dict)
    # By the identity of a trial or of threads, which is kept so that no other one gets it.
    lucks: dict[int, tuple[object, float]] = field(default_factory=dict)

    def true_s(self, kind: str, sms: dict[str, int]) -> float:
        return self.step_s * self.truth(kind, sms)

    def of_trial(self, trial: _batches.Trial) -> float:
        """The time of an open plan, its luck included."""
        kind = trial.name.kind if isinstance(trial.name, Plan) else "alone"
        luck = self.luck_of(trial, self.luck) if kind != "alone" else 1.0
        return luck * self.true_s(kind, {name: s.resources.sm.sm_count for name, s in trial.streams.items()})

    def luck_of(self, thing: object, deviation: float) -> float:
        """A factor that a thing keeps."""
        luck = math.exp(self.random.gauss(0, deviation)) if deviation else 1.0
        _, luck = self.lucks.setdefault(id(thing), (thing, luck))
        return luck

    def batch(self, trial: _batches.Trial, steps: int, hosts: object = None) -> Sample:
        seconds = self.of_trial(trial) * self.noise(self)
        if hosts is not None and len(trial.parts) > 1 and not trial.in_sequence:
            seconds *= self.luck_of(hosts, self.threads)
        self.now += steps * seconds + 0.0005
        self.batches += 1
        return Sample(seconds, bool(self.threads), seconds if self.threads else 1e-5, steps=steps)


class Unread:
    """A clock that nobody reads."""

    is_done, sm_clock_mhz = True, None

    def __init__(self, device: Device) -> None: ...

    def __enter__(self) -> Unread:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Nature:
    """What a plan of some kind does, step by step or call by call; the time in sequence at full clocks is 1.

    speed: the time of a step at full clocks. heat: by how much it is slower when the plan has heated the chip.
    stalls, stall: the share of steps or calls that stall, and how many times as long these take. slow_steps, slow: the
    number of first steps of an opening that take longer, and how many times as long.
    """

    speed: float = 1.0
    heat: float = 0.0
    stalls: float = 0.0
    stall: float = 1.0
    slow_steps: int = 0
    slow: float = 1.0


@dataclass
class Stepwise(World):
    """A world of steps and calls, in which plans differ by more than a factor.

    natures: by kind of plan, or "best partition" for one size. heats_s: the time in which the chip gets hot or cold.
    modes: how many times as long steps take while clocks are low, which changes every few seconds. objective: of the
    tuner. alone_s: what a call of the critical part takes, for a latency.
    """

    natures: dict[str, Nature] = field(default_factory=dict)
    heats_s: float = 1.0
    modes: float = 1.0
    deviation: float = 0.005
    objective: Objective = "makespan"
    hot: float = 0.0
    mode_until: float = 0.0
    is_low: bool = False
    steps_of: dict[int, int] = field(default_factory=dict)

    def nature(self, kind: str, sms: dict[str, int]) -> Nature:
        one = "best partition" if kind == "partitions" and min(sms.values()) == 16 else kind
        if kind == "alone":
            return Nature(0.5)
        return self.natures.get(one, self.natures.get(kind, Nature(1.05 if kind in ("overlay", "partitions") else 1.0)))

    def true_s(self, kind: str, sms: dict[str, int]) -> float:
        """What the objective minimizes, if the plan runs all the time."""
        nature = self.nature(kind, sms)
        base = self.step_s * nature.speed * (1 + nature.heat)
        if isinstance(self.objective, TailLatency):
            late = 1 - self.objective.quantile
            return base * (nature.stall if nature.stalls > late else math.exp(self.deviation * 2.33))
        if isinstance(self.objective, Throughput):
            return base * (1 + nature.stalls * (nature.stall - 1))
        return base

    def of_trial(self, trial: _batches.Trial) -> float:
        kind = trial.name.kind if isinstance(trial.name, Plan) else "alone"
        nature = self.nature(kind, {name: s.resources.sm.sm_count for name, s in trial.streams.items()})
        return self.step_s * nature.speed

    def step(self, trial: _batches.Trial, nature: Nature) -> float:
        """Let a step pass; returns how long it took."""
        done = self.steps_of[id(trial)] = self.steps_of.get(id(trial), 0) + 1
        if self.modes > 1 and self.now > self.mode_until:
            self.mode_until, self.is_low = self.now + self.random.expovariate(0.5), self.random.random() < 0.5
        seconds = self.step_s * nature.speed * (1 + self.hot) * math.exp(self.random.gauss(0, self.deviation))
        seconds *= self.modes if self.is_low else 1.0
        seconds *= nature.slow if done <= nature.slow_steps else 1.0
        seconds *= nature.stall if nature.stalls and self.random.random() < nature.stalls else 1.0
        self.hot += (nature.heat - self.hot) * (1 - math.exp(-seconds / self.heats_s))
        self.now += seconds
        return seconds

    def warm(self, trial: _batches.Trial) -> None:
        self.lucks.setdefault(id(trial), (trial, 1.0))  # so that no other one gets its identity
        self.batch(trial, 3)
        trial.step_s, trial.host_s = self.of_trial(trial), 1e-5

    def batch(self, trial: _batches.Trial, steps: int, hosts: object = None) -> Sample:
        kind = trial.name.kind if isinstance(trial.name, Plan) else "alone"
        nature = self.nature(kind, {name: s.resources.sm.sm_count for name, s in trial.streams.items()})
        self.batches += 1
        self.now += 0.0005
        if not isinstance(self.objective, TailLatency):
            taken = [self.step(trial, nature) for _ in range(steps)]
            return Sample(sum(taken) / steps, False, 1e-5, steps=steps)
        runner = _measure.Runner(self.objective, 0.0)
        runner.alone_s["a"] = self.step_s / 2
        calls = [self.step(trial, nature) for _ in range(runner.calls_of_batch(trial.parts[0], [], self.objective)[0])]
        return Sample(quantile(calls, self.objective.quantile), latencies=tuple(calls), calls={"b": (len(calls), 1.0)})


HOT = {"streams": Nature(1 / 1.05, 0.09), "priority": Nature(1 / 1.03, 0.09)}
RARE = {kind: Nature(1 / 1.05, stalls=1 / 250, stall=50.0) for kind in ("streams", "priority")}
# By name: plans, other properties of the world.
STEPWISE: dict[str, dict[str, Any]] = {
    "power, 1 s": {"natures": HOT},
    "power, 0.1 s": {"natures": HOT, "heats_s": 0.1},
    "a cool partition": {"natures": {**HOT, "best partition": Nature(1 / 1.025)}},
    "rare stalls": {"natures": RARE},
    "slow start": {"natures": {"partitions": Nature(1 / 1.12, slow_steps=50, slow=1.6)}},
    "two clocks": {"natures": {"streams": Nature(1 / 1.05)}, "modes": 1.08},
    "two clocks, no gain": {"natures": {}, "modes": 1.08},
    "a partition is best": {"natures": {"streams": Nature(1 / 1.04), "best partition": Nature(1 / 1.1)}},
}
LATE = {kind: Nature(0.92, stalls=1 / 60, stall=3.0) for kind in ("streams", "priority")}
LATENCIES: dict[str, dict[str, Any]] = {
    "calls of 10 ms": {"natures": LATE, "step_s": 0.01},
    "calls of 50 ms": {"natures": LATE, "step_s": 0.05},
    "calls of 150 ms": {"natures": LATE, "step_s": 0.15},
    "calls of 2 ms, a gain": {"natures": {"streams": Nature(0.8)}, "step_s": 0.002},
}
OBJECTIVES: dict[str, Objective] = {
    "makespan": "makespan",
    "rate": Throughput(a=1, b=1),
    "latency": TailLatency("a", closed_loop=True),
}


def stepwise(name: str, objective: str, chance: random.Random) -> Stepwise:
    """One of the worlds of steps."""
    options = {**STEPWISE, **LATENCIES}[name]
    return Stepwise(TRUTHS["nothing_to_gain"], lognormal(0.0), chance, objective=OBJECTIVES[objective], **options)


@contextmanager
def inhabited(world: World) -> Iterator[None]:
    """A block in which the tuner measures a world."""

    def batch(self: Any, trial: Any, shape: Any) -> Any:
        self.demand_time()
        return world.batch(trial, self._affordable(trial, shape.steps), self.hosts)

    def warm(self: Any, trial: Any) -> None:
        if isinstance(world, Stepwise):
            world.warm(trial)
            return
        trial.step_s, trial.host_s = world.of_trial(trial), 1e-5
        world.now += 3 * trial.step_s + 0.006 if trial.step_s < _measure.BATCH_S else trial.step_s

    def profile(self: Any, trial: Any) -> Any:
        world.now += min(10, self.steps_for(trial)) * trial.step_s
        return [{part.name: (0.0, trial.step_s) for part in trial.parts}]

    def examine(part: Any, stream: Any, demand_time: Any) -> PartFacts:
        world.now += 0.05
        return PartFacts(1e-3, 1e-3 if world.threads else 1e-5, False)

    with ExitStack() as patches:
        for target, name, replacement in (
            (_measure.Runner, "batch", batch),
            (_measure.Runner, "warm", warm),
            (_measure.Runner, "profile", profile),
            (_search, "examine", examine),
            (clock, "now", lambda: world.now),
            (_final, "is_simulated", lambda device: False),
            (_final, "ClockReading", Unread),
        ):
            patches.enter_context(patch.object(target, name, replacement))
        yield


def measured(world: World, device: Device, **options: Any) -> Report:
    """Run the tuner in a world."""
    parts: dict[str, Any] = {"a": lambda stream: None, "b": lambda stream: None}
    options = {"sizes": [8, 16, 32, 64], **options}
    with inhabited(world):
        seed = world.random.randrange(2**32)
        return tune.overlap(**parts, device=device, seed=seed, progress=False, library_sms="off", **options)


# ---- worlds


def nothing_to_gain(kind: str, sms: dict[str, int]) -> float:
    return 0.5 if kind == "alone" else 1.0


def almost_a_gain(kind: str, sms: dict[str, int]) -> float:
    """All plans are faster than the sequence by a little less than what counts as noise."""
    return 0.5 if kind == "alone" else 1.0 if kind == "sequence" else 1 / 1.009


def all_are_slower(kind: str, sms: dict[str, int]) -> float:
    """All plans are slower than the sequence, by a little more than what counts as noise."""
    return 0.5 if kind == "alone" else 1.0 if kind == "sequence" else 1.015


def streams_gain_a_little(kind: str, sms: dict[str, int]) -> float:
    return {"alone": 0.5, "sequence": 1.0, "streams": 1 / 1.03}.get(kind, 1.02)


def one_partition_is_best(kind: str, sms: dict[str, int]) -> float:
    """Streams gain 8%, and one size of partitions 15%."""
    if kind in ("partitions", "overlay"):
        return 1 / 1.15 if kind == "partitions" and min(sms.values()) == 16 else 1.1
    return {"alone": 0.5, "sequence": 1.0, "streams": 1 / 1.08, "priority": 1.02}[kind]


def many_are_equal(kind: str, sms: dict[str, int]) -> float:
    """All partitions gain 10%, whatever their sizes."""
    return {"alone": 0.5, "sequence": 1.0, "partitions": 1 / 1.1, "overlay": 1 / 1.1}.get(kind, 1.02)


def one_overlay_is_best(kind: str, sms: dict[str, int]) -> float:
    """Partitions gain 6%, and one overlay 12%."""
    if kind == "overlay":
        return 1 / 1.12 if min(sms.values()) in range(98, 108) else 1.08
    return {"alone": 0.5, "partitions": 1 / 1.06}.get(kind, 1.0)


def sizes_make_a_bowl(kind: str, sms: dict[str, int]) -> float:
    if kind == "partitions":
        return 0.8 + 0.1 * abs(math.log2(min(sms.values()) / 32))
    return 0.5 if kind == "alone" else 1.0


TRUTHS: dict[str, Truth] = {
    truth.__name__: truth
    for truth in (
        nothing_to_gain,
        almost_a_gain,
        all_are_slower,
        streams_gain_a_little,
        one_partition_is_best,
        many_are_equal,
        one_overlay_is_best,
        sizes_make_a_bowl,
    )
}
# Here, no plan is better than the sequence.
WITHOUT_A_GAIN = ("nothing_to_gain", "all_are_slower")


# ---- noises


def lognormal(deviation: float) -> Noise:
    return lambda world: math.exp(world.random.gauss(0, deviation))


def outliers(deviation: float, share: float, factor: float) -> Noise:
    return lambda world: math.exp(world.random.gauss(0, deviation)) * (factor if world.random.random() < share else 1.0)


def heavy_tail(world: World) -> float:
    return 1 + 0.03 * (world.random.paretovariate(1.5) - 1)


def both_tails(world: World) -> float:
    """Student's t with two degrees of freedom, which has no variance."""
    spread = math.sqrt(sum(world.random.gauss(0, 1) ** 2 for _ in range(2)) / 2)
    return max(0.3, 1 + 0.01 * world.random.gauss(0, 1) / spread)


def wandering(deviation: float, seconds: float) -> Noise:
    """Noise that is alike for so many seconds."""

    def noise(world: World) -> float:
        keep = math.exp(-(world.now - world.state.get("then", 0.0)) / seconds)
        at = world.state.get("at", 0.0) * keep + math.sqrt(1 - keep**2) * world.random.gauss(0, deviation)
        world.state.update(at=at, then=world.now)
        return math.exp(at + world.random.gauss(0, 0.002))

    return noise


def two_levels(world: World) -> float:
    """Batches at one of two levels, 10% apart."""
    return math.exp(world.random.gauss(0, 0.005)) * (1.1 if world.random.random() < 0.5 else 1.0)


def drift(world: World) -> float:
    """Clocks that go down by half a percent each second."""
    return (1 + 0.005 * (world.now - 1000)) * math.exp(world.random.gauss(0, 0.005))


def throttling(world: World) -> float:
    return math.exp(world.random.gauss(0, 0.005)) * (1.08 if world.now % 2.0 < 1.0 else 1.0)


class Disturbance(NamedTuple):
    """The noise of batches, the luck of openings, and that of host threads."""

    noise: Noise
    luck: float = 0.0
    threads: float = 0.0


NOISES: dict[str, Disturbance] = {
    "0.3%": Disturbance(lognormal(0.003)),
    "1%": Disturbance(lognormal(0.01)),
    "3%": Disturbance(lognormal(0.03)),
    "10%": Disturbance(lognormal(0.1)),
    "outliers": Disturbance(outliers(0.01, 0.1, 3.0)),
    "heavy tail": Disturbance(heavy_tail),
    "two tails": Disturbance(both_tails),
    "two levels": Disturbance(two_levels),
    "wandering": Disturbance(wandering(0.03, 1.0)),
    "wandering 10 s": Disturbance(wandering(0.05, 10.0)),
    "drift": Disturbance(drift),
    "throttling": Disturbance(throttling),
    "luck 0.5%": Disturbance(lognormal(0.003), 0.005),
    "luck 2%": Disturbance(lognormal(0.003), 0.02),
    "luck 2%, 3%": Disturbance(lognormal(0.03), 0.02),
    "threads 15%": Disturbance(lognormal(0.01), threads=0.15),
}


# ---- outcomes


@dataclass(frozen=True)
class Outcome:
    """A run: whether the choice was called sure, the regret (how much longer it takes in truth than the best plan that
    was measured), the margin, whether the interval of the gain covers the truth, and whether a plan won.
    """

    sure: bool
    regret: float
    margin: float
    covered: bool
    won: bool
    batches: int
    seconds: float

    @property
    def is_wrong(self) -> bool:
        """Called sure, and worse than the best by more than 2%."""
        return self.sure and self.regret > WRONG


def outcome_of(world: World, report: Report) -> Outcome:
    def true_s(result: Any) -> float:
        return world.true_s(result.plan.kind, {name: part.sm_count for name, part in result.parts.items()})

    chosen = true_s(report.result(report.choice))
    gain = world.true_s("sequence", {}) / chosen
    return Outcome(
        sure=report.sure,
        regret=chosen / min(map(true_s, report.results)) - 1,
        margin=report.margin,
        covered=report.gain_low - 1e-9 <= gain <= report.gain_high + 1e-9,
        won=report.choice.kind != "sequence",
        batches=world.batches,
        seconds=world.now - 1000,
    )


def outcomes(device: Device, truth: str, noise: str, runs: int, seed: int = 7, first: int = 0) -> list[Outcome]:
    """The outcomes of so many runs, from a first one on. Worlds of steps have the name of an objective in place of a
    noise.
    """
    numbers = random.Random(f"{truth} {noise} {seed}")
    found = []
    for chance in [numbers.randrange(2**32) for _ in range(first + runs)][first:]:
        if noise in OBJECTIVES:
            steps = stepwise(truth, noise, random.Random(chance))
            found.append(outcome_of(steps, measured(steps, device, objective=steps.objective)))
            continue
        model, luck, threads = NOISES[noise]
        world = World(TRUTHS[truth], model, random.Random(chance), luck, threads)
        found.append(outcome_of(world, measured(world, device)))
    return found


@dataclass(frozen=True)
class Row:
    """What the runs of one world amount to; shares are of all runs."""

    truth: str
    noise: str
    runs: int
    sure: float
    sure_but_wrong: float
    won: float
    false_wins: float
    median_regret: float
    largest_regret: float
    covered: float
    median_margin: float
    seconds: float

    @classmethod
    def of(cls, truth: str, noise: str, found: list[Outcome]) -> Row:
        runs = len(found)
        wins = sum(one.won for one in found)
        return cls(
            truth=truth,
            noise=noise,
            runs=runs,
            sure=sum(one.sure for one in found) / runs,
            sure_but_wrong=sum(one.is_wrong for one in found) / runs,
            won=wins / runs,
            false_wins=wins / runs if truth in WITHOUT_A_GAIN else 0.0,
            median_regret=median(one.regret for one in found),
            largest_regret=max(one.regret for one in found),
            covered=sum(one.covered for one in found) / runs,
            median_margin=median(one.margin for one in found),
            seconds=median(one.seconds for one in found),
        )


# All worlds are run so many times before any is run more often: a campaign can be ended at any time.
RUNS_AT_ONCE = 25


def all_worlds() -> list[tuple[str, str]]:
    """Truth and noise of each world, or name and objective."""
    steps = [(name, objective) for name in STEPWISE for objective in ("makespan", "rate")]
    return [*product(TRUTHS, NOISES), *steps, *((name, "latency") for name in LATENCIES)]


def runs_of(truth: str, noise: str, runs: int, seed: int, first: int) -> list[Outcome]:
    """Runs in one world, on a simulated machine of its own."""
    with warnings.catch_warnings(), cuda_software_driver.session("h200", driver="13.0", check=False):
        warnings.simplefilter("ignore")
        return outcomes(Device(0), truth, noise, runs, seed, first)


def written(rows: list[Row], seed: int, path: Path) -> None:
    result = {
        "_what": "The tuner in synthetic worlds, written by tests/tune/worlds.py",
        "seed": seed,
        "smallest_margin": NOISE,
        "rows": [asdict(row) for row in rows],
    }
    write_result(result, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--truth", choices=[*TRUTHS, *STEPWISE, *LATENCIES], action="append")
    parser.add_argument("--noise", choices=[*NOISES, *OBJECTIVES], action="append")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--out", type=Path, help="write the rows as JSON, each time that all worlds had so many runs")
    arguments = parser.parse_args()
    wanted = [
        (truth, noise)
        for truth, noise in all_worlds()
        if truth in (arguments.truth or [truth]) and noise in (arguments.noise or [noise])
    ]
    found: dict[tuple[str, str], list[Outcome]] = {}
    rows: list[Row] = []
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as processes:
        for runs in [*range(RUNS_AT_ONCE, arguments.runs, RUNS_AT_ONCE), arguments.runs]:
            started = {}
            for world in wanted:
                done = len(found.setdefault(world, []))
                if done < runs:
                    started[world] = processes.submit(runs_of, *world, runs - done, arguments.seed, done)
            for (truth, noise), job in started.items():
                found[truth, noise] += job.result()
            rows = [Row.of(*world, found[world][:runs]) for world in wanted]
            if arguments.out is not None:
                written(rows, arguments.seed, arguments.out)
            print(f"{runs} runs of each of {len(rows)} worlds", flush=True)
    for row in rows:
        print(
            f"{row.truth:22} {row.noise:15} sure {row.sure:6.1%}, wrong {row.sure_but_wrong:5.1%}; "
            f"won {row.won:6.1%}, false {row.false_wins:5.1%}; "
            f"regret {row.median_regret:5.1%} to {row.largest_regret:5.1%}; "
            f"covered {row.covered:6.1%}; margin {row.median_margin:.1%}; {row.seconds:.1f} s"
        )
    bad = [row for row in rows if row.sure_but_wrong > 0.02 or row.false_wins > 0.01]
    for row in bad:
        print(f"FAILED: {row.truth}, {row.noise}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
