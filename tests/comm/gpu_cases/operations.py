"""Every operation in every mode, type and a spread of sizes: ranks as partitions of one GPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

from .common import (
    LARGEST,
    TIMEOUT_S,
    case,
    compare,
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
