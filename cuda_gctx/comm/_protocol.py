"""The layout of a workspace, and the defines of the kernels: one place for host, kernels and tests.

Each rank has one workspace, with the same layout on all ranks::

    control     for the rank's own kernels: epochs, the call that runs, blocks that have arrived and ended, the fault
    mailboxes   one for each other rank, written by it: flags, addresses, headers of packets
    node mailboxes   the same for the kernels in which the ranks of one node meet
    slots       packets: two for each other rank (even and odd epochs), each as large as the largest message
    staged      input and output of messages whose tensors the other ranks cannot reach

Where several nodes exchange, each rank also has a region, which may lie elsewhere::

    signals     two counters for each node, written by it: READY and DATA
    outgoing    pieces that this rank has summed, each behind a header
    incoming    one piece from each node

The sources of the kernels describe what they do with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo

__all__ = [
    "ALIGNMENT",
    "Element",
    "Fault",
    "Geometry",
    "NodeStep",
    "Packing",
    "Region",
    "defines",
    "demand_ranks",
    "next_epoch",
    "node_defines",
    "one_exchange_threads",
    "packet_bytes",
    "packets_at_once",
    "part_of",
    "region_of",
    "room_of",
    "share_of",
    "signature",
    "tile_bytes",
]

# Of messages, addresses and shares, in bytes: what one access of a kernel moves.
ALIGNMENT = 16
# A cache line for each thing that different ranks or blocks write to.
LINE = 128
# Reading the clock takes about as long as this many polls of memory. A power of two needs no division.
POLLS_PER_CLOCK = 64
# Of the kernel for small messages, on one SM: the best of 256, 512 and 1024 on an H200 from 128 KiB on.
ONE_EXCHANGE_THREADS = 1024
# So many ranks have their packets in the registers that each thread of so many has.
RANKS_IN_REGISTERS = 8
# Of a packet, in bytes, its epochs included.
PACKET = 16
# Up to this size, all-gathers and reduce-scatters go in one piece.
PACKET_MESSAGE_BYTES = 8 * 1024 * 1024
# One warp, of which one thread moves data, and eight that add: the best of the variants measured on an H200.
MOVERS = 32
TWO_EXCHANGE_THREADS = MOVERS + 256
# Of the kernel between nodes, whose threads copy pieces: 64 MiB in 16 SMs of an H200 took 691, 472 and 432 us with 256,
# 512 and 1024.
NODE_THREADS = 1024
# Of the kernel that marks the output of a call that could not finish.
SPOIL_THREADS = 256
# Of the kernel that looks for torn packets; and where the record of faults has what it found.
TORN_THREADS = 256
TORN_AT = 16
# Tiles of 16 KiB in 6 stages were the best. Where those of all sources do not fit: fewer stages, then smaller tiles.
LARGEST_TILE = 16 * 1024
MOST_STAGES = 6
FEWEST_STAGES = 3
# Smaller ones are not made to have more steps.
SMALLEST_TILE = 8 * LINE
SHARED_BYTES = 224 * 1024
# The kernel for large messages has no more: the control region has a word for each.
MOST_BLOCKS = 384
# A thread of one warp waits for each rank, and the smallest block has one warp.
MOST_RANKS = 32
TILES_OFFSET = 1024


class Fault(IntEnum):
    """The kind of a fault that a kernel reports to the host."""

    NONE = 0
    TIMEOUT = 1
    MISMATCH = 2
    OVERLAP = 3


class Element(IntEnum):
    """The type of the numbers: names are those of torch, in capitals."""

    FLOAT16 = 0
    BFLOAT16 = 1
    FLOAT32 = 2
    FLOAT8_E4M3FN = 3

    @property
    def bytes(self) -> int:
        return {Element.FLOAT32: 4, Element.FLOAT8_E4M3FN: 1}.get(self, 2)


class Packing(IntEnum):
    """How a packet shows that it is whole: by the number of its words that are data."""

    # One epoch, and one access of 128 bits. The model of PTX does not promise that these are undivided.
    WHOLE = 3
    # An epoch for each word, and accesses of 64 bits.
    HALVES = 2

    def packets_of(self, size: int) -> int:
        """How many packets carry so many bytes: four for three vectors of 16 bytes, or two for each vector."""
        vectors = -(-size // ALIGNMENT)
        return -(-vectors // 3) * 4 if self is Packing.WHOLE else vectors * 2


def next_epoch(epoch: int) -> int:
    """The epoch of the next call: the kernels' function, for the simulator."""
    return 2 if epoch == 0xFFFFFFFF else epoch + 1


def _rounded(size: int, grain: int) -> int:
    return -(-size // grain) * grain


def packet_bytes(world: int) -> int:
    """The largest block of an output that packets carry at once: less with more ranks, each of which has slots."""
    return PACKET_MESSAGE_BYTES // world // ALIGNMENT * ALIGNMENT


def one_exchange_threads(world: int) -> int:
    """How many threads of the kernel for small messages an SM has at most.

    A thread has the packets of all other ranks in registers, so that more ranks leave fewer threads. All blocks of a
    kernel have to be on the SMs at once, because those of different ranks wait for each other.
    """
    threads = ONE_EXCHANGE_THREADS
    while world > ONE_EXCHANGE_THREADS // threads * RANKS_IN_REGISTERS:
        threads //= 2
    return threads


def packets_at_once(world: int) -> int:
    """How many packets of each source a thread waits for at a time: about two in all.

    With 1024 threads on an SM, more are not faster on an H200, and do not fit in the registers of many ranks.
    """
    return max(2 // (world - 1), 1)


@dataclass(frozen=True)
class Geometry:
    """The layout of a workspace. It must be equal on all ranks, or they write to wrong places.

    packet_bytes: the largest block of an output that whole packets carry at once; staged_bytes: the largest input and
    output that can be staged.
    """

    world_size: int
    packet_bytes: int
    staged_bytes: int

    CONTROL_FAULT = 0
    CONTROL_LINE = LINE
    CONTROL_EXCHANGES = 8
    # Of each kind of kernel: the epoch of its last call in the upper half, and what runs of the next one.
    CONTROL_PACKET_WORD = LINE
    CONTROL_FLAG_WORD = 2 * LINE
    CONTROL_NODE_WORD = 3 * LINE
    CONTROL_PUT_WORD = 4 * LINE
    # A word for each block of TWO_EXCHANGE: the epoch of the last call that it has ended.
    CONTROL_ENDED = 8 * LINE
    MAILBOXES = CONTROL_ENDED + MOST_BLOCKS * 8
    MAILBOX_BYTES = LINE
    MAILBOX_START = 0
    MAILBOX_INPUT = 8
    MAILBOX_OUTPUT = 16
    MAILBOX_END = 24
    MAILBOX_HEADER = 32

    def __post_init__(self) -> None:
        for name in ("packet_bytes", "staged_bytes"):
            if getattr(self, name) % ALIGNMENT:
                raise ValueError(f"{name} must be a multiple of {ALIGNMENT}, not {getattr(self, name)}")

    @property
    def slot_bytes(self) -> int:
        return _rounded(Packing.WHOLE.packets_of(self.packet_bytes) * PACKET, LINE)

    def at_once(self, packing: Packing) -> int:
        """The largest block of an output that packets carry at once: with halves, less fits in a slot."""
        if packing is Packing.WHOLE:
            return self.packet_bytes
        return self.slot_bytes // (packing.packets_of(ALIGNMENT) * PACKET) * ALIGNMENT

    @property
    def node_mailboxes(self) -> int:
        return self.MAILBOXES + self.world_size * self.MAILBOX_BYTES

    @property
    def slots(self) -> int:
        return _rounded(self.MAILBOXES + 2 * self.world_size * self.MAILBOX_BYTES, 4096)

    @property
    def staged_input(self) -> int:
        return _rounded(self.slots + 2 * (self.world_size - 1) * self.slot_bytes, 4096)

    @property
    def staged_output(self) -> int:
        # Parts of several ranks lie behind each other, each rounded up.
        return _rounded(self.staged_input + self.staged_bytes + self.world_size * ALIGNMENT, 4096)

    @property
    def total_bytes(self) -> int:
        return _rounded(self.staged_output + self.staged_bytes, 4096)

    def slot(self, epoch: int, source: int, target: int, packet: int) -> int:
        """The place of a packet of a source in the workspace of a target, as the kernels compute it."""
        others = self.world_size - 1
        other = source - (source > target)
        return self.slots + ((epoch & 1) * others + other) * self.slot_bytes + packet * PACKET

    def header(self, epoch: int, source: int) -> int:
        return self.mailbox(source) + self.MAILBOX_HEADER + (epoch & 1) * 8

    def mailbox(self, source: int) -> int:
        return self.MAILBOXES + source * self.MAILBOX_BYTES


@dataclass(frozen=True)
class Region:
    """The memory through which nodes exchange, laid out alike on all ranks.

    pieces: how many pieces a rank sums for other nodes; piece_bytes: the largest one.
    """

    nodes: int
    pieces: int
    piece_bytes: int

    SIGNAL_BYTES = LINE
    SIGNAL_READY = 0
    SIGNAL_DATA = 8
    # Before the bytes of a piece: one word, and nothing else in its line, so that the bytes are aligned.
    HEADER_BYTES = LINE

    @property
    def piece_stride(self) -> int:
        return _rounded(self.HEADER_BYTES + self.piece_bytes, LINE)

    @property
    def first_outgoing(self) -> int:
        return _rounded(self.nodes * self.SIGNAL_BYTES, 4096)

    @property
    def first_incoming(self) -> int:
        return self.first_outgoing + self.pieces * self.piece_stride

    @property
    def total_bytes(self) -> int:
        return _rounded(self.first_incoming + self.nodes * self.piece_stride, 4096)

    def signal(self, node: int) -> int:
        """The counters that a node writes to."""
        return node * self.SIGNAL_BYTES

    def outgoing(self, piece: int) -> int:
        """The header of a piece of this rank."""
        return self.first_outgoing + piece * self.piece_stride

    def incoming(self, node: int) -> int:
        """The header of the piece that a node sends."""
        return self.first_incoming + node * self.piece_stride


def region_of(info: ParallelInfo, message_bytes: int) -> Region:
    """The region for messages of up to so many bytes, counted as the larger of input and output."""
    plans = [info.node_plan(op) for op in info.valid_ops]
    units = -(-message_bytes // info.dp_size // ALIGNMENT)
    piece_bytes = -(-units // info.local_tp_size) * ALIGNMENT
    return Region(info.inter_size, max(len(plan.chunks) for plan in plans), piece_bytes)


def room_of(info: ParallelInfo, message_bytes: int) -> int:
    """How much of a block a round of the hierarchical form exchanges, with memory for messages of so many bytes."""
    return message_bytes // info.dp_size // ALIGNMENT * ALIGNMENT


def stages_and_tile(sources: int) -> tuple[int, int]:
    """The number of stages, and the size of tiles, that fit in the shared memory of a block."""
    tile = LARGEST_TILE
    while True:
        stages = min(MOST_STAGES, (SHARED_BYTES - TILES_OFFSET) // (sources * tile))
        if stages >= FEWEST_STAGES:
            return stages, tile
        tile //= 2


def _braces(rows: Iterable[Iterable[int]]) -> str:
    return "{" + ", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows) + "}"


class NodeStep(IntEnum):
    """The steps of the hierarchical form, each compiled by itself."""

    COLLECT = 0  # the ranks of a node sum their inputs
    EXCHANGE = 1  # equal local ranks exchange what they have summed
    SPREAD = 2  # each rank sums over nodes, and sends the sums to its node


def _words(numbers: dict[str, int]) -> dict[str, str]:
    # 64 bits, because offsets are added to addresses.
    return {name: f"{value}ull" if value > 0xFFFF else str(value) for name, value in numbers.items()}


def demand_ranks(world: int) -> None:
    """ValueError unless so many ranks can meet in a kernel."""
    if world > MOST_RANKS:
        raise ValueError(f"the kernels connect at most {MOST_RANKS} ranks, not {world}")


def _common(world: int, element: Element) -> dict[str, int]:
    numbers = {
        "WORLD": world,
        "POLLS_PER_CLOCK": POLLS_PER_CLOCK,
        **{one.name: int(one) for one in Element},
        "ELEMENT": int(element),
        "NUMBERS_OF_WORD": 4 // element.bytes,
        "FAULT_TIMEOUT": int(Fault.TIMEOUT),
        "FAULT_MISMATCH": int(Fault.MISMATCH),
        "FAULT_OVERLAP": int(Fault.OVERLAP),
    }
    return numbers | {
        name: value
        for name, value in vars(Geometry).items()
        if isinstance(value, int) and name.startswith(("CONTROL_", "MAILBOX"))
    }


def _large(geometry: Geometry, sources: int, targets: int) -> dict[str, int]:
    """The additional numbers of the kernel for large messages."""
    stages, tile = stages_and_tile(sources)
    return {
        "SOURCES": sources,
        "TARGETS": targets,
        "STAGES": stages,
        "TILE_BYTES": tile,
        "TILES_OFFSET": TILES_OFFSET,
        "MOVERS": MOVERS,
        "TWO_EXCHANGE_THREADS": TWO_EXCHANGE_THREADS,
        "STAGED_INPUT": geometry.staged_input,
        "STAGED_OUTPUT": geometry.staged_output,
    }


def defines(
    info: ParallelInfo,
    op: MixedCommOp,
    geometry: Geometry,
    *,
    element: Element,
    packing: Packing = Packing.WHOLE,
) -> dict[str, str]:
    """The defines of the kernels of an operation; the same on all ranks of a topology."""
    plan = info.plan(op)
    numbers = {
        "BLOCKS": len(plan.blocks),
        "ADDENDS": len(plan.blocks[0]),
        "SCATTERS": int(op.divides),
        "ONE_EXCHANGE_THREADS": one_exchange_threads(info.world_size),
        "PACKETS_AT_ONCE": packets_at_once(info.world_size),
        "DATA_WORDS": int(packing),
        "SLOTS": geometry.slots,
        "SLOT_BYTES": geometry.slot_bytes,
        "SPOIL_THREADS": SPOIL_THREADS,
        "TORN_THREADS": TORN_THREADS,
        "TORN_AT": TORN_AT,
    }
    numbers |= _common(info.world_size, element)
    numbers |= _large(geometry, len(plan.sources), len(plan.targets))
    return _words(numbers) | {"ORDER": _braces(plan.blocks)}


def node_defines(
    info: ParallelInfo, op: MixedCommOp, step: NodeStep, geometry: Geometry, region: Region, *, element: Element
) -> dict[str, str]:
    """The defines of the kernels of a step of the hierarchical form; the same on all ranks of a topology."""
    demand_ranks(info.local_size)
    plan = info.node_plan(op)
    numbers = _common(info.local_size, element)
    if step is NodeStep.EXCHANGE:
        return _words(
            numbers
            | {
                "NODES": region.nodes,
                "PIECES": len(plan.chunks),
                "NODE_THREADS": NODE_THREADS,
                "SIGNAL_BYTES": region.SIGNAL_BYTES,
                "SIGNAL_READY": region.SIGNAL_READY,
                "SIGNAL_DATA": region.SIGNAL_DATA,
                "HEADER_BYTES": region.HEADER_BYTES,
                "PIECE_STRIDE": region.piece_stride,
                "FIRST_OUTGOING": region.first_outgoing,
                "FIRST_INCOMING": region.first_incoming,
            }
        )
    # The ranks of a node meet in mailboxes of their own, and count their meetings by themselves.
    numbers |= {
        "CONTROL_FLAG_WORD": geometry.CONTROL_NODE_WORD,
        "MAILBOXES": geometry.node_mailboxes,
    }
    if step is NodeStep.COLLECT:
        return _words(numbers | _large(geometry, len(plan.sources), 1))
    return _words(numbers | _large(geometry, len(plan.sums[0][0]), len(plan.targets)))


def shared_bytes(sources: int) -> int:
    """The dynamic shared memory of a block of the kernel for large messages."""
    stages, tile = stages_and_tile(sources)
    return TILES_OFFSET + stages * sources * tile


def part_of(share: int, shares: int, block_bytes: int) -> tuple[int, int]:
    """Part `share` of a block that is divided into `shares` parts: offset and size, in bytes."""
    units = block_bytes // ALIGNMENT
    begin, end = (units * part // shares * ALIGNMENT for part in (share, share + 1))
    return begin, end - begin


def share_of(info: ParallelInfo, op: MixedCommOp, block_bytes: int) -> tuple[int, int, int]:
    """The share of a rank in the two-exchange form: offset in the inputs, offset in the outputs, and size, in bytes."""
    plan = info.plan(op)
    begin, size = part_of(plan.share, plan.shares, block_bytes)
    return plan.input_block * block_bytes + begin, plan.output_block * block_bytes + begin, size


def tile_bytes(share_bytes: int, grid: int, fewest_steps: int, largest: int) -> int:
    """The size of tiles: at most `largest`; small enough for `fewest_steps` in each block, if they stay large."""
    wanted = _rounded(-(-share_bytes // (grid * fewest_steps)), LINE)
    return min(max(wanted, SMALLEST_TILE), largest)


def signature(op: MixedCommOp, mode: MixedCommMode, dtype: str, block_bytes: int, *, is_staged: bool) -> int:
    """A hash of everything that the ranks of a call must agree on, in 32 bits."""
    return crc32(f"{op.name} {mode.name} {dtype} {block_bytes} {is_staged}".encode())
