"""How a handler is made: its arguments, checked and agreed upon, its groups, and what it holds on a GPU.

Between the first and the last thing that the ranks say to each other, what fails on one of them fails on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx import Context, CUDAError, Device, Partition, Stream
from cuda_gctx._core.arguments import as_bool, as_int, as_seconds
from cuda_gctx.comm._backends import (
    CommBackend,
    LocalBackend,
    TorchBackend,
    Within,
    as_backend,
    demand_all_equal,
    gather_results,
    on_all_ranks,
)
from cuda_gctx.comm._compile import FLAT
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._faults import FaultRecord
from cuda_gctx.comm._launch import WARP, Calls, Kernels
from cuda_gctx.comm._memory import Workspaces
from cuda_gctx.comm._message import Messages
from cuda_gctx.comm._modes import (
    CopyEngines,
    Gloo,
    GlooByNodes,
    Hierarchical,
    Mode,
    Modes,
    Nccl,
    OneExchange,
    TwoExchange,
)
from cuda_gctx.comm._nodes import (
    NcclTransport,
    NodeCalls,
    NodeKernels,
    NvshmemTransport,
    PeerTransport,
    Transport,
)
from cuda_gctx.comm._nvshmem import demand_initialised, initialise
from cuda_gctx.comm._order import Order
from cuda_gctx.comm._packing import agreed_packing
from cuda_gctx.comm._protocol import (
    ALIGNMENT,
    ONE_EXCHANGE_THREADS,
    Element,
    Fault,
    Geometry,
    Packing,
    packet_bytes,
    region_of,
    signature,
)
from cuda_gctx.comm._record import Numbers, Prepared, Record
from cuda_gctx.comm._staging import Staging
from cuda_gctx.comm._tensors import MappedTensors
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo

__all__ = [
    "HOST_S",
    "MOST_BYTES",
    "Built",
    "Groups",
    "build",
    "checked",
    "demand_place",
    "host_limit_s",
    "is_supported",
]

# The kernels need bulk copies, which this architecture introduced.
FIRST_CAPABILITY = 90
# The number of threads that no block of a device exceeds.
LARGEST_BLOCK = 1024
# More than any message is divided into.
MOST_STEPS = 1 << 16
# More than any device has.
MOST_BYTES = 1 << 40
# What a call that cannot finish leaves.
ON_FAULT = ("nan", "trap")
# How nodes exchange.
TRANSPORTS = ("nvshmem", "nccl", "peers")
# How much can be staged by default, where other ranks cannot reach a tensor.
STAGED_BYTES = 64 * 1024 * 1024
# How long the kernels of all ranks have for their first meeting, and how often they try: another thread that loads a
# module or allocates memory meanwhile can keep a rank from launching.
MEETING_S = 5.0
MEETINGS = 3
# Kernels count nanoseconds in 64 bits.
LONGEST_S = 1_000_000_000
NOT_BUILT = "the handler could not be built"
# How long ranks wait for each other on the host, at least: some may have more to load than others.
HOST_S = 60.0


@cache
def _torch() -> Any:
    return import_module("torch")


@cache
def _elements() -> dict[Any, Element]:
    """By the types of torch, which may be older than the youngest of them."""
    found = {getattr(_torch(), one.name.lower(), None): one for one in Element}
    return {dtype: one for dtype, one in found.items() if dtype is not None}


def is_supported(capability: int) -> bool:
    """Whether there are kernels for a compute capability: 90 stands for 9.0."""
    return capability >= FIRST_CAPABILITY


def host_limit_s(timeout_s: float) -> float:
    """How long ranks wait for each other on the host."""
    return max(HOST_S, timeout_s)


@dataclass(frozen=True)
class Arguments:
    """What a handler is made with, as far as a rank can check it by itself. `agreed` are those that all ranks share."""

    info: ParallelInfo
    dtype: Any
    device: Any
    partition: Partition | None
    grid_size: int
    block_sizes: tuple[int, int]
    fewest_steps: int
    enable_ibgda: bool
    should_init_nvshmem: bool
    transport: str
    use_autotune: bool
    timeout_s: float
    max_message_bytes: int | None
    programmatic_launch: bool
    stops: bool

    def agreed(self) -> dict[str, object]:
        """By name, what must be the same on all ranks."""
        info = self.info
        return {
            "local_size": info.local_size,
            "local_tp_size": info.local_tp_size,
            "inter_tp_size": info.inter_tp_size,
            "dtype": str(self.dtype),
            "device type": self.device.type,
            "max_message_bytes": self.max_message_bytes,
            "use_autotune": self.use_autotune,
            "should_init_nvshmem": self.should_init_nvshmem,
            "transport": self.transport,
            "on_fault": self.stops,
            "timeout_s": self.timeout_s,
        }

    @property
    def is_on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    @property
    def host_limit_s(self) -> float:
        return host_limit_s(self.timeout_s)


def checked(
    place: Sequence[int],
    grids: Sequence[int | None],
    dtype: Any,
    device: Any,
    grid_size: int | None,
    block_sizes: tuple[int, int | None],
    min_num_steps: int,
    max_message_bytes: int | None,
    timeout_s: float,
    on_fault: str,
    partition: Partition | None,
    transport: str,
    **switches: bool,
) -> Arguments:
    """The arguments of a handler, each of the type and in the range that it has to be; TypeError or ValueError."""
    info = ParallelInfo.of(*place, *grids)
    if dtype not in _elements():
        raise ValueError(f"dtype must be one of {', '.join(map(str, _elements()))}, not {dtype}")
    device = _torch().device(device)
    if not info.valid_ops:
        raise ValueError("a world of one rank has nothing to communicate: world_size must be at least 2")
    timeout_s = as_seconds("timeout_s", timeout_s)
    if timeout_s > LONGEST_S:
        raise ValueError(f"timeout_s must be at most {LONGEST_S:,}, which is 31 years, not {timeout_s}")
    if on_fault not in ON_FAULT:
        raise ValueError(f"on_fault must be one of {', '.join(ON_FAULT)}, not {on_fault!r}")
    if transport not in TRANSPORTS:
        raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, not {transport!r}")
    switches = {name: as_bool(name, value) for name, value in switches.items()}
    if device.type == "cuda":
        if device.index is None:
            device = _torch().device("cuda", _torch().cuda.current_device())
        grid_size = _grid_size(Device(device.index), partition, grid_size)
    elif device.type != "cpu":
        raise ValueError(f"device must be a CUDA device or the CPU, not {device}")
    elif partition is not None or grid_size is not None:
        raise ValueError("a handler on the CPU has no partition and no grid: omit partition and grid_size")
    if max_message_bytes is not None:
        max_message_bytes = as_int("max_message_bytes", max_message_bytes, ALIGNMENT * info.dp_size, MOST_BYTES)
    return Arguments(
        info=info,
        dtype=dtype,
        device=device,
        partition=partition,
        grid_size=grid_size or 0,
        block_sizes=_block_sizes(*block_sizes),
        fewest_steps=as_int("min_num_steps", min_num_steps, 1, MOST_STEPS),
        enable_ibgda=switches["ib_enable_ibgda"],
        should_init_nvshmem=switches["should_init_nvshmem"],
        transport=transport,
        use_autotune=switches["use_autotune"],
        timeout_s=timeout_s,
        max_message_bytes=max_message_bytes,
        programmatic_launch=switches["programmatic_launch"],
        stops=on_fault == "trap",
    )


def _grid_size(device: Device, partition: Partition | None, grid_size: int | None) -> int:
    if partition is not None and partition.context.device != device:
        raise ValueError(f"the partition belongs to device {partition.context.device.device_id}, not to {device}")
    major, minor = device.compute_capability
    if not is_supported(major * 10 + minor):
        raise RuntimeError(f"compute capability {major}.{minor} is not supported: the kernels need 9.0 or newer")
    sms = device.sm_count if partition is None else partition.sm_count
    return as_int("grid_size", sms if grid_size is None else grid_size, 1, sms)


def _block_sizes(smallest: int, largest: int | None) -> tuple[int, int]:
    most = ONE_EXCHANGE_THREADS
    if largest is not None:
        most = min(most, as_int("max_block_size", largest, 32, LARGEST_BLOCK))
    found = as_int("min_block_size", smallest, 32, most), most
    for name, size in zip(("min_block_size", "max_block_size"), found, strict=True):
        if size % WARP:
            raise ValueError(f"{name} must be a multiple of {WARP}, not {size}")
    return found


def demand_place(backend: CommBackend, info: ParallelInfo) -> None:
    place = backend.Get_rank(), backend.Get_size()
    wanted = info.world_rank, info.world_size
    if place != wanted:
        raise ValueError(
            f"the backend is rank {place[0]} of {place[1]}, and the handler is rank {wanted[0]} of {wanted[1]}"
        )


class Groups:
    """The groups of a rank: of torch.distributed, or backends of some of the ranks.

    Without a group given, all processes of the job are the ranks, and make the groups of the topology together. For a
    given group none are made, because its processes may be some of a larger job: it stands for each group that has all
    ranks, and for smaller ones its collectives on the host do. (torch names a group that some processes make by
    themselves after the number of groups that there are, and can give a name twice.)

    backend: what connects all ranks of the handler on the host. world: a group of torch.distributed of all ranks; None
    if there is none.
    """

    def __init__(self, given: Any, limit_s: float) -> None:
        """given: a backend, or a process group; None: all processes of torch.distributed."""
        self._made: dict[tuple[int, ...], Any] = {}  # groups of torch that were made here; () is that of the host
        self.local: Any = None
        self.tp: Any = None
        self.dp: Any = None
        self.world: Any = None
        self.inter: Any = None  # of equal local ranks
        if given is not None:
            self.backend = as_backend(given)
            self.world = self.backend.group if isinstance(self.backend, TorchBackend) else None
            return
        distributed: Any = import_module("torch.distributed")
        if not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group() first, or pass a "
                "comm_backend"
            )
        # Messages of the host stay on the host, and have a time limit of their own. NCCL would use a stream, and change
        # the current context.
        self._made[()] = distributed.new_group(backend="gloo", timeout=timedelta(seconds=limit_s))
        self.backend = TorchBackend(self._made[()])

    def make(self, arguments: Arguments) -> None:
        """Makes the groups of the topology. Collective."""
        info = arguments.info
        every_rank = [info.at(rank) for rank in range(info.world_size)]

        def group(groups: list[tuple[int, ...]]) -> Any:
            ranks = groups[info.world_rank]
            if self._made:
                return self._torch_group(groups, arguments)
            if isinstance(self.backend, LocalBackend):
                return self.backend.subgroup(ranks)
            if self.world is not None and len(ranks) == info.world_size:
                return self.world
            return Within(lambda: self.backend, ranks)

        if self._made:
            self.world = group([tuple(range(info.world_size))] * info.world_size)
        self.local = group([one.local_ranks() for one in every_rank])
        self.tp = group([one.tp_ranks() for one in every_rank])
        self.dp = group([one.dp_ranks() for one in every_rank])
        if info.use_inter:
            self.inter = group([one.inter_ranks() for one in every_rank])

    def _torch_group(self, groups: Sequence[tuple[int, ...]], arguments: Arguments) -> Any:
        """The group that contains this rank. All ranks make all groups, in one order."""
        distributed: Any = import_module("torch.distributed")
        for ranks in sorted(set(groups) - self._made.keys()):
            if arguments.partition is not None and self._is_nccl(None, arguments):
                # With no more blocks than the partition has SMs.
                group = import_module("cuda_gctx.interop.nccl").new_group(arguments.partition, list(ranks))
            elif arguments.is_on_gpu:
                group = distributed.new_group(list(ranks))
            else:
                group = distributed.new_group(list(ranks), timeout=timedelta(seconds=arguments.host_limit_s))
            self._made[ranks] = group
        return self._made[groups[arguments.info.world_rank]]

    def _is_nccl(self, group: Any, arguments: Arguments) -> bool:
        if not isinstance(self.backend, TorchBackend) or not arguments.is_on_gpu:
            return False
        return "nccl" in str(import_module("torch.distributed").get_backend_config(group))

    def nccl_modes(self, arguments: Arguments) -> list[MixedCommMode]:
        """Those that the groups can run. Not every NCCL sums numbers of eight bits."""
        is_summed = _elements()[arguments.dtype] is not Element.FLOAT8_E4M3FN
        if self.world is None or not is_summed or not self._is_nccl(self.world, arguments):
            return []
        both = arguments.info.use_mixed and not any(isinstance(one, Within) for one in (self.tp, self.dp))
        return [MixedCommMode.NCCL_ONE, *([MixedCommMode.NCCL_TP_DP] if both else [])]

    def destroy(self, rank: int) -> None:
        """Those of torch that this rank is in, in one order on all ranks; that of the host is the last."""
        distributed: Any = import_module("torch.distributed") if self._made else None
        for ranks in sorted(self._made, reverse=True):
            group = self._made.pop(ranks)
            if not ranks or rank in ranks:
                distributed.destroy_process_group(group)


class OnGpu:
    """What a handler holds on its GPU: memory, kernels, and the modes that run them. Every rank makes one."""

    def __init__(self, arguments: Arguments, groups: Groups) -> None:
        self._arguments = arguments
        backend = self._backend = groups.backend
        info, self._device = arguments.info, Device(arguments.device.index)
        partition = arguments.partition
        self.context: Context = self._device.context if partition is None else partition.context
        self.order = Order(self.context, arguments.device)
        self.workspaces: Workspaces | None = None
        self.mapped: MappedTensors | None = None
        self.transport: Transport | None = None
        self.fault: FaultRecord | None = None
        self._kernels: dict[MixedCommOp, Kernels] = {}
        self._node_kernels: dict[MixedCommOp, NodeKernels] = {}
        self._copying: tuple[Stream, ...] = ()
        self._numbers = Numbers()
        self._has_nvshmem = False
        given = arguments.max_message_bytes
        self._node_bytes = STAGED_BYTES if given is None else given
        # Without staging, where all ranks reach each other's tensors: known only when they have met.
        on_one_device = given is None and _are_threads_on_one_device(backend, arguments.device.index)
        self.staged_bytes = 0 if on_one_device else -(-self._node_bytes // ALIGNMENT) * ALIGNMENT
        self._geometry = Geometry(info.world_size, packet_bytes(info.world_size), self.staged_bytes)
        self._region = region_of(info, self._node_bytes)
        try:
            self._make_memory(groups.inter)
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
            initialise(self._backend, self._device, enable_ibgda=self._arguments.enable_ibgda)
            self._has_nvshmem = True

    def _make_memory(self, equal_local_ranks: Any) -> None:
        arguments, geometry, backend, region = self._arguments, self._geometry, self._backend, self._region
        info, limit_s = arguments.info, arguments.timeout_s
        transport = arguments.transport if info.use_inter else ""
        if transport == "nvshmem" and arguments.should_init_nvshmem:
            self.init_nvshmem()
        elif transport == "nvshmem":
            demand_initialised(backend)
        size = geometry.total_bytes + (region.total_bytes if transport == "peers" else 0)
        self.workspaces = Workspaces(backend, self._device, size, limit_s)
        on_all_ranks(backend, lambda: self._demand_hosts(equal_local_ranks), NOT_BUILT)
        self.fault = on_all_ranks(backend, lambda: FaultRecord(self._device, info.world_rank, limit_s), NOT_BUILT)
        if transport == "nvshmem":
            self.transport = NvshmemTransport(backend, info, self._device, region)
        elif transport == "nccl":
            self.transport = NcclTransport(backend, info, arguments.device, region, equal_local_ranks)
        elif transport == "peers":
            self.transport = PeerTransport(info, self.workspaces.addresses, geometry.total_bytes)
        self.mapped = MappedTensors(self._device, self.workspaces.ranks, info.world_rank)

    @property
    def _is_on_one_host(self) -> bool:
        assert self.workspaces is not None
        return len(self.workspaces.reached) == self._arguments.info.world_size

    def _demand_hosts(self, equal_local_ranks: Any) -> None:
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
        if (
            transport == "nccl"
            and info.use_inter
            and (equal_local_ranks is None or hasattr(equal_local_ranks, "bcast"))
        ):
            raise RuntimeError(
                'transport="nccl" needs a group of torch.distributed for each set of equal local ranks, which handlers '
                "of all processes of the job have"
            )

    def modes(self) -> dict[MixedCommMode, Mode]:
        """Those with kernels, in the order of their numbers."""
        assert self.workspaces is not None
        arguments, geometry = self._arguments, self._geometry
        info, addresses = arguments.info, self.workspaces.addresses
        how = str(arguments.dtype), self.order, self._numbers
        most = geometry.packet_bytes * info.dp_size
        staging = {op: Staging(info, op, geometry, addresses) for op in self._kernels} if self.staged_bytes else {}
        found: dict[MixedCommMode, Mode] = {}
        if self._is_on_one_host:
            found |= {
                MixedCommMode.ONE_EXCHANGE: OneExchange(*how, self._kernels, most),
                MixedCommMode.TWO_EXCHANGE: TwoExchange(*how, self._kernels, staging, self._copying, self.staged_bytes),
            }
        if self._is_on_one_host and MixedCommOp.ALLGATHER in self._kernels and self.staged_bytes:
            assert self.mapped is not None
            staged_inputs = [address + geometry.staged_input for address in addresses]
            found[MixedCommMode.COPY_ENGINES] = CopyEngines(
                *how, info, self._kernels, self.mapped, staged_inputs, self.staged_bytes, self._copying
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
        info, element = arguments.info, _elements()[arguments.dtype]
        if self.staged_bytes and self._is_alone():
            # Before and after the kernels. With ranks of one process on one device, more streams could share a hardware
            # queue with the kernel of a rank that waits.
            self._copying = self.context.create_stream(), self.context.create_stream()
        how: dict[str, Any] = {
            "grid": arguments.grid_size,
            "fewest_steps": arguments.fewest_steps,
            "numbers": self._numbers,
        }
        faults = self.fault.address, round(arguments.timeout_s * 1_000_000_000)
        for op in info.valid_ops:
            calls = Calls(info, op, block_sizes=arguments.block_sizes, **how)
            calls.connect(addresses, *faults, stops=arguments.stops)
            self._kernels[op] = Kernels(
                *(info, op, self._geometry, self.context, self._device, calls),
                element=element,
                is_programmatic=arguments.programmatic_launch,
                packing=packing,
                # Ranks of several hosts do not meet in a kernel.
                files=FLAT if self._is_on_one_host else ("spoil.cuh",),
            )
            if self.transport is not None:
                node_calls = NodeCalls(info, op, self._region, **how)
                peers = [addresses[rank] for rank in info.local_ranks()]
                node_calls.connect(peers, self.transport.regions, *faults, stops=arguments.stops)
                self._node_kernels[op] = NodeKernels(
                    *(info, op, self._geometry, self._region, self.transport, self.context, self._device, node_calls),
                    element=element,
                )

    def _is_alone(self) -> bool:
        """Whether no other rank of this process is on this device."""
        assert self.workspaces is not None
        places = [(one.process, one.device_id) for one in self.workspaces.ranks]
        return places.count(places[self._arguments.info.world_rank]) == 1

    def _run_together(self, note: Callable[[int, int, Record], None]) -> None:
        """Launches what `note` notes, on all ranks, and waits for it."""
        op = self._arguments.info.valid_ops[0]
        agreed = signature(op, MixedCommMode.TWO_EXCHANGE, "meeting", 0, is_staged=False)
        how = agreed, round(self._meeting_s * 1_000_000_000)
        stream = self.order.stream_of_context()
        Prepared(lambda record, _: note(*how, record), 0, self._numbers).launch(stream, ())
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
                raise RuntimeError(f"its kernel waited {self._meeting_s} s for that of rank {peer}")
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

    def addresses(self) -> list[int]:
        """Of the workspaces of all ranks, as this rank reaches them; 0 on another host."""
        assert self.workspaces is not None
        return list(self.workspaces.addresses)

    def recover(self) -> None:
        """Makes the memory of all ranks as it was at first, when none of their kernels runs any more. Collective."""
        assert self.workspaces is not None
        problem = "the handler cannot recover"
        on_all_ranks(self._backend, self.context.sync, problem)

        def clear() -> None:
            assert self.workspaces is not None
            assert self.fault is not None
            self.workspaces.clear()
            if self.transport is not None:
                self.transport.clear()
            self.fault.clear()

        on_all_ranks(self._backend, clear, problem)

    @property
    def cannot_release(self) -> str:
        """Why the memory cannot be released for a checkpoint; empty if it can."""
        return "" if self.transport is None else self.transport.cannot_release

    def release(self) -> None:
        assert self.workspaces is not None
        self.workspaces.release()

    def restore(self, backend: CommBackend) -> None:
        assert self.workspaces is not None
        self.workspaces.restore(backend)
        self._backend = backend

    def close(self) -> None:
        """Frees everything. No kernel of any rank may be using it."""
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
        if self.workspaces is not None:
            self.workspaces.close()
            self.workspaces = None
        if self.fault is not None:
            self.fault.close()
            self.fault = None


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
        modes[MixedCommMode.GLOO] = Gloo(info, lambda: groups.backend, groups.tp, groups.dp)
        if info.use_inter:
            by_nodes = GlooByNodes(info, lambda: groups.backend, groups.local, groups.inter)
            modes[MixedCommMode.HIERARCHICAL] = by_nodes
    mapped, reaches_all = (None, False) if gpu is None else (gpu.mapped, gpu.staged_bytes == 0)
    messages = Messages(info, arguments.dtype, arguments.device, mapped, reaches_all=reaches_all)
    return Built(arguments, groups, gpu, Modes(info, modes), messages)
