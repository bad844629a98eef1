"""An executor without a GPU: a virtual clock, on which steps take what a cost model says."""

from __future__ import annotations

from dataclasses import dataclass

from serving.costs import Costs
from serving.work import Done, Lane, Placement, Step


@dataclass
class _Running:
    step: Step
    placement: Placement
    begin: float
    left: float  # seconds that it would take alone


class VirtualExecutor:
    """Runs at most one step of each lane at a time, and on one stream at most one step."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
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
        self._running[lane] = _Running(step, placement, self._now, self._costs.seconds(step, sms))

    def finished(self) -> list[Done]:
        found, self._finished = self._finished, []
        return found

    def rest(self, until: float) -> None:
        """Go on to the next end of a step, or to a time if that comes first."""
        slow = {
            lane: self._costs.slowdown(one.placement, lane) if len(self._running) > 1 else 1.0
            for lane, one in self._running.items()
        }
        ends = {lane: self._now + one.left * slow[lane] for lane, one in self._running.items()}
        at = min([until, *ends.values()])
        if at == float("inf"):
            raise RuntimeError("nothing runs, and nothing is expected")
        for lane, one in list(self._running.items()):
            if ends[lane] <= at:
                self._finished.append(Done(lane, one.step, one.placement, one.begin, ends[lane]))
                del self._running[lane]
            else:
                one.left -= (at - self._now) / slow[lane]
        self._now = at
