"""The modes of a handler: an object for each way in which it computes an operation.

A new mode is a class here with what `Mode` names, and a line where the modes of a handler are made (``_building.py``).
Nothing else tells modes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from cuda_gctx import Stream
from cuda_gctx.comm._backends import CommBackend, as_backend
from cuda_gctx.comm._calls import AFTER, BEFORE, MAIN, Plan
from cuda_gctx.comm._launch import Kernels, Seen
from cuda_gctx.comm._message import Message, Sizes
from cuda_gctx.comm._nodes import NodeKernels, rounds_of
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._order import Order
from cuda_gctx.comm._protocol import ALIGNMENT, Geometry, room_of, signature
from cuda_gctx.comm._reference import exchange_with_nccl
from cuda_gctx.comm._staging import Copy, Part, Place, Span, Staging
from cuda_gctx.comm._structs import Address
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


# The plan that a call has launched, and the addresses for it.
Launched = tuple[Plan, tuple[int, ...]]

# The kernel that sums makes the copies of staged messages up to this size; copy engines make those of larger ones, and
# of all-gathers with more for each block. Between two H200s, an all-reduce of 2 MiB takes 29 us by a kernel on 16 SMs,
# and 43 by copy engines; on 8 SMs, 47 by both, a reduce-scatter 19 and 31, and an all-gather 41 and 33.
COPIED_BY_KERNEL_BYTES, GATHERED_BY_BLOCK_BYTES = 2 * 1024 * 1024, 128 * 1024


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

    def largest(self, *, is_reached: bool) -> int:
        """The bytes of the largest message for which it is measured and chosen: of the larger of input and output."""

    def run(self, message: Message, sms: int) -> Launched | None:
        """Computes a call. Returns the plan that it has launched, which other calls of these sizes can launch again."""


class Modes:
    """The modes of a handler by name, and the choice between them."""

    def __init__(self, info: ParallelInfo, modes: Mapping[MixedCommMode, Mode], *, use_autotune: bool = True) -> None:
        self._info = info
        self._modes = modes
        chosen = [MixedCommMode.AUTOTUNE] if use_autotune else []
        listed = [name for name, mode in modes.items() if mode.operations >= LISTED]
        self.valid = [*listed, *chosen] if modes else []

    def __getitem__(self, mode: MixedCommMode) -> Mode:
        return self._modes[mode]

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
            if sizes.largest <= self._modes[name].largest(is_reached=is_reached)
        ]

    def choose(self, sizes: Sizes, table: TuningTable | None, *, is_reached: bool) -> tuple[MixedCommMode, int]:
        """The mode of a call for which none is given, and how many SMs its kernels use; 0: all of them."""
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
        # Others where that one is not there, or does not compute this. In pieces, ONE_EXCHANGE is slower than NCCL.
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
        chosen = next((mode for mode in order if mode in that_compute), None)
        if chosen is None:
            raise ValueError(
                f"no mode of this handler computes {sizes.op.name}: it needs NCCL, or ranks on one host, each on a GPU "
                "of its own or all of them on one, for which max_message_bytes= reserves memory"
            )
        return chosen


class _WithKernels:
    """What the modes with kernels of this package have in common."""

    has_kernels = True
    is_of_torch = False
    operations = LISTED
    name: MixedCommMode

    def __init__(self, dtype: str, order: Order, numbers: Numbers, copying: Sequence[Stream] = ()) -> None:
        self._dtype = dtype
        self._order = order
        self._numbers = numbers
        self._copying = copying

    def run(self, message: Message, sms: int) -> Launched | None:
        if not message.sizes.in_bytes:
            return None
        self._demand_aligned(message)
        given: tuple[int, ...] = message.in_address, message.out_address
        if message.seen is not None:
            given = (*given, *message.seen[0], *message.seen[1])
        plan = self.plan(message, sms)
        self._demand_apart(plan, message)
        return self.launch(plan, given)

    def launch(self, plan: Plan, given: tuple[int, ...]) -> Launched:
        """Launches a plan with the addresses of a call."""
        with self._order:
            plan.launch(self._order.stream(), given)
        return plan, given

    def plan(self, message: Message, sms: int) -> Plan:
        """The plan of a call. Its addresses: the input and the output here, then as each rank sees them, if mapped."""
        sizes = message.sizes
        tensors = [Span(Address(0), sizes.in_bytes)], [Span(Address(1), sizes.out_bytes)]
        plan = self._new_plan(sizes.op, *tensors)
        seen: Seen | None = None
        if message.seen is not None:
            ranks = len(message.seen[0])
            inputs, outputs = (tuple(Address(first + rank) for rank in range(ranks)) for first in (2, 2 + ranks))
            seen = inputs, outputs
        self.add_steps(plan, sizes, sms, is_staged=not message.is_reached, seen=seen)
        return plan

    def _new_plan(self, op: MixedCommOp, reads: Sequence[Span], writes: Sequence[Span]) -> Plan:
        return Plan(self._numbers, Numbers.of_op(op), reads, writes, self._copying)

    def add_steps(self, plan: Plan, sizes: Sizes, sms: int, *, is_staged: bool, seen: Seen | None) -> None:
        """Adds the steps of a call to its plan, which has what the call reads and writes."""
        raise NotImplementedError

    def _demand_aligned(self, message: Message) -> None:
        x_in, x_out = message.in_address, message.out_address
        if (x_in | x_out) % ALIGNMENT:
            name, address = ("x_in", x_in) if x_in % ALIGNMENT else ("x_out", x_out)
            raise ValueError(f"{name} starts at {address:#x}: the kernels need an address aligned to {ALIGNMENT} bytes")

    def _demand_apart(self, plan: Plan, message: Message) -> None:
        """ValueError if the plan writes what it reads, unless the operation works in place."""
        given = message.in_address, message.out_address

        def ends(span: Span) -> tuple[int, int]:
            assert isinstance(span.begin, Address)
            begin = given[span.begin.given] + span.begin.offset
            return begin, begin + span.size

        overlap = any(
            begin < end_of_read and begin_of_read < end
            for begin, end in map(ends, plan.writes)
            for begin_of_read, end_of_read in map(ends, plan.reads)
        )
        if overlap and not (message.sizes.op is MixedCommOp.ALLREDUCE and given[0] == given[1]):
            raise ValueError("x_in and x_out share memory: only ALLREDUCE works in place, with both the same tensor")

    def _signature(self, sizes: Sizes, *, is_staged: bool) -> int:
        return signature(sizes.op, self.name, self._dtype, sizes.block_bytes - sizes.padding, is_staged=is_staged)


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

    def add_steps(self, plan: Plan, sizes: Sizes, sms: int, *, is_staged: bool, seen: Seen | None) -> None:
        kernels = self._kernels[sizes.op]
        agreed = self._signature(sizes, is_staged=False)
        is_one_kernel = sizes.block_bytes <= kernels.at_once
        # Each piece leaves no numbers in its part of the output.
        held = kernels.held(plan, [Geometry.CONTROL_PACKET_WORD], sms, spoils=False)
        with nullcontext() if is_one_kernel else held:
            kernels.one_exchange(plan, sizes.block_bytes, agreed, sms)


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

    def add_steps(self, plan: Plan, sizes: Sizes, sms: int, *, is_staged: bool, seen: Seen | None) -> None:
        kernels = self._kernels[sizes.op]
        agreed = self._signature(sizes, is_staged=is_staged)
        if not is_staged:
            kernels.two_exchange(plan, sizes.block_bytes, agreed, sms, seen)
            return
        [x_in], [x_out] = plan.reads, plan.writes
        rounds = list(self._staging[sizes.op].rounds(x_in.begin, x_out.begin, sizes.block_bytes))
        is_one_part = len(rounds) == len(rounds[0]) == 1
        most = min(COPIED_BY_KERNEL_BYTES, sms * GATHERED_BY_BLOCK_BYTES if sizes.op.gathers else NO_LIMIT)
        if is_one_part and (self._copies_in_kernels or sizes.largest <= most):
            kernels.staged_part(plan, rounds[0][0], agreed, sms, is_copied=True)
            return
        with kernels.held(plan, [Geometry.CONTROL_FLAG_WORD], sms, spoils=not self._copies_in_kernels):
            for parts in rounds:
                if self._copies_in_kernels:
                    kernels.staged_part(plan, parts[0], agreed, sms, is_copied=True)
                else:
                    self._add_parts(plan, kernels, parts, agreed, sms)

    def _add_parts(self, plan: Plan, kernels: Kernels, parts: Sequence[Part], agreed: int, sms: int) -> None:
        # With one part, there is nothing for its copies to run next to.
        before, after = (BEFORE, AFTER) if self._copying and len(parts) > 1 else (MAIN, MAIN)
        # A stream without copies stays out of it: in a capture it would not be joined.
        if before != MAIN and any(part.sends for part in parts):
            plan.wait(before, MAIN)
        for part in parts:
            for one in part.sends:
                plan.copy(one, before)
            if part.sends and before != MAIN:
                plan.wait(MAIN, before)
            kernels.staged_part(plan, part, agreed, sms)
            if part.fetches and after != MAIN:
                plan.wait(after, MAIN)
            for one in part.fetches:
                plan.copy(one, after)
        if after != MAIN and any(part.fetches for part in parts):
            plan.wait(MAIN, after)


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

    def add_steps(self, plan: Plan, sizes: Sizes, sms: int, *, is_staged: bool, seen: Seen | None) -> None:
        kernels, spoiling = self._kernels[sizes.op], self._spoiling[sizes.op]

        def spoil(address: Place, size: int) -> None:
            spoiling.spoil(plan, address, size, sms)

        agreed = self._signature(sizes, is_staged=is_staged)
        if seen is not None:
            seen = seen[0][self._of_node], seen[1][self._of_node]
        counts = sizes.in_bytes // sizes.block_bytes, sizes.out_bytes // sizes.block_bytes
        staged, room = self._staged if is_staged else None, room_of(self._info, self._node_bytes)
        # The memory in which tensors are staged is that of TWO_EXCHANGE.
        words = [*HELD_BY_NODES, Geometry.CONTROL_FLAG_WORD] if is_staged else HELD_BY_NODES
        [x_in], [x_out] = plan.reads, plan.writes
        with spoiling.held(plan, words, sms):
            for part in rounds_of((x_in.begin, x_out.begin), counts, sizes.block_bytes, room, staged):
                for one in part.before:
                    plan.copy(one)
                kernels.run(plan, part, agreed, sms, spoil, is_staged=is_staged, seen=seen)
                for one in part.after:
                    plan.copy(one)


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

    def largest(self, *, is_reached: bool) -> int:
        return NO_LIMIT if is_reached else MOST_ROUNDS * self._staged_bytes

    def run(self, message: Message, sms: int) -> Launched | None:
        sizes, x_in, x_out, root = message.sizes, message.in_address, message.out_address, message.root
        if not sizes.in_bytes:
            return None
        # The input may be the rank's block of the output.
        own = self._block_of(self._info.world_rank, root) * sizes.block_bytes
        is_in_place = not sizes.op.divides and x_in == x_out + own
        self._demand_aligned(message)
        span = (x_out, sizes.out_bytes) if is_in_place else (x_in, sizes.in_bytes)
        place, inputs = self._mapped.find_together(*span) or (None, ())
        call = Fetched(sizes, root, place, is_in_place)
        plan = self._new_plan(sizes.op, *self.tensors(call, Address(0), Address(1)))
        self._demand_apart(plan, message)
        self.add_fetching(plan, call, tuple(Address(2 + number) for number in range(len(inputs))))
        return self.launch(plan, (x_in, x_out, *inputs))

    def _block_of(self, rank: int, root: int | None) -> int:
        """Which block of an output comes from a rank."""
        return self._info.at(rank).dp_rank if root is None else 0

    def tensors(self, call: Fetched, x_in: Place, x_out: Place) -> tuple[list[Span], list[Span]]:
        """List what a call reads of the tensors of this rank, and what it writes: a part for each source rank."""
        (_, _, in_bytes, _, block_bytes, _), root, _, is_in_place = call
        sources = [root] if root is not None else sorted(range(self._info.world_size), key=self._dp_rank_of)
        own = self._info.world_rank
        writes = [Span(x_out + n * block_bytes, block_bytes, source) for n, source in enumerate(sources)]
        if not is_in_place:
            # Ranks that only receive a broadcast name their inputs too: all ranks refuse the same tensors.
            return [Span(x_in, in_bytes)], writes
        return [Span(x_in, in_bytes)] if own in sources else [], [one for one in writes if one.source != own]

    def _dp_rank_of(self, rank: int) -> int:
        return self._info.at(rank).dp_rank

    def add_fetching(self, plan: Plan, call: Fetched, inputs: Sequence[Place]) -> None:
        """Adds the steps of a call to its plan. inputs: what is at its place, of all ranks."""
        (op, _, in_bytes, _, block_bytes, _), root, place, is_in_place = call
        kernels = self._kernels[op]
        writes = {one.source: one for one in plan.writes}
        info, own, world = self._info, self._info.world_rank, self._info.world_size
        agreed = self._signature(call.sizes, is_staged=place is None)
        how = is_in_place if root is None else root
        begins, ends = (crc32(f"{what} {place} {how}".encode(), agreed) for what in ("begins", "ends"))
        aside = BEFORE if self._copying else MAIN
        is_source = root in (None, own)
        count = in_bytes // block_bytes  # of blocks of an input, of which each rank gets one
        room = block_bytes if place is not None else self._staged_bytes // count // ALIGNMENT * ALIGNMENT
        # Which one this rank gets.
        mine = info.dp_rank if op.divides else 0
        with kernels.held(plan, [Geometry.CONTROL_FLAG_WORD], 1):
            for first in range(0, block_bytes, room):
                size = min(room, block_bytes - first)
                for block in range(count) if place is None and is_source else ():
                    begin = plan.reads[0].begin + block * block_bytes + first
                    plan.copy(Copy(self._staged[own] + block * size, begin, size))
                kernels.meet_in_one_block(plan, begins)
                # Within the device, next to the copies between devices.
                is_copied = own in writes
                if is_copied:
                    if aside != MAIN:
                        plan.wait(aside, MAIN)
                    begin = plan.reads[0].begin + mine * block_bytes + first
                    plan.copy(Copy(writes[own].begin + first, begin, size), aside)
                # Each rank begins with its successor, so that not all of them fetch from the same one at once.
                for rank in ((own + hop) % world for hop in range(1, world)):
                    if rank not in writes:
                        continue
                    source: Place = self._staged[rank] + mine * size
                    if place is not None:
                        block = self._block_of(rank, root) if is_in_place else mine
                        source = inputs[rank] + block * block_bytes + first
                    plan.copy(Copy(writes[rank].begin + first, source, size))
                if is_copied and aside != MAIN:
                    plan.wait(MAIN, aside)
                kernels.meet_in_one_block(plan, ends)


class _OfLibrary:
    """What the modes without kernels of this package have in common."""

    has_kernels = False
    is_of_torch = True

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
