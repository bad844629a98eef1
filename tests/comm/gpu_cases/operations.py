"""Every operation in every mode, type and a spread of sizes: ranks as partitions of one GPU."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from .common import (
    LARGEST,
    TIMEOUT_S,
    TWO_NODES,
    bits_equal,
    capture,
    case,
    compare,
    inputs_of,
    modules,
    raised,
)


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
    dtypes: Sequence[str] = ("bfloat16", "float16"),
    **options: Any,
) -> dict[str, Any]:
    """Every operation, mode, type and a spread of sizes."""
    torch, comm = modules()
    from cuda_gctx import Device

    done = [0]

    def work(rank: Any) -> None:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch():
            for topology, name in itertools.product(topologies, dtypes):
                dtype = getattr(torch, name)
                with rank.handler(dtype, timeout_s=TIMEOUT_S, **topology, **options) as handler:
                    wanted = [one for one in handler.valid_mode_list if modes is None or one.name in modes]
                    for op, mode in itertools.product(handler.valid_op_list, wanted):
                        dp = handler.para_info.dp_size
                        # `largest` is of the larger of input and output.
                        shapes = shapes_for(dp if op.scatters else 1, largest // dp)
                        for seed, shape in enumerate(shapes):
                            shape = shape[0], shape[1] * max(2 // dtype.itemsize, 1)  # of 16 bytes at least
                            compare(rank, handler, op, mode, shape, seed)
                            if rank.rank == 0:
                                done[0] += 1

    with comm.local_world(size, [Device(number) for number in range(gpus)], sms=sms) as world:
        world.run(work)
    return {"calls compared": done[0]}


@case()
def machine() -> dict[str, Any]:
    torch, _ = modules()
    import cuda.bindings
    import cuda.core

    from cuda_gctx import Device, system
    from cuda_gctx.comm._compile import compile_kernels
    from cuda_gctx.comm._protocol import Element, Geometry, defines
    from cuda_gctx.comm._topology import ParallelInfo

    device = Device(0)
    info = ParallelInfo.of(0, 8, 0, 8, 0, 1, 4, 2)
    start = time.perf_counter()
    reports = {}
    for op in info.valid_ops:
        words = defines(info, op, Geometry(8, 1 << 19, 1 << 26), element=Element.BFLOAT16)
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


@case()
def ops_2_ranks() -> dict[str, Any]:
    return every_op(2, [{}, {"local_dp_size": 2}, {"nodes": 2, "inter_dp_size": 2}], 16, LARGEST)


@case()
def other_types() -> dict[str, Any]:
    """Sums in fp32, which are rounded to eight bits or not at all."""
    return every_op(4, [{"local_tp_size": 2}, {}], 16, 4 << 20, dtypes=("float32", "float8_e4m3fn"))


@case()
def ops_4_ranks() -> dict[str, Any]:
    two_nodes = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2}
    return every_op(4, [{"local_tp_size": 2}, {}, {"local_dp_size": 4}, two_nodes], 16, LARGEST)


@case()
def ops_8_ranks() -> dict[str, Any]:
    nodes = [
        {"nodes": 2, "local_tp_size": 2, "local_dp_size": 2, "inter_dp_size": 2},
        {"nodes": 4, "local_tp_size": 2, "inter_tp_size": 2, "inter_dp_size": 2},
    ]
    return every_op(8, [{"local_tp_size": 4}, {"local_tp_size": 2}, {}, {"local_dp_size": 8}, *nodes], 16, LARGEST)


@case()
def ops_odd_worlds() -> dict[str, Any]:
    compared = {}
    for size, topologies in ((3, [{}, {"local_dp_size": 3}]), (6, [{"local_tp_size": 3}, {"local_tp_size": 2}])):
        compared[f"{size} ranks"] = every_op(size, topologies, 16, LARGEST)
    return compared


@case()
def ops_staged() -> dict[str, Any]:
    """At once, and in several rounds."""
    topologies = [{"local_tp_size": 2}, {}]
    return {
        f"memory for {size >> 20} MiB": every_op(4, topologies, 24, LARGEST, ["TWO_EXCHANGE"], max_message_bytes=size)
        for size in (LARGEST, 5 << 20)
    }


def calls_of(comm: Any, handler: Any) -> list[tuple[Any, Any]]:
    """Every operation of a handler, with each mode that computes it, and without one."""
    ops, modes, listed = comm.MixedCommOp, comm.MixedCommMode, handler.valid_op_list
    more = [modes.COPY_ENGINES] if modes.COPY_ENGINES in handler._modes.that_compute(ops.BROADCAST) else []
    calls = [*itertools.product(listed, (*handler.valid_mode_list, None)), *((ops.BROADCAST, mode) for mode in more)]
    if ops.ALLGATHER in listed:
        calls += [*((ops.ALLGATHER, mode) for mode in more), *((ops.ALLTOALL, mode) for mode in (None, *more))]
    return calls


def compare_any_size(rank: Any, handler: Any, op: Any, mode: Any, chosen: random.Random) -> int:
    """Calls of one random size: with an output, without one, in place, and in graphs."""
    torch, comm = modules()
    from cuda_gctx import Stream

    info, call = handler.para_info, comm.run_mixed_comm
    rows = chosen.choice([1, 2, 3, 7]) * (info.dp_size if op.divides else 1)
    shape = rows, chosen.randrange(1, 5000 // rows + 1)
    root = chosen.randrange(rank.size) if op is comm.MixedCommOp.BROADCAST else None
    where = f"{op.name} {mode!r} {list(shape)} {handler.dtype} at rank {rank.rank} of {info}"
    compare(rank, handler, op, mode, shape, 1, root)
    stream = torch.cuda.current_stream()
    by_nodes = mode is comm.MixedCommMode.HIERARCHICAL
    all_inputs = [inputs_of(torch, shape, handler.dtype, rank.size, seed, handler.device) for seed in (2, 3, 4)]
    all_wanted = [comm.expected(info, op, inputs, by_nodes=by_nodes, root=root) for inputs in all_inputs]

    def demand(found: Any, wanted: Any, how: str) -> None:
        stream.synchronize()
        handler.check()
        assert bits_equal(torch, found, wanted), f"{how}: {where}"

    x, wanted = all_inputs[0][rank.rank].clone(), all_wanted[0]
    stream.synchronize()
    rank.backend.barrier()
    demand(call(op, handler, x, None, mode, root=root), wanted, "without an output")
    if op in (comm.MixedCommOp.ALLREDUCE, comm.MixedCommOp.BROADCAST):
        demand(call(op, handler, x, x, mode, root=root), wanted, "in place")
    out = torch.empty_like(wanted)
    graph = capture(torch, lambda: call(op, handler, x, out, mode, root=root))
    # torch does not know of this capture: its allocator could give out the memory that the graph uses.
    own = Stream.from_handle(stream.cuda_stream)
    with own.capture() as captured:
        call(op, handler, x, out, mode, root=root)
    others = [torch.full_like(one, -1.0) for one in (x, wanted) * 8]
    with captured.graph, captured.graph.instantiate() as executable:
        replays = {"replayed": graph.replay, "replayed, unknown to torch": lambda: executable.launch(own)}
        for (how, replay), inputs, one in zip(replays.items(), all_inputs[1:], all_wanted[1:], strict=True):
            x.copy_(inputs[rank.rank])
            out.fill_(float("nan"))
            stream.synchronize()
            rank.backend.barrier()
            replay()
            demand(out, one, how)
    assert all(bool((one.float() == -1.0).all()) for one in others), f"a replay overwrote another tensor: {where}"
    rank.backend.barrier()
    return 4


@case()
def any_size() -> dict[str, Any]:
    """Blocks of any number of bytes, which are padded; sizes that differ are found, even with equal padded blocks."""
    torch, comm = modules()
    from cuda_gctx import Device

    size = 4
    topologies: list[dict[str, int]] = [{"local_tp_size": 2}, {}, {"local_dp_size": size}, TWO_NODES]
    cases = [(one, {}) for one in topologies] + [({"local_dp_size": size}, {"max_message_bytes": 1 << 20})]

    def work(rank: Any) -> int:
        torch.cuda.set_device(rank.device.device_id)
        done = 0
        with rank.partition.torch():
            for (number, (topology, options)), name in itertools.product(
                enumerate(cases), ("bfloat16", "float32", "float8_e4m3fn")
            ):
                chosen = random.Random(f"{number} {name}")  # the same on all ranks
                with rank.handler(getattr(torch, name), timeout_s=TIMEOUT_S, **topology, **options) as handler:
                    for op, mode in calls_of(comm, handler):
                        for _ in range(3):
                            done += compare_any_size(rank, handler, op, mode, chosen)
            with rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S) as handler:

                def with_sizes_of_their_own() -> None:
                    x = torch.ones(3 + rank.rank % 2, dtype=torch.bfloat16, device=handler.device)
                    out = comm.run_mixed_comm(comm.MixedCommOp.ALLREDUCE, handler, x)
                    torch.cuda.current_stream().synchronize()
                    assert bool(out.isnan().all()), out
                    handler.check()

                fault = raised(comm.CommFault, with_sizes_of_their_own)
                assert getattr(fault, "kind", "") == "mismatch", fault
                handler.recover()
                compare(rank, handler, comm.MixedCommOp.ALLREDUCE, None, (3, 3), 1)
        return done

    with comm.local_world(size, Device(0), sms=16) as world:
        return {"calls compared": world.run(work)[0]}


@case()
def ops_8_ranks_of_8_sms() -> dict[str, Any]:
    return every_op(8, [{"local_tp_size": 2}, {}], 8, LARGEST)


@case()
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
