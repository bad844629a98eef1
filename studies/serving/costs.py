"""What a step costs: measured times of one card and model, and the model that fits them.

A step takes the time of its GEMMs, which depends on its tokens alone and is interpolated between measured ones, plus a
time for each cached token that decodes read, plus a time for each pair of a prompt's token and one that it attends to.
All three depend on the SMs. Two lanes at once slow each other by measured factors, and so does a step that takes
decodes and prompts together: its attentions share the device, and GEMMs of some sizes take longer than those between
which they are interpolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from serving.work import Placement, Step


@dataclass(frozen=True)
class Rates:
    """The costs on one number of SMs, in seconds."""

    gemms: tuple[tuple[int, float], ...]  # tokens, and the time of a whole step without attention
    per_cached_token: float
    per_pair: float

    def seconds(self, tokens: int, cached: int, pairs: int) -> float:
        return between(self.gemms, tokens) + self.per_cached_token * cached + self.per_pair * pairs


@dataclass(frozen=True)
class Costs:
    """The costs of one model on one card.

    slowdowns: for each kind of placement, of decode and of prefill. hints: SM counts and lanes whose GEMMs are faster
    with the SM count as a hint. mixed: rows of steps with decodes and prompts, and how many times as long as predicted
    they take; a step counts as the next larger one.
    """

    card: str
    model: str
    sm_count: int
    rates: Mapping[int, Rates]
    slowdowns: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    hints: tuple[tuple[int, str], ...] = ()
    mixed: tuple[tuple[int, float], ...] = ()

    def seconds(self, step: Step, sms: int | None = None) -> float:
        """The time of a step that runs alone on so many SMs, on all of them by default."""
        tokens = len(step.rows) + step.prompt_tokens
        pairs = sum(s.count * s.start + s.count * (s.count + 1) // 2 for s in step.segments)
        factor = self.mixed_factor(tokens) if step.rows and step.segments else 1.0
        return factor * self._seconds(tokens, step.context, pairs, sms or self.sm_count)

    def decode_seconds(self, batch: int, context: int, sms: int) -> float:
        """The time of a decode step of sequences that have so many cached tokens together."""
        return self._seconds(batch, context, 0, sms)

    def mixed_seconds(self, tokens: int, cached: int, pairs: int) -> float:
        """The time of a step of decodes and prompts on the whole device.

        tokens: of its GEMMs. cached: tokens that decodes read.
        """
        return self.mixed_factor(tokens) * self._seconds(tokens, cached, pairs, self.sm_count)

    def mixed_factor(self, tokens: int) -> float:
        """How many times as long as its parts a step with decodes and prompts takes, by the tokens of its GEMMs."""
        if not self.mixed:
            return 1.0
        at = bisect_left(self.mixed, tokens, key=itemgetter(0))
        return self.mixed[min(at, len(self.mixed) - 1)][1]

    def _seconds(self, tokens: int, cached: int, pairs: int, sms: int) -> float:
        if sms in self.rates:
            return self.rates[sms].seconds(tokens, cached, pairs)
        known = sorted((-1 / count, rates.seconds(tokens, cached, pairs)) for count, rates in self.rates.items())
        # Between measured sizes, times go with the inverse of the SMs.
        return between(known, -1 / sms)

    def slowdown(self, placement: Placement, lane: str) -> float:
        """How many times as long a step of a lane takes while the other lane is busy."""
        decode, prefill = self.slowdowns.get(placement.kind, (1.25, 1.1))
        return decode if lane == "decode" else prefill


def between(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at x on the line through the points around it; beyond them, the line goes on in proportion to x."""
    last_x, last = points[-1]
    if x >= last_x:
        return last * x / last_x if last_x > 0 else last
    i = bisect_left(points, x, key=itemgetter(0))
    if i == 0:
        return points[0][1]
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
