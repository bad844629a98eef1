"""What copy engines compute: staged, mapped, in place and replayed; all-to-alls; what stages small messages."""

from __future__ import annotations

from typing import Any

from .common import TIMEOUT_S, bits_equal, capture, case, compare, inputs_of, modules, raised, replayed_us
from .processes import results_of, spawn


def gathered_by_copies(size: int, gpus: int) -> dict[str, Any]:
    torch, comm = modules()
    from cuda_gctx import Device

    op, mode = comm.MixedCommOp.ALLGATHER, comm.MixedCommMode.COPY_ENGINES

    def work(rank: Any) -> int:
        torch.cuda.set_device(rank.device.device_id)
        options = {"local_dp_size": size, "max_message_bytes": 8 << 20, "timeout_s": TIMEOUT_S}
        with rank.partition.torch(), rank.handler(torch.bfloat16, **options) as handler:
            # The last one in rounds.
            for seed, shape in enumerate([(1, 8), (33, 4104), (64, 8192), (640, 8192)]):
                compare(rank, handler, op, mode, shape, seed)
            inputs = inputs_of(torch, (640, 8192), torch.bfloat16, size, 9, handler.device)
            wanted = torch.cat(inputs)
            x, out = inputs[rank.rank], torch.zeros_like(wanted)
            handler.map_tensors(x, out)
            own = out[rank.rank * 640 :][:640]
            stream = torch.cuda.current_stream()
            stream.synchronize()

            def call(source: Any) -> None:
                comm.run_mixed_comm(op, handler, source, out, mode)

            for source in (x, own):
                out.fill_(float("nan"))
                own.copy_(x)
                stream.synchronize()
                rank.backend.barrier()
                call(source)
                stream.synchronize()
                handler.check()
                assert bits_equal(torch, out, wanted), f"rank {rank.rank}, {'in place' if source is own else 'mapped'}"
            graph = capture(torch, lambda: call(x))
            out.zero_()
            stream.synchronize()
            rank.backend.barrier()
            graph.replay()
            stream.synchronize()
            handler.check()
            assert bits_equal(torch, out, wanted), f"rank {rank.rank}, replayed"
            rank.backend.barrier()
            handler.unmap_tensors(x, out)
            return 7

    with comm.local_world(size, [Device(number) for number in range(gpus)], sms=16) as world:
        return {"calls compared": world.run(work)[0]}


@case()
def copy_engines() -> dict[str, Any]:
    return {f"{size} ranks": gathered_by_copies(size, 1) for size in (2, 4)}


@case(gpus=2)
def copy_engines_on_two_gpus() -> dict[str, Any]:
    return gathered_by_copies(2, 2)


def symmetric(gpus: int) -> dict[str, Any]:
    """Calls on tensors of empty(), compared bit for bit, replayed, across a checkpoint; next to staged ones in time."""
    torch, comm = modules()
    from cuda_gctx import Device

    modes, us = comm.MixedCommMode, {}

    def compare_one(rank: Any, handler: Any, op: Any, mode: Any, seed: int) -> None:
        """Compare calls of 16 MiB. Their tensors are gone afterwards."""
        stream = torch.cuda.current_stream()
        inputs = inputs_of(torch, (1024, 8192), torch.bfloat16, rank.size, seed, handler.device)
        wanted = comm.expected(handler.para_info, op, inputs)
        x, out = handler.empty(inputs[0].shape), handler.empty(wanted.shape)
        assert x.dtype is torch.bfloat16
        x.copy_(inputs[rank.rank])
        graph = capture(torch, lambda: comm.run_mixed_comm(op, handler, x, out, mode))
        for how in ("called", "replayed"):
            out.fill_(float("nan"))
            stream.synchronize()
            rank.backend.barrier()
            if how == "called":
                comm.run_mixed_comm(op, handler, x, out, mode)
            else:
                graph.replay()
            stream.synchronize()
            handler.check()
            assert bits_equal(torch, out, wanted), f"rank {rank.rank}, {op.name} {mode.name}, {how}"
        if mode is modes.TWO_EXCHANGE:
            ordinary, to = torch.empty_like(x), torch.empty_like(out)
            staged = capture(torch, lambda: comm.run_mixed_comm(op, handler, ordinary, to, mode))
            for name, one in (("symmetric", graph), ("staged", staged)):
                us[f"{op.name}, {name}"] = replayed_us(torch, rank, stream, one, 1)
        rank.backend.barrier()

    def work(rank: Any) -> None:
        torch.cuda.set_device(rank.device.device_id)
        options = {"max_message_bytes": 32 << 20, "symmetric_bytes": 80 << 20, "timeout_s": TIMEOUT_S}
        for dp in (1, 2):
            with rank.partition.torch(), rank.handler(torch.bfloat16, local_dp_size=dp, **options) as handler:
                for seed, op in enumerate(handler.valid_op_list):
                    compare_one(rank, handler, op, modes.ONE_EXCHANGE, seed)
                    compare_one(rank, handler, op, modes.TWO_EXCHANGE, seed)
                    if op is comm.MixedCommOp.ALLGATHER:
                        compare_one(rank, handler, op, modes.COPY_ENGINES, seed)
                handler.empty((4096, 8192))  # 64 MiB: memory has been given out again
                handler.checkpoint_prepare()
                handler.checkpoint_restore(rank.backend)
                kept = handler.empty((16, 8192))
            kept.fill_(1.0)
            assert float(kept.sum()) == 16 * 8192

    with comm.local_world(2, [Device(number) for number in range(gpus)], sms=16) as world:
        world.run(work)
    return {"us": us}


@case()
def symmetric_tensors() -> dict[str, Any]:
    return symmetric(1)


@case(gpus=2)
def symmetric_tensors_on_two_gpus() -> dict[str, Any]:
    return symmetric(2)


def exchanged(size: int, gpus: int) -> int:
    """All-to-alls in SMs and by copy engines, staged and mapped; all compared bit for bit."""
    torch, comm = modules()
    from cuda_gctx import Device

    op, modes = comm.MixedCommOp.ALLTOALL, comm.MixedCommMode

    def work(rank: Any) -> int:
        torch.cuda.set_device(rank.device.device_id)
        options = {"local_dp_size": size, "max_message_bytes": 8 << 20, "timeout_s": TIMEOUT_S}
        compared = 0
        with rank.partition.torch(), rank.handler(torch.bfloat16, **options) as handler:
            for seed, (rows, columns) in enumerate([(1, 8), (3, 264), (33, 4104), (64, 8192), (160, 8192)]):
                for mode in (modes.ONE_EXCHANGE, modes.COPY_ENGINES, None):
                    compare(rank, handler, op, mode, (rows * size, columns), seed)
                    compared += 1
            inputs = inputs_of(torch, (32 * size, 8192), torch.bfloat16, size, 9, handler.device)
            wanted = comm.expected(handler.para_info, op, inputs)
            x, out = inputs[rank.rank], torch.zeros_like(wanted)
            handler.map_tensors(x, out)
            stream = torch.cuda.current_stream()
            stream.synchronize()
            rank.backend.barrier()
            comm.run_mixed_comm(op, handler, x, out, modes.COPY_ENGINES)
            stream.synchronize()
            handler.check()
            assert bits_equal(torch, out, wanted), f"rank {rank.rank}, mapped"
            handler.unmap_tensors(x, out)
        return compared + 1

    with comm.local_world(size, [Device(number) for number in range(gpus)], sms=16) as world:
        return int(world.run(work)[0])


@case()
def all_to_all() -> dict[str, Any]:
    return {f"{size} ranks": {"calls compared": exchanged(size, 1)} for size in (2, 4)}


@case(gpus=2)
def all_to_all_on_two_gpus() -> dict[str, Any]:
    return {"calls compared": exchanged(2, 2)}


@case(gpus=4)
def copies_on_four_gpus() -> dict[str, Any]:
    """All-gathers and all-to-alls, one rank on each."""
    return {"all-gathers": gathered_by_copies(4, 4), "all-to-alls": {"calls compared": exchanged(4, 4)}}


def from_one_to_all(size: int, gpus: int) -> int:
    """Broadcasts from each rank, staged, in rounds, mapped, in place and replayed, and one whose ranks disagree."""
    torch, comm = modules()
    from cuda_gctx import Device

    op, mode = comm.MixedCommOp.BROADCAST, comm.MixedCommMode.COPY_ENGINES

    def work(rank: Any) -> int:
        torch.cuda.set_device(rank.device.device_id)
        compared = 0
        options = {"max_message_bytes": 8 << 20, "timeout_s": TIMEOUT_S}
        with rank.partition.torch(), rank.handler(torch.bfloat16, **options) as handler:
            for root in range(size):
                # The last one in rounds.
                for seed, shape in enumerate([(1, 8), (33, 4104), (64, 8192), (640, 8192)]):
                    compare(rank, handler, op, (None, mode)[seed % 2], shape, seed, root)
                    compared += 1
            inputs = inputs_of(torch, (640, 8192), torch.bfloat16, size, 9, handler.device)
            x, out = inputs[rank.rank], torch.zeros_like(inputs[0])
            handler.map_tensors(x, out)
            stream = torch.cuda.current_stream()

            def call(source: Any, root: int) -> None:
                comm.run_mixed_comm(op, handler, source, out, mode, root=root)

            for root in range(size):
                graphs = {"mapped, replayed": capture(torch, lambda root=root: call(x, root))}
                calls = {"mapped": lambda root=root: call(x, root), "in place": lambda root=root: call(out, root)}
                for how, run in (calls | {how: graph.replay for how, graph in graphs.items()}).items():
                    out.copy_(x) if how == "in place" else out.fill_(float("nan"))
                    stream.synchronize()
                    rank.backend.barrier()
                    run()
                    stream.synchronize()
                    handler.check()
                    assert bits_equal(torch, out, inputs[root]), f"rank {rank.rank}, {how} from {root}"
                    compared += 1

            def with_roots_of_their_own() -> None:
                call(x, rank.rank % 2)
                stream.synchronize()
                handler.check()

            rank.backend.barrier()
            fault = raised(comm.CommFault, with_roots_of_their_own)
            assert getattr(fault, "kind", "") == "mismatch", fault
            handler.recover()
            compare(rank, handler, op, mode, (33, 4104), 5, size - 1)
            handler.unmap_tensors(x, out)
        return compared + 1

    with comm.local_world(size, [Device(number) for number in range(gpus)], sms=16) as world:
        return int(world.run(work)[0])


@case()
def broadcast() -> dict[str, Any]:
    return {f"{size} ranks": {"calls compared": from_one_to_all(size, 1)} for size in (2, 4)}


@case(gpus=2)
def broadcast_on_two_gpus() -> dict[str, Any]:
    by_threads = {"2 ranks": {"calls compared": from_one_to_all(2, 2)}}
    return by_threads | {"2 processes": results_of(spawn(2, "broadcast"))[0]}


@case(gpus=4)
def broadcast_on_four_gpus() -> dict[str, Any]:
    """One rank on each."""
    by_threads = {"4 ranks": {"calls compared": from_one_to_all(4, 4)}}
    return by_threads | {"4 processes": results_of(spawn(4, "broadcast"))[0]}


def staged_by(size: int, gpus: int, sms: int) -> list[dict[str, Any]]:
    """All-reduces whose tensors are staged, by a kernel and by copy engines: us in a graph."""
    torch, comm = modules()
    import statistics
    from unittest.mock import patch

    from cuda_gctx import Device
    from cuda_gctx.comm import _modes

    calls, rounds = 20, 9
    op, mode = comm.MixedCommOp.ALLREDUCE, comm.MixedCommMode.TWO_EXCHANGE
    rows: list[dict[str, Any]] = []

    def work(rank: Any, way: str) -> None:
        torch.cuda.set_device(rank.device.device_id)
        with rank.partition.torch(), rank.handler(torch.bfloat16, max_message_bytes=8 << 20, timeout_s=5.0) as handler:
            for bytes_of_message in (1 << shift for shift in range(14, 22)):
                compare(rank, handler, op, mode, (2, bytes_of_message // 4), 1)
                x = torch.ones(2, bytes_of_message // 4, dtype=torch.bfloat16, device=handler.device)
                out, stream = torch.empty_like(x), torch.cuda.current_stream()
                stream.synchronize()
                graph = capture(
                    torch, lambda x=x, out=out: [comm.run_mixed_comm(op, handler, x, out, mode) for _ in range(calls)]
                )
                samples = [replayed_us(torch, rank, stream, graph, calls) for _ in range(rounds)]
                handler.check()
                if rank.rank == 0:
                    us, ends = (round(statistics.median(samples), 2), [round(f(samples), 2) for f in (min, max)])
                    where = {"ranks": size, "gpus": gpus, "SMs": sms}
                    rows.append(where | {"bytes": bytes_of_message, "copies": way, "us": us, "min, max": ends})
                    print(rows[-1], flush=True)

    for way, most in (("by a kernel", 1 << 30), ("by copy engines", 0)):
        with (
            patch.object(_modes, "COPIED_BY_KERNEL_BYTES", most),
            comm.local_world(size, [Device(number) for number in range(gpus)], sms=sms) as world,
        ):
            world.run(work, way)
    return rows


@case(runs_alone=True)
def staged_copies() -> list[dict[str, Any]]:
    """Of two ranks on one GPU."""
    return staged_by(2, 1, 16)


@case(gpus=2, runs_alone=True)
def staged_copies_between_gpus() -> list[dict[str, Any]]:
    """Of one rank on each of two GPUs, and of four, where they are there."""
    from cuda_gctx import Device

    worlds = [(2, 16), (2, 8), *([(4, 16), (4, 8)] if Device.count() >= 4 else [])]
    return [row for size, sms in worlds for row in staged_by(size, size, sms)]


# What a stream of a GPU copies: from the other one, to it, and within.
KINDS = ("from the other GPU", "to the other GPU", "within")


@case(gpus=2, runs_alone=True)
def copies_behind_kernels() -> dict[str, Any]:
    """Which copies of a GPU wait for one that another stream has behind a kernel that still runs.

    Ranks enqueue copies between GPUs behind kernels that wait for other ranks. With a GPU for each rank, no copy of one
    may wait for that of another. Of each kind of the copy that waits for the kernel: how many of those of 15 streams,
    by kind.
    """
    torch, _ = modules()
    from contextlib import ExitStack

    from cuda_gctx import Device
    from cuda_gctx.comm._driver_calls import call
    from cuda_gctx.interop.torch import torch_stream

    devices, size = [Device(number) for number in range(2)], 1 << 20
    memory = [torch.zeros(2 * size, dtype=torch.uint8, device=f"cuda:{number}") for number in range(2)]
    for number in range(2):
        torch.cuda.synchronize(number)
        with devices[number].context.current():
            call("cuCtxEnablePeerAccess", devices[1 - number].context.handle, 0)

    def copy(kind: str, number: int, stream: Any) -> Any:
        """A copy by a stream of a GPU, and an event behind it."""
        own, theirs = memory[number].data_ptr(), memory[1 - number].data_ptr()
        places = {KINDS[0]: (own, theirs + size), KINDS[1]: (theirs, own + size), KINDS[2]: (own, own + size)}
        with torch.cuda.device(number):
            call("cuMemcpyDtoDAsync", *places[kind], size, stream.cuda_stream)
            event = torch.cuda.Event(enable_timing=True)
            event.record(stream)
        return event

    waited: dict[str, dict[str, int]] = {}
    with ExitStack() as closing:
        streams: list[list[Any]] = [[], []]
        for number, device in enumerate(devices):
            for part in closing.enter_context(device.partition(first=16, second=16)):
                made = [closing.enter_context(part.context.create_stream()) for _ in range(8)]
                streams[number] += map(torch_stream, made)
            for stream in streams[number]:
                for kind in KINDS:
                    copy(kind, number, stream).synchronize()
        held, *others = streams[0]
        for first in KINDS[:2]:
            waited[first] = {}
            for kind in KINDS:
                with torch.cuda.device(0), torch.cuda.stream(held):
                    torch.cuda._sleep(1_000_000_000)  # about half a second
                    end = torch.cuda.Event(enable_timing=True)
                    end.record(held)
                copy(first, 0, held)
                events = [copy(kind, 0, stream) for stream in others]
                for event in [copy(kind, 1, stream) for stream in streams[1]]:
                    event.synchronize()
                assert not end.query(), "copies of the other GPU waited, or the kernel ended too early"
                for event in (end, *events):
                    event.synchronize()
                held.synchronize()
                waited[first][kind] = sum(end.elapsed_time(event) > 0 for event in events)
    return waited
