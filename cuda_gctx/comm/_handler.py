"""The handler: one rank of a communicator, its states, and the entry point of every operation."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

from cuda_gctx import LEGACY_DEFAULT_STREAM, Context, CUDAError, Device, Partition, Stream
from cuda_gctx._core.arguments import as_bool, as_int, as_seconds
from cuda_gctx._core.progress import Progress
from cuda_gctx.comm._backends import (
    CommBackend,
    LocalBackend,
    TorchBackend,
    as_backend,
    barrier_within,
    demand_all_equal,
    demand_equal,
    gather_results,
    on_all_ranks,
)
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._launch import WARP, Calls, Kernels, Numbers
from cuda_gctx.comm._measured import Measured
from cuda_gctx.comm._memory import FaultRecord, Workspaces
from cuda_gctx.comm._nodes import NodeCalls, NodeKernels, NvshmemTransport, PeerTransport, Transport, rounds_of
from cuda_gctx.comm._nvshmem import initialise
from cuda_gctx.comm._protocol import (
    ALIGNMENT,
    ONE_EXCHANGE_THREADS,
    TWO_EXCHANGE_THREADS,
    Fault,
    Geometry,
    Region,
    packet_bytes,
    region_of,
    room_of,
    signature,
)
from cuda_gctx.comm._reference import exchange_by_nodes, exchange_on_cpu, exchange_with_nccl
from cuda_gctx.comm._staging import Part, Staging
from cuda_gctx.comm._tensors import MappedTensors
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._tuning import TuningTable, description_of, tune

__all__ = ["CommFault", "MixedCommHandler", "run_mixed_comm"]

KERNEL_MODES = (MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE)
# Those that stage tensors which the other ranks do not reach.
STAGED_MODES = (MixedCommMode.TWO_EXCHANGE, MixedCommMode.HIERARCHICAL)
NCCL_MODES = (MixedCommMode.NCCL_ONE, MixedCommMode.NCCL_TP_DP)
# The kernels need bulk copies, which this architecture introduced.
FIRST_CAPABILITY = 90
# The number of threads that no block of a device exceeds.
LARGEST_BLOCK = 1024
# More than any message is divided into.
MOST_STEPS = 1 << 16
# More than any device has.
MOST_BYTES = 1 << 40
# Where no mode is given, packets carry messages of which each rank receives up to so much from all others. Above the
# first, TWO_EXCHANGE was faster on H200s with tensors that other ranks reach; with others, from twice the second on.
SMALL_REACHED_BYTES = 512 * 1024
SMALL_STAGED_BYTES = 2 * 1024 * 1024
# What a call that cannot finish leaves.
ON_FAULT = ("nan", "trap")
# How much can be staged by default, where other ranks cannot reach a tensor.
STAGED_BYTES = 64 * 1024 * 1024
# More rounds than this are not tuned.
MOST_ROUNDS = 16
# How long the kernels of all ranks have for their first meeting, and how often they try: another thread that loads a
# module or allocates memory meanwhile can keep a rank from launching.
MEETING_S = 5.0
NOT_BUILT = "the handler could not be built"
# How long ranks wait for each other on the host, at least: some may have more to load than others.
HOST_S = 60.0
MEETINGS = 3
# What run_autotune() measures.
TUNED_BYTES = tuple(1 << shift for shift in range(10, 29))


class CommFault(RuntimeError):
    """A rank was missing for the time limit or was called with other arguments, or two kernels of a rank ran at once.

    The handler cannot be used any more. kind: "timeout", "mismatch" or "overlap"; peer_rank: the world rank that the
    kernel waited for, or the rank on which the two ran.
    """

    __module__ = __name__.rpartition(".")[0]  # the public name

    def __init__(self, message: str, kind: str, peer_rank: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.peer_rank = peer_rank


class _State(Enum):
    BUILDING = "is being built"
    OPEN = "is open"
    RELEASED = "has released its memory: call checkpoint_restore() first"
    FAILED = "has failed"
    CLOSED = "has been shut down"


@cache
def _torch() -> Any:
    return import_module("torch")


@cache
def _names_of_dtypes() -> dict[Any, str]:
    torch = _torch()
    return {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class MixedCommHandler:
    """One rank of a communicator over a tp x dp topology.

    Every rank creates a handler, at the same time: with torch.distributed initialised, or with a `comm_backend`. A
    handler belongs to one partition (or to the whole device), and its calls run in one order.

    grid_size: how many blocks the kernels have; None: one for each SM of the partition.
    max_block_size, min_block_size: the largest and the smallest number of threads per SM in the kernel for small
    messages, which divides them among several blocks.
    min_num_steps: the number of tiles into which a block of the kernel for large messages divides its work, as long as
    tiles stay large.
    ib_enable_ibgda: whether NVSHMEM, if the handler initialises it, lets GPUs drive InfiniBand adapters directly.
    should_init_nvshmem: whether NVSHMEM is initialised where the topology has several nodes, and HIERARCHICAL exchanges
    through it. If not, nodes exchange by peer access. In both cases all ranks must run on one host.
    use_autotune: whether calls without a mode follow the table of run_autotune(), if there is one.
    partition: where the kernels run.
    timeout_s: how long a kernel waits for another rank before it reports a fault. On the host, ranks that
    torch.distributed connects wait for each other as long, but at least for 60 s.
    max_message_bytes: for which inputs and outputs memory is reserved; None: 64 MiB. Larger messages go in several
    rounds, where TWO_EXCHANGE stages them and in HIERARCHICAL. Where all ranks are threads on one device, None reserves
    nothing for TWO_EXCHANGE, because the ranks reach each other's tensors. What map_tensors() was called with is not
    staged.
    comm_backend: what connects the ranks on the host, a CommBackend or a process group; None: torch.distributed.
    programmatic_launch: launch the kernel for small messages while the previous kernel of the stream still runs; it
    waits for the end of that kernel on the device (programmatic dependent launch).
    on_fault: what a call leaves that cannot finish: "nan", in each part of its output that may not be right, or "trap",
    which ends everything that runs in the context with an error.
    """

    def __init__(
        self,
        world_rank: int,
        world_size: int,
        local_rank: int,
        local_size: int,
        inter_rank: int,
        inter_size: int,
        local_tp_size: int | None,
        local_dp_size: int | None,
        inter_tp_size: int | None,
        inter_dp_size: int | None,
        dtype: Any,
        device: Any,
        grid_size: int | None = None,
        max_block_size: int | None = None,
        min_block_size: int = 256,
        min_num_steps: int = 4,
        ib_enable_ibgda: bool = True,
        should_init_nvshmem: bool = True,
        use_autotune: bool = True,
        *,
        partition: Partition | None = None,
        timeout_s: float = 30.0,
        max_message_bytes: int | None = None,
        comm_backend: Any = None,
        programmatic_launch: bool = False,
        on_fault: str = "nan",
    ) -> None:
        self._state = _State.BUILDING
        self._workspaces: Workspaces | None = None
        self._mapped: MappedTensors | None = None
        self._mapped_storages: list[tuple[int, Any]] = []  # which are kept alive, by address of the tensor
        self._staged_bytes = 0
        self._fault: FaultRecord | None = None
        self._kernels: dict[MixedCommOp, Kernels] = {}
        self._node_kernels: dict[MixedCommOp, NodeKernels] = {}
        self._staging: dict[MixedCommOp, Staging] = {}
        self._copying: tuple[Stream, Stream] | None = None
        self._transport: Transport | None = None
        self._numbers = Numbers()
        self._one_thread = threading.Lock()
        self._stream: Stream | None = None
        self._streams: dict[int, Stream] = {}
        self._torch_groups: dict[tuple[int, ...], Any] = {}  # that were made here; () is that of the host
        self._has_nvshmem = False
        self.tuning_table: TuningTable | None = None
        self._timeout_s = HOST_S  # until the own one is known to be one
        problem: Exception | None = None
        place = world_rank, world_size, local_rank, local_size, inter_rank, inter_size
        grids = local_tp_size, local_dp_size, inter_tp_size, inter_dp_size
        try:
            self.para_info = ParallelInfo.of(*place, *grids)
            self._take(dtype, device, timeout_s, on_fault)
            self._use_autotune = as_bool("use_autotune", use_autotune)
            self._ib_enable_ibgda = as_bool("ib_enable_ibgda", ib_enable_ibgda)
            should_init_nvshmem = as_bool("should_init_nvshmem", should_init_nvshmem)
            programmatic_launch = as_bool("programmatic_launch", programmatic_launch)
        except (TypeError, ValueError, RuntimeError) as error:
            problem = error
        try:
            self._backend = self._connect(comm_backend)
        except Exception:
            if problem is not None:
                raise problem from None
            raise

        def demand_own() -> None:
            if problem is not None:
                raise problem
            self._demand_place(self._backend)

        # Between the first and the last thing that the ranks say to each other, what fails on one fails on all.
        on_all_ranks(self._backend, demand_own, NOT_BUILT)
        self._demand_agreement(max_message_bytes, should_init_nvshmem=should_init_nvshmem)
        self._make_groups(partition)
        try:
            if self.device.type == "cuda":
                self._build_kernels(
                    partition,
                    grid_size,
                    (min_block_size, max_block_size),
                    min_num_steps,
                    max_message_bytes,
                    programmatic_launch,
                    should_init_nvshmem,
                )
            else:
                on_all_ranks(self._backend, lambda: self._demand_cpu(partition, grid_size), NOT_BUILT)
                self.grid_size = 0
                self.max_block_size_dict: dict[tuple[MixedCommOp, MixedCommMode], int] = {}
            self.valid_mode_list = self._valid_modes()
        except BaseException:
            self._state = _State.CLOSED
            self._transport = None  # closing is collective, and the others may not have failed
            self._free()
            raise
        self._state = _State.OPEN

    def _take(self, dtype: Any, device: Any, timeout_s: float, on_fault: str) -> None:
        """Checks what needs no other rank, and takes it up."""
        torch = _torch()
        if dtype not in _names_of_dtypes():
            raise ValueError(f"dtype must be torch.float16 or torch.bfloat16, not {dtype}")
        self.dtype = dtype
        self.device = torch.device(device)
        self.valid_op_list = list(self.para_info.valid_ops)
        if not self.valid_op_list:
            raise ValueError("a world of one rank has nothing to communicate: world_size must be at least 2")
        self._timeout_s = as_seconds("timeout_s", timeout_s)
        if on_fault not in ON_FAULT:
            raise ValueError(f"on_fault must be one of {', '.join(ON_FAULT)}, not {on_fault!r}")
        self._stops = on_fault == "trap"

    def _connect(self, given: Any) -> CommBackend:
        if given is None:
            distributed: Any = import_module("torch.distributed")
            if not (distributed.is_available() and distributed.is_initialized()):
                raise RuntimeError(
                    "torch.distributed is not initialised: call torch.distributed.init_process_group() first, or pass "
                    "a comm_backend"
                )
            # Messages of the host stay on the host, and have a time limit of their own. NCCL would use a stream, and
            # change the current context.
            limit = timedelta(seconds=self._host_limit_s)
            self._torch_groups[()] = distributed.new_group(backend="gloo", timeout=limit)
            backend: CommBackend = TorchBackend(self._torch_groups[()])
        else:
            backend = as_backend(given)
        return backend

    @property
    def _host_limit_s(self) -> float:
        return max(HOST_S, self._timeout_s)

    def _demand_place(self, backend: CommBackend) -> None:
        place = backend.Get_rank(), backend.Get_size()
        wanted = self.para_info.world_rank, self.para_info.world_size
        if place != wanted:
            raise ValueError(
                f"the backend is rank {place[0]} of {place[1]}, and the handler is rank {wanted[0]} of {wanted[1]}"
            )

    def _demand_agreement(self, max_message_bytes: int | None, *, should_init_nvshmem: bool) -> None:
        info = self.para_info
        values: dict[str, object] = {
            "local_size": info.local_size,
            "local_tp_size": info.local_tp_size,
            "inter_tp_size": info.inter_tp_size,
            "dtype": str(self.dtype),
            "device type": self.device.type,
            "max_message_bytes": max_message_bytes,
            "use_autotune": self._use_autotune,
            "should_init_nvshmem": should_init_nvshmem,
            "timeout_s": self._timeout_s,
        }
        demand_all_equal(self._backend, values)

    def _make_groups(self, partition: Partition | None) -> None:
        """Makes the groups of this rank: of torch.distributed, or of the backend of threads."""
        info = self.para_info
        wanted = info.local_ranks(), info.tp_ranks(), info.dp_ranks()
        self._inter_group: Any = None  # of equal local ranks; on a GPU, the transport connects them
        needs_inter = info.use_inter and self.device.type == "cpu"
        if isinstance(self._backend, TorchBackend):
            every_rank = [info.at(rank) for rank in range(info.world_size)]
            self.local_comm_group = self._torch_group([one.local_ranks() for one in every_rank], partition)
            self.tp_comm_group = self._torch_group([one.tp_ranks() for one in every_rank], partition)
            self.dp_comm_group = self._torch_group([one.dp_ranks() for one in every_rank], partition)
            self._world_group = self._torch_group([tuple(range(info.world_size))] * info.world_size, partition)
            if needs_inter:
                self._inter_group = self._torch_group([one.inter_ranks() for one in every_rank], partition)
        elif isinstance(self._backend, LocalBackend):
            self.local_comm_group, self.tp_comm_group, self.dp_comm_group = map(self._backend.subgroup, wanted)
            if needs_inter:
                self._inter_group = self._backend.subgroup(info.inter_ranks())
        else:
            # A backend that only broadcasts has no groups.
            self.local_comm_group = self.tp_comm_group = self.dp_comm_group = None

    def _torch_group(self, groups: Sequence[tuple[int, ...]], partition: Partition | None) -> Any:
        """The group that contains this rank. All ranks make all groups, in one order."""
        distributed: Any = import_module("torch.distributed")
        for ranks in sorted(set(groups) - self._torch_groups.keys()):
            if partition is not None and self._has_nccl():
                # With no more blocks than the partition has SMs.
                group = import_module("cuda_gctx.interop.nccl").new_group(partition, list(ranks))
            elif self.device.type == "cpu":
                group = distributed.new_group(list(ranks), timeout=timedelta(seconds=self._host_limit_s))
            else:
                group = distributed.new_group(list(ranks))
            self._torch_groups[ranks] = group
        return self._torch_groups[groups[self.para_info.world_rank]]

    def _has_nccl(self) -> bool:
        if not isinstance(self._backend, TorchBackend) or self.device.type != "cuda":
            return False
        distributed: Any = import_module("torch.distributed")
        return "nccl" in str(distributed.get_backend_config())

    def _demand_cpu(self, partition: Partition | None, grid_size: int | None) -> None:
        if self.device.type != "cpu":
            raise ValueError(f"device must be a CUDA device or the CPU, not {self.device}")
        if partition is not None or grid_size is not None:
            raise ValueError("a handler on the CPU has no partition and no grid: omit partition and grid_size")

    def _demand_numbers(
        self,
        device: Device,
        partition: Partition | None,
        grid_size: int | None,
        block_sizes: tuple[int, int | None],
        min_num_steps: int,
        max_message_bytes: int | None,
    ) -> None:
        """Checks what the constructor was called with, and takes it up."""
        if partition is not None and partition.context.device != device:
            raise ValueError(f"the partition belongs to device {partition.context.device.device_id}, not to {device}")
        major, minor = device.compute_capability
        if not run_mixed_comm.is_compute_capability_supported(major * 10 + minor):
            raise RuntimeError(f"compute capability {major}.{minor} is not supported: the kernels need 9.0 or newer")
        self._context: Context = device.context if partition is None else partition.context
        sms = device.sm_count if partition is None else partition.sm_count
        self.grid_size = as_int("grid_size", sms if grid_size is None else grid_size, 1, sms)
        most = ONE_EXCHANGE_THREADS
        if block_sizes[1] is not None:
            most = min(most, as_int("max_block_size", block_sizes[1], 32, LARGEST_BLOCK))
        self._block_sizes = as_int("min_block_size", block_sizes[0], 32, most), most
        for name, size in zip(("min_block_size", "max_block_size"), self._block_sizes, strict=True):
            if size % WARP:
                raise ValueError(f"{name} must be a multiple of {WARP}, not {size}")
        self._fewest_steps = as_int("min_num_steps", min_num_steps, 1, MOST_STEPS)
        threads = {MixedCommMode.ONE_EXCHANGE: most, MixedCommMode.TWO_EXCHANGE: TWO_EXCHANGE_THREADS}
        self.max_block_size_dict = {(op, mode): threads[mode] for op in self.valid_op_list for mode in threads}
        staged = STAGED_BYTES if max_message_bytes is None else max_message_bytes
        self._node_bytes = as_int("max_message_bytes", staged, ALIGNMENT * self.para_info.dp_size, MOST_BYTES)
        self._fault = FaultRecord(device)

    def _build_kernels(
        self,
        partition: Partition | None,
        grid_size: int | None,
        block_sizes: tuple[int, int | None],
        min_num_steps: int,
        max_message_bytes: int | None,
        programmatic_launch: bool,
        should_init_nvshmem: bool,
    ) -> None:
        torch = _torch()
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        device = Device(index)
        numbers = device, partition, grid_size, block_sizes, min_num_steps, max_message_bytes
        on_all_ranks(self._backend, lambda: self._demand_numbers(*numbers), NOT_BUILT)
        staged = self._node_bytes
        # Without staging, where all ranks reach each other's tensors: known only when they have met.
        in_threads = isinstance(self._backend, LocalBackend) and max_message_bytes is None
        devices = set(self._backend.gather_to_all(index)) if isinstance(self._backend, LocalBackend) else set()
        self._staged_bytes = 0 if in_threads and len(devices) == 1 else -(-staged // ALIGNMENT) * ALIGNMENT
        world = self.para_info.world_size
        geometry = Geometry(world, packet_bytes(world), self._staged_bytes)
        self._geometry = geometry
        region = region_of(self.para_info, staged)
        through_nvshmem = self.para_info.use_inter and should_init_nvshmem
        if through_nvshmem:
            self.init_nvshmem()
        peers_exchange = self.para_info.use_inter and not through_nvshmem
        self._workspace_bytes = geometry.total_bytes + (region.total_bytes if peers_exchange else 0)
        self.init_virtual_memory()
        assert self._workspaces is not None
        if through_nvshmem:
            self._transport = NvshmemTransport(self._backend, self.para_info, device, region)
        elif self.para_info.use_inter:
            self._transport = PeerTransport(self.para_info, self._workspaces.addresses, geometry.total_bytes)
        self._mapped = MappedTensors(device, self._workspaces.ranks, self.para_info.world_rank)
        if self._staged_bytes and self._is_alone():
            # Before and after the kernels. With ranks of one process on one device, more streams could share a hardware
            # queue with the kernel of a rank that waits.
            self._copying = self._context.create_stream(), self._context.create_stream()
        # No rank launches while another one is still loading its kernels: loading may wait for what runs.
        on_all_ranks(
            self._backend, lambda: self._load_kernels(device, region, is_programmatic=programmatic_launch), NOT_BUILT
        )
        self._demand_concurrency()

    def _load_kernels(self, device: Device, region: Region, *, is_programmatic: bool) -> None:
        assert self._workspaces is not None
        assert self._fault is not None
        is_bfloat16 = self.dtype is _torch().bfloat16
        for op in self.valid_op_list:
            how: dict[str, Any] = {
                "grid": self.grid_size,
                "fewest_steps": self._fewest_steps,
                "numbers": self._numbers,
            }
            calls = Calls(self.para_info, op, block_sizes=self._block_sizes, **how)
            limit_ns = round(self._timeout_s * 1_000_000_000)
            calls.connect(self._workspaces.addresses, self._fault.address, limit_ns, stops=self._stops)
            self._kernels[op] = Kernels(
                self.para_info,
                op,
                self._geometry,
                self._context,
                device,
                calls,
                is_bfloat16=is_bfloat16,
                is_programmatic=is_programmatic,
            )
            if self._staged_bytes:
                self._staging[op] = Staging(self.para_info, op, self._geometry, self._workspaces.addresses)
            if self._transport is not None:
                node_calls = NodeCalls(self.para_info, op, region, **how)
                peers = [self._workspaces.addresses[rank] for rank in self.para_info.local_ranks()]
                node_calls.connect(peers, self._transport.regions, self._fault.address, limit_ns, stops=self._stops)
                self._node_kernels[op] = NodeKernels(
                    *(self.para_info, op, self._geometry, region, self._transport, self._context, device, node_calls),
                    is_bfloat16=is_bfloat16,
                )

    def _is_alone(self) -> bool:
        """Whether no other rank of this process is on this device."""
        assert self._workspaces is not None
        places = [(one.process, one.device_id) for one in self._workspaces.ranks]
        return places.count(places[self.para_info.world_rank]) == 1

    def _demand_concurrency(self) -> None:
        """RuntimeError on all ranks unless their kernels, in full size, run at the same time."""
        limit_s = min(self._timeout_s, MEETING_S)
        stream = self._context_stream(self._current_handle())
        if stream.context != self._context:
            stream = self._context.create_stream()

        def meet() -> bool:
            assert self._fault is not None
            agreed = signature(self.valid_op_list[0], MixedCommMode.TWO_EXCHANGE, "meeting", 0, is_staged=False)
            self._kernels[self.valid_op_list[0]].meet(agreed, round(limit_s * 1_000_000_000), stream)
            stream.sync()
            kind, peer, _ = self._fault.read()
            if kind != Fault.NONE:
                raise RuntimeError(f"its kernel waited {limit_s} s for that of rank {peer}")
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

    def _forget_meeting(self) -> None:
        """Sets flags, epochs and faults back to those of fresh memory. Collective; no kernel is running."""
        assert self._workspaces is not None
        assert self._fault is not None
        with Device(self.device.index).context.current():
            call("cuMemsetD8", self._workspaces.addresses[self.para_info.world_rank], 0, self._geometry.slots)
            call("cuCtxSynchronize")
        self._fault.clear()
        self._backend.barrier()

    def _valid_modes(self) -> list[MixedCommMode]:
        between = [MixedCommMode.HIERARCHICAL] if self.para_info.use_inter else []
        if self.device.type == "cpu":
            return [MixedCommMode.GLOO, *between, MixedCommMode.AUTOTUNE] if self.tp_comm_group is not None else []
        modes = [*KERNEL_MODES, *between]
        if self._has_nccl():
            modes += NCCL_MODES if self.para_info.use_mixed else NCCL_MODES[:1]
        return [*modes, MixedCommMode.AUTOTUNE]

    def get_valid_op_list(self) -> list[MixedCommOp]:
        """The operations of this topology."""
        return list(self.valid_op_list)

    def get_valid_mode_list(self) -> list[MixedCommMode]:
        """The modes of this handler."""
        return list(self.valid_mode_list)

    @property
    def has_fault(self) -> bool:
        """Whether a kernel of this rank has reported a fault: a look at memory of the host, from any thread."""
        fault = self._fault
        return self._state is _State.FAILED or (fault is not None and fault.read()[0] != Fault.NONE)

    def check(self) -> None:
        """Raises CommFault if a kernel of this rank has reported one. Does not wait for kernels that still run.

        Every call does this. A replay of a graph is no call: check after each one of which the output is read.
        """
        if self._fault is None or self._state is _State.CLOSED:
            return
        kind, peer, detail = self._fault.read()
        if kind == Fault.NONE:
            return
        self._state = _State.FAILED
        rank = self.para_info.world_rank
        if kind == Fault.MISMATCH:
            raise CommFault(
                f"rank {rank} and rank {peer} were called with different operations, modes, types or sizes; the "
                "handler cannot be used any more",
                "mismatch",
                peer,
            )
        if kind == Fault.OVERLAP:
            running, other = Numbers.name(detail >> 32), Numbers.name(detail & 0xFFFFFFFF)
            raise CommFault(
                f"two kernels of rank {rank} ran at the same time, of {running} and of {other}: order the streams on "
                "which the handler is used and on which its graphs are replayed; the handler cannot be used any more",
                "overlap",
                peer,
            )
        raise CommFault(
            f"rank {rank} waited for rank {peer} for {self._timeout_s} s, in call {detail}; the handler cannot be used "
            "any more",
            "timeout",
            peer,
        )

    def _demand_open(self) -> None:
        if self._state is _State.OPEN:
            self.check()
        if self._state is not _State.OPEN:
            raise RuntimeError(f"the handler of rank {self.para_info.world_rank} {self._state.value}")

    def _run(
        self, op: MixedCommOp, x_in: Any, x_out: Any, mode: MixedCommMode | None, *, skip_check: bool = False
    ) -> Any:
        self._demand_open()
        op = MixedCommOp(op)
        if not skip_check:
            self._demand_tensor("x_in", x_in)
        shape = () if skip_check and x_out is not None else self.para_info.output_shape(op, x_in.shape)
        if x_out is None:
            x_out = x_in.new_empty(shape)
        elif not skip_check:
            self._demand_tensor("x_out", x_out)
            if tuple(x_out.shape) != shape:
                raise ValueError(f"x_out must have the shape {list(shape)}, not {list(x_out.shape)}")
        chosen, grid = self._mode(op, x_in, x_out, mode)
        self._run_mode(op, x_in, x_out, chosen, grid)
        return x_out

    def _run_mode(self, op: MixedCommOp, x_in: Any, x_out: Any, chosen: MixedCommMode, grid: int) -> None:
        """grid: the number of SMs that a kernel uses; 0: all of them."""
        if chosen is MixedCommMode.GLOO:
            x_out.copy_(
                exchange_on_cpu(
                    self.para_info, op, x_in, self._backend, *map(as_backend, (self.tp_comm_group, self.dp_comm_group))
                )
            )
        elif chosen in NCCL_MODES:
            exchange_with_nccl(
                self.para_info, op, chosen, x_in, x_out, self._world_group, self.tp_comm_group, self.dp_comm_group
            )
        elif self.device.type == "cpu":
            groups = map(as_backend, (self.local_comm_group, self._inter_group))
            x_out.copy_(exchange_by_nodes(self.para_info, op, x_in, self._backend, *groups))
        elif x_in.numel():
            kernels = self._node_kernels if chosen is MixedCommMode.HIERARCHICAL else self._kernels
            # The arguments of a kernel are filled in place, and kernels have one order: of one thread at a time.
            with self._one_thread:
                kernels[op].calls.grid = grid or self.grid_size
                self._launch(op, x_in, x_out, chosen)

    def _demand_tensor(self, name: str, tensor: Any) -> None:
        if tensor.device != self.device:
            raise ValueError(f"{name} must be on {self.device}, not on {tensor.device}")
        if tensor.dtype is not self.dtype:
            raise ValueError(f"{name} must be of {self.dtype}, not of {tensor.dtype}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous: call {name}.contiguous()")

    def _mode(self, op: MixedCommOp, x_in: Any, x_out: Any, mode: MixedCommMode | None) -> tuple[MixedCommMode, int]:
        """The mode of a call, and how many SMs a kernel uses; 0: all of them."""
        if mode is not None:
            mode = MixedCommMode(mode)
            if mode not in self.valid_mode_list:
                valid = ", ".join(one.name for one in self.valid_mode_list)
                raise ValueError(f"mode {mode.name} is not valid for this handler; valid: {valid}")
            if mode is not MixedCommMode.AUTOTUNE:
                return mode, 0
        table = self.tuning_table if self._use_autotune or mode is MixedCommMode.AUTOTUNE else None
        return self._choose(op, _span(x_in)[1], _span(x_out)[1], table, is_reached=self._is_reached(x_in, x_out))

    def _choose(
        self, op: MixedCommOp, in_bytes: int, out_bytes: int, table: TuningTable | None, *, is_reached: bool
    ) -> tuple[MixedCommMode, int]:
        largest = max(in_bytes, out_bytes)
        block_bytes = self.para_info.block_size(op, in_bytes)

        possible = self._possible_modes(op, in_bytes, out_bytes, is_reached=is_reached)
        choice = table.select(op, largest, is_reached, possible) if table is not None else None
        if choice is not None:
            return choice.mode, choice.grid
        if self.device.type == "cpu":
            return MixedCommMode.GLOO, 0
        small = SMALL_REACHED_BYTES if is_reached else SMALL_STAGED_BYTES
        received = block_bytes * (self.para_info.world_size - 1)
        return (MixedCommMode.ONE_EXCHANGE if received <= small else MixedCommMode.TWO_EXCHANGE), 0

    def _possible_modes(
        self, op: MixedCommOp, in_bytes: int, out_bytes: int, *, is_reached: bool
    ) -> list[MixedCommMode]:
        """The modes from which to choose for a call of these sizes."""
        too_large = set()
        if self.para_info.block_size(op, in_bytes) > packet_bytes(self.para_info.world_size):
            too_large.add(MixedCommMode.ONE_EXCHANGE)
        if not is_reached and max(in_bytes, out_bytes) > MOST_ROUNDS * self._staged_bytes:
            too_large.add(MixedCommMode.TWO_EXCHANGE)
        if self._transport is not None and max(in_bytes, out_bytes) > MOST_ROUNDS * self._node_bytes:
            too_large.add(MixedCommMode.HIERARCHICAL)
        return [mode for mode in self.valid_mode_list if mode not in {*too_large, MixedCommMode.AUTOTUNE}]

    def _is_reached(self, *tensors: Any) -> bool:
        """Whether the kernels of all ranks reach the tensors of a call, so that TWO_EXCHANGE does not stage them."""
        if self._mapped is None:
            return False
        return self._staged_bytes == 0 or all(self._mapped.find(*_span(one)) is not None for one in tensors)

    def select_autotune_mode(self, op: MixedCommOp, x_in: Any) -> MixedCommMode:
        """The mode that AUTOTUNE takes for an input, with an output that is mapped if the input is.

        op: the operation. x_in: the input, of which only its size and memory matter. The choice is that of the table of
        run_autotune(), or without one by the size.
        """
        self._demand_open()
        op = MixedCommOp(op)
        self._demand_tensor("x_in", x_in)
        shape = self.para_info.output_shape(op, x_in.shape)
        out_bytes = prod(shape) * x_in.element_size()
        return self._choose(op, _span(x_in)[1], out_bytes, self.tuning_table, is_reached=self._is_reached(x_in))[0]

    def run_autotune(
        self, *, message_bytes: Sequence[int] = TUNED_BYTES, rounds: int = 3, progress: bool | None = None
    ) -> TuningTable:
        """Measures every mode and several grids at these sizes; later calls use the fastest. Collective.

        message_bytes: sizes of the larger of input and output, rounded down to what the topology can divide.
        rounds: how often each is measured; the median counts. The fastest are measured again, in turns.
        progress: whether to show a bar on standard error; None: on the first rank, if standard error is a terminal.

        Call it inside ``with partition.torch():``, while nothing
        else runs there. Returns the table, which can be saved.
        """
        self._demand_open()
        demand_equal(self._backend, "message_bytes", tuple(message_bytes))
        demand_equal(self._backend, "rounds", rounds)
        # After the others have the same: all raise, or none.
        sizes = [as_int(f"message_bytes[{n}]", size, 1, MOST_BYTES) for n, size in enumerate(message_bytes)]
        measured = Measured(self, sizes, as_int("rounds", rounds, 1))
        try:
            with Progress(progress if self.para_info.world_rank == 0 else False) as bar:
                self.tuning_table = tune(
                    self._backend, self._description(), measured.cases, measured.candidates, measured.microseconds, bar
                )
        finally:
            measured.close()
        return self.tuning_table

    def use_tuning_table(self, table: TuningTable) -> None:
        """Uses the choices of a saved table. Collective: ValueError unless all ranks pass the same table.

        ValueError also for a table of another topology, type, device or number of SMs.
        """
        self._demand_open()
        demand_equal(self._backend, "the tuning table", table)
        table.demand_made_for(self._description())
        self.tuning_table = table

    def _description(self) -> tuple[tuple[str, str], ...]:
        device, driver_version = "CPU", "none"
        if self.device.type == "cuda":
            device, driver_version = Device(self.device.index).name, str(call("cuDriverGetVersion"))
        return description_of(self.para_info, str(self.dtype), device, self.grid_size, driver_version)

    def _launch(self, op: MixedCommOp, x_in: Any, x_out: Any, mode: MixedCommMode) -> None:
        assert self._workspaces is not None
        size = x_in.element_size()
        block_bytes = self.para_info.block_size(op, x_in.numel()) * size
        if block_bytes % ALIGNMENT:
            raise ValueError(
                f"{op.name} of {list(x_in.shape)} moves blocks of {block_bytes} bytes: the kernels need a multiple of "
                f"{ALIGNMENT}"
            )
        (in_address, in_bytes), (out_address, out_bytes) = spans = _span(x_in), _span(x_out)
        addresses = in_address, out_address
        for name, address in zip(("x_in", "x_out"), addresses, strict=True):
            if address % ALIGNMENT:
                raise ValueError(f"{name} begins at {address:#x}: the kernels need an address that {ALIGNMENT} divides")
        overlap = in_address < out_address + out_bytes and out_address < in_address + in_bytes
        if overlap and not (op is MixedCommOp.ALLREDUCE and in_address == out_address):
            raise ValueError("x_in and x_out share memory: only ALLREDUCE works in place, with both the same tensor")
        seen = None
        is_staged = mode in STAGED_MODES and self._staged_bytes > 0
        if is_staged:
            seen = self._seen_by_all(*spans)
            is_staged = seen is None
        stream = self._ordered_stream()
        agreed = signature(op, mode, str(self.dtype), block_bytes, is_staged=is_staged)
        if mode is MixedCommMode.ONE_EXCHANGE:
            self._kernels[op].one_exchange(*addresses, block_bytes, agreed, stream)
            return
        if mode is MixedCommMode.TWO_EXCHANGE:
            if is_staged:
                self._launch_staged(op, *addresses, block_bytes, agreed, stream)
                self._kernels[op].spoil(out_address, out_bytes, stream)
            else:
                self._kernels[op].two_exchange(*addresses, block_bytes, agreed, stream, seen)
            return
        staged = None
        if is_staged:
            own = self._workspaces.addresses[self.para_info.world_rank]
            staged = own + self._geometry.staged_input, own + self._geometry.staged_output
        if seen is not None:
            of_node = slice(self.para_info.local_ranks()[0], self.para_info.local_ranks()[-1] + 1)
            seen = seen[0][of_node], seen[1][of_node]
        counts = in_bytes // block_bytes, out_bytes // block_bytes
        room = room_of(self.para_info, self._node_bytes)
        for part in rounds_of(addresses, counts, block_bytes, room, staged):
            for one in part.before:
                _copy(*one, stream)
            self._node_kernels[op].run(part, agreed, stream, is_staged=is_staged, seen=seen)
            for one in part.after:
                _copy(*one, stream)
        self._kernels[op].spoil(out_address, out_bytes, stream)

    def _launch_staged(
        self, op: MixedCommOp, x_in: int, x_out: int, block_bytes: int, agreed: int, stream: Stream
    ) -> None:
        """The parts of a call, so that the copies of one run next to the kernel of another."""
        for parts in self._staging[op].rounds(x_in, x_out, block_bytes):
            self._launch_parts(op, parts, agreed, stream)

    def _launch_parts(self, op: MixedCommOp, parts: Sequence[Part], agreed: int, stream: Stream) -> None:
        # With one part, there is nothing for its copies to run next to.
        before, after = self._copying if self._copying and len(parts) > 1 else (stream, stream)
        # A stream without copies stays out of it: in a capture it would not be joined.
        if before is not stream and any(part.sends for part in parts):
            before.wait(stream)
        for part in parts:
            for one in part.sends:
                _copy(*one, before)
            if part.sends and before is not stream:
                stream.wait(before)
            self._kernels[op].staged_part(part, agreed, stream)
            if part.fetches and after is not stream:
                after.wait(stream)
            for one in part.fetches:
                _copy(*one, after)
        if after is not stream and any(part.fetches for part in parts):
            stream.wait(after)

    def _seen_by_all(self, *spans: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The addresses of input and output in the process of each rank; None unless both are mapped."""
        assert self._mapped is not None
        x_in, x_out = (self._mapped.find(*span) for span in spans)
        return None if x_in is None or x_out is None else (x_in, x_out)

    def init_virtual_memory(self) -> None:
        """Maps the workspaces of all ranks, once. The constructor calls it. Collective."""
        if self._workspaces is None and self._state is _State.BUILDING:
            device = Device(self.device.index)
            self._workspaces = Workspaces(self._backend, device, self._workspace_bytes, self._timeout_s)

    def init_nvshmem(self) -> None:
        """Initialises NVSHMEM with the ranks of this handler, through nvshmem4py and without multicast. Collective.

        RuntimeError, with the reason, if it cannot be initialised. Done once per process; the caller finalises NVSHMEM.
        """
        if self._state is not _State.BUILDING:
            self._demand_open()
        if self._has_nvshmem:
            return
        if self.device.type != "cuda":
            raise RuntimeError("NVSHMEM cannot be initialised: the handler is on the CPU")
        initialise(self._backend, Device(self.device.index), enable_ibgda=self._ib_enable_ibgda)
        self._has_nvshmem = True

    def _can_map(self) -> bool:
        """Whether mapped tensors are treated differently."""
        return self._mapped is not None and self._staged_bytes > 0

    def map_tensors(self, *tensors: Any) -> None:
        """Maps these tensors on all ranks, so that TWO_EXCHANGE and HIERARCHICAL do not stage them. Collective.

        Every rank passes the same number of tensors, in one order. Views of them count as mapped. A call is not staged
        if its input and its output are mapped on every rank; if they are mapped on some ranks only, it is a CommFault
        of kind "mismatch". The handler keeps the tensors alive. They must come from torch's allocator in its default
        setting. Raises RuntimeError if the handler is on the CPU or closed.
        """
        self._demand_open()
        if self._mapped is None:
            raise RuntimeError("a handler on the CPU cannot map tensors: its ranks exchange them through the host")
        for number, tensor in enumerate(tensors):
            self._demand_tensor(f"tensor {number}", tensor)
        self._mapped.add(self._backend, [_span(one) for one in tensors])
        self._mapped_storages += [(_span(one)[0], one.untyped_storage()) for one in tensors]

    def unmap_tensors(self, *tensors: Any) -> None:
        """Unmap tensors. Collective; waits for the calls of all ranks.

        tensors: those that were mapped. Raises RuntimeError if the handler is on the CPU or closed.
        """
        self._demand_open()
        if self._mapped is None:
            raise RuntimeError("a handler on the CPU cannot map tensors")
        self._context.sync()
        self._backend.barrier()
        for tensor in tensors:
            address = _span(tensor)[0]
            self._mapped.remove(address)
            del self._mapped_storages[[one for one, _ in self._mapped_storages].index(address)]
        # Nobody frees a tensor that another rank still has mapped.
        self._backend.barrier()

    def _ordered_stream(self) -> Stream:
        """torch's current stream, ordered behind the stream of the previous call if that was another one."""
        handle = self._current_handle()
        previous = self._stream
        if previous is not None and previous.handle == handle:
            return previous
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._context_stream(handle)
            if stream.context != self._context:
                raise RuntimeError(
                    f"the handler belongs to {self._context!r}, and torch's current stream to {stream.context!r}: call "
                    "it inside 'with partition.torch():' of that partition. Two partitions that share a communicator "
                    "would wait for each other forever"
                )
            self._streams[handle] = stream
        if previous is not None:
            _order(previous, stream)
        self._stream = stream
        return stream

    def _current_handle(self) -> int:
        # torch reports 0 for the legacy default stream.
        return int(_torch().cuda.current_stream(self.device).cuda_stream) or LEGACY_DEFAULT_STREAM.handle

    def _context_stream(self, handle: int) -> Stream:
        # torch's default stream is that of the primary context.
        with Device(self.device.index).context.current():
            return Stream.from_handle(handle)

    def checkpoint_prepare(self) -> None:
        """Releases the physical memory and keeps the addresses, so that captured graphs stay valid. Collective.

        A second call does nothing. NotImplementedError if nodes exchange through NVSHMEM, which cannot do that.
        """
        if self._state is _State.RELEASED:
            return
        self._demand_open()
        if self._transport is not None and self._transport.cannot_release:
            raise NotImplementedError(f"the handler cannot release its memory: {self._transport.cannot_release}")
        if self._workspaces is not None:
            self._context.sync()
            self.check()
            self._backend.barrier()
            self._workspaces.release()
            self._backend.barrier()
        self._state = _State.RELEASED

    def checkpoint_restore(self, comm_backend: Any) -> None:
        """Maps new memory at the same addresses. Collective.

        comm_backend: a CommBackend, or a process group of torch.distributed; ValueError if its rank or size differs.

        Does nothing if the memory is there. RuntimeError if the handler has failed or been shut down.
        """
        if self._state is not _State.RELEASED:
            self._demand_open()
            return
        backend = as_backend(comm_backend)
        self._demand_place(backend)
        if self._workspaces is not None:
            self._workspaces.restore(backend)
        self._backend = backend
        self._state = _State.OPEN

    def shutdown(self) -> None:
        """Waits for the calls of this rank, then for the other ranks unless one has failed, and frees everything.

        If another rank does not come within `timeout_s`, but at least 60 s, the memory stays mapped, with a
        ResourceWarning. A second call does nothing.
        """
        if self._state is _State.CLOSED:
            return
        before, self._state = self._state, _State.CLOSED
        failed, missing = before is _State.FAILED, ""
        try:
            if self._workspaces is not None:
                with suppress(CUDAError):
                    self._context.sync()
                failed = failed or (self._fault is not None and self._fault.read()[0] != Fault.NONE)
            if not failed:
                barrier_within(self._backend, self._host_limit_s)
        except (RuntimeError, ValueError) as error:  # a rank is missing, or torch.distributed is gone already
            failed, missing = True, str(error)
        # Another rank may still write to the memory of this one if not all ranks are here: it stays mapped.
        if failed:
            self._mapped = None
            self._transport = None
            self._workspaces = None
            self._fault = None
            if missing:
                message = f"{self!r} was shut down without the other ranks, and keeps its memory mapped: {missing}"
                warnings.warn(message, ResourceWarning, stacklevel=2)
            return
        self._destroy_groups()
        self._free()

    def _destroy_groups(self) -> None:
        """Those of this rank, in one order on all ranks; that of the host is the last."""
        distributed: Any = import_module("torch.distributed") if self._torch_groups else None
        for ranks in sorted(self._torch_groups, reverse=True):
            group = self._torch_groups.pop(ranks)
            if not ranks or self.para_info.world_rank in ranks:
                distributed.destroy_process_group(group)

    def _free(self) -> None:
        while self._kernels:
            self._kernels.popitem()[1].close()
        while self._node_kernels:
            self._node_kernels.popitem()[1].close()
        for stream in self._copying or ():
            stream.close()
        self._copying = None
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
            self._mapped_storages.clear()
        if self._workspaces is not None:
            self._workspaces.close()
            self._workspaces = None
        if self._fault is not None:
            self._fault.close()
            self._fault = None

    def __enter__(self) -> MixedCommHandler:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # Frees nothing: other ranks may still use the memory, and asking them would block.
        if getattr(self, "_workspaces", None) is not None:
            with suppress(Exception):
                warnings.warn(f"{self!r} was not shut down: its memory stays mapped", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        info = self.para_info
        return (
            f"<MixedCommHandler: rank {info.world_rank} of {info.world_size}, tp {info.tp_size} x dp {info.dp_size}, "
            f"{self._state.value.split(':')[0]}>"
        )


def _span(tensor: Any) -> tuple[int, int]:
    """Address and size in bytes."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _copy(to: int, source: int, size: int, stream: Stream) -> None:
    with stream.context.current():
        call("cuMemcpyDtoDAsync", to, source, size, stream.handle)


def _order(previous: Stream, stream: Stream) -> None:
    """Orders what comes on a stream behind what is on another one. What is being captured does not run yet."""
    before, after = _capture_of(previous), _capture_of(stream)
    if before == after:
        stream.wait(previous)
    elif before is None:
        # A capture cannot wait for work outside of it: the host does, in the mode that a capture allows.
        cu = driver()
        mode = call("cuThreadExchangeStreamCaptureMode", cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            with previous.context.current():
                call("cuStreamSynchronize", previous.handle)
        finally:
            call("cuThreadExchangeStreamCaptureMode", mode)


def _capture_of(stream: Stream) -> int | None:
    """The capture that a stream takes part in; None if there is none."""
    # A default stream is that of the current context.
    with stream.context.current():
        status, number, *_ = call("cuStreamGetCaptureInfo", stream.handle)
    return None if status == driver().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE else int(number)


class _RunMixedComm:
    """``run_mixed_comm(op, handler, x_in, x_out=None, mode=None, skip_check=False)``: runs an operation.

    Returns its output.

    Every rank calls it with inputs of one shape. On a GPU it returns at once, and the work runs on torch's current
    stream. mode: None lets the handler choose. skip_check: not to check device, type, layout and shape of tensors.
    """

    def __call__(
        self,
        op: MixedCommOp,
        handler: MixedCommHandler,
        x_in: Any,
        x_out: Any = None,
        mode: MixedCommMode | None = None,
        skip_check: bool = False,
    ) -> Any:
        return handler._run(op, x_in, x_out, mode, skip_check=skip_check)

    @staticmethod
    def is_compute_capability_supported(capability: int) -> bool:
        """Whether the kernels support a compute capability: 90 stands for 9.0."""
        return capability >= FIRST_CAPABILITY


run_mixed_comm = _RunMixedComm()
