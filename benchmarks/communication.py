"""Collectives of cuda_gctx.comm and of NCCL on two GPUs: time over size, and next to matrix products.

    python benchmarks/communication.py [--out DIR] [--part sweep|overlap]

One process per GPU, NVLink multicast off. Times are of CUDA graphs of many calls, the median of several replays, the
slower GPU of the two; all variants are measured in turns. Needs torch and two GPUs, and takes about two minutes.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import tables

from cuda_gctx import Device, PartitionPool
from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, expected, run_mixed_comm
from cuda_gctx.interop.library_sms import cublas_sms
from cuda_gctx.interop.torch import torch_stream
from cuda_gctx.measure.machine import described, file_name, folder_of_results

SIZES = [1 << shift for shift in (10, 13, 15, 17, 19, 21, 23, 26, 28)]
LARGEST = max(SIZES)
# Bits are compared up to this size.
COMPARED = 8 << 20
ROUNDS = 7
PRODUCT = 8192
STEPS = 20
LIMIT_S = 110
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
NCCL, ONE, TWO = MixedCommMode.NCCL_ONE, MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE


class Ranks:
    """This process as one of two ranks: its GPU, and the larger of two times."""

    def __init__(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank = torch, dist, rank
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=2)
        self.device = Device(rank)
        self.host = dist.new_group(backend="gloo")

    def handler(self, partition: Any, dp: int) -> MixedCommHandler:
        numbers = self.rank, 2, self.rank, 2, 0, 1, 2 // dp, dp, 1, 1
        return MixedCommHandler(
            *numbers,
            self.torch.bfloat16,
            f"cuda:{self.rank}",
            partition=partition,
            max_message_bytes=LARGEST,
            timeout_s=20,
        )

    def meet(self) -> None:
        self.torch.cuda.synchronize()
        self.dist.barrier(group=self.host)

    def slower(self, microseconds: float) -> float:
        taken = self.torch.tensor([microseconds])
        self.dist.all_reduce(taken, op=self.dist.ReduceOp.MAX, group=self.host)
        return float(taken)

    def timed(self, stream: Any, work: Callable[[], object], calls: int) -> float:
        """Microseconds of a call, of the slower GPU."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.meet()
        with self.torch.cuda.stream(stream):
            work()  # in which the ranks meet
            begin.record()
            work()
            end.record()
        end.synchronize()
        return self.slower(begin.elapsed_time(end) * 1000 / calls)


def nccl_call(ranks: Ranks, op: MixedCommOp, x_in: Any, x_out: Any) -> None:
    """The collective of torch.distributed itself, on all SMs; the all-reduce in place, as it is usually called."""
    if op is MixedCommOp.ALLREDUCE:
        ranks.dist.all_reduce(x_out)
    elif op is MixedCommOp.ALLGATHER:
        ranks.dist.all_gather_into_tensor(x_out, x_in)
    else:
        ranks.dist.reduce_scatter_tensor(x_out, x_in)


def sweep(rank: int) -> list[dict[str, Any]]:
    ranks = Ranks(rank)
    torch = ranks.torch
    rows = []
    with ExitStack() as closing:
        parts = closing.enter_context(ranks.device.partition(small=8, large=16))
        plain = torch.cuda.Stream()
        for dp in (1, 2):
            handlers = {}
            for part in (parts.small, parts.large):
                with part.torch():
                    handlers[part.sm_count] = ranks.handler(part, dp)
            streams = {part.sm_count: torch_stream(part) for part in (parts.small, parts.large)}
            for op in handlers[8].valid_op_list:
                for size in SIZES:
                    rows += measure_size(ranks, op, size, dp, handlers, streams, plain)
            for handler in handlers.values():
                handler.check()
                handler.shutdown()
    ranks.meet()
    ranks.dist.destroy_process_group()
    return rows


def measure_size(
    ranks: Ranks,
    op: MixedCommOp,
    size: int,
    dp: int,
    handlers: dict[int, MixedCommHandler],
    streams: dict[int, Any],
    plain: Any,
) -> list[dict[str, Any]]:
    """Every variant at one size, which is that of the larger of input and output."""
    torch = ranks.torch
    elements = size // 2 // (dp if op.gathers else 1)
    inputs = [
        torch.randn(2, elements // 2, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").bfloat16()
        for seed in range(2)
    ]
    x_in = inputs[ranks.rank]
    info = handlers[8].para_info
    wanted = expected(info, op, inputs)
    out = torch.empty_like(wanted)
    calls = 50 if size <= 1 << 20 else 10 if size <= 1 << 24 else 4
    variants: dict[str, tuple[Any, Callable[[], object], bool]] = {
        "NCCL, all SMs": (plain, lambda: nccl_call(ranks, op, x_in, out), False),
    }
    for sms, handler in handlers.items():
        for mode in (NCCL, ONE, TWO):
            if mode is ONE and info.block_size(op, x_in.numel() * 2) > 512 * 1024:
                continue
            call = lambda handler=handler, mode=mode: run_mixed_comm(op, handler, x_in, out, mode)  # noqa: E731
            variants[f"{mode.name}, {sms} SMs"] = streams[sms], call, mode is not NCCL
    graphs = {}
    for name, (stream, call, is_exact) in variants.items():
        ranks.meet()
        with torch.cuda.stream(stream):
            out.zero_()
            for _ in range(2):
                call()
            stream.synchronize()
            if is_exact and size <= COMPARED and not torch.equal(out.view(torch.int16), wanted.view(torch.int16)):
                raise AssertionError(f"{name}, {op.name} of {size} bytes: rank {ranks.rank} has wrong bits")
            ranks.meet()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    call()
            finally:
                graph.capture_end()
            graphs[name] = graph
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, (stream, _, _) in variants.items():
            times[name].append(ranks.timed(stream, graphs[name].replay, calls))
    rows = []
    for name, samples in times.items():
        rows.append({"op": op.name, "bytes": size, "variant": name, "us": round(statistics.median(samples), 2)})
        rows[-1]["samples"] = [round(one, 2) for one in samples]
    ranks.meet()
    return rows


def overlap(rank: int) -> list[dict[str, Any]]:
    """A matrix product next to an all-reduce of 256 MiB, joined after each step; sustained, and after a rest."""
    ranks = Ranks(rank)
    torch = ranks.torch
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    message = torch.randn(LARGEST // 2, device="cuda", dtype=torch.bfloat16)
    reduced = torch.empty_like(message)
    library = f"libcublas.so.{torch.version.cuda.split('.')[0]}"

    def multiply() -> None:
        torch.mm(a, b, out=product)

    def told(sms: int | None) -> AbstractContextManager[None]:
        return cublas_sms(torch.cuda.current_blas_handle(), sms, library) if sms else nullcontext()

    multiply()
    plain = torch.cuda.Stream()
    times: dict[str, list[float]] = {}
    with ExitStack() as closing:
        plans: dict[str, tuple[Any, Any, Callable[[], object], int | None]] = {
            "product alone": (plain, plain, lambda: None, None),
            "in sequence, NCCL": (plain, plain, lambda: ranks.dist.all_reduce(reduced), None),
        }
        opened = []
        pool = closing.enter_context(PartitionPool(ranks.device))
        for sms, mode in ((8, TWO), (16, TWO), (16, NCCL)):
            parts = pool.get({"comm": sms, "compute": None})
            with parts.comm.torch():
                handler = ranks.handler(parts.comm, 1)
            opened.append(handler)
            left = parts.compute.sm_count
            call = lambda handler=handler, mode=mode: run_mixed_comm(  # noqa: E731
                MixedCommOp.ALLREDUCE, handler, message, reduced, mode
            )
            name = f"{sms} + {left} SMs, {mode.name}"
            comm_stream, compute_stream = torch_stream(parts.comm), torch_stream(parts.compute)
            plans[f"{name} alone"] = comm_stream, comm_stream, call, -1
            plans[f"{name}, told of {left}"] = compute_stream, comm_stream, call, left

        def steps(first: Any, second: Any, call: Callable[[], object], with_product: bool) -> None:
            for _ in range(STEPS):
                if with_product:
                    with torch.cuda.stream(first):
                        multiply()
                with torch.cuda.stream(second):
                    call()
                if first is not second:
                    first.wait_stream(second)
                    second.wait_stream(first)

        times = {name: [] for name in plans}
        for number in range(ROUNDS):
            for name, (first, second, call, sms) in plans.items():
                with told(sms if sms and sms > 0 else None):
                    work = lambda: steps(first, second, call, sms != -1)  # noqa: B023, E731
                    taken = ranks.timed(first, work, STEPS)
                reduced.normal_()  # sums of sums grow
                if number:
                    times[name].append(taken)
        for handler in opened:
            handler.check()
            handler.shutdown()
    ranks.meet()
    ranks.dist.destroy_process_group()
    return [
        {"plan": name, "us": round(statistics.median(samples), 1), "samples": [round(one, 1) for one in samples]}
        for name, samples in times.items()
    ]


PARTS: dict[str, Callable[[int], list[dict[str, Any]]]] = {"sweep": sweep, "overlap": overlap}


def run_part(name: str, folder: Path) -> list[dict[str, Any]] | None:
    """Both ranks of a part, under a time limit; None if one failed. A rank that is gone takes the other one along."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | NO_MULTICAST | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    file = folder / f"communication-{name}.rows.json"
    file.unlink(missing_ok=True)
    program = [sys.executable, __file__, "--part", name, "--out", str(folder)]
    workers = [
        subprocess.Popen(["timeout", "-s", "KILL", str(LIMIT_S), *program, "--rank", str(rank)], env=environment)
        for rank in range(2)
    ]
    while all(worker.poll() is None for worker in workers):
        time.sleep(0.2)
    end = time.monotonic() + 15
    while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
        time.sleep(0.2)
    for worker in workers:
        worker.kill()
    if any(worker.wait() for worker in workers):
        return None
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    file.unlink()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--part", choices=PARTS, help="one part of it (default: all)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = folder_of_results(arguments.out, tables.RESULTS).resolve()
    if arguments.rank is not None:
        faulthandler.dump_traceback_later(LIMIT_S - 10, exit=True)
        rows = PARTS[arguments.part](arguments.rank)
        faulthandler.cancel_dump_traceback_later()
        if arguments.rank == 0:
            (folder / f"communication-{arguments.part}.rows.json").write_text(json.dumps(rows))
        return 0
    result = described(Device(0), "Collectives on two GPUs, written by benchmarks/communication.py", tables.REPOSITORY)
    failed = []
    for name in [arguments.part] if arguments.part else PARTS:
        rows = run_part(name, folder)
        if rows is None:
            failed.append(name)
            continue
        result[name] = rows
        for row in rows:
            what = f"{row['op']:16} {row['bytes'] >> 10:7} KiB  {row['variant']}" if "op" in row else row["plan"]
            print(f"{what:60} {row['us']:9.1f} us", flush=True)
        path = folder / file_name(result, "communication-2-gpus")
        path.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
