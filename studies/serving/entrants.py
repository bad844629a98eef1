"""The contenders of the study by name, and the settings that are searched for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.contenders import Chunked, Concurrent, PrefillFirst
from serving.costs import Costs
from serving.loop import Contender, Limits
from serving.policy import ByCosts, Following
from serving.shapes import SHAPES
from serving.work import Placement


@dataclass(frozen=True)
class Entrant:
    """A contender of the study: how it is called, the settings that are searched, and how one is made of them."""

    title: str
    settings: Callable[[Costs], list[dict[str, Any]]]
    make: Callable[[Mapping[str, Any], Costs, Limits], Contender]


DECODE_SIZES = (16, 24, 32, 48, 64)
WAVES = (2, 1)
LARGE_CHUNKS = (1024, 2048, 4096)
FIXED_CHUNKS = (256, 512, 1024)
# Shares of the limit that a step may take.
MARGINS = (0.9, 0.95, 0.85)


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


def _in_partitions(costs: Costs, most_decode: int) -> list[tuple[int, int]]:
    """SMs of prefill next to the sizes for decode, and chunks that suit them."""
    prefills = [costs.sm_count - size for size in DECODE_SIZES if size <= most_decode]
    return [(sms, SHAPES[costs.model].tokens_of_waves(sms, waves)) for sms in prefills for waves in WAVES]


def _chosen(kind: str | None = None) -> Callable[[Mapping[str, Any], Costs, Limits], Contender]:
    """A policy over all placements and chunks, or over the placements of one kind."""

    def make(settings: Mapping[str, Any], costs: Costs, limits: Limits) -> Contender:
        def chunk_of(sms: int) -> int:
            return settings.get("chunk") or SHAPES[costs.model].tokens_of_waves(sms, settings["waves"])

        target_s = settings["margin"] * limits.gap_s
        if kind is None:
            return ByCosts(costs, target_s, DECODE_SIZES, chunk_of)
        return Following(kind, costs, target_s, DECODE_SIZES, chunk_of)

    return make


def _margins_and_waves(costs: Costs) -> list[dict[str, Any]]:
    return [{"margin": margin, "waves": waves} for margin in MARGINS for waves in WAVES]


def _chunks(costs: Costs) -> list[dict[str, Any]]:
    return [{"chunk": chunk} for chunk in LARGE_CHUNKS]


ENTRANTS: dict[str, Entrant] = {
    "prefill-first": Entrant("prefill first", _chunks, lambda settings, costs, limits: PrefillFirst(settings["chunk"])),
    "chunked": Entrant(
        "chunked prefill",
        lambda costs: [
            *({"margin": margin} for margin in MARGINS),
            *({"chunk": chunk} for chunk in FIXED_CHUNKS),
        ],
        _chunked,
    ),
    "streams": Entrant("two plain streams", _chunks, _concurrent("streams")),
    "priority": Entrant("decode on a priority stream", _chunks, _concurrent("priority")),
    "overlay": Entrant(
        "overlay, one split",
        lambda costs: [{"prefill_sms": sms, "chunk": chunk} for sms, chunk in _in_partitions(costs, 48)],
        _concurrent("overlay"),
    ),
    "disjoint": Entrant(
        "disjoint partitions, one split",
        lambda costs: [
            {"decode_sms": costs.sm_count - sms, "chunk": chunk} for sms, chunk in _in_partitions(costs, 64)
        ],
        _concurrent("disjoint"),
    ),
    "following-overlay": Entrant("overlays that follow the load", _margins_and_waves, _chosen("overlay")),
    "following-disjoint": Entrant("disjoint partitions that follow the load", _margins_and_waves, _chosen("disjoint")),
    "policy": Entrant("partitions or chunks, by policy", _margins_and_waves, _chosen()),
}
