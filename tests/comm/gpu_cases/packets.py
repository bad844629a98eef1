"""Both forms of packets on one GPU, and epochs that begin again."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from .common import TIMEOUT_S, case, compare, modules
from .operations import every_op


@case()
def packets() -> dict[str, Any]:
    """Whole packets as the ranks agree on them, and halves, each with every operation."""
    from cuda_gctx.comm import _building
    from cuda_gctx.comm._protocol import Packing

    agreed: list[str] = []
    usual = _building.agreed_packing

    def noted(*arguments: Any) -> Packing:
        packing = usual(*arguments)
        agreed.append(packing.name)
        return packing

    how: dict[str, Any] = {"sms": 16, "largest": 4 << 20, "modes": ["ONE_EXCHANGE"]}
    worlds = (2, [{}]), (4, [{"local_tp_size": 2}])
    with patch.object(_building, "agreed_packing", noted):
        whole = [every_op(size, topologies, **how) for size, topologies in worlds]
    with patch.object(_building, "agreed_packing", lambda *_: Packing.HALVES):
        halves = [every_op(size, topologies, **how) for size, topologies in worlds]
    return {"agreed": sorted(set(agreed)), "as agreed": whole, "halves": halves}


@case()
def epochs_begin_again() -> dict[str, Any]:
    """Large and small calls across both places where packets are cleared, and across the end of the epochs."""
    torch, comm = modules()
    import ctypes

    from cuda_gctx import Device
    from cuda_gctx.comm import _building
    from cuda_gctx.comm._driver_calls import call
    from cuda_gctx.comm._protocol import Geometry

    made, memory = _building.Workspaces, {}

    def noted(backend: Any, *arguments: Any) -> Any:
        memory[backend.Get_rank()] = made(backend, *arguments)
        return memory[backend.Get_rank()]

    one, op = comm.MixedCommMode.ONE_EXCHANGE, comm.MixedCommOp.ALLREDUCE
    large, small = (512, 1024), (1, 1024)

    def work(rank: Any) -> int:
        done = 0
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S) as handler:
            own = memory[rank.rank].addresses[rank.rank]
            for epoch, shapes in ((1, [large]), (0x7FFFFFFC, [small] * 6), (0xFFFFFFFC, [small, small, small, large])):
                torch.cuda.current_stream().synchronize()
                rank.backend.barrier()
                word = ctypes.c_uint64(epoch << 32)
                with rank.partition.context.current():
                    call("cuMemcpyHtoD", own + Geometry.CONTROL_PACKET_WORD, ctypes.addressof(word), 8)
                for seed, shape in enumerate(shapes):
                    compare(rank, handler, op, one, shape, seed + epoch % 7)
                    done += 1
        return done

    results = {}
    for size in (2, 4):
        with comm.local_world(size, Device(0), sms=16) as world, patch.object(_building, "Workspaces", noted):
            results[f"{size} ranks"] = {"calls": world.run(work)[0]}
    return results
