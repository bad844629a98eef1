"""Ranks that do not come or that disagree, and calls that are refused."""

from __future__ import annotations

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
    """Replays next to calls, on a stream that nothing orders, give right sums or a fault; after it, no numbers."""
    torch, comm = modules()
    from cuda_gctx import Device
    from cuda_gctx.interop.torch import use

    def work(rank: Any, mode: Any) -> tuple[str, int]:
        # One block: kernels that fill the SMs do not run at once, even on streams that nothing orders.
        rows = 1 if mode is comm.MixedCommMode.ONE_EXCHANGE else 4096
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=1.0) as handler:
            x = torch.full((rows, 1024), rank.rank + 1.0, dtype=torch.bfloat16, device=handler.device)
            replayed, called = (torch.full_like(x, float("nan")) for _ in range(2))
            one, other, unknown = rank.partition.stream_pool(3)
            with use(one):
                graph = capture(
                    torch, lambda: [comm.run_mixed_comm(x_op, handler, x, replayed, mode) for _ in range(200)]
                )
            torch.cuda.synchronize()
            rank.backend.barrier()
            with use(unknown):
                graph.replay()
            kind, calls = "none", 0
            with use(other):
                try:
                    for calls in range(200):  # noqa: B007
                        comm.run_mixed_comm(x_op, handler, x, called, mode)
                except comm.CommFault as error:
                    kind = error.kind
            unknown.sync()
            other.sync()
            for out in (replayed, called) if handler.has_fault else ():
                assert bool(((out == 3.0) | out.isnan()).all()), out
            if handler.has_fault:
                with use(unknown):
                    graph.replay()
                unknown.sync()
                assert bool(replayed.isnan().all()), replayed
            return kind, calls

    x_op, results = comm.MixedCommOp.ALLREDUCE, {}
    for mode in (comm.MixedCommMode.ONE_EXCHANGE, comm.MixedCommMode.TWO_EXCHANGE):
        with comm.local_world(2, Device(0), sms=16) as world:
            results[mode.name] = world.run(work, mode)
    return results


@case(is_timed=True)
def eager() -> dict[str, Any]:
    """The host's time of a call, in microseconds: the median and the tenth percentile, of each rank.

    "alone": without what Python does before a launch. "torch.add": for comparison.
    """
    torch, comm = modules()
    from cuda_gctx import Device

    calls, turns = 50, 12

    def measured(rank: Any, handler: Any, call: Any) -> tuple[float, float]:
        times = []
        for turn in range(turns):
            torch.cuda.current_stream().synchronize()
            rank.backend.barrier()
            # Ranks in turns: threads of one process share the interpreter. Until all have called, kernels wait.
            for at in range(rank.size):
                for _ in range(calls if at == rank.rank else 0):
                    begin = time.perf_counter_ns()
                    call()
                    times.append((time.perf_counter_ns() - begin) / 1000)
                rank.backend.barrier()
            if turn == 0:
                times.clear()
        torch.cuda.current_stream().synchronize()
        handler.check()
        times.sort()
        return round(times[len(times) // 2], 2), round(times[len(times) // 10], 2)

    def work(rank: Any, mode: Any, *, has_output: bool = True, **options: Any) -> dict[str, Any]:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, timeout_s=TIMEOUT_S, **options) as handler:
            x = torch.ones(64, 1024, dtype=torch.bfloat16, device=handler.device)
            out, op = torch.empty_like(x), comm.MixedCommOp.ALLREDUCE
            target = out if has_output else None
            found = {"call": measured(rank, handler, lambda: comm.run_mixed_comm(op, handler, x, target, mode))}
            if mode is not None and has_output:
                [prepared] = vars(handler)["_modes"][mode].prepared.values()
                stream, addresses = vars(handler)["_gpu"].order.stream(), (x.data_ptr(), out.data_ptr())
                found["alone"] = measured(rank, handler, lambda: prepared.launch(stream, addresses))
            if mode is None:
                found["torch.add"] = measured(rank, handler, lambda: torch.add(x, x, out=out))
            return found

    modes, results = comm.MixedCommMode, {}
    for what, mode, options in (
        ("ONE_EXCHANGE", modes.ONE_EXCHANGE, {}),
        ("TWO_EXCHANGE", modes.TWO_EXCHANGE, {}),
        ("TWO_EXCHANGE staged", modes.TWO_EXCHANGE, {"max_message_bytes": 1 << 20}),
        ("no mode", None, {}),
        ("ONE_EXCHANGE to a new output", modes.ONE_EXCHANGE, {"has_output": False}),
    ):
        with comm.local_world(2, Device(0), sms=16) as world:
            results[what] = world.run(lambda rank, mode=mode, options=options: work(rank, mode, **options))
        print(what, results[what], flush=True)
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
                refused(RuntimeError, "would wait for each other forever", lambda: call(op, handler, x, out))
            shared[rank.rank] = rank.partition
            rank.backend.barrier()
            with shared[1 - rank.rank].torch():
                refused(RuntimeError, "would wait for each other forever", lambda: call(op, handler, x, out))
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
