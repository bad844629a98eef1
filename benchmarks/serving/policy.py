"""Placements as plans of the package, and its policy over them, from the costs of steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from cuda_gctx import Layout
from cuda_gctx.tune import Plan, Policy
from serving.contenders import CHUNKS, ByPolicy, Chunked, Concurrent, Decision, Pace, decodes_for
from serving.costs import Costs
from serving.loop import Contender, State
from serving.work import ONE, Lane, Placement, Segment, Step

LANES: tuple[Lane, Lane] = ("decode", "prefill")
# A load counts as the next larger one of these: sequences that decode, and their cached tokens.
BATCHES = (1, 2, 4, 8, 12, 16, 32, 64, 128)
CONTEXTS = tuple(round(2 ** (n / 4)) for n in range(40, 81))
# The share by which another plan has to be better than the one in use.
HYSTERESIS = 0.05
# Tokens of a prompt that are cached before a chunk.
PASTS = (4096, 16384, 32768)


def plan_of(placement: Placement, sm_count: int) -> Plan:
    """A placement as a plan."""
    if placement.kind in ("one", "streams"):
        return Plan("sequence" if placement.kind == "one" else "streams", LANES)
    if placement.kind == "priority":
        return Plan("priority", LANES, first="decode")
    # An overlay has the partition of prefill that disjoint partitions have, and so its context and graphs.
    decode = placement.decode_sms or sm_count - (placement.prefill_sms or 0)
    layout = Layout(decode=decode, prefill=None)
    if placement.kind == "overlay":
        return Plan("overlay", LANES, layout, {"prefill": "prefill"}, first="decode")
    return Plan("partitions", LANES, layout, {lane: lane for lane in LANES})


class ByCosts(ByPolicy):
    """Chooses for one limit, with a tune.Policy for each kind of placement: disjoint partitions, overlays, a priority
    stream, or chunked prefill.

    target_s: the share of the limit that a decode step may take. chunk_of: the tokens of a chunk on so many SMs. What
    the policies predict is corrected by what steps of that kind have taken. While no prompt waits or nothing decodes,
    the one that works has the whole device.
    """

    def __init__(
        self, costs: Costs, target_s: float, decode_sizes: Sequence[int], chunk_of: Callable[[int], int]
    ) -> None:
        super().__init__(self.of_state)
        whole = costs.sm_count
        self._costs = costs
        self._target_s = target_s
        placements = [Placement("priority")]
        placements += [Placement("overlay", None, whole - size) for size in decode_sizes]
        placements += [Placement("disjoint", size, whole - size) for size in decode_sizes]
        chunks = {placement: chunk_of(placement.prefill_sms or whole) for placement in placements}
        self._chunked = Chunked(costs, target_s)
        self._whole = Concurrent(placements[0], chunks[placements[0]])
        self._contenders: dict[Plan, Contender] = {
            plan_of(placement, whole): Concurrent(placement, chunk) for placement, chunk in chunks.items()
        }
        self._work = Work(costs, chunks[placements[0]])
        self._one = plan_of(ONE, whole)
        self._contenders[self._one] = self._chunked
        self._current: Plan | None = None
        self.paces: dict[str, dict[Lane, Pace]] = {
            placement.kind: {lane: Pace() for lane in LANES} for placement in placements
        }
        self.policies = {
            kind: _policy_of(costs, self._work, {one: chunk for one, chunk in chunks.items() if one.kind == kind})
            for kind in self.paces
        }

    def decide(self, state: State) -> Decision:
        for one in state.ended:
            if one.beside and one.placement.kind in self.paces:
                sms = one.placement.decode_sms if one.lane == "decode" else one.placement.prefill_sms
                predicted = self._costs.seconds(one.step, sms) * self._costs.slowdown(one.placement, one.lane)
                self.paces[one.placement.kind][one.lane].note(one.seconds, predicted)
        return super().decide(state)

    def of_state(self, state: State) -> Contender:
        context = sum([served.context for served in state.decoding])
        past = state.waiting[0].done if state.waiting else None
        return self.choose(len(state.decoding), context, past, crowded=state.queued > 0)

    def choose(self, batch: int, context: int, past: int | None, *, crowded: bool = False) -> Contender:
        """What is best for sequences that decode, their cached tokens, and so many of the next prompt, None without.

        crowded: requests wait for others to end, so that decodes count too, and not only prompts.
        """
        if past is None or batch == 0:
            return self._whole
        load = {
            "batch": min(batch, BATCHES[-1]), "context": min(context, CONTEXTS[-1]), "past": min(past, PASTS[-1])
        }  # fmt: skip
        offers = {one.plan: one for one in self._offers(load)}
        kept = {plan: one.work(crowded) for plan, one in offers.items() if one.seconds <= self._target_s}
        best = max(kept, key=kept.__getitem__) if kept else min(offers, key=lambda plan: offers[plan].seconds)
        if self._current not in kept or kept[self._current] < (1 - HYSTERESIS) * kept[best]:
            self._current = best
        return self._contenders[self._current]

    def _offers(self, load: dict[str, Any]) -> Iterator[Offer]:
        """The best plan of each kind for a load, corrected by what steps have taken."""
        bucket: Any = {}
        for kind, paces in self.paces.items():
            policy, decode, prefill = self.policies[kind], paces["decode"].factor, paces["prefill"].factor
            plan = policy.choose(self._target_s / decode, self._current, **load)
            found = policy.predict(plan, **load)
            bucket = bucket or policy.bucket(**load)
            seconds = found.latency_s * decode
            yield Offer(plan, seconds, found.rate / prefill, self._work.of_decodes(**bucket) / seconds)
        # The chunk that keeps the target depends on the pace, so it is computed for the load that the policies look up.
        chunked = _chunked(self._costs, self._work, self._target_s, self._chunked.pace.factor, **bucket)
        yield Offer(self._one, *chunked)


class Offer(NamedTuple):
    """The time of a decode step with a plan; prompts and decodes in seconds of work per second."""

    plan: Plan
    seconds: float
    prompts: float
    decodes: float

    def work(self, crowded: bool) -> float:
        """What plans are compared by: the work of prompts, and that of decodes too where requests wait for them."""
        return self.prompts + (self.decodes if crowded else 0.0)


class Work:
    """What a decode step and the tokens of prompts take alone on the whole device, in seconds."""

    def __init__(self, costs: Costs, chunk: int) -> None:
        self._costs = costs
        self._of_a_token = {past: costs.seconds(Step(segments=(Segment(0, past, chunk),))) / chunk for past in PASTS}

    def of_decodes(self, batch: int, context: int, past: int) -> float:
        return self._costs.decode_seconds(batch, context, self._costs.sm_count)

    def of_prompts(self, tokens: int, past: int) -> float:
        return tokens * self._of_a_token[past]


def _policy_of(costs: Costs, work: Work, chunks: Mapping[Placement, int]) -> Policy:
    """A policy over placements: the time of a decode step and the work of prompts per second, next to each other."""
    rows = []
    for placement, chunk in chunks.items():
        plan, slow = plan_of(placement, costs.sm_count), partial(costs.slowdown, placement)
        rates = {
            past: work.of_prompts(chunk, past)
            / (costs.seconds(Step(segments=(Segment(0, past, chunk),)), placement.prefill_sms) * slow("prefill"))
            for past in PASTS
        }
        for batch, context in product(BATCHES, CONTEXTS):
            decode = costs.decode_seconds(batch, context, placement.decode_sms or costs.sm_count) * slow("decode")
            rows += [
                ({"batch": batch, "context": context, "past": past}, plan, decode, rate) for past, rate in rates.items()
            ]
    return Policy.of(rows, latency="decode", bulk="prefill", hysteresis=HYSTERESIS)


def _chunked(
    costs: Costs, work: Work, target_s: float, pace: float, batch: int, context: int, past: int
) -> tuple[float, float, float]:
    """The time of a step and the work of prompts and of decodes per second, for the largest chunk next to decodes that
    keeps the target, or for the smallest one.
    """
    decodes = decodes_for(batch)

    def seconds(chunk: int) -> float:
        # Decodes and prompt share the GEMMs, which read the weights once.
        tokens = chunk - decodes
        return pace * costs.mixed_seconds(chunk, context, tokens * past + tokens * (tokens + 1) // 2)

    chunks = [chunk for chunk in CHUNKS if chunk > decodes]
    chunk = chunks[max(1, bisect_right(chunks, target_s, key=seconds)) - 1]
    took = seconds(chunk)
    return took, work.of_prompts(chunk - decodes, past) / took, work.of_decodes(batch, context, past) / took
