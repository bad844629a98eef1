"""The kernels of a handler, loaded where they will run, and their launches."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from cuda_gctx import Context, Device, Stream
from cuda_gctx.comm._compile import compile_kernels
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._protocol import (
    TWO_EXCHANGE_THREADS,
    Geometry,
    defines,
    share_of,
    shared_bytes,
    stages_and_tile,
    tile_bytes,
)
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo

__all__ = ["Calls", "Kernels", "one_exchange_arguments", "two_exchange_arguments"]

u32, u64 = ctypes.c_uint32, ctypes.c_uint64
# The addresses of an input and of an output in the process of each rank.
Seen = tuple[tuple[int, ...], tuple[int, ...]]
WARP = 32
# Of the kernel for small messages; many small blocks were faster than few large ones on an H200.
BLOCKS_OF_AN_SM = 4


def _rounded(count: int, grain: int) -> int:
    return -(-count // grain) * grain


@cache
def _call_arguments(world: int) -> Any:
    class Call(ctypes.Structure):
        _fields_ = (("peer", u64 * world), ("fault", u64), ("limit", u64), ("rank", u32), ("signature", u32))

    return Call


@cache
def one_exchange_arguments(world: int) -> Any:
    """The struct of the same name of the kernel's source."""

    class OneExchange(ctypes.Structure):
        _fields_ = (
            ("call", _call_arguments(world)),
            ("input", u64),
            ("output", u64),
            ("block_bytes", u64),
            ("chunk", u32 * world),
        )

    return OneExchange


@cache
def two_exchange_arguments(world: int, sources: int, targets: int) -> Any:
    """The struct of the same name of the kernel's source."""

    class TwoExchange(ctypes.Structure):
        _fields_ = (
            ("call", _call_arguments(world)),
            ("input", u64),
            ("output", u64),
            ("input_at", u64 * world),
            ("output_at", u64 * world),
            ("input_offset", u64),
            ("output_offset", u64),
            ("share_bytes", u64),
            ("tile_bytes", u32),
            ("is_staged", u32),
            ("source", u32 * sources),
            ("target", u32 * targets),
        )

    return TwoExchange


class Calls:
    """What the kernels of one operation are given, call by call, and with how many blocks and threads they run.

    The structs are filled in place: the driver copies them at each launch.
    """

    def __init__(
        self,
        info: ParallelInfo,
        op: MixedCommOp,
        *,
        grid: int,
        block_sizes: tuple[int, int],
        fewest_steps: int,
    ) -> None:
        self._info = info
        self._op = op
        self.grid = grid
        self._block_sizes = block_sizes
        self._fewest_steps = fewest_steps
        plan = info.plan(op)
        world = self._world = info.world_size
        self._largest_tile = stages_and_tile(len(plan.sources))[1]
        self.one = one_exchange_arguments(world)()
        self.two = two_exchange_arguments(world, len(plan.sources), len(plan.targets))()
        self.one.chunk[:] = [info.at(rank).dp_rank if op.scatters else 0 for rank in range(world)]
        self.two.source[:] = plan.sources
        self.two.target[:] = plan.targets

    def connect(self, peers: tuple[int, ...], fault: int, limit_ns: int) -> None:
        """What stays the same from call to call: the workspaces, where faults are reported, the time limit."""
        for arguments in (self.one.call, self.two.call):
            arguments.peer[:] = peers
            arguments.fault = fault
            arguments.limit = limit_ns
            arguments.rank = self._info.world_rank

    def one_exchange(self, x_in: int, x_out: int, block_bytes: int, signature: int) -> tuple[int, int]:
        """Fills the struct; returns the numbers of blocks and of threads."""
        self.one.call.signature = signature
        self.one.input, self.one.output, self.one.block_bytes = x_in, x_out, block_bytes
        units = block_bytes // 8
        fewest, most = self._block_sizes
        # On as many SMs as there are, with as few threads on each as are allowed, in several small blocks: the smaller
        # they are, the fewer SMs are left without work.
        on_each = min(max(_rounded(-(-units // self.grid), WARP), fewest), most)
        threads = min(on_each, _rounded(-(-on_each // BLOCKS_OF_AN_SM), WARP))
        return min(self.grid * -(-on_each // threads), -(-units // threads)), threads

    def two_exchange(
        self, x_in: int, x_out: int, block_bytes: int, signature: int, *, is_staged: bool, seen: Seen | None = None
    ) -> int:
        """Fills the struct; returns the number of blocks."""
        self.two.call.signature = signature
        self.two.input, self.two.output = x_in, x_out
        self.two.input_at[:], self.two.output_at[:] = seen or ((x_in,) * self._world, (x_out,) * self._world)
        self.two.input_offset, self.two.output_offset, share = share_of(self._info, self._op, block_bytes)
        tile = tile_bytes(share, self.grid, self._fewest_steps, self._largest_tile)
        self.two.share_bytes, self.two.tile_bytes, self.two.is_staged = share, tile, is_staged
        # A rank without a share has a block too, which says START and END.
        return max(min(self.grid, -(-share // tile)), 1)


def _programmatic_launch() -> Any:
    """A launch that need not wait until the kernel before it has ended."""
    cu = driver()
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    launch = cu.CUlaunchConfig()
    launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1
    launch.sharedMemBytes = 0
    launch.attrs, launch.numAttrs = [attribute], 1
    return launch


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
        is_bfloat16: bool,
        is_programmatic: bool,
    ) -> None:
        self.calls = calls
        self._programmatic = _programmatic_launch() if is_programmatic else None
        compiled = compile_kernels(defines(info, op, geometry, is_bfloat16=is_bfloat16), device.compute_capability)
        self._library = call("cuLibraryLoadData", compiled.code.code, [], [], 0, [], [], 0)
        self._shared = shared_bytes(len(info.plan(op).sources))
        with context.current():
            # Loaded into the context now. At its first launch, loading could wait for kernels that run: for those of
            # other ranks, which wait for this one.
            self._one, self._two = (
                call("cuKernelGetFunction", call("cuLibraryGetKernel", self._library, name))
                for name in (b"one_exchange", b"two_exchange")
            )
            limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", self._two, limit, self._shared)
        self._pointers = {
            id(arguments): (ctypes.c_void_p * 1)(ctypes.addressof(arguments)) for arguments in (calls.one, calls.two)
        }

    def _launch(self, function: Any, arguments: Any, grid: int, threads: int, shared: int, stream: Stream) -> None:
        pointer = ctypes.addressof(self._pointers[id(arguments)])
        with stream.context.current():
            call("cuLaunchKernel", function, grid, 1, 1, threads, 1, 1, shared, stream.handle, pointer, 0)

    def one_exchange(self, x_in: int, x_out: int, block_bytes: int, signature: int, stream: Stream) -> None:
        grid, threads = self.calls.one_exchange(x_in, x_out, block_bytes, signature)
        launch = self._programmatic
        if launch is None:
            self._launch(self._one, self.calls.one, grid, threads, 0, stream)
            return
        launch.gridDimX, launch.blockDimX, launch.hStream = grid, threads, stream.handle
        with stream.context.current():
            call("cuLaunchKernelEx", launch, self._one, ctypes.addressof(self._pointers[id(self.calls.one)]), 0)

    def two_exchange(
        self,
        x_in: int,
        x_out: int,
        block_bytes: int,
        signature: int,
        stream: Stream,
        *,
        is_staged: bool,
        seen: Seen | None = None,
    ) -> None:
        grid = self.calls.two_exchange(x_in, x_out, block_bytes, signature, is_staged=is_staged, seen=seen)
        self._launch(self._two, self.calls.two, grid, TWO_EXCHANGE_THREADS, self._shared, stream)

    def close(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            call("cuLibraryUnload", library)
