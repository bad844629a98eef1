"""The handler: one rank of a communicator, its states, and the entry point of every operation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakMethod

from cuda_gctx import CUDAError, Device, Partition
from cuda_gctx.comm._arguments import (
    HOST_S,
    MOST_BYTES,
    as_steps,
    checked,
    element_of,
    host_limit_s,
    is_supported,
)
from cuda_gctx.comm._backends import (
    CommBackend,
    barrier_within,
    demand_all_equal,
    demand_equal,
    gather,
    on_all_ranks,
    wait_at_most,
)
from cuda_gctx.comm._building import Built, OnGpu, build
from cuda_gctx.comm._calls import Plans
from cuda_gctx.comm._driver_calls import call
from cuda_gctx.comm._groups import Groups, agreed_backend
from cuda_gctx.comm._limits import MaxBlockSizes, block_sizes
from cuda_gctx.comm._measured import Measured
from cuda_gctx.comm._memory import host_identity
from cuda_gctx.comm._modes import Mode
from cuda_gctx.comm._padding import Padded
from cuda_gctx.comm._protocol import TWO_EXCHANGE_THREADS, one_exchange_threads
from cuda_gctx.comm._tensors import span
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, on_hosts
from cuda_gctx.comm._tuning import TuningTable, description_of, tune
from cuda_gctx.extending import Progress, as_int

__all__ = ["MixedCommHandler", "run_mixed_comm"]

# What run_autotune() measures.
ONE = MixedCommMode.ONE_EXCHANGE
TUNED_BYTES = tuple(1 << shift for shift in range(10, 29))


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class _State(Enum):
    BUILDING = "is being built"
    OPEN = "is open"
    RELEASED = "has released its memory: call checkpoint_restore() first"
    FAILED = "has failed: call recover() on all ranks"
    CLOSED = "has been shut down"


class MixedCommHandler:
    """One rank of a communicator over a tp x dp topology.

    Every rank creates a handler, at the same time: with torch.distributed initialised, or with a `comm_backend`. A
    handler belongs to one partition (or to the whole device), and its calls run in one order.

    grid_size: the number of blocks of the kernels; None: one for each SM of the partition.
    max_block_size, min_block_size: the largest and the smallest number of threads per SM in the kernel for small
    messages, which divides them among several blocks. The largest is at most 1024, with more than 8 ranks 512, and with
    more than 16 ranks 256.
    min_num_steps: the number of tiles into which a block of the kernel for large messages divides its work, as long as
    tiles stay large.
    ib_enable_ibgda: whether NVSHMEM, if the handler initialises it, lets GPUs drive InfiniBand adapters directly.
    should_init_nvshmem: whether the handler initialises NVSHMEM if nodes exchange through it. If not, the program must
    do so first.
    use_autotune: whether calls without a mode follow the table of run_autotune(), if there is one. If not, AUTOTUNE is
    no valid mode.
    partition: the partition for the kernels.
    timeout_s: how long a kernel waits for another rank before it reports a fault. On the host, ranks connected by
    torch.distributed wait for each other for the same time, but at least 60 s.
    max_message_bytes: the largest input or output with reserved memory; None: 64 MiB. HIERARCHICAL, and TWO_EXCHANGE if
    it stages, send larger messages in several rounds. If all ranks are threads on one device, None reserves nothing for
    TWO_EXCHANGE, because the ranks reach each other's tensors. The handler does not stage tensors that were passed to
    map_tensors().
    symmetric_bytes: the size of the memory of which empty() makes tensors, which all ranks have mapped.
    comm_backend: the connection of the ranks on the host, a CommBackend or a process group; None: torch.distributed.
    programmatic_launch: launch the kernel for small messages while the previous kernel of the stream still runs; it
    waits for the end of that kernel on the device (programmatic dependent launch).
    on_fault: the effect of a call that cannot finish: "nan" fills each part of its output that may be wrong, "trap"
    ends everything that runs in the context with an error.
    transport: the connection of the nodes, if there are several: "nvshmem", "nccl", or "peers" on one host. The ranks
    of a node run on one host.
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
        symmetric_bytes: int = 0,
        comm_backend: Any = None,
        programmatic_launch: bool = False,
        on_fault: str = "nan",
        transport: str = "nvshmem",
    ) -> None:
        self._state = _State.BUILDING
        self._gpu: OnGpu | None = None
        check = partial(
            checked,
            (world_rank, world_size, local_rank, local_size, inter_rank, inter_size),
            (local_tp_size, local_dp_size, inter_tp_size, inter_dp_size),
            dtype,
            device,
            grid_size,
            (min_block_size, max_block_size),
            min_num_steps,
            max_message_bytes,
            symmetric_bytes,
            timeout_s,
            on_fault,
            partition,
            transport,
            ib_enable_ibgda=ib_enable_ibgda,
            should_init_nvshmem=should_init_nvshmem,
            use_autotune=use_autotune,
            programmatic_launch=programmatic_launch,
        )
        self._take(build(check, comm_backend))
        self._become(_State.OPEN)

    @classmethod
    def from_process_group(
        cls,
        partition: Partition | None,
        dtype: Any,
        *,
        group: Any = None,
        tp_size: int | None = None,
        dp_size: int | None = None,
        device: Any = None,
        **options: Any,
    ) -> MixedCommHandler:
        """A handler for the processes of a group, which provides rank, size and hosts. Collective.

        partition: the partition for the kernels; None: the whole device.
        dtype: torch.float16, bfloat16, float32 or float8_e4m3fn.
        group: a process group of torch.distributed; None: all processes. Several groups of a job can have one each.
        tp_size, dp_size: the division of its ranks. If both are None, all are tp; if one is None, the remaining factor.
        device: the GPU; None: that of the partition, or torch's current one.
        options: the other options of MixedCommHandler.

        The nodes of the topology are the hosts. Raises ValueError if this division of the ranks is not possible.
        """
        groups = Groups(group, host_limit_s(options.get("timeout_s", HOST_S)))
        backend = groups.backend
        demand_all_equal(backend, {"tp_size": tp_size, "dp_size": dp_size})
        info = on_hosts(backend.Get_rank(), gather(backend, host_identity()), tp_size, dp_size)
        if device is None:
            device = "cuda" if partition is None else f"cuda:{partition.context.device.device_id}"
        given: dict[str, Any] = asdict(info) | options
        return cls(**given, dtype=dtype, device=device, partition=partition, comm_backend=groups)

    def _take(self, built: Built) -> None:
        arguments, groups = built.arguments, built.groups
        self._arguments = arguments
        self._groups = groups
        self._gpu = built.gpu
        gpu = self._gpu
        order_and_fault = () if gpu is None or gpu.fault is None else (gpu.order, gpu.fault.host_address)
        self._plans = Plans(arguments.dtype, arguments.device, *order_and_fault)
        self._known = self._plans.run
        self._modes = built.modes
        self._messages = built.messages
        self._mapped_storages: list[tuple[int, Any]] = []  # which are kept alive, by address of the tensor
        self._captured: list[Any] = []  # padded tensors, which replays use
        self.para_info = arguments.info
        self.dtype = arguments.dtype
        self.device = arguments.device
        self._grid_size = arguments.grid_size
        self.valid_op_list = list(self.para_info.valid_ops)
        self.valid_mode_list = list(built.modes.valid)
        self.local_comm_group, self.tp_comm_group, self.dp_comm_group = groups.local, groups.tp, groups.dp
        threads = {
            MixedCommMode.ONE_EXCHANGE: arguments.block_sizes[1],
            MixedCommMode.TWO_EXCHANGE: TWO_EXCHANGE_THREADS,
        }
        most = {(op, mode): threads[mode] for op in self.valid_op_list for mode in threads if self._gpu is not None}
        limit_threads = WeakMethod(self._limit_threads)
        self._max_block_sizes = MaxBlockSizes(most, lambda op, size: cast("Any", limit_threads())(op, size))
        self._min_block_size, self._min_num_steps = arguments.block_sizes[0], arguments.fewest_steps
        self._tuning_table: TuningTable | None = None
        # torch.compile keeps calls as nodes of its graphs.
        nodes: Any = import_module("cuda_gctx.comm._torch_op")
        self._is_traced, self._is_compiling = nodes.is_traced, nodes.is_compiling
        self._as_node, self._number = nodes.call, nodes.number_of(self._run)
        self._graph_state = nodes.new_state()
        # As it was made; programs for FlashInfer's handler read these.
        self.use_autotune = arguments.use_autotune
        self.ib_enable_ibgda = arguments.enable_ibgda
        self.should_init_nvshmem = arguments.should_init_nvshmem
        self.workspace_addresses = () if self._gpu is None else self._gpu.addresses()

    def _become(self, state: _State) -> None:
        self._state = state
        self._look_again()

    def _look_again(self) -> None:
        """What a call is may have changed."""
        self._plans.forget(by_address=self._gpu is not None and bool(self._gpu.mapped))

    @property
    def grid_size(self) -> int:
        """The number of blocks of the kernels. Later calls use a new value; ranks may have different ones."""
        return self._grid_size

    @grid_size.setter
    def grid_size(self, grid_size: int) -> None:
        if not self._arguments.most_blocks:
            raise ValueError("a handler on the CPU has no grid: do not set grid_size")
        self._grid_size = as_int("grid_size", grid_size, 1, self._arguments.most_blocks)
        self._look_again()

    @property
    def min_block_size(self) -> int:
        """The smallest number of threads per SM, as in the constructor. Later calls use a new value."""
        return self._min_block_size

    @min_block_size.setter
    def min_block_size(self, min_block_size: int) -> None:
        most = min((size for (_, mode), size in self._max_block_sizes.items() if mode is ONE), default=None)
        self._min_block_size = block_sizes(min_block_size, most, self.para_info.world_size)[0]
        self._limit()

    @property
    def max_block_size_dict(self) -> MaxBlockSizes:
        """The largest number of threads per SM, by operation and mode. Later calls use a new value of ONE_EXCHANGE."""
        return self._max_block_sizes

    @property
    def min_num_steps(self) -> int:
        """The number of tiles of a block, as in the constructor. Later calls use a new value."""
        return self._min_num_steps

    @min_num_steps.setter
    def min_num_steps(self, min_num_steps: int) -> None:
        self._min_num_steps = as_steps(min_num_steps)
        self._limit()

    def _limit_threads(self, op: MixedCommOp, size: int) -> int:
        """Checks the largest number of threads per SM of an operation, and uses it from now on."""
        size = as_int("max_block_size", size, self._min_block_size, one_exchange_threads(self.para_info.world_size))
        sizes = block_sizes(self._min_block_size, size, self.para_info.world_size)
        self._limit({op: sizes[1]})
        return sizes[1]

    def _limit(self, most: Mapping[MixedCommOp, int] = MappingProxyType({})) -> None:
        """Makes later calls use the limits that the handler has now. most: new ones, by operation."""
        if self._gpu is not None:
            limits = self._gpu.limits
            limits.fewest_threads, limits.fewest_steps = self._min_block_size, self._min_num_steps
            limits.most_threads.update(most)
        self._look_again()

    @property
    def tuning_table(self) -> TuningTable | None:
        """The table for AUTOTUNE, from run_autotune() or use_tuning_table(); None without one."""
        return self._tuning_table

    @property
    def is_running(self) -> bool:
        """Whether the handler is open: it has not been shut down."""
        return self._state is not _State.CLOSED

    @property
    def is_released(self) -> bool:
        """True from checkpoint_prepare() on, until checkpoint_restore()."""
        return self._state is _State.RELEASED

    @property
    def comm_backend(self) -> CommBackend:
        """The connection of the ranks on the host. checkpoint_restore() replaces it."""
        return self._groups.backend

    def get_valid_op_list(self) -> list[MixedCommOp]:
        """The operations of this topology."""
        return list(self.valid_op_list)

    def get_valid_mode_list(self) -> list[MixedCommMode]:
        """The modes of this handler."""
        return list(self.valid_mode_list)

    @property
    def has_fault(self) -> bool:
        """Whether a kernel of this rank has reported a fault. Reads host memory; works on any thread."""
        fault = None if self._gpu is None else self._gpu.fault
        return self._state is _State.FAILED or bool(fault)

    def check(self) -> None:
        """Raises CommFault if a kernel of this rank has reported a fault. Does not wait for running kernels.

        Every call does this, but a replay of a graph does not: call check() after each replay whose output you read.
        """
        fault = None if self._gpu is None else self._gpu.fault
        if fault:
            self._become(_State.FAILED)
            raise fault.exception()

    def _demand_open(self) -> None:
        if self._state is _State.OPEN:
            self.check()
        self._demand_there()

    def _demand_there(self) -> None:
        if self._state is not _State.OPEN:
            raise RuntimeError(f"the handler of rank {self.para_info.world_rank} {self._state.value}")

    def _demand_gpu(self) -> OnGpu:
        self._demand_open()
        if self._gpu is None:
            raise RuntimeError("a handler on the CPU cannot map tensors: its ranks exchange them through the host")
        return self._gpu

    def _run(
        self,
        op: MixedCommOp,
        x_in: Any,
        x_out: Any,
        mode: MixedCommMode | None,
        skip_check: bool = False,
        root: int | None = None,
    ) -> Any:
        done = self._known(op, x_in, x_out, mode, root, skip_check)
        return self._run_first(op, x_in, x_out, mode, root, is_checked=skip_check) if done is None else done

    def _run_first(
        self, op: MixedCommOp, x_in: Any, x_out: Any, mode: MixedCommMode | None, root: int | None, *, is_checked: bool
    ) -> Any:
        """A call that nothing is known of yet, or with which something is wrong."""
        self._demand_open()
        message = self._messages.of(op, x_in, x_out, is_checked=is_checked, root=root)
        chosen, sms = MixedCommMode.AUTOTUNE, 0
        if mode is not None:
            chosen = self._modes.valid_one(mode, message.sizes.op)
        if chosen is MixedCommMode.AUTOTUNE:
            table = self._tuning_table if self._arguments.use_autotune else None
            chosen, sms = self._modes.choose(message.sizes, table, is_reached=message.is_reached)
        runner: Mode | Padded = self._modes[chosen]
        grid = min(sms or self._grid_size, self._grid_size)
        if message.sizes.padding and not runner.is_of_torch:
            runner = Padded(runner, self._captured)
        launched = runner.run(message, grid)
        if launched is not None:
            self._plans.keep(op, mode, message, has_output=x_out is not None, launched=launched)
        elif runner.is_of_torch:
            call = message._replace(x_in=None, x_out=None)
            self._plans.keep(
                *(op, mode, message),
                has_output=x_out is not None,
                again=lambda x_in, x_out: runner.run(call._replace(x_in=x_in, x_out=x_out), grid),
            )
        return message.x_out

    def select_autotune_mode(self, op: MixedCommOp, x_in: Any) -> MixedCommMode:
        """The mode that AUTOTUNE chooses for an input, and an output that is mapped if the input is.

        op: the operation. x_in: the input; only its size and memory matter. The choice comes from the table of
        run_autotune(), or from the size if there is no table.
        """
        self._demand_open()
        self._messages.demand_tensor("x_in", x_in)
        sizes = self._messages.sizes(op, x_in.shape, x_in.element_size())
        is_reached = self._messages.is_reached(x_in, sizes.padding)
        return self._modes.choose(sizes, self._tuning_table, is_reached=is_reached)[0]

    def run_autotune(
        self, *, message_bytes: Sequence[int] = TUNED_BYTES, rounds: int = 3, progress: bool | None = None
    ) -> TuningTable:
        """Measures every mode and several grids at these sizes. Later calls use the fastest. Collective.

        message_bytes: sizes of the larger of input and output, rounded down to sizes that the topology can divide.
        rounds: the number of measurements of each; the median counts. The fastest are measured again, in turns.
        progress: whether to show a bar on standard error; None: on the first rank, if standard error is a terminal.

        Call it inside ``with partition.torch():``, while nothing
        else runs there. Returns the table, which can be saved.
        """
        self._demand_open()
        backend = self._groups.backend
        demand_equal(backend, "message_bytes", tuple(message_bytes))
        demand_equal(backend, "rounds", rounds)
        # After the others have the same: all raise, or none.
        sizes = [as_int(f"message_bytes[{n}]", size, 1, MOST_BYTES) for n, size in enumerate(message_bytes)]
        measured = Measured(self, self._modes, self._messages, backend, sizes, as_int("rounds", rounds, 1))
        try:
            with Progress(progress if self.para_info.world_rank == 0 else False) as bar:
                table = tune(
                    backend, self._description(), measured.cases, measured.candidates, measured.microseconds, bar
                )
        finally:
            measured.close()
        self._follow(table)
        return table

    def use_tuning_table(self, table: TuningTable) -> None:
        """Uses the choices of a saved table. Collective: raises ValueError if the tables of the ranks differ.

        Raises ValueError also for a table of another topology, type, device or number of SMs.
        """
        self._demand_open()
        demand_equal(self._groups.backend, "the tuning table", table)
        description = self._description()
        on_all_ranks(self._groups.backend, lambda: table.demand_made_for(description), "the tuning table is not used")
        self._follow(table)

    def _follow(self, table: TuningTable) -> None:
        self._tuning_table = table
        self._look_again()

    def _description(self) -> tuple[tuple[str, str], ...]:
        device, driver_version = "CPU", "none"
        if self._gpu is not None:
            device, driver_version = Device(self.device.index).name, str(call("cuDriverGetVersion"))
        return description_of(self.para_info, str(self.dtype), device, self.grid_size, driver_version)

    def init_virtual_memory(self) -> None:
        """Does nothing: the constructor has mapped the workspaces. The method exists for programs that call it."""

    def init_nvshmem(self) -> None:
        """Initialises NVSHMEM with the ranks of this handler, through nvshmem4py and without multicast. Collective.

        Does so once per process; the caller finalises NVSHMEM. RuntimeError, with the reason, if it is not possible.
        """
        self._demand_open()
        if self._gpu is None:
            raise RuntimeError("NVSHMEM cannot be initialised: the handler is on the CPU")
        self._gpu.init_nvshmem()

    def empty(self, shape: int | Sequence[int], dtype: Any = None) -> Any:
        """A tensor in symmetric memory, which counts as mapped on all ranks. Communicates with nobody.

        shape: of the tensor, whose content is not set. dtype: the type; None: that of the handler.

        Its memory is given out again when the tensor is gone, as of torch's allocator: what uses it on another stream
        must be ordered by then. A graph that was being captured keeps it. Tensors may outlive the handler.
        RuntimeError if the handler was made without symmetric_bytes or is closed; MemoryError if there is no room.
        """
        arena = self._demand_gpu().arena
        if arena is None:
            raise RuntimeError("the handler has no symmetric memory: pass symmetric_bytes= to its constructor")
        dtype = self.dtype if dtype is None else dtype
        lengths = (shape,) if isinstance(shape, int) else shape
        sizes = [as_int(f"shape[{n}]", length, 0) for n, length in enumerate(lengths)]
        return arena.empty(sizes, dtype, element_of(dtype).bytes, self.device)

    def map_tensors(self, *tensors: Any) -> None:
        """Maps these tensors on all ranks, so that TWO_EXCHANGE and HIERARCHICAL do not stage them. Collective.

        Every rank passes the same number of tensors, in one order. Views of them count as mapped. A call does not stage
        if its input and its output are mapped on every rank. If they are mapped on some ranks only, the call ends in a
        CommFault of kind "mismatch", or "timeout" if no mode is given and the ranks choose different ones. The handler
        keeps the tensors alive. They must come from torch's allocator in its default setting.
        Raises RuntimeError if the handler is on the CPU or closed.
        """
        gpu = self._demand_gpu()

        def demand() -> None:
            for number, tensor in enumerate(tensors):
                self._messages.demand_tensor(f"tensor {number}", tensor)

        on_all_ranks(self._groups.backend, demand, "tensors cannot be mapped")
        gpu.map(self._groups.backend, [span(one) for one in tensors])
        self._look_again()
        self._mapped_storages += [(one.data_ptr(), one.untyped_storage()) for one in tensors]

    def unmap_tensors(self, *tensors: Any) -> None:
        """Unmaps tensors. Collective; waits for the calls of all ranks.

        tensors: the mapped tensors. Raises RuntimeError if the handler is on the CPU or closed.
        """
        gpu = self._demand_gpu()
        addresses = [one.data_ptr() for one in tensors]
        try:
            gpu.unmap(self._groups.backend, addresses)
        finally:
            self._look_again()
        for address in addresses:
            del self._mapped_storages[[one for one, _ in self._mapped_storages].index(address)]

    def checkpoint_prepare(self, *, lose_tensors: bool = False) -> None:
        """Releases the physical memory but keeps the addresses, so that captured graphs stay valid. Collective.

        lose_tensors: whether tensors of empty() may lose their content, which becomes zero. If not, RuntimeError on all
        ranks while there are any.

        A second call does nothing. NotImplementedError if nodes exchange through NVSHMEM, which does not support this.
        """
        if self._state is _State.RELEASED:
            return
        self._demand_open()
        gpu = self._gpu
        if gpu is not None:
            if gpu.cannot_release:
                raise NotImplementedError(f"the handler cannot release its memory: {gpu.cannot_release}")
            context = gpu.context

            def wait() -> None:
                context.sync()
                self.check()
                alive = 0 if gpu.arena is None else gpu.arena.alive
                if alive and not lose_tensors:
                    raise RuntimeError(
                        f"{alive} tensors of empty() would lose their content: delete them, or pass lose_tensors=True"
                    )

            on_all_ranks(self._groups.backend, wait, "memory cannot be released")
            gpu.release()
            self._groups.backend.barrier()
        self._become(_State.RELEASED)

    def checkpoint_restore(self, comm_backend: Any) -> None:
        """Maps new memory at the same addresses. Collective.

        comm_backend: a CommBackend, or a process group of torch.distributed. ValueError if its rank or size differs;
        the other ranks then raise RuntimeError.

        Does nothing if the memory is there. RuntimeError if the handler has failed or been shut down.
        """
        if self._state is not _State.RELEASED:
            self._demand_open()
            return
        backend = agreed_backend(comm_backend, self.para_info)
        if self._gpu is not None:
            self._gpu.restore(backend)
        self._groups.backend = backend
        self._become(_State.OPEN)

    def recover(self) -> None:
        """Makes the handler usable again after a fault. Collective: every rank calls it, whether it has a fault or not.

        Waits for the work of the devices of all ranks, at most `timeout_s` + 2 s, and discards what the ranks have sent
        to each other. Mapped tensors, tuning tables and captured graphs stay valid; outputs of unfinished calls do not.
        Do not begin calls or replays until it returns: they end at once, with NaN in their outputs.
        RuntimeError on all ranks if a rank is missing, its device has failed, or its work does not end in time. Nothing
        is discarded then: recover() can be called again, or shutdown().
        """
        if self._state is not _State.FAILED:
            self._demand_there()
        if self._gpu is not None:
            self._gpu.recover()
        else:
            self._groups.backend.barrier()
        self._become(_State.OPEN)

    def shutdown(self) -> None:
        """Waits for the calls of this rank, then for the other ranks unless one has failed, and frees everything.

        Each wait ends after `timeout_s`, but at least 60 s, with a ResourceWarning. If the work of the partition does
        not end by then, or another rank is missing, the memory stays mapped. Graphs that contain calls of the NCCL
        modes must be gone before: NCCL waits for them. A second call does nothing.
        """
        if self._state is _State.CLOSED:
            return
        before = self._state
        self._become(_State.CLOSED)
        failed, reason = before is _State.FAILED, ""
        gpu, self._gpu = self._gpu, None
        limit_s = self._arguments.host_limit_s
        try:
            if gpu is not None:
                with suppress(CUDAError):
                    wait_at_most(limit_s, gpu.context.sync, f"its work did not end within {limit_s:g} s")
                failed = failed or bool(gpu.fault)
            if not failed:
                barrier_within(self._groups.backend, limit_s)
        # The work goes on, a rank is missing, or torch.distributed is gone already.
        except (RuntimeError, ValueError) as error:
            failed, reason = True, str(error)
        # Another rank may still write to the memory of this one if not all ranks are here: it stays mapped.
        if failed:
            if reason:
                message = f"{self!r} was shut down, but keeps its memory mapped: {reason}"
                warnings.warn(message, ResourceWarning, stacklevel=2)
            return
        try:
            self._groups.destroy(self.para_info.world_rank, self.device, limit_s)
        except RuntimeError as error:
            warnings.warn(f"{self!r} was shut down, but {error}", ResourceWarning, stacklevel=2)
        if gpu is not None:
            gpu.close()
        self._mapped_storages.clear()
        self._captured.clear()

    def __enter__(self) -> MixedCommHandler:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # Frees nothing: other ranks may still use the memory, and asking them would block.
        if getattr(self, "_gpu", None) is not None:
            with suppress(Exception):
                warnings.warn(f"{self!r} was not shut down: its memory stays mapped", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        info = self.para_info
        return (
            f"<MixedCommHandler: rank {info.world_rank} of {info.world_size}, tp {info.tp_size} x dp {info.dp_size}, "
            f"{self._state.value.split(':')[0]}>"
        )


class _WithSupport(Protocol[P, R]):
    """A function, and whether it can run."""

    is_compute_capability_supported: Callable[[int], bool]
    """Whether the kernels support a compute capability: 90 stands for 9.0."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def _with_support(function: Callable[P, R]) -> _WithSupport[P, R]:
    found: Any = function
    found.is_compute_capability_supported = is_supported
    return cast("_WithSupport[P, R]", found)


@_with_support
def run_mixed_comm(
    op: MixedCommOp,
    handler: MixedCommHandler,
    x_in: Any,
    x_out: Any = None,
    mode: MixedCommMode | None = None,
    skip_check: bool = False,
    *,
    root: int | None = None,
) -> Any:
    """Runs an operation, and returns its output.

    Every rank calls it with inputs of one shape. On a GPU it returns at once, and the work runs on torch's current
    stream. op: the operation. handler: that of this rank. x_in: the input. x_out: the output; None: a new tensor.
    mode: None lets the handler choose. skip_check: skip the checks of device, type, layout and shape.
    root: the world rank whose input BROADCAST sends to all, the same on all ranks; ValueError for other operations.

    Example:

        import torch
        from cuda_gctx.comm import MixedCommOp, local_world, run_mixed_comm

        def work(rank):
            with rank.handler(torch.float32) as handler:
                return run_mixed_comm(MixedCommOp.ALLREDUCE, handler, torch.ones(4))[0].item()

        with local_world(2) as world:  # two ranks on the CPU
            print(world.run(work))  # [2.0, 2.0]
    """
    # torch.compile reads this function, and asks nothing of compiled ones.
    if handler._is_traced():
        return handler._as_node(handler._graph_state, handler._number, op, x_in, x_out, mode, root)
    done = handler._known(op, x_in, x_out, mode, root, skip_check)
    if done is not None:
        return done
    # An export calls with tensors of a class of its own, which are in no call that is known.
    if handler._is_compiling():
        return handler._as_node(handler._graph_state, handler._number, op, x_in, x_out, mode, root)
    return handler._run_first(op, x_in, x_out, mode, root, is_checked=skip_check)
