"""What kernels.py computes, in plain torch: for tests without a GPU, and to check the kernels against."""

from __future__ import annotations

from typing import Any

import torch

PREFILL_TOKENS = 32
LENGTH_STEP = 128


def embed(history: Any, slots: Any, positions: Any, table: Any, out: Any) -> None:
    out.copy_(table[history[slots.clamp(min=0).long(), positions.long()].long()])


def add_norm(residual: Any, delta: Any, weight: Any, out: Any, epsilon: float = 1e-5) -> None:
    if delta is not None:
        residual += delta
    x = residual.float()
    out.copy_(x * torch.rsqrt((x * x).mean(1, keepdim=True) + epsilon) * weight.float())


def rotate_and_store(
    qkv: Any, queries: Any, keys: Any, values: Any, slots: Any, positions: Any, cosines: Any, sines: Any
) -> None:
    _, heads, size = queries.shape
    kv_heads = keys.shape[1]
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        if slot < 0:
            continue
        parts = qkv[row].view(heads + 2 * kv_heads, size)
        low, high = parts[: heads + kv_heads].float().chunk(2, dim=1)
        cosine, sine = cosines[position], sines[position]
        rotated = torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=1).to(qkv.dtype)
        queries[row] = rotated[:heads]
        keys[slot, :, position] = rotated[heads:]
        values[slot, :, position] = parts[heads + kv_heads :]


def attend(
    queries: Any, keys: Any, values: Any, slots: Any, blocks: Any, out: Any, tokens: int, splits: int,
    parts: Any, marks: Any,
) -> None:  # fmt: skip
    group = queries.shape[1] // keys.shape[1]
    for slot, first, count, position in blocks.tolist():
        if count == 0:
            continue
        assert count <= tokens
        known = slice(0, position + count)
        query = queries[first : first + count].transpose(0, 1)
        key, value = (cache[slot, :, known].repeat_interleave(group, dim=0) for cache in (keys, values))
        bias = torch.full((count, position + count), float("-inf"), device=query.device).triu(position + 1)
        done = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))
        out[first : first + count] = done.transpose(0, 1)


def gate(gate_up: Any, out: Any) -> None:
    left, right = gate_up.float().chunk(2, dim=1)
    out.copy_(torch.nn.functional.silu(left) * right)


def remember(history: Any, slots: Any, positions: Any, tokens: Any) -> None:
    for slot, position, token in zip(slots.tolist(), positions.tolist(), tokens.tolist(), strict=True):
        if slot >= 0:
            history[slot, position] = token
