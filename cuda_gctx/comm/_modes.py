"""The modes of a handler: an object for each way in which it computes an operation.

A new mode is a class here with what `Mode` names, and a line where the modes of a handler are made (``_building.py``).
Nothing else tells modes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from cuda_gctx import Stream
from cuda_gctx.comm._backends import CommBackend, as_backend
from cuda_gctx.comm._launch import Kernels, Seen
from cuda_gctx.comm._message import MOST_KEPT, Message, Sizes
from cuda_gctx.comm._nodes import NodeKernels, rounds_of
from cuda_gctx.comm._order import Order
from cuda_gctx.comm._protocol import ALIGNMENT, Geometry, room_of, signature
from cuda_gctx.comm._record import AFTER, BEFORE, MAIN, Numbers, Prepared, Record
from cuda_gctx.comm._reference import exchange_with_nccl
from cuda_gctx.comm._staging import Copy, Part, Staging
from cuda_gctx.comm._tensors import MappedTensors
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._tuning import TuningTable

__all__ = ["LISTED", "CopyEngines", "Gloo", "Hierarchical", "Mode", "Modes", "Nccl", "OneExchange", "TwoExchange"]

# In the lists of valid modes, which programs try with each operation of a topology, are those that compute these.
LISTED = frozenset(MixedCommOp) - {MixedCommOp.ALLTOALL, MixedCommOp.BROADCAST}
# More than any message has.
NO_LIMIT = 1 << 62
# More rounds than this are not tuned.
MOST_ROUNDS = 16
# Where no mode is given, packets carry messages of which each rank receives up to so much from all others. Above the
# first, TWO_EXCHANGE was faster on H200s with tensors that other ranks reach; with others, from twice the second on.
SMALL_REACHED_BYTES = 512 * 1024
SMALL_STAGED_BYTES = 2 * 1024 * 1024


# What a call has launched, and the addresses that it was given.
Launched = tuple[Prepared, tuple[int, ...]]

# Of messages that are staged: up to this size, the kernel that sums copies what copy engines copy of larger ones.
COPIED_BY_KERNEL_BYTES = 1024 * 1024


# Control words of the kernels between and within nodes.
HELD_BY_NODES = (Geometry.CONTROL_NODE_WORD, Geometry.CONTROL_PUT_WORD)


class Mode(Protocol):
    """A way to compute an operation. Every rank runs the same one for a call."""

    has_kernels: bool
    """Whether the kernels are those of this package, which use as many SMs as `run` is called with."""

    is_of_torch: bool
    """Whether torch runs it, which then has to capture it as well."""

    operations: frozenset[MixedCommOp]
    """What it computes, where the topology has it."""

    def takes(self, sizes: Sizes) -> bool:
        """Whether it can compute a call of these sizes."""

    def largest(self, *, is_reached: bool) -> int:
        """The bytes of the largest message for which it is measured and chosen: of the larger of input and output."""

    def run(self, message: Message, sms: int) -> Launched | None:
        """Computes a call, or launches what does: what, if another call can do the same with other tensors."""

    def forget(self) -> None:
        """Prepares the launches of later calls again: limits on blocks and threads have changed."""


class Modes:
    """The modes of a handler by name, and the choice between them."""

    def __init__(self, info: ParallelInfo, modes: Mapping[MixedCommMode, Mode], *, use_autotune: bool = True) -> None:
        self._info = info
        self._modes = modes
        chosen = [MixedCommMode.AUTOTUNE] if use_autotune else []
        listed = [name for name, mode in modes.items() if mode.operations >= LISTED]
        self.valid = [*listed, *chosen] if modes else []
        # What was chosen by this table.
        self._chosen: tuple[TuningTable | None, dict[tuple[Sizes, bool], tuple[MixedCommMode, int]]] = None, {}

    def __getitem__(self, mode: MixedCommMode) -> Mode:
        return self._modes[mode]

    def forget(self) -> None:
        for one in self._modes.values():
            one.forget()

    def valid_one(self, mode: MixedCommMode, op: MixedCommOp) -> MixedCommMode:
        """A mode that a call of an operation names."""
        mode = MixedCommMode(mode)
        if mode not in self._modes and mode not in self.valid:
            valid = ", ".join(one.name for one in dict.fromkeys([*self.valid, *self._modes]))
            raise ValueError(f"mode {mode.name} is not valid for this handler; valid: {valid}")
        if mode in self._modes and op not in self._modes[mode].operations:
            others = ", ".join(one.name for one in self.that_compute(op)) or "none of this handler"
            raise ValueError(f"mode {mode.name} does not compute {op.name}; modes that do: {others}")
        return mode

    def that_compute(self, op: MixedCommOp) -> list[MixedCommMode]:
        return [name for name, mode in self._modes.items() if op in mode.operations]

    def possible(self, sizes: Sizes, *, is_reached: bool) -> list[MixedCommMode]:
        """From which to choose for a call."""
        return [
            name
            for name in self.that_compute(sizes.op)
            if (mode := self._modes[name]).takes(sizes) and sizes.largest <= mode.largest(is_reached=is_reached)
        ]

    def choose(self, sizes: Sizes, table: TuningTable | None, *, is_reached: bool) -> tuple[MixedCommMode, int]:
        """The mode of a call for which none is given, and how many SMs its kernels use; 0: all of them."""
        of_table, known = self._chosen
        if of_table is not table or len(known) >= MOST_KEPT:
            # A new one: another thread may just note what it has chosen by the other table.
            known = {}
            self._chosen = table, known
        key = sizes, is_reached
        chosen = known.get(key)
        if chosen is None:
            chosen = known[key] = self._choice(sizes, table, is_reached=is_reached)
        return chosen

    def _choice(self, sizes: Sizes, table: TuningTable | None, *, is_reached: bool) -> tuple[MixedCommMode, int]:
        if table is not None:
            possible = self.possible(sizes, is_reached=is_reached)
            choice = table.select(sizes.op, sizes.largest, is_reached, possible)
            if choice is not None:
                return choice.mode, choice.grid
        return self._by_size(sizes, is_reached=is_reached), 0

    def _by_size(self, sizes: Sizes, *, is_reached: bool) -> MixedCommMode:
        small = SMALL_REACHED_BYTES if is_reached else SMALL_STAGED_BYTES
        received = sizes.block_bytes * (self._info.world_size - 1)
        best = MixedCommMode.ONE_EXCHANGE if received <= small else MixedCommMode.TWO_EXCHANGE
        # Others where that one is not there, or does not compute or take this; they are refused by name if none does.
        # In pieces, ONE_EXCHANGE is slower than NCCL.
        that_compute = self.that_compute(sizes.op)
        at_once = [one for one in self.possible(sizes, is_reached=is_reached) if one is MixedCommMode.ONE_EXCHANGE]
        order = (
            best,
            MixedCommMode.GLOO,
            MixedCommMode.HIERARCHICAL,
            *at_once,
            MixedCommMode.NCCL_ONE,
            MixedCommMode.ONE_EXCHANGE,
            MixedCommMode.COPY_ENGINES,
        )
        there = [mode for mode in order if mode in that_compute]
        if not there:
            raise ValueError(
                f"no mode of this handler computes {sizes.op.name}: it needs NCCL, or ranks on one host, each on a GPU "
                "of its own or all of them on one, for which max_message_bytes= reserves memory"
            )
        return next((mode for mode in there if self._modes[mode].takes(sizes)), there[0])


class _WithKernels:
    """What the modes with kernels of this package have in common."""

    has_kernels = True
    is_of_torch = False
    operations = LISTED
    name: MixedCommMode

    # In Prepared, the addresses of a call: of its input and output here, and then of its input and its output as each
    # rank sees them, if they are mapped.
    def __init__(self, dtype: str, order: Order, numbers: Numbers, copying: Sequence[Stream] = ()) -> None:
        self._dtype = dtype
        self._order = order
        self._numbers = numbers
        self._copying = copying
        self.prepared: dict[tuple[MixedCommOp, int, int, bool], Prepared] = {}

    def takes(self, sizes: Sizes) -> bool:
        return sizes.block_bytes % ALIGNMENT == 0

    def forget(self) -> None:
        with self._order:
            self.prepared.clear()

    def run(self, message: Message, sms: int) -> Launched | None:
        if not message.sizes.in_bytes:
            return None
        self._demand_layout(message)
        sizes, seen = message.sizes, message.seen
        given: tuple[int, ...] = message.in_address, message.out_address
        if seen is not None:
            given = (*given, *seen[0], *seen[1])
        key = sizes.op, sizes.block_bytes, sms, seen is None
        # The arguments of a kernel are filled in place, and kernels have one order: of one thread at a time.
        with self._order:
            stream = self._order.stream()
            prepared = self.prepared.get(key) or self.prepare(key, message)
            prepared.launch(stream, given)
        return prepared, given

    def prepare(self, key: tuple[MixedCommOp, int, int, bool], message: Message) -> Prepared:
        sizes, seen, sms = message.sizes, message.seen, key[2]
        ranks = 0 if seen is None else len(seen[0])

        def note_at(record: Record, addresses: tuple[int, ...]) -> None:
            x_in, x_out, *seen_addresses = addresses
            both = tuple(seen_addresses[:ranks]), tuple(seen_addresses[ranks:])
            here = record, sizes, x_in, x_out, sms
            self.note(*here, is_staged=not message.is_reached, seen=None if seen is None else both)

        if len(self.prepared) >= MOST_KEPT:
            self.prepared.clear()
        prepared = self.prepared[key] = Prepared(note_at, 2 + 2 * ranks, self._numbers, self._copying)
        return prepared

    def note(
        self, record: Record, sizes: Sizes, x_in: int, x_out: int, sms: int, *, is_staged: bool, seen: Seen | None
    ) -> None:
        """Notes the launches of a call."""
        raise NotImplementedError

    def _demand_layout(self, message: Message, *, is_in_place: bool = False) -> None:
        sizes, x_in, x_out = message.sizes, message.in_address, message.out_address
        if sizes.block_bytes % ALIGNMENT:
            raise ValueError(
                f"{sizes.op.name} of {list(message.x_in.shape)} moves blocks of {sizes.block_bytes} bytes: the kernels "
                f"need a multiple of {ALIGNMENT}"
            )
        if (x_in | x_out) % ALIGNMENT:
            name, address = ("x_in", x_in) if x_in % ALIGNMENT else ("x_out", x_out)
            raise ValueError(f"{name} starts at {address:#x}: the kernels need an address aligned to {ALIGNMENT} bytes")
        overlap = x_in < x_out + sizes.out_bytes and x_out < x_in + sizes.in_bytes
        if overlap and not is_in_place and not (sizes.op is MixedCommOp.ALLREDUCE and x_in == x_out):
            raise ValueError("x_in and x_out share memory: only ALLREDUCE works in place, with both the same tensor")

    def _signature(self, sizes: Sizes, *, is_staged: bool) -> int:
        return signature(sizes.op, self.name, self._dtype, sizes.block_bytes, is_staged=is_staged)


class OneExchange(_WithKernels):
    """Every rank sends its input as packets; blocks that packets do not carry at once go in pieces."""

    name = MixedCommMode.ONE_EXCHANGE
    operations = LISTED | {MixedCommOp.ALLTOALL}

    def __init__(
        self, dtype: str, order: Order, numbers: Numbers, kernels: Mapping[MixedCommOp, Kernels], largest: int
    ) -> None:
        super().__init__(dtype, order, numbers)
        self._kernels = kernels
        self._largest = largest

    def largest(self, *, is_reached: bool) -> int:
        return self._largest

    def note(
        self, record: Record, sizes: Sizes, x_in: int, x_out: int, sms: int, *, is_staged: bool, seen: Seen | None
    ) -> None:
        kernels = self._kernels[sizes.op]
        kernels.calls.grid = sms
        agreed = self._signature(sizes, is_staged=False)
        if sizes.block_bytes <= kernels.at_once:
            kernels.one_exchange(x_in, x_out, sizes.block_bytes, agreed, record)
            return
        # Each piece leaves no numbers in its part of the output.
        with kernels.plan(record, sizes.op, [Geometry.CONTROL_PACKET_WORD], x_out, 0):
            kernels.one_exchange(x_in, x_out, sizes.block_bytes, agreed, record)


class TwoExchange(_WithKernels):
    """Every rank sums a share. Tensors that the other ranks do not reach are staged, in parts.

    staging: how, for each operation; empty where all ranks reach all tensors. copying: streams for the copies before
    and after the kernels; empty: those are on the stream of the call. copies_in_kernels: the kernels make all of them,
    because copies may wait for each other; there is one part then.
    """

    name = MixedCommMode.TWO_EXCHANGE

    def __init__(
        self,
        dtype: str,
        order: Order,
        numbers: Numbers,
        kernels: Mapping[MixedCommOp, Kernels],
        staging: Mapping[MixedCommOp, Staging],
        copying: Sequence[Stream],
        staged_bytes: int,
        *,
        copies_in_kernels: bool = False,
    ) -> None:
        super().__init__(dtype, order, numbers, copying)
        self._kernels = kernels
        self._staging = staging
        self._staged_bytes = staged_bytes
        self._copies_in_kernels = copies_in_kernels

    def largest(self, *, is_reached: bool) -> int:
        return NO_LIMIT if is_reached else MOST_ROUNDS * self._staged_bytes

    def note(
        self, record: Record, sizes: Sizes, x_in: int, x_out: int, sms: int, *, is_staged: bool, seen: Seen | None
    ) -> None:
        kernels = self._kernels[sizes.op]
        kernels.calls.grid = sms
        agreed = self._signature(sizes, is_staged=is_staged)
        if not is_staged:
            kernels.two_exchange(x_in, x_out, sizes.block_bytes, agreed, record, seen)
            return
        rounds = list(self._staging[sizes.op].rounds(x_in, x_out, sizes.block_bytes))
        is_one_part = len(rounds) == len(rounds[0]) == 1
        if is_one_part and (self._copies_in_kernels or sizes.largest <= COPIED_BY_KERNEL_BYTES):
            kernels.staged_part(rounds[0][0], agreed, record, (x_out, sizes.out_bytes))
            return
        with kernels.plan(record, sizes.op, [Geometry.CONTROL_FLAG_WORD], x_out, sizes.out_bytes):
            for parts in rounds:
                if self._copies_in_kernels:
                    kernels.staged_part(parts[0], agreed, record, (x_out, sizes.out_bytes))
                else:
                    self._note_parts(record, kernels, parts, agreed)

    def _note_parts(self, record: Record, kernels: Kernels, parts: Sequence[Part], agreed: int) -> None:
        # With one part, there is nothing for its copies to run next to.
        before, after = (BEFORE, AFTER) if self._copying and len(parts) > 1 else (MAIN, MAIN)
        # A stream without copies stays out of it: in a capture it would not be joined.
        if before != MAIN and any(part.sends for part in parts):
            record.wait(before, MAIN)
        for part in parts:
            for one in part.sends:
                record.copy(one, before)
            if part.sends and before != MAIN:
                record.wait(MAIN, before)
            kernels.staged_part(part, agreed, record)
            if part.fetches and after != MAIN:
                record.wait(after, MAIN)
            for one in part.fetches:
                record.copy(one, after)
        if after != MAIN and any(part.fetches for part in parts):
            record.wait(MAIN, after)


class Hierarchical(_WithKernels):
    """The ranks of a node sum, nodes exchange the sums, and each rank sums what has come and sends it to its node.

    spoiling: the kernels that mark an output. staged: where input and output are copied to and from; None: the ranks of
    a node reach all tensors. node_bytes: the largest message that goes in one round.
    """

    name = MixedCommMode.HIERARCHICAL

    def __init__(
        self,
        dtype: str,
        order: Order,
        numbers: Numbers,
        info: ParallelInfo,
        kernels: Mapping[MixedCommOp, NodeKernels],
        spoiling: Mapping[MixedCommOp, Kernels],
        staged: tuple[int, int] | None,
        node_bytes: int,
    ) -> None:
        super().__init__(dtype, order, numbers)
        self._info = info
        self._of_node = slice(info.local_ranks()[0], info.local_ranks()[-1] + 1)
        self._kernels = kernels
        self._spoiling = spoiling
        self._staged = staged
        self._node_bytes = node_bytes

    def largest(self, *, is_reached: bool) -> int:
        return MOST_ROUNDS * self._node_bytes

    def note(
        self, record: Record, sizes: Sizes, x_in: int, x_out: int, sms: int, *, is_staged: bool, seen: Seen | None
    ) -> None:
        kernels, spoiling = self._kernels[sizes.op], self._spoiling[sizes.op]
        kernels.calls.grid = spoiling.calls.grid = sms

        def spoil(address: int, size: int) -> None:
            spoiling.spoil(address, size, record)

        agreed = self._signature(sizes, is_staged=is_staged)
        if seen is not None:
            seen = seen[0][self._of_node], seen[1][self._of_node]
        counts = sizes.in_bytes // sizes.block_bytes, sizes.out_bytes // sizes.block_bytes
        staged, room = self._staged if is_staged else None, room_of(self._info, self._node_bytes)
        # The memory in which tensors are staged is that of TWO_EXCHANGE.
        words = [*HELD_BY_NODES, Geometry.CONTROL_FLAG_WORD] if is_staged else HELD_BY_NODES
        with spoiling.plan(record, sizes.op, words, x_out, sizes.out_bytes):
            for part in rounds_of((x_in, x_out), counts, sizes.block_bytes, room, staged):
                for one in part.before:
                    record.copy(one)
                kernels.run(part, agreed, record, spoil, is_staged=is_staged, seen=seen)
                for one in part.after:
                    record.copy(one)


class Fetched(NamedTuple):
    """A call of copy engines but for its addresses.

    place: of the inputs in what the ranks have mapped together; of the outputs, if each input is a block of its rank's
    output. None: inputs are staged. is_in_place: whether the input is where this rank's output has it.
    """

    sizes: Sizes
    root: int | None
    place: tuple[int, int] | None
    is_in_place: bool


class CopyEngines(_WithKernels):
    """All-gathers, all-to-alls and broadcasts: each rank fetches its part of others' inputs, by copies between devices.

    The ranks meet in a kernel of one block before the copies, when their inputs are complete, and after them, when
    these may be overwritten. A stream that waits for a word in memory would need no SM, but has no time limit, and goes
    on whatever the word is.

    Inputs that are mapped are fetched from where they are, if all ranks call with the same place of tensors that they
    mapped together. Others are staged, in rounds.

    A broadcast comes from the root alone, over its links once for each of the others.

    No rank may share a device with another one of its process, unless all do: a copy from another device waits for all
    that the process has launched before to the same device, on any stream, and may wait there for a meeting of ranks
    of which one does not come before its own copy, which is behind.

    staged: where the input of each rank is staged, as this rank reaches it. staged_bytes: how much of it at once.
    """

    name = MixedCommMode.COPY_ENGINES
    has_kernels = False  # whose number of SMs could be chosen
    operations = frozenset({MixedCommOp.ALLGATHER, MixedCommOp.ALLTOALL, MixedCommOp.BROADCAST})

    def __init__(
        self,
        dtype: str,
        order: Order,
        numbers: Numbers,
        info: ParallelInfo,
        kernels: Mapping[MixedCommOp, Kernels],
        mapped: MappedTensors,
        staged: Sequence[int],
        staged_bytes: int,
        copying: Sequence[Stream],
    ) -> None:
        super().__init__(dtype, order, numbers, copying)
        self._info = info
        self._kernels = kernels
        self._mapped = mapped
        self._staged = staged
        self._staged_bytes = staged_bytes
        self._fetching: dict[Fetched, Prepared] = {}

    def largest(self, *, is_reached: bool) -> int:
        return NO_LIMIT if is_reached else MOST_ROUNDS * self._staged_bytes

    def run(self, message: Message, sms: int) -> Launched | None:
        sizes, x_in, x_out, root = message.sizes, message.in_address, message.out_address, message.root
        if not sizes.in_bytes:
            return None
        # The input may be the rank's block of the output.
        own = self._block_of(self._info.world_rank, root) * sizes.block_bytes
        is_in_place = not sizes.op.divides and x_in == x_out + own
        self._demand_layout(message, is_in_place=is_in_place)
        span = (x_out, sizes.out_bytes) if is_in_place else (x_in, sizes.in_bytes)
        place, inputs = self._mapped.find_together(*span) or (None, ())
        call = Fetched(sizes, root, place, is_in_place)
        given = x_in, x_out, *inputs
        with self._order:
            stream = self._order.stream()
            prepared = self._fetching.get(call) or self._prepare_fetching(call)
            prepared.launch(stream, given)
        return prepared, given

    def _block_of(self, rank: int, root: int | None) -> int:
        """Which block of an output comes from a rank."""
        return self._info.at(rank).dp_rank if root is None else 0

    def _prepare_fetching(self, call: Fetched) -> Prepared:
        def note_at(record: Record, addresses: tuple[int, ...]) -> None:
            x_in, x_out, *inputs = addresses
            self.note_fetching(record, call, x_in, x_out, inputs)

        if len(self._fetching) >= MOST_KEPT:
            self._fetching.clear()
        given = 2 if call.place is None else 2 + self._info.world_size
        prepared = self._fetching[call] = Prepared(note_at, given, self._numbers, self._copying)
        return prepared

    def note_fetching(self, record: Record, call: Fetched, x_in: int, x_out: int, inputs: Sequence[int]) -> None:
        """Notes a call. inputs: what is at its place, of all ranks."""
        (op, _, in_bytes, out_bytes, block_bytes), root, place, is_in_place = call
        kernels = self._kernels[op]
        kernels.calls.grid = 1
        info, own, world = self._info, self._info.world_rank, self._info.world_size
        agreed = self._signature(call.sizes, is_staged=place is None)
        how = is_in_place if root is None else root
        begins, ends = (crc32(f"{what} {place} {how}".encode(), agreed) for what in ("begins", "ends"))
        aside = BEFORE if self._copying else MAIN
        sources = range(world) if root is None else (root,)
        count = in_bytes // block_bytes  # of blocks of an input, of which each rank gets one
        room = block_bytes if place is not None else self._staged_bytes // count // ALIGNMENT * ALIGNMENT
        # Which one this rank gets.
        mine = info.dp_rank if op.divides else 0
        # The own block comes from the input of this rank, and in place it is that input. A root has all of its output.
        kept = (0, out_bytes) if own == root else (0, 0)
        if root is None:
            kept = self._block_of(own, root) * block_bytes, block_bytes
        with kernels.plan(record, op, [Geometry.CONTROL_FLAG_WORD], x_out, out_bytes, kept):
            for first in range(0, block_bytes, room):
                size = min(room, block_bytes - first)
                for block in range(count) if place is None and own in sources else ():
                    record.copy(Copy(self._staged[own] + block * size, x_in + block * block_bytes + first, size))
                kernels.meet_in_one_block(op, begins, record)
                # Within the device, next to the copies between devices.
                is_copied = own in sources and not is_in_place
                if is_copied:
                    if aside != MAIN:
                        record.wait(aside, MAIN)
                    begin = x_in + mine * block_bytes + first
                    record.copy(Copy(x_out + self._block_of(own, root) * block_bytes + first, begin, size), aside)
                # Each rank begins with its successor, so that not all of them fetch from the same one at once.
                for rank in ((own + hop) % world for hop in range(1, world)):
                    if rank not in sources:
                        continue
                    block = self._block_of(rank, root)
                    source = self._staged[rank] + mine * size
                    if place is not None:
                        source = inputs[rank] + (block if is_in_place else mine) * block_bytes + first
                    record.copy(Copy(x_out + block * block_bytes + first, source, size))
                if is_copied and aside != MAIN:
                    record.wait(MAIN, aside)
                kernels.meet_in_one_block(op, ends, record)


class _OfLibrary:
    """What the modes without kernels of this package have in common."""

    has_kernels = False
    is_of_torch = True

    def takes(self, sizes: Sizes) -> bool:
        return True

    def forget(self) -> None:
        pass

    def largest(self, *, is_reached: bool) -> int:
        return NO_LIMIT


class Nccl(_OfLibrary):
    """Collectives of torch.distributed on its groups: one of the world, or one for each axis."""

    def __init__(self, name: MixedCommMode, info: ParallelInfo, world: Any, tp_group: Any, dp_group: Any) -> None:
        self._name = name
        self._info = info
        self._groups = world, tp_group, dp_group
        self.operations = frozenset(MixedCommOp) if name is MixedCommMode.NCCL_ONE else LISTED

    def run(self, message: Message, sms: int) -> None:
        call = self._info, message.sizes.op, self._name, message.x_in, message.x_out
        exchange_with_nccl(*call, *self._groups, message.root)


class Gloo(_OfLibrary):
    """Tensors on the CPU, through the ranks' own backend: a collective for each axis, or for each level of the nodes.

    exchange: that of the axes or of the nodes. world: returns what connects all ranks, which a checkpoint may replace.
    """

    def __init__(
        self,
        exchange: Callable[..., Any],
        operations: frozenset[MixedCommOp],
        info: ParallelInfo,
        world: Callable[[], CommBackend],
        *groups: Any,
    ) -> None:
        self._exchange = exchange
        self.operations = operations
        self._info = info
        self._world = world
        self._groups = [as_backend(group) for group in groups]

    def run(self, message: Message, sms: int) -> None:
        # Ranks that are threads read each other's tensors, which may change as soon as this rank's call returns.
        call = self._info, message.sizes.op, message.x_in.clone()
        root = () if message.root is None else (message.root,)
        message.x_out.copy_(self._exchange(*call, self._world(), *self._groups, *root))
