"""The kernels of the model that torch does not have in the form that is needed, in Triton.

All of them read positions and lengths from device memory, so that a CUDA graph serves every step of the same shape.
tests/reference.py has the same functions in plain torch.

A block table has four integers for each block of queries: the slot of its sequence, its first row, its number of rows
(0: nothing to do) and the position of its first row.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
# Tokens in a block of queries of a prefill; a block of a decode has one.
PREFILL_TOKENS = 32
# A slot's length is a multiple of this: whole tiles of keys are read, also behind the end of a sequence.
LENGTH_STEP = 128


# Tables of integers begin anywhere; a kernel for each alignment would have to be compiled.
@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def _embed(history, length, slots, positions, table, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row)
    token = tl.load(history + slot * length + position, mask=slot >= 0, other=0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    tl.store(out + row * width + at, tl.load(table + token * width + at, mask=at < width), mask=at < width)


@triton.jit
def _add_norm(residual, delta, weight, out, width, epsilon, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + at, x.to(residual.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(x * x) / width + epsilon)
    normed = x * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def _rotate_and_store(
    qkv, queries, keys, values, slots, positions, cosines, sines, slot_stride, head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        position = tl.load(positions + row).to(tl.int64)
        half = tl.arange(0, SIZE // 2)
        base = qkv + row * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE
        low = tl.load(base + half)
        high = tl.load(base + SIZE // 2 + half)
        if head >= HEADS + KV_HEADS:
            to = values + slot * slot_stride + (head - HEADS - KV_HEADS) * head_stride + position * SIZE
        else:
            cosine = tl.load(cosines + position * (SIZE // 2) + half)
            sine = tl.load(sines + position * (SIZE // 2) + half)
            one, other = low.to(tl.float32), high.to(tl.float32)
            low = (one * cosine - other * sine).to(low.dtype)
            high = (other * cosine + one * sine).to(high.dtype)
            if head >= HEADS:
                to = keys + slot * slot_stride + (head - HEADS) * head_stride + position * SIZE
            else:
                to = queries + row * HEADS * SIZE + head * SIZE
        tl.store(to + half, low)
        tl.store(to + SIZE // 2 + half, high)


@triton.jit
def _tiles(
    accumulated, largest, total, queries, keys, values, limits, begin, end,
    MASKED: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    size = tl.arange(0, SIZE)
    column = tl.arange(0, TILE)
    for start in range(begin, end, TILE):
        at = start + column
        key = tl.load(keys + at[None, :] * SIZE + size[:, None])
        scores = tl.dot(queries, key)
        if MASKED:
            scores = tl.where(at[None, :] <= limits[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen no key yet has the maximum of minus infinity.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(values + at[:, None] * SIZE + size[None, :])
        accumulated = tl.dot(weights.to(value.dtype), value, accumulated * shrink[:, None])
        largest = larger
    return accumulated, largest, total


@triton.jit(do_not_specialize=["rows_of_parts"], do_not_specialize_on_alignment=["blocks"])
def _attend(
    queries, keys, values, blocks, out, parts, marks, rows_of_parts, slot_stride, head_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One block of queries of all heads that share keys, against a part of the keys."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    block = blocks + tl.program_id(1) * 4
    split = tl.program_id(2)
    count = tl.load(block + 2)
    if count > 0:
        slot = tl.load(block).to(tl.int64)
        first = tl.load(block + 1).to(tl.int64)
        position = tl.load(block + 3)
        line = tl.arange(0, ROWS)
        token = line // GROUP
        head = kv_head * GROUP + line % GROUP
        valid = token < count
        size = tl.arange(0, SIZE)
        at = ((first + token) * HEADS + head)[:, None] * SIZE + size[None, :]
        query = tl.load(queries + at, mask=valid[:, None], other=0.0)
        query = (query.to(tl.float32) * scale).to(query.dtype)
        keys += slot * slot_stride + kv_head * head_stride
        values += slot * slot_stride + kv_head * head_stride
        limits = position + token

        length = position + count
        tiles = tl.cdiv(tl.cdiv(length, TILE), SPLITS)
        begin = split * tiles * TILE
        end = tl.minimum(begin + tiles * TILE, length)
        # Tiles of which every row sees every key need no mask.
        plain = tl.maximum(tl.minimum((position + 1) // TILE * TILE, end), begin)
        accumulated = tl.zeros([ROWS, SIZE], tl.float32)
        largest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        accumulated, largest, total = _tiles(
            accumulated, largest, total, query, keys, values, limits, begin, plain, False, SIZE, TILE
        )
        accumulated, largest, total = _tiles(
            accumulated, largest, total, query, keys, values, limits, plain, end, True, SIZE, TILE
        )
        if SPLITS == 1:
            done = accumulated / total[:, None]
            tl.store(out + at, done.to(out.dtype.element_ty), mask=valid[:, None])
        else:
            offset = split.to(tl.int64) * rows_of_parts * HEADS
            mark = offset + (first + token) * HEADS + head
            tl.store(parts + offset * SIZE + at, accumulated, mask=valid[:, None])
            tl.store(marks + mark * 2, largest, mask=valid)
            tl.store(marks + mark * 2 + 1, total, mask=valid)


@triton.jit(do_not_specialize=["rows_of_parts"], do_not_specialize_on_alignment=["slots"])
def _combine(
    parts, marks, slots, out, rows_of_parts, HEADS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(slots + row) >= 0:
        at = row * HEADS + tl.program_id(1)
        size = tl.arange(0, SIZE)
        accumulated = tl.zeros([SIZE], tl.float32)
        largest = float("-inf")
        total = 0.0
        for split in tl.static_range(SPLITS):
            mark = split * rows_of_parts * HEADS + at
            other = tl.load(marks + mark * 2)
            larger = tl.maximum(largest, other)
            mine = tl.exp2(largest - larger)
            theirs = tl.exp2(other - larger)
            accumulated = accumulated * mine + tl.load(parts + mark * SIZE + size) * theirs
            total = total * mine + tl.load(marks + mark * 2 + 1) * theirs
            largest = larger
        tl.store(out + at * SIZE + size, (accumulated / total).to(out.dtype.element_ty))


@triton.jit
def _gate(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots", "positions", "tokens"])
def _remember(history, length, slots, positions, tokens, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    slot = tl.load(slots + at, mask=at < count, other=-1).to(tl.int64)
    position = tl.load(positions + at, mask=at < count, other=0)
    token = tl.load(tokens + at, mask=at < count, other=0)
    tl.store(history + slot * length + position, token.to(history.dtype.element_ty), mask=slot >= 0)


def embed(history: Any, slots: Any, positions: Any, table: Any, out: Any) -> None:
    """Rows of the embedding of the tokens at (slot, position); rows of slot -1 get some row."""
    width = out.shape[1]
    block = triton.next_power_of_2(width)
    _embed[(out.shape[0],)](history, history.shape[1], slots, positions, table, out, width, block, num_warps=4)


def add_norm(residual: Any, delta: Any, weight: Any, out: Any, epsilon: float = 1e-5) -> None:
    """Adds delta to the residual, unless it is None, and writes the RMS norm of the sum."""
    width = out.shape[1]
    block = triton.next_power_of_2(width)
    _add_norm[(out.shape[0],)](
        residual, residual if delta is None else delta, weight, out, width, epsilon, delta is not None, block,
        num_warps=8,
    )  # fmt: skip


def rotate_and_store(
    qkv: Any, queries: Any, keys: Any, values: Any, slots: Any, positions: Any, cosines: Any, sines: Any
) -> None:
    """Rotates queries and keys by their positions; writes queries, and keys and values into the cache of a layer."""
    rows, heads, size = queries.shape
    kv_heads = keys.shape[1]
    _rotate_and_store[(rows, heads + 2 * kv_heads)](
        qkv, queries, keys, values, slots, positions, cosines, sines, keys.stride(0), keys.stride(1),
        heads, kv_heads, size, num_warps=1,
    )  # fmt: skip


# Tile of keys, warps and stages of the pipeline, for blocks of one token and for blocks of more.
DECODE_TILING = (64, 2, 4)
PREFILL_TILING = (64, 8, 3)


def attend(
    queries: Any, keys: Any, values: Any, slots: Any, blocks: Any, out: Any, tokens: int, splits: int,
    parts: Any, marks: Any, tiling: tuple[int, int, int] | None = None,
) -> None:  # fmt: skip
    """Causal attention of blocks of queries of up to `tokens` rows over the cache of a layer.

    The keys of a block are read in `splits` parts, whose results are joined by a second kernel.
    """
    rows, heads, size = queries.shape
    kv_heads = keys.shape[1]
    tile, warps, stages = tiling or (DECODE_TILING if tokens == 1 else PREFILL_TILING)
    lines = max(16, triton.next_power_of_2(tokens * (heads // kv_heads)))
    _attend[(kv_heads, blocks.shape[0], splits)](
        queries, keys, values, blocks, out, parts, marks, rows, keys.stride(0), keys.stride(1),
        LOG2_E * size**-0.5, heads, kv_heads, size, tokens, lines, tile, splits, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _combine[(rows, heads)](parts, marks, slots, out, rows, heads, size, splits, num_warps=1)


def gate(gate_up: Any, out: Any) -> None:
    """silu(gate) * up of a row that holds both."""
    width = out.shape[1]
    block = 1024
    _gate[(out.shape[0], triton.cdiv(width, block))](gate_up, out, width, block, num_warps=4)


def remember(history: Any, slots: Any, positions: Any, tokens: Any) -> None:
    """Writes tokens into the history at (slot, position); those of slot -1 are dropped."""
    count = tokens.shape[0]
    _remember[(1,)](
        history, history.shape[1], slots, positions, tokens, count, triton.next_power_of_2(count), num_warps=4
    )
