"""Pairs of parts of known cost, their reports, and parts that fail."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cuda_gctx import Device, Stream, tune
from cuda_gctx.tune import Report, TailLatency, Throughput, spin
from cuda_gctx.tune._report import Result
from cuda_software_driver import session

from ..raw import Raw

MS = 1_000_000
WHOLE = 264  # blocks of the kernel that fill the device, two for each SM
Machines = Callable[..., Any]


def work(blocks: int, ns: int) -> Callable[[Stream], None]:
    return lambda stream: spin(stream, blocks, ns)


def chain(stream: Stream) -> None:
    """Short kernels one after the other: next to a kernel that fills the device, each has to wait for SMs again."""
    for _ in range(5):
        spin(stream, 32, 3 * MS // 10)
        spin(stream, 1, 3 * MS // 50)


PAIRS: dict[str, dict[str, Any]] = {
    "each fills half": {"left": work(WHOLE // 2, MS), "right": work(WHOLE // 2, MS)},
    "each fills all": {"product": work(4 * WHOLE, MS // 5), "sigmoid": work(WHOLE, MS // 5)},
    "a chain": {"product": work(2 * 232, MS), "chain": chain},
    "bulk work": {
        "bulk": work(WHOLE, MS),
        "critical": work(16, MS // 200),
        "objective": TailLatency("critical", quantile=0.9, rate=200),
        "sizes": [8, 64],
        "budget_s": 8,
    },
    "a mix": {
        "decode": work(32, MS // 10),
        "prefill": work(WHOLE, MS),
        "objective": Throughput(decode=16, prefill=1),
    },
}


def tuned(pair: str, **options: Any) -> Report:
    return tune.overlap(device=Device(0), **{"budget_s": 4, **PAIRS[pair], **options})


@cache
def read_only(pair: str) -> Report:
    """The report of a pair, for tests that only read it: measured once."""
    with session("h200"):
        return tuned(pair)


def of_kind(report: Report, kind: str) -> list[Result]:
    return [result for result in report.results if result.plan.kind == kind]


def said(report: Report) -> str:
    return "\n".join(report.reasons)


def nothing(stream: Stream) -> None: ...


@contextmanager
def captured(stream: Stream) -> Iterator[None]:
    handle, graph, raw = ctypes.c_void_p(stream.handle), ctypes.c_void_p(), Raw()
    raw.call("cuStreamBeginCapture_v2", handle, 2)
    try:
        yield
    finally:
        raw.call("cuStreamEndCapture", handle, ctypes.byref(graph))
        raw.call("cuGraphDestroy", graph)


class Failing:
    """Work that fails at its n-th call."""

    def __init__(self, nth: int, error: BaseException) -> None:
        self.calls, self.nth, self.error = 0, nth, error

    def __call__(self, stream: Stream) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise self.error
        spin(stream, WHOLE // 2, MS)
