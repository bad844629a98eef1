"""Calls of random kinds back to back, next to GEMMs too; graphs and checkpoints; the hierarchical form on one GPU."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

from .common import (
    OF_FOUR,
    TIMEOUT_S,
    TWO_NODES,
    bits_equal,
    capture,
    case,
    inputs_of,
    modules,
    refused,
)
from .operations import every_op


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


@case()
def back_to_back_4_ranks() -> dict[str, Any]:
    return back_to_back(4, {"local_tp_size": 2}, 16, 10_000, with_gemms=False)


@case()
def back_to_back_8_ranks() -> dict[str, Any]:
    return back_to_back(8, {"local_tp_size": 4}, 8, 3_000, with_gemms=False)


@case()
def back_to_back_next_to_gemms() -> dict[str, Any]:
    """In partitions of 8, 16 and 24 SMs, while GEMMs run on the other SMs."""
    return {
        f"{ranks} ranks of {sms} SMs": back_to_back(ranks, {"local_tp_size": 2}, sms, 600, with_gemms=True)
        for ranks, sms in ((8, 8), (4, 16), (4, 24))
    }


@case()
def programmatic_launches() -> dict[str, Any]:
    """The kernel for small messages, launched before the kernel ahead of it has ended; in graphs too."""
    options = {"local_tp_size": 2, "programmatic_launch": True}
    compared = every_op(4, [{"local_tp_size": 2}], 16, 1 << 20, programmatic_launch=True)
    return compared | back_to_back(4, options, 16, 2_000, with_gemms=False) | graphs_of(options)


@case(runs_alone=True)  # of the memory that comes free, where other cases may allocate
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


@case(runs_alone=True)  # likewise
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
