"""Ranks that are processes on the software driver: each finds the memory of the others, and reads what they write."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import CUDAError, Device
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._memory import Workspaces
from cuda_gctx.comm._tensors import MappedTensors
from cuda_gctx.sim import Ledger, library_folder, library_path

pytestmark = pytest.mark.sim_only

LIMIT_S = 120
RANKS = 3
BYTES = 64
OUT_OF_MEMORY = 2
FAILING = ("cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle")


class Between:
    """What connects processes on the host."""

    def __init__(self, rank: int, queues: Any, barrier: Any) -> None:
        self._rank, self._queues, self._barrier = rank, queues, barrier

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._queues)

    def bcast(self, obj: Any, root: int = 0) -> Any:
        if self._rank == root:
            for queue in self._queues:
                queue.put(obj)
        found = self._queues[self._rank].get(timeout=LIMIT_S)
        self.barrier()
        return found

    def barrier(self) -> None:
        self._barrier.wait(LIMIT_S)


class Rank:
    """A rank with a device, of which there are two, and what it writes and reads there."""

    def __init__(self, backend: Between) -> None:
        self.backend = backend
        self.number = backend.Get_rank()
        self.device = Device(self.number % 2)
        self._control = ctypes.CDLL(library_path())
        self._control.gctxSimLedger.restype = ctypes.c_char_p

    def write(self, address: int, value: int) -> None:
        with self.device.context.current():
            call("cuMemsetD8", address, value, BYTES)
            call("cuCtxSynchronize")

    def read(self, address: int) -> int:
        found = ctypes.create_string_buffer(BYTES)
        with self.device.context.current():
            call("cuMemcpyDtoH", found, address, BYTES)
        assert len(set(found.raw)) == 1
        return found.raw[0]

    def fail(self, function: str) -> None:
        """The next call of a function fails on one rank."""
        if self.number == 1:
            assert self._control.gctxSimFailNth(function.encode(), ctypes.c_ulonglong(1), OUT_OF_MEMORY) == 0

    def left(self) -> list[str]:
        """What is alive on its machine, but for what the package keeps."""
        live = Ledger.read(json.loads(self._control.gctxSimLedger())).live
        return [one.kind for one in live if one.kind not in ("primary context retain", "event", "stream")]


def message(work: Callable[[], Any]) -> str:
    try:
        work()
    except (CUDAError, RuntimeError, ValueError) as error:
        return str(error)
    return "nothing was raised"


def workspaces(rank: Rank) -> dict[str, Any]:
    own = Workspaces(rank.backend, rank.device, 1 << 20, LIMIT_S)
    rank.write(own.addresses[rank.number], 1 + rank.number)
    rank.backend.barrier()
    seen = [rank.read(address) for address in own.addresses]
    rank.write(own.addresses[(rank.number + 1) % RANKS] + BYTES, 100 + rank.number)
    rank.backend.barrier()
    written = rank.read(own.addresses[rank.number] + BYTES)
    before = own.addresses
    rank.backend.barrier()
    own.release()
    kept = rank.left()
    rank.backend.barrier()
    own.restore(rank.backend)
    fresh = rank.read(own.addresses[rank.number])
    rank.backend.barrier()
    same = own.addresses == before
    own.close()
    return {"seen": seen, "written": written, "kept": kept, "same": same, "fresh": fresh, "left": rank.left()}


def tensors(rank: Rank) -> dict[str, Any]:
    own = Workspaces(rank.backend, rank.device, 1 << 20, LIMIT_S)
    mapped = MappedTensors(rank.device, own.ranks, rank.number)
    with rank.device.context.current():
        memory, late = (int(call("cuMemAlloc", 8192)) for _ in range(2))
    spans = [(memory + 256, 1024), (memory + 4096, 512)]
    mapped.add(rank.backend, spans)
    for number, (address, _) in enumerate(spans):
        rank.write(address + BYTES, 10 * number + rank.number)
    rank.backend.barrier()
    seen = []
    for address, _ in spans:
        places = mapped.find(address + BYTES, BYTES)
        assert places is not None
        assert places[rank.number] == address + BYTES
        # Where this rank sees the tensor of each one.
        seen.append([rank.read(rank.backend.bcast(places, other)[rank.number]) for other in range(RANKS)])
    outside = mapped.find(memory + 256, 1025), mapped.find(memory, 16)
    rank.backend.barrier()
    opened = rank.left().count("opened memory")
    mapped.remove(spans[0][0])
    still_opened = rank.left().count("opened memory")
    gone = mapped.find(*spans[0]), mapped.find(*spans[1]) is not None
    refused = [message(lambda: mapped.add(rank.backend, [(own.addresses[rank.number], 512)]))]
    rank.fail("cuIpcOpenMemHandle")
    refused.append(message(lambda: mapped.add(rank.backend, [(late, 512)])))
    refused.append(message(lambda: mapped.add(rank.backend, spans[: 1 + rank.number % 2])))
    mapped.close()
    own.close()
    rank.backend.barrier()
    with rank.device.context.current():
        call("cuMemFree", memory)
        call("cuMemFree", late)
    return {
        "seen": seen,
        "outside": outside,
        "opened": (opened, still_opened),
        "gone": gone,
        "refused": refused,
        "left": rank.left(),
    }


def failure(rank: Rank) -> list[tuple[str, list[str]]]:
    found = []
    for function in FAILING:
        rank.fail(function)
        found.append((message(lambda: Workspaces(rank.backend, rank.device, 1 << 20, LIMIT_S)), rank.left()))
        rank.backend.barrier()
    return found


PROGRAMS = (workspaces, tensors, failure)


def run_rank(number: int, queues: Any, barrier: Any, answers: Any) -> None:
    try:
        os.environ["CUDA_GCTX_DRIVER"] = "sim:h200@13.0,devices=2"
        # The driver that cuda.bindings opens by this name.
        ctypes.CDLL(os.path.join(library_folder(), "libcuda.so.1"))
        rank = Rank(Between(number, queues, barrier))
        answers.put((number, {work.__name__: work(rank) for work in PROGRAMS}))
    except BaseException:
        answers.put((number, traceback.format_exc()))
        with suppress(Exception):
            barrier.abort()
        raise


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    """What the programs of each rank have returned."""
    started = multiprocessing.get_context("spawn")
    queues, barrier, answers = [started.Queue() for _ in range(RANKS)], started.Barrier(RANKS), started.Queue()
    children = [
        started.Process(target=run_rank, args=(rank, queues, barrier, answers), daemon=True) for rank in range(RANKS)
    ]
    root = str(Path(__file__).parents[2])
    sys.path.append(root)  # behind the installed package: new interpreters get this path, and import this module
    try:
        for child in children:
            child.start()
    finally:
        sys.path.remove(root)
    found = dict(answers.get(timeout=2 * LIMIT_S) for _ in children)
    for child in children:
        child.join()
    failures = [one for one in found.values() if isinstance(one, str)]
    assert not failures, "\n".join(failures)
    return [found[rank] for rank in range(RANKS)]


def test_ranks_map_the_memory_of_all_others(ranks: list[Any]) -> None:
    for rank, found in enumerate(ranks):
        assert found["workspaces"] == {
            "seen": [1, 2, 3],
            "written": 100 + (rank - 1) % RANKS,
            "kept": ["reserved address"] * RANKS,
            "same": True,
            "fresh": 0,
            "left": [],
        }


def test_each_rank_reaches_the_tensors_of_the_others(ranks: list[Any]) -> None:
    for rank in ranks:
        found = rank["tensors"]
        expandable, unopened, unequal = found.pop("refused")
        assert "tensors cannot be mapped: rank 0: " in expandable
        assert "only memory of cuMemAlloc can be mapped" in expandable
        assert "tensors cannot be mapped: rank 1: " in unopened
        assert "cuIpcOpenMemHandle failed: CUDA_ERROR_OUT_OF_MEMORY" in unopened
        assert "the number of tensors must be the same on all ranks" in unequal
        assert found == {
            "seen": [[0, 1, 2], [10, 11, 12]],
            "outside": (None, None),
            # Both tensors of a rank are in one allocation, which the others open once.
            "opened": (2, 2),
            "gone": (None, True),
            "left": [],
        }


def test_memory_that_one_rank_cannot_make_is_an_error_on_all(ranks: list[Any]) -> None:
    for number, rank in enumerate(ranks):
        for function, (error, left) in zip(FAILING, rank["failure"], strict=True):
            assert f"{function} failed: CUDA_ERROR_OUT_OF_MEMORY" in error
            assert number == 1 or "rank 1" in error
            assert left == []
