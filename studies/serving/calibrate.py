"""What the card does: the attention against torch's, its bandwidth, and the costs of steps by SMs. Needs a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from cuda_gctx import PartitionPool, Stream
from cuda_gctx.interop.torch import torch_stream
from serving import kernels, reference
from serving.card import Card
from serving.contenders import CHUNKS
from serving.costs import Costs, Rates
from serving.entrants import WAVES
from serving.model import MOST_SPLITS, splits_for
from serving.policy import LANES
from serving.shapes import Shape
from serving.work import ONE, Lane, Placement, Row, Segment, Step

# Of the same values in float32: what rounding to bfloat16 explains.
TOLERANCE = 2e-2
DECODE_TILINGS = ((64, 2, 4), (64, 4, 3), (64, 4, 4), (32, 4, 4), (128, 4, 2), (128, 4, 3), (128, 8, 3))
PREFILL_TILINGS = ((64, 8, 3), (64, 8, 2), (128, 8, 2), (64, 4, 3))


class _Attention:
    """Queries and a cache of one layer, with the buffers that a split attention needs."""

    def __init__(self, shape: Shape, slots: int, length: int, rows: int) -> None:
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.shape = shape
        self.keys, self.values = (
            torch.randn(slots, shape.kv_heads, length, shape.head_size, **options) for _ in range(2)
        )
        self.queries = torch.randn(rows, shape.heads, shape.head_size, **options)
        self.out = torch.full_like(self.queries, float("nan"))
        numbers = MOST_SPLITS * rows * shape.heads
        self.parts = torch.zeros(numbers * shape.head_size, device="cuda")
        self.marks = torch.zeros(numbers * 2, device="cuda")

    def table(self, blocks: Sequence[Sequence[int]], rows: int) -> tuple[Any, Any]:
        slots = torch.zeros(rows, dtype=torch.int32, device="cuda")
        for slot, first, count, _ in blocks:
            slots[first : first + count] = slot
        return slots, torch.tensor(blocks, dtype=torch.int32, device="cuda")

    def run(self, table: tuple[Any, Any], tokens: int, splits: int, tiling: tuple[int, int, int] | None = None) -> Any:
        slots, blocks = table
        rows = slots.shape[0]
        kernels.attend(
            self.queries[:rows], self.keys, self.values, slots, blocks, self.out[:rows], tokens, splits, self.parts,
            self.marks, tiling,
        )  # fmt: skip
        return self.out[:rows]


def check_attention(shape: Shape) -> dict[str, float]:
    """The relative error of the attention, for decodes and chunks of prompts, against torch's in float32."""
    found = {}
    tokens = 128 // shape.group
    one = _Attention(shape, 5, 4096, 512)
    lengths = [1, 63, 64, 1000, 4000]
    decodes = [[slot, slot, 1, length - 1] for slot, length in enumerate(lengths)]
    prompts = [(0, 0, 100), (1, 1, 200), (2, 3000, 37)]  # slot, start, count
    blocks, first = [], 0
    for slot, start, count in prompts:
        for at in range(0, count, tokens):
            blocks.append([slot, first + at, min(tokens, count - at), start + at])
        first += count
    unused = [[0, 0, 0, 0]]
    for name, table, of, rows in (("decode", decodes + unused, 1, 5), ("prompt", blocks + unused, tokens, first)):
        made = one.table(table, rows)
        wanted = torch.empty(rows, shape.heads, shape.head_size, device="cuda")
        reference.attend(
            one.queries[:rows].float(),
            one.keys.float(),
            one.values.float(),
            made[0],
            made[1],
            wanted,
            of,
            1,
            None,
            None,
        )
        for splits in (1, 2, 8):
            one.out.fill_(float("nan"))
            got = one.run(made, of, splits).float()
            found[f"{name}, {splits} parts"] = ((got - wanted).norm() / wanted.norm()).item()
    return found


def _graph_seconds(stream: Any, run: Callable[[], Any], times: int = 5) -> float:
    """The median time of what a function launches, as a CUDA graph, on a torch stream."""
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run()
        found = []
        for _ in range(times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
    return median(found)


def attention_rates(shape: Shape, pool: PartitionPool, sizes: Sequence[int], *, until: float) -> dict[str, Any]:
    """GB/s of cached keys and values in a decode, by SMs and by tiling; TFLOP/s in a prefill, by tiling.

    The tilings in use come first; no more are tried after a time.
    """
    rows, context = 32, 12288
    one = _Attention(shape, rows, context, 1024)
    decodes = one.table([[slot, slot, 1, context - 1] for slot in range(rows)], rows)
    gigabytes = one.keys.nbytes * 2 / 1e9
    whole = torch.cuda.Stream()
    device_sms = pool.device.sm_count
    result: dict[str, Any] = {"decode_rows": rows, "decode_context": context, "decode_tilings": {}}

    def rate(stream: Any, sms: int, tiling: tuple[int, int, int]) -> float:
        splits = splits_for(rows * shape.kv_heads, sms, waves=8)
        return gigabytes / _graph_seconds(stream, lambda: one.run(decodes, 1, splits, tiling))

    used = kernels.DECODE_TILING
    result["decode_gb_per_s"] = {
        str(sms): rate(torch_stream(pool.prepare(decode=sms).decode), sms, used) for sms in sizes
    } | {str(device_sms): rate(whole, device_sms, used)}

    tokens = 128 // shape.group
    chunk = 1024
    result["prefill_tflop_per_s"] = {}
    for past in (0, 8192):
        prompt = one.table([[0, at, tokens, past + at] for at in range(0, chunk, tokens)], chunk)
        operations = 4 * shape.heads * shape.head_size * (chunk * past + chunk * chunk / 2) / 1e12

        def ours(tiling: tuple[int, int, int], prompt: Any = prompt) -> Any:
            return one.run(prompt, tokens, 1, tiling)

        rates = {str(tiling): operations / _graph_seconds(whole, partial(ours, tiling)) for tiling in PREFILL_TILINGS}
        query = one.queries[:chunk].transpose(0, 1)[None]
        key, value = (cache[:1, :, : past + chunk] for cache in (one.keys, one.values))

        def flash(query: Any = query, key: Any = key, value: Any = value) -> Any:
            return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)

        try:
            rates["torch's flash attention"] = operations / _graph_seconds(whole, flash)
        except RuntimeError as error:
            result["torch's flash attention"] = str(error).split("\n")[0]
        result["prefill_tflop_per_s"][f"chunk of {chunk}, past of {past}"] = rates

    few = min(sizes, key=lambda sms: abs(sms - 32))
    for tiling in DECODE_TILINGS:
        if time.monotonic() < until:
            result["decode_tilings"][str(tiling)] = {
                str(device_sms): rate(whole, device_sms, tiling),
                str(few): rate(torch_stream(pool.prepare(decode=few).decode), few, tiling),
            }
    return result


def measure_costs(
    card: Card,
    decode_sizes: Sequence[int],
    chunks: Sequence[int],
    *,
    until: float,
    save: Callable[[Costs, list[dict[str, Any]]], None],
) -> None:
    """The costs of steps on the whole device and on both parts of each layout; stops between two sizes after a time.

    save: called with the costs and every time that was measured, after each layout and at the end.
    """
    model = card.model
    shape, whole = model.shape, card.device.sm_count
    streams = [card.stream("decode", Placement("one"))]
    for size in decode_sizes:
        placement = Placement("disjoint", size, whole - size)
        streams += [card.stream(lane, placement) for lane in LANES]
    far = model.length - max(chunks)
    rates: dict[int, Rates] = {}
    times: list[dict[str, Any]] = []

    def costs_so_far(slowdowns: Mapping[str, tuple[float, float]]) -> Costs:
        hints = tuple(key for key, hinted in card.hints.items() if hinted)
        return Costs(card.device.name, shape.name, shape.layers, whole, dict(rates), slowdowns, hints)

    for stream in streams:
        sms = stream.resources.sm.sm_count
        if time.monotonic() > until and rates:
            break

        def timed(lane: Any, step: Step, what: str, stream: Stream = stream, sms: int = sms) -> float:
            found = card.seconds_on(stream, lane, step)
            times.append({"sms": sms, "what": what, "ms": round(found * 1e3, 4)})
            return found

        # Small parts are for decode: chunks there only show the time of as many rows.
        large = sms * 2 > whole
        suited = {shape.tokens_of_waves(sms, waves) for waves in WAVES}
        mine = sorted({*chunks, *suited} if large else {chunk for chunk in chunks if chunk <= 256})
        sizes = [size for size in card.decodes if size <= model.slots]
        if sms < whole:
            lane: Lane = "prefill" if large else "decode"
            step = _chunk(max(suited), 0) if large else _decodes(sizes[-1], 1)
            card.hints[sms, lane] = True
            hinted = timed(lane, step, f"{lane}, with a hint")
            card.hints[sms, lane] = False
            card.hints[sms, lane] = hinted < 0.99 * timed(lane, step, f"{lane}, without a hint")
        batches = sorted({1, sizes[len(sizes) // 2], sizes[-1]})
        short = {n: timed("decode", _decodes(n, 1), f"decode of {n} at 1") for n in batches}
        many = batches[-1]
        long = timed("decode", _decodes(many, far), f"decode of {many} at {far}")
        per_cached = (long - short[many]) / (many * (far - 1))
        at_start = {chunk: timed("prefill", _chunk(chunk, 0), f"chunk of {chunk} at 0") for chunk in mine}
        chunk = min(mine, key=lambda size: abs(size - 512))
        behind = timed("prefill", _chunk(chunk, far), f"chunk of {chunk} at {far}")
        per_pair = (behind - at_start[chunk]) / (chunk * far)
        gemms = [(n, time_ - per_cached * n) for n, time_ in short.items()]
        gemms += [(n, time_ - per_pair * n * (n + 1) / 2) for n, time_ in at_start.items() if n > many]
        rates[sms] = Rates(tuple(sorted(gemms)), per_cached, per_pair)
        if len(rates) % 2:  # the whole device, and both parts of each layout
            save(costs_so_far({}), times)
    slowdowns: dict[str, tuple[float, float]] = {
        placement.kind: _slowdown(card, placement, far)
        for placement in _placements_to_measure(card, decode_sizes)
        if time.monotonic() < until
    }
    save(costs_so_far(slowdowns), times)


def mixed_factors(card: Card, costs: Costs, most: int = 2048) -> tuple[tuple[int, float], ...]:
    """How many times as long as predicted steps take that have decodes and prompts, by their rows, `most` of them."""
    stream, length, decodes = card.stream("decode", ONE), card.model.length, 4
    parts = replace(costs, mixed=())
    found = []
    for rows in CHUNKS:
        if rows > min(most, length):
            break
        prompt = Segment(decodes, min(length // 2, length - rows), rows - decodes)
        step = replace(_decodes(decodes, length // 2), segments=(prompt,))
        found.append((rows, round(card.seconds_on(stream, "decode", step) / parts.seconds(step), 3)))
    return tuple(found)


def _decodes(count: int, context: int) -> Step:
    return Step(rows=tuple(Row(slot, context - 1) for slot in range(count)))


def _chunk(count: int, past: int) -> Step:
    return Step(segments=(Segment(0, past, count, False),))


def _placements_to_measure(card: Card, decode_sizes: Sequence[int]) -> list[Placement]:
    size = sorted(decode_sizes)[len(decode_sizes) // 2]
    rest = card.device.sm_count - size
    return [
        Placement("disjoint", size, rest),
        Placement("overlay", None, rest),
        Placement("priority"),
        Placement("streams"),
    ]


def _slowdown(card: Card, placement: Placement, far: int, seconds: float = 0.6) -> tuple[float, float]:
    """How many times as long decode steps and chunks take next to each other as alone."""
    decode = _decodes(card.decodes[-1] // 2 or 1, far // 2)
    tokens = card.model.shape.tokens_of_waves(placement.prefill_sms or card.device.sm_count, WAVES[0])
    chunk = Step(segments=(Segment(card.model.slots - 1, far // 2, tokens, False),))
    steps = {"decode": decode, "prefill": chunk}
    alone = {lane: card.seconds_on(card.stream(lane, placement), lane, step) for lane, step in steps.items()}  # type: ignore[arg-type]
    card.prepare(card.shot(lane, step, placement) for lane, step in steps.items())  # type: ignore[arg-type]
    found: dict[str, list[float]] = {"decode": [], "prefill": []}
    begin = card.now()
    for lane, step in steps.items():
        card.launch(lane, step, placement)  # type: ignore[arg-type]
    while card.now() - begin < seconds or card.busy:
        for done in card.finished():
            found[done.lane].append(done.end - done.begin)
            if card.now() - begin < seconds:
                card.launch(done.lane, steps[done.lane], placement)
    # The last step of a lane may have run alone.
    return tuple(  # type: ignore[return-value]
        median(found[lane][1:-1] or found[lane]) / alone[lane] for lane in ("decode", "prefill")
    )
