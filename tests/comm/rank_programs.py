"""The programs of ranks in the tests: each rank is a process or a thread of this program, under a watchdog.

    python rank_programs.py PROGRAM RANK SIZE FOLDER LIMIT
    python rank_programs.py serve LIMIT

The watchdog prints the stacks of all threads and ends the process after LIMIT seconds. Results are a line of JSON.

``serve`` loads torch once, and forks ranks that have it: a line of the standard input is
``[PROGRAM, PROCESSES, SIZE, FOLDER]`` in JSON, and the answer is the line of their exit codes, when all have ended. A
rank prints to RANK.out and RANK.err in the folder.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import itertools
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

try:
    from .topologies import TOPOLOGIES
except ImportError:
    from topologies import TOPOLOGIES  # type: ignore[no-redef]

PROGRAMS: dict[str, Callable[[int, int, Path], Any]] = {}
# Those whose ranks end as programs do: with handlers that other ranks have left, with operations of torch that this
# package has registered, and with calls that it keeps. The end of an interpreter that has torch takes a quarter of a
# second of CPU time, longer than most of the programs, so that the others end at once.
ENDING = ("absences", "compiled", "dying", "known_calls")


def program(function: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    PROGRAMS[function.__name__] = function
    return function


def numbers_of(info: Any) -> tuple[int, ...]:
    """The arguments of a handler that say who and where it is."""
    return (
        *(info.world_rank, info.world_size, info.local_rank, info.local_size, info.inter_rank, info.inter_size),
        *(info.local_tp_size, info.local_dp_size, info.inter_tp_size, info.inter_dp_size),
    )


def initialise_gloo(rank: int, size: int, folder: Path) -> Any:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    return dist


@cache
def inputs_of(rows: int, size: int, dtype: Any, seed: int) -> list[Any]:
    """The inputs of all ranks. Threads that are ranks share them: nothing writes to an input."""
    import torch

    made = []
    for rank in range(size):
        one = torch.randn(rows, 7, generator=torch.Generator().manual_seed(100 * seed + rank)) * 8
        one[one.abs() < 0.5] = -0.0
        made.append(one.to(dtype))
    return made


def same_bits(one: Any, other: Any) -> bool:
    import torch

    return one.shape == other.shape and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def compare_topologies(size: int, make: Callable[[Any, Any], Any], types_of_each: int = 2) -> int:
    """Every operation of every topology of a size, in some of four types, compared with the exact bits."""
    import torch

    from cuda_gctx.comm import MixedCommMode, MixedCommOp, expected, run_mixed_comm

    compared = 0
    types = torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn
    for number, first in enumerate(TOPOLOGIES):
        if first.world_size != size or not first.valid_ops:
            continue
        for dtype in (types * 2)[number % 4 :][:types_of_each]:
            handler = make(first, dtype)
            info = handler.para_info
            for op in info.every_op:
                for rows in (1, 3):
                    rows_in = rows * info.dp_size if op.divides else rows
                    inputs = inputs_of(rows_in, size, dtype, seed=rows)
                    root = rows % size if op is MixedCommOp.BROADCAST else None
                    out = run_mixed_comm(op, handler, inputs[info.world_rank], root=root)
                    wanted = expected(info, op, inputs, exchanges=2, root=root)
                    assert same_bits(out, wanted), f"{op.name} of {rows} rows at {info}"
                    into = torch.empty_like(wanted)
                    assert run_mixed_comm(op, handler, inputs[info.world_rank], into, root=root) is into
                    assert same_bits(into, wanted)
                    compared += 1
                    if info.use_inter and op in handler.valid_op_list:
                        out = run_mixed_comm(op, handler, inputs[info.world_rank], None, MixedCommMode.HIERARCHICAL)
                        wanted = expected(info, op, inputs, by_nodes=True)
                        assert same_bits(out, wanted), f"{op.name} of {rows} rows by nodes at {info}"
            handler.shutdown()
            handler.shutdown()
    return compared


def is_rounded_at_most_at_each_addition(info: Any, op: Any, inputs: Sequence[Any], out: Any) -> bool:
    """Whether an output differs from the exact value by no more than a rounding at each addition, in any order."""
    import torch

    from cuda_gctx.comm import expected

    exact = expected(info, op, [one.float() for one in inputs])  # but for what fp32 rounds
    # No partial sum is larger than the sum of the magnitudes.
    largest = expected(info, op, [one.float().abs() for one in inputs])
    additions = len(info.plan(op).blocks[0]) - 1
    roundings = (1 + torch.finfo(out.dtype).eps / 2) ** additions - 1
    return bool(((out.float() - exact).abs() <= (roundings + 1e-6) * largest).all())


def compare_forms_for_nccl(rank: int, size: int) -> int:
    """The forms for NCCL, through gloo, which has the same collectives."""
    import torch
    import torch.distributed as dist

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, expected
    from cuda_gctx.comm._reference import exchange_with_nccl

    compared = 0
    for first in TOPOLOGIES:
        if first.world_size != size:
            continue
        info = first.at(rank)
        handler = MixedCommHandler(*numbers_of(info), torch.bfloat16, "cpu")
        for op in info.every_op:
            # Sums of small integers are exact; others are rounded at each addition, in an order of gloo's own.
            whole = [torch.arange(8 * info.dp_size).view(-1, 2).remainder(7 + one).bfloat16() for one in range(size)]
            if op is MixedCommOp.BROADCAST:
                for root, world in itertools.product(range(size), (None, dist.group.WORLD)):
                    out = torch.empty_like(whole[rank])
                    how = MixedCommMode.NCCL_ONE, whole[rank], out, world, None, None
                    exchange_with_nccl(info, op, *how, root)
                    assert torch.equal(out, whole[root])
                    compared += 1
                continue
            for inputs in (whole, inputs_of(8 * info.dp_size, size, torch.bfloat16, 5)):
                wanted = expected(info, op, inputs)
                for mode in (MixedCommMode.NCCL_ONE, MixedCommMode.NCCL_TP_DP):
                    out = torch.empty_like(wanted)
                    groups = None, handler.tp_comm_group, handler.dp_comm_group
                    exchange_with_nccl(info, op, mode, inputs[rank], out, *groups)
                    where = f"{op.name} {mode.name} at {info}"
                    assert inputs is not whole or torch.equal(out, wanted), where
                    assert is_rounded_at_most_at_each_addition(info, op, inputs, out), where
                    out[0, 0] += 4 * torch.finfo(out.dtype).eps * sum(one.abs().max() for one in inputs)
                    assert not is_rounded_at_most_at_each_addition(info, op, inputs, out), where
                    compared += 1
    return compared


@program
def every_topology_over_gloo(rank: int, size: int, folder: Path) -> int:
    from cuda_gctx.comm import MixedCommHandler

    dist = initialise_gloo(rank, size, folder)
    compared = compare_topologies(
        size, lambda first, dtype: MixedCommHandler(*numbers_of(first.at(rank)), dtype, "cpu")
    )
    compared += compare_forms_for_nccl(rank, size)
    dist.destroy_process_group()
    return compared


@program
def every_topology_in_threads(_: int, size: int, folder: Path) -> int:
    return compare_in_threads(size, types_of_each=1)


@program
def every_topology_and_type_in_threads(_: int, size: int, folder: Path) -> int:
    return compare_in_threads(size, types_of_each=4)


def compare_in_threads(size: int, types_of_each: int) -> int:
    from cuda_gctx.comm import MixedCommHandler, local_world

    def work(rank: Any) -> int:
        return compare_topologies(
            rank.size,
            lambda first, dtype: MixedCommHandler(
                *numbers_of(first.at(rank.rank)), dtype, "cpu", comm_backend=rank.backend
            ),
            types_of_each,
        )

    compared = 0
    for ranks in range(2, size + 1):
        with local_world(ranks, timeout_s=600) as world:
            compared += world.run(work)[0]
    return compared


class InBlocks:
    """Stands in for the kernels: computes on the addresses of tensors, whose blocks are multiples of 16 bytes."""

    is_of_torch = False

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self.operations = mode.operations
        self.largest = mode.largest
        self.runs = 0

    def run(self, message: Any, sms: int) -> Any:
        import torch

        from cuda_gctx.comm._calls import Plan
        from cuda_gctx.comm._numbers import Numbers

        sizes, dtype, mode = message.sizes, message.x_in.dtype, self._mode
        message = message._replace(x_in=None, x_out=None)
        self.runs += 1
        assert sizes.block_bytes % 16 == 0

        def tensor(address: int, size: int) -> Any:
            if not size:
                return torch.empty(0, 1, dtype=dtype)
            memory = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
            return memory.view(dtype).view(size // sizes.block_bytes, -1)

        class Computed(Plan):
            def launch(self, stream: Any, given: Any) -> None:
                tensors = map(tensor, given, (sizes.in_bytes, sizes.out_bytes))
                mode.run(message._replace(**dict(zip(("x_in", "x_out"), tensors, strict=True))), 0)

        return self.launch(Computed(Numbers(), 0), (message.in_address, message.out_address))

    def launch(self, plan: Any, given: Any) -> Any:
        plan.launch(None, given)
        return plan, given


def keeping_calls() -> Any:
    """Makes new handlers on the CPU keep their calls, as handlers on GPUs do."""
    from cuda_gctx.comm import _handler
    from cuda_gctx.comm._calls import Plans, Turns

    class OneStream(Turns):
        def next(self, handle: int) -> Any:
            return None

    fault = (ctypes.c_uint64 * 1)()

    def make(dtype: Any, device: Any) -> Any:
        return Plans(dtype, device, OneStream(lambda index: 1, 0, 1), ctypes.addressof(fault))

    return mock.patch.object(_handler, "Plans", make)


def not_capturing() -> Any:
    """torch without CUDA has no answer."""
    import torch

    return mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=False)


def tensors_of(shape: tuple[int, ...], size: int, dtype: Any, seed: int) -> list[Any]:
    """An input for each rank, the same in all processes."""
    import torch

    generators = (torch.Generator().manual_seed(100 * seed + rank) for rank in range(size))
    return [(torch.randn(shape, generator=one) * 8).to(dtype) for one in generators]


@program
def any_size(_: int, size: int, folder: Path) -> int:
    """Blocks of any number of bytes, in every topology, operation and mode: three calls of each, which are kept."""
    import random

    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, expected, local_world, run_mixed_comm

    types = torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn

    def work(rank: Any) -> int:
        compared = 0
        topologies = [one for one in TOPOLOGIES if one.world_size == rank.size and one.valid_ops]
        for (number, first), other in itertools.product(enumerate(topologies), (0, 2)):
            chosen = random.Random(f"{number} {other} of {rank.size}")  # the same on all ranks
            dtype = types[(number + rank.size + other) % 4]
            place = numbers_of(first.at(rank.rank))
            handler = MixedCommHandler(*place, dtype, "cpu", comm_backend=rank.backend, timeout_s=600)
            info, modes = handler.para_info, handler._modes._modes
            modes |= {name: InBlocks(mode) for name, mode in modes.items()}
            for op in info.every_op:
                rows = chosen.randrange(1, 4) * (info.dp_size if op.divides else 1)
                shape = (rows, *(chosen.randrange(1, 30) for _ in range(chosen.randrange(3))))
                root = chosen.randrange(rank.size) if op is MixedCommOp.BROADCAST else None
                for name in (None, *(name for name, mode in modes.items() if op in mode.operations)):
                    by_nodes = name is MixedCommMode.HIERARCHICAL
                    how = {"exchanges": 1 if by_nodes else 2, "by_nodes": by_nodes, "root": root}
                    for seed, where in enumerate(("new", "given", "in place")):
                        inputs = tensors_of(shape, rank.size, dtype, seed)
                        wanted = expected(info, op, inputs, **how)
                        x_in = x_out = inputs[rank.rank].clone()
                        if where == "new":
                            x_out = None
                        elif where == "given" or wanted.shape != x_in.shape:
                            x_out = torch.empty_like(wanted)
                        if where == "in place" and op is MixedCommOp.ALLGATHER:
                            x_in = x_out[rows * info.dp_rank :][:rows].copy_(x_in)
                        found = run_mixed_comm(op, handler, x_in, x_out, name, root=root)
                        assert x_out is None or found is x_out
                        assert same_bits(found, wanted), f"{op.name} of {shape}, {dtype}, {name}, {where} at {info}"
                        compared += 1
            assert any(mode.runs for mode in modes.values())
            assert sum(mode.runs for mode in modes.values()) < compared, "no call was kept"
            handler.shutdown()
        return compared

    compared = 0
    for ranks in range(2, size + 1):
        with not_capturing(), keeping_calls(), local_world(ranks, timeout_s=600) as world:
            compared += world.run(work)[0]
    return compared


@program
def rows_of_their_own(rank: int, size: int, folder: Path) -> list[Any]:
    """Gathers and scatters with a number of rows for each rank, in every type, and those that are refused."""
    import random

    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, all_gather_v, expected, reduce_scatter_v

    dist = initialise_gloo(rank, size, folder)
    gloo = MixedCommMode.GLOO
    place = rank, size, rank, size, 0, 1
    compared = 0
    for number, dtype in enumerate((torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn)):
        handler = MixedCommHandler(*place, 1, size, 1, 1, dtype, "cpu")
        if number % 2:
            handler._modes._modes[gloo] = InBlocks(handler._modes[gloo])  # type: ignore[index]
        for seed in range(8):
            chosen = random.Random(f"{number} {seed}")  # the same on all ranks
            counts = [chosen.randrange(7) * chosen.randrange(2) for _ in range(size)]
            if seed < 2:
                counts = [2 * seed] * size
            shape = (sum(counts), *(chosen.randrange(1, 9) for _ in range(chosen.randrange(3))))
            inputs = tensors_of(shape, size, dtype, seed)
            pieces = [one.split(counts)[other] for other, one in enumerate(inputs)]
            summed = expected(handler.para_info, MixedCommOp.REDUCESCATTER, [torch.cat([one] * size) for one in inputs])
            cases = (
                (all_gather_v, pieces[rank], torch.cat(pieces)),
                (reduce_scatter_v, inputs[rank], summed.split(counts)[rank]),
            )
            for call, x, wanted in cases:
                for mode in (None, gloo):
                    out = torch.empty_like(wanted)
                    with not_capturing():
                        assert call(handler, x, counts, out, mode) is out
                        fresh = call(handler, x, counts, mode=mode)
                    for one in (out, fresh):
                        assert same_bits(one, wanted), f"{call.__name__} of {counts}, {shape}, {dtype}, {mode}"
                        assert one.is_contiguous()
                    compared += 1
        handler.shutdown()
    x, every = (torch.ones(rows, 3, dtype=torch.float16) for rows in (2, 2 * size))
    counts = [2] * size
    # The largest number differs from rank to rank.
    of_rank = [2] * (rank + 1) + [3 + rank] * (size - rank - 1)
    with (
        MixedCommHandler(*place, 1, size, 1, 1, torch.float16, "cpu") as dp,
        MixedCommHandler(*place, size, 1, 1, 1, torch.float16, "cpu") as tp,
    ):
        found = {
            "too few": message_of(ValueError, lambda: all_gather_v(dp, x, [2])),
            "other rows": message_of(ValueError, lambda: all_gather_v(dp, x[:1], counts)),
            "negative": message_of(ValueError, lambda: all_gather_v(dp, x, [*counts[1:], -1])),
            "output": message_of(ValueError, lambda: all_gather_v(dp, x, counts, x)),
            "scattered": message_of(ValueError, lambda: reduce_scatter_v(dp, x, counts)),
            "type": message_of(ValueError, lambda: reduce_scatter_v(dp, every, counts, x.float())),
            "ranks differ": message_of(ValueError, lambda: all_gather_v(dp, x, of_rank)),
            "tp": message_of(ValueError, lambda: all_gather_v(tp, x, counts)),
        }
    dist.destroy_process_group()
    return [compared, found]


@program
def an_input_that_changes_at_once(_: int, size: int, folder: Path) -> list[float]:
    """Rank 0 overwrites its tensor as soon as its call returns, before the other ranks sum."""
    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, _reference, local_world, run_mixed_comm

    changed, own = threading.Event(), _reference.rounded_sum
    first: list[threading.Thread] = []

    def later(tensors: Any) -> Any:
        if threading.current_thread() not in first:
            assert changed.wait(600)
        return own(tensors)

    def work(rank: Any) -> float:
        place = rank.rank, size, rank.rank, size, 0, 1
        rest = None, None, None, None, torch.float32, "cpu"
        with MixedCommHandler(*place, *rest, comm_backend=rank.backend) as handler:
            x = torch.full((4, 8), 1.0 + rank.rank)
            if rank.rank == 0:
                first.append(threading.current_thread())
            rank.backend.barrier()
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x, MixedCommMode.GLOO)
            total = float(x.mean())
            if rank.rank == 0:
                x.fill_(100.0)
                changed.set()
            return total

    with mock.patch.object(_reference, "rounded_sum", later), local_world(size, timeout_s=600) as world:
        sums: list[float] = world.run(work)
        return sums


def message_of(kind: type[Exception], function: Callable[[], Any]) -> str:
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"nothing was raised, where a {kind.__name__} was expected")


@program
def refusals(rank: int, size: int, folder: Path) -> dict[str, str]:
    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, run_mixed_comm

    half = torch.float16
    place = rank, size, rank, size, 0, 1
    found = {
        "no group": message_of(RuntimeError, lambda: MixedCommHandler(*place, None, None, None, None, half, "cpu"))
    }
    dist = initialise_gloo(rank, size, folder)
    found |= {
        "dtype": message_of(ValueError, lambda: MixedCommHandler(*place, None, None, None, None, torch.float64, "cpu")),
        "dtypes": message_of(
            ValueError,
            lambda: MixedCommHandler(*place, None, None, None, None, (half, torch.bfloat16)[rank], "cpu"),
        ),
        "place": message_of(
            ValueError, lambda: MixedCommHandler(0, 1 + size, 0, 1 + size, 0, 1, None, None, None, None, half, "cpu")
        ),
        "topology": message_of(
            ValueError,
            lambda: MixedCommHandler(*place, 1 if rank else size, None, None, None, half, "cpu"),
        ),
        "grid": message_of(
            ValueError, lambda: MixedCommHandler(*place, None, None, None, None, half, "cpu", grid_size=4)
        ),
    }
    handler = MixedCommHandler(*place, None, None, None, None, half, "cpu")
    call, op = run_mixed_comm, MixedCommOp.ALLREDUCE
    x = torch.ones(4, 8, dtype=half)
    found |= {
        "uneven": message_of(ValueError, lambda: call(op, handler, torch.ones(4 + rank, 8, dtype=half))),
        "other dtype": message_of(ValueError, lambda: call(op, handler, x.float())),
        "not contiguous": message_of(ValueError, lambda: call(op, handler, x.t())),
        "wrong output": message_of(ValueError, lambda: call(op, handler, x, x[:2])),
        "op": message_of(ValueError, lambda: call(MixedCommOp.ALLGATHER, handler, x)),
        "mode": message_of(ValueError, lambda: call(op, handler, x, None, MixedCommMode.ONE_EXCHANGE)),
    }
    found |= {
        "nvshmem": message_of(RuntimeError, handler.init_nvshmem),
        "mapping": message_of(RuntimeError, lambda: handler.map_tensors(x)),
    }
    two_nodes = MixedCommHandler(rank, size, 0, 1, rank, size, None, None, None, None, half, "cpu")
    modes = [MixedCommMode.HIERARCHICAL, MixedCommMode.GLOO]
    x_uneven = torch.ones(4 + rank, 8, dtype=half)
    found |= {
        "uneven nodes": message_of(ValueError, lambda: call(op, two_nodes, x_uneven, None, modes[0])),
        "different modes": message_of(ValueError, lambda: call(op, two_nodes, x, None, modes[rank])),
        "different roots": message_of(ValueError, lambda: call(MixedCommOp.BROADCAST, two_nodes, x, root=rank)),
        "no root": message_of(ValueError, lambda: call(MixedCommOp.BROADCAST, two_nodes, x)),
        "no such root": message_of(ValueError, lambda: call(MixedCommOp.BROADCAST, two_nodes, x, root=size)),
        "a root": message_of(ValueError, lambda: call(op, two_nodes, x, root=0)),
        "broadcast by nodes": message_of(
            ValueError, lambda: call(MixedCommOp.BROADCAST, two_nodes, x, None, modes[0], root=0)
        ),
        "no nodes": message_of(ValueError, lambda: call(op, handler, x, None, modes[0])),
    }
    two_nodes.shutdown()
    # What was refused has left nothing behind: the ranks still meet.
    assert torch.equal(call(op, handler, x), x * size)
    handler.checkpoint_prepare()
    found["released"] = message_of(RuntimeError, lambda: call(op, handler, x))

    class Wrong:
        def Get_rank(self) -> int:
            return rank

        def Get_size(self) -> int:
            return size + 1

    found["restored elsewhere"] = message_of(ValueError, lambda: handler.checkpoint_restore(Wrong()))
    from cuda_gctx.comm._backends import TorchBackend

    handler.checkpoint_restore(TorchBackend())
    assert torch.equal(call(op, handler, x), x * size)
    handler.checkpoint_prepare()
    handler.checkpoint_restore(dist.group.WORLD)
    assert torch.equal(call(op, handler, x), x * size)
    handler.shutdown()
    found["closed"] = message_of(RuntimeError, lambda: call(op, handler, x))
    dist.destroy_process_group()
    return found


@program
def groups_of_a_job(rank: int, size: int, folder: Path) -> list[int]:
    """Two handlers in a job, each of a group of its processes, next to each other and at other times."""
    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, expected, run_mixed_comm

    dist = initialise_gloo(rank, size, folder)
    half = size // 2
    number, place = divmod(rank, half)
    group = dist.new_group([number * half + one for one in range(half)], use_local_synchronization=True)
    if number:
        time.sleep(0.5)  # the groups do not wait for each other
    inputs = inputs_of(4 * half, size, torch.bfloat16, seed=1)
    compared = 0
    for grids in ((half, 1, 1, 1), (half // 2, 2, 1, 1)):
        handler = MixedCommHandler(*(place, half, place, half, 0, 1), *grids, torch.bfloat16, "cpu", comm_backend=group)
        mine = inputs[number * half : (number + 1) * half]
        for op in handler.valid_op_list:
            out = run_mixed_comm(op, handler, mine[place])
            assert same_bits(out, expected(handler.para_info, op, mine, exchanges=2))
            compared += 1
        handler.shutdown()
    with MixedCommHandler.from_process_group(None, torch.bfloat16, device="cpu", group=group) as handler:
        info = handler.para_info
        assert (info.world_rank, info.world_size, info.tp_size, info.dp_size, info.inter_size) == (
            place,
            half,
            half,
            1,
            1,
        )
    how: dict[str, Any] = {"device": "cpu", "dp_size": 2, "timeout_s": 100.0}
    with (
        mock.patch.object(dist, "new_group", wraps=dist.new_group) as made,
        MixedCommHandler.from_process_group(None, torch.bfloat16, **how) as handler,
    ):
        assert {one.kwargs["timeout"] for one in made.call_args_list} == {timedelta(seconds=100)}
        # All of the job.
        info = handler.para_info
        assert (info.world_rank, info.world_size, info.tp_size, info.dp_size) == (rank, size, half, 2)
        out = run_mixed_comm(MixedCommOp.ALLREDUCE_ALLGATHER, handler, inputs[rank])
        assert same_bits(out, expected(info, MixedCommOp.ALLREDUCE_ALLGATHER, inputs))
    os.environ["CUDA_GCTX_HOST"] = f"host {rank // half}"
    with MixedCommHandler.from_process_group(None, torch.bfloat16, device="cpu", tp_size=half) as handler:
        info = handler.para_info
        assert (info.inter_size, info.local_tp_size, info.local_dp_size, info.inter_dp_size) == (2, half, 1, 2)
        op = MixedCommOp.ALLREDUCE_ALLGATHER
        out = run_mixed_comm(op, handler, inputs[rank], None, MixedCommMode.HIERARCHICAL)
        assert same_bits(out, expected(info, op, inputs, by_nodes=True))
    os.environ["CUDA_GCTX_HOST"] = f"host {rank % 2}"
    make = lambda **options: MixedCommHandler.from_process_group(None, torch.bfloat16, device="cpu", **options)  # noqa: E731
    assert "the ranks of a host must be consecutive" in message_of(ValueError, make)
    assert "tp_size must be the same on all ranks" in message_of(ValueError, lambda: make(tp_size=1 + rank))
    dist.destroy_process_group()
    return [compared]


@program
def exchanges_of_nodes(rank: int, size: int, folder: Path) -> int:
    """Pieces go between nodes through sends and receives of torch, through gloo, which has the same."""
    from types import SimpleNamespace

    from cuda_gctx.comm import ParallelInfo
    from cuda_gctx.comm._backends import TorchBackend
    from cuda_gctx.comm._nodes import NcclTransport
    from cuda_gctx.comm._protocol import region_of

    dist = initialise_gloo(rank, size, folder)
    moved = 0
    alone, of_pair = (0, 1, rank, size), (rank % 2, 2, rank // 2, size // 2)
    for place, grids in (
        (alone, (1, 1, size, 1)),
        (alone, (1, 1, 1, size)),
        (alone, (1, 1, 2, size // 2)),
        (of_pair, (2, 1, size // 2, 1)),
        (of_pair, (1, 2, 1, size // 2)),
    ):
        info = ParallelInfo.of(rank, size, *place, *grids)
        layout = region_of(info, 4096)
        transport = NcclTransport(TorchBackend(), info, "cpu", layout, dist.group.WORLD)
        for op in info.valid_ops:
            plan, piece_bytes = info.node_plan(op), 16 * info.dp_size
            pieces = list(plan.chunk_of_node)
            for piece in set(pieces):
                begin = layout.outgoing(piece) + layout.HEADER_BYTES
                transport.memory[begin : begin + piece_bytes] = 16 * rank + piece
            functions, spoiled = [], []
            steps = SimpleNamespace(call=functions.append)
            exchange = {"piece_bytes": piece_bytes, "piece": pieces}
            transport.add(steps, None, exchange, 1, 0, lambda *span, spoiled=spoiled: spoiled.append(span))
            [function] = functions
            function()
            # What is sent is spoiled before, if this rank has a fault.
            base = transport.regions[0] + layout.HEADER_BYTES
            assert spoiled == [(base + layout.outgoing(piece), piece_bytes) for piece in sorted(set(pieces))]
            for node, other in enumerate(info.inter_ranks()):
                if other == rank:
                    continue
                begin = layout.incoming(node) + layout.HEADER_BYTES
                theirs = info.at(other).node_plan(op).chunk_of_node[info.inter_rank]
                found = transport.memory[begin - 1 : begin + piece_bytes + 1].tolist()
                assert found == [0, *[16 * other + theirs] * piece_bytes, 0], (op, node, found)
                moved += 1
            transport.memory.zero_()
        transport.close()
    dist.destroy_process_group()
    return moved


@program
def compiled(rank: int, size: int, folder: Path) -> list[int]:
    """torch.compile keeps calls in one graph, for shapes that change too, and with outputs that were there before."""
    import torch

    from cuda_gctx.comm import (
        MixedCommHandler,
        MixedCommMode,
        MixedCommOp,
        all_gather_v,
        expected,
        reduce_scatter_v,
        run_mixed_comm,
    )

    dist = initialise_gloo(rank, size, folder)
    place = rank, size, rank, size, 0, 1
    handler = MixedCommHandler(*place, 1, size, 1, 1, torch.bfloat16, "cpu")
    gather, scatter = MixedCommOp.ALLGATHER, MixedCommOp.REDUCESCATTER
    graphs: list[list[str]] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes if "mixed_comm" in str(node.target)])
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    @torch.compile(fullgraph=True, backend=backend, dynamic=True)
    def program(x: Any, out: Any) -> Any:
        every = run_mixed_comm(gather, handler, x * 2, mode=MixedCommMode.GLOO)
        run_mixed_comm(scatter, handler, every, out)
        return out + 1

    compared = 0
    for rows in (3, 5):
        inputs = inputs_of(rows, size, torch.bfloat16, seed=rows)
        every = expected(handler.para_info, gather, [2 * one for one in inputs])
        wanted = expected(handler.para_info, scatter, [every] * size) + 1
        out = torch.empty_like(inputs[rank])
        assert same_bits(program(inputs[rank], out), wanted)
        assert same_bits(out + 1, wanted)
        compared += 1
    assert graphs == [["cuda_gctx.mixed_comm", "cuda_gctx.mixed_comm_out"]], graphs
    broadcast = MixedCommOp.BROADCAST
    from_last = torch.compile(
        lambda x: run_mixed_comm(broadcast, handler, x, root=size - 1), fullgraph=True, backend=backend
    )
    assert same_bits(from_last(inputs[rank]), inputs[-1])
    whole = torch.compile(lambda x: run_mixed_comm(gather, handler, x), fullgraph=True, backend="aot_eager")
    assert same_bits(whole(inputs[rank]), expected(handler.para_info, gather, inputs))
    counts = [1 + 2 * one for one in range(size)]

    def uneven(x: Any, out: Any) -> Any:
        every = all_gather_v(handler, x + 1, counts)
        return reduce_scatter_v(handler, every, counts), all_gather_v(handler, x, counts, out)

    rows = torch.arange(2 * counts[rank]).view(-1, 2).bfloat16()
    out = torch.empty(sum(counts), 2, dtype=torch.bfloat16)
    for found in (uneven(rows, out), torch.compile(uneven, fullgraph=True, backend="aot_eager")(rows, out.clone())):
        assert same_bits(found[0], (rows + 1) * size)
        assert same_bits(found[1], torch.cat([torch.arange(2 * count).view(-1, 2).bfloat16() for count in counts]))
    with_gradient = inputs[rank].clone().requires_grad_()
    words = "x_in requires grad"
    assert words in message_of(ValueError, lambda: run_mixed_comm(gather, handler, with_gradient))
    assert words in message_of(Exception, lambda: whole(with_gradient))
    weight = torch.ones(4, requires_grad=True, dtype=torch.bfloat16)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(x: Any) -> Any:
        product = x * weight.sum()
        run_mixed_comm(gather, handler, product.detach())
        return (product * run_mixed_comm(scatter, handler, run_mixed_comm(gather, handler, x)).sum()).sum()

    loss(inputs[rank]).backward()
    scattered = expected(handler.para_info, scatter, [whole(inputs[rank])] * size).sum()
    assert torch.allclose(weight.grad, (inputs[rank] * scattered).sum(), rtol=0.1)
    with torch.no_grad():
        assert same_bits(whole(with_gradient), expected(handler.para_info, gather, inputs))
    wrong = torch.compile(lambda x: run_mixed_comm(gather, handler, x), fullgraph=True, backend="aot_eager")
    words = "x_in must have dtype torch.bfloat16, not torch.float32"
    assert words in message_of(ValueError, lambda: wrong(inputs[rank].float()))
    assert "no longer" in message_of(
        RuntimeError, lambda: torch.ops.cuda_gctx.mixed_comm(inputs[rank], torch.zeros(1), 10**9, 1, -1, -1)
    )
    handler.shutdown()
    dist.destroy_process_group()
    return [compared]


@program
def compiled_unused(rank: int, size: int, folder: Path) -> list[int]:
    """torch.compile keeps calls whose outputs a rank does not use, each of equal ones, in their order."""
    import random

    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommOp, run_mixed_comm

    dist = initialise_gloo(rank, size, folder)
    handler = MixedCommHandler(rank, size, rank, size, 0, 1, 1, size, 1, 1, torch.float32, "cpu")
    gather, scatter = MixedCommOp.ALLGATHER, MixedCommOp.REDUCESCATTER
    compared = 0
    for seed, backend in enumerate(["aot_eager", "inductor"] * 2):
        same, own = random.Random(seed), random.Random(100 * seed + rank)
        # All ranks make these calls; each uses, or looks at, some of the outputs alone.
        steps = [(same.choice(["gather", "scatter", "out", "twice"]), own.random() < 0.4) for _ in range(5)]

        def program(x: Any, unread: Any, steps: Any = steps) -> Any:
            total = x * 1
            for what, is_used in steps:
                if what == "out":
                    run_mixed_comm(gather, handler, total, unread)
                    continue
                found = run_mixed_comm(gather if what != "scatter" else scatter, handler, total.repeat(size, 1))
                if what == "twice":
                    found = run_mixed_comm(gather, handler, total.repeat(size, 1))
                total = total + (0 * found.sum() if is_used else 0)
            return run_mixed_comm(gather, handler, total)

        torch._dynamo.reset()
        x = torch.full((2, 4), float(rank + seed))
        unread = torch.zeros(2 * size, 4)
        done = torch.compile(program, fullgraph=True, backend=backend)(x, unread)
        wanted = torch.cat([torch.full((2, 4), float(other + seed)) for other in range(size)])
        assert torch.equal(done, wanted), (seed, done)
        assert torch.equal(unread, wanted) or not any(what == "out" for what, _ in steps)
        compared += 1
    handler.shutdown()
    dist.destroy_process_group()
    return [compared]


@program
def autotune(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """A table is measured, is the same on all ranks, is followed, and comes back from its file."""
    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommMode, MixedCommOp, TuningTable, run_mixed_comm

    dist = initialise_gloo(rank, size, folder)
    place = rank, size, rank, size, 0, 1
    handler = MixedCommHandler(*place, None, size, None, None, torch.float16, "cpu", use_autotune=True)
    op, auto = MixedCommOp.ALLGATHER, MixedCommMode.AUTOTUNE
    x = torch.full((2, 8), float(rank), dtype=torch.float16)
    wanted = torch.arange(size).half().repeat_interleave(2).view(-1, 1).expand(-1, 8)
    before = handler.select_autotune_mode(op, x).name
    assert torch.equal(run_mixed_comm(op, handler, x, None, auto), wanted)
    table = handler.run_autotune(message_bytes=[1024, 4096, 4100], rounds=1)
    assert torch.equal(run_mixed_comm(op, handler, x, None, auto), wanted)
    table.save(folder / f"table-{rank}.json")
    other = MixedCommHandler(*place, None, size, None, None, torch.float16, "cpu")
    other.use_tuning_table(TuningTable.load(folder / f"table-{rank}.json"))
    assert other.tuning_table == table
    assert torch.equal(run_mixed_comm(op, other, x), wanted)
    nodes = MixedCommHandler(rank, size, 0, 1, rank, size, None, None, 1, size, torch.float16, "cpu")
    by_nodes = nodes.run_autotune(message_bytes=[1024], rounds=1)
    nodes.shutdown()
    lone = TuningTable(table.description, table.rankings[: 1 + rank])
    found = {
        "before": before,
        "after": handler.select_autotune_mode(op, x).name,
        "table": table.to_json(),
        "by nodes": {case.op.name: sorted(one.mode.name for one in ranking) for case, ranking in by_nodes.rankings},
        "different": message_of(ValueError, lambda: other.use_tuning_table(lone)),
        "sizes": message_of(ValueError, lambda: other.run_autotune(message_bytes=[8])),
    }
    handler.shutdown()
    other.shutdown()
    dist.destroy_process_group()
    return found


@program
def absences(rank: int, size: int, folder: Path) -> list[str]:
    """The last rank stays away from a shutdown, and then from a constructor: the others wait for a limited time."""
    import torch

    from cuda_gctx.comm import MixedCommHandler, MixedCommOp, _arguments, run_mixed_comm

    dist = initialise_gloo(rank, size, folder)
    place = rank, size, rank, size, 0, 1, None, None, None, None
    others_are_done = folder / "done"
    handler = MixedCommHandler(*place, torch.float16, "cpu", timeout_s=1.0)
    x = torch.ones(4, 8, dtype=torch.float16)
    assert torch.equal(run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x), x * size)
    if rank == size - 1:
        while not others_are_done.exists():
            time.sleep(0.05)
        os._exit(0)
    _arguments.HOST_S = 1.0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        handler.shutdown()
        handler.shutdown()
    found = [
        *[str(one.message) for one in warned],
        message_of(RuntimeError, lambda: run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x)),
        message_of(RuntimeError, lambda: MixedCommHandler(*place, torch.float16, "cpu", timeout_s=1.0)),
    ]
    assert dist.is_initialized()
    others_are_done.touch()
    print(json.dumps(found), flush=True)
    os._exit(0)


@program
def dying(rank: int, size: int, folder: Path) -> None:
    """One rank dies during a call, as in the case of GPUs."""
    import missing_ranks

    ranks = missing_ranks.Rank(rank, 0, f"{folder}/store")
    print(json.dumps(missing_ranks.work_of(ranks, "GLOO, dies during a call", None)), flush=True)
    os._exit(0)


@program
def known_calls(rank: int, size: int, folder: Path) -> int:
    """What compiled code sees of torch's tensors is what their attributes say."""
    import torch

    from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
    from cuda_gctx.comm._calls import Plan, Plans, Turns
    from cuda_gctx.comm._message import Messages
    from cuda_gctx.comm._numbers import Numbers

    launched: list[Any] = []

    class Noted(Plan):
        def launch(self, stream: Any, given: Any) -> None:
            launched.append(given)

    class OneStream(Turns):
        def next(self, handle: int) -> Any:
            return None

    fault = (ctypes.c_uint64 * 1)()
    bf16, cpu, op, mode = torch.bfloat16, torch.device("cpu"), MixedCommOp.ALLREDUCE, MixedCommMode.ONE_EXCHANGE
    calls = Plans(bf16, cpu, OneStream(lambda index: 1, 0, 1), ctypes.addressof(fault))
    messages = Messages(ParallelInfo.of(0, 2, 0, 2, 0, 1, 2, 1, 1, 1), bf16, cpu, None, reaches_all=True)

    def ones(*shape: int, **options: Any) -> Any:
        return torch.ones(*shape, **({"dtype": bf16} | options))

    def keep(x_in: Any, x_out: Any) -> None:
        message = messages.of(op, x_in, x_out, is_checked=False)
        given = x_in.data_ptr(), x_out.data_ptr()
        calls.keep(op, mode, message, has_output=True, launched=(Noted(Numbers(), 0), given))

    def run(x_in: Any, x_out: Any, mode: Any = mode, op: Any = op, is_checked: bool = False) -> Any:
        before = len(launched)
        done = calls.run(op, x_in, x_out, mode, None, is_checked)
        assert len(launched) - before == (done is not None)
        return done

    x, out, many = ones(4, 8), ones(4, 8), ones(100)
    assert run(x, out) is None
    keep(x, out)
    assert run(x, x) is None
    keep(x, x)
    keep(ones(1, 32), ones(1, 32))
    right = {
        "the same": (x, out),
        "in place": (x, x),
        "parts of others": (ones(9, 8)[3:7], many[8:40].view(4, 8)),
        "one row": (ones(5, 32)[2:3], ones(1, 32)),
        "a stride of one row": (ones(32, 1).t(), ones(1, 32)),
    }
    for name, (x_in, x_out) in right.items():
        assert x_in.is_contiguous(), name
        assert run(x_in, x_out) is x_out, name
        assert launched[-1] == (x_in.data_ptr(), x_out.data_ptr()), name
    made = run(x, None)
    assert (made.shape, made.dtype) == (x.shape, bf16)
    assert launched[-1] == (x.data_ptr(), made.data_ptr())
    wrong = {
        "type": ones(4, 8, dtype=torch.float16),
        "size of the type": ones(4, 8, dtype=torch.float32),
        "device": ones(4, 8, device="meta"),
        "layout": ones(8, 4).t(),
        "column": ones(32, 5)[:, :1].t(),
        "shape": ones(8, 8),
        "dimensions": ones(4, 8, 1),
        "more dimensions": ones(4, 8, *[1] * 20),
        "alignment": many[1:33].view(4, 8),
        "class": torch.nn.Parameter(x, requires_grad=False),
        "sparse": x.to_sparse(),
    }
    for name, tensor in wrong.items():
        assert run(tensor, out) is None, name
        assert run(x, tensor) is None, name
    assert run(many[:32].view(4, 8), many[8:40].view(4, 8)) is None
    assert [run(x, out, mode=other) for other in (None, MixedCommMode.TWO_EXCHANGE, 0)] == [None] * 3
    assert [run(x, out, op=other) for other in (MixedCommOp.ALLGATHER, 0, "ALLREDUCE")] == [None] * 3
    assert run(wrong["type"], out, is_checked=True) is out
    with_gradient = ones(4, 8, requires_grad=True)
    assert "x_in requires grad" in message_of(ValueError, lambda: run(with_gradient, out))
    assert "x_out requires grad" in message_of(ValueError, lambda: run(x, with_gradient))
    with torch.no_grad():
        assert run(with_gradient, out) is out
        keep(torch.nn.Parameter(x), out)
        assert run(torch.nn.Parameter(x), out) is out
    many_dimensions = ones(4, 8, *[1] * 20), ones(4, 8, *[1] * 20)
    keep(*many_dimensions)
    assert run(*many_dimensions) is many_dimensions[1]
    fault[0] = 1
    assert run(x, out) is None
    fault[0] = 0
    calls.forget(by_address=True)
    keep(x, out)
    assert run(x, out) is out
    assert [run(x, None), run(x, ones(4, 8)), run(ones(4, 8), out)] == [None] * 3
    return len(launched)


@program
def hanging(rank: int, size: int, folder: Path) -> None:
    """Two threads that wait for nobody, once they have left a file."""
    has_begun = threading.Event()

    def wait_in_a_thread() -> None:
        has_begun.set()
        threading.Event().wait()

    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    has_begun.wait()
    (folder / "hangs").touch()
    threading.Event().wait()


@program
def importing(rank: int, size: int, folder: Path) -> list[str]:
    """Which frameworks are loaded by importing the package and by looking at all that needs none."""
    import cuda_gctx
    from cuda_gctx import comm

    comm.ParallelInfo.of(0, 2, 0, 2, 0, 1)
    assert comm.local_world(2).run(lambda rank: rank.backend.bcast(rank.rank, 1)) == [1, 1]
    assert comm.run_mixed_comm.is_compute_capability_supported(90)
    assert cuda_gctx.__version__
    return sorted({name.split(".")[0] for name in sys.modules} & {"torch", "numpy", "cupy", "numba", "cuda"})


def open_files(name: str) -> int:
    """The open descriptors of the kinds that an exchange makes; frameworks and drivers keep others for themselves."""
    kinds = ("socket:", f"/memfd:{name}")
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(kinds)
        except FileNotFoundError:
            continue  # that of the folder itself
    return count


@program
def descriptors(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Files without a name, passed between processes: each rank reads what every other one has written."""
    from cuda_gctx.comm._backends import TorchBackend
    from cuda_gctx.comm._descriptors import exchange_descriptors

    class Silent(TorchBackend):
        """The last rank answers until sockets are connected, and then sends nothing."""

        def barrier(self) -> None:
            super().barrier()
            if self.Get_rank() == self.Get_size() - 1:
                raise KeyboardInterrupt

    dist = initialise_gloo(rank, size, folder)
    own = os.memfd_create("rank")
    os.write(own, f"of rank {rank}".encode())
    # What torch opens for its first collectives, of CUDA too where there is a GPU, is open before.
    TorchBackend().barrier()
    TorchBackend().bcast(rank, 0)
    before = open_files("rank")
    received = exchange_descriptors(TorchBackend(), own, 60)
    texts = [os.pread(received[peer], 64, 0).decode() for peer in sorted(received)]
    for one in received.values():
        os.close(one)
    try:
        exchange_descriptors(Silent(), own, 0.5)
        outcome = "nothing was raised"
    except KeyboardInterrupt:
        outcome = "stayed away"
    except (TimeoutError, ConnectionError) as error:
        outcome = f"{type(error).__name__}: {error}"
    left_open = open_files("rank") - before
    dist.barrier()
    dist.destroy_process_group()
    return {"texts": texts, "outcome": outcome, "left open": left_open}


def run(name: str, rank: int, size: int, folder: Path, limit: float) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(limit, exit=True)
    print(json.dumps(PROGRAMS[name](rank, size, folder)))


def serve(limit: float) -> None:
    # For the ranks: what torch.compile() imports takes as long as torch itself.
    import torch._dynamo
    import torch.distributed  # noqa: F401

    from cuda_gctx.comm import MixedCommHandler  # noqa: F401

    # When a rank ends, it looks for no garbage in what is loaded now: half of its CPU time.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        name, processes, size, folder = json.loads(line)
        ranks = []
        for rank in range(processes):
            pid = os.fork()
            if pid == 0:
                for descriptor, kind in ((1, "out"), (2, "err")):
                    os.dup2(os.open(f"{folder}/{rank}.{kind}", os.O_WRONLY | os.O_CREAT), descriptor)
                run(name, rank, size, Path(folder), limit)
                if name not in ENDING:
                    sys.stdout.flush()
                    os._exit(0)
                return
            ranks.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        print(json.dumps(codes), flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["serve", limit]:
            serve(float(limit))
        case [name, rank, size, folder, limit]:
            run(name, int(rank), int(size), Path(folder), float(limit))


if __name__ == "__main__":
    main()
