"""Collectives of cuda_gctx.comm and of NCCL on the GPUs of one host: time over size, and next to GEMMs.

    python benchmarks/communication.py [--out DIR] [--gpus N] [--part PART] [--limit SECONDS] [--skip WORDS]

One process per GPU, NVLink multicast off. Times are of CUDA graphs of many calls, the median of several replays, the
slowest GPU; all variants are measured in turns. Needs torch and at least two GPUs, and takes about two minutes. Rows
are written to DIR/communication-PART.rows.jsonl as they come: a run that is stopped keeps what it has.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import reporting

from cuda_gctx import Device, PartitionPool
from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, ParallelInfo, expected, run_mixed_comm
from cuda_gctx.interop.library_sms import cublas_sms
from cuda_gctx.interop.torch import torch_stream
from cuda_gctx.measure.machine import described
from cuda_gctx.measure.results import file_name, folder_of_results, write_result

SIZES = [1 << shift for shift in (10, 13, 14, 15, 17, 19, 21, 23, 26, 28)]
LARGEST = max(SIZES)
# Between those that run_autotune() measures by default.
UNTUNED_SIZES = [3 << shift for shift in (14, 18, 22, 25)]
NODE_SIZES = [1 << shift for shift in (13, 17, 20, 23, 26)]
# ONE_EXCHANGE carries outputs of up to this size at once, and larger ones in pieces.
AT_ONCE = 8 << 20
# Bits are compared up to this size.
COMPARED = 8 << 20
ROUNDS = 7
GEMM = 8192
# Of the partition for the communication.
NODE_SMS = 16
# Between nodes.
TRANSPORTS = {"NVSHMEM": "nvshmem", "peer access": "peers", "NCCL between nodes": "nccl"}
OVERLAP_SMS = (8, 16, 24, 32, 48)
STEPS = 20
# Of numbers that are not of 16 bits.
TYPES = ("float32", "float8_e4m3fn")
TYPE_SIZES = [1 << shift for shift in (13, 17, 20, 23, 26)]
# Of calls outside of graphs: fewer than the driver takes ahead.
EAGER_BYTES = 64 << 10
EAGER_CALLS = 50
EAGER_TURNS = 20
# Of programs that torch.compile makes into one graph.
COMPILED_SIZES = (64 << 10, 1 << 20)
LIMIT_S = 60
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# Of NCCL's header: no blocks for communication where it can do without. What it can is up to its version.
ZERO_CTA = 2
AGAIN = "NCCL_ONE again"
# Of broadcasts.
ROOT = 0
# Called so, where torch's collectives are.
IN_PLACE = (MixedCommOp.ALLREDUCE, MixedCommOp.BROADCAST)
NCCL, NCCL_TWO, ONE, TWO, HIERARCHICAL, COPIES = (
    MixedCommMode.NCCL_ONE,
    MixedCommMode.NCCL_TP_DP,
    MixedCommMode.ONE_EXCHANGE,
    MixedCommMode.TWO_EXCHANGE,
    MixedCommMode.HIERARCHICAL,
    MixedCommMode.COPY_ENGINES,
)
Work = Callable[[], object]
Keep = Callable[[dict[str, Any]], None]


class Ranks:
    """This process as one of several ranks: its GPU, plain groups of NCCL, and the largest of all ranks' times."""

    def __init__(self, rank: int, size: int, store: str, skipped: Sequence[str]) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.size, self.skipped = torch, dist, rank, size, skipped
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=rank, world_size=size)
        self.device = Device(rank)
        self.host = dist.new_group(backend="gloo")

    def info(self, dp: int) -> ParallelInfo:
        return ParallelInfo.of(self.rank, self.size, self.rank, self.size, 0, 1, self.size // dp, dp, 1, 1)

    def handler(self, partition: Any, dp: int, dtype: Any = None, **options: Any) -> MixedCommHandler:
        return MixedCommHandler(
            *(self.rank, self.size, self.rank, self.size, 0, 1),
            *(self.size // dp, dp, 1, 1),
            self.torch.bfloat16 if dtype is None else dtype,
            f"cuda:{self.rank}",
            partition=partition,
            max_message_bytes=LARGEST,
            timeout_s=20,
            **options,
        )

    def groups(self, dp: int, policy: int | None = None) -> tuple[Any, Any]:
        """Groups of NCCL on all SMs, of this rank's tp and dp group. Every rank makes all of them.

        policy: how NCCL uses blocks, by the number in its header.
        """
        info = self.info(dp)
        options = self.dist.ProcessGroupNCCL.Options()
        if policy is not None:
            options.config.cta_policy = policy
        own: list[Any] = []
        for every, mine in (
            ([info.tp_ranks(one) for one in range(info.dp_size)], info.tp_ranks()),
            ([info.dp_ranks(one) for one in range(info.tp_size)], info.dp_ranks()),
        ):
            made = {ranks: self.dist.new_group(list(ranks), backend="nccl", pg_options=options) for ranks in every}
            own.append(made[mine])
        return own[0], own[1]

    def input_of(self, rank: int, shape: tuple[int, ...]) -> Any:
        """The input of a rank, the same on each GPU."""
        generator = self.torch.Generator("cuda").manual_seed(rank)
        return self.torch.randn(shape, generator=generator, device="cuda").bfloat16()

    def meet(self) -> None:
        self.torch.cuda.synchronize()
        self.dist.barrier(group=self.host)

    def slowest(self, microseconds: float) -> float:
        taken = self.torch.tensor([microseconds])
        self.dist.all_reduce(taken, op=self.dist.ReduceOp.MAX, group=self.host)
        return float(taken)

    def problem_of(self, step: Callable[[], str]) -> str:
        """What went wrong in a step, on any rank: the same on all of them, so that they leave the same things out."""
        try:
            problem = step()
        except Exception as error:
            problem = f"rank {self.rank}: {error}"
        problems: list[str] = [""] * self.size
        self.dist.all_gather_object(problems, problem, group=self.host)
        return next(filter(None, problems), "")

    def timed(self, stream: Any, work: Work, calls: int) -> float:
        """Microseconds of a call, of the slowest GPU."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.meet()
        with self.torch.cuda.stream(stream):
            work()  # in which the ranks meet
            begin.record()
            work()
            end.record()
        end.synchronize()
        return self.slowest(begin.elapsed_time(end) * 1000 / calls)

    def close(self) -> None:
        self.meet()
        self.dist.destroy_process_group()


def nccl_calls(ranks: Ranks, op: MixedCommOp, x_in: Any, x_out: Any, groups: tuple[Any, Any]) -> None:
    """The collectives of torch.distributed on all SMs, as they are usually called: some in place."""
    tp_group, dp_group = groups
    if op is MixedCommOp.ALLREDUCE:
        ranks.dist.all_reduce(x_out, group=tp_group)
    elif op is MixedCommOp.ALLGATHER:
        ranks.dist.all_gather_into_tensor(x_out, x_in, group=dp_group)
    elif op is MixedCommOp.REDUCESCATTER:
        ranks.dist.reduce_scatter_tensor(x_out, x_in, group=dp_group)
    elif op is MixedCommOp.ALLTOALL:
        ranks.dist.all_to_all_single(x_out, x_in, group=dp_group)
    elif op is MixedCommOp.BROADCAST:
        ranks.dist.broadcast(x_out, src=ROOT)
    elif op is MixedCommOp.ALLREDUCE_ALLGATHER:
        ranks.dist.all_reduce(x_in, group=tp_group)
        ranks.dist.all_gather_into_tensor(x_out, x_in, group=dp_group)
    else:
        ranks.dist.reduce_scatter_tensor(x_out, x_in, group=dp_group)
        ranks.dist.all_reduce(x_out, group=tp_group)


def nccl_in_place(ranks: Ranks, op: MixedCommOp, x_in: Any, out: Any, scratch: Any, groups: tuple[Any, Any]) -> None:
    """The same, with a tensor for what is called in place to write to."""
    if op in IN_PLACE:
        nccl_calls(ranks, op, None, scratch, groups)
    else:
        in_place = op is MixedCommOp.ALLREDUCE_ALLGATHER
        nccl_calls(ranks, op, scratch if in_place else x_in, out, groups)


def shapes_of(handler: MixedCommHandler, op: MixedCommOp, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of input and output at a size, which is that of the larger one."""
    info = handler.para_info
    rows = max(info.dp_size, 2)
    shape = rows, size // 2 // (info.dp_size if op.gathers else 1) // rows
    return {"in": shape, "out": info.output_shape(op, shape)}


class Buffers:
    """Where inputs and outputs are: those that all ranks have mapped, others, and one that may be overwritten."""

    def __init__(self, torch: Any) -> None:
        self._all = {
            name: torch.zeros(LARGEST // 2, device="cuda", dtype=torch.bfloat16)
            for name in ("in", "out", "mapped in", "mapped out", "scratch")
        }

    def mapped(self) -> tuple[Any, Any]:
        return self._all["mapped in"], self._all["mapped out"]

    def of(self, name: str, shape: Sequence[int]) -> Any:
        return self._all[name][: math.prod(shape)].view(*shape)


def sweep(ranks: Ranks, keep: Keep) -> None:
    """Every operation of every topology at each size; those over both axes first."""
    torch = ranks.torch
    divisors = [dp for dp in range(1, ranks.size + 1) if ranks.size % dp == 0]
    buffers = Buffers(torch)
    plain = torch.cuda.Stream()
    with ExitStack() as closing:
        parts = closing.enter_context(ranks.device.partition(small=8, large=16))
        streams = {part.sm_count: torch_stream(part) for part in (parts.small, parts.large)}
        for dp in sorted(divisors, key=lambda dp: dp in (1, ranks.size)):
            groups = ranks.groups(dp)
            handlers = {}
            for part in (parts.small, parts.large):
                with part.torch():
                    handlers[part.sm_count] = ranks.handler(part, dp)
            with parts.small.torch():
                programmatic = ranks.handler(parts.small, dp, programmatic_launch=True)
            for handler in handlers.values():
                map_tensors(ranks, keep, handler, *buffers.mapped())
            # A broadcast is the same one in every topology.
            ops = [op for op in handlers[8].para_info.every_op if dp == 1 or op is not MixedCommOp.BROADCAST]
            for op, size in itertools.product(ops, SIZES):
                variants = variants_of(ranks, op, size, handlers, programmatic, groups, buffers)
                where = {"topology": f"{ranks.size // dp} x {dp}", "op": op.name, "bytes": size}
                for name, outcome in measured(ranks, variants, streams, plain, size).items():
                    keep(where | {"variant": name} | outcome)
            for handler in (*handlers.values(), programmatic):
                handler.check()
                handler.shutdown()


def map_tensors(ranks: Ranks, keep: Keep, handler: MixedCommHandler, *tensors: Any) -> None:
    """Where it cannot be done, that is a result, and variants that need it are left out."""
    if "mapped" in ranks.skipped:
        return
    try:
        handler.map_tensors(*tensors)
    except RuntimeError as error:  # the same one on all ranks
        ranks.skipped = [*ranks.skipped, "mapped"]
        keep({"variant": "mapped", "problem": str(error)})


def summary(samples: Sequence[float], digits: int) -> dict[str, Any]:
    return {"us": round(statistics.median(samples), digits), "samples": [round(one, digits) for one in samples]}


def times_as_fast(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How many times as fast one is as another, by the rounds in which both took their turns."""
    pairs = zip(one["samples"], other["samples"], strict=True)
    return round(statistics.median(theirs / ours for ours, theirs in pairs), 3)


@dataclass
class Variant:
    """One way to compute something: on the partition of so many SMs (0: a plain stream), and what must come out."""

    sms: int
    call: Work
    out: Any
    wanted: Any


def variants_of(
    ranks: Ranks,
    op: MixedCommOp,
    size: int,
    handlers: dict[int, MixedCommHandler],
    programmatic: MixedCommHandler,
    groups: tuple[Any, Any],
    buffers: Buffers,
) -> dict[str, Variant]:
    """Every variant at one size, which is that of the larger of input and output."""
    info = handlers[8].para_info
    shape, out_shape = shapes_of(handlers[8], op, size).values()
    x_in, out = buffers.of("in", shape), buffers.of("out", out_shape)
    mapped_in, mapped_out = buffers.of("mapped in", shape), buffers.of("mapped out", out_shape)
    # What calls in place may overwrite: zeros stay zeros.
    scratch = buffers.of("scratch", out_shape if op in IN_PLACE else shape)
    root = ROOT if op is MixedCommOp.BROADCAST else None
    wanted = None
    inputs = [ranks.input_of(rank, shape) for rank in (range(info.world_size) if size <= COMPARED else [ranks.rank])]
    if size <= COMPARED:
        wanted = expected(info, op, inputs, root=root)
    x_in.copy_(inputs[ranks.rank if size <= COMPARED else 0])
    mapped_in.copy_(x_in)
    block_bytes = info.block_size(op, x_in.numel() * 2)

    def through(handler: MixedCommHandler, mode: MixedCommMode, source: Any, target: Any) -> Work:
        return lambda: run_mixed_comm(op, handler, source, target, mode, root=root)

    def nccl() -> None:
        nccl_in_place(ranks, op, x_in, out, scratch, groups)

    calls = "two NCCL calls" if info.use_mixed and root is None else "NCCL"
    # Other operations go by TWO_EXCHANGE where they are larger.
    has_one = root is None and (op is MixedCommOp.ALLTOALL or block_bytes * info.world_size <= AT_ONCE)
    variants = {f"{calls}, all SMs": Variant(0, nccl, out, None)}
    for sms, handler in handlers.items():
        for mode in (NCCL, NCCL_TWO) if root is None else (NCCL,):
            if mode in handler.valid_mode_list:
                work = through(handler, mode, x_in if root is None else out, out)
                variants[f"{mode.name}, {sms} SMs"] = Variant(sms, work, out, None)
        if has_one:
            variants[f"ONE_EXCHANGE, {sms} SMs"] = Variant(sms, through(handler, ONE, x_in, out), out, wanted)
        if op in info.valid_ops:
            variants[f"TWO_EXCHANGE, {sms} SMs, staged"] = Variant(sms, through(handler, TWO, x_in, out), out, wanted)
            work = through(handler, TWO, mapped_in, mapped_out)
            variants[f"TWO_EXCHANGE, {sms} SMs, mapped"] = Variant(sms, work, mapped_out, wanted)
        if op in (MixedCommOp.ALLGATHER, MixedCommOp.ALLTOALL, MixedCommOp.BROADCAST):
            variants[f"COPY_ENGINES, {sms} SMs, staged"] = Variant(
                sms, through(handler, COPIES, x_in, out), out, wanted
            )
            work = through(handler, COPIES, mapped_in, mapped_out)
            variants[f"COPY_ENGINES, {sms} SMs, mapped"] = Variant(sms, work, mapped_out, wanted)
        if op in (MixedCommOp.ALLGATHER, MixedCommOp.BROADCAST):
            within = mapped_out if root is not None else mapped_out.view(info.dp_size, *shape)[info.dp_rank]
            work = through(handler, COPIES, within, mapped_out)
            variants[f"COPY_ENGINES, {sms} SMs, mapped, in place"] = Variant(sms, work, mapped_out, None)
    if has_one:
        work = through(programmatic, ONE, x_in, out)
        variants["ONE_EXCHANGE, 8 SMs, programmatic"] = Variant(8, work, out, wanted)
    return {
        name: variant
        for name, variant in variants.items()
        if not any(word in f"{op.name}: {name}" for word in ranks.skipped)
    }


def captured(torch: Any, work: Callable[[], object]) -> Any:
    """Captures the work of a call on torch's current stream, while other threads go on. Returns the graph."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph


def measured(
    ranks: Ranks, variants: dict[str, Variant], streams: dict[int, Any], plain: Any, size: int
) -> dict[str, dict[str, Any]]:
    """Microseconds of a call of each variant, in graphs of several calls, which take turns; or why it has none."""
    torch = ranks.torch
    calls = 50 if size <= 1 << 20 else 10 if size <= 1 << 24 else 4
    found: dict[str, dict[str, Any]] = {}
    graphs = {}
    for name, variant in variants.items():
        stream = streams.get(variant.sms, plain)

        def try_out(variant: Variant = variant, stream: Any = stream) -> str:
            variant.out.zero_()
            for _ in range(2):
                variant.call()
            stream.synchronize()
            wanted = variant.wanted
            right = wanted is None or torch.equal(variant.out.view(torch.int16), wanted.view(torch.int16))
            return "" if right else f"rank {ranks.rank} has wrong bits"

        def capture(variant: Variant = variant, name: str = name) -> str:
            graphs[name] = captured(torch, lambda: [variant.call() for _ in range(calls)])
            return ""

        for step in (try_out, capture):
            ranks.meet()
            with torch.cuda.stream(stream):
                problem = ranks.problem_of(step)
            if problem:
                found[name] = {"problem": problem}
                graphs.pop(name, None)
                break
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(ROUNDS):
        # There and back, so that what a variant leaves behind in caches is not always in front of the same one.
        for name, graph in list(graphs.items())[:: -1 if number % 2 else 1]:
            times[name].append(ranks.timed(streams.get(variants[name].sms, plain), graph.replay, calls))
    return found | {name: summary(samples, 2) for name, samples in times.items()}


def autotune(ranks: Ranks, keep: Keep) -> None:
    """AUTOTUNE next to the NCCL modes of the same handler, in a partition of 8 SMs and on the whole device.

    One of these modes is measured twice: how far two measurements of the same thing differ.
    """
    torch = ranks.torch
    divisors = [dp for dp in range(1, ranks.size + 1) if ranks.size % dp == 0]
    buffers = Buffers(torch)
    plain = torch.cuda.Stream()
    has_policy = hasattr(ranks.dist.ProcessGroupNCCL.Options().config, "cta_policy")
    with ExitStack() as closing:
        part = closing.enter_context(ranks.device.partition(comm=8)).comm
        streams = {8: torch_stream(part), 0: plain}
        for dp, sms in itertools.product(sorted(divisors, key=lambda dp: dp in (1, ranks.size)), streams):
            groups = {"NCCL in place, all SMs": ranks.groups(dp)}
            if has_policy:
                groups["NCCL in place, zero-CTA policy"] = ranks.groups(dp, policy=ZERO_CTA)
            with torch.cuda.stream(streams[sms]):
                handler = ranks.handler(part if sms else None, dp)
                map_tensors(ranks, keep, handler, *buffers.mapped())
                begin = time.monotonic()
                handler.run_autotune(progress=False)
                took = time.monotonic() - begin
            where = {"topology": f"{ranks.size // dp} x {dp}", "SMs": sms or ranks.device.sm_count}
            keep(where | {"variant": "run_autotune", "s": round(took, 1)})
            kinds = [""] if "mapped" in ranks.skipped else ["", "mapped "]
            sizes = sorted(SIZES + UNTUNED_SIZES)
            for op, size, kind in itertools.product(handler.valid_op_list, sizes, kinds):
                x_in, out = (buffers.of(f"{kind}{name}", shape) for name, shape in shapes_of(handler, op, size).items())
                scratch = buffers.of("scratch", out.shape if op is MixedCommOp.ALLREDUCE else x_in.shape)
                variants = {}
                modes = {mode.name: mode for mode in (MixedCommMode.AUTOTUNE, NCCL, NCCL_TWO)} | {AGAIN: NCCL}
                for name, mode in modes.items():
                    if mode in handler.valid_mode_list:
                        work = lambda mode=mode: run_mixed_comm(op, handler, x_in, out, mode)  # noqa: B023, E731
                        variants[name] = Variant(sms, work, out, None)
                for name, pair in groups.items():
                    work = lambda pair=pair: nccl_in_place(ranks, op, x_in, out, scratch, pair)  # noqa: B023, E731
                    variants[name] = Variant(0, work, out, None)
                found = measured(ranks, variants, streams, plain, size)
                row = where | {"op": op.name, "bytes": size, "tensors": kind.strip() or "staged"}
                nccl = [found[mode.name] for mode in (NCCL, NCCL_TWO) if "us" in found.get(mode.name, {})]
                for name, outcome in found.items():
                    more: dict[str, Any] = {}
                    if name == "AUTOTUNE" and nccl and "us" in outcome:
                        best = min(nccl, key=lambda one: one["us"])
                        chosen = handler.select_autotune_mode(op, x_in).name
                        more = {"chosen": chosen, "faster than the best NCCL mode": times_as_fast(outcome, best)}
                    elif name == AGAIN and nccl and "us" in outcome:
                        more = {"same calls": times_as_fast(outcome, nccl[0])}
                    keep(row | {"variant": name} | more | outcome)
            handler.check()
            handler.shutdown()


def nodes(ranks: Ranks, keep: Keep) -> None:
    """HIERARCHICAL over two nodes, which are on one host here, by each transport, next to NCCL in the same SMs."""
    torch, local = ranks.torch, ranks.size // 2
    inter_rank, local_rank = divmod(ranks.rank, local)
    buffers = Buffers(torch)
    with ExitStack() as closing:
        part = closing.enter_context(ranks.device.partition(comm=NODE_SMS)).comm
        stream = torch_stream(part)
        for dp in (1, 2):
            handlers = {}
            for name, transport in TRANSPORTS.items():
                if name in ranks.skipped:
                    continue
                with torch.cuda.stream(stream):
                    handlers[name] = MixedCommHandler(
                        *(ranks.rank, ranks.size, local_rank, local, inter_rank, 2),
                        *(local, 1, 2 // dp, dp),
                        torch.bfloat16,
                        f"cuda:{ranks.rank}",
                        partition=part,
                        max_message_bytes=max(NODE_SIZES),
                        timeout_s=20,
                        transport=transport,
                    )
                map_tensors(ranks, keep, handlers[name], *buffers.mapped())
            *_, some = handlers.values()
            info = some.para_info
            for op, size in itertools.product(info.valid_ops, NODE_SIZES):
                shape, out_shape = shapes_of(some, op, size).values()
                x_in, out = buffers.of("mapped in", shape), buffers.of("mapped out", out_shape)
                wanted = None
                if size <= COMPARED:
                    inputs = [ranks.input_of(rank, shape) for rank in range(ranks.size)]
                    x_in.copy_(inputs[ranks.rank])
                    wanted = expected(info, op, inputs, by_nodes=True)
                variants = {}
                for name, handler in handlers.items():
                    work = lambda handler=handler: run_mixed_comm(op, handler, x_in, out, HIERARCHICAL)  # noqa: B023, E731
                    variants[name] = Variant(NODE_SMS, work, out, wanted)
                for mode in (NCCL, NCCL_TWO):
                    if mode in some.valid_mode_list:
                        work = lambda mode=mode: run_mixed_comm(op, some, x_in, out, mode)  # noqa: B023, E731
                        variants[mode.name] = Variant(NODE_SMS, work, out, None)
                row = {"nodes": 2, "ranks of a node": local, "op": op.name, "bytes": size, "SMs": NODE_SMS}
                for name, outcome in measured(ranks, variants, {NODE_SMS: stream}, stream, size).items():
                    keep(row | {"variant": name} | outcome)
            for handler in handlers.values():
                handler.check()
                handler.shutdown()


def types(ranks: Ranks, keep: Keep) -> None:
    """All-reduces of other types than those of 16 bits, next to NCCL: with eight bits, of as many bfloat16 too."""
    torch, op = ranks.torch, MixedCommOp.ALLREDUCE
    buffers, plain, [group, _] = Buffers(torch), torch.cuda.Stream(), ranks.groups(1)
    with ranks.device.partition(comm=8) as parts:
        streams = {8: torch_stream(parts.comm)}
        for dtype in (getattr(torch, name) for name in TYPES):
            with parts.comm.torch():
                handler = ranks.handler(parts.comm, 1, dtype)
            map_tensors(ranks, keep, handler, *(one.view(dtype) for one in buffers.mapped()))
            for size in TYPE_SIZES:

                def of(name: str) -> Any:
                    return buffers.of(name, (2, size // 4)).view(dtype)  # noqa: B023

                inputs = [ranks.input_of(rank, tuple(of("in").shape)).to(dtype) for rank in range(ranks.size)]
                of("in").copy_(inputs[ranks.rank])
                of("mapped in").copy_(inputs[ranks.rank])
                wanted = expected(handler.para_info, op, inputs) if size <= COMPARED else None
                sums = buffers.of("scratch", (2, size // 4)).zero_().view(dtype)
                variants = {"NCCL, all SMs": Variant(0, lambda: ranks.dist.all_reduce(sums, group=group), sums, None)}  # noqa: B023
                if dtype.itemsize == 1:
                    more = buffers.of("scratch", (2, size // 2)).zero_()
                    work = lambda: ranks.dist.all_reduce(more, group=group)  # noqa: B023, E731
                    variants["NCCL, all SMs, as bfloat16"] = Variant(0, work, more, None)
                for name, mode, source, target in (
                    ("NCCL_ONE, 8 SMs", NCCL, "in", "out"),
                    ("ONE_EXCHANGE, 8 SMs", ONE, "in", "out"),
                    ("TWO_EXCHANGE, 8 SMs, staged", TWO, "in", "out"),
                    ("TWO_EXCHANGE, 8 SMs, mapped", TWO, "mapped in", "mapped out"),
                ):
                    if mode in handler.valid_mode_list and (mode is not ONE or size * ranks.size <= AT_ONCE):
                        tensors = of(source), of(target)
                        work = lambda mode=mode, tensors=tensors: run_mixed_comm(op, handler, *tensors, mode)  # noqa: B023, E731
                        variants[name] = Variant(8, work, tensors[1], None if mode is NCCL else wanted)
                row = {"op": op.name, "type": str(dtype).removeprefix("torch."), "bytes": size}
                for name, outcome in measured(ranks, variants, streams, plain, size).items():
                    keep(row | {"variant": name} | outcome)
            handler.check()
            handler.shutdown()


def overlap(ranks: Ranks, keep: Keep) -> None:
    """A GEMM next to an all-reduce of 256 MiB, joined after each step, sustained."""
    torch = ranks.torch
    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    message = torch.randn(LARGEST // 2, device="cuda", dtype=torch.bfloat16)
    reduced = torch.empty_like(message)
    library = f"libcublas.so.{torch.version.cuda.split('.')[0]}"

    def multiply() -> None:
        torch.mm(a, b, out=product)

    def hinted(sms: int | None) -> AbstractContextManager[None]:
        return cublas_sms(torch.cuda.current_blas_handle(), sms, library) if sms else nullcontext()

    multiply()
    plain = torch.cuda.Stream()
    with ExitStack() as closing:
        # Streams of the GEMM and of the communication, the communication, SMs of the GEMM, whether there is one.
        plans: dict[str, tuple[Any, Any, Work, int | None, bool]] = {
            "GEMM alone": (plain, plain, lambda: None, None, True),
            "in sequence, NCCL": (plain, plain, lambda: ranks.dist.all_reduce(reduced), None, True),
        }
        opened = []
        pool = closing.enter_context(PartitionPool(ranks.device))
        for sms, mode in itertools.product(OVERLAP_SMS, (TWO, NCCL)):
            parts = pool.prepare({"comm": sms, "compute": None})
            with parts.comm.torch():
                handler = ranks.handler(parts.comm, 1)
            opened.append(handler)
            if mode is TWO:
                map_tensors(ranks, keep, handler, message, reduced)
            left = parts.compute.sm_count
            call = lambda handler=handler, mode=mode: run_mixed_comm(  # noqa: E731
                MixedCommOp.ALLREDUCE, handler, message, reduced, mode
            )
            name = f"{sms} + {left} SMs, {mode.name}"
            comm_stream, compute_stream = torch_stream(parts.comm), torch_stream(parts.compute)
            plans[f"{name} alone"] = comm_stream, comm_stream, call, None, False
            plans[f"{name}, SM count hint {left}"] = compute_stream, comm_stream, call, left, True

        def steps(first: Any, second: Any, call: Work, with_gemm: bool) -> None:
            for _ in range(STEPS):
                if with_gemm:
                    with torch.cuda.stream(first):
                        multiply()
                with torch.cuda.stream(second):
                    call()
                if first is not second:
                    first.wait_stream(second)
                    second.wait_stream(first)

        times: dict[str, list[float]] = {name: [] for name in plans}
        for number in range(ROUNDS):
            for name, (first, second, call, sms, with_gemm) in plans.items():
                with hinted(sms):
                    work = lambda: steps(first, second, call, with_gemm)  # noqa: B023, E731
                    taken = ranks.timed(first, work, STEPS)
                reduced.normal_()  # sums of sums grow
                if number:
                    times[name].append(taken)
        for handler in opened:
            handler.check()
        for name, samples in times.items():
            keep({"plan": name} | summary(samples, 1))
        for handler in opened:
            handler.shutdown()


def eager(ranks: Ranks, keep: Keep) -> None:
    """The host's time of an all-reduce outside of graphs: of calls in a row that the GPU is far behind."""
    torch, size = ranks.torch, EAGER_BYTES
    buffers = Buffers(torch)
    shape = (1, size // 2)
    staged_in, staged_out = buffers.of("in", shape), buffers.of("out", shape)
    mapped_in, mapped_out = buffers.of("mapped in", shape), buffers.of("mapped out", shape)
    op, [group, _] = MixedCommOp.ALLREDUCE, ranks.groups(1)
    with ranks.device.partition(comm=8) as parts, parts.comm.torch():
        handler = ranks.handler(parts.comm, 1)
        map_tensors(ranks, keep, handler, mapped_in, mapped_out)
        calls: dict[str, Work] = {
            "ONE_EXCHANGE": lambda: run_mixed_comm(op, handler, staged_in, staged_out, ONE),
            "ONE_EXCHANGE to a new output": lambda: run_mixed_comm(op, handler, staged_in, None, ONE),
            "no mode": lambda: run_mixed_comm(op, handler, staged_in, staged_out),
            "TWO_EXCHANGE, mapped": lambda: run_mixed_comm(op, handler, mapped_in, mapped_out, TWO),
            "TWO_EXCHANGE, staged": lambda: run_mixed_comm(op, handler, staged_in, staged_out, TWO),
            "torch, all_reduce": lambda: ranks.dist.all_reduce(staged_out, group=group),
            "torch, add": lambda: torch.add(staged_in, staged_in, out=staged_out),
        }
        if "mapped" in ranks.skipped:
            del calls["TWO_EXCHANGE, mapped"]
        for name, samples in host_times(ranks, calls).items():
            keep({"op": op.name, "bytes": size, "SMs": 8, "variant": name} | summary(samples, 2))
        handler.check()
        handler.shutdown()


def host_times(ranks: Ranks, calls: dict[str, Work]) -> dict[str, list[float]]:
    """The host's microseconds of a call, of the slowest rank, in each turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn, (name, call) in itertools.product(range(1 + EAGER_TURNS), calls.items()):
        ranks.meet()
        begin = time.perf_counter_ns()
        for _ in range(EAGER_CALLS):
            call()
        each = (time.perf_counter_ns() - begin) / EAGER_CALLS / 1000
        ranks.torch.cuda.current_stream().synchronize()
        if turn:
            taken[name].append(ranks.slowest(each))
    return taken


def compiled(ranks: Ranks, keep: Keep) -> None:
    """An all-reduce between two operations of torch, compiled as one graph and not: in graphs, and the host's time."""
    torch, op = ranks.torch, MixedCommOp.ALLREDUCE
    buffers, plain, [group, _] = Buffers(torch), torch.cuda.Stream(), ranks.groups(1)

    def by_nccl(x: Any, out: Any) -> None:
        doubled = x * 2
        ranks.dist.all_reduce(doubled, group=group)
        torch.add(doubled, 1, out=out)

    with ranks.device.partition(comm=8) as parts:
        streams = {8: torch_stream(parts.comm)}
        with parts.comm.torch():
            handler = ranks.handler(parts.comm, 1)

        def by_handler(mode: MixedCommMode) -> Callable[[Any, Any], None]:
            return lambda x, out: torch.add(run_mixed_comm(op, handler, x * 2, None, mode), 1, out=out)

        programs = {
            "ONE_EXCHANGE, 8 SMs": by_handler(ONE),
            "TWO_EXCHANGE, 8 SMs": by_handler(TWO),
            "NCCL, all SMs": by_nccl,
        }
        for size in COMPILED_SIZES:
            torch._dynamo.reset()
            shape = (2, size // 4)
            inputs = [ranks.input_of(rank, shape) for rank in range(ranks.size)]
            wanted = expected(handler.para_info, op, [2 * one for one in inputs]) + 1
            x, out = buffers.of("in", shape).copy_(inputs[ranks.rank]), buffers.of("out", shape)
            variants = {}
            for name, program in programs.items():
                for how in ("eager", "compiled"):
                    run = program if how == "eager" else torch.compile(program, fullgraph=True, dynamic=False)
                    work = lambda run=run: run(x, out)  # noqa: B023, E731
                    is_nccl = program is by_nccl
                    variants[f"{name}, {how}"] = Variant(0 if is_nccl else 8, work, out, None if is_nccl else wanted)
            row = {"op": op.name, "bytes": size}
            found = measured(ranks, variants, streams, plain, size)
            for name, outcome in found.items():
                keep(row | {"variant": name, "time": "GPU"} | outcome)
            calls = {name: variants[name].call for name in found if "us" in found[name]}
            with torch.cuda.stream(streams[8]):
                for name, samples in host_times(ranks, calls).items():
                    keep(row | {"variant": name, "time": "host"} | summary(samples, 2))
        handler.check()
        handler.shutdown()


def copies(ranks: Ranks, keep: Keep) -> None:
    """Copies within a GPU from a partition's stream: a copy engine takes as long there as elsewhere, SMs longer."""
    if ranks.rank:
        return
    from cuda.bindings import driver

    def call(name: str, *arguments: Any) -> None:
        result, *_ = getattr(driver, name)(*arguments)
        if result != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name} failed: {result.name}")

    torch = ranks.torch
    source, target = (torch.zeros(LARGEST, device="cuda", dtype=torch.uint8) for _ in range(2))
    to, of = target.data_ptr(), source.data_ptr()
    attributes = driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    attributes.flags = driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
    primary, pointer = ranks.device.context.handle, driver.CUdeviceptr

    def plane(handle: int, size: int) -> None:
        kind = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        one = driver.CUDA_MEMCPY2D()
        one.srcMemoryType = one.dstMemoryType = kind
        one.srcDevice, one.dstDevice = of, to
        one.WidthInBytes = one.srcPitch = one.dstPitch = 512
        one.Height = size // 512
        call("cuMemcpy2DAsync", one, handle)

    ways: dict[str, Callable[[int, int], object]] = {
        "cuMemcpyDtoDAsync": lambda handle, size: call("cuMemcpyDtoDAsync", to, of, size, handle),
        "cuMemcpyPeerAsync": lambda handle, size: call("cuMemcpyPeerAsync", to, primary, of, primary, size, handle),
        "cuMemcpy2DAsync": plane,
        "cuMemcpyBatchAsync, overlap": lambda handle, size: call(
            "cuMemcpyBatchAsync", [pointer(to)], [pointer(of)], [size], 1, [attributes], [0], 1, handle
        ),
    }
    with ranks.device.partition(comm=8) as parts:
        streams = {"8 SMs": torch_stream(parts.comm), "all SMs": torch.cuda.Stream()}
        for (where, stream), (way, copy), size, in_graph in itertools.product(
            streams.items(), ways.items(), (1 << 20, 64 << 20), (False, True)
        ):
            row: dict[str, Any] = {"copy": way, "bytes": size, "where": where, "in a graph": in_graph}
            try:
                with torch.cuda.stream(stream):
                    work: Work = lambda: copy(int(stream.cuda_stream), size)  # noqa: B023, E731
                    if in_graph:
                        work = captured(torch, work).replay
                    samples = []
                    for _ in range(ROUNDS):
                        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                        work()
                        begin.record()
                        for _ in range(10):
                            work()
                        end.record()
                        end.synchronize()
                        samples.append(begin.elapsed_time(end) * 100)
                row |= summary(samples, 2)
            except Exception as error:  # a way that this driver refuses, here or in a graph
                row["problem"] = str(error).splitlines()[0]
            keep(row)


PARTS: dict[str, Callable[[Ranks, Keep], None]] = {
    "sweep": sweep,
    "autotune": autotune,
    "overlap": overlap,
    "eager": eager,
    "copies": copies,
    "nodes": nodes,
    "types": types,
    "compiled": compiled,
}


def keep_in(file: Path) -> Keep:
    """Writes rows as they come."""

    def keep(row: dict[str, Any]) -> None:
        with file.open("a") as rows:
            rows.write(json.dumps(row) + "\n")

    return keep


def run_rank(name: str, ranks: Ranks, file: Path) -> None:
    """One rank of a part; the first one writes the rows."""
    PARTS[name](ranks, (lambda row: None) if ranks.rank else keep_in(file))
    ranks.close()


def run_part(
    name: str, folder: Path, gpus: int, limit: float, skipped: Sequence[str]
) -> tuple[list[dict[str, Any]], bool]:
    """All ranks of a part, under a time limit: its rows, and whether it came to its end.

    A rank that is gone takes the others along.
    """
    file = rows_of(name, folder)
    file.unlink(missing_ok=True)
    # Ranks meet through a file: a port that was free a moment ago may be taken.
    with TemporaryDirectory() as meeting:
        program = [sys.executable, __file__, "--part", name, "--out", str(folder), "--gpus", str(gpus)]
        program += ["--limit", str(limit), "--store", f"{meeting}/store", "--skip", *skipped]
        codes = codes_of([["timeout", "-s", "KILL", str(limit), *program, "--rank", str(rank)] for rank in range(gpus)])
    return read_rows(file), not any(codes)


def codes_of(commands: Sequence[Sequence[str]]) -> list[int]:
    """The exit codes of ranks. If one ends, the others have 15 s."""
    workers = [subprocess.Popen(command, env=os.environ | NO_MULTICAST) for command in commands]
    while all(worker.poll() is None for worker in workers):
        time.sleep(0.2)
    end = time.monotonic() + 15
    while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
        time.sleep(0.2)
    for worker in workers:
        worker.terminate()  # which timeout passes on
    return [worker.wait() for worker in workers]


def rows_of(name: str, folder: Path) -> Path:
    return folder / f"communication-{name}.rows.jsonl"


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def in_short(row: dict[str, Any]) -> dict[str, Any]:
    """A row as results keep it: of the samples, the smallest and the largest."""
    samples = row.get("samples")
    ends = {} if samples is None else {"min": min(samples), "max": max(samples)}
    return {key: value for key, value in row.items() if key != "samples"} | ends


def line_of(row: dict[str, Any]) -> str:
    values = [f"{value >> 10} KiB" if key == "bytes" else str(value) for key, value in row.items() if key != "samples"]
    return "  ".join(f"{value:>10}" for value in values)


def main() -> int:
    parts = list(PARTS)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--part", choices=parts, help="one part of it (default: all)")
    parser.add_argument("--gpus", type=int, help="how many GPUs (default: all)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a part may take")
    parser.add_argument(
        "--skip", nargs="*", default=[], help="leave out operations and variants with one of these words"
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = folder_of_results(arguments.out, reporting.RESULTS).resolve()
    gpus = Device.count() if arguments.gpus is None else arguments.gpus
    if arguments.rank is not None:
        faulthandler.dump_traceback_later(arguments.limit - 5, exit=True)
        ranks = Ranks(arguments.rank, gpus, arguments.store, arguments.skip)
        run_rank(arguments.part, ranks, rows_of(arguments.part, folder))
        faulthandler.cancel_dump_traceback_later()
        return 0
    what = f"Collectives on {gpus} GPUs, written by benchmarks/communication.py"
    result = described(Device(0), what, reporting.REPOSITORY)
    path = folder / file_name(result, f"communication-{gpus}-gpus")
    if arguments.part and path.exists():
        # Parts that were run one by one make up one result.
        result |= {name: rows for name, rows in json.loads(path.read_text()).items() if name in parts}
    failed = []
    for name in [arguments.part] if arguments.part else parts:
        rows, complete = run_part(name, folder, gpus, arguments.limit, arguments.skip)
        result[name] = [in_short(row) for row in rows]
        for row in rows:
            print(line_of(row), flush=True)
        write_result(result, path)
        if complete:
            rows_of(name, folder).unlink(missing_ok=True)
        else:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
