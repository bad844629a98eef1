"""Whether the policy keeps up with the best single contender on cards whose costs are not as expected, rehearsed.

python benchmarks/serve.py worlds    many of them, with the measured costs, until --minutes are over
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from random import Random
from typing import Any

from serving.costs import Costs
from serving.entrants import ENTRANTS
from serving.loads import LOADS, Load, load_of
from serving.loop import Limits, Serving
from serving.search import SHARE
from serving.trials import HOST_S, NOISE, SHARE_OF_PROMPTS, seconds_of_a_prompt
from serving.virtual import VirtualExecutor

# By how much each kind of placement is off, and all steps that compute together: clocks fall under load.
OFF, HEAT = 0.15, (1.0, 1.14)
# Rates are compared in steps of 1%. The policy has to keep the first of these shares of the best one.
STEP = 1.01
SHARES = (SHARE, 0.97, 0.96, 0.95, 0.93, 0.9, 0.85, 0.8)
POLICY = {"margin": 0.9, "waves": 2}
SINGLE: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("chunked", {"margin": 0.9}),
    ("chunked", {"chunk": 256}),
    ("chunked", {"chunk": 512}),
    ("priority", {"chunk": 2048}),
    ("priority", {"chunk": 1024}),
    ("disjoint", {"decode_sms": 16, "chunk": 1792}),
    ("disjoint", {"decode_sms": 24, "chunk": 1664}),
    ("disjoint", {"decode_sms": 32, "chunk": 1536}),
    ("overlay", {"prefill_sms": 116, "chunk": 1792}),
    ("overlay", {"prefill_sms": 108, "chunk": 1664}),
)


@dataclass(frozen=True)
class World:
    """A card on which steps take what `truth` says, where the contenders believe `costs`."""

    seed: int
    costs: Costs
    truth: Costs
    load: Load
    limits: Limits

    @classmethod
    def drawn(cls, costs: Costs, load: Load, gap_ms: float, seed: int) -> World:
        random = Random(seed)
        truth = costs.heated(random.uniform(*HEAT)).perturbed(random, OFF)
        return cls(seed, costs, truth, load, Limits(gap_ms / 1e3, load.first_token_s))

    def __str__(self) -> str:
        return f"{self.load.name}, {1e3 * self.limits.gap_s:g} ms, seed {self.seed}"

    def keeps(self, name: str, settings: Mapping[str, Any], rate: float) -> bool:
        """Whether a contender keeps a rate here."""
        contender = ENTRANTS[name].make(settings, self.costs, self.limits)
        executor = VirtualExecutor(self.truth, host_s=HOST_S, noise=NOISE)
        requests = self.load.draw(rate, self.seed)
        return Serving(contender, executor, requests, self.load.sequences).run(self.limits).keeps(self.limits)

    def best(self) -> tuple[float, str]:
        """The highest rate that a single contender keeps, in steps, and the contender."""
        rate = SHARE_OF_PROMPTS / seconds_of_a_prompt(self.load, self.truth)
        while not (left := self._keeping(SINGLE, rate)):
            rate /= STEP**16
        for steps in (16, 8, 4, 2, 1):
            while further := self._keeping(left, rate * STEP**steps):
                left, rate = further, rate * STEP**steps
        return rate, left[0][0]

    def _keeping(
        self, contenders: Sequence[tuple[str, Mapping[str, Any]]], rate: float
    ) -> list[tuple[str, Mapping[str, Any]]]:
        return [one for one in contenders if self.keeps(*one, rate)]

    def share_of_policy(self, best: float) -> float:
        """The highest of SHARES of a rate that the policy keeps."""
        return next((share for share in SHARES if self.keeps("policy", POLICY, share * best)), 0.0)


def worlds(costs: Costs, gaps_ms: Sequence[float], loads: Sequence[str] = tuple(LOADS)) -> Iterator[World]:
    """Worlds without an end: each load and limit with one seed, then with the next one."""
    for seed, load, gap_ms in ((seed, *one) for seed in count() for one in product(loads, gaps_ms)):
        yield World.drawn(costs, load_of(load, costs.model), gap_ms, seed)
