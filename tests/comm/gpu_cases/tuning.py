"""The tuning table of all ranks, and times of calls."""

from __future__ import annotations

import gc
import itertools
import json
import statistics
from typing import Any

from .common import (
    TIMEOUT_S,
    capture,
    case,
    compare,
    modules,
)


@case(runs_alone=True)
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


@case()
def autotune_fifty_times() -> dict[str, Any]:
    """Ranks that are threads capture at once, again and again."""
    torch, comm = modules()
    from cuda_gctx import Device

    def work(rank: Any) -> int:
        with rank.partition.torch(), rank.handler(torch.bfloat16, local_tp_size=2, timeout_s=TIMEOUT_S) as handler:
            for turn in range(50):
                handler.run_autotune(message_bytes=[1 << 12], rounds=1)
                if rank.rank == 0 and turn % 10 == 9:
                    print(f"tuned {1 + turn} times", flush=True)
            return 1 + turn

    with comm.local_world(4, Device(0), sms=16) as world:
        return {"runs": world.run(work)}


@case(runs_alone=True)
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
