"""``overlap``: find the fastest way to run several pieces of work concurrently."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf, lcm
from typing import Literal

from cuda_gctx._core import clock
from cuda_gctx._core.extension import Device, FeatureNotSupported, Stream, as_int, as_seconds
from cuda_gctx.measure.statistics import quantile
from cuda_gctx.partitions import PartitionSize, partition_sizes
from cuda_gctx.tune._bench import BATCH_S, Bench, NoMemory
from cuda_gctx.tune._guard import Sitting, device_of, place_and_date, sitting
from cuda_gctx.tune._judge import Block, Sample, Verdict, judge, least_calls
from cuda_gctx.tune._objectives import Objective, TailLatency, checked, critical_part, weight_of
from cuda_gctx.tune._parts import (
    LAUNCHES,
    PartFacts,
    demand_choice,
    examine,
    libraries_loaded,
    naming,
    parts_of,
    ways_of,
)
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._queue import Calls, computed_latencies, latencies_at_rate
from cuda_gctx.tune._race import Amount, Excluded, Raced, finals, race, step_cost
from cuda_gctx.tune._reasons import reasons
from cuda_gctx.tune._report import Report, Result
from cuda_gctx.tune._space import Space

__all__ = ["overlap"]

TOO_SHORT = "budget_s={:g} is too short to measure each part alone and the sequence: increase it"
# The calls of a first sample: a few beyond the quantile, within these limits.
RACE_CALLS, LEAST_RACE_CALLS, BEYOND = 200, 50, 2
# A contestant runs for so long before its first sample, or for a share of the budget.
WARM_S, WARM_SHARE = 0.2, 1 / 300
# A block of this share of the budget makes a small gain sure; some of it does not count.
BLOCK_SHARE, COUNTED = 1 / 20, 0.8
# A latency counts as so much longer if the other parts get nothing done: a quantile of a short sample differs by as
# much between plans that are alike, and of these, the plan that leaves other parts most races on.
BULK_WEIGHT = 0.5


def overlap(
    *work: Callable[[Stream], object],
    also: Mapping[str, Callable[[Stream], object]] | None = None,
    device: Device | None = None,
    objective: Objective = "makespan",
    sizes: Iterable[int] | None = None,
    library_sms: Literal["off", "on", "auto"] = "auto",
    launch: Literal["calls", "graphs"] = "calls",
    budget_s: float = 60.0,
    progress: bool | None = None,
    seed: int = 0,
    **named: Callable[[Stream], object],
) -> Report:
    """Find the fastest way to run two or more parts: in sequence, on streams, or in partitions of which sizes.

    A part is a function that enqueues work on the Stream that it receives, and returns without waiting. That stream is
    the current stream of torch and CuPy during the call. Parts have the names of their functions, or the keywords by
    which they are passed.

    work, named: the parts, by position or by name.
    also: further ways to do the work of all parts, by name. Each is a function of a stream, and does the work of one
    step: one call of every part, or all calls of a mix.
    device: the device to measure; None: device 0.
    objective: "makespan" (the time of a step in which all parts start together and are waited for),
    Throughput(control=8, bulk=1), or TailLatency("control", quantile=0.99).
    sizes: the SM counts to try for partitions, instead of a few that are far apart.
    library_sms: whether to set the SM count hint of libraries in partitions; "auto" measures both if torch or CuPy is
    imported.
    launch: "calls" calls each function; "graphs" captures each part once on each of its streams, and replays it.
    budget_s: the longest time to measure, in seconds; one step may exceed it.
    progress: whether to show progress on stderr; None: if stderr is a terminal.
    seed: the seed of the random order in which plans are measured.

    Every plan is measured once before any is measured twice. Where the evidence does not decide, `choice` is None.

    Ctrl-C ends the measurement and returns the results so far. Raises PartError if a part raises or works on another
    stream, RuntimeError during a capture and if the budget is too short to measure each part alone and the sequence,
    and ValueError for invalid arguments.

    Example:

        from cuda_gctx import tune

        def bulk(stream):
            tune.spin(stream, blocks=464, spin_ns=1_000_000)

        def control(stream):
            for _ in range(15):
                tune.spin(stream, blocks=32, spin_ns=100_000)

        report = tune.overlap(bulk, control, budget_s=2)
        print(report)  # the choice, its gain, and why
    """
    parts = parts_of(work, named)
    names = tuple(part.name for part in parts)
    ways = ways_of(also, names)
    objective = checked(objective, names)
    budget_s = as_seconds("budget_s", budget_s)
    seed = as_int("seed", seed)
    demand_choice("library_sms", library_sms, ("off", "on", "auto"))
    demand_choice("launch", launch, LAUNCHES)
    if library_sms == "on" and not libraries_loaded():
        raise ValueError('library_sms="on" needs torch or CuPy with a GPU, and neither is imported: import it first')
    device = device_of(device)
    with sitting(device, progress) as held:
        bench = Bench(device, parts, ways, objective, launch, held.closing, seed)
        bench.needs_hint = library_sms == "on"
        tuning = _Tuning(bench, held, budget_s, seed)
        notes: list[str] = []
        available: Sequence[PartitionSize]
        try:
            available = partition_sizes(device)
        except FeatureNotSupported as error:
            available, sizes = (), None
            notes.append(f"partitions were not measured: {error}")
        space = Space(device, names, sizes, available)
        notes += [
            f"{count} SMs were not tried: no layout for these parts fits with a partition of that size"
            for count in space.too_large()
        ]
        hints = {"off": (False,), "on": (True,), "auto": (False, True) if libraries_loaded() else (False,)}[library_sms]
        try:
            tuning.first_look()
            durations = {name: bench.alone_s[name] * weight_of(objective, name) for name in names}
            critical = critical_part(objective)
            urgent = names if critical is None else (critical,)
            tuning.run(space.contestants(durations, urgent, [way.name for way in ways], hints))
        except KeyboardInterrupt:
            tuning.interrupted = True
            if not tuning.can_answer:
                raise
        finally:
            bench.settle()
    if not tuning.can_answer:
        raise RuntimeError(TOO_SHORT.format(budget_s))
    return tuning.report(launch, notes)


class _Dropped(Exception):
    """A finalist cannot stay in the finals; the others can."""

    def __init__(self, plan: Plan, why: str) -> None:
        super().__init__(why)
        self.plan = plan


class _Tuning:
    """One measurement: the first look, the race and the finals, and what they have found so far."""

    def __init__(self, bench: Bench, held: Sitting, budget_s: float, seed: int) -> None:
        self.bench, self.objective = bench, bench.objective
        self.began, self.budget_s = clock.now(), budget_s
        self.until = self.began + budget_s
        self.facts: dict[str, PartFacts] = {}
        self.raced: Raced[Plan] = Raced()
        self.plans: list[Plan] = []
        self.blocks: dict[Plan, Sequence[Block]] = {}
        self.verdict: Verdict[Plan] | None = None
        self.interrupted = False
        self._held = held
        self._chance = random.Random(seed)

    @property
    def share(self) -> float | None:
        """The quantile of the latency, if the objective is one."""
        return self.objective.quantile if isinstance(self.objective, TailLatency) else None

    @property
    def least_rates(self) -> dict[str, float]:
        """The calls per second that other parts have to keep."""
        if not isinstance(self.objective, TailLatency) or not self.objective.others:
            return {}
        alone = self.bench.alone_s
        return {name: self.objective.others / s for name, s in alone.items() if name != self.objective.part}

    @property
    def can_answer(self) -> bool:
        return bool(self.plans) and self.plans[0] in self.raced.samples

    def _show(self, what: object) -> None:
        self._held.bar.show((clock.now() - self.began) / self.budget_s, f"measuring {what}")

    def first_look(self) -> None:
        """Call each part for the first times, and measure it alone."""
        stream = self._held.closing.enter_context(self.bench.device.create_stream())

        def demand_time() -> None:
            if clock.now() >= self.until:
                raise TimeoutError

        for part in self.bench.parts:
            self._show(part.name)
            with naming(f"{part.name} alone"):
                try:
                    facts = self.facts[part.name] = examine(part, stream, demand_time)
                except TimeoutError:
                    raise RuntimeError(TOO_SHORT.format(self.budget_s)) from None
                self.bench.call_s[part.name] = facts.host_s
                self.bench.period = lcm(self.bench.period, facts.period)
                alone = self.bench.alone(part, stream)
                self.bench.steps(alone, Amount())
                self.bench.alone_s[part.name] = self.bench.steps(alone, Amount(BATCH_S)).step_s

    def run(self, plans: Sequence[Plan]) -> None:
        """The race and the finals."""
        self.plans = list(plans)
        race(
            self.plans,
            self.bench.run,
            clock.now,
            until=self.until,
            unit=self._unit(),
            warm_s=min(WARM_S, self.budget_s * WARM_SHARE) if self.share is None else 0.0,
            cost=self.cost,
            kind=_kind,
            chance=self._chance,
            shown=self._show,
            found=self.raced,
        )
        while self.can_answer and self.raced.finalists and clock.now() < self.until:
            finalists = [plan for plan in self.plans if plan == self.plans[0] or plan in self.raced.finalists]
            finalists = sorted(finalists, key=self._complexity)
            try:
                finals(
                    finalists,
                    self._run_finalist,
                    clock.now,
                    until=self.until,
                    block_s=self.budget_s * BLOCK_SHARE,
                    calls=0 if self.share is None else least_calls(self.share),
                    cost=lambda plan: self.cost(self.raced.samples[plan][-1]),
                    step_s=lambda plan: step_cost(self.raced.samples[plan][-1]),
                    verdict=partial(self._judge, finalists),
                    chance=self._chance,
                    shown=lambda plan, seconds: self._show(f"{plan} for {seconds:.2g} s"),
                )
                return
            except _Dropped as error:
                if error.plan == self.plans[0]:
                    return
                self.raced.excluded[error.plan] = str(error)
                self.raced.finalists.remove(error.plan)
                self.raced.finalists += self._followers()[:1]

    def _run_finalist(self, plan: Plan, amount: Amount) -> Sample:
        try:
            return self.bench.run(plan, amount)
        except Excluded as error:
            raise _Dropped(plan, str(error)) from error

    def _followers(self) -> list[Plan]:
        """The plans that can take the place of a finalist, the best of the race first."""
        costs = {plan: self.cost(samples[-1]) for plan, samples in self.raced.samples.items()}
        gone = {self.plans[0], *self.raced.finalists, *self.raced.excluded}
        return sorted((plan for plan, cost in costs.items() if plan not in gone and cost < inf), key=costs.__getitem__)

    def _complexity(self, plan: Plan) -> tuple[object, ...]:
        """The smaller, the simpler the plan; of equally simple ones, the one that leaves other parts more."""
        kept = 0.0 if self.share is None else self._kept_share(self.raced.samples[plan][-1])
        return (*plan.complexity, -kept)

    def _unit(self) -> Amount:
        """The first counted sample of a plan."""
        if self.share is None:
            return Amount(BATCH_S)
        return Amount(0.0, min(RACE_CALLS, max(LEAST_RACE_CALLS, round(BEYOND / (1 - self.share)))))

    def cost(self, samples: Sequence[Sample]) -> float:
        """What the race minimizes; infinite for a plan that leaves other parts too little."""
        if self.share is None:
            return step_cost(samples)
        if any(one.rates.get(name, least) < least for one in samples for name, least in self.least_rates.items()):
            return inf
        return quantile(self._latencies(samples), self.share) * (1 + BULK_WEIGHT * (1 - self._kept_share(samples)))

    def _kept_share(self, samples: Sequence[Sample]) -> float:
        """The share of their rates alone that the other parts keep: that of the part that keeps least."""
        shares = [rate * self.bench.alone_s[name] for one in samples for name, rate in one.rates.items()]
        return min(1.0, *shares) if shares else 0.0

    def _latencies(self, samples: Sequence[Sample]) -> list[float]:
        """The latencies of race samples: computed for the rate, where they are of bursts."""
        assert isinstance(self.objective, TailLatency)
        bursts = [one for one in samples if isinstance(one, Calls) and one.idle]
        if not bursts:
            return list(chain.from_iterable(one.latencies for one in samples))
        idle = list(chain.from_iterable(one.idle for one in bursts))
        queued = list(chain.from_iterable(one.queued for one in bursts))
        return computed_latencies(idle, queued, self.bench.rate(self.objective), 4000, random.Random(0))[0]

    def _judge(self, finalists: Sequence[Plan], blocks: Mapping[Plan, Sequence[Block]], lengths: int) -> Verdict[Plan]:
        doubts: list[str] = []
        settled = dict(blocks)
        if isinstance(self.objective, TailLatency) and not self.objective.closed_loop:
            rate, least = self.bench.rate(self.objective), least_calls(self.objective.quantile)
            for plan, pairs in blocks.items():
                found = latencies_at_rate(pairs, rate, least)  # type: ignore[arg-type]
                settled[plan] = found.blocks
                if not found.enough:
                    doubts.append(f"too few calls arrived in a block ({plan})")
        self.blocks |= settled
        # Kept for an interruption of longer blocks.
        self.verdict = judge(
            settled,
            finalists,
            share=self.share,
            least_rates=self.least_rates,
            lengths=lengths,
            least_s=COUNTED * self.budget_s * BLOCK_SHARE,
            complete=not self.untried,
            doubts=doubts,
        )
        greedy = next((plan for plan in self.verdict.refused if plan != self.plans[0]), None)
        if greedy is not None and self._followers():
            raise _Dropped(greedy, "other parts keep less of their rate than the objective demands")
        return self.verdict

    # ---- the report

    @property
    def untried(self) -> list[Plan]:
        """The plans without a counted sample, of those that can run."""
        tried = self.raced.samples.keys() | {p for p, why in self.raced.excluded.items() if why != NO_MEMORY}
        return [plan for plan in self.plans if plan not in tried]

    def report(self, launch: str, notes: Sequence[str]) -> Report:
        """What was found."""
        bench, verdict = self.bench, self.verdict
        results = sorted(map(self._result, self.raced.samples), key=lambda one: (not one.keeps, one.relative))
        best = verdict.best if verdict is not None else results[0].plan
        gain = verdict.gain if verdict is not None else 1 / results[0].relative
        weighted = {name: alone_s * weight_of(self.objective, name) for name, alone_s in bench.alone_s.items()}
        critical = critical_part(self.objective)
        complete = not self.untried and not self.interrupted
        report = Report(
            choice=verdict.choice if verdict is not None else None,
            best=best,
            objective=self.objective,
            gain=gain,
            gain_low=verdict.low if verdict is not None else None,
            gain_high=verdict.high if verdict is not None and verdict.high < inf else None,
            loses=max(0.0, verdict.loses) if verdict is not None and complete else None,
            sure=verdict is not None and verdict.sure and complete,
            complete=complete,
            horizon_s=verdict.horizon_s if verdict is not None else None,
            untried=tuple(self.untried),
            results=tuple(results),
            alone=dict(bench.alone_s),
            bound=max(weighted.values()) if critical is None else weighted[critical],
            launch=launch,
            reasons=(),
            **place_and_date(bench.device),
        )
        return replace(report, reasons=(*reasons(report, self.facts, verdict, self.budget_s), *self._events(), *notes))

    def _events(self) -> list[str]:
        """What failed, and was left out."""
        by_reason: dict[str, list[Plan]] = {}
        for plan, why in self.raced.excluded.items():
            by_reason.setdefault(why, []).append(plan)
        return [
            f"{plans[0]}{f' and {len(plans) - 1} more' if len(plans) > 1 else ''} excluded: {why}"
            for why, plans in by_reason.items()
        ]

    def _result(self, plan: Plan) -> Result:
        """The measurement of a plan: in the blocks of the finals if it took part in them, otherwise in the race."""
        in_finals = plan in self.blocks and self.blocks[plan]
        samples = list(chain.from_iterable(self.blocks[plan])) if in_finals else self.raced.samples[plan][-1]
        base = list(chain.from_iterable(self.blocks[self.plans[0]])) if in_finals else None
        base = base if base is not None else self.raced.samples[self.plans[0]][0]
        seconds, sequence = self._seconds(samples), self._seconds(base)
        latencies = [] if self.share is None else self._latencies(samples)
        rates = {name: sum(one.rates.get(name, 0.0) for one in samples) / len(samples) for name in samples[0].rates}
        return Result(
            plan=plan,
            seconds=seconds,
            relative=seconds / sequence,
            finalist=bool(in_finals),
            p50=quantile(latencies, 0.5) if latencies else None,
            rates=rates,
            keeps=all(rates.get(name, least) >= least for name, least in self.least_rates.items()),
            launch_bound=2 * sum(one.launch_bound for one in samples) > len(samples),
        )

    def _seconds(self, samples: Sequence[Sample]) -> float:
        if self.share is None:
            return sum(one.seconds for one in samples) / sum(one.steps for one in samples)
        return quantile(self._latencies(samples), self.share)


NO_MEMORY = str(NoMemory("no device memory is left for its contexts"))


def _kind(plan: Plan) -> str:
    """Streams with and without priority share all SMs, so that they are of one kind."""
    return "streams" if plan.kind == "priority" else plan.kind
