"""The loop that serves the requests of a load: the same one for every contender and every executor.

The host never waits for the device: it polls for steps that ended, takes requests that have arrived, and asks the
contender for the next steps. A token counts at the time at which the loop sees the end of its step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

from serving.loads import Request
from serving.work import Done, Lane, Placement, Row, Step


@dataclass(eq=False)
class Served:
    """A request in a slot of the caches."""

    request: Request
    slot: int
    done: int = 0  # tokens of the prompt whose step has ended
    tokens: list[float] = field(default_factory=list)  # when each token of the answer was seen

    @property
    def context(self) -> int:
        """Tokens that the next step reads: the prompt, and the answer so far."""
        return self.request.prompt + len(self.tokens)

    @property
    def row(self) -> Row:
        return Row(self.slot, self.request.prompt + len(self.tokens) - 1)


class Ended(NamedTuple):
    """What a step took, from the decision for it to the loop's seeing its end; beside: next to the other lane."""

    lane: Lane
    step: Step
    placement: Placement
    seconds: float
    beside: bool


@dataclass
class State:
    """What a contender decides from."""

    now: float = 0.0
    waiting: deque[Served] = field(default_factory=deque)  # in a slot, with prompt left, in order of arrival
    decoding: list[Served] = field(default_factory=list)
    busy: dict[Lane, Step] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)  # since the last decision

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(sequence.row for sequence in self.decoding)


class Contender(Protocol):
    """Decides what runs next, on which lane, and where."""

    def decide(self, state: State) -> list[tuple[Lane, Step, Placement]]:
        """Steps to start now, on lanes that are not busy."""


@dataclass(frozen=True)
class Limits:
    """Seconds: between two tokens of an answer, and from the arrival to the first token."""

    gap_s: float
    first_token_s: float
    share: float = 0.99


@dataclass
class Record:
    """What a trial showed.

    placements: how many followed each other. complete: whether all requests were served; a trial that has failed is
    cut short.
    """

    gaps: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    steps: list[Done] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    placements: int = 0
    complete: bool = False

    def keeps(self, limits: Limits) -> bool:
        """Whether the share of gaps and the share of first tokens keep their limits."""
        return self.complete and all(
            sum(value <= limit for value in values) >= limits.share * len(values)
            for values, limit in ((self.gaps, limits.gap_s), (self.first_tokens, limits.first_token_s))
        )


class Serving:
    """One trial: requests, a contender and an executor. The requests' clock starts with run()."""

    def __init__(
        self, contender: Contender, executor: Any, requests: Sequence[Request], slots: int, *, seed: int = 0
    ) -> None:
        self._contender = contender
        self._executor = executor
        self._coming = deque(requests)
        self._queue: deque[Request] = deque()
        self._free = list(range(slots))
        self._seed = seed
        self._all = len(requests)
        self._gaps_in_all = sum(request.answer - 1 for request in requests)
        self._served: dict[int, Served] = {}
        self._late_gaps = self._late_first = 0
        self._placement: Placement | None = None
        self._begun: dict[Lane, tuple[float, bool]] = {}  # when a step was decided, and whether next to the other lane
        self.state = State()
        self.record = Record()
        self.on_end: Callable[[Served], None] = lambda served: None  # called before the slot is used again

    def run(self, limits: Limits | None = None) -> Record:
        """Serve until all requests are answered, or until the limits cannot be kept any more."""
        begin = self._executor.now()
        record, state = self.record, self.state
        ended = 0
        while ended < self._all:
            state.now = self._executor.now() - begin
            state.ended = []
            both = len(state.busy) > 1
            for done in self._executor.finished():
                ended += self._apply(done, begin, limits, both)
            self._take()
            if limits is not None and self._has_failed(limits):
                break
            launched = self._contender.decide(state)
            for lane, step, placement in launched:
                state.busy[lane] = step
                record.placements += placement != self._placement
                self._placement = placement
                self._executor.launch(lane, step, placement)
            self._begun |= {lane: (state.now, len(state.busy) > 1) for lane, _, _ in launched}
            if ended < self._all:
                self._executor.rest(begin + (self._coming[0].arrival if self._coming else inf))
        record.seconds = self._executor.now() - begin
        record.complete = ended == self._all
        return record

    def drain(self) -> None:
        """Wait for what is still running, without starting more."""
        while self.state.busy:
            self._executor.rest(inf)
            for done in self._executor.finished():
                del self.state.busy[done.lane]

    def _take(self) -> None:
        state = self.state
        while self._coming and self._coming[0].arrival <= state.now:
            self._queue.append(self._coming.popleft())
        while self._queue and self._free:
            request = self._queue.popleft()
            sequence = Served(request, self._free.pop())
            self._served[sequence.slot] = sequence
            self._executor.admit(sequence.slot, request.prompt, self._seed * 1_000_003 + request.number)
            state.waiting.append(sequence)

    def _apply(self, done: Done, begin: float, limits: Limits | None, both: bool) -> int:
        """Enters the results of a step; returns the number of sequences that ended. both: the other lane was busy."""
        state, record, now = self.state, self.record, self._executor.now() - begin
        del state.busy[done.lane]
        record.steps.append(done)
        at, beside = self._begun.pop(done.lane)
        state.ended.append(Ended(done.lane, done.step, done.placement, now - at, beside and both))
        for segment in done.step.segments:
            sequence = self._served[segment.slot]
            sequence.done += segment.count
            if segment.last:
                state.waiting.remove(sequence)
                first = now - sequence.request.arrival
                record.first_tokens.append(first)
                self._late_first += limits is not None and first > limits.first_token_s
                state.decoding.append(sequence)
                sequence.tokens.append(now)
                record.tokens += 1
        for row in done.step.rows:
            sequence = self._served[row.slot]
            gap = now - sequence.tokens[-1]
            record.gaps.append(gap)
            self._late_gaps += limits is not None and gap > limits.gap_s
            sequence.tokens.append(now)
            record.tokens += 1
        ended = [one for one in state.decoding if len(one.tokens) >= one.request.answer]
        for sequence in ended:
            self.on_end(sequence)
            state.decoding.remove(sequence)
            del self._served[sequence.slot]
            self._free.append(sequence.slot)
        return len(ended)

    def _has_failed(self, limits: Limits) -> bool:
        overdue = sum(self.state.now - one.request.arrival > limits.first_token_s for one in self.state.waiting)
        overdue += sum(self.state.now - request.arrival > limits.first_token_s for request in self._queue)
        allowed = 1 - limits.share
        return self._late_gaps > allowed * self._gaps_in_all or self._late_first + overdue > allowed * self._all
