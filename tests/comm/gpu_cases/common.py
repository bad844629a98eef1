"""What the cases share: inputs, comparisons with exact values, and the list of all cases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    run: Callable[[], Any]
    gpus: int
    runs_alone: bool


REPOSITORY = Path(__file__).resolve().parents[3]
SUITE = Path(__file__).resolve().parents[1] / "gpu_suite.py"
LIMIT_S = 90
# Of waits in the kernels: a rank that is late by more is an error of the tests.
TIMEOUT_S = 10.0
# The largest message that is compared with the exact value: 8 ranks that each make the inputs of all need 30 GB.
LARGEST = 64 << 20
CASES: dict[str, Case] = {}
CAPTURING = threading.Lock()


def case(gpus: int = 1, *, runs_alone: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enters a case. gpus: how many it needs. runs_alone: no other case runs next to it, because it measures, or
    its processes take turns with others on a GPU.
    """

    def enter(function: Callable[[], Any]) -> Callable[[], Any]:
        CASES[function.__name__] = Case(function, gpus, runs_alone)
        return function

    return enter


def modules() -> tuple[Any, Any]:
    import torch

    from cuda_gctx import comm

    return torch, comm


def inputs_of(torch: Any, shape: tuple[int, ...], dtype: Any, count: int, seed: int, device: Any) -> list[Any]:
    made = []
    for rank in range(count):
        generator = torch.Generator(device).manual_seed(seed * 64 + rank)
        one = torch.randn(shape, generator=generator, device=device) * 2.0 ** ((seed + rank) % 5 - 2)
        one[one.abs() < 0.02] = -0.0
        made.append(one.to(dtype))
    return made


def raised(kind: type[Exception], function: Callable[[], Any]) -> Any:
    """The exception of a call, which must raise one of that kind."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised, where a {kind.__name__} was expected")


def refused(kind: type[Exception], words: str, function: Callable[[], Any]) -> None:
    message = str(raised(kind, function))
    assert words in message, message


def bits_equal(torch: Any, one: Any, other: Any) -> bool:
    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))


def compare(
    rank: Any, handler: Any, op: Any, mode: Any, shape: tuple[int, ...], seed: int, root: int | None = None
) -> None:
    """One call of an operation by all ranks, compared bit for bit with the exact value."""
    torch, comm = modules()
    info = handler.para_info
    # Every rank makes the inputs of all, which are the same on every GPU.
    inputs = inputs_of(torch, shape, handler.dtype, rank.size, seed, handler.device)
    wanted = comm.expected(info, op, inputs, by_nodes=mode is comm.MixedCommMode.HIERARCHICAL, root=root)
    out = torch.full_like(wanted, float("nan"))
    torch.cuda.current_stream().synchronize()
    rank.backend.barrier()
    comm.run_mixed_comm(op, handler, inputs[rank.rank], out, mode, root=root)
    torch.cuda.current_stream().synchronize()
    handler.check()
    if not bits_equal(torch, out, wanted):
        of_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[out.element_size()]
        wrong = (out.view(of_size) != wanted.view(of_size)).flatten()
        where = wrong.nonzero().flatten()
        raise AssertionError(
            f"{op.name} {mode!r} {list(shape)} {handler.dtype} at rank {rank.rank} of {info}: {len(where)} of "
            f"{wrong.numel()} wrong, first at {where[:4].tolist()}: {out.flatten()[where[:4]].tolist()}, wanted "
            f"{wanted.flatten()[where[:4]].tolist()}"
        )
    rank.backend.barrier()


def capture(torch: Any, work: Callable[[], None]) -> Any:
    graph = torch.cuda.CUDAGraph()
    # One at a time: torch registers graphs in a state that all threads share.
    with CAPTURING:
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph


def replayed_us(torch: Any, rank: Any, stream: Any, graph: Any, calls: int) -> float:
    """The time of a call in a graph of so many: of a replay behind one in which the ranks meet, on the slowest rank."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream.synchronize()
    rank.backend.barrier()
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(max(rank.backend.gather_to_all(begin.elapsed_time(end) * 1000 / calls)))


TWO_NODES = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2}


OF_FOUR = [
    {"local_tp_size": 2},
    {},
    {"local_dp_size": 4},
    {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2},
    {"nodes": 2, "local_dp_size": 2, "inter_tp_size": 2},
    {"nodes": 2, "local_tp_size": 2, "inter_tp_size": 2},
    {"nodes": 2, "local_dp_size": 2, "inter_dp_size": 2},
]
