"""A card that does not exist: costs from the bytes and operations of a model, and a virtual clock that runs by them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from serving.costs import Costs, Rates
from serving.shapes import Shape
from serving.work import Done, Lane, Placement, Step


def costs_of(shape: Shape, sm_count: int = 132) -> Costs:
    bandwidth, operations, two = 3.0e12, 6.0e14, 2  # bytes of a weight or a cached value
    weights = shape.layers * shape.hidden * (shape.qkv + shape.heads * shape.head_size + 3 * shape.mlp)
    bytes_of_weights = two * (weights + shape.vocabulary * shape.hidden)
    rates = {}
    for sms in range(8, sm_count + 1, 4):
        share = sms / sm_count
        read, compute = bandwidth * min(1.0, 2.5 * share), operations * share
        rates[sms] = Rates(
            gemms=tuple(
                (tokens, max(bytes_of_weights / read, 2 * tokens * weights / compute))
                for tokens in (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
            ),
            per_cached_token=2 * two * shape.layers * shape.kv_heads * shape.head_size / read,
            per_pair=4 * shape.layers * shape.heads * shape.head_size / (0.6 * compute),
        )
    kinds = {"one": (1.0, 1.0), "streams": (8.0, 1.1), "priority": (1.8, 1.1), "overlay": (1.3, 1.15)}
    return Costs("made-up card", shape.name, sm_count, rates, {**kinds, "disjoint": (1.2, 1.05)})


@dataclass
class _Running:
    step: Step
    placement: Placement
    begin: float
    left: float  # seconds that it would take alone


class VirtualCard:
    """Runs at most one step of each lane at a time, and on one stream at most one step."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.placements: list[Placement] = []  # each change
        self._now = 0.0
        self._running: dict[Lane, _Running] = {}
        self._finished: list[Done] = []

    def now(self) -> float:
        return self._now

    def admit(self, slot: int, prompt: int, seed: int) -> None:
        """A prompt comes into a slot; there are no tokens here."""

    def launch(self, lane: Lane, step: Step, placement: Placement) -> None:
        assert lane not in self._running
        assert placement.kind != "one" or not self._running
        if not self.placements or self.placements[-1] != placement:
            # A decode step would have to wait for the SMs of a prefill.
            assert "prefill" not in self._running
            self.placements.append(placement)
        sms = placement.decode_sms if lane == "decode" else placement.prefill_sms
        self._running[lane] = _Running(step, placement, self._now, self.costs.seconds(step, sms))

    def finished(self) -> list[Done]:
        found, self._finished = self._finished, []
        return found

    def rest(self, until: float) -> None:
        """Go on to the next end of a step, or to a time if that comes first."""
        slow = {lane: self._slowed(lane) for lane in self._running}
        ends = {lane: self._now + one.left * slow[lane] for lane, one in self._running.items()}
        at = min([until, *ends.values()])
        assert at < inf, "nothing runs, and nothing is expected"
        for lane, one in list(self._running.items()):
            if ends[lane] <= at:
                self._finished.append(Done(lane, one.step, one.placement, one.begin, ends[lane]))
                del self._running[lane]
            else:
                one.left -= (at - self._now) / slow[lane]
        self._now = at

    def _slowed(self, lane: Lane) -> float:
        """How many times as long as alone a step takes now. One in another placement waits for those before it."""
        first, *others = self._running.values()
        mine = self._running[lane].placement
        if mine != first.placement:
            return inf
        return self.costs.slowdown(mine, lane) if any(one.placement == mine for one in others) else 1.0
