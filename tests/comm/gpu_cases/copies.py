"""All-gathers by copy engines: staged, mapped, in place and replayed."""

from __future__ import annotations

from typing import Any

from .common import TIMEOUT_S, bits_equal, capture, case, compare, inputs_of, modules


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
    return {f"{size} ranks": gathered_by_copies(size, 2) for size in (2, 4)}
