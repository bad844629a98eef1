"""What the guards of ONE_EXCHANGE cost: all-reduces of small messages with and without them, on one GPU.

Ranks are partitions of the GPU. Each variant of the kernels is compiled from its sources: as they are; without the word
by which two kernels at once notice each other; and with packets of 64 bits. Times are of graphs of many calls, the
slowest rank, the variants in turns.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from .common import CAPTURING, REPOSITORY, capture, case, inputs_of, modules, replayed_us

SMS = 16
SIZES = [1 << shift for shift in (10, 13, 15, 17)]
CALLS = 50
ROUNDS = 15
AS_IT_IS, NO_WORD, HALVES = "as it is", "no running word", "packets of 64 bits"
# What begins a call without the word: each thread reads the epoch, and no block waits for its first thread.
BEGINS_CALL = "DEVICE u32 begin_call(const Call& call, u64 word) {"
WITHOUT = f"""{BEGINS_CALL}
  return has_fault(call) ? 0 : next_epoch(static_cast<u32>(load_relaxed(word) >> 32));
}}
DEVICE u32 unused(const Call& call, u64 word) {{"""


@contextmanager
def variant_of_kernels(name: str) -> Iterator[None]:
    """A block in which handlers are built with a variant of the kernels."""
    from cuda_gctx.comm import _building, _compile
    from cuda_gctx.comm._protocol import Packing

    usual = _compile.source

    def without_word(*arguments: Any, **options: Any) -> str:
        text = usual(*arguments, **options)
        assert text.count(BEGINS_CALL) == 1
        return text.replace(BEGINS_CALL, WITHOUT)

    if name == NO_WORD:
        with patch.object(_compile, "source", without_word):
            yield
    elif name == HALVES:
        with patch.object(_building, "agreed_packing", lambda *_: Packing.HALVES):
            yield
    else:
        yield


class Ranks:
    """The ranks of a world with a handler for each variant, and what they measure."""

    def __init__(self, world: Any) -> None:
        self.torch, self.comm = modules()
        self.world = world
        self.handlers: dict[str, list[Any]] = {}
        self.rows: list[dict[str, Any]] = []

    def build(self, name: str) -> None:
        def make(rank: Any) -> Any:
            with rank.partition.torch():
                return rank.handler(self.torch.bfloat16, local_tp_size=rank.size, timeout_s=5.0)

        with variant_of_kernels(name):
            self.handlers[name] = self.world.run(make)

    def measure(self, rank: Any) -> None:
        with rank.partition.torch():
            for size in SIZES:
                self.measure_size(rank, size)

    def measure_size(self, rank: Any, size: int) -> None:
        torch, comm = self.torch, self.comm
        op, mode = comm.MixedCommOp.ALLREDUCE, comm.MixedCommMode.ONE_EXCHANGE
        inputs = inputs_of(torch, (2, size // 4), torch.bfloat16, rank.size, 1, "cuda:0")
        x, out = inputs[rank.rank], torch.empty_like(inputs[rank.rank])
        stream = torch.cuda.current_stream()
        graphs: dict[str, Any] = {}
        for name, handlers in self.handlers.items():
            handler = handlers[rank.rank]
            out.zero_()
            call = partial(comm.run_mixed_comm, op, handler, x, out, mode)
            call()
            stream.synchronize()
            handler.check()
            wanted = comm.expected(handler.para_info, op, inputs)
            assert torch.equal(out.view(torch.int16), wanted.view(torch.int16)), f"{name}, {size} bytes: wrong bits"
            graphs[name] = capture(torch, lambda call=call: [call() for _ in range(CALLS)])
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for number in range(ROUNDS):
            for name in list(graphs)[:: -1 if number % 2 else 1]:
                times[name].append(replayed_us(torch, rank, stream, graphs[name], CALLS))
        for handlers in self.handlers.values():
            handlers[rank.rank].check()
        if rank.rank == 0:
            for name, samples in times.items():
                us, ends = round(statistics.median(samples), 3), (round(min(samples), 3), round(max(samples), 3))
                self.rows.append({"ranks": rank.size, "bytes": size, "kernels": name, "us": us, "min, max": ends})
                print(json.dumps(self.rows[-1]), flush=True)
        with CAPTURING:
            graphs.clear()

    def close(self) -> None:
        def shut_down(rank: Any) -> None:
            for handlers in self.handlers.values():
                handlers[rank.rank].shutdown()

        self.world.run(shut_down)


@case(runs_alone=True)
def guard_costs() -> dict[str, Any]:
    """The time of ONE_EXCHANGE with and without its running word, and with packets of 64 bits."""
    _, comm = modules()
    from cuda_gctx import Device
    from cuda_gctx.measure.machine import described

    rows = []
    for size in (2, 4):
        with comm.local_world(size, Device(0), sms=SMS) as world:
            ranks = Ranks(world)
            for name in (AS_IT_IS, NO_WORD, HALVES):
                ranks.build(name)
            world.run(ranks.measure)
            ranks.close()
            rows += ranks.rows
    what = "What the guards of ONE_EXCHANGE cost, by the case guard_costs of tests/comm/gpu_suite.py"
    return described(Device(0), what, REPOSITORY) | {"sms": SMS, "calls": CALLS, "rounds": ROUNDS, "rows": rows}
