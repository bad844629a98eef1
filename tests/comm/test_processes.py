"""Ranks that are processes on the software driver: each finds the memory of the others, and reads what they write."""

from __future__ import annotations

import ctypes
import itertools
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import CUDAError, Device
from cuda_gctx.comm._calls import Plan
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._memory import Workspaces
from cuda_gctx.comm._message import Message, Sizes
from cuda_gctx.comm._modes import CopyEngines
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._tensors import MappedTensors
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo
from cuda_software_driver import Ledger, library_folder, library_path

pytestmark = pytest.mark.sim_only

CLONE_NEWPID = 0x20000000
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
        self._control.softwareDriverLedger.restype = ctypes.c_char_p

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
            assert self._control.softwareDriverFailNth(function.encode(), ctypes.c_ulonglong(1), OUT_OF_MEMORY) == 0

    def left(self) -> list[str]:
        """What is alive on its machine, but for what the package keeps."""
        live = Ledger.read(json.loads(self._control.softwareDriverLedger())).live
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


class NoKernels:
    """In place of kernels, none of which runs on the software driver: the host lets the ranks meet.

    agreed: the signatures of the meetings of the last call.
    """

    def __init__(self, rank: Rank, stream: Any) -> None:
        self._rank, self._stream = rank, stream
        self.agreed: list[int] = []

    def meet_in_one_block(self, plan: Plan, signature: int) -> None:
        def meet() -> None:
            self._stream.sync()
            self._rank.backend.barrier()
            self.agreed.append(signature)

        plan.call(meet)

    def held(self, *steps: Any) -> nullcontext[None]:
        return nullcontext()


class OneStream(nullcontext[None]):
    """The order of calls of one thread on one stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = lambda: stream


def info_of(rank: Rank) -> ParallelInfo:
    return ParallelInfo.of(rank.number, RANKS, rank.number, RANKS, 0, 1, 1, RANKS, 1, 1)


class Copying:
    """The mode COPY_ENGINES on one rank, between an input and an output of its own."""

    def __init__(self, rank: Rank, sizes: Sizes, staged_bytes: int) -> None:
        self.rank, self.sizes = rank, sizes
        self.own = Workspaces(rank.backend, rank.device, 1 << 20, LIMIT_S)
        self.mapped = MappedTensors(rank.device, self.own.ranks, rank.number)
        self.stream = rank.device.create_stream()
        order: Any = OneStream(self.stream)
        self.kernels = NoKernels(rank, self.stream)
        kernels: Any = {sizes.op: self.kernels}
        held = (kernels, self.mapped, self.own.addresses, staged_bytes, ())
        self.mode = CopyEngines("float16", order, Numbers(), info_of(rank), *held)
        with rank.device.context.current():
            self.x_in, self.x_out = (int(call("cuMemAlloc", size)) for size in (sizes.in_bytes, sizes.out_bytes))

    def map(self) -> None:
        self.mapped.add(self.rank.backend, [(self.x_in, self.sizes.in_bytes), (self.x_out, self.sizes.out_bytes)])

    def run(self, given: int, fills: dict[int, int], root: int | None = None) -> None:
        """fills: the byte of each of the equal parts of the input, by its address."""
        with self.rank.device.context.current():
            call("cuMemsetD8", self.x_out, 0xFF, self.sizes.out_bytes)
            for address, byte in fills.items():
                call("cuMemsetD8", address, byte, self.sizes.in_bytes // len(fills))
            call("cuCtxSynchronize")
        self.kernels.agreed.clear()
        self.rank.backend.barrier()
        self.mode.run(Message(self.sizes, None, None, given, self.x_out, None, False, root), 1)
        self.stream.sync()
        self.rank.backend.barrier()

    def close(self) -> None:
        self.mapped.close()
        self.own.close()
        self.stream.close()
        with self.rank.device.context.current():
            call("cuMemFree", self.x_in)
            call("cuMemFree", self.x_out)


def all_to_all(rank: Rank) -> dict[str, Any]:
    """All-to-alls, staged and mapped. Block `b` of rank `r` is filled with 10 * r + b."""
    block = 4096
    copying = Copying(rank, Sizes(MixedCommOp.ALLTOALL, (), RANKS * block, RANKS * block, block), RANKS * block)
    fills = {copying.x_in + number * block: 10 * rank.number + number for number in range(RANKS)}
    found = {}
    for how in ("staged", "mapped"):
        if how == "mapped":
            copying.map()
        copying.run(copying.x_in, fills)
        found[how] = [rank.read(copying.x_out + number * block + block - BYTES) for number in range(RANKS)]
    copying.close()
    return found | {"left": rank.left()}


def copy_engines(rank: Rank) -> dict[str, Any]:
    """All-gathers of inputs that are mapped, blocks of mapped outputs, and staged; what each rank has of each rank."""
    block = 4096
    copying = Copying(rank, Sizes(MixedCommOp.ALLGATHER, (), block, RANKS * block, block), block)
    found = {}
    for number, how in enumerate(("staged", "mapped", "in place")):
        if how == "mapped":
            copying.map()
        given = copying.x_out + rank.number * block if how == "in place" else copying.x_in
        copying.run(given, {given: 10 * number + rank.number})
        blocks = [copying.x_out + of_rank * block for of_rank in range(RANKS)]
        found[how] = [(rank.read(begin), rank.read(begin + block - BYTES)) for begin in blocks]
    copying.close()
    return found | {"left": rank.left()}


def broadcast(rank: Rank) -> dict[str, Any]:
    """The input of each rank in turn: what has come of its four quarters, and in which meetings."""
    size = 3 * 4096
    quarters = [size // 4 * number for number in range(4)]
    found: dict[str, Any] = {}
    for room, hows in ((size, ("staged", "mapped", "in place")), (4096 + 16, ("in rounds",))):
        copying = Copying(rank, Sizes(MixedCommOp.BROADCAST, (), size, size, size), room)
        for how, root in itertools.product(hows, range(RANKS)):
            if (how, root) == ("mapped", 0):
                copying.map()
            given = copying.x_out if how == "in place" else copying.x_in
            copying.run(given, {given + begin: 60 * rank.number + begin // (size // 4) for begin in quarters}, root)
            read = [rank.read(copying.x_out + begin + at) for begin in quarters for at in (0, size // 4 - BYTES)]
            found[f"{how} from {root}"] = read, copying.kernels.agreed[:]
        copying.close()
    return found | {"left": rank.left()}


PROGRAMS = (workspaces, tensors, copy_engines, all_to_all, broadcast, failure)


def in_a_pid_namespace(work: Callable[[], None]) -> None:
    """As the first process of a namespace of its own, as in a container; without the right to make one, right here."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID) != 0:
        work()
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.waitpid(child, 0)


def run_in_a_pid_namespace(*rank: Any) -> None:
    in_a_pid_namespace(lambda: run_rank(*rank))


def run_rank(number: int, queues: Any, barrier: Any, answers: Any, programs: Sequence[Callable[[Rank], Any]]) -> None:
    try:
        os.environ["CUDA_GCTX_DRIVER"] = "sim:h200@13.0,devices=2"
        # The driver that cuda.bindings opens by this name.
        ctypes.CDLL(os.path.join(library_folder(), "libcuda.so.1"))
        rank = Rank(Between(number, queues, barrier))
        answers.put((number, {work.__name__: work(rank) for work in programs} | {"pid": os.getpid()}))
    except BaseException:
        answers.put((number, traceback.format_exc()))
        with suppress(Exception):
            barrier.abort()
        raise
    finally:
        for queue in (answers, *queues):
            queue.close()
            queue.join_thread()


def results(target: Callable[..., None], programs: Sequence[Callable[[Rank], Any]]) -> list[Any]:
    """What the programs of each rank have returned."""
    started = multiprocessing.get_context("spawn")
    queues, barrier, answers = [started.Queue() for _ in range(RANKS)], started.Barrier(RANKS), started.Queue()
    children = [
        started.Process(target=target, args=(rank, queues, barrier, answers, programs), daemon=True)
        for rank in range(RANKS)
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


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    return results(run_rank, PROGRAMS)


def test_copies_between_processes_bring_each_rank_its_block_of_every_input(ranks: list[Any]) -> None:
    for rank, found in enumerate(ranks):
        wanted = [10 * other + rank for other in range(RANKS)]
        assert found["all_to_all"] == {"staged": wanted, "mapped": wanted, "left": []}


WORKSPACES = [
    {
        "seen": [1, 2, 3],
        "written": 100 + (rank - 1) % RANKS,
        "kept": ["reserved address"] * RANKS,
        "same": True,
        "fresh": 0,
        "left": [],
    }
    for rank in range(RANKS)
]


def test_ranks_map_the_memory_of_all_others(ranks: list[Any]) -> None:
    assert [found["workspaces"] for found in ranks] == WORKSPACES


def test_ranks_with_equal_pids_map_the_memory_of_all_others() -> None:
    """As in containers. Their tensors are not mapped: the software driver tells the owner of memory by its pid."""
    found = results(run_in_a_pid_namespace, [workspaces])
    pids = [rank["pid"] for rank in found]
    if len(set(pids)) == len(pids):
        pytest.skip("needs the right to make a PID namespace (root)")
    assert pids == [1] * RANKS
    assert [rank["workspaces"] for rank in found] == WORKSPACES


def test_copies_between_processes_bring_every_input_to_every_rank(ranks: list[Any]) -> None:
    wanted = {
        how: [(10 * number + rank,) * 2 for rank in range(RANKS)]
        for number, how in enumerate(("staged", "mapped", "in place"))
    }
    assert [found["copy_engines"] for found in ranks] == [wanted | {"left": []}] * RANKS


@pytest.mark.parametrize(("how", "rounds"), [("staged", 1), ("mapped", 1), ("in place", 1), ("in rounds", 3)])
def test_copies_between_processes_bring_the_input_of_the_root_to_every_rank(
    ranks: list[Any], how: str, rounds: int
) -> None:
    signatures = set()
    for root in range(RANKS):
        of_ranks = [found["broadcast"][f"{how} from {root}"] for found in ranks]
        assert [read for read, _ in of_ranks] == [[60 * root + quarter for quarter in range(4) for _ in range(2)]] * 3
        meetings = of_ranks[0][1]
        assert [agreed for _, agreed in of_ranks] == [meetings] * RANKS
        assert meetings == meetings[:2] * rounds  # before the copies and after them
        signatures |= set(meetings)
    assert len(signatures) == 2 * RANKS  # another root is another call
    assert [found["broadcast"]["left"] for found in ranks] == [[]] * RANKS


def test_each_rank_reaches_the_tensors_of_the_others(ranks: list[Any]) -> None:
    for rank in ranks:
        found = rank["tensors"]
        expandable, unopened, unequal = found.pop("refused")
        assert "tensors cannot be mapped: rank 0: " in expandable
        assert "only memory from cuMemAlloc can be mapped" in expandable
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
