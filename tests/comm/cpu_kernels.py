"""The kernels' own sources, compiled for the CPU, where fibers of one host thread play the threads of all ranks."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._compile import source
from cuda_gctx.comm._launch import Calls
from cuda_gctx.comm._protocol import TILES_OFFSET, Geometry, defines, signature

HERE = Path(__file__).parent
# Fewer threads and smaller tiles than on a GPU: what is tested is who does what, and in which order.
MOVERS = 1
THREADS_OF_TWO = 9  # one moves; as many as there can be other ranks wait for their flags
STAGES = 3
TILE = 256
LIMIT = 1 << 62
# What a run may take before it counts as a deadlock. One of the longest here takes a twentieth of it.
STEPS = 20_000_000

u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class HostCall(ctypes.Structure):
    _fields_ = (
        ("is_two_exchange", u32),
        ("blocks", u32),
        ("threads", u32),
        ("present", u32),
        ("arguments", ctypes.c_void_p),
        ("copy_to", u64),
        ("copy_from", u64),
        ("copy_bytes", u64),
        ("result_to", u64),
        ("result_from", u64),
        ("result_bytes", u64),
    )


def build(
    folder: Path,
    info: ParallelInfo,
    op: MixedCommOp,
    geometry: Geometry,
    *,
    is_bfloat16: bool,
    replace: Sequence[tuple[str, str]] = (),
) -> Any:
    """The library of an operation. replace: texts of the sources, and what takes their place in a broken variant."""
    words = defines(info, op, geometry, is_bfloat16=is_bfloat16)
    words |= {
        "MOVERS": str(MOVERS),
        "TWO_EXCHANGE_THREADS": str(THREADS_OF_TWO),
        "STAGES": str(STAGES),
        "TILE_BYTES": str(TILE),
    }
    text = source(words, (HERE / "cpu_primitives.hpp").read_text()) + (HERE / "cpu_run.hpp").read_text()
    for old, new in replace:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    library = folder / f"{name}.so"
    if not library.exists():
        made = folder / f"{name}.cpp"
        made.write_text(text)
        options = ["-std=c++20", "-O0", "-fPIC", "-Wno-unknown-pragmas"]
        standard = folder / "standard.hpp"
        if not standard.exists():
            # Most of the time of a compilation, done once.
            standard.write_text("\n".join(line for line in text.splitlines() if line.startswith("#include <")))
            subprocess.run(["g++", *options, "-x", "c++-header", standard], check=True)
        subprocess.run(["g++", *options, "-shared", "-include", standard, made, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = np.zeros(size + 256, np.uint8)
    first = -raw.ctypes.data % 256
    return raw[first : first + size]


@dataclass
class Ranks:
    """The ranks of a world in the memory of the host: workspaces, fault records, epochs."""

    info: ParallelInfo
    op: MixedCommOp
    library: Any
    geometry: Geometry
    limit: int = LIMIT
    grids: Sequence[int] = ()
    calls: list[Calls] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = self.info.world_size
        self.workspaces = [aligned(self.geometry.total_bytes) for _ in range(world)]
        self.faults = [aligned(16) for _ in range(world)]
        self.addresses = tuple(int(one.ctypes.data) for one in self.workspaces)
        self._kept: list[Any] = []

    def set_epochs(self, epoch: int) -> None:
        for one in self.workspaces:
            for offset in (Geometry.CONTROL_PACKET_EPOCH, Geometry.CONTROL_FLAG_EPOCH):
                one[offset : offset + 4] = np.frombuffer(np.uint32(epoch).tobytes(), np.uint8)

    def fault(self, rank: int) -> tuple[int, int]:
        kind_and_peer = int(self.faults[rank][:8].view(np.uint64)[0])
        return kind_and_peer >> 32, kind_and_peer & 0xFFFFFFFF

    def call(
        self,
        rank: int,
        mode: MixedCommMode,
        x_in: Any,
        x_out: Any,
        *,
        grid: int,
        staged: bool = False,
        dtype: str = "float16",
    ) -> HostCall:
        """One call of one rank. Arguments are kept until the run is over."""
        calls = Calls(self.info.at(rank), self.op, grid=grid, block_sizes=(4, 8), fewest_steps=2)
        calls._largest_tile = TILE
        calls.connect(self.addresses, int(self.faults[rank].ctypes.data), self.limit)
        self._kept.append(calls)
        block = self.info.block_size(self.op, x_in.nbytes)
        agreed = signature(self.op, mode, dtype, block, is_staged=staged)
        addresses = int(x_in.ctypes.data), int(x_out.ctypes.data)
        if mode is MixedCommMode.ONE_EXCHANGE:
            blocks, threads = calls.one_exchange(*addresses, block, agreed)
            # A header is sent and checked by one thread for each rank.
            return HostCall(0, blocks, max(threads, self.info.world_size), 1, ctypes.addressof(calls.one))
        if not staged:
            blocks = calls.two_exchange(*addresses, block, agreed, is_staged=False)
            calls.two.tile_bytes = min(calls.two.tile_bytes, TILE)
            return HostCall(1, blocks, THREADS_OF_TWO, 1, ctypes.addressof(calls.two))
        own = self.addresses[rank]
        inner = own + self.geometry.staged_input, own + self.geometry.staged_output
        blocks = calls.two_exchange(*inner, block, agreed, is_staged=True)
        calls.two.tile_bytes = min(calls.two.tile_bytes, TILE)
        copies = (inner[0], addresses[0], x_in.nbytes, addresses[1], inner[1], x_out.nbytes)
        return HostCall(1, blocks, THREADS_OF_TWO, 1, ctypes.addressof(calls.two), *copies)

    def run(self, calls: Sequence[Sequence[HostCall]], seed: int) -> bool:
        """Runs the calls of every rank, each rank's in order, the ranks at the same time. Returns whether they end."""
        count = len(calls[0])
        table = (HostCall * (len(calls) * count))(*[one for rank in calls for one in rank])
        shared = TILES_OFFSET + STAGES * len(self.info.plan(self.op).sources) * TILE
        return bool(self.library.run_ranks(table, len(calls), count, ctypes.c_size_t(shared), u32(seed), u64(STEPS)))


def bfloat16_of(numbers: Any) -> Any:
    """Rounded to nearest even, as the 16 bits."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: Any, is_bfloat16: bool) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else bits.view(np.float16).astype(np.float32)


def narrowed(numbers: Any, is_bfloat16: bool) -> Any:
    return bfloat16_of(numbers) if is_bfloat16 else numbers.astype(np.float16).view(np.uint16)


def expected_bits(info: ParallelInfo, op: MixedCommOp, inputs: Sequence[Any], is_bfloat16: bool) -> Any:
    """The output of a rank, as bits, in numpy and apart from the package's own reference."""
    out = []
    for block in info.plan(op).blocks:
        parts = [inputs[rank] for rank in block]
        if op.scatters:
            parts = [np.split(part, info.dp_size)[info.dp_rank] for part in parts]
        if len(parts) == 1:
            out.append(parts[0])
            continue
        total = widened(parts[0], is_bfloat16)
        for part in parts[1:]:
            total = total + widened(part, is_bfloat16)
        out.append(narrowed(total, is_bfloat16))
    return np.concatenate(out)
