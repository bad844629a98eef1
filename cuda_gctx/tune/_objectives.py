"""What the tuner optimizes: the time of all parts together, the throughput of a mix, or the tail latency of a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from cuda_gctx._core.extension import as_bool, as_int, as_number

__all__ = ["SHARE", "Objective", "TailLatency", "Throughput", "checked", "critical_part", "number_of", "weight_of"]

LARGEST_WEIGHT = 10_000
# A batch has too few calls for more.
LARGEST_QUANTILE = 0.999
SHARE = "a share of at least 0 and less than 1"


def settle(value: object, **fields: Any) -> None:
    """Sets fields of a frozen dataclass. Not by vars(), whose dictionary makes each field dearer to read."""
    for name, item in fields.items():
        object.__setattr__(value, name, item)


def number_of(name: str, value: object, allowed: str, fits: Callable[[float], bool]) -> float:
    """Validate a number. allowed: the range, in words."""
    number = as_number(name, value)
    if not fits(number):
        raise ValueError(f"{name} must be {allowed}, not {number:g}")
    return number


class Throughput:
    """Maximize mixes per second: a mix is a number of calls of each part, and the parts do not wait for each other."""

    __slots__ = ("weights",)

    weights: Mapping[str, int]

    def __init__(self, /, **weights: int) -> None:
        numbers = {name: as_int(name, weight, 1, LARGEST_WEIGHT) for name, weight in weights.items()}
        settle(self, weights=MappingProxyType(numbers))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Throughput is immutable: create another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Throughput is immutable: create another one")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Throughput, **self.weights), ()

    def __eq__(self, other: object) -> bool:
        return self.weights == other.weights if isinstance(other, Throughput) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.weights.items()))

    def __repr__(self) -> str:
        return f"Throughput({', '.join(f'{name}={weight}' for name, weight in self.weights.items())})"


@dataclass(frozen=True)
class TailLatency:
    """Minimize the tail latency of one part, whose calls arrive at random times while the others are kept queued.

    quantile: the quantile of the latency: 0.99 for the p99.
    others: the lowest acceptable rate of each other part, as a share of its rate alone. With 0, the others may starve
    if that makes the part slightly faster.
    rate: how many calls arrive per second on average; None: half of what the part can take alone. A latency is measured
    from the arrival of the call, including the wait for earlier calls.
    closed_loop: start each call when the previous one has completed, like a single client that waits for each answer.
    This hides the time that other clients would have waited.
    """

    part: str
    quantile: float = 0.99
    others: float = 0.0
    rate: float | None = None
    closed_loop: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.part, str):
            raise TypeError(f"part must be the name of a part, not {type(self.part).__name__}")
        most = f"above 0 and at most {LARGEST_QUANTILE} (0.99 is the p99)"
        settle(
            self,
            quantile=number_of("quantile", self.quantile, most, lambda share: 0 < share <= LARGEST_QUANTILE),
            others=number_of("others", self.others, SHARE, lambda share: 0 <= share < 1),
            closed_loop=as_bool("closed_loop", self.closed_loop),
        )
        if self.rate is not None:
            allowed = "a number of calls per second above 0"
            settle(self, rate=number_of("rate", self.rate, allowed, lambda rate: 0 < rate < math.inf))
        if self.closed_loop and self.rate is not None:
            raise ValueError("closed_loop and rate are mutually exclusive: in a closed loop the latency sets the rate")

    def __repr__(self) -> str:
        others = f", others={self.others:g}" if self.others else ""
        rate = f", rate={self.rate:g}" if self.rate is not None else ""
        loop = ", closed_loop=True" if self.closed_loop else ""
        return f"TailLatency({self.part!r}, quantile={self.quantile:g}{others}{rate}{loop})"


Objective: TypeAlias = Literal["makespan"] | Throughput | TailLatency


def critical_part(objective: Objective) -> str | None:
    """The part whose latency is minimized, if a latency is."""
    return objective.part if isinstance(objective, TailLatency) else None


def weight_of(objective: Objective, part: str) -> int:
    """How many calls of a part are one step, or one mix."""
    return objective.weights[part] if isinstance(objective, Throughput) else 1


def checked(objective: object, parts: Sequence[str]) -> Objective:
    """The objective, if it fits these parts."""
    advice = f"the parts are {', '.join(parts)}"
    if isinstance(objective, Throughput):
        if set(objective.weights) != set(parts):
            raise ValueError(f"{objective} must have a number of calls for each part; {advice}")
        return objective
    if isinstance(objective, TailLatency):
        if objective.part not in parts:
            raise ValueError(f"{objective}: no part has this name; {advice}")
        return objective
    if objective != "makespan":
        raise ValueError(f'objective must be "makespan", a Throughput or a TailLatency, not {objective!r}')
    return "makespan"
