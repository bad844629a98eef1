"""The contenders: ways to serve prompts and answers on one GPU, each with the settings that are searched.

A contender is given what the loop knows and returns what runs next. It has no clock and touches no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from serving.costs import Costs
from serving.loop import Contender, Limits, Served, State
from serving.work import ONE, Lane, Placement, Row, Segment, Step

Decision = list[tuple[Lane, Step, Placement]]

# Prompts of which one step takes tokens, at most.
SEGMENTS = 8
# Tokens of prompts in one step: what graphs are captured for.
CHUNKS: tuple[int, ...] = (*range(64, 1025, 64), 1280, 1536, 2048, 3072, 4096)


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


@dataclass
class Chunked:
    """A part of a prompt in the same step as the decodes.

    The part is as long as the cost model allows within `target_s`; or of `chunk` tokens always.
    """

    costs: Costs
    target_s: float | None = None
    chunk: int | None = None

    def decide(self, state: State) -> Decision:
        if state.busy or not (state.waiting or state.decoding):
            return []
        return [("decode", self._step(state), ONE)]

    def _step(self, state: State) -> Step:
        alone = Step(rows=state.rows)
        if not state.waiting:
            return alone
        if self.chunk is not None or self.target_s is None:
            return replace(alone, segments=packed(state.waiting, self.chunk or CHUNKS[-1]))
        if not state.decoding:
            return Step(segments=packed(state.waiting, CHUNKS[-1]))
        # The time grows with the chunk: bisect for the largest one that keeps the target.
        low, high, best = 0, len(CHUNKS) - 1, packed(state.waiting, CHUNKS[0])
        while low <= high:
            middle = (low + high) // 2
            segments = packed(state.waiting, CHUNKS[middle])
            if self.costs.seconds(replace(alone, segments=segments)) <= self.target_s:
                best, low = segments, middle + 1
            else:
                high = middle - 1
        return replace(alone, segments=best)


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

    def decide(self, state: State) -> Decision:
        if state.busy:
            return []
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
        one = self._costs.seconds(Step(segments=self._pass)) / self._costs.layers
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
        return self._target_s - self._costs.seconds(Step(rows=state.rows + joining))

    def _tokens(self, state: State, room: float) -> tuple[Segment, ...]:
        for chunk in reversed(CHUNKS):
            segments = packed(state.waiting, chunk)
            step = Step(segments=segments)
            if chunk <= self._chunk and self._costs.seconds(step) / self._costs.layers <= room:
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
            context = sum(served.row.position + 1 for served in state.decoding)
            self._chosen = self._choose(len(state.decoding), context, bool(state.waiting))
        return self._chosen.decide(state)


class SmallestThatHolds:
    """The policy that costs alone give: the fewest SMs for decode with which it keeps a share of the limit.

    No prompt waits: the whole device for decode. No size holds the limit: a priority stream. `keep`: a size stays while
    it holds the limit, until a smaller one would hold `1 - keep` of it, so that sizes do not alternate.
    """

    def __init__(
        self, costs: Costs, gap_s: float, sizes: Sequence[int], chunk: int, *, margin: float, keep: float
    ) -> None:
        self._costs = costs
        self._target_s = gap_s * margin
        self._keep = keep
        self._sizes = sorted(sizes)
        self._contenders = {
            size: Concurrent(Placement("disjoint", size, costs.sm_count - size), chunk) for size in self._sizes
        }
        self._whole = Concurrent(Placement("priority"), chunk)
        self._size: int | None = None

    def __call__(self, batch: int, context: int, waiting: bool) -> Contender:
        if not waiting or batch == 0:
            return self._whole
        fitting = [size for size in self._sizes if self._seconds(size, batch, context) <= self._target_s]
        if not fitting:
            self._size = None
            return self._whole
        smallest = fitting[0]
        if self._size in fitting and self._seconds(smallest, batch, context) > self._target_s * (1 - self._keep):
            # Smaller would do, though not with certainty: stay.
            smallest = min(self._size, self._next(smallest))
        self._size = smallest
        return self._contenders[smallest]

    def _seconds(self, size: int, batch: int, context: int) -> float:
        placement = self._contenders[size].placement
        rates = self._costs.decode_seconds(batch, context, size)
        return rates * self._costs.slowdown(placement, "decode")

    def _next(self, size: int) -> int:
        return next((larger for one, larger in pairwise(self._sizes) if one == size), size)


@dataclass(frozen=True)
class Entrant:
    """A contender of the study: how it is called, the settings that are searched, and how one is made of them."""

    title: str
    settings: Callable[[Costs, Limits], list[dict[str, Any]]]
    make: Callable[[Mapping[str, Any], Costs, Limits], Contender]


DECODE_SIZES = (16, 24, 32, 40, 48, 64)
OVERLAY_SIZES = (84, 100, 108, 116)
LARGE_CHUNKS = (1024, 2048, 4096)
MARGINS = (0.95, 0.9, 0.85, 1.0)


def _chunked(settings: Mapping[str, Any], costs: Costs, limits: Limits) -> Contender:
    if "chunk" in settings:
        return Chunked(costs, chunk=settings["chunk"])
    return Chunked(costs, target_s=settings["margin"] * limits.gap_s)


def _concurrent(kind: Any) -> Callable[[Mapping[str, Any], Costs, Limits], Contender]:
    def make(settings: Mapping[str, Any], costs: Costs, limits: Limits) -> Contender:
        decode = settings.get("decode_sms")
        prefill = settings.get("prefill_sms", costs.sm_count - decode if decode else None)
        return Concurrent(Placement(kind, decode, prefill), settings["chunk"])

    return make


def _policy(settings: Mapping[str, Any], costs: Costs, limits: Limits) -> Contender:
    return ByPolicy(
        SmallestThatHolds(costs, limits.gap_s, DECODE_SIZES, settings["chunk"], margin=settings["margin"], keep=0.1)
    )


def _chunks(costs: Costs, limits: Limits) -> list[dict[str, Any]]:
    return [{"chunk": chunk} for chunk in LARGE_CHUNKS]


ENTRANTS: dict[str, Entrant] = {
    "prefill-first": Entrant("prefill first", _chunks, lambda settings, costs, limits: PrefillFirst(settings["chunk"])),
    "chunked": Entrant(
        "chunked prefill",
        lambda costs, limits: [
            *({"margin": margin} for margin in MARGINS),
            *({"chunk": chunk} for chunk in CHUNKS if chunk <= 2048),
        ],
        _chunked,
    ),
    "layers": Entrant(
        "layers of prefill between decode steps",
        lambda costs, limits: [{"margin": margin, "chunk": chunk} for margin in MARGINS for chunk in (4096, 2048)],
        lambda settings, costs, limits: LayerInterleaved(costs, settings["margin"] * limits.gap_s, settings["chunk"]),
    ),
    "streams": Entrant("two plain streams", _chunks, _concurrent("streams")),
    "priority": Entrant("decode on a priority stream", _chunks, _concurrent("priority")),
    "overlay": Entrant(
        "overlay",
        lambda costs, limits: [{"prefill_sms": sms, "chunk": chunk} for sms in OVERLAY_SIZES for chunk in (2048, 1024)],
        _concurrent("overlay"),
    ),
    "disjoint": Entrant(
        "disjoint partitions",
        lambda costs, limits: [{"decode_sms": sms, "chunk": chunk} for sms in DECODE_SIZES for chunk in (2048, 1024)],
        _concurrent("disjoint"),
    ),
    "policy": Entrant(
        "partitions by policy",
        lambda costs, limits: [{"margin": margin, "chunk": chunk} for margin in MARGINS for chunk in (2048, 1024)],
        _policy,
    ),
}
