"""Ranks that do not come or that disagree, and calls that are refused."""

from __future__ import annotations

import threading
import time
from typing import Any

from .common import (
    TIMEOUT_S,
    capture,
    case,
    compare,
    modules,
    raised,
    refused,
)


def expect_fault(torch: Any, handler: Any, kind: str, within_s: float) -> float:
    _, comm = modules()
    start = time.monotonic()
    torch.cuda.current_stream().synchronize()
    took = time.monotonic() - start
    assert took < within_s, f"the kernel took {took:.1f} s"
    error = raised(comm.CommFault, handler.check)
    assert error.kind == kind, error
    return took


@case()
def faults() -> dict[str, Any]:
    """Ranks that do not come, or that are called with something else: errors in time, and the GPU works after."""
    return faults_of(3, 1)


@case()
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


@case()
def recovery() -> dict[str, Any]:
    """After a rank has not come, all recover: calls and a graph of before are right, and everything is freed."""
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any, topology: dict[str, int]) -> int:
        compared = 0
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=1.0, **topology) as handler:
            op = handler.valid_op_list[0]
            x = torch.full((64, 1024), rank.rank + 1.0, dtype=torch.bfloat16, device=handler.device)
            out = torch.zeros_like(x)
            for mode in handler.valid_mode_list[:-1]:
                torch.cuda.current_stream().synchronize()
                rank.backend.barrier()
                graph = capture(torch, lambda mode=mode: comm.run_mixed_comm(op, handler, x, out, mode))
                rank.backend.barrier()
                graph.replay()
                torch.cuda.current_stream().synchronize()
                rank.backend.barrier()
                if rank.rank != 1:
                    comm.run_mixed_comm(op, handler, x, None, mode)
                    expect_fault(torch, handler, "timeout", 3.0)
                handler.recover()
                compare(rank, handler, op, mode, (16, 1024), 3)
                out.zero_()
                torch.cuda.current_stream().synchronize()
                rank.backend.barrier()
                graph.replay()
                torch.cuda.current_stream().synchronize()
                handler.check()
                assert bool((out == rank.size * (rank.size + 1) / 2).all()), out
                compared += 2
        return compared

    results = {}
    for size, topology in ((2, {}), (4, {"nodes": 2})):
        with comm.local_world(size, Device(0), sms=16) as world:
            results[f"{size} ranks {topology}"] = world.run(work, topology)
    return results


@case()
def guards() -> dict[str, Any]:
    """A kernel next to a call that waits for its peer is a fault; both outputs are no numbers, and ranks recover.

    What runs next to the call, each on a stream that nothing orders: a launch, and a replay, on a stream of the
    partition; a replay on a plain stream. Blocks of use() would order their streams behind that of the call.
    """
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any, mode: Any) -> dict[str, str]:
        kinds: dict[str, str] = {}
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=1.0) as handler:
            # Kernels of one block: there are SMs for both.
            x = torch.full((1, 1024), rank.rank + 1.0, dtype=torch.bfloat16, device=handler.device)
            other, called = (torch.zeros_like(x) for _ in range(2))
            one, unknown = rank.partition.stream_pool(2)
            of_call, of_replay = (torch.cuda.ExternalStream(stream.handle) for stream in (one, unknown))
            plain = torch.cuda.Stream()
            with torch.cuda.stream(of_call):
                graph = capture(torch, lambda: comm.run_mixed_comm(op, handler, x, other, mode))
            message = vars(handler)["_messages"].of(op, x, other, is_checked=False)
            plan = vars(handler)["_modes"][mode].plan(message, handler.grid_size)

            def replay(stream: Any) -> None:
                with torch.cuda.stream(stream):
                    graph.replay()

            ways = {
                "a launch": lambda: plan.launch(unknown, (x.data_ptr(), other.data_ptr())),
                "a replay": lambda: replay(of_replay),
                "a replay on a plain stream": lambda: replay(plain),
            }
            for way, run in ways.items():
                torch.cuda.synchronize()
                rank.backend.barrier()
                if rank.rank == 0:
                    # The other rank does not call: the first kernel runs until there is a fault.
                    with torch.cuda.stream(of_call):
                        comm.run_mixed_comm(op, handler, x, called, mode)
                    run()
                    for stream in (one, unknown):
                        stream.sync()
                    plain.synchronize()
                    kinds[way] = raised(comm.CommFault, handler.check).kind
                    print(mode.name, way, kinds[way], flush=True)
                    assert all(bool(out.isnan().all()) for out in (other, called)), (way, other, called)
                handler.recover()
                compare(rank, handler, op, mode, (16, 1024), 3)
            graph.replay()
            torch.cuda.current_stream().synchronize()
            handler.check()
            assert bool((other == 3.0).all()), other
        return kinds

    op, results = comm.MixedCommOp.ALLREDUCE, {}
    for mode in (comm.MixedCommMode.ONE_EXCHANGE, comm.MixedCommMode.TWO_EXCHANGE):
        with comm.local_world(2, Device(0), sms=16) as world:
            results[mode.name] = world.run(work, mode)[0]
    assert all(kind == "overlap" for kinds in results.values() for kind in kinds.values()), results
    return results


@case()
def recovers_beside_replays() -> dict[str, Any]:
    """Ranks recover while a replay on a plain stream waits for its peer, and GEMMs run in another partition."""
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any, mode: Any) -> int:
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=1.0) as handler:
            x = torch.full((64, 1024), rank.rank + 1.0, dtype=torch.bfloat16, device=handler.device)
            out = torch.zeros_like(x)
            graph = capture(torch, lambda: comm.run_mixed_comm(op, handler, x, out, mode))
            plain = torch.cuda.Stream()
            for turn in range(4):
                rank.backend.barrier()
                if rank.rank == turn % 2:
                    with torch.cuda.stream(plain):
                        graph.replay()
                handler.recover()
                compare(rank, handler, op, mode, (16, 1024), turn)
                out.zero_()
                torch.cuda.current_stream().synchronize()
                rank.backend.barrier()
                graph.replay()
                torch.cuda.current_stream().synchronize()
                handler.check()
                assert bool((out == 3.0).all()), out
        return 4

    stop, ready = threading.Event(), threading.Event()

    def run_gemms(background: Any) -> None:
        with background.torch():
            a = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda:0")
            product = torch.mm(a, a)
            torch.cuda.current_stream().synchronize()
            ready.set()
            while not stop.is_set():
                for _ in range(8):
                    torch.mm(a, a, out=product)
                torch.cuda.current_stream().synchronize()

    op, results = comm.MixedCommOp.ALLREDUCE, {}
    with comm.local_world(2, Device(0), sms=16) as world:
        gemms = threading.Thread(target=run_gemms, args=world.backgrounds[:1], daemon=True)
        gemms.start()
        ready.wait()
        try:
            for mode in (comm.MixedCommMode.ONE_EXCHANGE, comm.MixedCommMode.TWO_EXCHANGE):
                results[mode.name] = world.run(work, mode)[0]
        finally:
            stop.set()
            gemms.join()
    return results


@case()
def misuse() -> dict[str, Any]:
    """Second streams and captures on them are ordered; second partitions and wrong tensors are refused."""
    torch, comm = modules()
    from cuda_gctx import Device
    from cuda_gctx.interop.torch import use

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
            with use(other):
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
                refused(RuntimeError, "would deadlock", lambda: call(op, handler, x, out))
            shared[rank.rank] = rank.partition
            rank.backend.barrier()
            with shared[1 - rank.rank].torch():
                refused(RuntimeError, "would deadlock", lambda: call(op, handler, x, out))
            with use(other):
                graph = capture(torch, lambda: call(op, handler, x, out))
                out.zero_()
                other.sync()
                rank.backend.barrier()
                graph.replay()
                other.sync()
                handler.check()
                assert bool((out == 3.0).all()), out
            refused(ValueError, "address", lambda: call(op, handler, x.view(-1)[4:-4], None))
            refused(ValueError, "contiguous", lambda: call(op, handler, x.t(), None))
            refused(ValueError, "must have dtype torch.bfloat16", lambda: call(op, handler, x.half(), None))
            refused(ValueError, "must be on", lambda: call(op, handler, x.cpu(), None))
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
