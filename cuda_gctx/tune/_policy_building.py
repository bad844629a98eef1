"""Building a policy: curves of both parts for every load, all plans for a few loads, predictions, and their check.

In partitions and overlays, the latency under a load is that alone in the same SMs, times a factor that was measured for
the same plan under other loads: what the parts slow each other. Where a call waits for calls of the bulk part (in
sequence, on streams), it is the latency alone and a number of bulk calls.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any, TypeAlias

from cuda_gctx._core import clock
from cuda_gctx._core.arguments import as_int, as_seconds
from cuda_gctx._core.device import Device
from cuda_gctx._core.progress import Progress
from cuda_gctx._core.stream import Stream
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.measure.statistics import median
from cuda_gctx.partitions import PartitionPool
from cuda_gctx.tune._curves import Curve, measured_curve
from cuda_gctx.tune._guard import device_of, only_tuning, refuse_capture, sharing
from cuda_gctx.tune._measure import OutOfTime, Runner, Trial
from cuda_gctx.tune._objectives import TailLatency
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._policy import HYSTERESIS, Check, Policy, Prediction, Value, checked_hysteresis
from cuda_gctx.tune._sizes import Sizes
from cuda_gctx.tune._work import Part, naming
from cuda_gctx.tune._work import parts_of as named_parts

__all__ = ["policy"]

# The shares of the SMs that the urgent part gets in partitions, and that an overlay leaves to the bulk part.
SHARES = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
BULK_SHARES = (7 / 8, 3 / 4, 5 / 8, 1 / 2)
# Loads for which every plan is measured: the smallest, the largest, and with so many loads one between.
LOADS_FOR_A_MIDDLE = 5
FEW_LOADS = 3  # which are all measured
BATCHES = 3
CURVE_ROUNDS = 7
CURVES_SHARE = 0.4  # of the budget

Load: TypeAlias = tuple[Value, ...]
PartsOf: TypeAlias = Callable[..., Mapping[str, Callable[[Stream], object]]]


def policy(
    parts_of: PartsOf,
    *,
    latency: str,
    loads: Mapping[str, Iterable[Value]],
    device: Device | None = None,
    quantile: float = 0.99,
    checks: int = 8,
    hysteresis: float = HYSTERESIS,
    budget_s: float = 120.0,
    progress: bool | None = None,
    seed: int = 0,
) -> Policy:
    """Build a policy: measure curves of both parts for every load, all plans for a few loads, and check the rest.

    parts_of: is called with the keys of a load, and returns its two parts as overlap() takes them, by name.
    latency: the part whose latency is limited; the other one is the bulk part.
    loads: for each key, its buckets: the largest values that occur in them, or texts.
    checks: how many predictions are measured afterwards; the policy states their error, and pads by it.
    hysteresis: the share by which another plan has to be better before a policy leaves the one that is in use.
    device: the device to measure; None: device 0.
    quantile: the quantile of the latency that is limited.
    budget_s: the longest time to measure, in seconds.
    progress: whether to show progress on stderr; None: if stderr is a terminal.
    seed: the seed of the random order in which predictions are checked.

    Raises PartError if a part raises, and RuntimeError if the budget is too short and during a capture.
    """
    return _Builder(parts_of, latency, loads, device, quantile, checks, hysteresis, budget_s, progress, seed).build()


class _Builder:
    """Builds one policy."""

    def __init__(
        self,
        parts_of: PartsOf,
        latency: str,
        loads: Mapping[str, Iterable[Value]],
        device: Device | None,
        quantile: float,
        checks: int,
        hysteresis: float,
        budget_s: float,
        progress: bool | None,
        seed: int,
    ) -> None:
        if not callable(parts_of):
            raise TypeError(f"parts_of must be a function of the keys of a load, not {type(parts_of).__name__}")
        if not isinstance(loads, Mapping) or not loads:
            raise TypeError('loads must be a mapping of keys to buckets, like {"batch": [8, 32], "context": [4096]}')
        self._objective = TailLatency(latency, quantile, closed_loop=True)
        self._latency = latency
        self._keys = tuple(loads)
        self._buckets = tuple(_sorted(key, values) for key, values in loads.items())
        self._loads: list[Load] = list(product(*self._buckets))
        self._checks = as_int("checks", checks, 0)
        self._hysteresis = checked_hysteresis(hysteresis)
        self._budget_s = as_seconds("budget_s", budget_s)
        self._progress = progress
        self._random = random.Random(as_int("seed", seed))
        self._device = device_of(device)
        self._parts = {load: self._parts_of(parts_of, load) for load in self._loads}
        self._bulk = next(part.name for part in self._parts[self._loads[0]] if part.name != latency)
        self._plans = self._menu()
        self._curves: dict[tuple[Load, str], Curve] = {}

    def _parts_of(self, parts_of: PartsOf, load: Load) -> tuple[Part, Part]:
        given = parts_of(**dict(zip(self._keys, load, strict=True)))
        if not isinstance(given, Mapping) or len(given) != 2 or self._latency not in given:
            raise ValueError(
                f"parts_of must return two parts by name, one of them {self._latency!r}, not {given!r} for {load}"
            )
        first, second = named_parts((), dict(given))
        return first, second

    def _menu(self) -> tuple[Plan, ...]:
        """The plans that the policy chooses among."""
        names = (self._latency, self._bulk)
        plans = [Plan("sequence", names), Plan("streams", names), Plan("priority", names, first=self._latency)]
        sizes = Sizes(self._device, names, None)
        for allocation in sizes.menu(self._latency, self._bulk, SHARES, BULK_SHARES):
            found = sizes.plan(allocation, False)
            if found is not None:
                plans.append(found[0])
        return tuple(dict.fromkeys(plans))

    # ---- the phases

    def build(self) -> Policy:
        refuse_capture(self._device)
        began = clock.now()
        with only_tuning(self._device), Progress(self._progress) as bar, ExitStack() as closing:
            self._device.sync()
            before = Conditions.of(self._device)
            self._measure_curves(bar)
            pools = {plan: closing.enter_context(PartitionPool(self._device)) for plan in self._plans}
            deadline = began + self._budget_s
            measured: dict[tuple[Load, Plan], Prediction] = {}
            anchors = self._anchors()
            try:
                for number, (load, plan) in enumerate(product(anchors, self._plans)):
                    bar.show(CURVES_SHARE + number / 200, f"measuring {plan}")
                    measured[load, plan] = self._pair(load, plan, pools[plan], deadline)
            except OutOfTime:
                raise RuntimeError(
                    f"budget_s={self._budget_s:g} is too short to measure {len(self._plans)} plans for {len(anchors)} "
                    "loads: increase it"
                ) from None
            predicted = {key: self._predict(*key, measured, anchors) for key in product(self._loads, self._plans)}
            checks = self._check({**predicted, **measured}, anchors, pools, deadline)
            table = {**predicted, **measured}
            for check in checks:
                table[tuple(check.load.values()), check.plan] = check.found
            conditions = before, Conditions.of(self._device)
        return Policy(
            keys=self._keys,
            buckets=self._buckets,
            latency=self._latency,
            bulk=self._bulk,
            quantile=self._objective.quantile,
            plans=self._plans,
            predictions=tuple(tuple(table[load, plan] for plan in self._plans) for load in self._loads),
            checks=tuple(checks),
            hysteresis=self._hysteresis,
            device=self._device.name,
            conditions=conditions,
        )

    def _measure_curves(self, bar: Progress) -> None:
        sizes: dict[str, set[int]] = {self._latency: set(), self._bulk: set()}
        for plan in self._plans:
            for name in plan.places:
                sizes[name].add(plan.sm_counts[name])
        each_s = CURVES_SHARE * self._budget_s / (2 * len(self._loads))
        for number, load in enumerate(self._loads):
            for part in self._parts[load]:
                bar.show(CURVES_SHARE * number / len(self._loads), f"measuring {part.name} alone")
                self._curves[load, part.name] = measured_curve(
                    self._device, part, None, sorted(sizes[part.name]), "calls", each_s, bar, 0, CURVE_ROUNDS
                )

    def _anchors(self) -> list[Load]:
        """The loads for which every plan is measured."""
        if len(self._loads) <= FEW_LOADS:
            return list(self._loads)
        middle = [self._loads[len(self._loads) // 2]] if len(self._loads) >= LOADS_FOR_A_MIDDLE else []
        return list(dict.fromkeys([self._loads[0], *middle, self._loads[-1]]))

    def _pair(self, load: Load, plan: Plan, pool: PartitionPool, deadline: float) -> Prediction:
        """Measure a plan under a load."""
        parts = self._parts[load]
        with Runner(self._objective, deadline) as runner, ExitStack() as closing, naming(f"{plan}, {load}"):
            for part in parts:
                runner.alone_s[part.name] = self._alone(load, part.name, self._device.sm_count)
            with sharing():
                streams = closing.enter_context(plan.open(pool))
            idle = streams[self._latency]
            if plan.kind == "sequence":
                idle = closing.enter_context(self._device.create_stream())
            trial = Trial.of(plan, parts, streams, idle)
            try:
                runner.warm(trial)
                samples = [runner.batch(trial, runner.shape([trial])) for _ in range(BATCHES)]
            finally:
                for stream in {*streams.values(), idle}:
                    stream.sync()
        calls = [sample.calls[self._bulk] for sample in samples if sample.calls[self._bulk][1] > 0]
        rate = sum(count for count, _ in calls) / sum(seconds for _, seconds in calls) if calls else 0.0
        return Prediction(median([sample.seconds for sample in samples]), rate, True)

    # ---- predictions

    def _alone(self, load: Load, part: str, sm_count: int) -> float:
        return self._curves[load, part].seconds(sm_count)

    def _places(self, plan: Plan) -> tuple[int, int]:
        """The SMs of the urgent and of the bulk part."""
        whole = self._device.sm_count
        return plan.sm_counts.get(self._latency, whole), plan.sm_counts.get(self._bulk, whole)

    def _base(self, load: Load, plan: Plan) -> tuple[float, float, float]:
        """The latency alone, the time of a bulk call alone, both in the SMs of a plan, and the time that a bulk call
        takes at the least.
        """
        urgent, bulk = self._places(plan)
        alone, call = self._alone(load, self._latency, urgent), self._alone(load, self._bulk, bulk)
        return alone, call, call + alone if plan.kind == "sequence" else call

    def _predict(
        self, load: Load, plan: Plan, measured: Mapping[tuple[Load, Plan], Prediction], anchors: Sequence[Load]
    ) -> Prediction:
        """Latency and rate from the curves, and from what the same plan did under the loads that were measured."""
        waits = plan.layout is None
        effects = []
        for anchor in anchors:
            alone, call, least = self._base(anchor, plan)
            seen = measured[anchor, plan]
            effect = (seen.latency_s - alone) / call if waits else math.log(seen.latency_s / alone)
            effects.append((self._distance(load, anchor), effect, seen.rate * least))
        weights = [1 / max(distance, 1e-6) ** 2 for distance, _, _ in effects]
        effect = sum(w * e for w, (_, e, _) in zip(weights, effects, strict=True)) / sum(weights)
        share = sum(w * s for w, (_, _, s) in zip(weights, effects, strict=True)) / sum(weights)
        alone, call, least = self._base(load, plan)
        latency_s = alone + max(0.0, effect) * call if waits else alone * math.exp(effect)
        return Prediction(latency_s, share / least, False)

    def _distance(self, one: Load, other: Load) -> float:
        """How far two loads are apart, in steps of buckets as shares of all."""
        steps = [
            (values.index(a) - values.index(b)) / max(1, len(values) - 1)
            for values, a, b in zip(self._buckets, one, other, strict=True)
        ]
        return math.hypot(*steps)

    def _check(
        self,
        table: Mapping[tuple[Load, Plan], Prediction],
        anchors: Sequence[Load],
        pools: Mapping[Plan, PartitionPool],
        deadline: float,
    ) -> list[Check]:
        """Measure some predictions of plans that the policy would choose."""
        others = [load for load in self._loads if load not in anchors]
        candidates = []
        for load in others:
            ordered = sorted(self._plans, key=lambda plan, load=load: table[load, plan].latency_s)  # type: ignore[misc]
            highest = -1.0
            for plan in ordered:
                if table[load, plan].rate > highest:
                    highest = table[load, plan].rate
                    candidates.append((load, plan))
        self._random.shuffle(candidates)
        # Of each kind of plan first, because each kind is padded by its own error.
        seen: dict[str, int] = {}
        order: list[tuple[int, int, tuple[Load, Plan]]] = []
        for candidate in candidates:
            kind = candidate[1].kind
            seen[kind] = seen.get(kind, 0) + 1
            order.append((seen[kind], len(order), candidate))
        checks = []
        for _, _, (load, plan) in sorted(order)[: self._checks]:
            try:
                measured = self._pair(load, plan, pools[plan], deadline)
            except OutOfTime:
                break
            checks.append(Check(dict(zip(self._keys, load, strict=True)), plan, table[load, plan], measured))
        if others and not checks:
            raise RuntimeError(
                f"budget_s={self._budget_s:g} is too short to check a prediction: increase it, or measure fewer loads"
            )
        return checks


def _sorted(key: str, values: Any) -> tuple[Value, ...]:
    """The buckets of a key: numbers in ascending order, texts as given."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"the buckets of {key} must be numbers or texts, like [8, 32], not {values!r}")
    given = list(dict.fromkeys(values))
    return tuple(given) if any(isinstance(value, str) for value in given) else tuple(sorted(given))
