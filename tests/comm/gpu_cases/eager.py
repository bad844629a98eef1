"""The host's time of calls on one GPU: whole calls, and what they consist of, next to raw launches.

Ranks are partitions of the GPU. They call in turns, because threads of one process share the interpreter: until all
have called, kernels wait.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

from .common import REPOSITORY, case, modules

SMS = 16
MESSAGE_BYTES = 64 << 10
CALLS = 50  # fewer than the driver takes ahead
TURNS = 20
Work = Callable[[], object]


class Row(NamedTuple):
    """What is measured. before, after: what is done next to the calls of a turn."""

    call: str
    part: str
    work: Work
    before: Work = lambda: None
    after: Work = lambda: None


class EagerCalls:
    """The times of a rank. The rows are those of the slower rank, the median of calls in each turn.

    All rows are measured in each turn, so that a host that becomes faster or slower does so for all of them.

    whole: a call. front: one that launches nothing. launches: those of the call, without what comes before them.
    """

    def __init__(self, rank: Any) -> None:
        self.rank = rank
        self.torch, self.comm = modules()
        self._rows: list[Row] = []

    def add(self, *row: Any) -> None:
        self._rows.append(Row(*row))

    def add_parts(self, name: str, handler: Any, x_in: Any, x_out: Any, mode: Any) -> None:
        from cuda_gctx.comm._calls import Plan
        from cuda_gctx.comm._numbers import Numbers

        op, of, run_mixed_comm = self.comm.MixedCommOp.ALLREDUCE, vars(handler), self.comm.run_mixed_comm

        def whole() -> None:
            run_mixed_comm(op, handler, x_in, x_out, mode)

        # No rank loads or waits for anything while the call of another rank waits for its own.
        self.rank.backend.barrier()
        whole()
        self.rank.backend.barrier()
        self.torch.cuda.current_stream().synchronize()
        stream, addresses = of["_gpu"].order.stream(), (x_in.data_ptr(), x_out.data_ptr())
        message = of["_messages"].of(op, x_in, x_out, is_checked=False)
        plan, nothing = of["_modes"][mode].plan(message, handler.grid_size), Plan(Numbers(), 0)

        def keep(steps: Any) -> None:
            of["_plans"].keep(op, mode, message, has_output=True, launched=(steps, addresses))

        self.add(name, "whole", whole)
        self.add(name, "launches", lambda: plan.launch(stream, addresses))
        self.add(name, "front", whole, lambda: keep(nothing), lambda: keep(plan))

    def measured(self) -> list[dict[str, Any]]:
        samples: list[list[float]] = [[] for _ in self._rows]
        for turn in range(1 + TURNS):
            for row, times in zip(self._rows, samples, strict=True):
                median = self._median_us(row)
                if turn:
                    times.append(median)
        rows = []
        for row, times in zip(self._rows, samples, strict=True):
            us, ends = round(statistics.median(times), 2), [round(limit(times), 2) for limit in (min, max)]
            rows.append({"call": row.call, "part": row.part, "us": us, "min, max": ends})
            if self.rank.rank == 0:
                print(json.dumps(rows[-1]), flush=True)
        return rows

    def _median_us(self, row: Row) -> float:
        self.torch.cuda.current_stream().synchronize()
        row.before()
        self.rank.backend.barrier()
        taken = []
        for at in range(self.rank.size):
            for _ in range(CALLS if at == self.rank.rank else 0):
                begin = time.perf_counter_ns()
                row.work()
                taken.append((time.perf_counter_ns() - begin) / 1000)
            self.rank.backend.barrier()
        row.after()
        return max(self.rank.backend.gather_to_all(statistics.median(taken)))


def raw_launch(context: Any, stream: int) -> tuple[Work, Work]:
    """A launch of an empty kernel with 300 bytes of arguments by the driver's own function, called through ctypes.

    The second one frees the kernel.
    """
    from cuda_gctx.comm._driver_calls import call

    image = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry kernel(.param .b8 a[304]) { ret; }\n"
    with context.current():
        library = call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
        function = int(call("cuKernelGetFunction", call("cuLibraryGetKernel", library, b"kernel")))
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    content = ctypes.create_string_buffer(304)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(content))
    number = ctypes.c_uint
    one = number(1)
    how = ctypes.c_void_p(function), one, one, one, number(32), one, one, number(0)
    where = ctypes.c_void_p(stream), parameters, ctypes.c_void_p()

    def run() -> None:
        if launch(*how, *where):
            raise RuntimeError("cuLaunchKernel failed")

    return run, lambda: call("cuLibraryUnload", library)


@case(runs_alone=True)
def eager() -> dict[str, Any]:
    """The time of the host in a call of each mode, next to a raw launch and an operation of torch."""
    torch, comm = modules()
    from cuda_gctx import Device
    from cuda_gctx.comm import _modes
    from cuda_gctx.measure.machine import described

    one, two, op = comm.MixedCommMode.ONE_EXCHANGE, comm.MixedCommMode.TWO_EXCHANGE, comm.MixedCommOp.ALLREDUCE

    def work(rank: Any, how: str) -> Any:
        calls = EagerCalls(rank)
        options: dict[str, Any] = {} if how == "reached" else {"max_message_bytes": 1 << 20}
        with (
            rank.partition.torch(),
            rank.handler(torch.bfloat16, timeout_s=20, **options) as handler,
            ExitStack() as closing,
        ):
            x_in = torch.ones(1, MESSAGE_BYTES // 2, dtype=torch.bfloat16, device=handler.device)
            x_out = torch.empty_like(x_in)
            if how == "reached":
                launch, free = raw_launch(rank.partition.context, rank.partition.stream.handle)
                closing.callback(free)
                inside, context = ExitStack(), rank.partition.context
                enter = lambda: inside.enter_context(context.current())  # noqa: E731
                calls.add("cuLaunchKernel", "raw", launch, enter, inside.close)
                calls.add("torch.add", "whole", lambda: torch.add(x_in, x_in, out=x_out))
                calls.add_parts("ONE_EXCHANGE", handler, x_in, x_out, one)
                new = "ONE_EXCHANGE to a new output"
                calls.add(new, "whole", lambda: comm.run_mixed_comm(op, handler, x_in, None, one))
                calls.add("no mode", "whole", lambda: comm.run_mixed_comm(op, handler, x_in, x_out))
            calls.add_parts(f"TWO_EXCHANGE, {how}", handler, x_in, x_out, two)
            rows: list[dict[str, Any]] = calls.measured()
            torch.cuda.current_stream().synchronize()
            handler.check()
        return rows

    rows = []
    for how, most in (("reached", None), ("staged", None), ("staged by copy engines", 0)):
        usual = _modes.COPIED_BY_KERNEL_BYTES
        with (
            patch.object(_modes, "COPIED_BY_KERNEL_BYTES", usual if most is None else most),
            comm.local_world(2, Device(0), sms=SMS) as world,
        ):
            rows += world.run(work, how)[0]
    what = "The host's time of all-reduces of two ranks on one GPU, by the case eager of tests/comm/gpu_suite.py"
    shape = {"sms": SMS, "bytes": MESSAGE_BYTES, "calls": CALLS, "turns": TURNS}
    return described(Device(0), what, REPOSITORY) | shape | {"rows": rows}
