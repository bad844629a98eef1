"""Runs the kernels of cuda_gctx.comm on a GPU: ranks as partitions of one GPU, as processes on one GPU and on several.

    python tests/comm/gpu_suite.py --out FOLDER [--build] [--jobs N] [--limit SECONDS] [CASE ...]

Each case is a program of its own under a time limit, because its kernels wait for each other. FOLDER receives
results.json and a log for each case. The exit code is 0 if every case passed. --build installs the package into
FOLDER/site first, with what the interpreter has (Cython, scikit-build-core, CMake, a compiler, cuda.h), and asks no
registry.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rank_programs import is_rounded_at_most_at_each_addition

# Multicast over NVLink can put the GPUs of a shared host out of service: nothing here uses it, nothing below may.
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# Eight ranks that are threads, and GEMMs next to them, have more streams than the default number of hardware queues.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 90
# Of waits in the kernels: a rank that is late by more is an error of the tests.
TIMEOUT_S = 10.0
# The largest message that is compared with the exact value: 8 ranks that each make the inputs of all need 30 GB.
LARGEST = 64 << 20
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def modules() -> tuple[Any, Any]:
    import torch

    from cuda_gctx import comm

    return torch, comm


def inputs_of(torch: Any, shape: tuple[int, ...], dtype: Any, count: int, seed: int, device: Any) -> list[Any]:
    made = []
    for rank in range(count):
        generator = torch.Generator(device).manual_seed(seed * 64 + rank)
        one = torch.randn(shape, generator=generator, device=device) * 2.0 ** ((seed + rank) % 5 - 2)
        one[one.abs() < 0.02] = -0.0
        made.append(one.to(dtype))
    return made


def raised(kind: type[Exception], function: Callable[[], Any]) -> Any:
    """The exception of a call, which must raise one of that kind."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised, where a {kind.__name__} was expected")


def refused(kind: type[Exception], words: str, function: Callable[[], Any]) -> None:
    message = str(raised(kind, function))
    assert words in message, message


def bits_equal(torch: Any, one: Any, other: Any) -> bool:
    return bool(torch.equal(one.view(torch.int16), other.view(torch.int16)))


def compare(rank: Any, handler: Any, op: Any, mode: Any, shape: tuple[int, ...], seed: int) -> None:
    """One call of an operation by all ranks, compared bit for bit with the exact value."""
    torch, comm = modules()
    info = handler.para_info
    # Every rank makes the inputs of all, which are the same on every GPU.
    inputs = inputs_of(torch, shape, handler.dtype, rank.size, seed, handler.device)
    wanted = comm.expected(info, op, inputs, by_nodes=mode is comm.MixedCommMode.HIERARCHICAL)
    out = torch.full_like(wanted, float("nan"))
    torch.cuda.current_stream().synchronize()
    rank.backend.barrier()
    comm.run_mixed_comm(op, handler, inputs[rank.rank], out, mode)
    torch.cuda.current_stream().synchronize()
    handler.check()
    if not bits_equal(torch, out, wanted):
        wrong = (out.view(torch.int16) != wanted.view(torch.int16)).flatten()
        where = wrong.nonzero().flatten()
        raise AssertionError(
            f"{op.name} {mode.name} {list(shape)} {handler.dtype} at rank {rank.rank} of {info}: {len(where)} of "
            f"{wrong.numel()} wrong, first at {where[:4].tolist()}: {out.flatten()[where[:4]].tolist()}, wanted "
            f"{wanted.flatten()[where[:4]].tolist()}"
        )
    rank.backend.barrier()


def shapes_for(dp: int, largest: int) -> list[tuple[int, int]]:
    """Of one row to the largest message; odd numbers of rows, and rows of odd numbers of units."""
    shapes = [(1, 8), (1, 8192), (3, 8192), (7, 264), (33, 4104), (64, 8192), (129, 8192), (largest // 16384, 8192)]
    return [(rows * dp, hidden) for rows, hidden in shapes]


def every_op(
    size: int,
    topologies: list[dict[str, int]],
    sms: int,
    largest: int,
    modes: Sequence[str] | None = None,
    gpus: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Every operation, mode, type and a spread of sizes."""
    torch, comm = modules()
    from cuda_gctx import Device

    done = [0]

    def work(rank: Any) -> None:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch():
            for topology, dtype in itertools.product(topologies, (torch.bfloat16, torch.float16)):
                with rank.handler(dtype, timeout_s=TIMEOUT_S, **topology, **options) as handler:
                    wanted = [one for one in handler.valid_mode_list if modes is None or one.name in modes]
                    for op, mode in itertools.product(handler.valid_op_list, wanted):
                        dp = handler.para_info.dp_size
                        # `largest` is of the larger of input and output.
                        shapes = shapes_for(dp if op.scatters else 1, largest // dp)
                        for seed, shape in enumerate(shapes):
                            compare(rank, handler, op, mode, shape, seed)
                            if rank.rank == 0:
                                done[0] += 1

    with comm.local_world(size, [Device(number) for number in range(gpus)], sms=sms) as world:
        world.run(work)
    return {"calls compared": done[0]}


@case
def machine() -> dict[str, Any]:
    torch, _ = modules()
    import cuda.bindings
    import cuda.core

    from cuda_gctx import Device, system
    from cuda_gctx.comm._compile import compile_kernels
    from cuda_gctx.comm._protocol import Geometry, defines
    from cuda_gctx.comm._topology import ParallelInfo

    device = Device(0)
    info = ParallelInfo.of(0, 8, 0, 8, 0, 1, 4, 2)
    start = time.perf_counter()
    reports = {}
    for op in info.valid_ops:
        words = defines(info, op, Geometry(8, 1 << 19, 1 << 26), is_bfloat16=True)
        compiled = compile_kernels(words, device.compute_capability)
        for name in ("one_exchange", "two_exchange"):
            report = compiled.report(name)
            assert report.spill_bytes == 0, f"{name} of {op.name} spills: {report}"
            reports[f"{op.name} {name}"] = report.registers
    return {
        "device": device.name,
        "devices": Device.count(),
        "driver": ".".join(map(str, system.driver_version)),
        "torch": torch.__version__,
        "cuda.core": cuda.core.__version__,
        "cuda.bindings": cuda.bindings.__version__,
        "registers": reports,
        "compile_s": round(time.perf_counter() - start, 2),
    }


@case
def ops_2_ranks() -> dict[str, Any]:
    return every_op(2, [{}, {"local_dp_size": 2}, {"nodes": 2, "inter_dp_size": 2}], 16, LARGEST)


@case
def ops_4_ranks() -> dict[str, Any]:
    two_nodes = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2}
    return every_op(4, [{"local_tp_size": 2}, {}, {"local_dp_size": 4}, two_nodes], 16, LARGEST)


@case
def ops_8_ranks() -> dict[str, Any]:
    nodes = [
        {"nodes": 2, "local_tp_size": 2, "local_dp_size": 2, "inter_dp_size": 2},
        {"nodes": 4, "local_tp_size": 2, "inter_tp_size": 2, "inter_dp_size": 2},
    ]
    return every_op(8, [{"local_tp_size": 4}, {"local_tp_size": 2}, {}, {"local_dp_size": 8}, *nodes], 16, LARGEST)


@case
def ops_odd_worlds() -> dict[str, Any]:
    compared = {}
    for size, topologies in ((3, [{}, {"local_dp_size": 3}]), (6, [{"local_tp_size": 3}, {"local_tp_size": 2}])):
        compared[f"{size} ranks"] = every_op(size, topologies, 16, LARGEST)
    return compared


@case
def ops_staged() -> dict[str, Any]:
    """At once, and in several rounds."""
    topologies = [{"local_tp_size": 2}, {}]
    return {
        f"memory for {size >> 20} MiB": every_op(4, topologies, 24, LARGEST, ["TWO_EXCHANGE"], max_message_bytes=size)
        for size in (LARGEST, 5 << 20)
    }


@case
def ops_8_ranks_of_8_sms() -> dict[str, Any]:
    return every_op(8, [{"local_tp_size": 2}, {}], 8, LARGEST)


def back_to_back(
    size: int, topology: dict[str, Any], sms: int, calls: int, *, with_gemms: bool, gpus: int = 1
) -> dict[str, Any]:
    """Calls of random operations, modes, sizes and grids without a wait between them; each output is looked at."""
    torch, comm = modules()
    from cuda_gctx import Device

    stop = threading.Event()

    def work(rank: Any) -> int:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S, **topology) as handler:
            info = handler.para_info
            rows = [1, 2, 5, 16, 64]
            kinds = []
            for op, count in itertools.product(handler.valid_op_list, rows):
                shape = (count * (info.dp_size if op.scatters else 1), 1024)
                inputs = inputs_of(torch, shape, torch.bfloat16, size, count, handler.device)
                for by_nodes in (False, True) if info.use_inter else (False,):
                    kinds.append((op, inputs[rank.rank], comm.expected(info, op, inputs, by_nodes=by_nodes), by_nodes))
            outs = [torch.empty_like(kind[2]) for kind in kinds]
            wrong = torch.zeros((), dtype=torch.int64, device=handler.device)
            # What is used below is loaded and allocated before: doing so may wait for kernels that run.
            for out, (_, _, wanted, _) in zip(outs, kinds, strict=True):
                out.fill_(float("nan"))
                wrong += (out.view(torch.int16) != wanted.view(torch.int16)).sum()
            wrong.zero_()
            torch.cuda.synchronize()
            rank.backend.barrier()
            # The same choices on all ranks; the grids are each rank's own.
            together, alone = random.Random(7), random.Random(rank.rank)
            most = handler.grid_size
            by_nodes_mode = comm.MixedCommMode.HIERARCHICAL
            others = [mode for mode in handler.valid_mode_list if mode is not by_nodes_mode]
            for number in range(calls):
                at = together.randrange(len(kinds))
                op, x_in, wanted, by_nodes = kinds[at]
                mode = by_nodes_mode if by_nodes else together.choice(others)
                handler.grid_size = alone.randint(1, most)
                outs[at].fill_(float("nan"))
                comm.run_mixed_comm(op, handler, x_in, outs[at], mode)
                wrong += (outs[at].view(torch.int16) != wanted.view(torch.int16)).sum()
                if number % 500 == 499:
                    torch.cuda.current_stream().synchronize()
                    handler.check()
            torch.cuda.current_stream().synchronize()
            handler.check()
            assert int(wrong) == 0, f"{int(wrong)} elements were wrong at rank {rank.rank}"
            return calls

    ready = threading.Event()

    def run_gemms(background: Any) -> None:
        with background.torch():
            a = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda:0")
            out = torch.mm(a, a)
            torch.cuda.synchronize()
            # What it loads and allocates is there before kernels of ranks wait for each other.
            ready.set()
            while not stop.is_set():
                for _ in range(8):
                    torch.mm(a, a, out=out)
                torch.cuda.current_stream().synchronize()

    with comm.local_world(size, [Device(number) for number in range(gpus)], sms=sms) as world:
        gemms = threading.Thread(target=run_gemms, args=world.backgrounds[:1], daemon=True)
        if with_gemms:
            gemms.start()
            assert ready.wait(30), "the GEMMs did not begin"
        try:
            done = world.run(work)
        finally:
            stop.set()
            if with_gemms:
                gemms.join()
    return {"calls": done[0]}


@case
def back_to_back_4_ranks() -> dict[str, Any]:
    return back_to_back(4, {"local_tp_size": 2}, 16, 10_000, with_gemms=False)


@case
def back_to_back_8_ranks() -> dict[str, Any]:
    return back_to_back(8, {"local_tp_size": 4}, 8, 3_000, with_gemms=False)


@case
def back_to_back_next_to_gemms() -> dict[str, Any]:
    """In partitions of 8, 16 and 24 SMs, while GEMMs run on the other SMs."""
    return {
        f"{ranks} ranks of {sms} SMs": back_to_back(ranks, {"local_tp_size": 2}, sms, 600, with_gemms=True)
        for ranks, sms in ((8, 8), (4, 16), (4, 24))
    }


@case
def programmatic_launches() -> dict[str, Any]:
    """The kernel for small messages, launched before the kernel ahead of it has ended; in graphs too."""
    options = {"local_tp_size": 2, "programmatic_launch": True}
    compared = every_op(4, [{"local_tp_size": 2}], 16, 1 << 20, programmatic_launch=True)
    return compared | back_to_back(4, options, 16, 2_000, with_gemms=False) | graphs_of(options)


def capture(torch: Any, work: Callable[[], None]) -> Any:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph


@case
def graphs_and_checkpoint() -> dict[str, Any]:
    """Captured calls are replayed, between others too, and after the memory has gone away and come back."""
    return graphs_of({"local_tp_size": 2})


def graphs_of(options: dict[str, Any], gpus: int = 1) -> dict[str, Any]:
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any) -> dict[str, Any]:
        torch.cuda.set_device(rank.device.device_id)
        with (
            rank.partition.torch(),
            rank.handler(torch.bfloat16, **options, timeout_s=TIMEOUT_S, max_message_bytes=8 << 20) as handler,
        ):
            info = handler.para_info
            modes = list(handler.valid_mode_list)
            ops = list(handler.valid_op_list)
            inputs = inputs_of(torch, (32, 1024), torch.bfloat16, rank.size, 1, handler.device)
            x = inputs[rank.rank]
            wanted = [
                comm.expected(info, op, inputs, by_nodes=mode is comm.MixedCommMode.HIERARCHICAL)
                for op in ops
                for mode in modes
            ]
            outs = [torch.empty_like(one) for one in wanted]
            pairs = [(op, mode) for op in ops for mode in modes]
            torch.cuda.synchronize()
            rank.backend.barrier()

            def all_calls() -> None:
                for (op, mode), out in zip(pairs, outs, strict=True):
                    comm.run_mixed_comm(op, handler, x, out, mode)

            all_calls()
            torch.cuda.current_stream().synchronize()
            rank.backend.barrier()
            graph = capture(torch, all_calls)
            torch.cuda.current_stream().synchronize()
            rank.backend.barrier()

            def replay(times: int, what: str) -> None:
                for out in outs:
                    out.fill_(float("nan"))
                for number in range(times):
                    graph.replay()
                    if number % 3 == 0:
                        all_calls()
                torch.cuda.current_stream().synchronize()
                handler.check()
                for (op, mode), out, one in zip(pairs, outs, wanted, strict=True):
                    assert bits_equal(torch, out, one), f"{op.name} {mode.name} is wrong at rank {rank.rank} {what}"
                rank.backend.barrier()

            replay(100, "in a replay")
            rank.backend.barrier()
            free = torch.cuda.mem_get_info()[0]
            rank.backend.barrier()
            handler.checkpoint_prepare()
            rank.backend.barrier()
            freed = torch.cuda.mem_get_info()[0] - free
            assert freed > 8 << 20, f"only {freed} bytes came free"
            refused(RuntimeError, "checkpoint_restore", lambda: comm.run_mixed_comm(ops[0], handler, x))
            rank.backend.barrier()
            handler.checkpoint_restore(rank.backend)
            replay(20, "after a checkpoint")
            return {"freed_mib": freed >> 20}

    with comm.local_world(4, [Device(number) for number in range(gpus)], sms=16) as world:
        return world.run(work)[0]


TWO_NODES = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2}


@case
def nodes_on_one_gpu() -> dict[str, Any]:
    """The hierarchical form with its real kernels, of 2 and 4 nodes; calls back to back, graphs, a checkpoint."""
    by_nodes = ("HIERARCHICAL",)
    two = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    eight = [
        {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2},
        {"nodes": 4, "local_tp_size": 2, "inter_tp_size": 2},
        {"nodes": 4, "local_dp_size": 2, "inter_dp_size": 2},
        {"nodes": 2},
    ]
    return {
        "2 ranks": every_op(2, two, 16, 16 << 20, modes=by_nodes),
        "4 ranks": every_op(4, OF_FOUR[3:], 16, 16 << 20, modes=by_nodes),
        "4 ranks, staged": every_op(4, OF_FOUR[3:5], 16, 4 << 20, modes=by_nodes, max_message_bytes=16 << 20),
        "8 ranks": every_op(8, eight, 8, 4 << 20, modes=by_nodes),
        "back to back": back_to_back(4, TWO_NODES, 16, 3_000, with_gemms=False),
        "graphs": graphs_of(TWO_NODES),
    }


@case
def concurrency_is_proven() -> dict[str, Any]:
    """Ranks that hold all SMs of one GPU cannot run at once: refused at the beginning, by name, and in time."""
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any) -> tuple[str, float]:
        place = rank.rank, 2, rank.rank, 2, 0, 1, None, None, None, None
        begin = time.monotonic()
        # No partition: the kernels of each rank fill the GPU.
        with torch.cuda.stream(torch.cuda.Stream()):
            error = raised(
                RuntimeError,
                lambda: comm.MixedCommHandler(
                    *place, torch.bfloat16, "cuda:0", comm_backend=rank.backend, timeout_s=2.0
                ),
            )
        return str(error), round(time.monotonic() - begin, 2)

    with comm.local_world(2, Device(0), sms=16, timeout_s=30) as world:
        found = world.run(work)
    assert all("do not run at the same time" in message for message, _ in found), found
    return {"message": found[0][0], "s": [took for _, took in found], "afterwards": every_op(2, [{}], 16, 1 << 20)}


@case
def autotune() -> dict[str, Any]:
    """Every rank has the same table and follows it; a table is taken up by another handler."""
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any) -> Any:
        options = {"local_tp_size": 2, "timeout_s": TIMEOUT_S, "max_message_bytes": 4 << 20}
        with rank.partition.torch(), rank.handler(torch.bfloat16, **options) as handler:
            table = handler.run_autotune(message_bytes=[1 << 12, 1 << 16, 1 << 20])
            for op, seed in itertools.product(handler.valid_op_list, range(2)):
                shape = (2 * 8 ** (1 + seed), 1024)
                compare(rank, handler, op, comm.MixedCommMode.AUTOTUNE, shape, seed)
            with rank.handler(torch.bfloat16, **options) as other:
                other.use_tuning_table(comm.TuningTable.from_json(table.to_json()))
                assert other.tuning_table == table
            return table.to_json()

    with comm.local_world(4, Device(0), sms=16) as world:
        tables = world.run(work)
    assert len(set(tables)) == 1
    choices = json.loads(tables[0])["cases"]
    return {f"{one['op']} {one['bytes']} {'mapped' * one['mapped']}": one["choices"][0] for one in choices}


def expect_fault(torch: Any, handler: Any, kind: str, within_s: float) -> float:
    _, comm = modules()
    start = time.monotonic()
    torch.cuda.current_stream().synchronize()
    took = time.monotonic() - start
    assert took < within_s, f"the kernel took {took:.1f} s"
    error = raised(comm.CommFault, handler.check)
    assert error.kind == kind, error
    return took


@case
def faults() -> dict[str, Any]:
    """Ranks that do not come, or that are called with something else: errors in time, and the GPU works after."""
    return faults_of(3, 1)


@case
def faults_between_nodes() -> dict[str, Any]:
    """The same between two nodes of two ranks on one GPU, where nodes exchange."""
    return faults_of(4, 1, nodes=2)


def faults_of(size: int, gpus: int, **topology: int) -> dict[str, Any]:
    torch, comm = modules()
    from cuda_gctx import Device

    devices = [Device(number) for number in range(gpus)]
    results: dict[str, Any] = {}

    def missing(rank: Any, mode: Any) -> float:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=1.0, **topology) as handler:
            x = torch.ones(64, 1024, dtype=torch.bfloat16, device=handler.device)
            comm.run_mixed_comm(handler.valid_op_list[0], handler, x, None, mode)
            torch.cuda.synchronize()
            rank.backend.barrier()
            took = 0.0
            if rank.rank != 1:
                comm.run_mixed_comm(handler.valid_op_list[0], handler, x, None, mode)
                took = expect_fault(torch, handler, "timeout", 3.0)
                raised(RuntimeError, lambda: comm.run_mixed_comm(handler.valid_op_list[0], handler, x, None, mode))
            return took

    def different(rank: Any, mode: Any) -> float:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=5.0, **topology) as handler:
            # All of another node, so that it is not found within one.
            last = rank.size // 2 if topology else rank.size - 1
            rows = 16 if rank.rank >= last else 8
            x = torch.ones(rows, 1024, dtype=torch.bfloat16, device=handler.device)
            torch.cuda.synchronize()
            rank.backend.barrier()
            comm.run_mixed_comm(handler.valid_op_list[0], handler, x, None, mode)
            return expect_fault(torch, handler, "mismatch", 2.0)

    def other_operation(rank: Any, mode: Any) -> float:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=5.0, local_dp_size=size) as handler:
            op = handler.valid_op_list[rank.rank == rank.size - 1]
            x = torch.ones(8 * size, 1024, dtype=torch.bfloat16, device=handler.device)
            torch.cuda.synchronize()
            rank.backend.barrier()
            comm.run_mixed_comm(op, handler, x, None, mode)
            return expect_fault(torch, handler, "mismatch", 2.0)

    def other_mode(rank: Any, mode: Any) -> float:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=1.0, **topology) as handler:
            x = torch.ones(8, 1024, dtype=torch.bfloat16, device=handler.device)
            torch.cuda.synchronize()
            rank.backend.barrier()
            other = next(one for one in handler.valid_mode_list if one is not mode)
            last = rank.rank == rank.size - 1
            comm.run_mixed_comm(handler.valid_op_list[0], handler, x, None, other if last else mode)
            # They wait in different places, each for the others.
            return expect_fault(torch, handler, "timeout", 3.0)

    def right(rank: Any) -> None:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S, **topology) as handler:
            for mode in handler.valid_mode_list:
                compare(rank, handler, handler.valid_op_list[0], mode, (16, 1024), 3)

    modes = comm.MixedCommMode
    for mode in (modes.HIERARCHICAL,) if topology else (modes.ONE_EXCHANGE, modes.TWO_EXCHANGE):
        with comm.local_world(size, devices, sms=16, timeout_s=5) as world:
            results[f"{mode.name} a rank does not come, s"] = [round(one, 2) for one in world.run(missing, mode)]
        with comm.local_world(size, devices, sms=16) as world:
            took = world.run(different, mode)
            results[f"{mode.name} another size, s"] = [round(one, 3) for one in took]
        for what, work in (("operation", other_operation), ("mode", other_mode)) if not topology else ():
            with comm.local_world(size, devices, sms=16, timeout_s=5) as world:
                took = world.run(work, mode)
            results[f"{mode.name} another {what}, s"] = [round(one, 3) for one in took]
        with comm.local_world(size, devices, sms=16) as world:
            world.run(right)
    return results


@case
def misuse() -> dict[str, Any]:
    """Second streams are ordered; second partitions, captures elsewhere and wrong tensors are refused."""
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any, shared: dict[Any, Any]) -> int:
        count = 0
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S) as handler:
            op = handler.valid_op_list[0]
            x = torch.full((8, 1024), rank.rank + 1.0, dtype=torch.bfloat16, device=handler.device)
            out = torch.empty_like(x)
            torch.cuda.synchronize()
            rank.backend.barrier()
            call = comm.run_mixed_comm
            call(op, handler, x, out)
            other = rank.partition.stream_pool(2)[1]
            with other.torch():
                # The calls before on the first stream have not been waited for.
                for _ in range(20):
                    call(op, handler, x, out)
            call(op, handler, x, out)
            torch.cuda.current_stream().synchronize()
            other.sync()
            handler.check()
            assert bool((out == 3.0).all()), out
            plain = torch.cuda.Stream()
            with torch.cuda.stream(plain):
                refused(RuntimeError, "would wait for each other forever", lambda: call(op, handler, x, out))
            shared[rank.rank] = rank.partition
            rank.backend.barrier()
            with shared[1 - rank.rank].torch():
                refused(RuntimeError, "would wait for each other forever", lambda: call(op, handler, x, out))
            with other.torch():
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    refused(RuntimeError, "capturing a graph", lambda: call(op, handler, x, out))
                    out.zero_()
                finally:
                    graph.capture_end()
            refused(ValueError, "address", lambda: call(op, handler, x.view(-1)[4:-4], None))
            refused(ValueError, "contiguous", lambda: call(op, handler, x.t(), None))
            refused(ValueError, "must be of torch.bfloat16", lambda: call(op, handler, x.half(), None))
            refused(ValueError, "must be on", lambda: call(op, handler, x.cpu(), None))
            refused(ValueError, "multiple of 16", lambda: call(op, handler, x.new_zeros(3, 3), None))
            refused(ValueError, "share memory", lambda: call(op, handler, x[:7], x[1:]))
            refused(ValueError, "is not valid", lambda: call(comm.MixedCommOp.ALLGATHER, handler, x))
            refused(ValueError, "mode NCCL_ONE", lambda: call(op, handler, x, None, comm.MixedCommMode.NCCL_ONE))
            refused(ValueError, "grid_size", lambda: rank.handler(torch.bfloat16, grid_size=10_000))
            rank.backend.barrier()
            # In place, twice.
            for mode in handler.valid_mode_list:
                y = x.clone()
                torch.cuda.current_stream().synchronize()
                rank.backend.barrier()
                call(op, handler, y, y, mode)
                call(op, handler, y, y, mode)
                torch.cuda.current_stream().synchronize()
                assert bool((y == 6.0).all()), y
                count += 1
            handler.shutdown()
            handler.shutdown()
            refused(RuntimeError, "has been shut down", lambda: call(op, handler, x))
        return count

    with comm.local_world(2, Device(0), sms=16) as world:
        world.run(work, {})
    return {}


def process_rank(rank: int, size: int, store: str, what: str, options: dict[str, Any]) -> None:
    """One rank as a process: memory through file descriptors, bootstrap through gloo."""
    torch, _ = modules()
    import torch.distributed as dist

    from cuda_gctx import Device

    index = rank % Device.count()
    torch.cuda.set_device(index)
    with_nccl = options.get("nccl", Device.count() >= size)
    backend = "cpu:gloo,cuda:nccl" if with_nccl else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    if what == "moved":
        print(json.dumps(moved_program(rank, size)), flush=True)
        dist.destroy_process_group()
        return
    with Device(index).partition(comm=16) as parts, parts.comm.torch():
        run = faults_through_nvshmem if what == "faults through NVSHMEM" else compare_processes
        print(json.dumps(run(rank, size, parts.comm, options)), flush=True)
    dist.destroy_process_group()


def handler_of_process(rank: int, size: int, partition: Any, dtype: Any, topology: dict[str, int], **more: Any) -> Any:
    _, comm = modules()
    nodes = topology.get("nodes", 1)
    inter_rank, local_rank = divmod(rank, size // nodes)
    names = "local_tp_size", "local_dp_size", "inter_tp_size", "inter_dp_size"
    return comm.MixedCommHandler(
        *(rank, size, local_rank, size // nodes, inter_rank, nodes),
        *(topology.get(name) for name in names),
        dtype,
        f"cuda:{partition.context.device.device_id}",
        partition=partition,
        **{"should_init_nvshmem": False, **more},
    )


def compare_processes(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """Every operation and mode of some topologies, with tensors that are staged and with such that are mapped."""
    torch, comm = modules()
    import torch.distributed as dist

    compared = 0
    modes: set[str] = set()
    largest = options.get("largest", 16 << 20)
    for topology, dtype_name in itertools.product(options["topologies"], options["dtypes"]):
        dtype = getattr(torch, dtype_name)
        with_nvshmem = options.get("nvshmem", False)
        handler = handler_of_process(
            *(rank, size, partition, dtype, topology),
            timeout_s=40.0,
            max_message_bytes=options.get("max_message_bytes", largest),
            should_init_nvshmem=with_nvshmem,
        )
        reachable = [torch.zeros(largest // 2, dtype=dtype, device=handler.device) for _ in range(2)]
        handler.map_tensors(*reachable)
        wanted_modes = [mode for mode in handler.valid_mode_list if mode.name in options.get("modes", (mode.name,))]
        modes |= {mode.name for mode in wanted_modes}
        if with_nvshmem:
            refused(RuntimeError, "NVSHMEM cannot release memory", handler.checkpoint_prepare)
        if options.get("checkpoint"):
            handler.checkpoint_prepare()
            handler.checkpoint_restore(dist.group.WORLD)
        for op, mode in itertools.product(handler.valid_op_list, wanted_modes):
            dp = handler.para_info.dp_size if op.scatters else 1
            for seed, rows in enumerate(options["rows"]):
                inputs = inputs_of(torch, (rows * dp, 8192), dtype, size, seed, handler.device)
                by_nodes = mode is comm.MixedCommMode.HIERARCHICAL
                wanted = comm.expected(handler.para_info, op, inputs, by_nodes=by_nodes)
                calls = [(inputs[rank], torch.empty_like(wanted))]
                if mode.name in ("TWO_EXCHANGE", "HIERARCHICAL"):
                    x_in, x_out = (
                        # Not at the beginning: what a rank reaches is the same place, not the same allocation.
                        buffer[64 * (rank + 1) :][: like.numel()].view(like.shape)
                        for buffer, like in zip(reachable, (inputs[rank], wanted), strict=True)
                    )
                    calls.append((x_in.copy_(inputs[rank]), x_out))
                for number, (x_in, x_out) in enumerate(calls):
                    torch.cuda.synchronize()
                    dist.barrier()
                    comm.run_mixed_comm(op, handler, x_in, x_out, mode)
                    torch.cuda.current_stream().synchronize()
                    handler.check()
                    where = f"{op.name} {mode.name} {rows} rows {dtype} at {handler.para_info}, {'mapped' * number}"
                    if "NCCL" not in mode.name:
                        assert bits_equal(torch, x_out, wanted), where
                    else:
                        assert is_rounded_at_most_at_each_addition(handler.para_info, op, inputs, x_out), where
                    compared += 1
                    if by_nodes or options.get("replays"):
                        replay_with_other_inputs(handler, op, mode, x_in, x_out, where)
        handler.shutdown()
    return {"compared": compared, "modes": sorted(modes)}


def replay_with_other_inputs(handler: Any, op: Any, mode: Any, x_in: Any, x_out: Any, where: str) -> None:
    """A captured call, replayed with inputs that were not there when it was captured."""
    torch, comm = modules()
    import torch.distributed as dist

    info = handler.para_info
    graph = capture(torch, lambda: comm.run_mixed_comm(op, handler, x_in, x_out, mode))
    for seed in (11, 12, 13):
        inputs = inputs_of(torch, tuple(x_in.shape), x_in.dtype, info.world_size, seed, handler.device)
        wanted = comm.expected(info, op, inputs, by_nodes=mode is comm.MixedCommMode.HIERARCHICAL)
        x_in.copy_(inputs[info.world_rank])
        torch.cuda.synchronize()
        dist.barrier()
        graph.replay()
        torch.cuda.current_stream().synchronize()
        handler.check()
        assert bits_equal(torch, x_out, wanted), f"replay {seed} of {where}"


def faults_through_nvshmem(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """Two nodes of one rank: of which one calls with another size, or does not call."""
    torch, comm = modules()
    import torch.distributed as dist

    took = {}
    for kind in ("mismatch", "timeout"):
        handler = handler_of_process(
            *(rank, size, partition, torch.bfloat16, {"nodes": 2}),
            timeout_s=2.0,
            max_message_bytes=1 << 20,
            should_init_nvshmem=True,
        )
        x = torch.ones(16 if (kind, rank) == ("mismatch", 1) else 8, 1024, dtype=torch.bfloat16, device=handler.device)

        def call(handler: Any = handler, x: Any = x) -> None:
            comm.run_mixed_comm(handler.valid_op_list[0], handler, x, None, comm.MixedCommMode.HIERARCHICAL)
            torch.cuda.current_stream().synchronize()
            handler.check()

        torch.cuda.synchronize()
        dist.barrier()
        if (kind, rank) == ("timeout", 1):
            dist.barrier()  # until the other one has given up, and sends nothing more
        begin = time.monotonic()
        fault = raised(comm.CommFault, call)
        took[kind] = round(time.monotonic() - begin, 2)
        if (kind, rank) == ("timeout", 0):
            dist.barrier()
        assert (fault.kind, fault.peer_rank) == (kind, 1 - rank), (fault.kind, fault.peer_rank)
        assert took[kind] < 4, took
        handler.shutdown()
        dist.barrier()
    assert float(torch.ones(1000, device=handler.device).sum()) == 1000.0
    return took


def moved_program(rank: int, size: int) -> Any:
    """As programs are written for other handlers of this name: no partition, torch's default stream, a handler for
    each topology in turn, tuned there, every valid mode at every size, collectives of torch in the handler's groups.
    """
    torch, comm = modules()
    import torch.distributed as dist

    device = torch.device("cuda", rank)
    most_rows, hidden = 4096, 8192
    compared = 0
    for dtype, tp in itertools.product(
        (torch.float16, torch.bfloat16), [n for n in range(1, size + 1) if size % n == 0]
    ):
        torch.manual_seed(rank)
        data = torch.empty([most_rows * size, hidden], dtype=dtype, device=device).uniform_(-0.5, 0.5) / tp**0.5
        handler = comm.MixedCommHandler(
            world_rank=rank,
            world_size=size,
            local_rank=rank,
            local_size=size,
            inter_rank=0,
            inter_size=1,
            local_tp_size=tp,
            local_dp_size=size // tp,
            inter_tp_size=1,
            inter_dp_size=1,
            dtype=dtype,
            device=device,
        )
        assert all(threads > 0 and op.name and mode.name for (op, mode), threads in handler.max_block_size_dict.items())
        modes = handler.valid_mode_list
        handler.run_autotune(message_bytes=[1 << 14, 1 << 22], rounds=1)
        names = comm.MixedCommMode
        reference = names.NCCL_TP_DP if names.NCCL_TP_DP in modes else names.NCCL_ONE
        for op, rows in itertools.product(handler.valid_op_list, (1, 2, 7, 333, 2048, most_rows)):
            scatters = op in (comm.MixedCommOp.REDUCESCATTER, comm.MixedCommOp.REDUCESCATTER_ALLREDUCE)
            x_in = data[: rows * (handler.para_info.dp_size if scatters else 1)]
            wanted = comm.run_mixed_comm(op, handler, x_in, mode=reference)
            for mode in modes:
                out = comm.run_mixed_comm(op, handler, x_in, mode=mode)
                assert torch.allclose(out, wanted, rtol=2e-2, atol=2e-1), f"{op.name} {mode.name} of {rows} rows"
                if tp > 1:
                    every = torch.empty([tp * out.shape[0], hidden], dtype=dtype, device=device)
                    dist.all_gather_into_tensor(every, out, group=handler.tp_comm_group)
                    assert torch.equal(every, out.repeat(tp, 1)), f"{op.name} {mode.name} of {rows} rows"
                compared += 1
        handler.shutdown()
        del data
    return {"compared": compared}


# Removed at the end of the program.
MEETINGS: list[tempfile.TemporaryDirectory[str]] = []


def spawn(size: int, what: str, **options: Any) -> list[subprocess.Popen[str]]:
    """The ranks of a world as processes."""
    # They meet through a file: a port that was free a moment ago may be taken.
    MEETINGS.append(tempfile.TemporaryDirectory())
    store = f"{MEETINGS[-1].name}/store"
    return [
        subprocess.Popen(
            [
                *("timeout", "-s", "KILL", str(LIMIT_S - 10)),
                *(sys.executable, __file__),
                *("--process", json.dumps([rank, size, store, what, options])),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def results_of(ranks: list[subprocess.Popen[str]]) -> list[Any]:
    """What each rank has reported."""
    outputs = [rank.communicate()[0] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    assert not any(codes), codes
    return [json.loads(text.splitlines()[-1]) for text in outputs]


def compared_by_processes(
    size: int,
    topologies: list[dict[str, int]],
    rows: tuple[int, ...] = (1, 16),
    dtypes: tuple[str, ...] = ("bfloat16",),
    **options: Any,
) -> Any:
    return results_of(spawn(size, "compare", topologies=topologies, rows=rows, dtypes=dtypes, **options))[0]


@case
def processes_on_one_gpu() -> dict[str, Any]:
    """As many ranks as processes; on a machine of several GPUs they take turns on those."""
    return {"2 ranks": compared_by_processes(2, [{}]), "4 ranks": compared_by_processes(4, [{"local_tp_size": 2}])}


@case
def missing_ranks() -> dict[str, Any]:
    """A rank that dies or stays away is an error on every other rank within the time limit and 2 s; the GPUs stay
    usable. The benchmark's ranks are those of this case.
    """
    from cuda_gctx import Device

    program = REPOSITORY / "benchmarks" / "communication.py"
    count, limit = str(min(Device.count(), 2)), str(LIMIT_S - 30)
    options = "--part", "missing-ranks", "--gpus", count, "--limit", limit
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, program, *options, "--out", folder], check=True)
        [result] = Path(folder).glob("*.json")
        *rows, afterwards = json.loads(result.read_text())["missing-ranks"]
    for row in rows:
        assert all(s < row["timeout_s"] + 2 for s in row["error after s"]), row
        assert set(row["peers"]) == {None if "never makes" in row["missing"] or "shuts" in row["missing"] else 1}, row
    assert all(afterwards["right"]), afterwards
    return {row["missing"]: row["error after s"] for row in rows}


OF_FOUR = [
    {"local_tp_size": 2},
    {},
    {"local_dp_size": 4},
    {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2},
    {"nodes": 2, "local_dp_size": 2, "inter_tp_size": 2},
    {"nodes": 2, "local_tp_size": 2, "inter_tp_size": 2},
    {"nodes": 2, "local_dp_size": 2, "inter_dp_size": 2},
]


@case
def processes_on_two_gpus() -> dict[str, Any]:
    topologies: list[dict[str, int]] = [{}, {"local_dp_size": 2}]
    return few_gpus(2) or compared_by_processes(
        *(2, topologies, (1, 16, 200, 4096), ("bfloat16", "float16")), largest=130 << 20, checkpoint=True
    )


@case
def moved_programs() -> dict[str, Any]:
    """Programs for other handlers of this name, with another import."""
    from cuda_gctx import Device

    count = min(Device.count(), 4)
    return few_gpus(2) or {f"{count} ranks": results_of(spawn(count, "moved"))[0]}


@case
def staged_in_parts() -> dict[str, Any]:
    """Messages whose copies run next to the kernels of other parts, between GPUs; captured and replayed too."""
    from cuda_gctx import Device

    options: dict[str, Any] = {"modes": ("TWO_EXCHANGE",), "nccl": False, "largest": 128 << 20, "replays": True}
    found = few_gpus(2) or {"2 ranks": compared_by_processes(2, [{}, {"local_dp_size": 2}], (1999, 4000), **options)}
    if Device.count() >= 4:
        options["largest"] <<= 1
        found["4 ranks"] = compared_by_processes(4, OF_FOUR[:3], (2000, 3999), ("float16",), **options)
    return found


@case
def staged_in_rounds() -> dict[str, Any]:
    """Messages larger than the memory for them, between processes; captured and replayed too."""
    options: dict[str, Any] = {"nccl": False, "largest": 64 << 20, "max_message_bytes": 5 << 20, "replays": True}
    flat: list[dict[str, int]] = [{}, {"local_dp_size": 2}]
    nodes = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    return few_gpus(2) or {
        mode: compared_by_processes(2, topologies, (321, 1999), modes=(mode,), **options)
        for mode, topologies in (("TWO_EXCHANGE", flat), ("HIERARCHICAL", nodes))
    }


@case
def nodes_on_two_gpus() -> dict[str, Any]:
    """Two nodes of one rank, as threads and as processes; 2 x 2 and 2 x 4 with the ranks of a node on one GPU."""
    by_nodes = ("HIERARCHICAL",)
    two = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    return few_gpus(2) or {
        "2 ranks": every_op(2, two, 16, 16 << 20, gpus=2, modes=by_nodes),
        "4 ranks": every_op(4, OF_FOUR[3:], 16, 16 << 20, gpus=2, modes=by_nodes),
        "8 ranks": every_op(8, [TWO_NODES], 16, 4 << 20, gpus=2, modes=by_nodes),
        "processes": compared_by_processes(2, two, (1, 16, 100), ("bfloat16", "float16"), modes=by_nodes, nccl=False),
    }


@case
def calls_on_two_gpus() -> dict[str, Any]:
    """Calls back to back, next to GEMMs on one of the GPUs too; graphs and a checkpoint; with two ranks a GPU."""
    return few_gpus(2) or {
        "2 ranks": back_to_back(2, {}, 16, 10_000, with_gemms=False, gpus=2),
        "4 ranks": back_to_back(4, {"local_tp_size": 2}, 16, 2_000, with_gemms=False, gpus=2),
        "4 ranks of 8 SMs, next to GEMMs": back_to_back(4, {"local_tp_size": 2}, 8, 600, with_gemms=True, gpus=2),
        "graphs": graphs_of({"local_tp_size": 2}, gpus=2),
    }


@case
def nodes_through_nvshmem() -> dict[str, Any]:
    """Nodes that exchange through NVSHMEM: two of one rank on two GPUs, 2 x 2 on four. On one host, that is NVLink."""
    import importlib.util

    from cuda_gctx import Device

    if importlib.util.find_spec("nvshmem") is None:
        return {"skipped": "nvshmem4py is not installed"}
    common: dict[str, Any] = {"modes": ("HIERARCHICAL",), "nccl": False, "nvshmem": True}
    two = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    return few_gpus(2) or {
        "2 ranks": compared_by_processes(2, two, (1, 16, 100), ("bfloat16", "float16"), **common),
        "faults": results_of(spawn(2, "faults through NVSHMEM", nccl=False)),
    } | (
        {"4 ranks": compared_by_processes(4, OF_FOUR[3:], (1, 16), ("bfloat16", "float16"), **common)}
        if Device.count() >= 4
        else {}
    )


@case
def processes_on_four_gpus() -> dict[str, Any]:
    """Every topology, and with NCCL in both types those whose groups of NCCL are different ones."""
    return few_gpus(4) or {
        "without NCCL": compared_by_processes(4, OF_FOUR, (1, 16, 100), ("float16",), nccl=False),
        "with NCCL": compared_by_processes(4, OF_FOUR[:4], (1, 16, 100), ("bfloat16", "float16")),
    }


@case
def threads_on_four_gpus() -> dict[str, Any]:
    """Every topology of four ranks in both types, and of eight, two a GPU."""
    return few_gpus(4) or {
        "4 ranks": every_op(4, OF_FOUR, 16, 16 << 20, gpus=4),
        "8 ranks": every_op(8, [{"local_tp_size": 4}], 16, 4 << 20, gpus=4),
    }


@case
def faults_on_four_gpus() -> dict[str, Any]:
    return few_gpus(4) or faults_of(4, 4)


def few_gpus(needed: int) -> dict[str, Any]:
    from cuda_gctx import Device

    count = Device.count()
    return {"skipped": f"needs {needed} GPUs and there is {count}"} if count < needed else {}


@case
def threads_on_two_gpus() -> dict[str, Any]:
    """Ranks as partitions of two GPUs, in one process: 1, 2 and 4 ranks a GPU."""
    two_nodes = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2}
    return few_gpus(2) or {
        "2 ranks": every_op(2, [{}, {"local_dp_size": 2}], 16, LARGEST, gpus=2),
        "4 ranks": every_op(4, [{"local_tp_size": 2}, two_nodes], 16, LARGEST, gpus=2),
        "8 ranks": every_op(8, [{"local_tp_size": 4}], 16, LARGEST, gpus=2),
    }


@case
def timings() -> dict[str, Any]:
    """Microseconds a call, in a graph of many calls, the slowest rank, median of several replays."""
    torch, comm = modules()
    from cuda_gctx import Device

    sizes = [1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 64 << 20]
    found: dict[str, Any] = {}

    def work(rank: Any, topology: dict[str, int]) -> dict[str, float]:
        times: dict[str, float] = {}
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S, **topology) as handler:
            for op, mode, size in itertools.product(handler.valid_op_list, handler.valid_mode_list, sizes):
                dp = handler.para_info.dp_size
                small_only = mode is comm.MixedCommMode.ONE_EXCHANGE
                if (small_only and size > 512 << 10) or size * rank.size * dp > 1 << 30:
                    continue
                x = torch.ones(dp, size // 2 // dp, dtype=torch.bfloat16, device=handler.device)
                out = torch.empty(handler.para_info.output_shape(op, x.shape), dtype=x.dtype, device=x.device)
                calls = 50 if size <= 2 << 20 else 5
                torch.cuda.synchronize()
                rank.backend.barrier()
                graph = capture(
                    torch,
                    lambda op=op, x=x, out=out, mode=mode, calls=calls: [
                        comm.run_mixed_comm(op, handler, x, out, mode) for _ in range(calls)
                    ],
                )
                each = []
                for _ in range(7):
                    torch.cuda.current_stream().synchronize()
                    rank.backend.barrier()
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    graph.replay()  # the ranks meet in it, so that the next one begins together
                    begin.record()
                    graph.replay()
                    end.record()
                    end.synchronize()
                    each.append(begin.elapsed_time(end) * 1000 / calls)
                handler.check()
                slowest = max(rank.backend.gather_to_all(statistics.median(each[2:])))
                times[f"{op.name} {mode.name} {size >> 10} KiB"] = round(slowest, 2)
                del graph, x, out
        return times

    for size, sms, topology in ((2, 8, {}), (4, 8, {}), (4, 8, {"local_tp_size": 2}), (8, 8, {"local_tp_size": 4})):
        gc.collect()
        with comm.local_world(size, Device(0), sms=sms) as world:
            found[f"{size} ranks of {sms} SMs, {topology or 'all tp'}"] = world.run(work, topology)[0]
    return found


# ---- running the cases


def build(folder: Path) -> None:
    include = ""
    import importlib.metadata

    for found in importlib.metadata.distributions(name="nvidia-cuda-runtime"):
        for file in found.files or ():
            if file.name == "cuda.h" and tuple(map(int, found.version.split(".")[:2])) >= (13, 4):
                include = str(Path(str(file.locate())).parent)
    options = [f"--config-settings=cmake.define.CUDA_GCTX_CUDA_INCLUDE={include}"] if include else []
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--upgrade", "--target", str(folder), *options, str(REPOSITORY)], check=True)


def run_case(name: str, out: Path, environment: dict[str, str], end: float) -> tuple[dict[str, Any], str]:
    """One case as a program, under a time limit: its result, and the end of what it printed."""
    begin = time.monotonic()
    limit = min(LIMIT_S, end - begin)
    if limit < 5:
        return {"passed": False, "exit_code": None, "seconds": 0.0}, "not run: the limit of all cases is reached"
    command = ["timeout", "-s", "KILL", f"{limit:.0f}", sys.executable, __file__, "--case", name]
    with open(out / f"{name}.log", "w+") as log:
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=out
        ).returncode
        log.seek(0)
        text = log.read()
    result = {"passed": code == 0, "exit_code": code, "seconds": round(time.monotonic() - begin, 1)}
    reported = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    if reported:
        result["result"] = json.loads(reported[-1])
    return result, text[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("comm-gpu-results"))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="how many cases run at a time: not for timings")
    parser.add_argument("--limit", type=float, default=3600, help="seconds; cases that do not begin in time fail")
    parser.add_argument("--case", choices=CASES, help="run this case in this process")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    if options.process or options.case:
        faulthandler.enable()
        faulthandler.dump_traceback_later(LIMIT_S - 15, exit=True)
        if options.process:
            process_rank(*json.loads(options.process))
        else:
            print("RESULT " + json.dumps(CASES[options.case]()))
        faulthandler.cancel_dump_traceback_later()
        return 0

    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    environment = os.environ | SAFE | QUEUES | {"PYTHONUNBUFFERED": "1"}
    if options.build:
        build(out / "site")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(out / "site"), os.environ.get("PYTHONPATH")]))
    results: dict[str, Any] = {}
    end = time.monotonic() + options.limit
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run_case, name, out, environment, end): name for name in options.cases}
        for done in as_completed(running):
            name = running[done]
            results[name], text = done.result()
            took, code = results[name]["seconds"], results[name]["exit_code"]
            print(f"{name:32} {took:6.1f} s  {'passed' if code == 0 else f'FAILED: exit code {code}'}", flush=True)
            print(json.dumps(results[name]["result"], indent=1) if "result" in results[name] else text, flush=True)
            (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    failed = [name for name, result in results.items() if not result["passed"]]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
