"""What contenders and executors exchange: steps, and the places where they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Lane = Literal["decode", "prefill"]


class Row(NamedTuple):
    """The next token of a sequence in a slot, at a position."""

    slot: int
    position: int


@dataclass(frozen=True)
class Segment:
    """Tokens of a prompt: `count` of them from `start` on; `last`: the first token of the answer follows."""

    slot: int
    start: int
    count: int
    last: bool = False


@dataclass(frozen=True)
class Step:
    """One pass through the model: a batch of decodes, segments of prompts, or both in the same GEMMs."""

    rows: tuple[Row, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.count for segment in self.segments)

    @property
    def context(self) -> int:
        """Cached tokens that the decodes read."""
        return sum(row.position + 1 for row in self.rows)


@dataclass(frozen=True)
class Placement:
    """Where the two lanes run.

    kind: "one" (one stream), "streams" (two plain streams), "priority" (decode on a stream of the highest priority),
    "overlay" (prefill in a partition, decode on the whole device with the highest priority) or "disjoint".
    """

    kind: Literal["one", "streams", "priority", "overlay", "disjoint"]
    decode_sms: int | None = None
    prefill_sms: int | None = None


ONE = Placement("one")


@dataclass(frozen=True)
class Done:
    """A step that ended: on which lane, where, and when it began and ended, in seconds of the executor's clock."""

    lane: Lane
    step: Step
    placement: Placement
    begin: float
    end: float
