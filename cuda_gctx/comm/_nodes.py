"""The hierarchical form: the kernels within a node, and the exchange between nodes through a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from cuda_gctx import Context, Device
from cuda_gctx.comm._backends import CommBackend, on_all_ranks
from cuda_gctx.comm._calls import Plan
from cuda_gctx.comm._compile import BETWEEN_NODES, KERNELS, WITHIN_NODES, compile_kernels
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._launch import STAGED_INPUT, STAGED_OUTPUT, Launcher, Loaded, Seen, Sums
from cuda_gctx.comm._limits import Limits
from cuda_gctx.comm._protocol import (
    NODE_THREADS,
    TWO_EXCHANGE_THREADS,
    Element,
    Geometry,
    NodeStep,
    Region,
    node_defines,
    part_of,
    shared_bytes,
)
from cuda_gctx.comm._staging import Copy, Place
from cuda_gctx.comm._structs import EXCHANGE, TWO_EXCHANGE
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo

__all__ = [
    "NcclTransport",
    "NodeKernels",
    "NvshmemTransport",
    "PeerTransport",
    "Round",
    "Transport",
    "rounds_of",
]

# What one block of the kernel that copies pieces has at least, in bytes.
BYTES_OF_A_BLOCK = NODE_THREADS * 8


class Round(NamedTuple):
    """A round of a call: the copies before its kernels, what they work on, and the copies after them.

    x_in, x_out: the first block; begin: where the round lies in each block of the call; size: of its part of a block;
    stride: from one block to the next, where the kernels read and write.
    """

    before: tuple[Copy, ...]
    x_in: Place
    x_out: Place
    begin: int
    size: int
    stride: int
    after: tuple[Copy, ...]


def rounds_of(
    addresses: tuple[Place, Place], counts: tuple[int, int], block_bytes: int, room: int, staged: tuple[int, int] | None
) -> Iterator[Round]:
    """The rounds of a call, which follow each other like calls: of each block as much as there is memory for.

    addresses, counts: of the input and the output, and how many blocks each has; room: of a block, in bytes; staged:
    where they are copied to and from; None: nowhere.
    """
    for begin in range(0, block_bytes, room):
        size = min(room, block_bytes - begin)
        x_in, x_out = (address + begin for address in addresses)
        if staged is None:
            yield Round((), x_in, x_out, begin, size, block_bytes, ())
            continue
        # In the workspace, the parts of the blocks lie next to each other.
        sends, fetches = (
            # One copy, where they do in the tensor too.
            [(inside, outside, count * size)]
            if size == block_bytes
            else [(inside + number * size, outside + number * block_bytes, size) for number in range(count)]
            for inside, outside, count in zip(staged, (x_in, x_out), counts, strict=True)
        )
        before = tuple(Copy(inside, outside, length) for inside, outside, length in sends)
        after = tuple(Copy(outside, inside, length) for inside, outside, length in fetches)
        yield Round(before, *staged, begin, size, size, after)


# Adds a kernel that leaves no numbers at an address, of so many bytes, if this rank has a fault by then.
Spoil = Callable[[Place, int], None]


class Transport(Protocol):
    """How the kernel between nodes reaches the other nodes: it has a region for this rank, and loads that kernel."""

    regions: tuple[int, ...]
    """The regions of the equal local ranks, by node. For NVSHMEM, its own region stands for all of them."""

    cannot_release: str
    """Why its memory cannot be released for a checkpoint; empty if it can."""

    def load(self, words: dict[str, str], context: Context, device: Device) -> Loaded | None:
        """The kernel of nodes.cuh; None if there is none."""

    def unload(self, kernels: Loaded) -> None:
        """Unloads the kernel."""

    def add(
        self,
        plan: Plan,
        launcher: Launcher | None,
        values: Mapping[str, Any],
        blocks: int,
        signature: int,
        spoil: Spoil,
    ) -> None:
        """Adds the exchange, with the arguments of its kernel.

        spoil: adds a kernel that leaves no numbers at an address, of so many bytes, if this rank has a fault by then.
        """

    def clear(self) -> None:
        """Makes the region of this rank zero, unless it is part of the workspace. Collective."""

    def close(self) -> None:
        """Frees the region. Collective."""


class _ByKernel:
    """What the transports with a kernel have in common."""

    def add(
        self,
        plan: Plan,
        launcher: Launcher | None,
        values: Mapping[str, Any],
        blocks: int,
        signature: int,
        spoil: Spoil,
    ) -> None:
        assert launcher is not None
        launcher.add(plan, "exchange_pieces", EXCHANGE, values, blocks, NODE_THREADS, signature=signature)


class PeerTransport(_ByKernel):
    """Nodes of one host: the kernel writes to the regions of all ranks, which are part of their workspaces."""

    cannot_release = ""

    def __init__(self, info: ParallelInfo, workspaces: Sequence[int], offset: int) -> None:
        self.regions = tuple(workspaces[rank] + offset for rank in info.inter_ranks())

    def load(self, words: dict[str, str], context: Context, device: Device) -> Loaded:
        compiled = compile_kernels(words, device.compute_capability, BETWEEN_NODES)
        return Loaded(compiled, KERNELS[BETWEEN_NODES[0]], context)

    def unload(self, kernels: Loaded) -> None:
        kernels.close()

    def clear(self) -> None:
        """The workspaces are cleared by their owner."""

    def close(self) -> None:
        """The workspaces are closed by their owner."""


class NvshmemTransport(_ByKernel):
    """NVSHMEM: the kernel calls it on the device. It must be initialised."""

    cannot_release = "NVSHMEM cannot release memory and restore it at the same addresses"

    def __init__(self, backend: CommBackend, info: ParallelInfo, device: Device, region: Region) -> None:
        self._library: Any = import_module("nvshmem.bindings")
        self._device = device

        self._size = region.total_bytes
        self._region = 0

        def allocate() -> None:
            with device.context.current():
                # On all ranks the same size and at the same time: so it is the same place of the symmetric heap.
                self._region = int(self._library.align(4096, self._size))
            if not self._region:
                raise RuntimeError(f"NVSHMEM cannot allocate {self._size} bytes: increase NVSHMEM_SYMMETRIC_SIZE")
            self._set_zero()

        # Nobody counts up before everybody has begun at zero.
        on_all_ranks(backend, allocate, "the memory for exchanges between nodes could not be made")
        self.regions = (self._region,) * info.inter_size

    def load(self, words: dict[str, str], context: Context, device: Device) -> Loaded:
        words = words | {"THROUGH_NVSHMEM": "1"}
        compiled = compile_kernels(words, device.compute_capability, BETWEEN_NODES, with_nvshmem=True)
        loaded = Loaded(compiled, KERNELS[BETWEEN_NODES[0]], context)
        # NVSHMEM's state is a variable of the library, of which each context has one.
        with context.current():
            status = self._library.culibrary_init(loaded.library)
        if status != 0:
            loaded.close()
            raise RuntimeError(f"NVSHMEM cannot initialise the kernel that calls it: status {status}")
        return loaded

    def unload(self, kernels: Loaded) -> None:
        # While the variable is there, NVSHMEM writes to it.
        with kernels.context.current():
            self._library.culibrary_finalize(kernels.library)
        kernels.close()

    def clear(self) -> None:
        with self._device.context.current():
            self._library.barrier_all()  # until what is under way has arrived, on all ranks
        self._set_zero()

    def _set_zero(self) -> None:
        with self._device.context.current():
            call("cuMemsetD8", self._region, 0, self._size)
            call("cuCtxSynchronize")

    def close(self) -> None:
        region, self._region = self._region, 0
        if region:
            with self._device.context.current():
                self._library.free(region)


class NcclTransport:
    """NCCL, between equal local ranks: sends and receives of torch.distributed, between the kernels of this package.

    group: of all ranks of the handler. What a rank sends after a fault are no numbers. memory: the region, as a tensor.
    """

    cannot_release = ""

    def __init__(self, backend: CommBackend, info: ParallelInfo, device: Any, region: Region, group: Any) -> None:
        self._distributed: Any = import_module("torch.distributed")
        self._group = group
        self._node, self._ranks = info.inter_rank, info.inter_ranks()
        self._layout = region
        torch: Any = import_module("torch")
        what = "the memory for exchanges between nodes could not be made"
        self.memory = on_all_ranks(
            backend, lambda: torch.zeros(region.total_bytes, dtype=torch.uint8, device=device), what
        )
        self.regions = (int(self.memory.data_ptr()),) * info.inter_size

    def load(self, words: dict[str, str], context: Context, device: Device) -> None:
        return None

    def unload(self, kernels: Loaded) -> None:
        """There is no kernel."""

    def add(
        self,
        plan: Plan,
        launcher: Launcher | None,
        values: Mapping[str, Any],
        blocks: int,
        signature: int,
        spoil: Spoil,
    ) -> None:
        layout, size = self._layout, values["piece_bytes"]
        pieces = list(values["piece"])
        for piece in sorted(set(pieces)):
            spoil(self.regions[0] + layout.outgoing(piece) + layout.HEADER_BYTES, size)
        if size:
            plan.call(partial(self._exchange, pieces, size))

    def _exchange(self, pieces: Sequence[int], size: int) -> None:
        dist, layout = self._distributed, self._layout

        def bytes_at(header: int) -> Any:
            begin = header + layout.HEADER_BYTES
            return self.memory[begin : begin + size]

        moves = []
        for node in range(layout.nodes):
            if node != self._node:
                other = dist.get_global_rank(self._group, self._ranks[node])
                moves.append(dist.P2POp(dist.isend, bytes_at(layout.outgoing(pieces[node])), other, self._group))
                moves.append(dist.P2POp(dist.irecv, bytes_at(layout.incoming(node)), other, self._group))
        for work in dist.batch_isend_irecv(moves):
            work.wait()

    def clear(self) -> None:
        """Nothing in it outlives an exchange."""

    def close(self) -> None:
        self.memory = None


class NodeKernels:
    """The kernels of one operation in the hierarchical form, loaded in one context.

    call: the fields that the kernels of all calls share, with the workspaces of the ranks of this node.
    """

    def __init__(
        self,
        info: ParallelInfo,
        op: MixedCommOp,
        geometry: Geometry,
        region: Region,
        transport: Transport,
        context: Context,
        device: Device,
        call: Mapping[str, Any],
        limits: Limits,
        *,
        element: Element,
    ) -> None:
        self._info, self._region, self._transport = info, region, transport
        plan = self._plan = info.node_plan(op)
        node, local_rank, added = info.local_size, info.local_rank, len(plan.sums[0][0])
        call = {**call, "rank": local_rank, "first_world_rank": info.inter_rank * node}
        self.sums = {
            NodeStep.COLLECT: Sums(node, plan.sources, (local_rank,), limits),
            # The sums lie in this rank's region.
            NodeStep.SPREAD: Sums(node, (local_rank,) * added, plan.targets, limits),
        }
        self.launchers: dict[NodeStep, Launcher] = {}
        self._shared: dict[NodeStep, int] = {}
        for step, sums in self.sums.items():
            words = node_defines(info, op, step, geometry, region, element=element)
            self._shared[step] = shared_bytes(len(sums.sources))
            self.launchers[step] = Launcher(self._load(step, words, context, device), call, sums.counts)
        words = node_defines(info, op, NodeStep.EXCHANGE, geometry, region, element=element)
        between = transport.load(words, context, device)
        if between is not None:
            counts = {"WORLD": node, "NODES": info.inter_size}
            self.launchers[NodeStep.EXCHANGE] = Launcher(between, call, counts)

    def _load(self, step: NodeStep, words: dict[str, str], context: Context, device: Device) -> Loaded:
        compiled = compile_kernels(words, device.compute_capability, WITHIN_NODES)
        loaded = Loaded(compiled, KERNELS[WITHIN_NODES[0]], context)
        loaded.allow_shared("two_exchange", self._shared[step])
        return loaded

    def run(
        self,
        plan: Plan,
        part: Round,
        signature: int,
        grid: int,
        spoil: Spoil,
        *,
        is_staged: bool,
        seen: Seen | None = None,
    ) -> None:
        """Adds all steps of a round, one behind the other.

        seen: the addresses of input and output in the process of each rank of the node.
        """
        of_op, region, node = self._plan, self._region, self._info.inter_rank
        regions = self._transport.regions
        own_region = regions[node]
        count = self._info.local_size
        inputs: tuple[Place, ...] = (part.x_in,) * count
        outputs: tuple[Place, ...] = (part.x_out,) * count
        if seen is not None:
            inputs, outputs = (tuple(address + part.begin for address in of_ranks) for of_ranks in seen)
        begin, size = part_of(of_op.share, of_op.shares, part.size)
        for number, chunk in enumerate(of_op.chunks):
            piece = own_region + region.outgoing(number) + region.HEADER_BYTES
            offsets = (chunk * part.stride + begin,) * len(of_op.sources), 0
            how: dict[str, Any] = {"staged": STAGED_INPUT if is_staged else 0, "seen": (inputs, (piece,) * count)}
            self._add(plan, NodeStep.COLLECT, signature, (part.x_in, piece), offsets, size, grid, **how)
        values = {"region": regions, "piece_bytes": size, "node": node, "piece": of_op.chunk_of_node}
        blocks = max(min(grid, size // BYTES_OF_A_BLOCK), 1)
        self._transport.add(plan, self.launchers.get(NodeStep.EXCHANGE), values, blocks, signature, spoil)
        for nodes, block in of_op.sums:
            pieces = [
                region.HEADER_BYTES
                + (region.outgoing(of_op.chunk_of_node[node]) if other == node else region.incoming(other))
                for other in nodes
            ]
            offsets = tuple(pieces), block * part.stride + begin
            how = {"staged": STAGED_OUTPUT if is_staged else 0, "seen": ((own_region,) * count, outputs)}
            self._add(plan, NodeStep.SPREAD, signature, (own_region, part.x_out), offsets, size, grid, **how)

    def meet(self, plan: Plan, signature: int, limit_ns: int, grid: int) -> None:
        """Adds a kernel of as many blocks as a call can have. It waits for the blocks of all ranks of the node."""
        nowhere = (0,) * len(self._plan.sources), 0
        values, _ = self.sums[NodeStep.COLLECT].filled((0, 0), nowhere, 0, grid, staged=0)
        self._launch(plan, NodeStep.COLLECT, values, grid, signature=signature, limit=limit_ns)

    def _add(self, plan: Plan, step: NodeStep, signature: int, *where: Any, **how: Any) -> None:
        self._launch(plan, step, *self.sums[step].filled(*where, **how), signature=signature)

    def _launch(self, plan: Plan, step: NodeStep, values: Mapping[str, Any], blocks: int, **call: int) -> None:
        how: dict[str, Any] = {"shared": self._shared[step], **call}
        self.launchers[step].add(plan, "two_exchange", TWO_EXCHANGE, values, blocks, TWO_EXCHANGE_THREADS, **how)

    def close(self) -> None:
        between = self.launchers.pop(NodeStep.EXCHANGE, None)
        if between is not None:
            self._transport.unload(between.loaded)
        while self.launchers:
            self.launchers.popitem()[1].loaded.close()
