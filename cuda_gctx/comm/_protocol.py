"""Where everything of a workspace is, and what the kernels are compiled with: one place for host, kernels and tests.

Each rank has one workspace, laid out alike on all ranks::

    control     what only the rank's own kernels use: epochs, how many blocks have arrived, the fault
    mailboxes   one for each other rank, written by it: flags, addresses, headers of packets
    slots       packets: two for each rank (even and odd epochs), each as large as the largest message
    staged      input and output of messages whose tensors the other ranks cannot reach

What the kernels do with it is said in their sources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo

__all__ = ["ALIGNMENT", "Fault", "Geometry", "defines", "next_epoch", "share_of", "signature", "tile_bytes"]

# Of messages, addresses and shares, in bytes: what one access of a kernel moves.
ALIGNMENT = 16
# A cache line for each thing that different ranks or blocks write to.
LINE = 128
# Reading the clock takes about as long as so many polls of memory; a power of two, so that no division is needed.
POLLS_PER_CLOCK = 64
# A block of the kernel for small messages. Fewer words than threads leave the rest idle.
ONE_EXCHANGE_THREADS = 512
# One warp of which one thread moves, and eight that add: the best of those measured on an H200.
MOVERS = 32
TWO_EXCHANGE_THREADS = MOVERS + 256
# Tiles of 16 KiB in 6 stages were the best; where those of all sources do not fit, there are fewer, then smaller ones.
LARGEST_TILE = 16 * 1024
MOST_STAGES = 6
FEWEST_STAGES = 3
SHARED_BYTES = 224 * 1024
TILES_OFFSET = 1024


class Fault(IntEnum):
    """What a kernel reports to the host."""

    NONE = 0
    TIMEOUT = 1
    MISMATCH = 2


def next_epoch(epoch: int) -> int:
    """The epoch of the next call; the twin of the kernels' function, for the simulator."""
    return 2 if epoch == 0xFFFFFFFF else epoch + 1


def _rounded(size: int, grain: int) -> int:
    return -(-size // grain) * grain


@dataclass(frozen=True)
class Geometry:
    """The layout of a workspace; equal on all ranks, or they would write to wrong places.

    packet_bytes: the largest block of an output that goes by packets; staged_bytes: the largest input and output that
    are staged.
    """

    world_size: int
    packet_bytes: int
    staged_bytes: int

    CONTROL_PACKET_EPOCH = 0
    CONTROL_PACKET_ARRIVED = LINE
    CONTROL_FLAG_EPOCH = 4
    CONTROL_FLAG_ARRIVED = 2 * LINE
    CONTROL_FAULT = 8
    MAILBOXES = 4096
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
        """A packet carries half of its bytes as data."""
        return _rounded(2 * self.packet_bytes, LINE)

    @property
    def slots(self) -> int:
        return _rounded(self.MAILBOXES + self.world_size * self.MAILBOX_BYTES, 4096)

    @property
    def staged_input(self) -> int:
        return _rounded(self.slots + 2 * self.world_size * self.slot_bytes, 4096)

    @property
    def staged_output(self) -> int:
        return _rounded(self.staged_input + self.staged_bytes, 4096)

    @property
    def total_bytes(self) -> int:
        return _rounded(self.staged_output + self.staged_bytes, 4096)

    def slot(self, epoch: int, source: int, unit: int) -> int:
        """Where the two packets of a unit (8 bytes of data) of a source are; the twin of the kernels' function."""
        return self.slots + ((epoch & 1) * self.world_size + source) * self.slot_bytes + unit * 16

    def header(self, epoch: int, source: int) -> int:
        return self.mailbox(source) + self.MAILBOX_HEADER + (epoch & 1) * 8

    def mailbox(self, source: int) -> int:
        return self.MAILBOXES + source * self.MAILBOX_BYTES


def stages_and_tile(sources: int) -> tuple[int, int]:
    """How many stages of how large tiles fit in the shared memory of a block."""
    tile = LARGEST_TILE
    while True:
        stages = min(MOST_STAGES, (SHARED_BYTES - TILES_OFFSET) // (sources * tile))
        if stages >= FEWEST_STAGES:
            return stages, tile
        tile //= 2


def _braces(rows: Iterable[Iterable[int]]) -> str:
    return "{" + ", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows) + "}"


def defines(info: ParallelInfo, op: MixedCommOp, geometry: Geometry, *, is_bfloat16: bool) -> dict[str, str]:
    """What the kernels of an operation are compiled with; the same on all ranks of a topology."""
    plan = info.plan(op)
    stages, tile = stages_and_tile(len(plan.sources))
    numbers = {
        "WORLD": info.world_size,
        "BLOCKS": len(plan.blocks),
        "ADDENDS": len(plan.blocks[0]),
        "SOURCES": len(plan.sources),
        "TARGETS": len(plan.targets),
        "STAGES": stages,
        "TILE_BYTES": tile,
        "TILES_OFFSET": TILES_OFFSET,
        "MOVERS": MOVERS,
        "ONE_EXCHANGE_THREADS": ONE_EXCHANGE_THREADS,
        "TWO_EXCHANGE_THREADS": TWO_EXCHANGE_THREADS,
        "POLLS_PER_CLOCK": POLLS_PER_CLOCK,
        "DTYPE_IS_BFLOAT16": int(is_bfloat16),
        "FAULT_TIMEOUT": int(Fault.TIMEOUT),
        "FAULT_MISMATCH": int(Fault.MISMATCH),
        "SLOTS": geometry.slots,
        "SLOT_BYTES": geometry.slot_bytes,
        "STAGED_INPUT": geometry.staged_input,
        "STAGED_OUTPUT": geometry.staged_output,
    }
    numbers |= {
        name: value
        for name, value in vars(Geometry).items()
        if isinstance(value, int) and name.startswith(("CONTROL_", "MAILBOX"))
    }
    # 64 bits, because offsets are added to addresses.
    words = {name: f"{value}ull" if value > 0xFFFF else str(value) for name, value in numbers.items()}
    return words | {"ORDER": _braces(plan.blocks)}


def shared_bytes(sources: int) -> int:
    """The dynamic shared memory of a block of the kernel for large messages."""
    stages, tile = stages_and_tile(sources)
    return TILES_OFFSET + stages * sources * tile


def share_of(info: ParallelInfo, op: MixedCommOp, block_bytes: int) -> tuple[int, int, int]:
    """What a rank sums in the two-exchange form: offset in the inputs, offset in the outputs, and size, in bytes."""
    plan = info.plan(op)
    units = block_bytes // ALIGNMENT
    begin, end = (units * part // plan.shares * ALIGNMENT for part in (plan.share, plan.share + 1))
    return plan.input_block * block_bytes + begin, plan.output_block * block_bytes + begin, end - begin


def tile_bytes(share_bytes: int, grid: int, fewest_steps: int, largest: int) -> int:
    """How large tiles are: at most `largest`, and so that a block has `fewest_steps` of them if they stay large."""
    wanted = _rounded(-(-share_bytes // (grid * fewest_steps)), LINE)
    return max(min(wanted, largest), 8 * LINE)


def signature(op: MixedCommOp, mode: MixedCommMode, dtype: str, block_bytes: int, *, is_staged: bool) -> int:
    """What the ranks of a call must agree on, in 32 bits."""
    return crc32(f"{op.name} {mode.name} {dtype} {block_bytes} {is_staged}".encode())
