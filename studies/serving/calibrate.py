"""The costs of steps by SMs, as measured on a card: what contenders plan with."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

from serving.card import Card
from serving.contenders import CHUNKS
from serving.costs import Costs, Rates
from serving.entrants import WAVES
from serving.policy import LANES
from serving.work import ONE, Lane, Placement, Row, Segment, Step

# SMs for decode in the layouts that are measured, and tokens of the chunks.
DECODE_SIZES = (16, 24, 32, 48, 64)
MEASURED_CHUNKS = (64, 256, 512, 1024, 2048)
# How long steps run next to each other to be compared with those alone.
SECONDS_TOGETHER = 0.6


def measure_costs(card: Card) -> tuple[Costs, list[dict[str, Any]]]:
    """The costs of steps on the whole device and on both parts of each layout, and every time that was measured."""
    model = card.model
    shape, whole = model.shape, card.device.sm_count
    streams = [card.stream("decode", ONE)]
    for size in DECODE_SIZES:
        streams += [card.stream(lane, Placement("disjoint", size, whole - size)) for lane in LANES]
    chunks = [chunk for chunk in MEASURED_CHUNKS if chunk <= card.most_tokens]
    far = model.length - chunks[-1]
    rates: dict[int, Rates] = {}
    times: list[dict[str, Any]] = []
    for stream in streams:
        sms = stream.resources.sm.sm_count

        def timed(lane: Any, step: Step, what: str, stream: Any = stream, sms: int = sms) -> float:
            found = card.seconds_on(stream, lane, step)
            times.append({"model": shape.name, "sms": sms, "what": what, "ms": round(found * 1e3, 4)})
            return found

        # Small parts are for decode: chunks there only show the time of as many rows.
        large = sms * 2 > whole
        suited = {min(card.most_tokens, shape.tokens_of_waves(sms, waves)) for waves in WAVES}
        mine = sorted({*chunks, *suited} if large else {chunk for chunk in chunks if chunk <= 256})
        if sms < whole:
            lane: Lane = "prefill" if large else "decode"
            step = _chunk(max(suited), 0) if large else _decodes(card.decodes[-1], 1)
            card.hints[sms, lane] = True
            hinted = timed(lane, step, f"{lane}, with a hint")
            card.hints[sms, lane] = False
            card.hints[sms, lane] = hinted < 0.99 * timed(lane, step, f"{lane}, without a hint")
        batches = sorted({1, card.decodes[len(card.decodes) // 2], card.decodes[-1]})
        short = {n: timed("decode", _decodes(n, 1), f"decode of {n} at 1") for n in batches}
        many = batches[-1]
        long = timed("decode", _decodes(many, far), f"decode of {many} at {far}")
        per_cached = max(0.0, long - short[many]) / (many * (far - 1))
        at_start = {chunk: timed("prefill", _chunk(chunk, 0), f"chunk of {chunk} at 0") for chunk in mine}
        chunk = min(mine, key=lambda size: abs(size - 512))
        behind = timed("prefill", _chunk(chunk, far), f"chunk of {chunk} at {far}")
        per_pair = max(0.0, behind - at_start[chunk]) / (chunk * far)
        gemms = [(n, time_ - per_cached * n) for n, time_ in short.items()]
        gemms += [(n, time_ - per_pair * n * (n + 1) / 2) for n, time_ in at_start.items() if n > many]
        rates[sms] = Rates(tuple(sorted(gemms)), per_cached, per_pair)
    middle = DECODE_SIZES[len(DECODE_SIZES) // 2]
    slowdowns = {
        placement.kind: _slowdown(card, placement, far)
        for placement in (
            Placement("disjoint", middle, whole - middle),
            Placement("overlay", None, whole - middle),
            Placement("priority"),
            Placement("streams"),
        )
    }
    hints = tuple(key for key, hinted in card.hints.items() if hinted)
    costs = Costs(card.device.name, shape.name, whole, rates, slowdowns, hints)
    return replace(costs, mixed=_mixed_factors(card, costs)), times


def _mixed_factors(card: Card, parts: Costs) -> tuple[tuple[int, float], ...]:
    """How many times as long as their parts steps take that have decodes and prompts, by their rows."""
    stream, length = card.stream("decode", ONE), card.model.length
    decodes = max(size for size in card.decodes if size <= min(4, card.model.slots - 1))
    found = []
    for rows in CHUNKS:
        if rows > min(2048, card.most_tokens, length // 2):
            break
        prompt = Segment(decodes, min(length // 2, length - rows), rows - decodes)
        step = replace(_decodes(decodes, length // 2), segments=(prompt,))
        found.append((rows, round(card.seconds_on(stream, "decode", step) / parts.seconds(step), 3)))
    return tuple(found)


def _decodes(count: int, context: int) -> Step:
    return Step(rows=tuple(Row(slot, context - 1) for slot in range(count)))


def _chunk(count: int, past: int) -> Step:
    return Step(segments=(Segment(0, past, count, False),))


def _slowdown(card: Card, placement: Placement, far: int) -> tuple[float, float]:
    """How many times as long decode steps and chunks take next to each other as alone."""
    tokens = card.model.shape.tokens_of_waves(placement.prefill_sms or card.device.sm_count, WAVES[0])
    chunk = Segment(card.model.slots - 1, far // 2, min(tokens, card.most_tokens), False)
    steps: dict[Lane, Step] = {
        "decode": _decodes(card.decodes[-1] // 2 or 1, far // 2),
        "prefill": Step(segments=(chunk,)),
    }
    alone = {lane: card.seconds_on(card.stream(lane, placement), lane, step) for lane, step in steps.items()}
    card.prepare(card.shot(lane, step, placement) for lane, step in steps.items())
    found: dict[Lane, list[float]] = {lane: [] for lane in LANES}
    begin = card.now()
    for lane, step in steps.items():
        card.launch(lane, step, placement)
    while card.now() - begin < SECONDS_TOGETHER or card.busy:
        for done in card.finished():
            found[done.lane].append(done.end - done.begin)
            if card.now() - begin < SECONDS_TOGETHER:
                card.launch(done.lane, steps[done.lane], placement)
    # The last step of a lane may have run alone.
    decode, prefill = (median(found[lane][1:-1] or found[lane]) / alone[lane] for lane in LANES)
    return decode, prefill
