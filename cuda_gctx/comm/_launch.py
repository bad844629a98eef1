"""The kernels of a handler, loaded where they will run, and the steps of plans that launch them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cuda_gctx import Context, Device
from cuda_gctx.comm._calls import Plan
from cuda_gctx.comm._compile import FLAT, KERNELS, Compiled, compile_kernels
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._limits import WARP, Limits
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
from cuda_gctx.comm._staging import Copy, Part, Place, Span
from cuda_gctx.comm._structs import CALL, ONE_EXCHANGE, PLAN, TORN, TWO_EXCHANGE, Struct
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo

__all__ = ["COPIED", "PLACED", "STAGED_INPUT", "STAGED_OUTPUT", "Kernels", "Launcher", "Loaded", "Seen", "Sums"]

# The addresses of an input and of an output in the process of each rank.
Seen = tuple[tuple[Place, ...], tuple[Place, ...]]
# Of the kernel for small messages; many small blocks were faster than few large ones on an H200.
BLOCKS_OF_AN_SM = 4
# How many each thread stores for each rank when the ranks meet: a millisecond.
TORN_PACKETS = 1000


def _rounded(count: int, grain: int) -> int:
    return -(-count // grain) * grain


# How the tensors of a call are reached, as the kernels know it: the input or the output of every rank is in its staging
# buffer, or `seen` is where this rank itself reads and writes; the kernel may make the copies, too.
STAGED_INPUT, STAGED_OUTPUT, PLACED, COPIED = 1, 2, 4, 8


class Loaded:
    """Compiled kernels, loaded in a context."""

    def __init__(self, compiled: Compiled, names: Sequence[str], context: Context) -> None:
        self._library = call("cuLibraryLoadData", compiled.code.code, [], [], 0, [], [], 0)
        self.context = context
        with context.current():
            # Loaded into the context now. At its first launch, loading could wait for kernels that run: for those of
            # other ranks, which wait for this one.
            self._functions = {
                name: int(call("cuKernelGetFunction", call("cuLibraryGetKernel", self._library, name.encode())))
                for name in names
            }

    def __getitem__(self, name: str) -> int:
        return self._functions[name]

    @property
    def library(self) -> int:
        """The handle of the driver's library; 0 after close()."""
        return int(self._library or 0)

    def allow_shared(self, name: str, shared: int) -> None:
        limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self.context.current():
            call("cuFuncSetAttribute", self._functions[name], limit, shared)

    def close(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            call("cuLibraryUnload", library)


class Launcher:
    """Adds kernels to plans. `call`: the fields that all calls share; `counts`: the numbers of ranks in the kernels."""

    def __init__(self, loaded: Any, call: Mapping[str, Any], counts: Mapping[str, int]) -> None:
        self.loaded = loaded
        self._call = call
        self._counts = dict(counts)
        self._number_at = CALL.host(WORLD=counts["WORLD"]).number.offset

    def add(
        self,
        plan: Plan,
        name: str,
        struct: Struct,
        values: Mapping[str, Any],
        blocks: int,
        threads: int,
        shared: int = 0,
        *,
        is_programmatic: bool = False,
        **call: int,
    ) -> None:
        """call: fields of this call alone."""
        fields = {**self._call, "number": plan.number, "is_held": plan.is_held, **call}
        packed = struct.packed({"call": fields, **values}, **self._counts)
        plan.kernel(self.loaded[name], packed, self._number_at, blocks, threads, shared, is_programmatic)


class Sums:
    """The arguments of one variant of the kernel for large messages, which sums parts of inputs and stores the sums.

    world: how many ranks meet in it; sources, targets: which of them.
    """

    def __init__(self, world: int, sources: Sequence[int], targets: Sequence[int], limits: Limits) -> None:
        self.world, self.sources, self.targets = world, tuple(sources), tuple(targets)
        self.counts = {"WORLD": world, "SOURCES": len(sources), "TARGETS": len(targets)}
        self.largest_tile = stages_and_tile(len(sources))[1]
        self._limits = limits

    def filled(
        self,
        addresses: tuple[Place, Place],
        offsets: tuple[Sequence[int], int],
        size: int,
        grid: int,
        *,
        staged: int,
        seen: Seen | None = None,
        output_bytes: int = 0,
        sends: Sequence[Copy] = (),
        fetches: Sequence[Copy] = (),
    ) -> tuple[dict[str, Any], int]:
        """Returns the values of the struct, and the number of blocks.

        addresses: of this rank's input and output; offsets: into the input of each source, and into the outputs;
        output_bytes: of the output that the kernels of all ranks store to; sends, fetches: the copies that it makes.
        """
        x_in, x_out = seen or ((addresses[0],) * self.world, (addresses[1],) * self.world)
        tile = tile_bytes(size, grid, self._limits.fewest_steps, self.largest_tile)
        values = {
            "source": self.sources,
            "target": self.targets,
            "output_bytes": output_bytes,
            "input": addresses[0],
            "output": addresses[1],
            "input_at": x_in,
            "output_at": x_out,
            "input_offset": offsets[0],
            "output_offset": offsets[1],
            "share_bytes": size,
            "tile_bytes": tile,
            "is_staged": staged,
        }
        for name, copies in (("sends", sends), ("fetches", fetches)):
            if copies:
                values[name] = dict(zip(("to", "source", "size"), zip(*copies, strict=True), strict=True))
        # A rank without a share has a block too, which sends START and END.
        return values, max(min(grid, -(-size // tile)), 1)


class Kernels:
    """The kernels of one operation, loaded in one context.

    call: the fields that the kernels of all calls share. limits: those of the handler.
    """

    def __init__(
        self,
        info: ParallelInfo,
        op: MixedCommOp,
        geometry: Geometry,
        context: Context,
        device: Device,
        call: Mapping[str, Any],
        limits: Limits,
        *,
        element: Element,
        is_programmatic: bool,
        packing: Packing,
        files: tuple[str, ...] = FLAT,
    ) -> None:
        if files == FLAT:
            demand_ranks(info.world_size)
        self._files = files
        self._limits = limits
        self._is_programmatic = is_programmatic
        self._info, self._op, self._geometry = info, op, geometry
        self._element = element
        self._capability = device.compute_capability
        self._context = context
        ranks = [info.at(rank) for rank in range(info.world_size)]
        self._chunks = [one.dp_rank if op.divides else 0 for one in ranks]
        plan = info.plan(op)
        self.sums = Sums(info.world_size, plan.sources, plan.targets, limits)
        self._shared = shared_bytes(len(plan.sources))
        self._torn_blocks = max(geometry.slot_bytes // PACKET // TORN_THREADS, 1)
        self.packing = packing
        self.launcher = Launcher(self._load(packing), {**call, "rank": info.world_rank}, self.sums.counts)

    def _load(self, packing: Packing) -> Loaded:
        words = defines(self._info, self._op, self._geometry, element=self._element, packing=packing)
        names = tuple(name for file in self._files for name in KERNELS[file])
        loaded = Loaded(compile_kernels(words, self._capability, self._files), names, self._context)
        if "two_exchange" in names:
            loaded.allow_shared("two_exchange", self._shared)
        return loaded

    def load_again(self, packing: Packing) -> None:
        """Loads the kernels for packets of another kind. No kernel of this rank may run, and no plan exist."""
        before, self.launcher.loaded, self.packing = self.launcher.loaded, self._load(packing), packing
        before.close()

    @property
    def at_once(self) -> int:
        """The largest block of an output that one kernel of packets carries."""
        return self._geometry.at_once(self.packing)

    def one_exchange(self, plan: Plan, block_bytes: int, signature: int, grid: int) -> None:
        """Adds a kernel for each piece of the blocks that packets carry at once. Pieces follow each other."""
        [x_in], [x_out] = plan.reads, plan.writes
        for begin in range(0, block_bytes, self.at_once):
            size = min(self.at_once, block_bytes - begin)
            values = {
                "input": x_in.begin + begin,
                "output": x_out.begin + begin,
                "block_bytes": size,
                "block_stride": block_bytes,
                "chunk": self._chunks,
            }
            shape = self._one_exchange_grid(self.packing.packets_of(size), grid)
            how: dict[str, Any] = {"is_programmatic": self._is_programmatic, "signature": signature}
            self.launcher.add(plan, "one_exchange", ONE_EXCHANGE, values, *shape, **how)

    def _one_exchange_grid(self, packets: int, grid: int) -> tuple[int, int]:
        """Returns the numbers of blocks and threads."""
        fewest, most = self._limits.fewest_threads, self._limits.most_threads[self._op]
        # On as many SMs as there are, with as few threads on each as are allowed, in several small blocks: the smaller
        # they are, the fewer SMs are left without work.
        on_each = min(max(_rounded(-(-packets // grid), WARP), fewest), most)
        threads = min(on_each, _rounded(-(-on_each // BLOCKS_OF_AN_SM), WARP))
        return min(grid * -(-on_each // threads), -(-packets // threads)), threads

    def two_exchange(
        self,
        plan: Plan,
        block_bytes: int,
        signature: int,
        grid: int,
        seen: Seen | None = None,
    ) -> None:
        [x_in], [x_out] = plan.reads, plan.writes
        input_offset, output_offset, share = share_of(self._info, self._op, block_bytes)
        offsets = (input_offset,) * len(self.sums.sources), output_offset
        how: dict[str, Any] = {"staged": 0, "seen": seen, "output_bytes": x_out.size}
        self._add_sums(plan, *self.sums.filled((x_in.begin, x_out.begin), offsets, share, grid, **how), signature)

    def staged_part(self, plan: Plan, part: Part, signature: int, grid: int, *, is_copied: bool = False) -> None:
        """Adds the kernel of a part of a call whose tensors are staged. is_copied: the kernel makes the copies, too."""
        nowhere = (0,) * len(self.sums.sources), 0
        how: dict[str, Any] = {"staged": PLACED, "seen": (part.inputs, part.outputs)}
        if is_copied:
            how |= {"staged": PLACED | COPIED, "sends": part.sends, "fetches": part.fetches}
        self._add_sums(plan, *self.sums.filled((0, 0), nowhere, part.size, grid, **how), signature)

    def _add_sums(self, plan: Plan, values: Mapping[str, Any], blocks: int, signature: int, **how: int) -> None:
        call: dict[str, Any] = {"signature": signature, "shared": self._shared, **how}
        self.launcher.add(plan, "two_exchange", TWO_EXCHANGE, values, blocks, TWO_EXCHANGE_THREADS, **call)

    @contextmanager
    def held(self, plan: Plan, words: Sequence[int], grid: int, *, spoils: bool = True) -> Iterator[None]:
        """Adds the first and the last kernel of a plan around its steps, which hold the control words between them.

        If this rank has a fault, the last kernel leaves no numbers in what the plan writes, but for data of this rank
        alone. words: their offsets in the workspace. spoils: false where the kernels between them do so themselves.
        """
        held = sum(1 << word // LINE for word in words)
        self.launcher.add(plan, "begin_plan", PLAN, {"words": held}, 1, WARP)
        plan.is_held = True
        yield
        self._end(plan, held, plan.writes if spoils else (), grid)

    def spoil(self, plan: Plan, x_out: Place, size: int, grid: int) -> None:
        """Adds a kernel within a plan that leaves no numbers at an address if this rank has a fault."""
        self._end(plan, 0, [Span(x_out, size)], grid)

    def _end(self, plan: Plan, words: int, writes: Sequence[Span], grid: int) -> None:
        # The data of this rank alone can divide the output into a part before it and a part behind it.
        parts: list[Span] = []
        for one in writes:
            if one.source == self._info.world_rank:
                continue
            if parts and parts[-1].begin + parts[-1].size == one.begin:
                one = Span(parts[-1].begin, parts.pop().size + one.size)
            parts.append(one)
        first, second = [*parts, Span(0, 0), Span(0, 0)][:2]
        values = {"words": words, "output": first.begin, "bytes": first.size}
        values |= {"second_output": second.begin, "second_bytes": second.size}
        blocks = max(min(grid, max(first.size, second.size) // SPOIL_THREADS // ALIGNMENT), 1)
        self.launcher.add(plan, "end_plan", PLAN, values, blocks, SPOIL_THREADS)

    def meet(self, plan: Plan, signature: int, limit_ns: int, grid: int) -> None:
        """Adds a kernel of as many blocks as a call can have, which waits for all blocks of all ranks."""
        values, _ = self._nothing()
        self._add_sums(plan, {**values, "is_staged": COPIED}, grid, signature, limit=limit_ns)

    def meet_in_one_block(self, plan: Plan, signature: int) -> None:
        """Adds a kernel in which the ranks meet, and move nothing: one block with little shared memory is enough."""
        values, _ = self._nothing()
        self._add_sums(plan, values, 1, signature, shared=TILES_OFFSET)

    def _nothing(self) -> tuple[dict[str, Any], int]:
        return self.sums.filled((0, 0), ((0,) * len(self.sums.sources), 0), 0, 1, staged=0)

    def look_for_torn_packets(self, plan: Plan, signature: int, limit_ns: int, grid: int) -> None:
        """Adds a kernel that looks for torn packets, behind a meeting, so that all ranks do so at the same time."""
        self.meet(plan, signature, limit_ns, grid)
        blocks = min(grid, self._torn_blocks)
        self.launcher.add(plan, "look_for_torn_packets", TORN, {"packets": TORN_PACKETS}, blocks, TORN_THREADS)

    def close(self) -> None:
        self.launcher.loaded.close()
