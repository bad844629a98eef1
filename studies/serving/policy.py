"""Placements as plans of the package, and its policy over them, from the costs of steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from cuda_gctx import Layout
from cuda_gctx.tune import Plan, Policy
from serving.contenders import Chunked, Concurrent, Decision, Pace, decodes_for, mixed_chunks
from serving.costs import Costs
from serving.loop import Contender, State
from serving.work import ONE, Lane, Placement, Segment, Step

LANES: tuple[Lane, Lane] = ("decode", "prefill")
KEYS = ("batch", "context", "past")
# A load counts as the next larger one of these: sequences that decode, and their cached tokens.
BATCHES = (1, 2, 4, 8, 12, 16, 32, 64, 128)
CONTEXTS = tuple(round(2 ** (n / 4)) for n in range(40, 81))
# The share by which another plan has to be better than the one in use.
HYSTERESIS = 0.05
# By how much what is predicted of a kind of placement may be off before it is used: kinds that could be better by so
# much are tried for a few steps.
ERROR = 0.15
# What partitions have to promise more than the whole device: lanes wait for each other at each change of layout, and
# the rate of large chunks is not reached at the ends of prompts.
EDGE = {"disjoint": 0.1, "overlay": 0.1}
# Steps on one stream for which a choice holds while the load stays the same: the device idles while the host chooses.
CHOICE_HOLDS = 8
# Tokens of a prompt that are cached before a chunk. With coarser sizes, the middle of a prompt looks like the end of
# one that is twice as long, and partitions better than they are.
PASTS = tuple(round(2 ** (n / 2)) for n in range(24, 31))
# Tokens of prompts that one step could take.
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)


def counted_as(value: int, sizes: Sequence[int]) -> int:
    """The smallest size that is not below a value, or the largest one."""
    return sizes[min(bisect_left(sizes, value), len(sizes) - 1)]


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


class ByCosts:
    """Chooses for one limit, with a tune.Policy for each kind of placement: disjoint partitions, overlays, a priority
    stream, or chunked prefill.

    target_s: the share of the limit that a decode step may take. chunk_of: the tokens of a chunk on so many SMs. What
    is predicted is corrected by what steps of that kind have taken. Among the plans that keep the limit, that with the
    highest rate of prompts is best: decodes that are put off share steps later, and cost less.
    """

    def __init__(
        self, costs: Costs, target_s: float, decode_sizes: Sequence[int], chunk_of: Callable[[int], int]
    ) -> None:
        self._chosen: Contender | None = None
        whole = costs.sm_count
        self._costs = costs
        self._target_s = target_s
        placements = [Placement("priority")]
        placements += [Placement("overlay", None, whole - size) for size in decode_sizes]
        placements += [Placement("disjoint", size, whole - size) for size in decode_sizes]
        chunks = {placement: chunk_of(placement.prefill_sms or whole) for placement in placements}
        self._chunked = Chunked(costs, target_s)
        self._chunks = mixed_chunks(costs)
        self._whole = Concurrent(placements[0], chunks[placements[0]])
        self._placed = {plan_of(placement, whole): (placement, chunk) for placement, chunk in chunks.items()}
        self._contenders: dict[Plan, Contender] = {plan: Concurrent(*placed) for plan, placed in self._placed.items()}
        self._work = Work(costs, chunks[placements[0]])
        self._one = plan_of(ONE, whole)
        self._contenders[self._one] = self._chunked
        self._current = self._one
        self._known: dict[Any, Plan] = {}
        self._asked: Any = None  # the load of the last choice, and for how many steps it still holds
        self._holds = 0
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
        # A placement changes while no prefill runs: a decode step would have to wait for the SMs of one.
        if self._chosen is None or not any(step.segments for step in state.busy.values()):
            self._chosen = self._of_state(state)
        return self._chosen.decide(state)

    def _of_state(self, state: State) -> Contender:
        context = sum([served.context for served in state.decoding])
        past = state.waiting[0].done if state.waiting else 0
        tokens = sum([served.request.prompt - served.done for served in state.waiting])
        return self.choose(len(state.decoding), context, past, tokens)

    def choose(self, batch: int, context: int, past: int, tokens: int = TOKENS[-1]) -> Contender:
        """What is best for sequences that decode and their cached tokens.

        past: cached tokens of the next prompt. tokens: what is left of it, and of those that fit into the same step.
        """
        if tokens == 0 or batch == 0:
            # What works has the whole device, on one stream or on two.
            return self._chunked if self._current == self._one else self._whole
        load = counted_as(batch, BATCHES), counted_as(context, CONTEXTS), counted_as(past, PASTS)
        asked = (*load, counted_as(tokens, TOKENS))
        if asked == self._asked and self._holds and self._current == self._one:
            self._holds -= 1
            return self._chunked
        self._asked, self._holds = asked, CHOICE_HOLDS - 1
        hoped = self._hoped()
        key = (self._current, *asked, *hoped.items(), *[pace.rounded for pace in self._all_paces()])
        if key not in self._known:
            self._known[key] = self._best(dict(zip(KEYS, load, strict=True)), asked[3], hoped)
        self._current = self._known[key]
        return self._contenders[self._current]

    def _all_paces(self) -> list[Pace]:
        return [self._chunked.pace, *(pace for kind in self.paces.values() for pace in kind.values())]

    def _hoped(self) -> dict[str, float]:
        """By what the time of prompts is corrected in comparisons, by kind of placement.

        A kind that has not been used is expected to be off as the others are: clocks are the same for all.
        """
        paces = {"one": self._chunked.pace, **{kind: lanes["prefill"] for kind, lanes in self.paces.items()}}
        prior = fmean([pace.mean for pace in paces.values() if pace.count] or [1.0])
        return {kind: round(pace.hoped(prior, ERROR), 2) for kind, pace in paces.items()}

    def _best(self, load: dict[str, Any], tokens: int, hoped: Mapping[str, float]) -> Plan:
        offers = {one.plan: one for one in self._offers(load, tokens, hoped)}
        kept = {plan: one.prompts for plan, one in offers.items() if one.seconds <= self._target_s}
        best = max(kept, key=kept.__getitem__) if kept else min(offers, key=lambda plan: offers[plan].seconds)
        if self._current in kept and kept[self._current] >= (1 - HYSTERESIS) * kept[best]:
            return self._current
        return best

    def _offers(self, load: dict[str, Any], tokens: int, hoped: Mapping[str, float]) -> Iterator[Offer]:
        """The best plan of each kind for a load, corrected by what steps have taken, with so many tokens to prefill."""
        for kind, policy in self.policies.items():
            pace = self.paces[kind]["decode"].rounded
            plan = policy.choose(self._target_s / pace, self._current, **load)
            seconds = pace * policy.predict(plan, **load).latency_s
            placement, chunk = self._placed[plan]
            rate = _rate(self._costs, self._work, placement, min(chunk, tokens), load["past"])
            yield Offer(plan, seconds, rate / hoped[kind] / (1 + EDGE.get(kind, 0.0)))
        # The chunk that keeps the target depends on the pace.
        pace = self._chunked.pace.rounded
        seconds, prompts = _chunked(self._chunks, self._costs, self._work, self._target_s / pace, tokens, **load)
        yield Offer(self._one, pace * seconds, prompts / hoped["one"])


class Following(ByCosts):
    """Partitions that follow the load: the policy without chunks, and over placements of one kind.

    Which of them prompts get depends on the batch; a lane that works alone has the whole device.
    """

    def __init__(self, kind: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.policies = {kind: self.policies[kind]}
        self._current = plan_of(self._whole.placement, self._costs.sm_count)

    def _offers(self, load: dict[str, Any], tokens: int, hoped: Mapping[str, float]) -> Iterator[Offer]:
        return (one for one in super()._offers(load, tokens, hoped) if one.plan != self._one)


class Offer(NamedTuple):
    """The time of a decode step with a plan, and the work of prompts in seconds per second."""

    plan: Plan
    seconds: float
    prompts: float


class Work:
    """What tokens of prompts take alone on the whole device, in seconds."""

    def __init__(self, costs: Costs, chunk: int) -> None:
        self._of_a_token = {past: costs.seconds(Step(segments=(Segment(0, past, chunk),))) / chunk for past in PASTS}

    def of_prompts(self, tokens: int, past: int) -> float:
        return tokens * self._of_a_token[past]


def _policy_of(costs: Costs, work: Work, chunks: Mapping[Placement, int]) -> Policy:
    """A policy over placements: the time of a decode step and the work of prompts per second, next to each other."""
    rows = []
    for placement, chunk in chunks.items():
        plan, slowdown = plan_of(placement, costs.sm_count), costs.slowdown(placement, "decode")
        rates = {past: _rate(costs, work, placement, chunk, past) for past in PASTS}
        for batch, context in product(BATCHES, CONTEXTS):
            decode = costs.decode_seconds(batch, context, placement.decode_sms or costs.sm_count) * slowdown
            rows += [
                ({"batch": batch, "context": context, "past": past}, plan, decode, rate) for past, rate in rates.items()
            ]
    return Policy.of(rows, latency="decode", bulk="prefill", hysteresis=HYSTERESIS)


def _rate(costs: Costs, work: Work, placement: Placement, tokens: int, past: int) -> float:
    """The work of prompts per second next to decodes, in steps of so many tokens."""
    seconds = costs.seconds(Step(segments=(Segment(0, past, tokens),)), placement.prefill_sms)
    return work.of_prompts(tokens, past) / (seconds * costs.slowdown(placement, "prefill"))


def _chunked(
    sizes: Sequence[int], costs: Costs, work: Work, target_s: float, tokens: int, batch: int, context: int, past: int
) -> tuple[float, float]:
    """The time of a step and the work of prompts per second, for the largest size that keeps the target next to
    decodes, or for the smallest one; at most for so many tokens.
    """
    decodes = decodes_for(batch)

    def seconds(chunk: int) -> float:
        return _mixed_seconds(costs, chunk, chunk - decodes, context, past)

    chunks = [chunk for chunk in sizes if chunk > decodes]
    chunks = chunks[: max(1, bisect_left(chunks, decodes + tokens) + 1)]
    chunk = chunks[max(1, bisect_right(chunks, target_s, key=seconds)) - 1]
    return seconds(chunk), work.of_prompts(min(tokens, chunk - decodes), past) / seconds(chunk)


def _mixed_seconds(costs: Costs, rows: int, count: int, context: int, past: int) -> float:
    """The time of a step with `count` tokens of a prompt. Both share the GEMMs, which read the weights once."""
    return costs.mixed_seconds(rows, context, count * past + count * (count + 1) // 2)
