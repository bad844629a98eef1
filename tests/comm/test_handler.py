"""The launches and copies of a handler, in order, on the software driver. No kernel runs here."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
import struct
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest

from cuda_gctx import CUDAError, Device
from cuda_gctx.comm import (
    CommFault,
    LocalRank,
    MixedCommHandler,
    MixedCommMode,
    MixedCommOp,
    TuningTable,
    _arena,
    _arguments,
    _building,
    _driver_calls,
    _faults,
    _gradients,
    _groups,
    _launch,
    _measured,
    _memory,
    _modes,
    _nodes,
    _order,
    _padding,
    _tensors,
    local_world,
    run_mixed_comm,
)
from cuda_gctx.comm._calls import Plan
from cuda_gctx.comm._compile import KERNELS
from cuda_gctx.comm._groups import Groups
from cuda_gctx.comm._message import Message
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._protocol import Element, Fault, packet_bytes
from cuda_gctx.comm._staging import Span
from cuda_gctx.comm._structs import CALL, TWO_EXCHANGE
from cuda_gctx.comm._tuning import Case, Choice
from cuda_gctx.compat import mixed_comm
from cuda_gctx.extending import LaunchSequence
from cuda_software_driver import library_folder, session

# Stands in for torch, which is not loaded into the process of the tests.
torch: Any = SimpleNamespace(
    float16="torch.float16",
    bfloat16="torch.bfloat16",
    float32="torch.float32",
    cuda=SimpleNamespace(),
)


class TorchDevice(NamedTuple):
    type: str
    index: int | None


def torch_device(kind: Any, index: int | None = None) -> TorchDevice:
    if isinstance(kind, TorchDevice):
        return kind
    name, _, number = str(kind).partition(":")
    return TorchDevice(name, int(number) if number else index)


torch.device = torch_device
MEETING = ["two_exchange", "two_exchange", "look_for_torn_packets"]


# What the kernels are loaded from: the software driver runs none of them.
IMAGE = ".version 8.0\n.target sm_90\n.address_size 64\n" + "".join(
    f".visible .entry {name}(.param .align 8 .b8 arguments[16]) {{ ret; }}\n"
    for kernels in KERNELS.values()
    for name in kernels
)


class Noted(LaunchSequence):
    """A sequence that says to the driver of the test what it launches."""

    def __init__(self, driver: Driver, streams: list[Any]) -> None:
        super().__init__(streams)
        self._driver, self._streams = driver, streams
        self._steps: list[tuple[str, int]] = []
        self._blocks: list[int] = []
        self._shapes: list[tuple[int, int, bytes]] = []
        self.noted: list[Any] = []  # kernels and copies

    def kernel(self, function: int, *how: Any) -> None:
        super().kernel(function, *how)
        self._steps.append((self._driver.names[function], 0))
        self._blocks.append(how[0])
        self._shapes.append((*how[:2], how[3]))
        self.noted.append((function, *how))

    def copy(self, stream: int, *how: Any) -> None:
        super().copy(stream, *how)
        self._steps.append(("copy", stream))
        self.noted.append((stream, *how))

    def launch(self, stream: Any, given: Any, count: int) -> None:
        super().launch(stream, given, count)
        self._driver.launched(self._steps, [stream, *self._streams])
        self._driver.blocks += self._blocks
        self._driver.shapes.extend(self._shapes)


class Driver:
    """Notes what each thread launches and copies on the software driver. late: threads whose kernels find a fault."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self.names: dict[int, str] = {}  # of kernels and functions
        self._buffers: list[tuple[Device, int]] = []
        self.late: set[str] = set()
        self.torn: set[str] = set()  # threads whose kernels find a torn packet
        self.launches = 0
        self.not_late_after = 99
        self.record: dict[str, Any] = {}

    @property
    def done(self) -> list[Any]:
        if not hasattr(self._thread, "done"):
            self._thread.done, self._thread.streams = [], []
        found: list[Any] = self._thread.done
        return found

    @property
    def blocks(self) -> list[int]:
        """The number of blocks of each kernel."""
        if not hasattr(self._thread, "blocks"):
            self._thread.blocks = []
        found: list[int] = self._thread.blocks
        return found

    @blocks.setter
    def blocks(self, blocks: list[int]) -> None:
        self._thread.blocks = blocks

    @property
    def shapes(self) -> list[Any]:
        """The blocks, threads and arguments of each kernel."""
        if not hasattr(self._thread, "shapes"):
            self._thread.shapes = []
        found: list[Any] = self._thread.shapes
        return found

    @property
    def streams(self) -> list[tuple[str, int]]:
        """The stream of each copy and kernel."""
        found: list[tuple[str, int]] = self._thread.streams
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        answer = _driver_calls.call(name, *arguments)
        if name == "cuMemHostAlloc":
            self.record[threading.current_thread().name] = (ctypes.c_uint64 * 3).from_address(answer)
        if name == "cuLibraryGetKernel":
            self.names[int(answer)] = arguments[1].decode()
        if name == "cuKernelGetFunction":
            self.names[int(answer)] = self.names[int(arguments[0])]
        return answer

    def launched(self, steps: list[tuple[str, int]], streams: list[Any]) -> None:
        """Notes what a sequence has launched: kernels by name and copies, each on a stream."""
        for name, stream in steps:
            self.done.append(name)
            self.streams.append(("copy" if name == "copy" else "kernel", streams[stream].handle))
            if name == "copy":
                continue
            self.launches += 1
            thread = threading.current_thread().name
            if thread in self.late and len(self.done) <= self.not_late_after:
                self.record[thread][0] = Fault.TIMEOUT << 32 | 1
            if thread in self.torn and name == "look_for_torn_packets":
                self.record[thread][2] = 1

    @property
    def sequences(self) -> list[Noted]:
        """The sequences of plans."""
        if not hasattr(self._thread, "sequences"):
            self._thread.sequences = []
        found: list[Noted] = self._thread.sequences
        return found

    def sequence(self, streams: Any = ()) -> Noted:
        self.sequences.append(Noted(self, list(streams)))
        return self.sequences[-1]

    def allocate(self, device: Any, size: int) -> int:
        """Memory of a tensor, until the test ends."""
        gpu = Device(device.index)
        with gpu.context.current():
            address = int(_driver_calls.call("cuMemAlloc", size))
        self._buffers.append((gpu, address))
        return address

    def close(self) -> None:
        while self._buffers:
            gpu, address = self._buffers.pop()
            with gpu.context.current():
                _driver_calls.call("cuMemFree", address)


class Tensor:
    """The part of a tensor on a GPU that the handler uses."""

    allocate: Any  # of the driver of the test
    note_copy: Any
    requires_grad = False

    def __init__(self, device: Any, dtype: Any, *shape: int) -> None:
        self.device, self.dtype, self.shape = device, dtype, shape
        self._address = self.allocate(device, self.numel() * self.element_size())

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def element_size(self) -> int:
        return 2

    def untyped_storage(self) -> Tensor:
        return self

    def new_empty(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self.device, self.dtype, *shape)

    def view(self, what: Any, *rest: int) -> Tensor:
        viewed = copy(self)
        if rest:
            viewed.shape = self.numel() // rest[0], *rest
        return viewed

    def __getitem__(self, elements: Any) -> Tensor:
        return self

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self] * self.shape[0])

    def copy_(self, other: Tensor) -> None:
        self.note_copy()


class Symmetric(Tensor):
    """A tensor of memory that it keeps alive."""

    def __init__(self, block: Any, device: Any) -> None:
        self.block, self.device = block, device
        self._address = block.__cuda_array_interface__["data"][0]

    def view(self, what: Any, *rest: int) -> Symmetric:
        if isinstance(what, str):
            self.dtype = what
        else:
            self.shape = tuple(what)
        return self

    def __getitem__(self, elements: Any) -> Symmetric:
        return self


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_arena, _arguments, _gradients, _order, _padding):
        monkeypatch.setattr(module, "_torch", lambda: torch)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.as_tensor = Symmetric
    nodes = SimpleNamespace(is_compiling=lambda: False, is_traced=lambda: False, call=None, number_of=lambda handler: 0)
    nodes.new_state = lambda: None
    monkeypatch.setitem(sys.modules, "cuda_gctx.comm._torch_op", nodes)
    elements = {torch.float16: Element.FLOAT16, torch.bfloat16: Element.BFLOAT16}
    monkeypatch.setattr(_arguments, "_elements", lambda: elements)


@pytest.fixture(autouse=True)
def machine(sim: Any) -> Any:
    return sim("h200", devices=2, unknown="ignore")  # the kernels are replaced by empty ones


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, machine: Any) -> Iterator[Driver]:
    # The driver that cuda.bindings opens by this name.
    ctypes.CDLL(os.path.join(library_folder(), "libcuda.so.1"))
    noted = Driver()
    for module in (_building, _faults, _launch, _memory, _nodes, _order, _tensors):
        monkeypatch.setattr(module, "call", noted.call)
    monkeypatch.setattr("cuda_gctx.comm._calls.Launches", noted.sequence)
    image = SimpleNamespace(code=SimpleNamespace(code=IMAGE.encode()))
    for module in (_launch, _nodes):
        monkeypatch.setattr(module, "compile_kernels", lambda *arguments: image)
    monkeypatch.setattr(Tensor, "allocate", staticmethod(noted.allocate), raising=False)
    note_copy = staticmethod(lambda: noted.done.append("copy by torch"))
    monkeypatch.setattr(Tensor, "note_copy", note_copy, raising=False)
    here = threading.local()
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=here.handle)
    noted.use = lambda stream: setattr(here, "handle", stream.handle)  # type: ignore[attr-defined]
    yield noted
    noted.close()


def on_ranks(driver: Any, size: int, work: Any, meeting: Sequence[str] = MEETING, **options: Any) -> list[Any]:
    """What each rank returns that has made a handler on the software driver."""

    def run(rank: LocalRank) -> Any:
        assert rank.partition is not None
        driver.use(rank.partition.stream)
        with rank.handler(torch.bfloat16, **options) as handler:
            assert driver.done == list(meeting)  # before anything else
            driver.done.clear()
            return work(rank, handler)

    with local_world(size, Device(0), sms=8, timeout_s=30) as world:
        return world.run(run)


def launched(driver: Driver, handler: MixedCommHandler, op: MixedCommOp, mode: MixedCommMode) -> list[str]:
    driver.done.clear()
    run_mixed_comm(op, handler, Tensor(handler.device, torch.bfloat16, 16, 64), None, mode)
    return list(driver.done)


def in_plan(*steps: str) -> list[str]:
    """Steps between the kernels that take and give back the control words."""
    return ["begin_plan", *steps, "end_plan"]


@pytest.mark.parametrize("how", ["reached", "staged by copies", "staged by the kernel"])
def test_kernels_follow_each_other_in_the_order_of_their_mode(
    driver: Driver, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = how != "reached"
    copied = ["copy"] if staged else []
    if how == "staged by copies":
        monkeypatch.setattr(_modes, "COPIED_BY_KERNEL_BYTES", 0)
    # To each rank that sums of this one's input, and from each one that sums for it.
    parts = {MixedCommOp.ALLREDUCE_ALLGATHER: (1, 3), MixedCommOp.REDUCESCATTER_ALLREDUCE: (3, 1)}
    # A reduce-scatter over the nodes sums one piece for each of them; an all-gather stores one block for each.
    steps_of_nodes = {
        MixedCommOp.ALLREDUCE_ALLGATHER: ["two_exchange", "exchange_pieces", "two_exchange", "two_exchange"],
        MixedCommOp.REDUCESCATTER_ALLREDUCE: ["two_exchange", "two_exchange", "exchange_pieces", "two_exchange"],
    }

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert handler.valid_mode_list[:3] == list(MixedCommMode)[:3]
        for op, wanted in steps_of_nodes.items():
            assert launched(driver, handler, op, MixedCommMode.ONE_EXCHANGE) == ["one_exchange"]
            sends, fetches = parts[op]
            found = launched(driver, handler, op, MixedCommMode.TWO_EXCHANGE)
            if how == "staged by the kernel":
                assert found == ["two_exchange"]
            else:
                steps = [*copied * sends, "two_exchange", *copied * fetches]
                assert found == (in_plan(*steps) if staged else steps)
            found = launched(driver, handler, op, MixedCommMode.HIERARCHICAL)
            assert found == in_plan(*copied, *wanted, *copied)

    options: dict[str, Any] = {"max_message_bytes": 1 << 20} if staged else {}
    on_ranks(driver, 4, work, nodes=2, local_tp_size=2, inter_dp_size=2, **options)


def test_copies_of_staged_parts_have_streams_of_their_own_between_devices(driver: Driver) -> None:
    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        main = rank.partition.stream
        driver.use(main)  # type: ignore[attr-defined]
        with rank.handler(torch.bfloat16) as handler:
            x = Tensor(handler.device, torch.bfloat16, 8192, 8192)
            driver.streams.clear()
            run_mixed_comm(handler.valid_op_list[0], handler, x, None, MixedCommMode.TWO_EXCHANGE)
            # The first and the last kernel of the plan.
            assert [driver.streams.pop(at) for at in (0, -1)] == [("kernel", main.handle)] * 2
            found = [driver.streams[at : at + 3] for at in range(0, len(driver.streams), 3)]
            driver.streams.clear()
            small = Tensor(handler.device, torch.bfloat16, 16, 8192)
            run_mixed_comm(handler.valid_op_list[0], handler, small, None, MixedCommMode.TWO_EXCHANGE)
            streams_of_a_small_message = [stream for _, stream in driver.streams]
        # This rank's share is 64 MiB of 128, in two rounds of three parts: one copy to the other rank, and one from it.
        assert len(found) == 6
        assert all([kind for kind, _ in part] == ["copy", "kernel", "copy"] for part in found)
        assert {part[1][1] for part in found} == {main.handle}
        before, after = {part[0][1] for part in found}, {part[2][1] for part in found}
        assert len(before) == len(after) == len(before | after | {main.handle}) - 2 == 1
        assert streams_of_a_small_message == [main.handle]

    with local_world(2, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        world.run(run)


@pytest.mark.parametrize(
    ("op", "mib", "by_kernel"),
    [("ALLREDUCE", 2, True), ("ALLREDUCE", 3, False), ("ALLGATHER", 1, True), ("ALLGATHER", 2, False)],
)
def test_between_devices_the_kernel_copies_small_messages(driver: Driver, op: str, mib: int, by_kernel: bool) -> None:
    """An all-gather has an output of two blocks, here of eight SMs."""

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        gathers = op == "ALLGATHER"
        with rank.handler(torch.bfloat16, **({"local_dp_size": 2} if gathers else {})) as handler:
            x = Tensor(handler.device, torch.bfloat16, 64 * mib, 4096 if gathers else 8192)
            driver.done.clear()
            run_mixed_comm(MixedCommOp[op], handler, x, None, MixedCommMode.TWO_EXCHANGE)
            assert (driver.done == ["two_exchange"]) == by_kernel

    with local_world(2, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        world.run(run)


def test_ranks_that_share_some_of_several_devices_copy_in_kernels(driver: Driver) -> None:
    """A copy from another device waits for all that a process has launched before to the same device."""

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        with rank.handler(torch.bfloat16) as handler:
            x = Tensor(handler.device, torch.bfloat16, 8192, 8192)
            driver.done.clear()
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, None, MixedCommMode.TWO_EXCHANGE)
            # 128 MiB, with memory for 64.
            assert driver.done == in_plan(*["two_exchange"] * 2)
            with pytest.raises(ValueError, match="mode COPY_ENGINES is not valid"):
                run_mixed_comm(MixedCommOp.BROADCAST, handler, x, None, MixedCommMode.COPY_ENGINES, root=0)
            with pytest.raises(ValueError, match="each on a GPU of its own or all of them on one"):
                run_mixed_comm(MixedCommOp.BROADCAST, handler, x, None, root=0)

    with local_world(4, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        world.run(run)


def at(place: tuple[int | None, int], addresses: Sequence[int]) -> int:
    number, offset = place
    return offset + (0 if number is None else addresses[number])


class AtAddresses(Plan):
    """A plan that is made with the addresses of a call."""

    def __init__(self, number: int, *tensors: Sequence[Span]) -> None:
        super().__init__(Numbers(), number, *tensors)
        self.noted: list[Any] = []

    def kernel(self, function: int, packed: Any, number_at: int, *how: Any) -> None:
        assert not packed.addresses
        self.noted.append((function, packed.content, number_at, *how))

    def copy(self, copy: Any, stream: int = 0) -> None:
        self.noted.append((stream, *copy))


@pytest.mark.parametrize("how", ["reached", "staged", "mapped"])
def test_a_plan_has_the_arguments_of_every_call(driver: Driver, how: str) -> None:
    """Made without addresses and then patched, kernels and copies are as if they had been made for the call."""
    seed = 20261124
    chosen = random.Random(f"{seed} {how}")
    shapes = [(2 * chosen.randrange(1, 400), 8 * chosen.randrange(1, 300)) for _ in range(6)]

    def work(rank: LocalRank, handler: MixedCommHandler) -> int:
        own, compared = random.Random(rank.rank), 0
        for op, name, shape in itertools.product(handler.valid_op_list, handler._modes.valid[:-1], shapes):
            mode: Any = handler._modes[name]
            sizes = handler._messages.sizes(op, shape, 2)
            x_in, x_out = (16 * own.randrange(1 << 32, 1 << 40) for _ in range(2))
            seen = None
            if how == "mapped":
                of_others = ([16 * own.randrange(1 << 32, 1 << 40) for _ in range(rank.size)] for _ in range(2))
                seen = tuple(map(tuple, of_others))
            message = Message(sizes, None, None, x_in, x_out, seen, how != "staged")
            sms = own.randint(1, 8)
            driver.sequences.clear()
            plan = mode.plan(message, sms)
            wanted = AtAddresses(plan.number, [Span(x_in, sizes.in_bytes)], [Span(x_out, sizes.out_bytes)])
            mode.add_steps(wanted, sizes, sms, is_staged=how == "staged", seen=seen)
            addresses = (x_in, x_out, *sum(seen or (), ()))
            [sequence] = driver.sequences
            for one, noted in zip(wanted.noted, sequence.noted, strict=True):
                compared += 1
                if isinstance(noted[1], tuple):
                    stream, to, source, size = noted
                    assert one == (stream, at(to, addresses), at(source, addresses), size)
                    continue
                function, blocks, threads, shared, arguments, places, number_at, is_programmatic = noted
                words = list(struct.unpack(f"<{len(arguments) // 8}Q", arguments))
                for place, what in places.items():
                    assert words[place // 8] == 0
                    words[place // 8] = at(what, addresses)
                content = struct.pack(f"<{len(words)}Q", *words)
                found = function, content, number_at, blocks, threads, shared, is_programmatic
                assert found == one, (seed, op, name, shape)
        return compared

    options: dict[str, Any] = {} if how == "reached" else {"max_message_bytes": 1 << 18}
    compared = on_ranks(driver, 4, work, nodes=2, local_tp_size=2, inter_dp_size=2, **options)
    assert min(compared) > 2 * 3 * len(shapes)


def test_a_call_of_a_known_size_fills_nothing(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        calls = list(itertools.product(handler.valid_op_list, [*handler._modes.valid, None]))
        for turn in range(2):
            rank.backend.barrier()
            if turn and rank.rank == 0:
                patch.setattr(_launch.Launcher, "add", None)
                patch.setattr(type(handler.para_info), "plan", None)
            rank.backend.barrier()
            for op, mode in calls:
                x = Tensor(handler.device, torch.bfloat16, 16, 64)
                run_mixed_comm(op, handler, x, None, mode)
            rank.backend.barrier()

    options: dict[str, Any] = {"nodes": 2, "local_tp_size": 2, "inter_dp_size": 2, "max_message_bytes": 1 << 18}
    with pytest.MonkeyPatch.context() as patch:
        on_ranks(driver, 4, work, **options)


def test_more_shapes_than_are_kept_are_prepared_again_one_by_one(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few shapes more than are kept, in turn: most are known each time."""
    monkeypatch.setattr("cuda_gctx.comm._calls.MOST_KEPT", 64)

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        inputs = [Tensor(handler.device, torch.bfloat16, rows + 1, 64) for rows in range(72)]
        for turn in range(4):
            driver.sequences.clear()
            for x in inputs:
                run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x, MixedCommMode.ONE_EXCHANGE)
            assert len(driver.sequences) == 72 if turn == 0 else 8 <= len(driver.sequences) < 54
        # Later shapes take the places of earlier ones.
        others = [Tensor(handler.device, torch.bfloat16, rows + 1, 128) for rows in range(32)]
        for _ in range(8):
            driver.sequences.clear()
            for x in others:
                run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x, MixedCommMode.ONE_EXCHANGE)
        assert len(driver.sequences) < 8

    on_ranks(driver, 2, work)


def test_what_packets_cannot_carry_at_once_goes_in_pieces(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        x = Tensor(handler.device, torch.bfloat16, 2 * packet_bytes(2) // 2048 + 1, 1024)
        run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, None, MixedCommMode.ONE_EXCHANGE)
        assert driver.done == in_plan(*["one_exchange"] * 3)

    on_ranks(driver, 2, work)


def test_block_sizes_are_found_by_operation_and_mode(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        kernels = (MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE)
        pairs = set(itertools.product(handler.valid_op_list, kernels))
        assert handler.max_block_size_dict.keys() == pairs
        assert {handler.max_block_size_dict[op, kernels[0]] for op, _ in pairs} == {256}

    on_ranks(driver, 2, work, local_dp_size=2, max_block_size=256)


def test_a_block_size_is_a_limit(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert handler.max_block_size_dict[MixedCommOp.ALLREDUCE, MixedCommMode.ONE_EXCHANGE] == 512
        with pytest.raises(ValueError, match=r"max_block_size must be an int from 32 to 1024, not 1025"):
            rank.handler(torch.bfloat16, max_block_size=1025)

    on_ranks(driver, 2, work, max_block_size=512)


@pytest.mark.parametrize(("size", "reached", "staged"), [(2, 512, 2048), (4, 170, 682)])
def test_without_a_mode_the_size_decides(driver: Driver, size: int, reached: int, staged: int) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        op, one = MixedCommOp.ALLREDUCE, MixedCommMode.ONE_EXCHANGE
        for is_reached, most in ((True, reached), (False, staged)):
            for kib, mode in ((most, one), (most + 1, MixedCommMode.TWO_EXCHANGE)):
                sizes = handler._messages.sizes(op, (kib, 512), 2)
                assert handler._modes.choose(sizes, None, is_reached=is_reached) == (mode, 0)

    on_ranks(driver, size, work)


def test_a_table_that_is_replaced_decides_from_then_on(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        op, one, two = MixedCommOp.ALLREDUCE, MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE
        sizes = handler._messages.sizes(op, (16, 512), 2)
        tables = [TuningTable((), ((Case(op, 1 << 14, True), (Choice(mode, 4, 1.0),)),)) for mode in (one, two)]
        for _ in range(2):
            for table, wanted in ((tables[0], (one, 4)), (tables[1], (two, 4)), (None, (one, 0))):
                for _ in range(2):
                    assert handler._modes.choose(sizes, table, is_reached=True) == wanted

    on_ranks(driver, 2, work)


def test_what_nodes_have_no_memory_for_at_once_goes_in_rounds(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        op, mode = MixedCommOp.REDUCESCATTER, MixedCommMode.HIERARCHICAL
        x = Tensor(handler.device, torch.bfloat16, 64, 80)  # two blocks of 5 KiB, with room for 2 KiB of each
        run_mixed_comm(op, handler, x, None, mode)
        between = ["two_exchange", "two_exchange", "exchange_pieces", "two_exchange"]
        assert driver.done == in_plan(*["copy", "copy", *between, "copy"] * 3)
        for rows, is_reached in ((64, False), (1 << 13, True)):
            possible = handler._modes.possible(handler._messages.sizes(op, (rows, 80), 2), is_reached=is_reached)
            assert (mode in possible) == (rows == 64)

    on_ranks(driver, 2, work, nodes=2, inter_dp_size=2, max_message_bytes=4096)


TWO_RANKS = (0, 2, 0, 2, 0, 1, None, None, None, None)
NUMBERS = {
    "grid_size": 4,
    "max_block_size": 256,
    "min_block_size": 256,
    "min_num_steps": 4,
    "max_message_bytes": 1 << 20,
}


def test_every_number_of_a_handler_is_read_alike(driver: Driver) -> None:
    def work(rank: LocalRank) -> None:
        for name in NUMBERS:
            for wrong in (True, 1.5, "x", -1, 10**30):
                given = wrong if type(wrong) is int else type(wrong).__name__
                with pytest.raises((TypeError, ValueError), match=rf"^{name} must be an int from .*, not {given}$"):
                    rank.handler(torch.bfloat16, **{name: wrong})

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(work)
    of_numpy = {name: numpy.int64(good) for name, good in NUMBERS.items()}
    on_ranks(driver, 2, lambda rank, handler: None, timeout_s=numpy.float32(5), **of_numpy)


def test_each_call_uses_the_grid_size_that_the_handler_has_then(driver: Driver) -> None:
    """Random grids, which differ between ranks, for calls that were made before and with tensors of their own."""

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        choose = random.Random(rank.rank)
        x, out = (Tensor(handler.device, torch.bfloat16, 64, 8192) for _ in range(2))
        for _ in range(30):
            if choose.random() < 0.7:
                handler.grid_size = choose.randint(1, 8)
            driver.blocks.clear()
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, out, MixedCommMode.TWO_EXCHANGE)
            assert driver.blocks == [handler.grid_size]
        for wrong in (0, 9, 1.5):
            with pytest.raises((TypeError, ValueError), match="grid_size must be an int from 1 to 8"):
                handler.grid_size = wrong  # type: ignore[assignment]

    on_ranks(driver, 2, work)


def test_each_call_uses_the_threads_and_tiles_that_the_handler_has_then(driver: Driver) -> None:
    """Random limits, which differ between ranks, give the launches of a handler that was made with them."""

    def launch(handler: MixedCommHandler, tensors: Any, mode: MixedCommMode) -> Any:
        run_mixed_comm(MixedCommOp.ALLREDUCE, handler, *tensors, mode)
        blocks, threads, arguments = driver.shapes[-1]
        tile_at = TWO_EXCHANGE.host(WORLD=2, SOURCES=2, TARGETS=2).tile_bytes.offset
        tile = arguments[tile_at : tile_at + 4] if mode is MixedCommMode.TWO_EXCHANGE else b""
        return blocks, threads, tile

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        choose = random.Random(11)  # the constructor is collective
        op, modes = MixedCommOp.ALLREDUCE, (MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE)
        tensors = [[Tensor(handler.device, torch.bfloat16, rows, 4096) for _ in range(2)] for rows in (1, 7, 32, 64)]
        for _ in range(10):
            smallest, largest = sorted(32 * choose.randint(1, 32) for _ in range(2))
            steps = choose.choice([1, 4, 64])
            how = {"min_block_size": smallest, "max_block_size": largest, "min_num_steps": steps}
            with rank.handler(torch.bfloat16, **how) as other:
                handler.min_block_size = 32
                handler.max_block_size_dict[op, modes[0]] = largest
                handler.min_block_size, handler.min_num_steps = smallest, steps
                assert (handler.min_block_size, handler.min_num_steps) == (smallest, steps)
                for given, mode in itertools.product(tensors, modes):
                    assert launch(handler, given, mode) == launch(other, given, mode)
        key = op, modes[0]
        for wrong in (0, 33, 1056, 1.5):
            with pytest.raises((TypeError, ValueError), match="max_block_size"):
                handler.max_block_size_dict[key] = wrong  # type: ignore[assignment]
            with pytest.raises((TypeError, ValueError), match="min_block_size"):
                handler.min_block_size = wrong  # type: ignore[assignment]
        with pytest.raises(ValueError, match="TWO_EXCHANGE"):
            handler.max_block_size_dict[op, modes[1]] = 64
        with pytest.raises(KeyError):
            handler.max_block_size_dict[MixedCommOp.ALLGATHER, modes[0]] = 64
        with pytest.raises((TypeError, ValueError), match="min_num_steps"):
            handler.min_num_steps = 0

    on_ranks(driver, 2, work)


def test_what_ranks_have_to_share_is_compared_before_anything_else(driver: Driver) -> None:
    def work(rank: LocalRank) -> None:
        for name, values in {"timeout_s": (5.0, 6.0), "use_autotune": (True, False)}.items():
            with pytest.raises(ValueError, match=f"^{name} must be the same on all ranks; found rank 0: {values[0]}"):
                rank.handler(torch.bfloat16, **{name: values[rank.rank]})
        # An argument that is wrong on one rank alone is an error on all.
        with pytest.raises((ValueError, RuntimeError)) as error:
            rank.handler([torch.bfloat16, torch.float32][rank.rank])
        words = "dtype must be one of torch.float16, torch.bfloat16, not torch.float32"
        whole = f"the handler could not be built: rank 1: ValueError: {words}"
        assert str(error.value) == (words if rank.rank else whole)
        with pytest.raises(ValueError, match="min_block_size must be a multiple of 32, not 33"):
            rank.handler(torch.bfloat16, min_block_size=33)

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(work)


def test_checks_of_tensors_can_be_left_out(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        x, out = (Tensor(handler.device, torch.bfloat16, *shape) for shape in ((16, 64), (8, 128)))
        how = MixedCommOp.ALLREDUCE, handler, x, out, MixedCommMode.ONE_EXCHANGE
        with pytest.raises(ValueError, match="x_out must have shape"):
            run_mixed_comm(*how)
        assert run_mixed_comm(*how, skip_check=True) is out
        assert driver.done == ["one_exchange"]

    on_ranks(driver, 2, work)


@pytest.mark.parametrize("with_mapped", [False, True])
def test_a_call_that_was_made_before_is_checked_like_the_first_one(driver: Driver, with_mapped: bool) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert rank.partition is not None
        op, mode, device = MixedCommOp.ALLREDUCE, MixedCommMode.ONE_EXCHANGE, handler.device
        x, out, other = (Tensor(device, torch.bfloat16, 16, 64) for _ in range(3))
        if with_mapped:
            handler.map_tensors(x, out)
        for _ in range(2):
            assert run_mixed_comm(op, handler, x, out, mode) is out
        assert driver.done == ["one_exchange"] * 2
        driver.done.clear()

        def changed(tensor: Tensor, name: str, value: Any) -> Tensor:
            made = copy(tensor)
            setattr(made, name, value)
            return made

        wrong = {
            "x_in must have dtype torch.bfloat16": (changed(x, "dtype", torch.float16), out),
            "x_out must have dtype torch.bfloat16": (x, changed(out, "dtype", torch.float16)),
            "x_in must be on": (changed(x, "device", torch.device("cuda", 1)), out),
            "x_in must be contiguous": (changed(x, "is_contiguous", lambda: False), out),
            "x_out must have shape": (x, changed(out, "shape", (8, 128))),
            "x_out starts at": (x, changed(out, "_address", out.data_ptr() + 8)),
            "share memory": (x, changed(out, "_address", x.data_ptr() + 64)),
        }
        for words, tensors in wrong.items():
            with pytest.raises(ValueError, match=words):
                run_mixed_comm(op, handler, *tensors, mode)
        assert driver.done == []
        assert run_mixed_comm(op, handler, x, x, mode) is x  # in place
        run_mixed_comm(op, handler, other, None, mode)
        run_mixed_comm(op, handler, x, changed(out, "shape", (8, 128)), mode, skip_check=True)
        assert driver.done == ["one_exchange"] * 3

    on_ranks(driver, 2, work, max_message_bytes=1 << 20)


def test_a_call_that_was_made_before_is_looked_at_again_when_the_handler_has_changed(driver: Driver) -> None:
    one, two, op = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE, MixedCommOp.ALLREDUCE

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        handler = rank.handler(torch.bfloat16, max_message_bytes=1 << 20)
        x, out = (Tensor(handler.device, torch.bfloat16, 16, 512) for _ in range(2))

        def launched(mode: MixedCommMode | None) -> list[str]:
            driver.done.clear()
            for _ in range(2):
                run_mixed_comm(op, handler, x, out, mode)
            half = len(driver.done) // 2
            assert driver.done[:half] == driver.done[half:]
            return driver.done[:half]

        staged = ["two_exchange"]
        assert (launched(two), launched(None)) == (staged, ["one_exchange"])
        rank.backend.barrier()
        handler.map_tensors(x, out)
        assert launched(two) == ["two_exchange"]
        handler.unmap_tensors(x, out)
        assert launched(two) == staged
        for mode, wanted in ((two, staged), (one, ["one_exchange"])):
            private(handler, "_follow")(TuningTable((), ((Case(op, 1 << 14, False), (Choice(mode, 4, 1.0),)),)))
            assert launched(None) == wanted
        rank.backend.barrier()
        handler.checkpoint_prepare()
        with pytest.raises(RuntimeError, match="has released its memory"):
            launched(one)
        handler.checkpoint_restore(rank.backend)
        assert launched(one) == ["one_exchange"]
        rank.backend.barrier()
        fault = driver.record[threading.current_thread().name]
        fault[0] = Fault.TIMEOUT << 32 | (1 - rank.rank)
        for kind in (CommFault, RuntimeError):
            with pytest.raises(kind):
                launched(one)
        assert driver.done == []
        handler.recover()
        assert launched(one) == ["one_exchange"]
        handler.shutdown()
        with pytest.raises(RuntimeError, match="has been shut down"):
            launched(one)

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(run)


def test_two_threads_use_one_handler_in_turns(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert rank.partition is not None
        stream, x = rank.partition.stream, Tensor(handler.device, torch.bfloat16, 16, 64)
        most, now = [0], [0]
        all_reduce = MixedCommOp.ALLREDUCE, handler, x, x, MixedCommMode.ONE_EXCHANGE
        driver.use(stream)
        run_mixed_comm(*all_reduce)
        sequence: Any = driver.sequences[-1]
        real = sequence.launch

        def launch(*arguments: Any) -> None:
            now[0] += 1
            most[0] = max(most[0], now[0])
            real(*arguments)
            now[0] -= 1

        sequence.launch = launch

        def call() -> None:
            driver.use(stream)
            for _ in range(50):
                run_mixed_comm(*all_reduce)

        threads = [threading.Thread(target=call) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert most == [1]

    on_ranks(driver, 2, work)


def test_every_bool_and_the_time_limit_of_a_handler_are_read_alike(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rank that is wrong asks what connects the ranks all the same.
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(is_available=lambda: False))
    bools = ("ib_enable_ibgda", "should_init_nvshmem", "use_autotune", "programmatic_launch")
    for name in bools:
        with pytest.raises(TypeError, match=f"^{name} must be a bool, not int$"):
            MixedCommHandler(*TWO_RANKS, torch.bfloat16, "cpu", **{name: 1})
    for wrong in (True, "x", 0, -1, float("nan"), float("inf")):
        with pytest.raises((TypeError, ValueError), match=r"^timeout_s must be a positive number of seconds, not"):
            MixedCommHandler(*TWO_RANKS, torch.bfloat16, "cpu", timeout_s=wrong)
    with pytest.raises(ValueError, match=r"^timeout_s must be at most 1,000,000,000, which is 31 years, not"):
        MixedCommHandler(*TWO_RANKS, torch.bfloat16, "cpu", timeout_s=1e12)
    of_numpy = dict.fromkeys(bools, numpy.False_)
    on_ranks(driver, 2, lambda rank, handler: None, **of_numpy)


def test_tuning_takes_ints(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        for wrong in ({"rounds": True}, {"rounds": 0}, {"message_bytes": [1.5]}):
            with pytest.raises((TypeError, ValueError), match=r"^(rounds|message_bytes\[0\]) must be an int .*, not"):
                handler.run_autotune(**wrong)

    on_ranks(driver, 2, work)


def test_memory_for_less_than_one_piece_of_each_block_is_refused() -> None:
    def work(rank: LocalRank) -> None:
        with pytest.raises(ValueError, match=r"max_message_bytes must be an int from 32 to .*, not 16"):
            rank.handler(torch.bfloat16, local_dp_size=2, max_message_bytes=16)

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(work)


def test_kernels_that_do_not_run_at_the_same_time_are_refused_on_all_ranks(driver: Driver) -> None:
    driver.late.add("rank 0")
    messages = []

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="do not run at the same time") as raised:
            rank.handler(torch.bfloat16, timeout_s=0.5)
        messages.append(str(raised.value))

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(run)
    assert len(messages) == 2
    assert driver.launches == 2 * _building.MEETINGS  # each rank has tried several times
    for message in messages:
        assert "rank 0: timed out after 0.5 s waiting for the kernel of rank 1" in message
        assert "CUDA_DEVICE_MAX_CONNECTIONS" in message


@pytest.mark.parametrize("torn", [set(), {"rank 1"}], ids=["whole", "torn"])
def test_all_ranks_take_halves_if_one_sees_a_torn_packet(
    torn: set[str], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.torn = torn
    image = SimpleNamespace(code=SimpleNamespace(code=IMAGE.encode()))
    taken: dict[str, list[str]] = {"rank 0": [], "rank 1": []}

    def compiled(words: dict[str, str], *_: Any) -> Any:
        taken[threading.current_thread().name].append(words["DATA_WORDS"])
        return image

    monkeypatch.setattr(_launch, "compile_kernels", compiled)
    on_ranks(
        driver,
        2,
        lambda rank, handler: run_mixed_comm(  # the kernels that are there now
            handler.valid_op_list[0],
            handler,
            Tensor(handler.device, torch.bfloat16, 16, 64),
            None,
            MixedCommMode.ONE_EXCHANGE,
        ),
    )
    assert list(taken.values()) == [["3", "2"] if torn else ["3"]] * 2


def test_ranks_that_miss_each_other_once_try_again(driver: Driver) -> None:
    driver.late.add("rank 0")

    def run(rank: LocalRank) -> int:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        with rank.handler(torch.bfloat16, timeout_s=0.5) as handler:
            handler.check()  # what the first meeting has left is gone
        return len(driver.done)

    driver.not_late_after = 1
    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        assert world.run(run) == [1 + len(MEETING)] * 2


def test_a_handler_that_exchanges_through_nvshmem_keeps_its_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialised, regions, freed = [], [], []

    class Transport(_nodes.PeerTransport):
        cannot_release = _nodes.NvshmemTransport.cannot_release

        def __init__(self, backend: Any, info: Any, device: Any, region: Any) -> None:
            super().__init__(info, [0] * info.world_size, 1 << 20)
            regions.append(region.total_bytes)

        def close(self) -> None:
            freed.append(self)

    monkeypatch.setattr(_building, "initialise", lambda *arguments, **options: initialised.append(1))
    monkeypatch.setattr(_building, "NvshmemTransport", Transport)

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        place = rank.rank, 2, 0, 1, rank.rank, 2, None, None, None, None
        with MixedCommHandler(
            *place, torch.float16, "cuda:0", partition=rank.partition, comm_backend=rank.backend
        ) as handler:
            with pytest.raises(NotImplementedError, match="NVSHMEM cannot release memory"):
                handler.checkpoint_prepare()
            x = Tensor(handler.device, torch.float16, 16, 64)
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, None, MixedCommMode.HIERARCHICAL)

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(run)
    assert len(initialised) == len(regions) == len(freed) == 2


class OtherHosts(_nodes.PeerTransport):
    """Stands in for a transport that reaches other hosts."""

    cannot_release = "it is a stand-in"

    def __init__(self, backend: Any, info: Any, device: Any, region: Any) -> None:
        super().__init__(info, [1 << 40] * info.world_size, 0)


def test_ranks_of_a_host_map_each_other_and_nodes_are_hosts(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_building, "initialise", lambda *arguments, **options: None)
    monkeypatch.setattr(_building, "NvshmemTransport", OtherHosts)
    monkeypatch.setattr(_memory, "host_identity", lambda: f"host {int(threading.current_thread().name[-1]) // 2}")

    def work(rank: LocalRank, handler: MixedCommHandler) -> tuple[int, ...]:
        assert handler.valid_mode_list == [MixedCommMode.HIERARCHICAL, MixedCommMode.AUTOTUNE]
        assert launched(driver, handler, MixedCommOp.ALLREDUCE, MixedCommMode.AUTOTUNE) == in_plan(
            *("copy", "two_exchange", "exchange_pieces", "two_exchange", "copy")
        )
        with pytest.raises(ValueError, match="mode ONE_EXCHANGE is not valid for this handler; valid: HIERARCHICAL"):
            all_reduce(handler)
        x = Tensor(handler.device, torch.bfloat16, 16, 64)
        x.untyped_storage = lambda: x  # type: ignore[attr-defined]
        handler.map_tensors(x)
        run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x)
        assert "copy" not in driver.done[-4:]
        assert handler._gpu is not None
        assert handler._gpu.workspaces is not None
        return handler._gpu.workspaces.addresses

    how = {"nodes": 2, "transport": "nvshmem", "max_message_bytes": 1 << 20}
    # The ranks of a node meet, and send no packets.
    addresses = on_ranks(driver, 4, work, ["two_exchange"], **how)
    for rank, seen in enumerate(addresses):
        assert [bool(address) for address in seen] == [other // 2 == rank // 2 for other in range(4)]

    def refused(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        for options, words in (
            ({"nodes": 1}, r"ranks \[\d, \d\] of the node of rank \d run on another host"),
            ({"nodes": 2, "transport": "peers"}, 'nodes on several hosts do not reach each other by transport="peers"'),
            ({"nodes": 2, "transport": "nccl"}, 'transport="nccl" needs a process group of all ranks'),
            ({"transport": "fabric"}, "transport must be one of nvshmem, nccl, peers, not 'fabric'"),
        ):
            with pytest.raises((RuntimeError, ValueError), match=words):
                rank.handler(torch.bfloat16, **options)

    with local_world(4, Device(0), sms=8, timeout_s=30) as world:
        world.run(refused)


def all_reduce(handler: MixedCommHandler, mode: MixedCommMode = MixedCommMode.ONE_EXCHANGE) -> None:
    x = Tensor(handler.device, handler.dtype, 16, 64)
    run_mixed_comm(handler.valid_op_list[0], handler, x, None, mode)


def test_a_call_on_another_stream_of_the_partition_waits_for_the_call_before(driver: Any, machine: Any) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert rank.partition is not None
        streams = rank.partition.stream_pool(2)
        all_reduce(handler)
        rank.backend.barrier()
        before = machine.calls("cuStreamWaitEvent")
        rank.backend.barrier()
        for number in (1, 1, 0):
            driver.use(streams[number])
            all_reduce(handler)
        rank.backend.barrier()
        # Each rank has gone to the other stream and back; a call on the same stream waits for nothing.
        assert machine.calls("cuStreamWaitEvent") - before == 2 * rank.size
        assert driver.done == ["one_exchange"] * 4

    on_ranks(driver, 2, work)


def test_streams_of_calls_end_when_their_owner_closes_them(driver: Any, machine: Any) -> None:
    """A handler keeps the stream of its last call alone, and none after its shutdown."""

    def streams() -> int:
        return sum(one.kind == "stream" for one in machine.ledger().live)

    def work(rank: LocalRank, handler: MixedCommHandler) -> MixedCommHandler:
        assert rank.partition is not None
        for _ in range(20):
            stream = rank.partition.context.create_stream()
            driver.use(stream)
            all_reduce(handler)
            stream.sync()
            stream.close()
        return handler

    with local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(lambda rank: rank.backend.barrier())
        before = streams()

        def run(rank: LocalRank) -> Any:
            driver.use(rank.partition.stream)
            handler = rank.handler(torch.bfloat16)
            work(rank, handler)
            rank.backend.barrier()
            during = streams() - before
            rank.backend.barrier()
            handler.shutdown()
            return during, handler

        # Each rank keeps the partition's own stream, that of the last call, and a closed one for the next request.
        kept = world.run(run)
        assert [during for during, _ in kept] == [6, 6]


def test_handlers_of_a_partition_have_one_order(driver: Any, machine: Any) -> None:
    """Calls of two handlers on two streams of a partition wait for each other."""

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert rank.partition is not None
        with rank.handler(torch.bfloat16) as other:
            streams = rank.partition.stream_pool(2)
            choose = random.Random(7)
            last, changes = None, 0
            rank.backend.barrier()
            before = machine.calls("cuStreamWaitEvent")
            rank.backend.barrier()
            for _ in range(20):
                stream = choose.choice(streams)
                driver.use(stream)
                all_reduce(choose.choice([handler, other]))
                changes += last is not stream
                last = stream
            rank.backend.barrier()
            # The first call comes behind those with which the handlers were built.
            assert machine.calls("cuStreamWaitEvent") - before == rank.size * (changes - 1)
            rank.backend.barrier()

    on_ranks(driver, 2, work)


def test_an_input_that_requires_grad_is_refused_outside_no_grad(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    grad = threading.local()
    monkeypatch.setattr(torch, "is_grad_enabled", lambda: getattr(grad, "is_on", True), raising=False)

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        op, mode = MixedCommOp.ALLREDUCE, MixedCommMode.ONE_EXCHANGE
        for skip_check, wrong in itertools.product((False, True), range(2)):
            tensors = [Tensor(handler.device, torch.bfloat16, 16, 64) for _ in range(2)]
            run_mixed_comm(op, handler, *tensors, mode, skip_check)
            tensors[wrong].requires_grad = True
            driver.done.clear()
            grad.is_on = True
            with pytest.raises(ValueError, match=r"x_(in|out) requires grad.*torch.no_grad"):
                run_mixed_comm(op, handler, *tensors, mode, skip_check)
            assert driver.done == []
            grad.is_on = False
            run_mixed_comm(op, handler, *tensors, mode, skip_check)
            assert driver.done == ["one_exchange"]

    on_ranks(driver, 2, work)


def test_a_handler_is_refused_in_another_partition(driver: Any) -> None:
    partitions: dict[int, Any] = {}

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert rank.partition is not None
        own = rank.partition.stream_pool(1)[0]
        partitions[rank.rank] = rank.partition
        rank.backend.barrier()
        driver.use(own)
        all_reduce(handler)
        driver.use(partitions[1 - rank.rank].stream)
        with pytest.raises(RuntimeError, match="would deadlock"):
            all_reduce(handler)
        # What was refused has launched nothing, and the handler works on.
        driver.use(own)
        all_reduce(handler)
        assert driver.done == ["one_exchange"] * 2

    on_ranks(driver, 2, work)


def test_a_capture_follows_calls_on_another_stream_and_calls_follow_it(driver: Any, machine: Any) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert rank.partition is not None
        own, other, third = rank.partition.stream_pool(3)
        x = Tensor(handler.device, torch.bfloat16, 16, 64)

        def call_on(stream: Any) -> None:
            driver.use(stream)
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x, MixedCommMode.ONE_EXCHANGE)

        call_on(own)
        rank.backend.barrier()
        waits = machine.calls("cuStreamWaitEvent")
        rank.backend.barrier()
        with other.capture():
            call_on(other)
            # What is captured does not run yet.
            call_on(own)
            with third.capture():
                call_on(third)
        rank.backend.barrier()
        assert machine.calls("cuStreamWaitEvent") == waits
        rank.backend.barrier()
        # A stream that has joined the capture is ordered in it.
        with other.capture():
            call_on(other)
            third.wait(other)
            call_on(third)
            other.wait(third)
        call_on(own)
        assert driver.done == ["one_exchange"] * 7

    on_ranks(driver, 2, work)


def test_two_kernels_at_once_are_a_fault_that_names_both_calls(driver: Driver) -> None:
    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        handler = rank.handler(torch.bfloat16)
        assert not handler.has_fault
        record = driver.record[threading.current_thread().name]
        record[0], record[1] = Fault.OVERLAP << 32 | rank.rank, 5 << 32 | (1 << 16 | 6)
        assert handler.has_fault
        with pytest.raises(CommFault, match=r"of ALLREDUCE \(launch 5\) and of ALLGATHER \(launch 6\)") as fault:
            handler.check()
        assert (fault.value.kind, fault.value.peer_rank) == ("overlap", rank.rank)
        assert handler.has_fault
        handler.shutdown()

    with session("h200", check=False, unknown="ignore"), local_world(2, Device(0), sms=8, timeout_s=30) as world:
        world.run(run)
        driver.close()


def test_a_handler_without_a_partition_works_on_the_default_stream_of_torch(driver: Any) -> None:
    default, legacy = SimpleNamespace(handle=0), 1

    def run(rank: LocalRank) -> None:
        driver.use(default)
        place = rank.rank, rank.size, rank.rank, rank.size, 0, 1, None, None, None, None
        device = f"cuda:{rank.device.device_id}"
        with MixedCommHandler(*place, torch.bfloat16, device, comm_backend=rank.backend) as handler:
            other = Device(rank.device.device_id).context.create_stream()
            for stream in (default, default, other, default):
                driver.use(stream)
                all_reduce(handler)
        here = [legacy] * (len(MEETING) + 2)
        assert [stream for _, stream in driver.streams] == [*here, other.handle, legacy]

    with local_world(2, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        world.run(run)


class Buffer(Tensor):
    """A tensor of one dimension, of which tuning uses parts."""

    def numel(self) -> int:
        return prod(self.shape)

    def __getitem__(self, part: slice) -> Buffer:
        return self._of(part.stop)

    def view(self, shape: tuple[int, ...]) -> Buffer:
        return self._of(*shape)

    def untyped_storage(self) -> object:
        return self

    def _of(self, *shape: int) -> Buffer:
        part = copy(self)
        part.shape = shape
        return part


class TorchEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        stream.own.record()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: TorchEvent) -> float:
        return 1.0


@pytest.mark.parametrize("staged_bytes", [None, 1 << 20])
def test_tuning_captures_without_the_graphs_of_torch(
    driver: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, staged_bytes: int | None
) -> None:
    """Threads that capture share torch's registry of graphs: there is none in this stand-in."""
    assert not hasattr(torch.cuda, "CUDAGraph")
    monkeypatch.setattr(_measured, "import_module", lambda name: torch)
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: Buffer(device, dtype, size), raising=False)
    monkeypatch.setattr(torch.cuda, "Event", TorchEvent, raising=False)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext, raising=False)

    def work(rank: LocalRank, handler: MixedCommHandler) -> Any:
        assert rank.partition is not None
        own = rank.partition.stream
        stream = SimpleNamespace(cuda_stream=own.handle, own=own, synchronize=own.sync)
        rank.backend.barrier()
        if rank.rank == 0:
            torch.cuda.current_stream = lambda device: streams[threading.current_thread().name]
        streams[threading.current_thread().name] = stream
        rank.backend.barrier()
        return handler.run_autotune(message_bytes=[1 << 12], rounds=1, progress=False)

    streams: dict[str, Any] = {}
    before = machine.calls("cuStreamBeginCapture")
    table, other = on_ranks(driver, 2, work, max_message_bytes=staged_bytes)
    assert table == other
    kernels = (MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE)
    wanted: dict[MixedCommOp, Any] = {MixedCommOp.ALLREDUCE: set(itertools.product(kernels, (8, 4, 2)))}
    if staged_bytes:
        wanted[MixedCommOp.BROADCAST] = {(MixedCommMode.COPY_ENGINES, 0)}
    kinds = [True] if staged_bytes is None else [False, True]  # reached by all ranks, or staged and mapped
    assert [(case.op, case.is_mapped) for case, _ in table.rankings] == list(itertools.product(wanted, kinds))
    for case, ranking in table.rankings:
        assert {(one.mode, one.grid) for one in ranking} == wanted[case.op]
    # Each candidate once, and in two more turns those that are as fast as the fastest, which are all of them here.
    turns = sum(len(ranking) * (3 if len(ranking) > 1 else 1) for _, ranking in table.rankings)
    assert machine.calls("cuStreamBeginCapture") - before == 2 * turns


class FourMethods:
    """A backend with nothing but what every backend has."""

    def __init__(self, local: Any, rank: int | None = None) -> None:
        self._local = local
        self._rank = local.Get_rank() if rank is None else rank

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return int(self._local.Get_size())

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self._local.bcast(obj, root)

    def barrier(self) -> None:
        self._local.barrier()


def private(handler: MixedCommHandler, name: str) -> Any:
    """What FlashInfer's tests read of its handler."""
    return getattr(handler, name)


def test_programs_for_flashinfer_go_step_by_step(driver: Driver) -> None:
    """What its tests of collectives and of checkpoints do, with the import changed; kernels are empty here."""
    rows, columns = 4, 64

    def program(rank: LocalRank) -> None:
        assert rank.partition is not None
        main, of_captures = rank.partition.stream_pool(2)
        driver.use(main)  # type: ignore[attr-defined]
        place = dict.fromkeys(("inter_rank",), 0) | dict.fromkeys(("inter_size", "inter_tp_size", "inter_dp_size"), 1)
        place |= {"world_rank": rank.rank, "local_rank": rank.rank, "world_size": rank.size, "local_size": rank.size}

        def make(tp: int, **options: Any) -> mixed_comm.MixedCommHandler:
            # A world of threads passes what connects them, and where they run; programs of processes do not.
            ours = {
                "partition": rank.partition,
                "comm_backend": FourMethods(rank.backend),
                "max_message_bytes": 1 << 20,
            }
            grids = {"local_tp_size": tp, "local_dp_size": rank.size // tp}
            return mixed_comm.MixedCommHandler(
                **place, **grids, dtype=torch.float16, device="cuda:0", **options, **ours
            )

        def addresses(handler: mixed_comm.MixedCommHandler) -> tuple[Any, ...]:
            return tuple(handler.uc_ptr_list), tuple(handler.mc_ptr_dict.values()), handler.uc_buffer_dict["raw"]

        for tp in (1, 2):
            handler = make(tp)
            info = handler.para_info
            assert (info.tp_size, info.dp_size, info.use_inter) == (tp, rank.size // tp, False)
            for op, mode in itertools.product(handler.valid_op_list, handler.valid_mode_list):
                assert handler.max_block_size_dict.get((op, mode), None) != 0
                shape = (rows * info.dp_size if op.scatters else rows), columns
                x_in = Tensor(handler.device, torch.float16, *shape)
                x_out = run_mixed_comm(op, handler, x_in, mode=mode)
                assert x_out.shape == info.output_shape(op, shape)
            handler.shutdown()

        handler = make(1, use_autotune=False)
        assert MixedCommMode.AUTOTUNE not in handler.get_valid_mode_list()
        with pytest.raises(ValueError, match="AUTOTUNE is not valid"):
            all_reduce(handler, MixedCommMode.AUTOTUNE)
        before, graphs = addresses(handler), []
        modes = MixedCommMode.FUSED_OPT_WAITS_UC, MixedCommMode.FUSED_OPT_WAITS_MC  # type: ignore[attr-defined]
        for op, mode in itertools.product((MixedCommOp.ALLGATHER, MixedCommOp.REDUCESCATTER), modes):
            shape = (rows * rank.size if op.scatters else rows), columns
            x_in = Tensor(handler.device, torch.float16, *shape)
            x_out = Tensor(handler.device, torch.float16, *handler.para_info.output_shape(op, shape))
            run_mixed_comm(op, handler, x_in, x_out, mode)
            main.sync()
            rank.backend.barrier()
            # torch.cuda.graph() captures on a stream of its own.
            driver.use(of_captures)  # type: ignore[attr-defined]
            with of_captures.capture() as captured:
                run_mixed_comm(op, handler, x_in, x_out, mode)
            driver.use(main)  # type: ignore[attr-defined]
            graphs.append(captured.graph.instantiate())
            graphs[-1].launch(main)
            main.sync()
        handler.checkpoint_prepare()
        handler.checkpoint_prepare()
        assert not private(handler, "_vm_mapped")
        assert addresses(handler) == before
        fresh = FourMethods(rank.backend)
        handler.checkpoint_restore(fresh)
        handler.checkpoint_restore(fresh)
        assert private(handler, "_vm_mapped")
        assert private(handler, "_vmm_comm_backend") is fresh
        assert addresses(handler) == before
        for graph in graphs:
            graph.launch(main)
            main.sync()
            graph.close()
        handler.checkpoint_prepare()
        handler.checkpoint_restore(fresh)
        assert handler.is_running
        handler.shutdown()
        assert not handler.is_running
        assert not private(handler, "_vm_mapped")

        detached = make(1)
        detached.checkpoint_prepare()
        detached.checkpoint_prepare()
        detached.shutdown()
        assert not detached.is_running
        assert not private(detached, "_vm_mapped")

    with local_world(2, Device(0), sms=8, timeout_s=30) as world, warnings.catch_warnings():
        # Once in a process, that there is no multicast.
        warnings.filterwarnings("ignore", message=".*no multicast", category=UserWarning)
        world.run(program)


@pytest.mark.parametrize("how", ["reached", "staged", "mapped"])
def test_blocks_of_any_size_are_padded_for_the_kernels(driver: Driver, how: str) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        op = handler.valid_op_list[0]
        x, out, even = (Tensor(handler.device, torch.bfloat16, *shape) for shape in [(3, 3), (3, 3), (1, 16)])
        for mode in (*handler.valid_mode_list, None):
            driver.done.clear()
            run_mixed_comm(op, handler, even, None, mode)
            wanted = ["copy by torch", *driver.done, "copy by torch"]
            if how == "mapped":
                handler.map_tensors(x, out)
            made = len(driver.sequences)
            for x_out in [out, x, None] * 2:
                driver.done.clear()
                found = run_mixed_comm(op, handler, x, x_out, mode)
                assert found is x_out or x_out is None
                assert driver.done == wanted
            # A plan for each output that may overlap in another way; none for calls that were made before.
            assert len(driver.sequences) - made <= 3
            assert handler.select_autotune_mode(op, x) is handler.select_autotune_mode(op, even)
            if how == "mapped":
                handler.unmap_tensors(x, out)

    options: dict[str, Any] = {} if how == "reached" else {"max_message_bytes": 1 << 20}
    on_ranks(driver, 2, work, **options)


def test_ranks_notice_other_sizes_of_equal_padded_blocks(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        arguments = {}
        for shape in ((3, 3), (9, 1), (2, 5), (1, 16)):
            driver.shapes.clear()
            x = Tensor(handler.device, torch.bfloat16, *shape)
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, None, MixedCommMode.ONE_EXCHANGE)
            [(*_, arguments[shape])] = driver.shapes
        assert arguments.pop((9, 1)) == arguments[3, 3]
        assert len(set(arguments.values())) == 3

    on_ranks(driver, 2, work)


def test_a_capture_keeps_padded_tensors_until_shutdown(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Padded(Tensor):
        def new_empty(self, shape: tuple[int, ...]) -> Tensor:
            made.append(weakref.ref(padded := super().new_empty(shape)))
            return padded

    made: list[Any] = []
    is_capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing[0])
    handlers: list[MixedCommHandler] = []

    def alive() -> int:
        gc.collect()
        return sum(ref() is not None for ref in made)

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        x = Padded(handler.device, torch.bfloat16, 3, 3)
        for _ in range(2):
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x)
        rank.backend.barrier()
        assert (len(made), alive()) == (8, 0)
        rank.backend.barrier()
        is_capturing[0] = True
        run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x, x)
        rank.backend.barrier()
        assert alive() == 4
        rank.backend.barrier()
        handlers.append(handler)

    on_ranks(driver, 2, work)
    assert alive() == 0
    assert len(handlers) == 2


@pytest.mark.parametrize("mode", [None, MixedCommMode.NCCL_ONE])
def test_nccl_gets_blocks_of_any_size_as_they_are(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, mode: MixedCommMode | None
) -> None:
    one = MixedCommMode.NCCL_ONE
    done: list[Any] = []
    monkeypatch.setattr(_modes, "exchange_with_nccl", lambda info, op, mode, *tensors: done.append((mode, tensors[:2])))
    monkeypatch.setattr(_groups.Groups, "nccl_modes", lambda groups, arguments: [one])
    op = MixedCommOp.ALLREDUCE if mode else MixedCommOp.BROADCAST

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        x, out = (Tensor(handler.device, torch.bfloat16, 3, 3) for _ in range(2))
        for _ in range(2):
            run_mixed_comm(op, handler, x, out, mode, root=None if mode else 0)
        assert [tensors for _, tensors in done if tensors[0] is x] == [(x, out)] * 2
        assert driver.done == []

    on_ranks(driver, 2, work)
    assert [mode for mode, _ in done] == [one] * 4


@pytest.mark.parametrize("has_nccl", [False, True])
def test_all_to_alls_go_in_packets_as_far_as_these_carry_them_at_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, has_nccl: bool
) -> None:
    kinds = [MixedCommMode.NCCL_ONE] if has_nccl else []
    monkeypatch.setattr(_groups.Groups, "nccl_modes", lambda groups, arguments: kinds)
    one = MixedCommMode.ONE_EXCHANGE
    largest = packet_bytes(2) * 2
    wanted = {1024: one, largest // 2: one, largest: one, largest + 64: kinds[0] if kinds else one}

    def work(rank: LocalRank, handler: MixedCommHandler) -> dict[int, MixedCommMode]:
        sizes = {size: handler._messages.sizes(MixedCommOp.ALLTOALL, (2, size // 4), 2) for size in wanted}
        return {size: handler._modes.choose(found, None, is_reached=False)[0] for size, found in sizes.items()}

    assert on_ranks(driver, 2, work, local_dp_size=2) == [wanted] * 2


def test_a_broadcast_goes_to_nccl_where_it_is_and_to_copy_engines_elsewhere(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(_modes, "exchange_with_nccl", lambda info, op, mode, *how: done.append((op, mode, how[-1])))
    kinds: list[MixedCommMode] = []
    monkeypatch.setattr(_groups.Groups, "nccl_modes", lambda groups, arguments: kinds)
    op, copies = MixedCommOp.BROADCAST, MixedCommMode.COPY_ENGINES

    def work(rank: LocalRank, handler: MixedCommHandler) -> list[str]:
        x, uneven = Tensor(handler.device, torch.bfloat16, 16, 64), Tensor(handler.device, torch.bfloat16, 3, 3)
        assert op not in handler.valid_op_list
        if kinds:
            for one in (x, uneven):
                run_mixed_comm(op, handler, one, root=1)
            with pytest.raises(
                ValueError, match="NCCL_TP_DP does not compute BROADCAST; modes that do: COPY_ENGINES, NCCL_ONE"
            ):
                run_mixed_comm(op, handler, x, None, MixedCommMode.NCCL_TP_DP, root=1)
            return list(driver.done)
        if copies not in handler._modes.possible(handler._messages.sizes(op, x.shape, 2), is_reached=True):
            # Nothing is reserved where all ranks are threads on one device.
            with pytest.raises(ValueError, match="no mode of this handler computes BROADCAST: it needs NCCL, or ranks"):
                run_mixed_comm(op, handler, x, root=1)
            return list(driver.done)
        made = len(driver.sequences)
        run_mixed_comm(op, handler, x, root=1)
        assert len(driver.sequences) == made + 1
        driver.done.clear()
        run_mixed_comm(op, handler, x, root=1)
        assert len(driver.sequences) == made + 1
        before = list(driver.done)
        with pytest.raises(ValueError, match="BROADCAST needs a root"):  # that of the call before is not kept
            run_mixed_comm(op, handler, x)
        driver.done.clear()
        run_mixed_comm(op, handler, uneven, root=1)
        padded, driver.done[:] = list(driver.done), before
        assert padded == ["copy by torch", *before, "copy by torch"]
        beside = copy(x)
        beside._address += 16
        with pytest.raises(ValueError, match="share memory"):
            run_mixed_comm(op, handler, x, beside, root=1)
        return list(driver.done)

    assert on_ranks(driver, 2, work) == [[]] * 2
    staged = {"max_message_bytes": 1 << 20}
    meet = "two_exchange"
    of_root, of_other = ["copy", meet, "copy", meet], [meet, "copy", meet]
    assert on_ranks(driver, 2, work, **staged) == [in_plan(*of_other), in_plan(*of_root)]
    assert done == []
    kinds += [MixedCommMode.NCCL_ONE, MixedCommMode.NCCL_TP_DP]
    assert on_ranks(driver, 2, work, **staged) == [[]] * 2
    assert done == [(op, MixedCommMode.NCCL_ONE, 1)] * 4


def test_a_checkpoint_comes_back_at_the_same_addresses_through_any_backend(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert handler._gpu is not None
        assert handler._gpu.workspaces is not None
        before = handler._gpu.workspaces.addresses
        handler.checkpoint_prepare()
        handler.checkpoint_prepare()
        with pytest.raises(RuntimeError, match=r"call checkpoint_restore\(\) first"):
            all_reduce(handler)
        with pytest.raises(ValueError, match=r"the backend is rank 1|the backend is rank 0"):
            handler.checkpoint_restore(FourMethods(rank.backend, 1 - rank.rank))
        handler.checkpoint_restore(FourMethods(rank.backend))
        assert handler._gpu.workspaces.addresses == before
        handler.checkpoint_restore(FourMethods(rank.backend))
        all_reduce(handler)

    on_ranks(driver, 2, work)


def test_a_backend_of_another_rank_is_an_error_on_all(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        handler.checkpoint_prepare()
        wrong = "the backend is rank 0 of 2, and the handler is rank 1 of 2"
        all_of_them = rf"^the backend is not that of the handler: rank 1: ValueError: {wrong}$"
        kind, words = (ValueError, rf"^{wrong}$") if rank.rank == 1 else (RuntimeError, all_of_them)
        with pytest.raises(kind, match=words):
            handler.checkpoint_restore(FourMethods(rank.backend, 0))
        handler.checkpoint_restore(rank.backend)
        all_reduce(handler)

    on_ranks(driver, 2, work)


# The first one is for the rank's own device; the second one, when the ranks meet, for those of this process.
@pytest.mark.parametrize(("name", "number"), [("cuMemMap", 1), ("cuMemSetAccess", 1), ("cuMemSetAccess", 2)])
def test_memory_that_one_rank_cannot_restore_is_an_error_on_all(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    left: dict[int, int] = {}

    def failing(called: str, *arguments: Any) -> Any:
        rank = int(threading.current_thread().name.rpartition(" ")[2])
        if called == name and left.get(rank):
            left[rank] -= 1
            if not left[rank]:
                raise CUDAError(f"{name} failed", code=2, name="CUDA_ERROR_OUT_OF_MEMORY", call=name)
        return driver.call(called, *arguments)

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        handler.checkpoint_prepare()
        left.update({1: number} if rank.rank == 1 else {})
        rank.backend.barrier()
        with pytest.raises(CUDAError if rank.rank == 1 else RuntimeError, match=f"{name} failed") as error:
            handler.checkpoint_restore(rank.backend)
        assert rank.rank == 1 or "rank 1: CUDAError" in str(error.value)
        handler.checkpoint_restore(rank.backend)
        all_reduce(handler)

    monkeypatch.setattr(_memory, "call", failing)
    on_ranks(driver, 2, work)


def test_after_a_fault_a_handler_raises_keeps_its_memory_and_closes_twice(driver: Driver) -> None:
    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        handler = rank.handler(torch.bfloat16)
        driver.record[threading.current_thread().name][0] = Fault.TIMEOUT << 32 | (1 - rank.rank)
        with pytest.raises(CommFault, match=f"rank {rank.rank} waited for rank {1 - rank.rank}") as fault:
            handler.check()
        assert (fault.value.kind, fault.value.peer_rank) == ("timeout", 1 - rank.rank)
        with pytest.raises(RuntimeError, match="has failed"):
            all_reduce(handler)
        handler.shutdown()
        handler.shutdown()
        with pytest.raises(RuntimeError, match="has been shut down"):
            all_reduce(handler)

    with session("h200", check=False, unknown="ignore") as machine:
        with local_world(2, Device(0), sms=8, timeout_s=30) as world:
            world.run(run)
        kept = machine.ledger()
        assert [len(kept.live_of(kind)) for kind in ("mapped memory", "memory handle", "host memory")] == [2] * 3
        driver.close()


def test_groups_that_are_not_destroyed_end_a_shutdown_with_a_warning(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        new_group=lambda **how: "a group",
        destroy_process_group=lambda group: ends.wait(60),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    with pytest.raises(RuntimeError, match="NCCL waits for the graphs that contain its calls"):
        Groups(None, 1.0).destroy(0, SimpleNamespace(type="cpu"), 0.01)
    ends.set()

    def fail(*given: Any) -> None:
        raise RuntimeError("its groups were not destroyed")

    monkeypatch.setattr(Groups, "destroy", fail)
    with session("h200", check=False, unknown="ignore") as machine:
        with pytest.warns(ResourceWarning, match="was shut down, but its groups were not destroyed"):
            on_ranks(driver, 2, lambda rank, handler: handler.shutdown())
        # Everything else is freed.
        assert not any(machine.ledger().live_of(kind) for kind in ("mapped memory", "memory handle", "host memory"))
        driver.close()


class PlainBackend:
    """A backend of the program, whose barrier has no time limit. is_left: the first rank never comes to it again."""

    def __init__(self, backend: Any, is_left: threading.Event) -> None:
        self._backend, self._is_left = backend, is_left
        self.ends = threading.Event()

    def Get_rank(self) -> int:
        return int(self._backend.Get_rank())

    def Get_size(self) -> int:
        return int(self._backend.Get_size())

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self._backend.bcast(value, root)

    def barrier(self) -> None:
        if self._is_left.is_set():
            self.ends.wait()
        else:
            self._backend.barrier()


@pytest.mark.parametrize("what", ["a rank", "the work"])
def test_a_shutdown_that_waits_in_vain_ends_with_a_warning_and_keeps_the_memory(
    what: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_arguments, "HOST_S", 1.0)
    is_left, may_end = threading.Event(), threading.Event()
    host_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: may_end.wait())
    reason = "the other ranks did not come within 1 s" if what == "a rank" else "its work did not end within 1 s"

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        with_plain: Any = copy(rank)
        with_plain.backend = PlainBackend(rank.backend, is_left)
        handler = with_plain.handler(torch.bfloat16, timeout_s=1.0)
        rank.backend.barrier()
        if rank.rank == 0:
            is_left.set()
            if what == "the work":
                function = _driver_calls.driver().CUhostFn(ctypes.cast(host_function, ctypes.c_void_p).value)
                _driver_calls.call("cuLaunchHostFunc", rank.partition.stream.handle, function, 0)
            with pytest.warns(ResourceWarning, match=f"keeps its memory mapped: {reason}"):
                handler.shutdown()
            with pytest.raises(RuntimeError, match="has been shut down"):
                all_reduce(handler)
        rank.backend.barrier()
        may_end.set()
        if rank.rank == 1:
            with pytest.warns(ResourceWarning, match="the other ranks did not come"):
                handler.shutdown()
        with_plain.backend.ends.set()

    with session("h200", check=False, unknown="ignore") as machine:
        try:
            with local_world(2, Device(0), sms=8, timeout_s=30) as world:
                world.run(run)
        finally:
            may_end.set()
        kept = machine.ledger()
        assert [len(kept.live_of(kind)) for kind in ("mapped memory", "memory handle", "host memory")] == [2] * 3
        driver.close()


def test_after_a_fault_all_ranks_recover_and_free_everything(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        all_reduce(handler)
        rank.backend.barrier()
        assert handler._gpu is not None
        assert handler._gpu.workspaces is not None
        own = handler._gpu.workspaces.addresses[rank.rank]
        with Device(0).context.current():
            _driver_calls.call("cuMemsetD8", own, 1, 1 << 20)
        if rank.rank == 0:  # the other one has seen nothing
            driver.record[threading.current_thread().name][0] = Fault.TIMEOUT << 32 | 1
            with pytest.raises(CommFault, match=r"cannot be used until all ranks call recover\(\)"):
                all_reduce(handler)
            with pytest.raises(RuntimeError, match=r"has failed: call recover\(\) on all ranks"):
                all_reduce(handler)
        handler.recover()
        found = ctypes.create_string_buffer(1 << 20)
        with Device(0).context.current():
            _driver_calls.call("cuMemcpyDtoH", found, own, 1 << 20)
        assert found.raw == bytes(1 << 20)
        assert not handler.has_fault
        all_reduce(handler)
        handler.recover()
        handler.shutdown()
        with pytest.raises(RuntimeError, match="has been shut down"):
            handler.recover()

    on_ranks(driver, 2, work)  # the machine of the test finds what is left


def test_recover_waits_for_all_streams_of_the_device_and_clears_nothing_before(driver: Driver) -> None:
    """A replay on a stream of the primary context may still use the memory of the handler."""
    may_end = threading.Event()
    host_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: may_end.wait())
    content = b"\1" * 4096

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        assert handler._gpu is not None
        assert handler._gpu.workspaces is not None
        own = handler._gpu.workspaces.addresses[rank.rank]

        def memory() -> bytes:
            found = ctypes.create_string_buffer(len(content))
            with Device(0).context.current():
                stream = Device(0).context.create_stream()
                _driver_calls.call("cuMemcpyDtoHAsync", found, own, len(content), stream.handle)
                stream.sync()
            return found.raw

        with Device(0).context.current():
            _driver_calls.call("cuMemcpyHtoD", own, content, len(content))
        driver.record[threading.current_thread().name][0] = Fault.TIMEOUT << 32 | 1
        rank.backend.barrier()
        if rank.rank == 0:
            stream = Device(0).context.create_stream()
            function = _driver_calls.driver().CUhostFn(ctypes.cast(host_function, ctypes.c_void_p).value)
            _driver_calls.call("cuLaunchHostFunc", stream.handle, function, 0)
        rank.backend.barrier()
        with pytest.raises(RuntimeError, match=r"did not end within 2\.1 s"):
            handler.recover()
        assert handler.has_fault
        assert memory() == content
        rank.backend.barrier()
        may_end.set()
        handler.recover()
        assert not handler.has_fault
        assert memory() == bytes(len(content))
        all_reduce(handler)

    try:
        on_ranks(driver, 2, work, timeout_s=0.1)
    finally:
        may_end.set()


SYMMETRIC: dict[str, Any] = {"max_message_bytes": 1 << 20, "symmetric_bytes": 1 << 20}


@pytest.mark.parametrize("where", ["symmetric", "one of them", "ordinary"])
def test_symmetric_tensors_are_not_staged(where: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a graph; what is fetched by copy engines is fetched from where it is."""
    monkeypatch.setattr(_modes, "COPIED_BY_KERNEL_BYTES", 0)

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        with rank.handler(torch.bfloat16, local_dp_size=2, **SYMMETRIC) as handler:

            def tensor(*shape: int) -> Any:
                return Tensor(handler.device, torch.bfloat16, *shape)

            x_in = tensor(16, 64) if where == "ordinary" else handler.empty((16, 64))
            x_out = handler.empty([32, 64], torch.bfloat16) if where == "symmetric" else tensor(32, 64)

            def steps(mode: MixedCommMode) -> list[str]:
                driver.done.clear()
                run_mixed_comm(MixedCommOp.ALLGATHER, handler, x_in, x_out, mode)
                return list(driver.done)

            for _ in range(2):
                found = steps(MixedCommMode.TWO_EXCHANGE)
                assert found == ["two_exchange"] if where == "symmetric" else found.count("copy") >= 1
            assert steps(MixedCommMode.COPY_ENGINES).count("copy") == (3 if where == "ordinary" else 2)
            with rank.partition.stream.capture() as captured:
                assert steps(MixedCommMode.TWO_EXCHANGE) == found
            captured.graph.close()
            rank.backend.barrier()

    with local_world(2, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        world.run(run)


def test_a_handler_with_symmetric_memory_makes_a_plan_once_for_ordinary_tensors(driver: Driver) -> None:
    """Also where calls make their outputs; symmetric outputs have plans of their own."""

    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        x_in = Tensor(handler.device, torch.bfloat16, 16, 64)
        symmetric = handler.empty((16, 64)), handler.empty((16, 64))
        for mode in (MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE, None):
            driver.sequences.clear()
            outputs = [run_mixed_comm(MixedCommOp.ALLREDUCE, handler, x_in, None, mode) for _ in range(3)]
            assert len({one.data_ptr() for one in outputs}) == 3
            assert len(driver.sequences) == 1
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, *symmetric, mode)
            assert len(driver.sequences) == 2
            other = Tensor(handler.device, torch.bfloat16, 16, 64)
            run_mixed_comm(MixedCommOp.ALLREDUCE, handler, other, None, mode)
            assert len(driver.sequences) == 3

    on_ranks(driver, 2, work, **SYMMETRIC)


def test_copy_engines_compare_where_symmetric_tensors_lie(driver: Driver) -> None:
    """Ranks that have allocated alike agree; others would find the mismatch when they meet."""
    place = CALL.host(WORLD=2).signature.offset

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        with rank.handler(torch.bfloat16, local_dp_size=2, **SYMMETRIC) as handler:
            x_in, x_out = handler.empty((16, 64)), handler.empty((32, 64))

            def signatures() -> set[bytes]:
                driver.shapes.clear()
                run_mixed_comm(MixedCommOp.ALLGATHER, handler, x_in, x_out, MixedCommMode.COPY_ENGINES)
                # Behind the first kernel of the plan, the ranks meet.
                return {bytes(one) for one in rank.backend.gather_to_all(driver.shapes[1][2][place : place + 4])}

            assert len(signatures()) == 1
            if rank.rank == 1:
                x_in = handler.empty((16, 64))
            assert len(signatures()) == 2
            rank.backend.barrier()

    with local_world(2, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        world.run(run)


def test_a_checkpoint_keeps_symmetric_addresses_and_asks_before_tensors_lose_their_content(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        kept = [handler.empty((16, 64))] if rank.rank == 0 else []
        with pytest.raises(RuntimeError, match=r"1 tensors of empty\(\) would lose their content"):
            handler.checkpoint_prepare()
        assert not handler.is_released
        address = kept[0].data_ptr() if kept else 0
        handler.checkpoint_prepare(lose_tensors=True)
        with pytest.raises(RuntimeError, match="has released its memory"):
            handler.empty(1)
        handler.checkpoint_restore(rank.backend)
        if kept:
            with Device(0).context.current():
                _driver_calls.call("cuMemsetD8", address, 1, 2048)
        kept.clear()
        gc.collect()
        assert rank.rank or handler.empty((16, 64)).data_ptr() == address
        rank.backend.barrier()
        handler.checkpoint_prepare()
        handler.checkpoint_restore(rank.backend)

    on_ranks(driver, 2, work, **SYMMETRIC)


def test_symmetric_tensors_may_outlive_their_handler(driver: Driver, machine: Any) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> Any:
        return handler.empty((16, 64))

    tensors = on_ranks(driver, 2, work, **SYMMETRIC)
    assert len(machine.ledger().live_of("memory handle")) == 2
    for tensor in tensors:
        with Device(0).context.current():
            _driver_calls.call("cuMemsetD8", tensor.data_ptr(), 1, 2048)
    del tensor
    tensors.clear()
    gc.collect()
    assert not machine.ledger().live_of("memory handle")


def test_symmetric_memory_that_is_not_there_is_refused(driver: Driver) -> None:
    def work(rank: LocalRank, handler: MixedCommHandler) -> None:
        with pytest.raises(RuntimeError, match="pass symmetric_bytes= to its constructor"):
            handler.empty(16)
        with pytest.raises(ValueError, match="symmetric_bytes must be the same on all ranks"):
            rank.handler(torch.bfloat16, symmetric_bytes=512 * (rank.rank + 1))
        with rank.handler(torch.bfloat16, symmetric_bytes=4096) as small:
            for shape, dtype, error in (
                ([16, -1], None, r"shape\[1\] must be"),
                (16, "torch.int8", "dtype must be one of torch.float16, torch.bfloat16, not torch.int8"),
            ):
                with pytest.raises(ValueError, match=error):
                    small.empty(shape, dtype)
            with pytest.raises(MemoryError, match="4096 bytes has no room for 4608 more"):
                small.empty(2049)

    on_ranks(driver, 2, work)


def test_a_world_has_the_sms_that_no_rank_has() -> None:
    device = Device(0)
    with local_world(2, device, sms=8) as world:
        [background] = world.backgrounds
        assert background is not None
        assert background.sm_count == device.sm_count - 16
    with local_world(2) as world:
        assert world.backgrounds == ()


def test_what_fails_on_one_rank_while_handlers_are_built_is_an_error_on_all(driver: Driver) -> None:
    wrong = {
        "grid": (ValueError, "grid_size must be an int from 1 to 8"),
        "memory": (MemoryError, "none left"),
        "kernels": (RuntimeError, "no compiler"),
    }
    failing = threading.local()
    called, compiled = driver.call, _launch.compile_kernels

    def call(name: str, *arguments: Any) -> Any:
        if name == "cuMemCreate" and getattr(failing, "what", "") == "memory":
            raise MemoryError("none left")
        return called(name, *arguments)

    def compile_kernels(*arguments: Any) -> Any:
        if getattr(failing, "what", "") == "kernels":
            raise RuntimeError("no compiler")
        return compiled(*arguments)

    def run(rank: LocalRank) -> None:
        assert rank.partition is not None
        driver.use(rank.partition.stream)  # type: ignore[attr-defined]
        for what, (kind, words) in wrong.items():
            failing.what = what if rank.rank == 1 else ""
            grid = 9 if failing.what == "grid" else 8
            with pytest.raises(kind if rank.rank == 1 else RuntimeError) as raised:
                rank.handler(torch.bfloat16, grid_size=grid, max_message_bytes=1 << 20)
            assert words in str(raised.value)
            assert rank.rank == 1 or f": rank 1: {kind.__name__}: " in str(raised.value)
        failing.what = ""
        gc.collect()
        with rank.handler(torch.bfloat16) as handler:
            handler.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_memory, "call", call)
        patch.setattr(_launch, "compile_kernels", compile_kernels)
        with local_world(2, Device(0), sms=8, timeout_s=30) as world, warnings.catch_warnings():
            warnings.simplefilter("error")
            world.run(run)


def test_a_half_built_handler_is_collected_without_a_word() -> None:
    def work(rank: LocalRank) -> None:
        with pytest.raises(ValueError, match=r"grid_size must be an int from 1 to 8"):
            rank.handler(torch.bfloat16, grid_size=9)
        with pytest.raises(ValueError, match="dtype must be"):
            rank.handler(torch.float32)

    with local_world(2, Device(0), sms=8, timeout_s=30) as world, warnings.catch_warnings():
        warnings.simplefilter("error")
        world.run(work)
        gc.collect()


@pytest.mark.parametrize("how", ["staged", "in rounds", "mapped", "in place"])
def test_copy_engines_gather_between_two_meetings(driver: Driver, how: str) -> None:
    """On the software driver copies are made; kernels do not wait, so that ranks call twice, and staging is there."""
    block = 16 * 64 * 2  # bytes of an input
    rounds = 4 if how == "in rounds" else 1

    def run(rank: LocalRank) -> bytes:
        driver.use(rank.partition.stream)  # type: ignore[union-attr, attr-defined]
        options: dict[str, Any] = {"local_dp_size": 2, "max_message_bytes": block // rounds}
        with rank.handler(torch.bfloat16, **options) as handler:
            assert MixedCommMode.COPY_ENGINES not in handler.valid_mode_list
            x_in = Tensor(handler.device, torch.bfloat16, 16, 64)
            x_out = Tensor(handler.device, torch.bfloat16, 32, 64)
            if how == "in place":
                x_in._address = x_out.data_ptr() + rank.rank * block
            with Device(rank.device.device_id).context.current():  # type: ignore[union-attr]
                _driver_calls.call("cuMemsetD8", x_in.data_ptr(), 17 + rank.rank, block)
            if how in ("mapped", "in place"):
                handler.map_tensors(*(one for one in (x_in, x_out) if how == "mapped" or one is x_out))
            driver.sequences.clear()
            for _ in range(2):
                rank.backend.barrier()
                driver.done.clear()
                run_mixed_comm(MixedCommOp.ALLGATHER, handler, x_in, x_out, MixedCommMode.COPY_ENGINES)
            copies = 1 if how == "in place" else 2 if how == "mapped" else 3
            before = copies - 2 if how in ("staged", "in rounds") else 0
            round_ = ["copy"] * before + ["two_exchange"] + ["copy"] * (copies - before) + ["two_exchange"]
            assert driver.done == in_plan(*round_ * rounds)
            assert len(driver.sequences) == 1  # of the first call
            with pytest.raises(ValueError, match="COPY_ENGINES does not compute REDUCESCATTER; modes that do: ONE_EX"):
                run_mixed_comm(MixedCommOp.REDUCESCATTER, handler, x_out, None, MixedCommMode.COPY_ENGINES)
            rank.partition.stream.sync()  # type: ignore[union-attr]
            found = ctypes.create_string_buffer(2 * block)
            with Device(rank.device.device_id).context.current():  # type: ignore[union-attr]
                _driver_calls.call("cuMemcpyDtoH", ctypes.addressof(found), x_out.data_ptr(), 2 * block)
            return found.raw

    with local_world(2, [Device(0), Device(1)], sms=8, timeout_s=30) as world:
        assert world.run(run) == [b"\x11" * block + b"\x12" * block] * 2
