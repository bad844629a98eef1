"""The kernels of a handler, loaded where they will run, and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from cuda_gctx import Context, Device
from cuda_gctx.comm._compile import FLAT, KERNELS, Compiled, compile_kernels
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._limits import WARP
from cuda_gctx.comm._protocol import (
    ALIGNMENT,
    LINE,
    PACKET,
    SPOIL_THREADS,
    TILES_OFFSET,
    TORN_THREADS,
    TWO_EXCHANGE_THREADS,
    Element,
    Geometry,
    Packing,
    defines,
    demand_ranks,
    share_of,
    shared_bytes,
    stages_and_tile,
    tile_bytes,
)
from cuda_gctx.comm._record import Numbers, Record
from cuda_gctx.comm._staging import Copy, Part, Span
from cuda_gctx.comm._structs import ONE_EXCHANGE, PLAN, TORN, TWO_EXCHANGE
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo

__all__ = [
    "Calls",
    "Kernels",
    "Loaded",
    "SumCalls",
    "fill_call",
]

# The addresses of an input and of an output in the process of each rank.
Seen = tuple[tuple[int, ...], tuple[int, ...]]
# Of the kernel for small messages; many small blocks were faster than few large ones on an H200.
BLOCKS_OF_AN_SM = 4
# How many each thread stores for each rank when the ranks meet: a millisecond.
TORN_PACKETS = 1000


def _rounded(count: int, grain: int) -> int:
    return -(-count // grain) * grain


# How the tensors of a call are reached, as the kernels know it: the input or the output of every rank is in its staging
# buffer, or `seen` is where this rank itself reads and writes; the kernel may make the copies, too.
STAGED_INPUT, STAGED_OUTPUT, PLACED, COPIED = 1, 2, 4, 8


class SumCalls:
    """The arguments of one variant of the kernel for large messages, which sums parts of inputs and stores the sums.

    world: how many ranks meet in it; sources, targets: which of them; number: makes that of a launch. The struct is
    filled in place: the driver copies it at each launch.
    """

    def __init__(
        self,
        world: int,
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        grid: int,
        fewest_steps: int,
        number: Callable[[], int],
    ) -> None:
        self.grid = grid
        self._number = number
        self._world = world
        self.fewest_steps = fewest_steps
        self._largest_tile = stages_and_tile(len(sources))[1]
        self.arguments = TWO_EXCHANGE.host(WORLD=world, SOURCES=len(sources), TARGETS=len(targets))()
        self.arguments.source[:] = sources
        self.arguments.target[:] = targets

    def fill(
        self,
        addresses: tuple[int, int],
        offsets: tuple[Sequence[int], int],
        size: int,
        signature: int,
        *,
        staged: int,
        seen: Seen | None = None,
        output_bytes: int = 0,
        sends: Sequence[Copy] = (),
        fetches: Sequence[Copy] = (),
    ) -> int:
        """Fills the struct; returns the number of blocks.

        addresses: of this rank's input and output; offsets: into the input of each source, and into the outputs;
        output_bytes: how much of its output the kernel leaves without numbers if it cannot finish; sends, fetches: the
        copies that it makes.
        """
        arguments = self.arguments
        arguments.call.signature, arguments.call.number = signature, self._number()
        arguments.output_bytes = output_bytes
        arguments.input, arguments.output = addresses
        x_in, x_out = seen or ((addresses[0],) * self._world, (addresses[1],) * self._world)
        arguments.input_at[:], arguments.output_at[:] = x_in, x_out
        arguments.input_offset[:], arguments.output_offset = offsets
        tile = tile_bytes(size, self.grid, self.fewest_steps, self._largest_tile)
        arguments.share_bytes, arguments.tile_bytes, arguments.is_staged = size, tile, staged
        for made, copies in ((arguments.sends, sends), (arguments.fetches, fetches)):
            padded = [*copies, *[Copy(0, 0, 0)] * (self._world - len(copies))]
            made.to[:], made.source[:], made.size[:] = zip(*padded, strict=True)
        # A rank without a share has a block too, which sends START and END.
        return max(min(self.grid, -(-size // tile)), 1)


class Calls:
    """The arguments of the kernels of one operation, for each call, and their numbers of blocks and threads."""

    def __init__(
        self,
        info: ParallelInfo,
        op: MixedCommOp,
        *,
        grid: int,
        block_sizes: tuple[int, int],
        fewest_steps: int,
        numbers: Numbers,
    ) -> None:
        self._info = info
        self._op = op
        self.block_sizes = block_sizes
        self.numbers = numbers
        self._number = partial(numbers.next, op)
        self._blocks = len(info.plan(op).blocks)
        plan = info.plan(op)
        world = info.world_size
        self.one = ONE_EXCHANGE.host(WORLD=world)()
        self.one.chunk[:] = [info.at(rank).dp_rank if op.divides else 0 for rank in range(world)]
        self.sums = SumCalls(
            world, plan.sources, plan.targets, grid=grid, fewest_steps=fewest_steps, number=self._number
        )
        self.plan = PLAN.host(WORLD=world)()
        self.torn = TORN.host(WORLD=world)()

    @property
    def grid(self) -> int:
        return self.sums.grid

    @grid.setter
    def grid(self, grid: int) -> None:
        self.sums.grid = grid

    def limit(self, block_sizes: tuple[int, int], fewest_steps: int) -> None:
        """Sets the limits of later calls: threads per SM of ONE_EXCHANGE, and tiles of a block of TWO_EXCHANGE."""
        self.block_sizes, self.sums.fewest_steps = block_sizes, fewest_steps

    def connect(self, peers: tuple[int, ...], fault: int, limit_ns: int, *, stops: bool = False) -> None:
        """Sets the arguments that all calls share: the workspaces, the record of faults, the time limit.

        stops: whether a fault stops the device.
        """
        kernels = self.one, self.sums.arguments, self.plan, self.torn
        for arguments in kernels:
            fill_call(arguments.call, peers, fault, limit_ns, self._info.world_rank, stops=stops)

    def one_exchange(
        self, x_in: int, x_out: int, block_bytes: int, signature: int, at_once: int, packing: Packing
    ) -> Iterator[tuple[int, int]]:
        """Fills the struct for each piece of the blocks that packets carry at once; the numbers of blocks and threads.

        The pieces follow each other like calls.
        """
        self.one.call.signature, self.one.block_stride = signature, block_bytes
        for begin in range(0, block_bytes, at_once):
            size = min(at_once, block_bytes - begin)
            self.one.input, self.one.output, self.one.block_bytes = x_in + begin, x_out + begin, size
            self.one.call.number = self._number()
            yield self._one_exchange_grid(packing.packets_of(size))

    def _one_exchange_grid(self, packets: int) -> tuple[int, int]:
        fewest, most = self.block_sizes
        # On as many SMs as there are, with as few threads on each as are allowed, in several small blocks: the smaller
        # they are, the fewer SMs are left without work.
        on_each = min(max(_rounded(-(-packets // self.grid), WARP), fewest), most)
        threads = min(on_each, _rounded(-(-on_each // BLOCKS_OF_AN_SM), WARP))
        return min(self.grid * -(-on_each // threads), -(-packets // threads)), threads

    def two_exchange(self, x_in: int, x_out: int, block_bytes: int, signature: int, seen: Seen | None = None) -> int:
        """Fills the struct; returns the number of blocks."""
        input_offset, output_offset, share = share_of(self._info, self._op, block_bytes)
        offsets = (input_offset,) * len(self.sums.arguments.source), output_offset
        output_bytes = self._blocks * block_bytes
        return self.sums.fill((x_in, x_out), offsets, share, signature, staged=0, seen=seen, output_bytes=output_bytes)

    def staged_part(self, part: Part, signature: int, copied: Span | None = None) -> int:
        """Fills the struct for a part of a call whose tensors are staged; returns the number of blocks.

        copied: where the output is, if the kernel makes the copies of the part, too, which are all of the call.
        """
        nowhere = (0,) * len(self.sums.arguments.source), 0
        seen = part.inputs, part.outputs
        if copied is None:
            return self.sums.fill((0, 0), nowhere, part.size, signature, staged=PLACED, seen=seen)
        address, size = copied
        return self.sums.fill(
            (0, address),
            nowhere,
            part.size,
            signature,
            staged=PLACED | COPIED,
            seen=seen,
            output_bytes=size,
            sends=part.sends,
            fetches=part.fetches,
        )


def fill_call(
    call: Any,
    peers: Sequence[int],
    fault: int,
    limit_ns: int,
    rank: int,
    first_world_rank: int = 0,
    *,
    stops: bool = False,
) -> None:
    """Sets what a kernel needs in every call: the ranks that meet in it, and how it reports faults."""
    call.peer[:], call.stops = peers, stops
    call.fault, call.limit = fault, limit_ns
    call.rank, call.first_world_rank = rank, first_world_rank


class Loaded:
    """Compiled kernels, loaded in a context."""

    def __init__(self, compiled: Compiled, names: Sequence[str], context: Context) -> None:
        self._library = call("cuLibraryLoadData", compiled.code.code, [], [], 0, [], [], 0)
        self.context = context
        with context.current():
            # Loaded into the context now. At its first launch, loading could wait for kernels that run: for those of
            # other ranks, which wait for this one.
            self._functions = {
                name: call("cuKernelGetFunction", call("cuLibraryGetKernel", self._library, name.encode()))
                for name in names
            }

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]

    @property
    def library(self) -> int:
        """The handle of the driver's library; 0 after close()."""
        return int(self._library or 0)

    def allow_shared(self, name: str, shared: int) -> None:
        limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self.context.current():
            call("cuFuncSetAttribute", self._functions[name], limit, shared)

    def note(
        self,
        record: Record,
        name: str,
        arguments: Any,
        blocks: int,
        threads: int,
        shared: int = 0,
        *,
        is_programmatic: bool = False,
    ) -> None:
        """Notes a launch with the arguments as they are filled now."""
        record.kernel(self._functions[name], arguments, blocks, threads, shared, is_programmatic=is_programmatic)

    def close(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            call("cuLibraryUnload", library)


class Kernels:
    """Both kernels of one operation, loaded in one context."""

    def __init__(
        self,
        info: ParallelInfo,
        op: MixedCommOp,
        geometry: Geometry,
        context: Context,
        device: Device,
        calls: Calls,
        *,
        element: Element,
        is_programmatic: bool,
        packing: Packing,
        files: tuple[str, ...] = FLAT,
    ) -> None:
        if files == FLAT:
            demand_ranks(info.world_size)
        self._files = files
        self.calls = calls
        self._is_programmatic = is_programmatic
        self._what, self._geometry = (info, op), geometry
        self._element = element
        self._capability = device.compute_capability
        self._context = context
        self._shared = shared_bytes(len(info.plan(op).sources))
        self._torn_blocks = max(geometry.slot_bytes // PACKET // TORN_THREADS, 1)
        self.packing = packing
        self._loaded = self._load(packing)

    def _load(self, packing: Packing) -> Loaded:
        words = defines(*self._what, self._geometry, element=self._element, packing=packing)
        names = tuple(name for file in self._files for name in KERNELS[file])
        loaded = Loaded(compile_kernels(words, self._capability, self._files), names, self._context)
        if "two_exchange" in names:
            loaded.allow_shared("two_exchange", self._shared)
        return loaded

    def load_again(self, packing: Packing) -> None:
        """Loads the kernels for packets of another kind. No kernel of this rank may run, and no call be prepared."""
        before, self._loaded, self.packing = self._loaded, self._load(packing), packing
        before.close()

    @property
    def at_once(self) -> int:
        """The largest block of an output that one kernel of packets carries."""
        return self._geometry.at_once(self.packing)

    def one_exchange(self, x_in: int, x_out: int, block_bytes: int, signature: int, record: Record) -> None:
        how = self.at_once, self.packing
        for blocks, threads in self.calls.one_exchange(x_in, x_out, block_bytes, signature, *how):
            arguments = self.calls.one
            self._loaded.note(record, "one_exchange", arguments, blocks, threads, is_programmatic=self._is_programmatic)

    def two_exchange(
        self,
        x_in: int,
        x_out: int,
        block_bytes: int,
        signature: int,
        record: Record,
        seen: Seen | None = None,
    ) -> None:
        self._note_two(self.calls.two_exchange(x_in, x_out, block_bytes, signature, seen), record)

    def staged_part(self, part: Part, signature: int, record: Record, copied: Span | None = None) -> None:
        self._note_two(self.calls.staged_part(part, signature, copied), record)

    @contextmanager
    def plan(
        self, record: Record, op: MixedCommOp, words: Sequence[int], x_out: int, size: int, kept: Span = (0, 0)
    ) -> Iterator[None]:
        """Notes the first and the last kernel of a plan around its steps, which hold the control words between them.

        The last kernel leaves no numbers in an output if this rank has a fault. words: their offsets in the workspace.
        kept: the offset and the size of the part of the output that no other rank writes.
        """
        arguments = self.calls.plan
        held = sum(1 << word // LINE for word in words)
        arguments.call.number, arguments.words = self.calls.numbers.next(op), held
        arguments.output = arguments.bytes = arguments.kept_begin = arguments.kept_end = 0
        self._loaded.note(record, "begin_plan", arguments, 1, WARP)
        record.is_held = True
        yield
        self._note_end(record, held, x_out, size, kept)

    def spoil(self, x_out: int, size: int, record: Record) -> None:
        """Notes a kernel within a plan that leaves no numbers at an address if this rank has a fault."""
        self._note_end(record, 0, x_out, size, (0, 0))

    def _note_end(self, record: Record, words: int, x_out: int, size: int, kept: Span) -> None:
        arguments = self.calls.plan
        arguments.words, arguments.output, arguments.bytes = words, x_out, size
        arguments.kept_begin, arguments.kept_end = kept[0], sum(kept)
        blocks = max(min(self.calls.grid, size // SPOIL_THREADS // ALIGNMENT), 1)
        self._loaded.note(record, "end_plan", arguments, blocks, SPOIL_THREADS)

    def meet(self, signature: int, limit_ns: int, record: Record) -> None:
        """As many blocks as a call can have. They move nothing, and wait for all blocks of all ranks."""
        self.calls.two_exchange(0, 0, 0, signature)
        self.calls.sums.arguments.is_staged = COPIED
        call = self.calls.sums.arguments.call
        usual, call.limit = call.limit, limit_ns
        try:
            self._note_two(self.calls.grid, record)
        finally:
            call.limit = usual

    def meet_in_one_block(self, op: MixedCommOp, signature: int, record: Record) -> None:
        """The ranks meet for an operation, and move nothing: one block with little shared memory is enough."""
        self.calls.two_exchange(0, 0, 0, signature)
        arguments = self.calls.sums.arguments
        arguments.call.number = self.calls.numbers.next(op)
        self._loaded.note(record, "two_exchange", arguments, 1, TWO_EXCHANGE_THREADS, TILES_OFFSET)

    def look_for_torn_packets(self, signature: int, limit_ns: int, record: Record) -> None:
        """Notes what looks for torn packets, behind a meeting, so that all ranks do so at the same time."""
        self.meet(signature, limit_ns, record)
        arguments = self.calls.torn
        arguments.packets = TORN_PACKETS
        blocks = min(self.calls.grid, self._torn_blocks)
        self._loaded.note(record, "look_for_torn_packets", arguments, blocks, TORN_THREADS)

    def _note_two(self, blocks: int, record: Record) -> None:
        arguments = self.calls.sums.arguments
        self._loaded.note(record, "two_exchange", arguments, blocks, TWO_EXCHANGE_THREADS, self._shared)

    def close(self) -> None:
        self._loaded.close()
