"""Ranks as processes, on one GPU and on several: memory through file descriptors and NVSHMEM; moved programs."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

from rank_programs import is_rounded_at_most_at_each_addition

from .common import (
    LIMIT_S,
    OF_FOUR,
    SUITE,
    bits_equal,
    capture,
    case,
    inputs_of,
    modules,
    raised,
    refused,
)

LARGEST_OF_PROCESSES = 16 << 20


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
        programs = {
            "faults through NVSHMEM": faults_through_nvshmem,
            "broadcast": broadcasts_of_processes,
            "compiled": compiled_programs,
            "groups": compare_groups,
            "hosts": compare_hosts,
            "rows": rows_of_processes,
        }
        print(json.dumps(programs.get(what, compare_processes)(rank, size, parts.comm, options)), flush=True)
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
        **{"transport": "peers", **more},
    )


def compare_processes(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """Every operation and mode of some topologies, with tensors that are staged and with such that are mapped."""
    torch, _ = modules()

    compared = 0
    modes: set[str] = set()
    for topology, dtype_name in itertools.product(options["topologies"], options["dtypes"]):
        with_nvshmem = options.get("nvshmem", False)
        handler = handler_of_process(
            *(rank, size, partition, getattr(torch, dtype_name), topology),
            timeout_s=40.0,
            max_message_bytes=options.get("max_message_bytes", options.get("largest", LARGEST_OF_PROCESSES)),
            transport="nvshmem" if with_nvshmem else "peers",
        )
        if with_nvshmem:
            refused(NotImplementedError, "NVSHMEM cannot release memory", handler.checkpoint_prepare)
        done, names = compare_handler(handler, options)
        compared += done
        modes |= names
        handler.shutdown()
    return {"compared": compared, "modes": sorted(modes)}


def compare_handler(handler: Any, options: dict[str, Any], first_seed: int = 0) -> tuple[int, set[str]]:
    """Every operation and mode of a handler: how many calls were compared, and the modes."""
    torch, comm = modules()
    import torch.distributed as dist

    info, dtype, compared = handler.para_info, handler.dtype, 0
    largest = options.get("largest", LARGEST_OF_PROCESSES)
    reachable = [torch.zeros(largest // 2, dtype=dtype, device=handler.device) for _ in range(2)]
    handler.map_tensors(*reachable)
    if options.get("checkpoint"):
        handler.checkpoint_prepare()
        handler.checkpoint_restore(dist.group.WORLD)
    modes = [mode for mode in handler.valid_mode_list if mode.name in options.get("modes", (mode.name,))]
    for op, mode in itertools.product(handler.valid_op_list, modes):
        dp = info.dp_size if op.scatters else 1
        for seed, rows in enumerate(options["rows"], first_seed):
            inputs = inputs_of(torch, (rows * dp, 8192), dtype, info.world_size, seed, handler.device)
            mine = inputs[info.world_rank]
            is_chosen = mode is comm.MixedCommMode.AUTOTUNE
            chosen = handler.select_autotune_mode(op, mine) if is_chosen else mode
            by_nodes = chosen is comm.MixedCommMode.HIERARCHICAL
            wanted = comm.expected(info, op, inputs, by_nodes=by_nodes)
            calls = [(mine, torch.empty_like(wanted))]
            if mode.name in ("TWO_EXCHANGE", "HIERARCHICAL"):
                x_in, x_out = (
                    # Not at the beginning: what a rank reaches is the same place, not the same allocation.
                    buffer[64 * (info.world_rank + 1) :][: like.numel()].view(like.shape)
                    for buffer, like in zip(reachable, (mine, wanted), strict=True)
                )
                calls.append((x_in.copy_(mine), x_out))
            for number, (x_in, x_out) in enumerate(calls):
                torch.cuda.synchronize()
                dist.barrier()
                comm.run_mixed_comm(op, handler, x_in, x_out, mode)
                torch.cuda.current_stream().synchronize()
                handler.check()
                where = f"{op.name} {mode.name} {rows} rows {dtype} at {info}, {'mapped' * number}"
                if "NCCL" not in chosen.name:
                    assert bits_equal(torch, x_out, wanted), where
                else:
                    assert is_rounded_at_most_at_each_addition(info, op, inputs, x_out), where
                compared += 1
                if by_nodes or options.get("replays"):
                    replay_with_other_inputs(handler, op, mode, x_in, x_out, where, by_nodes=by_nodes)
    return compared, {mode.name for mode in modes}


def compare_groups(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """Two handlers in a job, each of half of its ranks, whose calls run at the same time; then one of all ranks."""
    torch, comm = modules()
    import torch.distributed as dist

    half = size // 2
    groups = [dist.new_group(list(range(begin, begin + half))) for begin in (0, half)]
    how: dict[str, Any] = {"timeout_s": 40.0, "max_message_bytes": LARGEST_OF_PROCESSES}
    make = comm.MixedCommHandler.from_process_group
    number, place = divmod(rank, half)
    with (
        make(partition, torch.bfloat16, group=groups[number], **how) as of_half,
        make(partition, torch.bfloat16, tp_size=half, **how) as of_all,
    ):
        assert (of_half.para_info.world_rank, of_half.para_info.tp_size) == (place, half), of_half.para_info
        compared = [compare_handler(of_half, options, 10 * number), compare_handler(of_all, options)]
        compared.append(compare_handler(of_half, options, 10 * number + 5))
    return {"compared": [count for count, _ in compared], "modes": [sorted(names) for _, names in compared[:2]]}


def compare_hosts(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """Two hosts, each with half of the ranks, which exchange through NCCL: every division of the ranks."""
    torch, comm = modules()

    os.environ["CUDA_GCTX_HOST"] = f"host {2 * rank // size}"
    found = {}
    for tp in (one for one in range(1, size + 1) if size % one == 0):
        with comm.MixedCommHandler.from_process_group(
            partition,
            torch.bfloat16,
            tp_size=tp,
            transport="nccl",
            timeout_s=40.0,
            max_message_bytes=LARGEST_OF_PROCESSES,
        ) as handler:
            assert handler.para_info.inter_size == 2, handler.para_info
            # Ranks of other hosts are not reached by kernels.
            assert comm.MixedCommMode.ONE_EXCHANGE not in handler.valid_mode_list
            compared, names = compare_handler(handler, options)
            found[f"tp {tp}"] = {"compared": compared, "modes": sorted(names)}
    return found


def replay_with_other_inputs(
    handler: Any,
    op: Any,
    mode: Any,
    x_in: Any,
    x_out: Any,
    where: str,
    root: int | None = None,
    *,
    by_nodes: bool = False,
) -> None:
    """A captured call, replayed with inputs that were not there when it was captured."""
    torch, comm = modules()
    import torch.distributed as dist

    info = handler.para_info
    graph = capture(torch, lambda: comm.run_mixed_comm(op, handler, x_in, x_out, mode, root=root))
    for seed in (11, 12, 13):
        inputs = inputs_of(torch, tuple(x_in.shape), x_in.dtype, info.world_size, seed, handler.device)
        wanted = comm.expected(info, op, inputs, by_nodes=by_nodes, root=root)
        x_in.copy_(inputs[info.world_rank])
        torch.cuda.synchronize()
        dist.barrier()
        graph.replay()
        torch.cuda.current_stream().synchronize()
        handler.check()
        assert bits_equal(torch, x_out, wanted), f"replay {seed} of {where}"


def broadcasts_of_processes(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """From each rank, through NCCL and by copy engines, in place too, and from graphs."""
    torch, comm = modules()
    import torch.distributed as dist

    op, names, compared = comm.MixedCommOp.BROADCAST, comm.MixedCommMode, 0
    handler = handler_of_process(rank, size, partition, torch.bfloat16, {}, timeout_s=40.0, max_message_bytes=8 << 20)
    # The second one is no multiple of 16 bytes, and the last one goes in rounds.
    shapes = ((64, 8192), (3, 3), (640, 8192))
    modes = (names.NCCL_ONE, None, names.COPY_ENGINES)
    for shape, mode, root, in_place in itertools.product(shapes, modes, range(size), (False, True)):
        inputs = inputs_of(torch, shape, torch.bfloat16, size, root, handler.device)
        x_in = inputs[rank].clone()
        x_out = x_in if in_place else torch.zeros_like(x_in)
        torch.cuda.synchronize()
        dist.barrier()
        comm.run_mixed_comm(op, handler, x_in, x_out, mode, root=root)
        torch.cuda.current_stream().synchronize()
        handler.check()
        where = f"{mode!r} from {root} of {list(shape)} at rank {rank}, {'in place' * in_place}"
        assert bits_equal(torch, x_out, inputs[root]), where
        replay_with_other_inputs(handler, op, mode, x_in, x_out, where, root)
        compared += 1
    handler.shutdown()
    return {"compared": compared}


def rows_of_processes(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """All-gathers and reduce-scatters with a number of rows for each rank."""
    torch, comm = modules()
    import torch.distributed as dist

    scatter, compared = comm.MixedCommOp.REDUCESCATTER, 0
    for name in ("bfloat16", "float32", "float8_e4m3fn"):
        chosen = random.Random(name)  # the same on all ranks
        handler = handler_of_process(*(rank, size, partition, getattr(torch, name)), {"local_dp_size": size})
        for mode in (*handler.valid_mode_list, None) * 6:
            counts = [chosen.choice([0, 1, chosen.randrange(300)]) for _ in range(size)]
            inputs = inputs_of(torch, (sum(counts), chosen.randrange(1, 17)), handler.dtype, size, 5, handler.device)
            pieces = [one.split(counts)[other] for other, one in enumerate(inputs)]
            summed = comm.expected(handler.para_info, scatter, [torch.cat([one] * size) for one in inputs])
            cases = (
                (comm.all_gather_v, pieces[rank].clone(), torch.cat(pieces)),
                (comm.reduce_scatter_v, inputs[rank], summed.split(counts)[rank].clone()),
            )
            for call, x, wanted in cases:
                for x_out in (None, torch.empty_like(wanted)):
                    torch.cuda.synchronize()
                    dist.barrier()
                    found = call(handler, x, counts, x_out, mode)
                    torch.cuda.synchronize()
                    handler.check()
                    where = f"{call.__name__} {mode!r} {counts} of {list(x.shape)} {name} at rank {rank}"
                    assert bits_equal(torch, found, wanted), where
                    compared += 1
        handler.shutdown()
    return {"compared": compared}


def compiled_programs(rank: int, size: int, partition: Any, options: dict[str, Any]) -> Any:
    """Calls in programs that torch.compile makes into one graph each: by themselves, and captured and replayed."""
    torch, comm = modules()
    import torch.distributed as dist

    op, names = comm.MixedCommOp.ALLREDUCE, comm.MixedCommMode
    handler = handler_of_process(rank, size, partition, torch.bfloat16, {}, timeout_s=40.0, max_message_bytes=1 << 20)
    programs: dict[str, Any] = {}
    for mode in (names.ONE_EXCHANGE, names.TWO_EXCHANGE):

        def to_new(x: Any, out: Any, mode: Any = mode) -> Any:
            return comm.run_mixed_comm(op, handler, x * 2, mode=mode) + 1

        def to_old(x: Any, out: Any, mode: Any = mode) -> Any:
            return comm.run_mixed_comm(op, handler, x * 2, out, mode) + 1

        programs |= {f"{mode.name} to a new output": to_new, mode.name: to_old}
    compared = 0
    for where, program in programs.items():
        torch._dynamo.reset()  # which compiles one code only so many times
        nodes: list[str] = []

        def backend(module: Any, examples: Any, nodes: list[str] = nodes) -> Any:
            nodes += [str(node.target) for node in module.graph.nodes if "mixed_comm" in str(node.target)]
            return torch._inductor.compile(module, examples)

        compiled = torch.compile(program, fullgraph=True, dynamic=False, backend=backend)
        x, out = (torch.zeros(16, 4096, dtype=torch.bfloat16, device=handler.device) for _ in range(2))
        run = lambda program=compiled: program(x, out)  # noqa: B023, E731
        run()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            captured = run()

        def replay(graph: Any = graph, captured: Any = captured) -> Any:
            graph.replay()
            return captured

        for seed in (1, 2, 3):
            inputs = inputs_of(torch, tuple(x.shape), x.dtype, size, seed, handler.device)
            sums = comm.expected(handler.para_info, op, [2 * one for one in inputs])
            x.copy_(inputs[rank])
            for how, call in (("eager", lambda: program(x, out)), ("compiled", run), ("replayed", replay)):  # noqa: B023
                out.zero_()
                torch.cuda.synchronize()
                dist.barrier()
                result = call()
                torch.cuda.current_stream().synchronize()
                handler.check()
                assert bits_equal(torch, result, sums + 1), f"{how}, {where}, {seed}"
                assert program.__name__ == "to_new" or bits_equal(torch, out, sums), f"{how}, output of {where}, {seed}"
                compared += 1
        assert len(nodes) == 1, nodes
    handler.shutdown()
    return {"compared": compared}


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
            transport="nvshmem",
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
    return {"compared": compared, "replayed": replays_across_checkpoints(rank, size)}


def replays_across_checkpoints(rank: int, size: int) -> int:
    """Warm-ups, captures by torch.cuda.graph, and replays after checkpoints, of which each call comes twice."""
    torch, comm = modules()
    import torch.distributed as dist

    from cuda_gctx.compat import mixed_comm

    place = rank, size, rank, size, 0, 1, 1, size, 1, 1
    handler = mixed_comm.MixedCommHandler(*place, torch.float16, torch.device("cuda", rank), use_autotune=False)
    addresses, replays = handler.uc_ptr_list, []
    names = comm.MixedCommMode.FUSED_OPT_WAITS_UC, comm.MixedCommMode.FUSED_OPT_WAITS_MC
    for op, mode in itertools.product(handler.valid_op_list, names):
        rows = 4 * size if op.scatters else 4
        x_in = torch.empty(rows, 64, dtype=torch.float16, device="cuda")
        x_out = comm.run_mixed_comm(op, handler, x_in, mode=mode)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        dist.barrier()
        with torch.cuda.graph(graph):
            comm.run_mixed_comm(op, handler, x_in, x_out, mode)
        replays.append((op, x_in, x_out, graph))

    def compare(seed: int) -> None:
        for op, x_in, x_out, graph in replays:
            inputs = inputs_of(torch, tuple(x_in.shape), torch.float16, size, seed, "cuda")
            x_in.copy_(inputs[rank])
            torch.cuda.synchronize()
            dist.barrier()
            graph.replay()
            torch.cuda.synchronize()
            assert bits_equal(torch, x_out, comm.expected(handler.para_info, op, inputs)), op.name

    compare(1)
    for seed in (2, 3):
        group = dist.new_group(backend="gloo")
        for _ in range(2):
            handler.checkpoint_prepare()
        assert handler.uc_ptr_list == addresses
        for _ in range(2):
            handler.checkpoint_restore(group)
        compare(seed)
    handler.checkpoint_prepare()
    handler.shutdown()
    assert not handler.is_running
    return 3 * len(replays)


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
                *(sys.executable, str(SUITE)),
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


@case(runs_alone=True)
def processes_on_one_gpu() -> dict[str, Any]:
    """As many ranks as processes; on a machine of several GPUs they take turns on those."""
    return {"2 ranks": compared_by_processes(2, [{}]), "4 ranks": compared_by_processes(4, [{"local_tp_size": 2}])}


@case(runs_alone=True)
def compiled_on_one_or_two_gpus() -> dict[str, Any]:
    """Two ranks as processes, on a GPU each where there are two."""
    return {"2 ranks": results_of(spawn(2, "compiled"))[0]}


@case(gpus=2, runs_alone=True)
def missing_ranks() -> dict[str, Any]:
    """A rank that dies or stays away is an error on every other rank within the time limit and 2 s; the GPUs stay
    usable.
    """
    from missing_ranks import run

    found: list[dict[str, Any]] = []
    assert run(2, LIMIT_S - 30, (), found.append), found
    *rows, afterwards = found
    for row in rows:
        assert all(s < row["timeout_s"] + 2 for s in row["error after s"]), row
        assert set(row["peers"]) == {None if "never makes" in row["missing"] or "shuts" in row["missing"] else 1}, row
    assert all(afterwards["right"]), afterwards
    return {row["missing"]: row["error after s"] for row in rows}


@case(gpus=2, runs_alone=True)
def processes_on_two_gpus() -> dict[str, Any]:
    topologies: list[dict[str, int]] = [{}, {"local_dp_size": 2}]
    return compared_by_processes(
        *(2, topologies, (1, 16, 200, 4096), ("bfloat16", "float16")), largest=130 << 20, checkpoint=True
    )


@case(gpus=2, runs_alone=True)
def moved_programs() -> dict[str, Any]:
    """Programs for other handlers of this name, with another import."""
    from cuda_gctx import Device

    count = min(Device.count(), 4)
    return {f"{count} ranks": results_of(spawn(count, "moved"))[0]}


@case(gpus=2)
def rows_of_each_rank() -> dict[str, Any]:
    return {"2 ranks": results_of(spawn(2, "rows", nccl=False))[0]}


@case(gpus=2)
def staged_in_parts() -> dict[str, Any]:
    """Messages whose copies run next to the kernels of other parts, between GPUs; captured and replayed too."""
    from cuda_gctx import Device

    options: dict[str, Any] = {"modes": ("TWO_EXCHANGE",), "nccl": False, "largest": 128 << 20, "replays": True}
    found = {"2 ranks": compared_by_processes(2, [{}, {"local_dp_size": 2}], (1999, 4000), **options)}
    if Device.count() >= 4:
        options["largest"] <<= 1
        found["4 ranks"] = compared_by_processes(4, OF_FOUR[:3], (2000, 3999), ("float16",), **options)
    return found


@case(gpus=2)
def staged_in_rounds() -> dict[str, Any]:
    """Messages larger than the memory for them, between processes; captured and replayed too."""
    options: dict[str, Any] = {"nccl": False, "largest": 64 << 20, "max_message_bytes": 5 << 20, "replays": True}
    flat: list[dict[str, int]] = [{}, {"local_dp_size": 2}]
    nodes = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    return {
        mode: compared_by_processes(2, topologies, (321, 1999), modes=(mode,), **options)
        for mode, topologies in (("TWO_EXCHANGE", flat), ("HIERARCHICAL", nodes))
    }


@case(gpus=2)
def nodes_through_nvshmem() -> dict[str, Any]:
    """Nodes that exchange through NVSHMEM: two of one rank on two GPUs, 2 x 2 on four. On one host, that is NVLink."""
    import importlib.util

    from cuda_gctx import Device

    if importlib.util.find_spec("nvshmem") is None:
        return {"skipped": "nvshmem4py is not installed"}
    common: dict[str, Any] = {"modes": ("HIERARCHICAL",), "nccl": False, "nvshmem": True}
    two = [{"nodes": 2}, {"nodes": 2, "inter_dp_size": 2}]
    return {
        "2 ranks": compared_by_processes(2, two, (1, 16, 100), ("bfloat16", "float16"), **common),
        "faults": results_of(spawn(2, "faults through NVSHMEM", nccl=False)),
    } | (
        {"4 ranks": compared_by_processes(4, OF_FOUR[3:], (1, 16), ("bfloat16", "float16"), **common)}
        if Device.count() >= 4
        else {}
    )


@case(gpus=4, runs_alone=True)
def processes_on_four_gpus() -> dict[str, Any]:
    """Every topology, and with NCCL in both types those whose groups of NCCL are different ones."""
    return {
        "without NCCL": compared_by_processes(4, OF_FOUR, (1, 16, 100), ("float16",), nccl=False),
        "with NCCL": compared_by_processes(4, OF_FOUR[:4], (1, 16, 100), ("bfloat16", "float16")),
    }


@case(gpus=4, runs_alone=True)
def groups_of_four_gpus() -> dict[str, Any]:
    """As of a job with tp 2 twice."""
    return results_of(spawn(4, "groups", rows=(1, 16, 200)))[0]


@case(gpus=2)
def hosts_on_several_gpus() -> dict[str, Any]:
    """Hosts are simulated: ranks say which one they run on. Of two ranks, or of four, where there are GPUs for them."""
    from cuda_gctx import Device

    size = 4 if Device.count() >= 4 else 2
    return {f"{size} ranks": results_of(spawn(size, "hosts", rows=(1, 16, 200)))[0]}
