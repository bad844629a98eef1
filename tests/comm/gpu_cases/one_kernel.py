"""All ranks in one kernel, on one GPU and without torch: for tools under which kernels do not run at the same time.

compute-sanitizer's tools follow each access of a kernel, and most of them let no two kernels run at once: ranks that
wait for each other would do so until their time limit. Here each block belongs to a rank. What runs is the text of the
kernels but for two lines: how a kernel is declared, and which block of how many this one is.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from .common import case

if TYPE_CHECKING:
    from collections.abc import Iterator

GRID = 2  # of each rank
LIMIT_NS = 20_000_000_000
STAGED_BYTES = 1 << 16
# Bytes of one block of the output: of a part of a packet, of several tiles, and in between.
BLOCK_BYTES = (16, 1040, 32768)
TOPOLOGIES = {
    "ALLREDUCE": (2, 1),
    "ALLGATHER": (1, 2),
    "REDUCESCATTER": (1, 2),
    "ALLREDUCE_ALLGATHER": (2, 2),
    "REDUCESCATTER_ALLREDUCE": (2, 2),
    "ALLTOALL": (1, 2),
}


DECLARED = re.compile(r"KERNEL\((\w+), (\w+)\)\(const __grid_constant__ (\w+) a\)")


def in_one(text: str) -> str:
    """Kernels that run those of all ranks: `name_of_all` takes the arguments of each."""
    changed = {
        'extern "C" __global__ void __launch_bounds__(threads, 1) name': "DEVICE void name",
        "{ return blockIdx.x; }": "{ return blockIdx.x % (gridDim.x / WORLD); }",
        "{ return gridDim.x; }": "{ return gridDim.x / WORLD; }",
    }
    for before, after in changed.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    of_all = [
        f"""
struct {name}_of_ranks {{ {kind} of[WORLD]; }};
extern "C" __global__ void __launch_bounds__({threads}, 1) {name}_of_all(const __grid_constant__ {name}_of_ranks a) {{
  {name}(a.of[blockIdx.x / (gridDim.x / WORLD)]);
}}
"""
        for name, threads, kind in DECLARED.findall(text)
    ]
    return DECLARED.sub(r"KERNEL(\1, \2)(const \3& a)", text) + "".join(of_all)


class World:
    """The ranks of a topology in the memory of one context: workspaces, inputs, outputs, and the words of faults."""

    def __init__(self, dev: Any, op: Any, info: Any, packing: Any, closing: ExitStack) -> None:
        from cuda_gctx.comm._faults import FaultRecord
        from cuda_gctx.comm._protocol import Element, Geometry, packet_bytes

        self.op, self.packing, self.element = op, packing, Element.FLOAT32
        self.infos = [info.at(rank) for rank in range(info.world_size)]
        self.geometry = Geometry(info.world_size, packet_bytes(info.world_size), STAGED_BYTES)
        self._device, self._closing = dev, closing
        self._functions: dict[str, Any] = {}
        self.peers = tuple(self.memory(self.geometry.total_bytes) for _ in self.infos)
        self.faults = [FaultRecord(dev, rank, LIMIT_NS / 1e9) for rank, _ in enumerate(self.infos)]
        for one in self.faults:
            closing.callback(one.close)
        self.kernels = [self.kernels_of(one, fault) for one, fault in zip(self.infos, self.faults, strict=True)]
        self._load()

    def kernels_of(self, info: Any, fault: Any) -> Any:
        """The kernels of a rank, which have their names for their functions."""
        from cuda_gctx.comm._launch import Kernels
        from cuda_gctx.comm._limits import Limits

        class Named(Kernels):
            def _load(self, packing: Any) -> Any:
                return {name: name for name in ("one_exchange", "two_exchange", "look_for_torn_packets")}

        fields = {"peer": self.peers, "fault": fault.address, "limit": LIMIT_NS, "stops": False}
        limits = Limits(fewest_threads=32, most_threads={self.op: 64}, fewest_steps=4)
        how: dict[str, Any] = {"element": self.element, "is_programmatic": False, "packing": self.packing}
        nothing: Any = None
        return Named(info, self.op, self.geometry, nothing, self._device, fields, limits, **how)

    def memory(self, size: int) -> int:
        """Zeros on the device, until the world is closed."""
        from cuda_gctx.comm._driver_calls import call

        address = int(call("cuMemAlloc", size))
        self._closing.callback(call, "cuMemFree", address)
        call("cuMemsetD8", address, 0, size)
        return address

    def _load(self) -> None:
        from cuda_gctx.comm import _compile
        from cuda_gctx.comm._driver_calls import call, driver
        from cuda_gctx.comm._protocol import defines, shared_bytes

        info = self.infos[0]
        words = defines(info, self.op, self.geometry, element=self.element, packing=self.packing)
        text = _compile.source(words)
        with patch.object(_compile, "source", lambda *_: in_one(text)):
            image = _compile.compile_kernels(words, self._device.compute_capability).code.code
        library = call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
        self._closing.callback(call, "cuLibraryUnload", library)
        for name, _, _ in DECLARED.findall(text):
            kernel = call("cuLibraryGetKernel", library, f"{name}_of_all".encode())
            self._functions[name] = call("cuKernelGetFunction", kernel)
        self.shared = shared_bytes(len(info.plan(self.op).sources))
        limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", self._functions["two_exchange"], limit, self.shared)

    def launch(self, name: str, arguments: list[bytes], blocks: int, threads: int, shared: int = 0) -> None:
        """The kernel of all ranks, with the arguments of each."""
        from cuda_gctx.comm._driver_calls import call

        content = ctypes.create_string_buffer(b"".join(arguments))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(content))
        grid = blocks * len(self.infos), 1, 1
        call("cuLaunchKernel", self._functions[name], *grid, threads, 1, 1, shared, 0, ctypes.addressof(parameters), 0)
        call("cuCtxSynchronize")
        for rank, fault in enumerate(self.faults):
            assert not fault, f"{name} of {self.op.name}: rank {rank}: {fault.exception()}"

    def launch_all(
        self, add: Callable[[Any, Any, int], None], tensors: Sequence[tuple[int, int]] = (), block: int = 0
    ) -> None:
        """Launches the kernels that `add` adds to the plan of each rank, one behind the other.

        tensors: the input and the output of each rank. block: the bytes of a block of the output.
        """
        from cuda_gctx.comm._staging import Span

        plans = [Steps() for _ in self.infos]
        for plan, (x_in, x_out) in zip(plans, tensors, strict=False):
            plan.reads, plan.writes = [Span(x_in, 0)], [Span(x_out, block * len(self.infos[0].plan(self.op).blocks))]
        for rank, (kernels, plan) in enumerate(zip(self.kernels, plans, strict=True)):
            add(kernels, plan, rank)
        for steps in zip(*(plan.steps for plan in plans), strict=True):
            [name] = {one.name for one in steps}
            [threads] = {one.threads for one in steps}
            # The largest share decides: blocks without one move nothing, as those of ranks without a share.
            shape = max(one.blocks for one in steps), threads
            self.launch(name, [one.content for one in steps], *shape, self.shared if name == "two_exchange" else 0)

    def one_exchange(self, tensors: list[tuple[int, int]], block: int, agreed: int) -> None:
        self.launch_all(lambda kernels, plan, rank: kernels.one_exchange(plan, block, agreed, GRID), tensors, block)

    def two_exchange(self, tensors: list[tuple[int, int]], block: int, agreed: int) -> None:
        # An address is the same for all ranks.
        self.launch_all(lambda kernels, plan, rank: kernels.two_exchange(plan, block, agreed, GRID), tensors, block)

    def staged(self, tensors: list[tuple[int, int]], block: int, agreed: int) -> None:
        from cuda_gctx.comm._staging import Staging

        def add(kernels: Any, plan: Any, rank: int) -> None:
            [[part]] = Staging(self.infos[rank], self.op, self.geometry, self.peers).rounds(*tensors[rank], block)
            kernels.staged_part(plan, part, agreed, GRID, is_copied=True)

        self.launch_all(add, tensors, block)

    def look_for_torn_packets(self) -> None:
        from cuda_gctx.comm._protocol import TORN_THREADS
        from cuda_gctx.comm._structs import TORN

        def add(kernels: Any, plan: Any, rank: int) -> None:
            kernels.launcher.add(plan, "look_for_torn_packets", TORN, {"packets": 20}, GRID, TORN_THREADS)

        self.launch_all(add)
        assert not any(fault.has_torn_packet for fault in self.faults)


class Step(NamedTuple):
    name: str
    content: bytes
    blocks: int
    threads: int


class Steps:
    """The kernels of a plan whose addresses are known."""

    number, is_held = 0, False

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.reads: list[Any] = []
        self.writes: list[Any] = []

    def kernel(self, name: str, packed: Any, number_at: int, blocks: int, threads: int, *how: Any) -> None:
        content = bytearray(packed.content)
        content[number_at] = 1  # not 0, which stands for no call
        self.steps.append(Step(name, bytes(content), blocks, threads))


def wanted(info: Any, op: Any, numbers: int) -> Any:
    """The output of a rank whose input is `value_of(world rank, place)`, of so many numbers."""
    plan = info.plan(op)
    block = numbers // (info.dp_size if op.divides else 1)
    chunk = info.dp_rank * block if op.divides else 0
    return array(
        "f",
        [sum(value_of(source, chunk + at) for source in sources) for sources in plan.blocks for at in range(block)],
    )


def value_of(rank: int, at: int) -> int:
    return (rank + 1) * (at % 7 + 1)


def compared(world: World, run: Callable[..., None], mode: Any, block: int, *, is_staged: bool) -> None:
    """A call of all ranks; every number of every output is compared."""
    from cuda_gctx.comm._driver_calls import call
    from cuda_gctx.comm._protocol import signature

    info, op = world.infos[0], world.op
    numbers = block // 4 * (info.dp_size if op.divides else 1)
    out_bytes = block * len(info.plan(op).blocks)
    tensors = []
    for rank in range(info.world_size):
        x_in, x_out = world.memory(4 * numbers), world.memory(out_bytes)
        given = array("f", [value_of(rank, at) for at in range(numbers)])
        call("cuMemcpyHtoD", x_in, given.buffer_info()[0], 4 * numbers)
        tensors.append((x_in, x_out))
    run(tensors, block, signature(op, mode, "torch.float32", block, is_staged=is_staged))
    for one, (_, x_out) in zip(world.infos, tensors, strict=True):
        found = array("f", bytes(out_bytes))
        call("cuMemcpyDtoH", found.buffer_info()[0], x_out, out_bytes)
        assert found == wanted(one, op, numbers), f"{op.name} {mode.name}, {block} bytes, rank {one.world_rank}"


@contextmanager
def a_world(dev: Any, op: Any, packing: Any) -> Iterator[World]:
    from cuda_gctx.comm import ParallelInfo

    tp, dp = TOPOLOGIES[op.name]
    info = ParallelInfo.of(0, tp * dp, 0, tp * dp, 0, 1, tp, dp, 1, 1)
    with ExitStack() as closing, dev.context.current():
        yield World(dev, op, info, packing, closing)


@case()
def ranks_in_one_kernel() -> dict[str, Any]:
    """Every operation in the modes that compute it, staged and not, with both forms of packets."""
    from cuda_gctx import Device
    from cuda_gctx.comm import MixedCommMode, MixedCommOp
    from cuda_gctx.comm._protocol import Packing

    dev, calls = Device(0), 0
    one, two = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE
    for name in TOPOLOGIES:
        for packing in Packing:
            with a_world(dev, MixedCommOp[name], packing) as world:
                if packing is Packing.WHOLE:
                    world.look_for_torn_packets()
                for block in BLOCK_BYTES:
                    compared(world, world.one_exchange, one, block, is_staged=False)
                    calls += 1
                    if packing is Packing.WHOLE and name != "ALLTOALL":
                        compared(world, world.two_exchange, two, block, is_staged=False)
                        compared(world, world.staged, two, block, is_staged=True)
                        calls += 2
            print(name, packing.name, flush=True)
    return {"calls": calls, "operations": len(TOPOLOGIES)}
