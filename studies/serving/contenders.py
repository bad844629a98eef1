"""The contenders: ways to serve prompts and answers on one GPU, each with the settings that are searched.

A contender is given what the loop knows and returns what runs next. It has no clock and touches no device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from serving.costs import Costs
from serving.loop import Served, State
from serving.work import ONE, Lane, Placement, Segment, Step

Decision = list[tuple[Lane, Step, Placement]]

# Prompts of which one step takes tokens, at most.
SEGMENTS = 8
# Tokens of prompts in one step: what graphs are captured for.
CHUNKS: tuple[int, ...] = (*range(64, 512, 32), *range(512, 1025, 64), *range(1152, 1793, 128), 2048, 3072, 4096)

# Answers in one step: what graphs are captured for.
DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128)


def decodes_for(answers: int) -> int:
    """The smallest size of a decode batch that has room for so many answers."""
    return next((size for size in DECODES if size >= answers), answers)


def chunk_for(tokens: int) -> int:
    """The smallest size of a step that has room for so many tokens of prompts."""
    return next((chunk for chunk in CHUNKS if chunk >= tokens), CHUNKS[-1])


def mixed_chunks(costs: Costs) -> list[int]:
    """Rows of steps with decodes and prompts, without sizes next to which more rows take less time.

    So the time of a step grows with its size, and the largest one that keeps a limit is found from any other.
    """
    found: list[int] = []
    least_seconds = least_factor = inf
    for rows in reversed(CHUNKS):
        seconds, factor = costs.mixed_seconds(rows, 0, 0), costs.mixed_factor(rows)
        if seconds < least_seconds and rows * factor < least_factor:
            found.insert(0, rows)
            least_seconds, least_factor = seconds, rows * factor
    return found


def packed(waiting: Iterable[Served], room: int) -> tuple[Segment, ...]:
    """The next tokens of prompts, in the order of arrival, that fit into one step."""
    found: list[Segment] = []
    for served in waiting:
        if room == 0 or len(found) == SEGMENTS:
            break
        count = min(room, served.request.prompt - served.done)
        found.append(Segment(served.slot, served.done, count, served.done + count == served.request.prompt))
        room -= count
    return tuple(found)


@dataclass
class PrefillFirst:
    """Prompts before answers, on one stream: the highest rate, and gaps as long as what has arrived."""

    chunk: int

    def decide(self, state: State) -> Decision:
        if state.busy:
            return []
        if state.waiting:
            return [("prefill", Step(segments=packed(state.waiting, self.chunk)), ONE)]
        return [("decode", Step(rows=state.rows), ONE)] if state.decoding else []


class Pace:
    """How many times as long as predicted steps take, with the host's part.

    factor: rises fast and falls slowly, because a limit has to be kept by nearly all steps. mean: what rates are
    compared by. With the factor, whatever is in use would look worse than what is not.
    """

    RISE, FALL = 0.2, 0.02
    LEAST, MOST = 0.5, 2.0  # of a step: a pause of the host says nothing about the next one
    MEMORY = 40  # steps of which it is the mean, about
    KNOWN = 4  # steps after which the mean is taken as it is

    def __init__(self) -> None:
        self.factor = self.mean = 1.0
        self.count = 0

    def note(self, seconds: float, predicted: float) -> None:
        """A step has taken so long."""
        took = min(self.MOST, max(self.LEAST, seconds / predicted))
        off = took - self.factor
        self.factor += (self.RISE if off > 0 else self.FALL) * off
        self.count += 1
        self.mean += (took - self.mean) / min(self.count, self.MEMORY)

    def hoped(self, prior: float, error: float) -> float:
        """The mean, less what is not known yet: before the first step, a prior less all of the error."""
        return (self.mean if self.count else prior) * (1 - error * max(0, self.KNOWN - self.count) / self.KNOWN)

    @property
    def rounded(self) -> float:
        return round(self.factor * 40) / 40


@dataclass
class Chunked:
    """A part of a prompt in the same step as the decodes.

    Both together have the rows of whole tiles: 514 rows would take five tiles of 128 where 512 take four. They are as
    many as the cost model, corrected by what steps have taken, allows within `target_s`; or `chunk` always.
    """

    costs: Costs
    target_s: float | None = None
    chunk: int | None = None
    pace: Pace = field(default_factory=Pace, init=False)  # of mixed steps

    def __post_init__(self) -> None:
        self._chunks = [self.chunk] if self.chunk else mixed_chunks(self.costs)

    def decide(self, state: State) -> Decision:
        for one in state.ended:
            if one.step.rows and one.step.segments:
                self.pace.note(one.seconds, self.costs.seconds(one.step))
        if state.busy or not (state.waiting or state.decoding):
            return []
        return [("decode", self._step(state), ONE)]

    def _step(self, state: State) -> Step:
        alone = Step(rows=state.rows)
        if not state.waiting:
            return alone
        if not state.decoding:
            return Step(segments=packed(state.waiting, self.chunk or CHUNKS[-1]))
        decodes = decodes_for(len(alone.rows))

        def mixed(chunk: int) -> Step:
            return replace(alone, segments=packed(state.waiting, chunk - decodes))

        chunks = [chunk for chunk in self._chunks if chunk > decodes] or [chunk_for(decodes + 1)]
        if self.target_s is None:
            return mixed(chunks[0])
        # The time grows with the chunk.
        target_s = self.target_s / self.pace.factor
        count = bisect_right(chunks, target_s, key=lambda chunk: self.costs.seconds(mixed(chunk)))
        return mixed(chunks[max(1, count) - 1])


@dataclass
class Concurrent:
    """Prompts and answers on two streams at once, in one placement."""

    placement: Placement
    chunk: int

    def decide(self, state: State) -> Decision:
        found: Decision = []
        if state.decoding and "decode" not in state.busy:
            found.append(("decode", Step(rows=state.rows), self.placement))
        if state.waiting and "prefill" not in state.busy:
            found.append(("prefill", Step(segments=packed(state.waiting, self.chunk)), self.placement))
        return found
