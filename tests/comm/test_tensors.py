"""Mapped tensors: which address each rank gives to the others, what is refused, and that the kernel uses it."""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm import _tensors as tensors
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._memory import Identity, process_identity
from cuda_gctx.comm._protocol import Element, Geometry

from .cpu_kernels import Ranks, build

DEVICE: Any = SimpleNamespace(device_id=0, context=SimpleNamespace(current=nullcontext))
ALLOCATION = 1 << 20


def on_all(size: int, work: Any) -> list[Any]:
    """What each of several ranks returns, or the exception that it raises."""
    found: list[Any] = [None] * size

    def run(backend: LocalBackend) -> None:
        rank = backend.Get_rank()
        try:
            found[rank] = work(rank, backend)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(one,)) for one in LocalBackend.of(size, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def mapped(rank: int, processes: list[str]) -> tensors.MappedTensors:
    identities = [Identity("host", process, 0, "bus", 0) for process in processes]
    return tensors.MappedTensors(DEVICE, identities, rank)


def test_threads_reach_tensors_where_they_are() -> None:
    def work(rank: int, backend: LocalBackend) -> Any:
        own = mapped(rank, [process_identity()] * 2)
        own.add(backend, [(4096 * (rank + 1), 512)])
        return own.find(4096 * (rank + 1) + 16, 16)

    assert on_all(2, work) == [(4112, 4112), (8208, 8208)]


def test_what_is_mapped_or_unmapped_later_is_found_or_not() -> None:
    def work(rank: int, backend: LocalBackend) -> Any:
        own, found = mapped(rank, [process_identity()] * 2), []
        begin = 4096 * (rank + 1)
        for _ in range(2):
            found.append(own.find(begin, 16))
            own.add(backend, [(begin, 512)])
            found += [own.find(begin, 16), own.find(begin, 16), own.find(begin, 513)]
            own.remove(begin)
        return [*found, own.find(begin, 16)]

    assert on_all(2, work) == [[None, (begin, begin), (begin, begin), None] * 2 + [None] for begin in (4096, 8192)]


class Aliased:
    """Memory that is mapped twice, as by two processes."""

    def __init__(self, size: int) -> None:
        file = os.memfd_create("tensor")
        os.ftruncate(file, size)
        self._maps = [mmap.mmap(file, size) for _ in range(2)]
        os.close(file)
        self.own, self.peers = (np.frombuffer(one, np.uint16) for one in self._maps)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_kernel_gives_each_rank_the_address_under_which_it_sees_the_tensor(tmp_path: Path) -> None:
    info, op = ParallelInfo.of(0, 2, 0, 2, 0, 1), MixedCommOp.ALLREDUCE
    geometry = Geometry(2, 4096, 4096)
    library = build(tmp_path, info, op, geometry, element=Element.FLOAT16)
    ranks = Ranks(info, op, library, geometry)
    inputs, outputs = ([Aliased(4096) for _ in range(2)] for _ in range(2))
    calls = []
    for rank in range(2):
        inputs[rank].own[:] = np.full(2048, rank + 1, np.float16).view(np.uint16)
        calls.append(ranks.call(rank, MixedCommMode.TWO_EXCHANGE, inputs[rank].own, outputs[rank].own, grid=2))
        two = ranks._kept[-1]
        # What a rank knows of its own tensor is of no use to others: only its peer is given the alias.
        two.input_at[:], two.output_at[:] = (0, 0), (0, 0)
        two.input_at[1 - rank] = inputs[rank].peers.ctypes.data
        two.output_at[1 - rank] = outputs[rank].peers.ctypes.data
    assert ranks.run(calls, seed=1) == ""
    for rank in range(2):
        assert ranks.fault(rank) == (0, 0)
        assert (outputs[rank].own.view(np.float16) == 3).all()
