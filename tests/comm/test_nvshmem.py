"""NVSHMEM: initialised once, with one identifier on all ranks and without multicast, or refused with the reason."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_gctx.comm import ParallelInfo
from cuda_gctx.comm import _nodes as nodes
from cuda_gctx.comm import _nvshmem as nvshmem
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._protocol import region_of

DEVICE: Any = SimpleNamespace(device_id=0, compute_capability=(9, 0), context=SimpleNamespace(current=nullcontext))


class Processes:
    """A backend of threads that looks like one of processes."""

    def __init__(self, local: LocalBackend) -> None:
        self.Get_rank, self.Get_size = local.Get_rank, local.Get_size
        self.bcast, self.barrier, self.gather_to_all = local.bcast, local.barrier, local.gather_to_all


class Library(ModuleType):
    """The part of nvshmem.core that is called."""

    def __init__(self) -> None:
        super().__init__("nvshmem.core")
        self.inits: list[dict[str, Any]] = []
        self.fails_at: int | None = None

    def get_unique_id(self, empty: bool) -> Any:
        data = np.zeros(128, np.uint8) if empty else np.arange(128, dtype=np.uint8)
        return SimpleNamespace(_data=data, ptr=data.ctypes.data)

    def init(self, *, device: Any, uid: Any, rank: int, nranks: int, initializer_method: str) -> None:
        if rank == self.fails_at:
            raise ValueError("no symmetric heap")
        switches = {name: os.environ[name] for name in (nvshmem.NO_MULTICAST, nvshmem.IBGDA)}
        identifier = bytes(uid._data)
        self.inits.append({"rank": rank, "size": nranks, "uid": identifier, "method": initializer_method, **switches})


class Bindings(ModuleType):
    """The part of nvshmem.bindings that is called; records it."""

    def __init__(self) -> None:
        super().__init__("nvshmem.bindings")
        self.done: list[tuple[str, int]] = []
        self.status = 0
        self.at = 0x10000

    def align(self, alignment: int, size: int) -> int:
        return self.at

    def free(self, address: int) -> None:
        self.done.append(("free", address))

    def barrier_all(self) -> None:
        self.done.append(("barrier", 0))

    def init_status(self) -> int:
        return self.status

    def my_pe(self) -> int:
        return 0

    def n_pes(self) -> int:
        return 2

    def culibrary_init(self, library: int) -> int:
        self.done.append(("init", library))
        return self.status

    def culibrary_finalize(self, library: int) -> int:
        self.done.append(("finalize", library))
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    fake = Library()
    monkeypatch.setitem(sys.modules, "nvshmem", ModuleType("nvshmem"))
    monkeypatch.setitem(sys.modules, "nvshmem.core", fake)
    cuda = SimpleNamespace(Device=lambda number: SimpleNamespace(set_current=lambda: None))
    monkeypatch.setitem(sys.modules, "cuda.core", cuda)
    monkeypatch.setattr(nvshmem, "_initialised", [])
    for name in (nvshmem.NO_MULTICAST, nvshmem.IBGDA, nvshmem.CONNECTIONS):
        monkeypatch.delenv(name, raising=False)
        # So that what the code under test sets is taken back.
        monkeypatch.setenv(name, "1")
        monkeypatch.delenv(name)
    return fake


def on_all(size: int, work: Any, wrap: Any = Processes) -> list[str]:
    """The message that each of several ranks raises; empty for none."""
    found = [""] * size

    def run(local: LocalBackend) -> None:
        try:
            work(wrap(local))
        except RuntimeError as error:
            found[local.Get_rank()] = str(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in LocalBackend.of(size, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_ranks_are_initialised_with_the_identifier_of_the_first_and_without_multicast(library: Library) -> None:
    # One rank: a process can be one only.
    assert on_all(1, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=False)) == [""]
    [found] = library.inits
    assert (found["rank"], found["size"], found["method"]) == (0, 1, "uid")
    assert found["uid"] == bytes(range(128))
    assert (found[nvshmem.NO_MULTICAST], found[nvshmem.IBGDA]) == ("1", "0")


def test_it_is_initialised_once_and_for_one_world_only(library: Library) -> None:
    def twice(backend: Any) -> None:
        nvshmem.initialise(backend, DEVICE, enable_ibgda=True)
        nvshmem.initialise(backend, DEVICE, enable_ibgda=True)

    assert on_all(1, twice) == [""]
    assert len(library.inits) == 1
    messages = on_all(2, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=True))
    assert all("this process is already rank 0 of 1, not 1 of 2" in message for message in messages)


def test_the_identifier_reaches_every_rank(library: Library) -> None:
    assert on_all(3, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=True, blocks=16)) == [""] * 3
    assert os.environ[nvshmem.CONNECTIONS] == "16"
    assert {one["uid"] for one in library.inits} == {bytes(range(128))}
    assert sorted(one["rank"] for one in library.inits) == [0, 1, 2]


def test_what_fails_on_one_rank_is_raised_on_all(library: Library) -> None:
    library.fails_at = 1
    messages = on_all(3, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=True))
    assert messages == ["NVSHMEM cannot be initialised: rank 1: no symmetric heap"] * 3


def test_multicast_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nvshmem.NO_MULTICAST, "0")
    [message] = on_all(1, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=True))
    assert "NVSHMEM_DISABLE_NVLS must be 1, not 0" in message
    assert library.inits == []


def test_a_missing_library_is_named(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvshmem.core", None)
    [message] = on_all(1, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=True))
    assert "nvshmem4py cannot be imported (pip install nvshmem4py-cu13)" in message


def test_threads_cannot_use_it(library: Library) -> None:
    messages = on_all(2, lambda backend: nvshmem.initialise(backend, DEVICE, enable_ibgda=True), lambda local: local)
    assert all("rank 0: NVSHMEM needs a process for each rank" in one for one in messages)


class LibraryOfKernels:
    """A library that was loaded, in place of the driver's."""

    library = 99
    context = SimpleNamespace(current=nullcontext)

    def __init__(self, done: list[tuple[str, int]]) -> None:
        self._done = done

    def close(self) -> None:
        self._done.append(("unload", self.library))


def test_nvshmem_knows_the_kernel_that_calls_it_for_as_long_as_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    monkeypatch.setitem(sys.modules, "nvshmem", ModuleType("nvshmem"))
    monkeypatch.setitem(sys.modules, "nvshmem.bindings", bindings)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(nodes, "call", lambda *arguments: calls.append(arguments))
    compiled: list[tuple[dict[str, str], dict[str, Any]]] = []
    monkeypatch.setattr(
        nodes, "compile_kernels", lambda words, chip, files, **options: compiled.append((words, options))
    )
    monkeypatch.setattr(nodes, "Loaded", lambda *arguments: LibraryOfKernels(bindings.done))
    info = ParallelInfo.of(3, 6, 1, 2, 1, 3, 2, 1, 1, 3)
    region = region_of(info, 4096)
    [backend] = LocalBackend.of(1, 60)
    transport = nodes.NvshmemTransport(backend, info, DEVICE, region)
    assert calls[0] == ("cuMemsetD8", bindings.at, 0, region.total_bytes)  # counters begin at zero
    assert transport.regions == (bindings.at,) * 3
    kernels = transport.load({"NODES": "3"}, LibraryOfKernels.context, DEVICE)
    assert compiled == [({"NODES": "3", "THROUGH_NVSHMEM": "1"}, {"with_nvshmem": True})]
    # What is under way has arrived before it is zero again.
    transport.clear()
    assert (bindings.done.pop(), len([one for one in calls if one[0] == "cuMemsetD8"])) == (("barrier", 0), 2)
    transport.unload(kernels)
    transport.close()
    transport.close()
    assert bindings.done == [("init", 99), ("finalize", 99), ("unload", 99), ("free", bindings.at)]
    bindings.done.clear()
    bindings.status = 7
    with pytest.raises(RuntimeError, match="cannot initialise the kernel that calls it: status 7"):
        transport.load({}, LibraryOfKernels.context, DEVICE)
    assert bindings.done == [("init", 99), ("unload", 99)]


def test_a_symmetric_heap_that_is_full_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    bindings.at = 0
    monkeypatch.setitem(sys.modules, "nvshmem", ModuleType("nvshmem"))
    monkeypatch.setitem(sys.modules, "nvshmem.bindings", bindings)
    info = ParallelInfo.of(0, 2, 0, 1, 0, 2)
    [backend] = LocalBackend.of(1, 60)
    with pytest.raises(RuntimeError, match="increase NVSHMEM_SYMMETRIC_SIZE"):
        nodes.NvshmemTransport(backend, info, DEVICE, region_of(info, 1 << 20))


def test_a_program_that_has_initialised_it_is_believed_after_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    monkeypatch.setitem(sys.modules, "nvshmem", ModuleType("nvshmem"))
    monkeypatch.setitem(sys.modules, "nvshmem.bindings", bindings)
    messages = on_all(2, nvshmem.demand_initialised)
    assert all("rank 1: NVSHMEM is not initialised: with should_init_nvshmem=False" in one for one in messages)
    bindings.status = nvshmem.IS_INITIALISED
    # Both are rank 0 there.
    assert (
        on_all(2, nvshmem.demand_initialised)
        == ["NVSHMEM cannot be used: rank 1: NVSHMEM's rank here is 0 of 2, not 1 of 2"] * 2
    )
