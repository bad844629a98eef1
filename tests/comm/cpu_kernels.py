"""The kernels' own sources, compiled for the CPU, where fibers of one host thread play the threads of all ranks."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import random
import re
import struct
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._compile import BETWEEN_NODES, FLAT, FOLDER, PLANS, WITHIN_NODES, source
from cuda_gctx.comm._faults import FaultRecord
from cuda_gctx.comm._launch import Kernels
from cuda_gctx.comm._limits import Limits
from cuda_gctx.comm._message import Sizes
from cuda_gctx.comm._modes import HELD_BY_NODES, CopyEngines, Fetched
from cuda_gctx.comm._nodes import NodeKernels, PeerTransport, rounds_of
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._protocol import (
    TILES_OFFSET,
    TORN_AT,
    Element,
    Geometry,
    NodeStep,
    Packing,
    Region,
    defines,
    node_defines,
    region_of,
    signature,
)
from cuda_gctx.comm._staging import Copy, Part, Span, Staging
from cuda_gctx.comm._structs import Packed

HERE = Path(__file__).parent
# Fewer threads and smaller tiles than on a GPU: the tests are about the order of accesses.
MOVERS = 1
THREADS_OF_TWO = 9  # one moves; as many as there can be other ranks wait for their flags
STAGES = 3
TILE = 256
LIMIT = 1 << 62
NOTHING: Any = None  # what is not used here
# Of an input or an output, in bytes.
LARGEST = 1 << 17
# More than on a GPU: so that every world has messages of several batches, the last of which is not full.
PACKETS_AT_ONCE = 3
# What a run may take before it counts as a deadlock. One of the longest here takes a twentieth of it.
STEPS = 20_000_000

# Fibers jump between stacks, which a checked longjmp refuses.
COMPILED = ("-std=c++20", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE")

u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class HostCopy(ctypes.Structure):
    _fields_ = (("to", u64), ("source", u64), ("size", u64))


class HostCall(ctypes.Structure):
    _fields_ = (
        ("kernel", u32),
        ("blocks", u32),
        ("threads", u32),
        ("present", u32),
        ("arguments", ctypes.c_void_p),
        ("before", ctypes.POINTER(HostCopy)),
        ("after", ctypes.POINTER(HostCopy)),
        ("copies_before", u32),
        ("copies_after", u32),
        ("is_programmatic", u32),
        ("is_unordered", u32),
        ("late", u32),
    )

    def begin_with(self, *copies: tuple[int, int, int]) -> None:
        self.copy_before([*copies, *((one.to, one.source, one.size) for one in self.before[: self.copies_before])])

    def end_with(self, *copies: tuple[int, int, int]) -> None:
        self.copy_after([*((one.to, one.source, one.size) for one in self.after[: self.copies_after]), *copies])

    def copy_before(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self.before, self.copies_before = (HostCopy * len(copies))(*copies), len(copies)

    def copy_after(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self.after, self.copies_after = (HostCopy * len(copies))(*copies), len(copies)


# The kernels of a library by their numbers in it: namespace, struct and name.
FLAT_KERNELS = (
    ("flat", "OneExchange", "one_exchange"),
    ("flat", "TwoExchange", "two_exchange"),
    ("flat", "Plan", "begin_plan"),
    ("flat", "Plan", "end_plan"),
    ("flat", "Torn", "look_for_torn_packets"),
)
BEGIN_PLAN, END_PLAN, TORN = 2, 3, 4
NODE_KERNELS = (
    ("collect", "TwoExchange", "two_exchange"),
    ("exchange", "Exchange", "exchange_pieces"),
    ("spread", "TwoExchange", "two_exchange"),
    ("plan", "Plan", "begin_plan"),
    ("plan", "Plan", "end_plan"),
)
COLLECT, EXCHANGE, SPREAD, BEGIN_NODE_PLAN, END_NODE_PLAN = range(len(NODE_KERNELS))
SMALL = {
    "PACKETS_AT_ONCE": str(PACKETS_AT_ONCE),
    "MOVERS": str(MOVERS),
    "TWO_EXCHANGE_THREADS": str(THREADS_OF_TWO),
    "STAGES": str(STAGES),
    "TILE_BYTES": str(TILE),
}


# The primitives that order accesses, and what is left of each where it is taken out.
ORDERING = {
    "wait_for_previous_kernel": "nothing",
    "sync_block": "nothing",
    "sync_warp": "nothing",
    "all_of_block": "alone",
    "of_first": "of_own",
    "store_release": "store_relaxed",
    "load_acquire": "load_relaxed",
    "fence_device": "nothing",
    "fence_system": "nothing",
    "barrier_init_done": "nothing",
    "barrier_arrive": "arrive_without_release",
    "barrier_try_wait": "try_wait_without_acquire",
    "bulk_wait_read": "nothing",
    "bulk_wait": "nothing",
    "fence_bulk": "nothing",
    "fence_bulk_shared": "nothing",
}
_CALL = re.compile(rf"\b({'|'.join(ORDERING)})((?:<\d+>)?)\(")


def _orderings() -> tuple[str, ...]:
    """Every call of such a primitive in the kernels, by name: file, function and, of several, its number."""
    names: list[str] = []
    for file in ("guard.cuh", *FLAT, *BETWEEN_NODES):
        function = ""
        for line in (FOLDER / file).read_text().splitlines():
            begun = re.match(r"\s*(?:DEVICE\b.*?|KERNEL\()(\w+)[(,]", line)
            function = begun[1] if begun else function
            for call in _CALL.finditer(line.partition("//")[0]):
                name = f"{file.partition('.')[0]}: {call[1]} in {function}"
                others = sum(one.partition(", ")[0] == name for one in names)
                names.append(f"{name}, {others + 1}" if others else name)
    return tuple(names)


ORDERINGS = _orderings()


def _with_switches(text: str, files: Sequence[str]) -> str:
    """Kernels in which each of their orderings can be taken out, by its number in ORDERINGS."""
    here = [name for file in ("guard.cuh", *files) for name in ORDERINGS if name.startswith(file.partition(".")[0])]
    numbers = iter([ORDERINGS.index(name) + 1 for name in here])
    code = "\n".join(line.partition("//")[0] for line in text.splitlines())
    made = _CALL.sub(lambda call: f"(taken_out == {next(numbers)} ? {ORDERING[call[1]]} : {call[1]}{call[2]})(", code)
    assert next(numbers, None) is None
    return made


def build(
    folder: Path,
    info: ParallelInfo,
    op: MixedCommOp,
    geometry: Geometry,
    *,
    element: Element,
    packing: Packing = Packing.WHOLE,
    threads_of_two: int = THREADS_OF_TWO,
    replace: Sequence[tuple[str, str]] = (),
) -> Any:
    """The library of an operation. replace: texts of the sources, and what takes their place in a broken variant."""
    words = defines(info, op, geometry, element=element, packing=packing) | SMALL
    words["TWO_EXCHANGE_THREADS"] = str(threads_of_two)
    return _library(folder, {"flat": _part(words, FLAT, replace)}, FLAT_KERNELS, replace)


def _part(words: dict[str, str], files: tuple[str, ...], replace: Sequence[tuple[str, str]]) -> str:
    text = source(words, files, "")
    return text if replace else _with_switches(text, files)


def build_nodes(
    folder: Path,
    info: ParallelInfo,
    op: MixedCommOp,
    geometry: Geometry,
    region: Region,
    *,
    element: Element,
    with_nvshmem: bool = False,
    replace: Sequence[tuple[str, str]] = (),
) -> Any:
    """The same for the hierarchical form. What is replaced is there in one of the steps."""
    parts = {}
    for step, files in (
        (NodeStep.COLLECT, WITHIN_NODES),
        (NodeStep.EXCHANGE, BETWEEN_NODES),
        (NodeStep.SPREAD, WITHIN_NODES),
    ):
        words = node_defines(info, op, step, geometry, region, element=element)
        between = {"NODE_THREADS": str(THREADS_OF_TWO), "THROUGH_NVSHMEM": str(int(with_nvshmem))}
        small = between if step is NodeStep.EXCHANGE else SMALL
        parts[step.name.lower()] = _part(words | small, files, replace)
    words = defines(info, op, geometry, element=element) | SMALL
    parts["plan"] = _part(words, PLANS, replace)
    return _library(folder, parts, NODE_KERNELS, replace)


def _library(
    folder: Path,
    parts: dict[str, str],
    kernels: Sequence[tuple[str, str, str]],
    replace: Sequence[tuple[str, str]],
) -> Any:
    """Parts with defines of their own, each in a namespace, and what runs their kernels."""
    # All parts are of one type.
    first = next(iter(parts.values()))
    text = (
        "\n".join(re.findall(rf"#define (?:{'|'.join(Element.__members__)}|ELEMENT|NUMBERS_OF_WORD) .*", first)) + "\n"
    )
    text += "".join((HERE / name).read_text() for name in ("cpu_primitives.hpp", "cpu_elements.hpp"))
    for name, part in parts.items():
        undefined = "".join(f"#undef {word}\n" for word in re.findall(r"^#define (\w+)", part, re.MULTILINE))
        text += f"namespace {name} {{\n{part}\n}}\n{undefined}"
    text += 'u32 taken_out = 0;\nextern "C" void begin_call(Stream& stream, const HostCall& call, u32 seed) {\n'
    for number, (space, arguments, kernel) in enumerate(kernels):
        given = f"{space}::{kernel}(*static_cast<const {space}::{arguments}*>(arguments));"
        run = f"begin_kernel(stream, [](const void* arguments) {{ {given} }}, call, seed)"
        text += f"  if (call.kernel == {number}) {run};\n"
    text += "}\n"
    for old, new in replace:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    library = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        fibers = folder / "cpu_fibers.so"
        if not fibers.exists():
            subprocess.run(
                ["g++", *COMPILED, "-O3", "-march=native", HERE / "cpu_fibers.cpp", "-o", fibers], check=True
            )
        made = library.with_suffix(".cpp")
        made.write_text(text)
        # The fibers bring the libraries of the language: to link those takes as long as to compile kernels.
        subprocess.run(["g++", *COMPILED, "-O0", "-nostdlib", made, fibers, "-o", library], check=True)
    return ctypes.CDLL(str(library))


class Step(NamedTuple):
    """A kernel of a plan: its number in a library, its arguments, and where they have the number of the call."""

    kernel: int
    content: bytes
    number_at: int
    blocks: int
    threads: int
    is_programmatic: bool


class NotedPlan:
    """A plan whose addresses are known: its kernels and copies, in order."""

    def __init__(self, op: MixedCommOp, reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> None:
        self.number, self.is_held = Numbers.of_op(op), False
        self.reads, self.writes = tuple(reads), tuple(writes)
        self.steps: list[Step | Copy] = []

    def kernel(
        self,
        function: int,
        packed: Packed,
        number_at: int,
        blocks: int,
        threads: int,
        shared_bytes: int = 0,
        is_programmatic: bool = False,
    ) -> None:
        assert not packed.addresses
        self.steps.append(Step(function, packed.content, number_at, blocks, threads, is_programmatic))

    def copy(self, copy: Copy, stream: int = 0) -> None:
        self.steps.append(copy)

    def wait(self, stream: int, other: int) -> None:
        """Copies run in the order of the plan."""


class NotedKernels(Kernels):
    """Kernels that are not loaded: each is its number in FLAT_KERNELS."""

    def __init__(self, info: ParallelInfo, op: MixedCommOp, geometry: Geometry, *how: Any, **options: Any) -> None:
        device: Any = SimpleNamespace(compute_capability=(9, 0))
        super().__init__(info, op, geometry, NOTHING, device, *how, element=Element.BFLOAT16, **options)
        self.sums.largest_tile = TILE

    def _load(self, packing: Packing) -> Any:
        return {name: number for number, (_, _, name) in enumerate(FLAT_KERNELS)}


class NotedNodeKernels(NodeKernels):
    """The same for the hierarchical form, with the numbers in NODE_KERNELS."""

    def __init__(self, info: ParallelInfo, op: MixedCommOp, geometry: Geometry, region: Region, *how: Any) -> None:
        transport: Any = NotedTransport(how[0])
        super().__init__(info, op, geometry, region, transport, NOTHING, NOTHING, *how[1:], element=Element.BFLOAT16)
        for sums in self.sums.values():
            sums.largest_tile = TILE

    def _load(self, step: NodeStep, *how: Any) -> Any:
        return {"two_exchange": COLLECT if step is NodeStep.COLLECT else SPREAD}


class NotedTransport(PeerTransport):
    """Nodes that reach each other's regions, with a kernel that is not loaded."""

    def __init__(self, regions: Sequence[int]) -> None:
        self.regions = tuple(regions)

    def load(self, *how: Any) -> Any:
        return {"exchange_pieces": EXCHANGE}


def aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = np.zeros(size + 256, np.uint8)
    first = -raw.ctypes.data % 256
    return raw[first : first + size]


def spans_of(*tensors: Any) -> list[list[Span]]:
    """All of each tensor."""
    return [[Span(int(one.ctypes.data), one.nbytes)] for one in tensors]


@dataclass
class Ranks:
    """The ranks of a world in the memory of the host: workspaces, fault records, epochs."""

    info: ParallelInfo
    op: MixedCommOp
    library: Any
    geometry: Geometry
    limit: int = LIMIT
    with_nvshmem: bool = False
    packing: Packing = Packing.WHOLE
    block_sizes: tuple[int, int] = (4, 8)
    threads_of_two: int = THREADS_OF_TWO
    taken_out: str | None = None  # one of ORDERINGS
    is_watched: bool = False  # by the host
    is_programmatic: bool = False
    stops: bool = False

    def __post_init__(self) -> None:
        world = self.info.world_size
        self.region = region_of(self.info, self.geometry.staged_bytes)
        size = self.geometry.total_bytes + self.region.total_bytes
        self.workspaces = [aligned(size) for _ in range(world)]
        self.faults = [aligned(FaultRecord.BYTES) for _ in range(world)]
        self.addresses = tuple(int(one.ctypes.data) for one in self.workspaces)
        self._numbers = [Numbers() for _ in range(world)]
        self._kept: list[Any] = []
        self._tensors: list[tuple[Any, Any]] = []

    def skip_launches(self, rank: int, count: int) -> None:
        """Takes the numbers of so many launches, as other calls of the rank would."""
        self._numbers[rank].take(count)

    def set_epochs(self, epoch: int) -> None:
        for one in self.workspaces:
            for offset in (Geometry.CONTROL_PACKET_WORD, Geometry.CONTROL_FLAG_WORD, Geometry.CONTROL_NODE_WORD):
                one[offset : offset + 8] = np.frombuffer(np.uint64(epoch << 32).tobytes(), np.uint8)

    def tensors(self, rank: int, in_bytes: int, out_bytes: int) -> tuple[Any, Any]:
        """Where all calls of a rank have their input and their output: a stream writes the one and reads the other."""
        while len(self._tensors) <= rank:
            self._tensors.append((aligned(LARGEST), aligned(LARGEST)))
        x_in, x_out = self._tensors[rank]
        return x_in[:in_bytes], x_out[:out_bytes]

    def surround(self, calls: Sequence[HostCall], x_in: Any, x_out: Any, given: Any, result: Any) -> Sequence[HostCall]:
        """The kernels of a call, behind what writes its input and before what reads its output."""
        calls[0].begin_with((int(x_in.ctypes.data), int(given.ctypes.data), given.nbytes))
        calls[-1].end_with((int(result.ctypes.data), int(x_out.ctypes.data), result.nbytes))
        self._kept += [given, result]
        return calls

    def fault(self, rank: int) -> tuple[int, int]:
        kind_and_peer = int(self.faults[rank][:8].view(np.uint64)[0])
        return kind_and_peer >> 32, kind_and_peer & 0xFFFFFFFF

    def _fields(self, rank: int, peers: Sequence[int]) -> dict[str, Any]:
        """The fields that all calls of a rank share."""
        fault = int(self.faults[rank].ctypes.data)
        return {"peer": peers, "fault": fault, "limit": self.limit, "stops": self.stops}

    def _limits(self) -> Limits:
        return Limits(self.block_sizes[0], {self.op: self.block_sizes[1]}, 2)

    def _kernels(self, rank: int) -> NotedKernels:
        fields = self._fields(rank, self.addresses), self._limits()
        how: dict[str, Any] = {"is_programmatic": self.is_programmatic, "packing": self.packing}
        return NotedKernels(self.info.at(rank), self.op, self.geometry, *fields, **how)

    def _host_calls(self, rank: int, plan: NotedPlan, **threads: int) -> list[HostCall]:
        """The kernels of a plan, each behind the copies before it. Arguments are kept until the run is over."""
        number = plan.number | (self._numbers[rank].take(1) % Numbers.COUNTS + 1)
        # In each kernel, one thread for each rank sends and checks a header.
        fixed = {1: self.threads_of_two, BEGIN_PLAN: 2, END_PLAN: self.threads_of_two, TORN: THREADS_OF_TWO}
        made: list[HostCall] = []
        copies: list[tuple[Any, Any, int]] = []
        for step in plan.steps:
            if isinstance(step, Copy):
                copies.append((step.to, step.source, step.size))
                continue
            content = bytearray(step.content)
            content[step.number_at : step.number_at + 4] = struct.pack("<I", number)
            arguments = (ctypes.c_char * len(content)).from_buffer(content)
            self._kept.append(arguments)
            count = fixed.get(step.kernel, max(step.threads, self.info.world_size))
            made.append(HostCall(step.kernel, step.blocks, count, 1, ctypes.addressof(arguments)))
            made[-1].is_programmatic = step.is_programmatic
            made[-1].copy_before(copies)
            copies = []
        assert not copies
        return made

    def call(
        self,
        rank: int,
        mode: MixedCommMode,
        x_in: Any,
        x_out: Any,
        *,
        grid: int,
        dtype: str = "float16",
        seen: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> list[HostCall]:
        """The kernels of a call of one rank. seen: the addresses of input and output that other ranks are given."""
        kernels, plan = self._kernels(rank), NotedPlan(self.op, *spans_of(x_in, x_out))
        block = self.info.block_size(self.op, x_in.nbytes)
        agreed = signature(self.op, mode, dtype, block, is_staged=False)
        how: Any = plan, block, agreed, grid
        if mode is not MixedCommMode.ONE_EXCHANGE:
            kernels.two_exchange(*how, seen)
        elif block <= kernels.at_once:
            kernels.one_exchange(*how)
        else:
            held: Any = plan, [Geometry.CONTROL_PACKET_WORD], grid
            with kernels.held(*held, spoils=False):
                kernels.one_exchange(*how)
        return self._host_calls(rank, plan)

    def copy_engine_call(
        self, rank: int, x_in: Any, x_out: Any, *, inputs: Sequence[int], room: int, root: int | None = None
    ) -> list[HostCall]:
        """A call of the mode that copies, with its own launches. inputs: of all ranks, if they are not staged.

        room: how much is staged at once. root: of a broadcast.
        """
        info, block = self.info.at(rank), x_in.nbytes
        op = self.op if root is None else MixedCommOp.BROADCAST
        staged = [address + self.geometry.staged_input for address in self.addresses]
        kernels: dict[MixedCommOp, Any] = {op: self._kernels(rank)}
        mode = CopyEngines("float16", NOTHING, self._numbers[rank], info, kernels, NOTHING, staged, room, ())
        sizes = Sizes(op, (), block, x_out.nbytes, block)
        addresses = int(x_in.ctypes.data), int(x_out.ctypes.data)
        is_in_place = addresses[0] == addresses[1] + (info.dp_rank * block if root is None else 0)
        call = Fetched(sizes, root, (0, 0) if inputs else None, is_in_place)
        plan = NotedPlan(op, *mode.tensors(call, *addresses))
        given: Any = plan, call, inputs
        mode.add_fetching(*given)
        return self._host_calls(rank, plan)

    def spoil(self, rank: int, x_out: Any) -> HostCall:
        """The kernel that comes behind copies."""
        plan: Any = NotedPlan(self.op)
        self._kernels(rank).spoil(plan, int(x_out.ctypes.data), x_out.nbytes, 2)
        return self._host_calls(rank, plan)[0]

    def look_for_torn_packets(self, rank: int) -> HostCall:
        plan: Any = NotedPlan(self.op)
        self._kernels(rank).look_for_torn_packets(plan, 0, self.limit, 2)
        [_, call] = self._host_calls(rank, plan)
        return call

    def has_seen_torn_packets(self, rank: int) -> bool:
        return bool(self.faults[rank][TORN_AT])

    def staged_call(
        self,
        rank: int,
        x_in: Any,
        x_out: Any,
        *,
        grid: int,
        choose: random.Random,
        part_bytes: int,
        by_kernel: bool = False,
        broken: bool = False,
    ) -> list[HostCall]:
        """A call of one rank in parts. Copies run in an order that their own streams allow.

        by_kernel: whether kernels copy, if rounds have one part. broken: results are fetched before the kernel that
        sums them.
        """
        kernels, plan = self._kernels(rank), NotedPlan(self.op, *spans_of(x_in, x_out))
        block = self.info.block_size(self.op, x_in.nbytes)
        agreed = signature(self.op, MixedCommMode.TWO_EXCHANGE, "float16", block, is_staged=True)
        staging = Staging(self.info.at(rank), self.op, self.geometry, self.addresses, part_bytes)
        rounds = list(staging.rounds(int(x_in.ctypes.data), int(x_out.ctypes.data), block))
        is_copied = by_kernel and all(len(parts) == 1 for parts in rounds)
        to: Any = plan
        held = kernels.held(to, [Geometry.CONTROL_FLAG_WORD], 2, spoils=not is_copied)
        with nullcontext() if is_copied and len(rounds) == 1 else held:
            for part in itertools.chain(*rounds):
                kernels.staged_part(to, part, agreed, grid, is_copied=is_copied)
        made = self._host_calls(rank, plan)
        if not is_copied:
            first = 1
            for parts in rounds:
                self._copy_parts(made[first : first + len(parts)], parts, choose, broken)
                first += len(parts)
        return made

    def _copy_parts(self, made: Sequence[HostCall], parts: Sequence[Part], choose: random.Random, broken: bool) -> None:
        before: list[list[Any]] = [[] for _ in parts]
        after: list[list[Any]] = [[] for _ in parts]
        # In order among themselves; sends as early as the first kernel, results as late as the last.
        first, last = 0, 0
        for number, part in enumerate(parts):
            first = choose.randint(first, number)
            last = choose.randint(max(last, number), len(parts) - 1)
            before[first] += part.sends
            (before if broken else after)[last] += part.fetches
        for one, copies, results in zip(made, before, after, strict=True):
            one.copy_before(copies)
            one.copy_after(results)

    def node_call(
        self,
        rank: int,
        x_in: Any,
        x_out: Any,
        *,
        grid: int,
        staged: bool = False,
        dtype: str = "float16",
        room: int = 1 << 40,
    ) -> list[HostCall]:
        """The kernels of a call of one rank in the hierarchical form. room: of a block, in each round."""
        info, geometry, plan = self.info.at(rank), self.geometry, NotedPlan(self.op, *spans_of(x_in, x_out))
        # Of NVSHMEM, a rank knows its own region alone.
        owners = [rank] * info.inter_size if self.with_nvshmem else info.inter_ranks()
        regions = [self.addresses[one] + geometry.total_bytes for one in owners]
        fields = self._fields(rank, [self.addresses[one] for one in info.local_ranks()])
        kernels = NotedNodeKernels(info, self.op, geometry, self.region, regions, fields, self._limits())
        around = self._kernels(rank)
        block = info.block_size(self.op, x_in.nbytes)
        agreed = signature(self.op, MixedCommMode.HIERARCHICAL, dtype, block, is_staged=staged)
        addresses = int(x_in.ctypes.data), int(x_out.ctypes.data)
        own = self.addresses[rank]
        inner = (own + geometry.staged_input, own + geometry.staged_output) if staged else None
        counts = x_in.nbytes // block, x_out.nbytes // block
        words = [*HELD_BY_NODES, *([Geometry.CONTROL_FLAG_WORD] if staged else [])]
        to: Any = plan
        rounds, lengths = list(rounds_of(addresses, counts, block, room, inner)), []
        with around.held(to, words, 2):
            for part in rounds:
                before = len(plan.steps)
                kernels.run(to, part, agreed, grid, NOTHING, is_staged=staged)
                lengths.append(len(plan.steps) - before)
        # The plan kernels have other numbers here.
        plan.steps[0] = plan.steps[0]._replace(kernel=BEGIN_NODE_PLAN)  # type: ignore[union-attr]
        plan.steps[-1] = plan.steps[-1]._replace(kernel=END_NODE_PLAN)  # type: ignore[union-attr]
        made = self._host_calls(rank, plan)
        for call in made:
            call.threads = 2 if call.kernel == BEGIN_NODE_PLAN else THREADS_OF_TWO
            if call.kernel == EXCHANGE:
                call.blocks = grid  # more blocks than pieces of these sizes have
        first = 1
        for part, length in zip(rounds, lengths, strict=True):
            made[first].copy_before([tuple(one) for one in part.before])  # type: ignore[misc]
            made[first + length - 1].copy_after([tuple(one) for one in part.after])  # type: ignore[misc]
            first += length
        return made

    def run(self, calls: Sequence[Sequence[HostCall]], seed: int, *, to_the_end: bool = False) -> str:
        """Runs the calls of every rank, each rank's in order, the ranks at the same time.

        to_the_end: whether the run goes on after accesses that nothing orders, so that outputs can be looked at.
        Returns what was wrong with their order: a deadlock, or accesses that nothing orders; nothing, if all is right.
        """
        count = len(calls[0])
        assert all(len(one) == count for one in calls)
        table = (HostCall * (len(calls) * count))(*[one for rank in calls for one in rank])
        regions = [address + self.geometry.total_bytes for address in self.addresses]
        self.library.set_regions((u64 * len(regions))(*regions), len(regions), u64(self.region.total_bytes))
        shared = TILES_OFFSET + STAGES * self.info.world_size * TILE
        u32.in_dll(self.library, "taken_out").value = ORDERINGS.index(self.taken_out) + 1 if self.taken_out else 0
        records = [int(one.ctypes.data) for one in self.faults]
        watched = (u64 * len(records))(*records) if self.is_watched else None
        how = ctypes.c_size_t(shared), u32(seed), u64(STEPS), watched, to_the_end
        self.library.run_ranks(self.library.begin_call, table, len(calls), count, *how)
        self.library.wrong.restype = ctypes.c_char_p
        return str(self.library.wrong().decode())

    @property
    def is_spoiled_once(self) -> bool:
        """True if the last run has overwritten each part of an output at most once."""
        return int(self.library.most_overwritten()) <= 1


# What holds the bits of an element.
BITS: dict[Element, Any] = {element: np.dtype(f"uint{8 * element.bytes}") for element in Element}


def bfloat16_of(numbers: Any) -> Any:
    """Rounded to nearest even, as the 16 bits."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def e4m3_numbers() -> Any:
    """Those of one byte each that are numbers and not negative, in order: 126 is the largest."""
    exponents, fractions = np.divmod(np.arange(127), 8)
    return np.where(exponents == 0, fractions / 512.0, (8 + fractions) * 2.0 ** (exponents - 10.0)).astype(np.float32)


def e4m3_of(numbers: Any) -> Any:
    """The nearest one, of two the even one, and the largest one for what is larger."""
    known, sizes = e4m3_numbers(), np.abs(np.asarray(numbers, np.float64))
    above = np.clip(np.searchsorted(known, sizes), 1, 126)
    lower, upper = sizes - known[above - 1], known[above] - sizes
    nearest = np.where((upper < lower) | ((upper == lower) & (above % 2 == 0)), above, above - 1)
    return (nearest | np.where(np.signbit(numbers), 0x80, 0)).astype(np.uint8)


def widened(bits: Any, element: Element) -> Any:
    if element is Element.BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if element is Element.FLOAT8_E4M3FN:
        return np.where(bits < 0x80, 1, -1).astype(np.float32) * e4m3_numbers()[bits & 0x7F]
    return bits.view({2: np.float16, 4: np.float32}[element.bytes]).astype(np.float32)


def narrowed(numbers: Any, element: Element) -> Any:
    if element is Element.BFLOAT16:
        return bfloat16_of(numbers)
    if element is Element.FLOAT8_E4M3FN:
        return e4m3_of(numbers)
    return numbers.astype({2: np.float16, 4: np.float32}[element.bytes]).view(BITS[element])


def _sum_of(parts: Sequence[Any], element: Element) -> Any:
    if len(parts) == 1:
        return parts[0]
    total = widened(parts[0], element)
    for part in parts[1:]:
        total = total + widened(part, element)
    return narrowed(total, element)


def expected_bits(
    info: ParallelInfo, op: MixedCommOp, inputs: Sequence[Any], element: Element, *, by_nodes: bool = False
) -> Any:
    """The output of a rank, as bits, in numpy and apart from the package's own reference.

    by_nodes: the sum over each node is rounded, and then the sum of those.
    """
    out = []
    for block in info.plan(op).blocks:
        parts = {rank: inputs[rank] for rank in block}
        if op.divides:
            parts = {rank: np.split(part, info.dp_size)[info.dp_rank] for rank, part in parts.items()}
        nodes = sorted({rank // info.local_size for rank in block}) if by_nodes else []
        of_nodes = [
            _sum_of([part for rank, part in parts.items() if rank // info.local_size == node], element)
            for node in nodes
        ]
        out.append(_sum_of(of_nodes or list(parts.values()), element))
    return np.concatenate(out)
