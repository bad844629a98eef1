"""Placements as plans of the package, and its policy over them, from the costs of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuda_gctx import Layout
from cuda_gctx.tune import Plan, Policy
from serving.contenders import CHUNKS, Chunked, Concurrent
from serving.costs import Costs
from serving.loop import Contender
from serving.work import ONE, Lane, Placement, Segment, Step

LANES: tuple[Lane, Lane] = ("decode", "prefill")
# A load counts as the next larger one of these: sequences that decode, and their cached tokens.
BATCHES = (1, 2, 4, 8, 12, 16, 32, 64, 128)
CONTEXTS = tuple(round(2 ** (n / 4)) for n in range(40, 81))
# Rates of prefill are compared for a chunk behind so many tokens of its prompt.
PAST = 8192


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
    """Chooses by a tune.Policy for one limit: disjoint partitions, overlays, a priority stream, or chunked prefill.

    target_s: the share of the limit that a decode step may take. chunk_of: the tokens of a chunk on so many SMs. While
    no prompt waits or nothing decodes, the one that works has the whole device.
    """

    def __init__(
        self, costs: Costs, target_s: float, decode_sizes: Sequence[int], chunk_of: Callable[[int], int]
    ) -> None:
        whole = costs.sm_count
        self._target_s = target_s
        placements = [Placement("priority")]
        placements += [Placement("overlay", None, whole - size) for size in decode_sizes]
        placements += [Placement("disjoint", size, whole - size) for size in decode_sizes]
        chunks = {placement: chunk_of(placement.prefill_sms or whole) for placement in placements}
        self._whole = Concurrent(placements[0], chunks[placements[0]])
        self._contenders: dict[Plan, Contender] = {
            plan_of(placement, whole): Concurrent(placement, chunk) for placement, chunk in chunks.items()
        }
        self._contenders[plan_of(ONE, whole)] = Chunked(costs, target_s)
        self._current: Plan | None = None
        loads = [(batch, context) for batch in BATCHES for context in CONTEXTS]
        self.policy = Policy.of(
            (
                ({"batch": batch, "context": context}, plan_of(placement, whole), *found)
                for batch, context in loads
                for placement in (*placements, ONE)
                for found in [
                    _chunked(costs, batch, context, target_s)
                    if placement == ONE
                    else _concurrent(costs, batch, context, placement, chunks[placement])
                ]
            ),
            latency="decode",
            bulk="prefill",
        )

    def __call__(self, batch: int, context: int, waiting: bool) -> Contender:
        if not waiting or batch == 0:
            return self._whole
        load = {"batch": min(batch, BATCHES[-1]), "context": min(context, CONTEXTS[-1])}
        self._current = self.policy.choose(self._target_s, self._current, **load)
        return self._contenders[self._current]


def _chunk(tokens: int) -> Step:
    return Step(segments=(Segment(0, PAST, tokens),))


def _concurrent(costs: Costs, batch: int, context: int, placement: Placement, chunk: int) -> tuple[float, float]:
    """The time of a decode step and the tokens of prompts per second, next to each other."""
    decode = costs.decode_seconds(batch, context, placement.decode_sms or costs.sm_count)
    prefill = costs.seconds(_chunk(chunk), placement.prefill_sms)
    return decode * costs.slowdown(placement, "decode"), chunk / (prefill * costs.slowdown(placement, "prefill"))


def _chunked(costs: Costs, batch: int, context: int, target_s: float) -> tuple[float, float]:
    """The same for the largest chunk in the same step that keeps the target, or for the smallest one."""
    found = 0.0, 0.0
    for tokens in CHUNKS:
        # Decodes and prompt share the GEMMs, which read the weights once.
        seconds = costs.step_seconds(batch + tokens, context, tokens * PAST + tokens * (tokens + 1) // 2)
        if found[0] and seconds > target_s:
            break
        found = seconds, tokens / seconds
    return found
