"""``Policy``: which plan to use for a load and a limit on the latency, as a table that is asked in a microsecond."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from typing import Any, TypeAlias

from cuda_gctx._core.arguments import as_int, as_number
from cuda_gctx._core.text import table
from cuda_gctx.measure.machine import Conditions
from cuda_gctx.tune._json import by_name, conditions, each, made, optional, plan_of, reading
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._report import words

__all__ = ["Check", "Policy", "Prediction"]

SCHEMA = 1
HYSTERESIS = 0.05

Value: TypeAlias = float | str


@dataclass(frozen=True)
class Prediction:
    """What a plan does under a load: the latency quantile of the urgent part, and calls of the bulk part per second.

    measured: whether that was measured, and not derived from curves and measured pairs.
    """

    latency_s: float
    rate: float
    measured: bool


@dataclass(frozen=True)
class Check:
    """A prediction that was measured afterwards."""

    load: dict[str, Value]
    plan: Plan
    predicted: Prediction
    found: Prediction

    @property
    def latency_error(self) -> float:
        """How much longer the latency was than predicted, as a share."""
        return self.found.latency_s / self.predicted.latency_s - 1

    @property
    def rate_error(self) -> float:
        """How much higher the rate was than predicted, as a share."""
        return self.found.rate / self.predicted.rate - 1 if self.predicted.rate else 0.0


def checked_hysteresis(value: object) -> float:
    """A share by which another plan has to be better."""
    share = as_number("hysteresis", value)
    if not 0 <= share < 1:
        raise ValueError(f"hysteresis must be a share of at least 0 and less than 1, not {share:g}")
    return share


class _Row:
    """The plans of one load, as choose() looks them up: for ascending latencies, the plan with the highest rate."""

    __slots__ = ("best", "latency", "limits", "rate")

    def __init__(self, predictions: Sequence[Prediction | None], pads: Sequence[float]) -> None:
        # A limit that is only just kept by a prediction may be missed: predictions are padded by their error.
        self.latency = [
            math.inf if one is None else one.latency_s * (1.0 if one.measured else 1 + pad)
            for one, pad in zip(predictions, pads, strict=True)
        ]
        self.rate = [-math.inf if one is None else one.rate for one in predictions]
        order = sorted(range(len(predictions)), key=lambda plan: (self.latency[plan], -self.rate[plan]))
        self.limits: list[float] = []
        self.best = [order[0]]  # below all limits, that with the lowest latency
        for plan in order:
            if self.latency[plan] < math.inf and (not self.limits or self.rate[plan] > self.rate[self.best[-1]]):
                self.limits.append(self.latency[plan])
                self.best.append(plan)


@dataclass(frozen=True)
class Policy:
    """Plans for loads and limits. ``tune.policy()`` builds one, ``choose()`` asks it.

    keys: what the caller names loads by. buckets: the values of each key that were measured; a number between two of
    them counts as the larger one. latency, bulk: the names of the parts. quantile: of the latency.
    predictions: for each combination of buckets, the last key changing first, one for each plan; None if unknown.
    checks: predictions that were measured afterwards. hysteresis: the share by which another plan has to be better.
    """

    keys: tuple[str, ...]
    buckets: tuple[tuple[Value, ...], ...]
    latency: str
    bulk: str
    quantile: float
    plans: tuple[Plan, ...]
    predictions: tuple[tuple[Prediction | None, ...], ...]
    checks: tuple[Check, ...] = ()
    hysteresis: float = HYSTERESIS
    device: str = ""
    conditions: tuple[Conditions, ...] = ()
    _rows: tuple[_Row, ...] = field(init=False, repr=False, compare=False)
    _finders: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    _numbers: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._demand_sense()
        finders = []
        for number, (key, values) in enumerate(zip(self.keys, self.buckets, strict=True)):
            stride = math.prod(len(one) for one in self.buckets[number + 1 :])
            if isinstance(values[0], str):
                find: Any = {value: index for index, value in enumerate(values)}.__getitem__
            else:
                find = partial(bisect_left, values)
            finders.append((key, find, len(values), stride))
        object.__setattr__(self, "_finders", tuple(finders))
        pads = [self.error_of(plan) for plan in self.plans]
        object.__setattr__(self, "_rows", tuple(_Row(one, pads) for one in self.predictions))
        object.__setattr__(self, "_numbers", {id(plan): number for number, plan in enumerate(self.plans)})

    def _demand_sense(self) -> None:
        if not self.keys or len(set(self.keys)) != len(self.keys) or len(self.keys) != len(self.buckets):
            raise ValueError(
                f"a policy needs different keys, with buckets for each, not {self.keys} and {self.buckets}"
            )
        for key, values in zip(self.keys, self.buckets, strict=True):
            texts = sum(isinstance(value, str) for value in values)
            if not values or texts not in (0, len(values)):
                raise ValueError(f"the buckets of {key} must be numbers or texts, not {values}")
            if not texts and (sorted(set(values)) != list(values) or not all(map(math.isfinite, values))):  # type: ignore[arg-type]
                raise ValueError(f"the buckets of {key} must be ascending numbers, not {values}")
        if not self.plans or len(set(self.plans)) != len(self.plans):
            raise ValueError("a policy needs different plans")
        if len(self.predictions) != math.prod(map(len, self.buckets)) or any(
            len(row) != len(self.plans) or not any(row) for row in self.predictions
        ):
            raise ValueError("a policy needs, for each combination of buckets, a prediction for some of its plans")
        object.__setattr__(self, "quantile", as_number("quantile", self.quantile))
        object.__setattr__(self, "hysteresis", checked_hysteresis(self.hysteresis))

    # ---- asking

    def choose(self, limit_s: float, current: Plan | None = None, /, **load: Value) -> Plan:
        """The plan with which the bulk part is fastest while the latency keeps a limit, for ``plan.switch(pool)``.

        limit_s: the limit of the latency, in seconds. If no plan keeps it, the one with the lowest latency.
        load: a value for each key; ValueError if a number is larger than all buckets, or nan.
        current: the plan that is in use. It is kept as long as it keeps the limit, unless another one is faster by more
        than the hysteresis, and would keep the limit under a load that is larger by the hysteresis.
        """
        if type(limit_s) is not float or limit_s != limit_s:  # most calls need no other check
            limit_s = as_number("limit_s", limit_s)
        place = 0
        try:
            for key, find, size, stride in self._finders:
                index = find(load[key])
                if index == size or (not index and load[key] != load[key]):  # nan sorts before all buckets
                    self._refuse(load)
                place += index * stride
        except (KeyError, TypeError):
            self._refuse(load)
        if len(load) != len(self._finders):
            self._refuse(load)
        row = self._rows[place]
        best = row.best[bisect_right(row.limits, limit_s)]
        plan = self.plans[best]
        if current is not None and current is not plan:
            in_use = self._numbers.get(id(current))
            if in_use is None and current in self.plans:
                in_use = self.plans.index(current)
            if in_use is not None and row.latency[in_use] <= limit_s and self._stays(row, in_use, best, limit_s, load):
                return current
        return plan

    def _stays(self, row: _Row, in_use: int, best: int, limit_s: float, load: Mapping[str, Value]) -> bool:
        """Whether a plan that keeps the limit is kept, although another one has a higher rate."""
        if row.rate[in_use] >= row.rate[best] * (1 - self.hysteresis):
            return True
        larger = 0
        for key, find, size, stride in self._finders:
            value = load[key]
            value = value if isinstance(value, str) else value * (1 + self.hysteresis)
            larger += min(find(value), size - 1) * stride
        return self._rows[larger].latency[best] > limit_s

    def _refuse(self, load: Mapping[str, Value]) -> None:
        wanted = ", ".join(
            f"{key}={'/'.join(map(str, values)) if isinstance(values[0], str) else f'... (at most {values[-1]:g})'}"
            for key, values in zip(self.keys, self.buckets, strict=True)
        )
        given = ", ".join(f"{key}={value!r}" for key, value in load.items())
        raise ValueError(f"this policy knows loads of {wanted}, and not {given}") from None

    def bucket(self, **load: Value) -> dict[str, Value]:
        """The buckets that a load falls into."""
        self.choose(math.inf, **load)
        found = {}
        for (key, find, _, _), values in zip(self._finders, self.buckets, strict=True):
            found[key] = values[find(load[key])]
        return found

    def predict(self, plan: Plan, **load: Value) -> Prediction:
        """What a plan does under a load. KeyError if that is not known."""
        bucket = self.bucket(**load)
        place: int = sum(find(bucket[key]) * stride for key, find, _, stride in self._finders)
        found = self.predictions[place][self.plans.index(plan)] if plan in self.plans else None
        if found is None:
            raise KeyError(f"this policy knows nothing about {plan} for {bucket}")
        return found

    def explain(self, limit_s: float, current: Plan | None = None, /, **load: Value) -> str:
        """What choose() returns, and why, as a sentence.

        limit_s, current, load: as for choose().
        """
        plan = self.choose(limit_s, current, **load)
        prediction = self.predict(plan, **load)
        how = "measured" if prediction.measured else f"predicted; it may be up to {self.error_of(plan):.0%} longer"
        bucket = ", ".join(f"{key}={value}" for key, value in self.bucket(**load).items())
        what = f"p{self.quantile * 100:g} of {self.latency} {words(prediction.latency_s)} ({how})"
        text = f"{plan} for {bucket} within {words(limit_s)}: {what}, {self.bulk} {prediction.rate:.4g} calls/s"
        if plan is current:
            return f"{text}; kept"
        if prediction.latency_s > limit_s:
            text += "; no plan keeps the limit, and this one is the closest"
        return text

    def error_of(self, plan: Plan) -> float:
        """By how much a latency of plans of its kind was longer than predicted, at the most; of all kinds, if none of
        that kind was checked.
        """
        mine = [check.latency_error for check in self.checks if check.plan.kind == plan.kind]
        return max(0.0, *mine) if mine else self.latency_error

    @property
    def latency_error(self) -> float:
        """By how much a latency was longer than predicted, at the most; 0 if nothing had to be predicted."""
        return max((max(0.0, check.latency_error) for check in self.checks), default=0.0)

    @property
    def rate_error(self) -> float:
        """By how much a rate was lower than predicted, at the most."""
        return max((max(0.0, -check.rate_error) for check in self.checks), default=0.0)

    @property
    def loads(self) -> list[dict[str, Value]]:
        """All combinations of buckets."""
        return [dict(zip(self.keys, values, strict=True)) for values in product(*self.buckets)]

    # ---- building

    @classmethod
    def of(
        cls,
        rows: Iterable[tuple[Mapping[str, Value], Plan, float, float]],
        *,
        latency: str,
        bulk: str,
        quantile: float = 0.99,
        hysteresis: float = HYSTERESIS,
    ) -> Policy:
        """A policy from measurements of your own.

        rows: load, plan, latency in seconds, and bulk calls per second of each measurement.
        latency, bulk: the names of the two parts.
        quantile: the quantile of the latencies in the rows.
        hysteresis: as for policy().

        Raises ValueError if there is no row, or if the keys of the loads differ.
        """
        measurements = list(rows)
        if not measurements:
            raise ValueError("a policy needs at least one measurement")
        keys = tuple(measurements[0][0])
        if any(set(load) != set(keys) for load, *_ in measurements):
            raise ValueError(f"every load needs the keys {', '.join(keys)}")
        buckets = tuple(tuple(sorted({load[key] for load, *_ in measurements})) for key in keys)
        plans = tuple(dict.fromkeys(plan for _, plan, _, _ in measurements))
        measured = {
            (tuple(load[key] for key in keys), plan): Prediction(latency_s, rate, True)
            for load, plan, latency_s, rate in measurements
        }
        predictions = tuple(tuple(measured.get((values, plan)) for plan in plans) for values in product(*buckets))
        return cls(keys, buckets, latency, bulk, quantile, plans, predictions, hysteresis=hysteresis)

    # ---- JSON

    def to_json(self) -> str:
        """The policy as JSON, for from_json()."""
        numbers = {plan: number for number, plan in enumerate(self.plans)}
        document = {
            "schema": SCHEMA,
            "keys": list(self.keys),
            "buckets": [list(values) for values in self.buckets],
            "latency": self.latency,
            "bulk": self.bulk,
            "quantile": self.quantile,
            "plans": [plan.to_dict() for plan in self.plans],
            "predictions": [[None if one is None else asdict(one) for one in row] for row in self.predictions],
            "checks": [
                {
                    "load": check.load,
                    "plan": numbers[check.plan],
                    "predicted": asdict(check.predicted),
                    "found": asdict(check.found),
                }
                for check in self.checks
            ],
            "hysteresis": self.hysteresis,
            "device": self.device,
            "conditions": [asdict(one) for one in self.conditions],
        }
        return json.dumps(document, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """A policy that was written as JSON.

        text: what to_json() returned. Anything else raises a ValueError that names the field.
        """
        with reading(text, "policy", SCHEMA) as given:
            plans = tuple(each(given.get("plans"), "plans", plan_of))

            def check(value: Any, path: str) -> Check:
                return made(
                    Check,
                    value,
                    path,
                    load=lambda value, path: by_name(value, path, _value),
                    plan=lambda value, path: plans[value],
                    predicted=_prediction,
                    found=_prediction,
                )

            return made(
                cls,
                given,
                "",
                keys=lambda value, path: tuple(each(value, path, _text)),
                buckets=lambda value, path: tuple(
                    tuple(values) for values in each(value, path, lambda item, at: each(item, at, _value))
                ),
                plans=lambda value, path: plans,
                predictions=lambda value, path: tuple(
                    tuple(row) for row in each(value, path, lambda item, at: each(item, at, optional(_prediction)))
                ),
                checks=lambda value, path: tuple(each(value, path, check)),
                conditions=lambda value, path: tuple(each(value, path, conditions)),
            )

    # ---- for people

    def __repr__(self) -> str:
        return f"<Policy: {len(self.plans)} plans for {len(self.predictions)} loads by {', '.join(self.keys)}>"

    def __str__(self) -> str:
        entries = [entry for row in self.predictions for entry in row if entry is not None]
        measured = sum(entry.measured for entry in entries)
        lines = [
            f"{len(self.plans)} plans for {len(self.predictions)} loads; {measured} of {len(entries)} entries are "
            "measured, the others predicted",
            f"checked {len(self.checks)} predictions: latency at most {self.latency_error:.0%} longer, rate at most "
            f"{self.rate_error:.0%} lower than predicted"
            if self.checks
            else "no prediction was checked",
        ]
        rows = []
        for load, row in zip(self.loads, self._rows, strict=True):
            for limit, plan in zip(row.limits, row.best[1:], strict=True):
                cells = [str(value) for value in load.values()]
                rows.append([*cells, words(limit), str(self.plans[plan]), f"{row.rate[plan]:.4g}"])
        from_ = f"p{self.quantile * 100:g} of {self.latency} from"
        lines.append(table((*self.keys, from_, "plan", f"{self.bulk}, calls/s"), rows))
        return "\n".join(lines)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{path} must be of type str, not {type(value).__name__}")
    return value


def _value(value: Any, path: str) -> Value:
    if isinstance(value, str):
        return value
    return as_int(path, value) if hasattr(value, "__index__") else as_number(path, value, "a number or a text")


def _prediction(value: Any, path: str) -> Prediction:
    return made(Prediction, value, path)
