"""An executor without a GPU: a virtual clock, on which steps take what a cost model says."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random

from serving.costs import Costs
from serving.work import Done, Lane, Placement, Step


@dataclass
class _Running:
    step: Step
    placement: Placement
    begin: float
    left: float  # seconds that it would take alone


class VirtualExecutor:
    """Runs at most one step of each lane at a time, and on one stream at most one step.

    host_s: what the host takes before each step. noise: the standard deviation of what a step takes, as a share.
    """

    def __init__(self, costs: Costs, *, host_s: float = 0.0, noise: float = 0.0) -> None:
        self._costs = costs
        self._host_s = host_s
        self._noise = noise
        self._random = Random(0)
        self._now = 0.0
        self._running: dict[Lane, _Running] = {}
        self._finished: list[Done] = []
        self.placements: list[Placement] = []  # each change

    def now(self) -> float:
        return self._now

    def admit(self, slot: int, prompt: int, seed: int) -> None:
        """A prompt comes into a slot; there are no tokens here."""

    def launch(self, lane: Lane, step: Step, placement: Placement) -> None:
        if lane in self._running or (placement.kind == "one" and self._running):
            raise RuntimeError(f"the {lane} lane is busy")
        if not self.placements or self.placements[-1] != placement:
            self.placements.append(placement)
        sms = placement.decode_sms if lane == "decode" else placement.prefill_sms
        seconds = self._costs.seconds(step, sms) * self._random.lognormvariate(0.0, self._noise) + self._host_s
        self._running[lane] = _Running(step, placement, self._now, seconds)

    def finished(self) -> list[Done]:
        found, self._finished = self._finished, []
        return found

    def rest(self, until: float) -> None:
        """Go on to the next end of a step, or to a time if that comes first."""
        slow = {lane: self._slowed(lane) for lane in self._running}
        ends = {lane: self._now + one.left * slow[lane] for lane, one in self._running.items()}
        at = min([until, *ends.values()])
        if at == inf:
            raise RuntimeError("nothing runs, and nothing is expected")
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
        beside = any(one.placement == mine for one in others)
        return self._costs.slowdown(mine, lane) if beside else 1.0
