"""The contenders: ways to serve prompts and answers on one GPU, each with the settings that are searched.

A contender is given what the loop knows and returns what runs next. It has no clock and touches no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from serving.costs import Costs
from serving.loop import Contender, Served, State
from serving.work import ONE, Lane, Placement, Row, Segment, Step

Decision = list[tuple[Lane, Step, Placement]]

# Prompts of which one step takes tokens, at most.
SEGMENTS = 8
# Tokens of prompts in one step: what graphs are captured for.
CHUNKS: tuple[int, ...] = (*range(64, 1025, 64), *range(1152, 1793, 128), 2048, 3072, 4096)

# Answers in one step: what graphs are captured for.
DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128)


def decodes_for(answers: int) -> int:
    """The smallest size of a decode batch that has room for so many answers."""
    return next((size for size in DECODES if size >= answers), answers)


def chunk_for(tokens: int) -> int:
    """The smallest size of a step that has room for so many tokens of prompts."""
    return next((chunk for chunk in CHUNKS if chunk >= tokens), CHUNKS[-1])


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
    """How many times as long as predicted steps take, with the host's part; never less than predicted."""

    SHARE = 0.1  # of a new ratio in the mean
    MOST = 2.0

    def __init__(self) -> None:
        self.factor = 1.0
        self._begun: tuple[float, float] | None = None

    def begin(self, now: float, predicted: float) -> None:
        """A step is started, alone on the device."""
        self._begun = now, predicted

    def end(self, now: float) -> None:
        """The loop has seen its end."""
        if self._begun is not None:
            at, predicted = self._begun
            self.factor += self.SHARE * (min(self.MOST, max(1.0, (now - at) / predicted)) - self.factor)
        self._begun = None


@dataclass
class Chunked:
    """A part of a prompt in the same step as the decodes.

    Both together have the rows of whole tiles: 514 rows would take five tiles of 128 where 512 take four. They are as
    many as the cost model, corrected by what steps have taken, allows within `target_s`; or `chunk` always.
    """

    costs: Costs
    target_s: float | None = None
    chunk: int | None = None
    _last: int = field(default=0, init=False)  # the chunk of the step before, as an index
    _pace: Pace = field(default_factory=Pace, init=False)

    def decide(self, state: State) -> Decision:
        if state.busy:
            return []
        self._pace.end(state.now)
        if not (state.waiting or state.decoding):
            return []
        step = self._step(state)
        if step.rows and step.segments:
            self._pace.begin(state.now, self.costs.seconds(step))
        return [("decode", step, ONE)]

    def _step(self, state: State) -> Step:
        alone = Step(rows=state.rows)
        if not state.waiting:
            return alone
        if not state.decoding:
            return Step(segments=packed(state.waiting, self.chunk or CHUNKS[-1]))
        least = next(index for index, chunk in enumerate(CHUNKS) if chunk > decodes_for(len(alone.rows)))

        def mixed(index: int) -> Step:
            return replace(alone, segments=packed(state.waiting, CHUNKS[index] - decodes_for(len(alone.rows))))

        if self.chunk is not None or self.target_s is None:
            return mixed(max(least, CHUNKS.index(self.chunk or CHUNKS[-1])))
        # The time grows with the chunk. The largest that keeps the target is seldom far from that of the step before.
        index = max(least, self._last)
        step = mixed(index)
        if self._keeps(step):
            while index + 1 < len(CHUNKS) and self._keeps(larger := mixed(index + 1)):
                index, step = index + 1, larger
        else:
            while index > least and not self._keeps(step):
                index -= 1
                step = mixed(index)
        self._last = index
        return step

    def _keeps(self, step: Step) -> bool:
        assert self.target_s is not None
        return self._pace.factor * self.costs.seconds(step) <= self.target_s


class LayerInterleaved:
    """A few layers of a prompt between two decode steps, on one stream.

    A pass takes up to `chunk` tokens: fewer, where one layer of so many takes longer than a decode step leaves of the
    target.
    """

    def __init__(self, costs: Costs, target_s: float, chunk: int) -> None:
        self._costs = costs
        self._target_s = target_s
        self._chunk = chunk
        self._pass: tuple[Segment, ...] = ()
        self._layer = 0
        self._decode_next = False
        self._paces: dict[Lane, Pace] = {"decode": Pace(), "prefill": Pace()}

    def decide(self, state: State) -> Decision:
        if state.busy:
            return []
        for pace in self._paces.values():
            pace.end(state.now)
        found = self._decide(state)
        for lane, step, _ in found:
            self._paces[lane].begin(state.now, self._costs.seconds(step))
        return found

    def _seconds(self, lane: Lane, step: Step) -> float:
        return self._paces[lane].factor * self._costs.seconds(step)

    def _decide(self, state: State) -> Decision:
        if state.decoding and (self._decode_next or not (state.waiting or self._pass)):
            self._decode_next = False
            return [("decode", Step(rows=state.rows), ONE)]
        if not state.waiting:
            return []
        self._decode_next = True
        if not self._pass:
            self._pass, self._layer = self._tokens(state, self._room(state)), 0
        room = self._room(state)
        left = self._costs.layers - self._layer
        one = self._seconds("prefill", Step(segments=self._pass)) / self._costs.layers
        count = left if room == float("inf") else max(1, min(left, int(room / one)))
        begin, self._layer = self._layer, self._layer + count
        partial = self._layer < self._costs.layers
        layers = None if count == self._costs.layers else (begin, self._layer)
        step = Step(segments=self._pass, layers=layers, partial=partial)
        if not partial:
            self._pass = ()
        return [("prefill", step, ONE)]

    def _room(self, state: State) -> float:
        """What the target leaves next to the coming decode step, which those join whose prompts end in the pass."""
        if not state.decoding:
            return float("inf")
        joining = tuple(Row(one.slot, one.start + one.count) for one in self._pass if one.last)
        return self._target_s - self._seconds("decode", Step(rows=state.rows + joining))

    def _tokens(self, state: State, room: float) -> tuple[Segment, ...]:
        for chunk in reversed(CHUNKS):
            segments = packed(state.waiting, chunk)
            step = Step(segments=segments)
            if chunk <= self._chunk and self._seconds("prefill", step) / self._costs.layers <= room:
                return segments
        return packed(state.waiting, CHUNKS[0])


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


# What a policy knows of the load: sequences that decode, their cached tokens, and whether prompts wait.
Choice = Callable[[int, int, bool], Contender]


class ByPolicy:
    """Asks a policy for the contender that fits the load, while no tokens of prompts are in a step.

    A placement changes while no prefill runs: a decode step would have to wait for the SMs of one.
    """

    def __init__(self, choose: Choice) -> None:
        self._choose = choose
        self._chosen: Contender | None = None

    def decide(self, state: State) -> Decision:
        if self._chosen is None or not any(step.segments for step in state.busy.values()):
            context = sum([served.context for served in state.decoding])
            self._chosen = self._choose(len(state.decoding), context, bool(state.waiting))
        return self._chosen.decide(state)
