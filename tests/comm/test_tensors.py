"""Mapped tensors: which address each rank gives to the others, what is refused, and that the kernel uses it."""

from __future__ import annotations

import ctypes
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

from cuda_gctx import CUDAError
from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm import _tensors as tensors
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._memory import Identity
from cuda_gctx.comm._protocol import Geometry

from .cpu_kernels import Ranks, build

DEVICE: Any = SimpleNamespace(device_id=0, context=SimpleNamespace(current=nullcontext))
ALLOCATION = 1 << 20


class Driver:
    """Allocations of 1 MiB, as several processes see them: each opens one at an address of its own."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.opened: list[int] = []
        self.closed: list[int] = []
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: Any) -> Any:
        if name == self.refused:
            raise CUDAError(f"{name} failed: refused", code=1, name="CUDA_ERROR_INVALID_VALUE", call=name)
        if name == "cuMemGetAddressRange":
            return arguments[0] // ALLOCATION * ALLOCATION, ALLOCATION
        if name == "cuIpcGetMemHandle":
            return Handle(int(arguments[0]).to_bytes(64, "little"))
        if name == "cuIpcOpenMemHandle":
            base = int.from_bytes(ctypes.string_at(arguments[0].getPtr(), 64), "little")
            with self._lock:
                self.opened.append(base)
                return base + (len(self.opened) << 40)
        assert name == "cuIpcCloseMemHandle", name
        self.closed.append(arguments[0])
        return None


class Handle:
    def __init__(self, content: bytes = bytes(64)) -> None:
        self._buffer = ctypes.create_string_buffer(content, 64)

    def getPtr(self) -> int:
        return ctypes.addressof(self._buffer)


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


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(tensors, "call", lambda *arguments: fake.call(*arguments))
    flags = SimpleNamespace(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS=1)
    monkeypatch.setattr(tensors, "driver", lambda: SimpleNamespace(CUipcMemHandle=Handle, CUipcMem_flags=flags))
    return fake


def mapped(rank: int, processes: list[int]) -> tensors.MappedTensors:
    identities = [Identity("host", process, 0, "bus", 0) for process in processes]
    return tensors.MappedTensors(DEVICE, identities, rank)


ELSEWHERE = [os.getpid() + 1, os.getpid() + 2, os.getpid() + 3]


def test_each_rank_learns_where_the_others_see_its_tensors(driver: Driver) -> None:
    # Both tensors of a rank are in one allocation, which the others open once.
    begins = [(1 + rank) * ALLOCATION + 512 for rank in range(3)]

    def work(rank: int, backend: LocalBackend) -> Any:
        own = mapped(rank, ELSEWHERE)
        own.add(backend, [(begins[rank], 256), (begins[rank] + 1024, 64)])
        seen = own.find(begins[rank] + 1024 + 16, 48), own.find(begins[rank] + 128, 128)
        outside = own.find(begins[rank] + 128, 129), own.find(begins[rank] - 16, 16)
        own.close()
        return *seen, outside, own.find(begins[rank], 1)

    found = on_all(3, work)
    for rank, (second, first, outside, after) in enumerate(found):
        inner = [(begins[rank] + 1024 + 16) % ALLOCATION, (begins[rank] + 128) % ALLOCATION]
        for seen, place in zip((second, first), inner, strict=True):
            assert all(address % ALLOCATION == place for address in seen)
            # Opened in another process each time; this fake opens a rank's own allocation as well.
            assert len({address >> 40 for address in seen}) == 3
        assert outside == (None, None)
        assert after is None
    assert len(driver.opened) == 9
    assert len(driver.closed) == 9


def test_what_is_unmapped_is_not_found_and_closed_once_nothing_else_needs_it(driver: Driver) -> None:
    def work(rank: int, backend: LocalBackend) -> Any:
        begin = (1 + rank) * ALLOCATION
        own = mapped(rank, ELSEWHERE[:2])
        own.add(backend, [(begin, 256), (begin + 512, 256)])
        own.remove(begin)
        backend.barrier()
        first = own.find(begin, 16), own.find(begin + 512, 16) is not None, list(driver.closed)
        backend.barrier()
        own.remove(begin + 512)
        with pytest.raises(ValueError, match="no tensor at 0x"):
            own.remove(begin)
        return first

    assert on_all(2, work) == [(None, True, [])] * 2
    assert len(driver.closed) == len(driver.opened) == 4


def test_threads_reach_tensors_where_they_are(driver: Driver) -> None:
    def work(rank: int, backend: LocalBackend) -> Any:
        own = mapped(rank, [os.getpid()] * 2)
        own.add(backend, [(4096 * (rank + 1), 512)])
        return own.find(4096 * (rank + 1) + 16, 16)

    assert on_all(2, work) == [(4112, 4112), (8208, 8208)]
    assert driver.opened == []


@pytest.mark.parametrize("refused", ["cuIpcGetMemHandle", "cuIpcOpenMemHandle"])
def test_what_one_rank_cannot_map_is_an_error_on_all(refused: str, driver: Driver) -> None:
    def work(rank: int, backend: LocalBackend) -> None:
        driver.refused = refused
        mapped(rank, ELSEWHERE).add(backend, [(ALLOCATION, 256)])

    for error in on_all(3, work):
        assert isinstance(error, RuntimeError)
        assert "tensors cannot be mapped: rank 0: " in str(error)
        assert f"{refused} failed" in str(error)


def test_every_rank_gives_as_many_tensors(driver: Driver) -> None:
    found = on_all(2, lambda rank, backend: mapped(rank, ELSEWHERE[:2]).add(backend, [(ALLOCATION, 16)] * (1 + rank)))
    assert all("the number of tensors must be the same on all ranks" in str(error) for error in found)


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
    library = build(tmp_path, info, op, geometry, is_bfloat16=False)
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
    assert ranks.run(calls, seed=1)
    for rank in range(2):
        assert ranks.fault(rank) == (0, 0)
        assert (outputs[rank].own.view(np.float16) == 3).all()
