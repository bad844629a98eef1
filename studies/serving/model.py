"""A decoder in torch with random weights, of which one function runs decodes, prompts, or both in the same GEMMs.

All numbers that change from step to step are in one table of integers in device memory, so a CUDA graph of a step
serves every later step of the same frame. Weights are random; a model may have fewer distinct layers than layers, each
of which is larger than the L2 cache, so that reading it costs the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import torch

from serving.shapes import Shape
from serving.work import Step

# Rows of queries in a block of a prefill's attention, over all heads that share keys.
BLOCK_ROWS = 128
# Segments of different prompts that one step takes at most.
SEGMENTS = 8
MOST_SPLITS = 16
# Rows of prompts times splits, at most.
PARTIAL_ROWS = 8192


@dataclass(frozen=True)
class Frame:
    """The sizes of a step that a graph fixes: rows of decodes and of prompts, and prompts that may end in it."""

    decodes: int
    prompt_tokens: int
    ends: int
    tokens_per_block: int

    @property
    def rows(self) -> int:
        return self.decodes + self.prompt_tokens

    @property
    def samples(self) -> int:
        return self.decodes + self.ends

    @property
    def prompt_blocks(self) -> int:
        return self.prompt_tokens // self.tokens_per_block + SEGMENTS if self.prompt_tokens else 0

    @cached_property
    def sections(self) -> tuple[tuple[str, int, int], ...]:
        """The parts of the table: name, begin and end."""
        sizes = {
            "slots": self.rows,
            "positions": self.rows,
            "decode_blocks": 4 * self.decodes,
            "prompt_blocks": 4 * self.prompt_blocks,
            "sample_rows": self.samples,
            "sample_slots": self.samples,
            "sample_positions": self.samples,
        }
        found, begin = [], 0
        for name, size in sizes.items():
            found.append((name, begin, begin + size))
            begin += size
        return tuple(found)

    @property
    def integers(self) -> int:
        return self.sections[-1][2]

    def views(self, table: Any) -> dict[str, Any]:
        """The sections of a table, blocks with four columns."""
        found = {name: table[begin:end] for name, begin, end in self.sections}
        for name in ("decode_blocks", "prompt_blocks"):
            found[name] = found[name].reshape(-1, 4)
        return found

    def fill(self, step: Step, table: np.ndarray) -> None:
        """Writes a step into a table; what the step does not use is marked as unused."""
        if len(step.rows) > self.decodes or step.prompt_tokens > self.prompt_tokens:
            raise ValueError(f"{self} has no room for {len(step.rows)} decodes and {step.prompt_tokens} prompt tokens")
        if len(step.segments) > SEGMENTS or sum(segment.last for segment in step.segments) > self.ends:
            raise ValueError(f"{self} has no room for {len(step.segments)} segments: {step.segments}")
        view = self.views(table)
        table[: self.integers] = 0
        view["slots"][:] = -1
        view["sample_slots"][:] = -1
        count = len(step.rows)
        if count:
            slots, positions = [row.slot for row in step.rows], np.array([row.position for row in step.rows])
            index, decodes = np.arange(count), view["decode_blocks"][:count]
            view["slots"][:count], view["positions"][:count] = slots, positions
            decodes[:, 0], decodes[:, 1], decodes[:, 2], decodes[:, 3] = slots, index, 1, positions
            view["sample_rows"][:count], view["sample_slots"][:count] = index, slots
            view["sample_positions"][:count] = positions + 1
        first, block, sample = self.decodes, 0, self.decodes
        for segment in step.segments:
            behind = first + segment.count
            view["slots"][first:behind] = segment.slot
            view["positions"][first:behind] = np.arange(segment.start, segment.start + segment.count)
            offsets = np.arange(0, segment.count, self.tokens_per_block)
            blocks = view["prompt_blocks"][block : block + len(offsets)]
            blocks[:, 0], blocks[:, 1] = segment.slot, first - self.decodes + offsets
            blocks[:, 2] = np.minimum(self.tokens_per_block, segment.count - offsets)
            blocks[:, 3] = segment.start + offsets
            block += len(offsets)
            if segment.last:
                view["sample_rows"][sample], view["sample_slots"][sample] = behind - 1, segment.slot
                view["sample_positions"][sample] = segment.start + segment.count
                sample += 1
            first = behind


def splits_for(blocks: int, sms: int, waves: int) -> int:
    """In how many parts a decode reads its keys, so that `blocks` blocks keep the SMs busy for `waves` waves.

    A power of two: each number of parts is a kernel of its own to compile.
    """
    wanted = max(1, min(MOST_SPLITS, waves * sms // max(1, blocks)))
    return 1 << wanted.bit_length() - 1


def prompt_splits(blocks: int, rows: int, sms: int) -> int:
    """In how many parts the keys of a prompt are read, so that the last wave of blocks leaves few SMs idle.

    An SM holds one block of a prompt. 128 blocks take two waves on 116 SMs, and in 8 parts of them 9 waves of an
    eighth. Each doubling costs about 2%, for the parts that are written and joined.
    """
    choices = [1 << n for n in range(MOST_SPLITS.bit_length()) if n == 0 or rows << n <= PARTIAL_ROWS]
    return min(choices, key=lambda parts: ceil(blocks * parts / sms) / parts * (1 + 0.02 * (parts.bit_length() - 1)))


class Workspace:
    """The buffers of one lane: what a step reads and writes besides weights and caches."""

    RING = 4  # tables that may be on their way to the device at once

    def __init__(self, model: Model, tokens: int, decodes: int) -> None:
        shape, options = model.shape, {"dtype": model.dtype, "device": model.device}
        self.tokens = tokens
        heads, size = shape.heads, shape.head_size
        self.residual = torch.zeros(tokens, shape.hidden, **options)
        self.normed = torch.zeros(tokens, shape.hidden, **options)
        self.delta = torch.zeros(tokens, shape.hidden, **options)
        self.qkv = torch.zeros(tokens, shape.qkv, **options)
        self.queries = torch.zeros(tokens, heads, size, **options)
        self.attended = torch.zeros(tokens, heads, size, **options)
        self.gate_up = torch.zeros(tokens, 2 * shape.mlp, **options)
        self.gated = torch.zeros(tokens, shape.mlp, **options)
        samples = decodes + SEGMENTS
        self.chosen = torch.zeros(samples, shape.hidden, **options)
        self.logits = torch.zeros(samples, shape.vocabulary, **options)
        self.answers = torch.zeros(samples, dtype=torch.int64, device=model.device)
        # The parts of attention that was split.
        self.parts = {
            name: (
                torch.zeros(rows * heads * size, dtype=torch.float32, device=model.device),
                torch.zeros(rows * heads * 2, dtype=torch.float32, device=model.device),
            )
            for name, rows in (("decode", MOST_SPLITS * max(1, decodes)), ("prompt", PARTIAL_ROWS))
        }
        most = Frame(decodes, tokens, SEGMENTS, model.tokens_per_block).integers
        self.table = torch.zeros(most, dtype=torch.int32, device=model.device)
        pinned = model.device.type == "cuda"
        self._ring = [torch.zeros(most, dtype=torch.int32, pin_memory=pinned) for _ in range(self.RING)]
        self._turn = 0

    def load(self, frame: Frame, step: Step) -> None:
        """Enqueue the copy of a step's table. No more than RING - 1 earlier steps may be unfinished."""
        host = self._ring[self._turn]
        self._turn = (self._turn + 1) % self.RING
        frame.fill(step, host.numpy())
        self.table[: frame.integers].copy_(host[: frame.integers], non_blocking=True)


class Model:
    """Weights and caches. `operations`: the module kernels, or one with the same functions."""

    def __init__(
        self,
        shape: Shape,
        operations: Any,
        *,
        slots: int,
        length: int,
        device: str = "cuda",
        dtype: Any = torch.bfloat16,
        distinct_layers: int | None = None,
        seed: int = 0,
    ) -> None:
        self.shape = shape
        self.operations = operations
        self.device = torch.device(device)
        self.dtype = dtype
        self.slots = slots
        step = operations.LENGTH_STEP
        self.length = (length + step - 1) // step * step
        self.distinct_layers = distinct_layers or shape.layers
        self.tokens_per_block = max(1, BLOCK_ROWS // shape.group)
        self._frames: dict[tuple[int, int, int], Frame] = {}
        generator = torch.Generator(device=self.device).manual_seed(seed)

        def weights(rows: int, columns: int) -> Any:
            made = torch.empty(rows, columns, dtype=dtype, device=self.device)
            return made.normal_(0, columns**-0.5, generator=generator)

        self.layers = [
            {
                "qkv": weights(shape.qkv, shape.hidden),
                "out": weights(shape.hidden, shape.heads * shape.head_size),
                "gate_up": weights(2 * shape.mlp, shape.hidden),
                "down": weights(shape.hidden, shape.mlp),
                "before": torch.ones(shape.hidden, dtype=dtype, device=self.device),
                "between": torch.ones(shape.hidden, dtype=dtype, device=self.device),
            }
            for _ in range(self.distinct_layers)
        ]
        self.embedding = weights(shape.vocabulary, shape.hidden)
        self.norm = torch.ones(shape.hidden, dtype=dtype, device=self.device)
        self.head = weights(shape.vocabulary, shape.hidden)
        cache = (slots, shape.kv_heads, self.length, shape.head_size)
        # Zeros: whole tiles are read, and what is masked must be a number.
        self.caches = [
            tuple(torch.zeros(cache, dtype=dtype, device=self.device) for _ in range(2)) for _ in range(shape.layers)
        ]
        self.history = torch.zeros(slots, self.length + 1, dtype=torch.int32, device=self.device)
        half = shape.head_size // 2
        turns = 500000.0 ** (-torch.arange(half, device=self.device, dtype=torch.float32) / half)
        angles = torch.arange(self.length, device=self.device, dtype=torch.float32)[:, None] * turns
        self.cosines, self.sines = angles.cos(), angles.sin()

    def frame(self, decodes: int, prompt_tokens: int, ends: int) -> Frame:
        """The same object for the same sizes, with its sections."""
        sizes = decodes, prompt_tokens, ends
        found = self._frames.get(sizes)
        if found is None:
            found = self._frames[sizes] = Frame(*sizes, self.tokens_per_block)
        return found

    def write(self, slot: int, tokens: Any) -> None:
        """Enqueue the copy of a prompt, which is pinned on a GPU, into the history of a slot."""
        self.history[slot, : len(tokens)].copy_(tokens, non_blocking=True)

    def run(self, frame: Frame, space: Workspace, *, sms: int = 132, aside: Any = None) -> None:
        """Enqueue a step whose table has been loaded.

        aside: a torch stream on which the attention of decodes runs next to that of prompts.
        """
        rows = frame.rows
        residual, delta, normed = space.residual[:rows], space.delta[:rows], space.normed[:rows]
        view = frame.views(space.table)
        self.operations.embed(self.history, view["slots"], view["positions"], self.embedding, residual)
        for layer in range(self.shape.layers):
            self._layer(frame, space, view, layer, sms, aside)
        if frame.samples:
            self.operations.add_norm(residual, delta, self.norm, normed)
            self._sample(frame, space, view)

    def _layer(self, frame: Frame, space: Workspace, view: dict[str, Any], layer: int, sms: int, aside: Any) -> None:
        do, weights, rows = self.operations, self.layers[layer % self.distinct_layers], frame.rows
        residual, delta, normed = space.residual[:rows], space.delta[:rows], space.normed[:rows]
        queries, attended = space.queries[:rows], space.attended[:rows]
        keys, values = self.caches[layer]
        do.add_norm(residual, None if layer == 0 else delta, weights["before"], normed)
        torch.mm(normed, weights["qkv"].t(), out=space.qkv[:rows])
        do.rotate_and_store(
            space.qkv[:rows], queries, keys, values, view["slots"], view["positions"], self.cosines, self.sines
        )
        main = torch.cuda.current_stream() if aside is not None and frame.decodes and frame.prompt_tokens else None
        if frame.decodes:
            some = slice(0, frame.decodes)
            splits = splits_for(frame.decodes * self.shape.kv_heads, sms, waves=8)
            if main is not None:
                aside.wait_stream(main)
            with nullcontext() if main is None else torch.cuda.stream(aside):
                do.attend(
                    queries[some], keys, values, view["slots"][some], view["decode_blocks"], attended[some], 1, splits,
                    *space.parts["decode"],
                )  # fmt: skip
        if frame.prompt_tokens:
            part = slice(frame.decodes, rows)
            blocks = ceil(frame.prompt_tokens / self.tokens_per_block) * self.shape.kv_heads
            do.attend(
                queries[part], keys, values, view["slots"][part], view["prompt_blocks"], attended[part],
                self.tokens_per_block, prompt_splits(blocks, frame.prompt_tokens, sms), *space.parts["prompt"],
            )  # fmt: skip
        if main is not None:
            main.wait_stream(aside)
        torch.mm(attended.view(rows, -1), weights["out"].t(), out=delta)
        do.add_norm(residual, delta, weights["between"], normed)
        torch.mm(normed, weights["gate_up"].t(), out=space.gate_up[:rows])
        do.gate(space.gate_up[:rows], space.gated[:rows])
        torch.mm(space.gated[:rows], weights["down"].t(), out=delta)

    def _sample(self, frame: Frame, space: Workspace, view: dict[str, Any]) -> None:
        count = frame.samples
        chosen, logits, answers = space.chosen[:count], space.logits[:count], space.answers[:count]
        torch.index_select(space.normed[: frame.rows], 0, view["sample_rows"], out=chosen)
        torch.mm(chosen, self.head.t(), out=logits)
        torch.argmax(logits, dim=1, out=answers)
        self.operations.remember(self.history, view["sample_slots"], view["sample_positions"], answers)
