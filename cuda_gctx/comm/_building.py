"""How a handler is made: its arguments are agreed upon, its groups made, and what it holds on a GPU.

Between the first and the last thing that the ranks say to each other, what fails on one of them fails on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_gctx import Context, CUDAError, Device, Stream
from cuda_gctx.comm._arena import Arena
from cuda_gctx.comm._arguments import HOST_S, Arguments
from cuda_gctx.comm._backends import (
    CommBackend,
    LocalBackend,
    demand_all_equal,
    gather_results,
    on_all_ranks,
    wait_at_most,
)
from cuda_gctx.comm._calls import Plan
from cuda_gctx.comm._compile import FLAT, PLANS
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._faults import FaultRecord
from cuda_gctx.comm._groups import Groups, demand_place
from cuda_gctx.comm._launch import Kernels
from cuda_gctx.comm._limits import Limits
from cuda_gctx.comm._memory import Workspaces
from cuda_gctx.comm._message import Messages
from cuda_gctx.comm._modes import (
    LISTED,
    NO_LIMIT,
    CopyEngines,
    Gloo,
    Hierarchical,
    Mode,
    Modes,
    Nccl,
    OneExchange,
    TwoExchange,
)
from cuda_gctx.comm._nodes import (
    NcclTransport,
    NodeKernels,
    NvshmemTransport,
    PeerTransport,
    Transport,
)
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._nvshmem import demand_initialised, initialise
from cuda_gctx.comm._order import Order
from cuda_gctx.comm._packing import agreed_packing
from cuda_gctx.comm._protocol import (
    ALIGNMENT,
    Fault,
    Geometry,
    Packing,
    packet_bytes,
    region_of,
    signature,
)
from cuda_gctx.comm._reference import exchange_by_nodes, exchange_on_cpu
from cuda_gctx.comm._staging import PART_BYTES, Staging
from cuda_gctx.comm._tensors import MappedTensors
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp

__all__ = ["Built", "build"]

# How much can be staged by default, where other ranks cannot reach a tensor.
STAGED_BYTES = 64 * 1024 * 1024
# How long the kernels of all ranks have for their first meeting, and how often they try: another thread that loads a
# module or allocates memory meanwhile can keep a rank from launching.
MEETING_S = 5.0
MEETINGS = 3
NOT_BUILT = "the handler could not be built"
# recover() waits this much longer for the work of the device than a kernel waits for another rank.
RECOVER_S = 2.0
FAULT_END = Geometry.CONTROL_EXCHANGES


class OnGpu:
    """What a handler holds on its GPU: memory, kernels, and the modes that run them. Every rank makes one."""

    def __init__(self, arguments: Arguments, groups: Groups) -> None:
        self._arguments = arguments
        backend = self._backend = groups.backend
        info, self._device = arguments.info, Device(arguments.device.index)
        partition = arguments.partition
        self.context: Context = self._device.context if partition is None else partition.context
        self.order = Order.of(self.context, arguments.device)
        self.workspaces: Workspaces | None = None
        self.mapped: MappedTensors | None = None
        self.arena: Arena | None = None
        self.transport: Transport | None = None
        self.fault: FaultRecord | None = None
        self._kernels: dict[MixedCommOp, Kernels] = {}
        self._node_kernels: dict[MixedCommOp, NodeKernels] = {}
        self._copying: tuple[Stream, ...] = ()
        self._numbers = Numbers()
        fewest, most = arguments.block_sizes
        self.limits = Limits(fewest, dict.fromkeys(MixedCommOp, most), arguments.fewest_steps)
        self._has_nvshmem = False
        given = arguments.max_message_bytes
        self._node_bytes = STAGED_BYTES if given is None else given
        # Without staging, where all ranks reach each other's tensors: known only when they have met.
        on_one_device = given is None and _are_threads_on_one_device(backend, arguments.device.index)
        self.staged_bytes = 0 if on_one_device else -(-self._node_bytes // ALIGNMENT) * ALIGNMENT
        self._geometry = Geometry(info.world_size, packet_bytes(info.world_size), self.staged_bytes)
        self._region = region_of(info, self._node_bytes)
        try:
            self._make_memory(groups)
            # No rank launches while another one is still loading its kernels: loading may wait for what runs.
            packing = self._packing()
            on_all_ranks(backend, lambda: self._load_kernels(packing), NOT_BUILT)
            self._demand_concurrency()
            if packing is Packing.WHOLE and self._is_on_one_host:
                self._demand_whole_packets()
        except BaseException:
            self.transport = None  # closing is collective, and the others may not have failed
            self.close()
            raise

    def init_nvshmem(self) -> None:
        """Initialises NVSHMEM, once. Collective."""
        if not self._has_nvshmem:
            given = self._arguments
            initialise(self._backend, self._device, enable_ibgda=given.enable_ibgda, blocks=given.grid_size)
            self._has_nvshmem = True

    def _make_memory(self, groups: Groups) -> None:
        arguments, geometry, backend, region = self._arguments, self._geometry, self._backend, self._region
        info, limit_s = arguments.info, arguments.timeout_s
        transport = arguments.transport if info.use_inter else ""
        if transport == "nvshmem" and arguments.should_init_nvshmem:
            self.init_nvshmem()
        elif transport == "nvshmem":
            demand_initialised(backend)
        size = geometry.total_bytes + (region.total_bytes if transport == "peers" else 0)
        self.workspaces = Workspaces(backend, self._device, size, limit_s)
        on_all_ranks(backend, lambda: self._demand_hosts(groups), NOT_BUILT)
        self.fault = on_all_ranks(backend, lambda: FaultRecord(self._device, info.world_rank, limit_s), NOT_BUILT)
        if transport == "nvshmem":
            self.transport = NvshmemTransport(backend, info, self._device, region)
        elif transport == "nccl":
            self.transport = NcclTransport(backend, info, arguments.device, region, groups.world)
        elif transport == "peers":
            self.transport = PeerTransport(info, self.workspaces.addresses, geometry.total_bytes)
        self.mapped = MappedTensors(self._device, self.workspaces.ranks, info.world_rank)
        if arguments.symmetric_bytes:
            arena = self.arena = Arena(backend, self._device, arguments.symmetric_bytes, limit_s)
            self.mapped.add_arena(arena.size, arena.addresses, arena.seen)

    @property
    def _is_on_one_host(self) -> bool:
        assert self.workspaces is not None
        return len(self.workspaces.reached) == self._arguments.info.world_size

    @property
    def _shares_devices(self) -> bool:
        """Whether ranks of a process share a device, and others have another one."""
        assert self.workspaces is not None
        ranks = self.workspaces.ranks
        places = {(one.process, one.device_id) for one in ranks}
        return len(places) < len(ranks) and len({one.pci_bus_id for one in ranks}) > 1

    def _demand_hosts(self, groups: Groups) -> None:
        """The ranks of a node on one host, and a transport that reaches the others."""
        assert self.workspaces is not None
        info, transport = self._arguments.info, self._arguments.transport
        elsewhere = sorted(set(info.local_ranks()) - set(self.workspaces.reached))
        if elsewhere:
            raise RuntimeError(
                f"ranks {elsewhere} of the node of rank {info.world_rank} run on another host: the ranks of a node map "
                "each other's memory. Hosts can be nodes: inter_size is their number"
            )
        if transport == "peers" and not self._is_on_one_host:
            raise RuntimeError('nodes on several hosts do not reach each other by transport="peers": use "nvshmem"')
        if transport == "nccl" and info.use_inter and not groups.has_nccl(self._arguments):
            raise RuntimeError('transport="nccl" needs a process group of all ranks whose backend for GPUs is NCCL')

    def modes(self) -> dict[MixedCommMode, Mode]:
        """Those with kernels, in the order of their numbers."""
        assert self.workspaces is not None
        arguments, geometry = self._arguments, self._geometry
        info, addresses = arguments.info, self.workspaces.addresses
        how = str(arguments.dtype), self.order, self._numbers
        most = geometry.packet_bytes * info.dp_size
        shares = self._shares_devices
        part_bytes = NO_LIMIT if shares else PART_BYTES
        ops = self._kernels if self.staged_bytes else ()
        staging = {op: Staging(info, op, geometry, addresses, part_bytes) for op in ops}
        in_parts = staging, self._copying, self.staged_bytes
        found: dict[MixedCommMode, Mode] = {}
        if self._is_on_one_host:
            found |= {
                MixedCommMode.ONE_EXCHANGE: OneExchange(*how, self._kernels, most),
                MixedCommMode.TWO_EXCHANGE: TwoExchange(*how, self._kernels, *in_parts, copies_in_kernels=shares),
            }
        if self._is_on_one_host and self.staged_bytes and not shares:
            assert self.mapped is not None
            staged_inputs = [address + geometry.staged_input for address in addresses]
            # In a broadcast, ranks only meet, which the kernels of any operation do.
            kernels = self._kernels | {MixedCommOp.BROADCAST: self._kernels[info.valid_ops[0]]}
            found[MixedCommMode.COPY_ENGINES] = CopyEngines(
                *how, info, kernels, self.mapped, staged_inputs, self.staged_bytes, self._copying
            )
        if self._node_kernels:
            own = addresses[info.world_rank]
            staged = (own + geometry.staged_input, own + geometry.staged_output) if self.staged_bytes else None
            found[MixedCommMode.HIERARCHICAL] = Hierarchical(
                *how, info, self._node_kernels, self._kernels, staged, self._node_bytes
            )
        return found

    def _packing(self) -> Packing:
        assert self.workspaces is not None
        return agreed_packing(self._backend, self._device, self.workspaces.ranks)

    def _load_kernels(self, packing: Packing) -> None:
        assert self.workspaces is not None
        assert self.fault is not None
        arguments, addresses = self._arguments, self.workspaces.addresses
        info, element = arguments.info, arguments.element
        if self.staged_bytes and self._is_alone():
            # Before and after the kernels. With ranks of one process on one device, more streams could share a hardware
            # queue with the kernel of a rank that waits.
            self._copying = self.context.create_stream(), self.context.create_stream()
        limit_ns = round(arguments.timeout_s * 1_000_000_000)
        call = {"peer": addresses, "fault": self.fault.address, "limit": limit_ns, "stops": arguments.stops}
        of_node = {**call, "peer": [addresses[rank] for rank in info.local_ranks()]}
        for op in info.every_op:
            if op is MixedCommOp.BROADCAST:
                continue  # copy engines or a library move it
            self._kernels[op] = Kernels(
                *(info, op, self._geometry, self.context, self._device, call, self.limits),
                element=element,
                is_programmatic=arguments.programmatic_launch,
                packing=packing,
                # Ranks of several hosts do not meet in a kernel.
                files=FLAT if self._is_on_one_host else PLANS,
            )
            if self.transport is not None and op in info.valid_ops:
                how = info, op, self._geometry, self._region, self.transport, self.context, self._device
                self._node_kernels[op] = NodeKernels(*how, of_node, self.limits, element=element)

    def _is_alone(self) -> bool:
        """Whether no other rank of this process is on this device."""
        assert self.workspaces is not None
        places = [(one.process, one.device_id) for one in self.workspaces.ranks]
        return places.count(places[self._arguments.info.world_rank]) == 1

    def _run_together(self, add: Callable[[Plan, int, int, int], None]) -> None:
        """Launches a plan of the steps that `add` adds, on all ranks, and waits for it."""
        op = self._arguments.info.valid_ops[0]
        agreed = signature(op, MixedCommMode.TWO_EXCHANGE, "meeting", 0, is_staged=False)
        plan = Plan(self._numbers, Numbers.of_op(op))
        add(plan, agreed, round(self._meeting_s * 1_000_000_000), self._arguments.grid_size)
        stream = self.order.stream_of_context()
        plan.launch(stream, ())
        stream.sync()

    @property
    def _meeting_s(self) -> float:
        return min(self._arguments.timeout_s, MEETING_S)

    def _demand_concurrency(self) -> None:
        """RuntimeError on all ranks unless their kernels, in full size, run at the same time."""
        op = self._arguments.info.valid_ops[0]

        def meet() -> bool:
            assert self.fault is not None
            self._run_together((self._kernels if self._is_on_one_host else self._node_kernels)[op].meet)
            kind, peer, _ = self.fault.read()
            if kind != Fault.NONE:
                raise RuntimeError(f"timed out after {self._meeting_s} s waiting for the kernel of rank {peer}")
            return True

        problem = (
            "the kernels of the ranks do not run at the same time (ranks on one device need a partition each; in one "
            "process, also streams with separate hardware queues, of which CUDA_DEVICE_MAX_CONNECTIONS sets the number "
            "before CUDA starts)"
        )
        for meeting in range(MEETINGS):
            try:
                gather_results(self._backend, meet, (CUDAError, RuntimeError), problem)
                return
            except RuntimeError:  # on all ranks
                if meeting == MEETINGS - 1:
                    raise
                self._forget_meeting()

    def _demand_whole_packets(self) -> None:
        """Where a rank sees torn packets, all ranks take halves. Collective."""

        def look() -> bool:
            assert self.fault is not None
            self._run_together(self._kernels[self._arguments.info.valid_ops[0]].look_for_torn_packets)
            return self.fault.has_torn_packet

        def load_again() -> None:
            for one in self._kernels.values():
                one.load_again(Packing.HALVES)

        if any(gather_results(self._backend, look, (CUDAError, RuntimeError), NOT_BUILT)):
            on_all_ranks(self._backend, load_again, NOT_BUILT)

    def _forget_meeting(self) -> None:
        """Sets flags, epochs and faults back to those of fresh memory. Collective; no kernel is running."""
        assert self.workspaces is not None
        assert self.fault is not None
        with self._device.context.current():
            own = self.workspaces.addresses[self._arguments.info.world_rank]
            call("cuMemsetD8", own, 0, self._geometry.slots)
            call("cuCtxSynchronize")
        self.fault.clear()
        self._backend.barrier()

    def map(self, backend: CommBackend, spans: Sequence[tuple[int, int]]) -> None:
        assert self.mapped is not None
        self.mapped.add(backend, spans)

    def unmap(self, backend: CommBackend, addresses: Sequence[int]) -> None:
        """Unmaps tensors when no kernel of any rank uses them any more."""
        assert self.mapped is not None
        mapped = self.mapped
        on_all_ranks(backend, lambda: mapped.demand(addresses), "tensors cannot be unmapped")
        on_all_ranks(backend, self.context.sync, "tensors cannot be unmapped")
        for address in addresses:
            mapped.remove(address)
        # Nobody frees a tensor that another rank still has mapped.
        backend.barrier()

    def addresses(self) -> tuple[int, ...]:
        """Of the workspaces of all ranks, as this rank reaches them; 0 on another host."""
        assert self.workspaces is not None
        return tuple(self.workspaces.addresses)

    def recover(self) -> None:
        """Makes the memory of all ranks as it was at first, when none of their kernels runs any more. Collective.

        Each rank has a fault until the memory of all ranks is clear, so that a replay that begins meanwhile ends at
        once, and changes nothing.
        """
        assert self.workspaces is not None
        assert self.fault is not None
        workspaces, fault, rank = self.workspaces, self.fault, self._arguments.info.world_rank
        problem = "the handler cannot recover"

        def wait() -> None:
            # A graph may have been replayed on streams of other contexts.
            _wait_for_work(self._device, self._arguments.timeout_s + RECOVER_S)

        def set_fault() -> None:
            fault.set(Fault.TIMEOUT, rank)
            workspaces.fill(Fault.TIMEOUT, Geometry.CONTROL_FAULT, Geometry.CONTROL_FAULT + 1)

        def clear() -> None:
            workspaces.fill(0, FAULT_END)
            if self.transport is not None:
                self.transport.clear()

        def clear_fault() -> None:
            fault.clear()
            workspaces.fill(0, Geometry.CONTROL_FAULT, FAULT_END)

        for step in (wait, set_fault, wait, clear, clear_fault):
            on_all_ranks(self._backend, step, problem)

    @property
    def cannot_release(self) -> str:
        """Why the memory cannot be released for a checkpoint; empty if it can."""
        return "" if self.transport is None else self.transport.cannot_release

    def release(self) -> None:
        assert self.workspaces is not None
        self.workspaces.release()
        if self.arena is not None:
            self.arena.release()

    def restore(self, backend: CommBackend) -> None:
        assert self.workspaces is not None
        self.workspaces.restore(backend)
        if self.arena is not None:
            try:
                self.arena.restore(backend)
            except BaseException:  # on all ranks
                self.workspaces.release()
                raise
        self._backend = backend

    def close(self) -> None:
        """Frees everything. No kernel of any rank may be using it."""
        self.order.leave()
        while self._kernels:
            self._kernels.popitem()[1].close()
        while self._node_kernels:
            self._node_kernels.popitem()[1].close()
        for stream in self._copying:
            stream.close()
        self._copying = ()
        if self.transport is not None:
            self.transport.close()
            self.transport = None
        if self.mapped is not None:
            self.mapped.close()
            self.mapped = None
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        if self.workspaces is not None:
            self.workspaces.close()
            self.workspaces = None
        if self.fault is not None:
            self.fault.close()
            self.fault = None


def _wait_for_work(device: Device, seconds: float) -> None:
    """Waits for what was launched on a device, in all of its contexts. RuntimeError after a time."""
    wait_at_most(
        seconds,
        device.sync,
        f"the work of {device!r} did not end within {seconds:g} s, and a replay in it may use the handler: end that "
        "work, and call recover() again on all ranks",
    )


def _are_threads_on_one_device(backend: CommBackend, index: int) -> bool:
    return isinstance(backend, LocalBackend) and len(set(backend.gather_to_all(index))) == 1


@dataclass(frozen=True)
class Built:
    """What a handler is made of. gpu: None on the CPU."""

    arguments: Arguments
    groups: Groups
    gpu: OnGpu | None
    modes: Modes
    messages: Messages


def build(check: Callable[[], Arguments], comm_backend: Any) -> Built:
    """Makes what a handler is made of. Collective.

    check: returns this rank's arguments, or raises. comm_backend: what connects the ranks; None: torch.distributed.
    """
    arguments: Arguments | None = None
    problem: Exception | None = None
    try:
        arguments = check()
    except Exception as error:
        problem = error
    try:
        limit_s = HOST_S if arguments is None else arguments.host_limit_s
        groups = comm_backend if isinstance(comm_backend, Groups) else Groups(comm_backend, limit_s)
    except Exception:
        if problem is not None:
            raise problem from None
        raise
    backend = groups.backend

    def own() -> Arguments:
        if problem is not None:
            raise problem
        assert arguments is not None
        demand_place(backend, arguments.info)
        return arguments

    arguments = on_all_ranks(backend, own, NOT_BUILT)
    demand_all_equal(backend, arguments.agreed())
    groups.make(arguments)
    gpu = OnGpu(arguments, groups) if arguments.is_on_gpu else None
    info = arguments.info
    modes: dict[MixedCommMode, Mode] = {}
    if gpu is not None:
        modes |= gpu.modes()
        nccl = groups.nccl_modes(arguments)
        modes |= {one: Nccl(one, info, groups.world, groups.tp, groups.dp) for one in nccl}
    else:
        here = info, lambda: groups.backend
        modes[MixedCommMode.GLOO] = Gloo(exchange_on_cpu, frozenset(MixedCommOp), *here, groups.tp, groups.dp)
        if info.use_inter:
            by_nodes = Gloo(exchange_by_nodes, LISTED, *here, groups.local, groups.inter)
            modes[MixedCommMode.HIERARCHICAL] = by_nodes
    mapped, reaches_all = (None, False) if gpu is None else (gpu.mapped, gpu.staged_bytes == 0)
    messages = Messages(info, arguments.dtype, arguments.device, mapped, reaches_all=reaches_all)
    return Built(arguments, groups, gpu, Modes(info, modes, use_autotune=arguments.use_autotune), messages)
