"""``Policy``: which plan to use for a load and a limit on the latency, as a table that is asked in a microsecond."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from cuda_gctx._core.extension import Device, as_int
from cuda_gctx._core.text import table
from cuda_gctx.tune._guard import device_of, driver_version
from cuda_gctx.tune._json import Document
from cuda_gctx.tune._objectives import SHARE, number_of, settle
from cuda_gctx.tune._plans import Plan
from cuda_gctx.tune._report import words

__all__ = ["Policy", "Prediction"]

HYSTERESIS = 0.05
# What is observed moves the correction by such a share of what it is off by: a limit that is missed counts at once, one
# that is kept has to be kept for longer. A single observation counts as at most twice, or half, of what is expected.
RISE, FALL, MOST_AT_ONCE = 0.5, 0.1, 2.0

Value: TypeAlias = float | str


class Prediction(NamedTuple):
    """The performance of a plan under a load: the latency quantile of the urgent part, and calls of the bulk part per
    second.
    """

    latency_s: float
    rate: float


def _moved(known: float, seen: float, up: float, down: float) -> float:
    """What is known, moved by a share of its distance from what was seen, which differs upwards and downwards."""
    off = min(max(seen, known / MOST_AT_ONCE), known * MOST_AT_ONCE) - known
    return known + (up if off > 0 else down) * off


class _Row:
    """The plans of one load, as choose() looks them up: for ascending latencies, the plan with the highest rate."""

    __slots__ = ("best", "latency", "limits", "rate")

    def __init__(self, predictions: Sequence[Prediction | None]) -> None:
        self.latency = [math.inf if one is None else one.latency_s for one in predictions]
        self.rate = [-math.inf if one is None else one.rate for one in predictions]
        order = sorted(range(len(predictions)), key=lambda plan: (self.latency[plan], -self.rate[plan]))
        self.limits: list[float] = []
        self.best = [order[0]]  # below all limits, that with the lowest latency
        for plan in order:
            if self.latency[plan] < math.inf and (not self.limits or self.rate[plan] > self.rate[self.best[-1]]):
                self.limits.append(self.latency[plan])
                self.best.append(plan)


@dataclass(frozen=True)
class Policy(Document):
    """Plans for loads and latency limits: ``Policy.of()`` builds a policy from measurements, ``choose()`` queries it.

    keys: the names by which the caller describes loads. buckets: the values of each key that were measured; a number
    between two values counts as the larger one. latency, bulk: the names of the parts. quantile: of the latency.
    predictions: for each combination of buckets, the last key changing first, one for each plan; None if unknown.
    hysteresis: the share by which another plan has to be better.
    device, sm_count, driver: the card on which the rows were measured; an empty name and 0 for rows of no card.
    """

    schema = 2

    keys: tuple[str, ...]
    buckets: tuple[tuple[Value, ...], ...]
    latency: str
    bulk: str
    quantile: float
    plans: tuple[Plan, ...]
    predictions: tuple[tuple[Prediction | None, ...], ...]
    hysteresis: float = HYSTERESIS
    device: str = ""
    sm_count: int = 0
    driver: str = ""
    _rows: list[_Row | None] = field(init=False, repr=False, compare=False)
    _finders: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    _origin: int = field(init=False, repr=False, compare=False)
    _numbers: dict[int, int] = field(init=False, repr=False, compare=False)
    # By plan, and by kind of plan: how many times the latency and the rate are what was measured before.
    _corrections: dict[Plan | str, Prediction] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._demand_sense()
        finders = []
        for number, (key, values) in enumerate(zip(self.keys, self.buckets, strict=True)):
            stride = math.prod(len(one) for one in self.buckets[number + 1 :])
            # From 1 on; what is negative or nan is at 0.
            if isinstance(values[0], str):
                find: Any = {value: index for index, value in enumerate(values, 1)}.__getitem__
            else:
                find = partial(bisect_left, (math.nextafter(0, -1), *values))
            finders.append((key, find, len(values) + 1, stride))
        settle(
            self,
            _finders=tuple(finders),
            _origin=-sum(stride for *_, stride in finders),
            _rows=[None] * len(self.predictions),
            _numbers={id(plan): number for number, plan in enumerate(self.plans)},
        )

    def _demand_sense(self) -> None:
        if not self.keys or len(set(self.keys)) != len(self.keys) or len(self.keys) != len(self.buckets):
            raise ValueError(
                f"a policy needs different keys, with buckets for each, not {self.keys} and {self.buckets}"
            )
        for key, values in zip(self.keys, self.buckets, strict=True):
            numbers = [value for value in values if not isinstance(value, str)]
            if not values or len(numbers) not in (0, len(values)):
                raise ValueError(f"the buckets of {key} must be numbers or strings, not {values}")
            if sorted(set(numbers)) != numbers or not all(0 <= value < math.inf for value in numbers):
                raise ValueError(f"the buckets of {key} must be ascending numbers of 0 or more, not {values}")
        if not self.plans or len(set(self.plans)) != len(self.plans):
            raise ValueError("a policy needs different plans")
        if len(self.predictions) != math.prod(map(len, self.buckets)) or any(
            len(row) != len(self.plans) or not any(row) for row in self.predictions
        ):
            raise ValueError("a policy needs, for each combination of buckets, a measurement of some of its plans")
        for one in {one for row in self.predictions for one in row if one is not None}:
            _checked(*one)
        settle(
            self,
            sm_count=as_int("sm_count", self.sm_count, 0),
            quantile=number_of("quantile", self.quantile, "above 0 and at most 1", lambda share: 0 < share <= 1),
            hysteresis=number_of("hysteresis", self.hysteresis, SHARE, lambda share: 0 <= share < 1),
        )

    def demand_device(self, device: Device) -> None:
        """Raise a ValueError if the policy was measured on another card, and warn if the driver was another one.

        device: where its plans are to be used.
        """
        self._demand_card()
        if (self.device, self.sm_count) != (device.name, device.sm_count):
            raise ValueError(
                f"this policy was measured on {self.device} with {self.sm_count} SMs, and the device is {device.name} "
                f"with {device.sm_count}: measure again"
            )
        if self.driver != (driver := driver_version()):
            warnings.warn(
                f"this policy was measured with driver {self.driver}, and the driver is {driver}: measure again, or "
                "let observe() correct it",
                stacklevel=3,
            )

    def _demand_card(self) -> None:
        if not self.device:
            raise ValueError("this policy does not record its device: create it with Policy.of(..., device=...)")

    # ---- asking

    def choose(self, limit_s: float, current: Plan | None = None, /, **load: Value) -> Plan:
        """The plan with the fastest bulk part whose latency stays within a limit, for ``plan.switch(pool)``.

        limit_s: the limit of the latency, in seconds. If no plan keeps it, the one with the lowest latency.
        load: a value for each key; ValueError if a number is negative, nan, or larger than all buckets.
        current: the plan that is in use. It is kept as long as it keeps the limit, unless another one is faster by more
        than the hysteresis, and would keep the limit under a load that is larger by the hysteresis.
        """
        if type(limit_s) is not float or not limit_s >= 0:  # most calls need no other check
            limit_s = number_of("limit_s", limit_s, "a number of seconds of 0 or more", lambda limit: limit >= 0)
        place = self._place(load)
        row = self._rows[place] or self._row(place)
        best = row.best[bisect_right(row.limits, limit_s)]
        plan = self.plans[best]
        if current is not None and current is not plan:
            in_use = self._numbers.get(id(current))
            if in_use is None and current in self.plans:
                in_use = self.plans.index(current)
            if in_use is not None and row.latency[in_use] <= limit_s and self._stays(row, in_use, best, limit_s, load):
                return current
        return plan

    def _place(self, load: Mapping[str, Value]) -> int:
        """The number of the row of a load."""
        place = self._origin
        try:
            for key, find, size, stride in self._finders:
                index = find(load[key])
                if not 0 < index < size:
                    self._refuse(load)
                place += index * stride
        except (KeyError, TypeError):
            self._refuse(load)
        if len(load) != len(self._finders):
            self._refuse(load)
        return place

    def _row(self, place: int) -> _Row:
        """The row of a load, with what has been observed since."""
        each = zip(self.plans, self.predictions[place], strict=True)
        self._rows[place] = row = _Row([one if one is None else self._corrected(plan, one) for plan, one in each])
        return row

    def _seen(self, plan: Plan) -> Prediction | None:
        """What service has shown of a plan, or of its kind."""
        return self._corrections.get(plan) or self._corrections.get(plan.kind)

    def _corrected(self, plan: Plan, one: Prediction) -> Prediction:
        seen = self._seen(plan)
        return one if seen is None else Prediction(one.latency_s * seen.latency_s, one.rate * seen.rate)

    def _stays(self, row: _Row, in_use: int, best: int, limit_s: float, load: Mapping[str, Value]) -> bool:
        """Whether a plan that keeps the limit is kept, although another one has a higher rate."""
        if row.rate[in_use] >= row.rate[best] * (1 - self.hysteresis):
            return True
        larger = self._origin
        for key, find, size, stride in self._finders:
            value = load[key]
            value = value if isinstance(value, str) else value * (1 + self.hysteresis)
            larger += min(find(value), size - 1) * stride
        return (self._rows[larger] or self._row(larger)).latency[best] > limit_s

    def _refuse(self, load: Mapping[str, Value]) -> None:
        wanted = ", ".join(
            f"{key}={'/'.join(map(str, values)) if isinstance(values[0], str) else f'... (0 to {values[-1]:g})'}"
            for key, values in zip(self.keys, self.buckets, strict=True)
        )
        given = ", ".join(f"{key}={value!r}" for key, value in load.items())
        raise ValueError(f"this policy expects a load with {wanted}, not {given}") from None

    def bucket(self, **load: Value) -> dict[str, Value]:
        """The buckets that a load falls into."""
        self._place(load)
        finders = zip(self._finders, self.buckets, strict=True)
        return {key: values[find(load[key]) - 1] for (key, find, *_), values in finders}

    def predict(self, plan: Plan, **load: Value) -> Prediction:
        """The performance of a plan under a load: the measurement, corrected by observations. KeyError if it was not
        measured.
        """
        return self._corrected(plan, self._measured(plan, load))

    def _measured(self, plan: Plan, load: Mapping[str, Value]) -> Prediction:
        """What was measured of a plan under a load."""
        place = self._place(load)
        found = self.predictions[place][self.plans.index(plan)] if plan in self.plans else None
        if found is None:
            raise KeyError(f"this policy has no measurement of {plan} for {self.bucket(**load)}")
        return found

    def explain(self, limit_s: float, current: Plan | None = None, /, **load: Value) -> str:
        """What choose() returns, and why, as a sentence.

        limit_s, current, load: as for choose().
        """
        plan = self.choose(limit_s, current, **load)
        prediction = self.predict(plan, **load)
        bucket = ", ".join(f"{key}={value}" for key, value in self.bucket(**load).items())
        seen = self._seen(plan)
        how = "measured" if seen is None else f"measured, times {seen.latency_s:.2f} as observed since"
        what = f"p{self.quantile * 100:g} of {self.latency} {words(prediction.latency_s)} ({how})"
        text = f"{plan} for {bucket} within {words(limit_s)}: {what}, {self.bulk} {prediction.rate:.4g} calls/s"
        if plan is current:
            return f"{text}; kept"
        if prediction.latency_s > limit_s:
            text += "; no plan keeps the limit, and this one is the closest"
        return text

    # ---- service

    def observe(self, load: Mapping[str, Value], plan: Plan, latency_s: float, rate: float) -> None:
        """Correct the policy with the observed performance of a plan in service.

        load: under which load, as for choose(). plan: the plan that was in use.
        latency_s: the latency of the policy's quantile meanwhile, in seconds.
        rate: calls of the bulk part per second meanwhile.

        Later choices count with the correction of a plan for all loads, and for a plan that was not observed with that
        of its kind. A latency that is longer than expected counts at once; one that is shorter, and a rate that is
        higher, has to last. Raises ValueError for a load, latency or rate that cannot be, and KeyError for a plan that
        was not measured for the load.
        """
        latency_s, rate = _checked(latency_s, rate)
        before = self._measured(plan, load)
        slower, faster = latency_s / before.latency_s, rate / before.rate if before.rate else 1.0
        for key in (plan, plan.kind):
            known = self._corrections.get(key, Prediction(1.0, 1.0))
            self._corrections[key] = Prediction(
                _moved(known.latency_s, slower, RISE, FALL), _moved(known.rate, faster, FALL, RISE)
            )
        self._rows[:] = [None] * len(self._rows)

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
        device: Device | None = None,
    ) -> Policy:
        """A policy from measurements of your own.

        rows: load, plan, latency in seconds, and bulk calls per second of each measurement.
        latency, bulk: the names of the two parts.
        quantile: the quantile of the latencies in the rows.
        hysteresis: the share by which another plan has to be better before a policy leaves the one that is in use.
        device: where the rows were measured: on another card the policy is refused. None: the rows are of no card, such
        as estimates; the policy can be asked, but not saved.

        Raises ValueError if there is no row, if the keys of the loads differ, or if a number cannot be.
        """
        measurements = list(rows)
        if not measurements:
            raise ValueError("a policy needs at least one measurement")
        keys = tuple(measurements[0][0])
        if any(set(load) != set(keys) for load, *_ in measurements):
            raise ValueError(f"every load needs the keys {', '.join(keys)}")
        measured = {(*map(load.get, keys), plan): _checked(seconds, rate) for load, plan, seconds, rate in measurements}
        *values, plans = (tuple(dict.fromkeys(one)) for one in zip(*measured, strict=True))
        buckets = tuple(tuple(sorted(one)) for one in values)
        predictions = tuple(tuple(measured.get((*values, plan)) for plan in plans) for values in product(*buckets))
        card = ("", 0, "") if device is None else (device_of(device).name, device.sm_count, driver_version())
        return cls(keys, buckets, latency, bulk, quantile, plans, predictions, hysteresis, *card)

    # ---- JSON

    _demand_consistency = _demand_card

    def to_json(self) -> str:
        """The policy as JSON, for from_json(). What was observed is not part of it. ValueError for one of no card."""
        self._demand_card()
        return super().to_json()

    @classmethod
    def from_json(cls, text: str, device: Device | None = None) -> Policy:
        """A policy that was written as JSON.

        text: what to_json() returned. Anything else raises a ValueError that names the field.
        device: where its plans are to be used; None: device 0. If the policy was measured on another card, that raises
        a ValueError; another driver is a warning.
        """
        policy = super().from_json(text)
        policy.demand_device(device_of(device))
        return policy

    # ---- for people

    def __repr__(self) -> str:
        return f"<Policy: {len(self.plans)} plans for {len(self.predictions)} loads by {', '.join(self.keys)}>"

    def __str__(self) -> str:
        where = f" on {self.device}, {self.sm_count} SMs, driver {self.driver}" if self.device else ", of no card"
        lines = [f"{len(self.plans)} plans for {len(self.predictions)} loads{where}"]
        rows = []
        for place, load in enumerate(product(*self.buckets)):
            row = self._rows[place] or self._row(place)
            for limit, plan in zip(row.limits, row.best[1:], strict=True):
                rows.append([*load, words(limit), self.plans[plan], f"{row.rate[plan]:.4g}"])
        from_ = f"p{self.quantile * 100:g} of {self.latency} from"
        lines.append(table((*self.keys, from_, "plan", f"{self.bulk}, calls/s"), rows))
        return "\n".join(lines)


def _checked(latency_s: object, rate: object) -> Prediction:
    """A latency and a rate that can have been measured."""
    return Prediction(
        number_of("latency_s", latency_s, "a number of seconds above 0", lambda s: 0 < s < math.inf),
        number_of("rate", rate, "a number of calls per second of 0 or more", lambda rate: 0 <= rate < math.inf),
    )
