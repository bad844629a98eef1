"""The groups of ranks in which a handler communicates on the host, and those of torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from importlib import import_module
from typing import Any

from cuda_gctx.comm._arguments import Arguments
from cuda_gctx.comm._backends import (
    CommBackend,
    LocalBackend,
    TorchBackend,
    Within,
    as_backend,
    on_all_ranks,
    wait_at_most,
)
from cuda_gctx.comm._protocol import Element
from cuda_gctx.comm._topology import MixedCommMode, ParallelInfo

__all__ = ["Groups", "agreed_backend", "demand_place"]


def agreed_backend(given: Any, info: ParallelInfo) -> CommBackend:
    """The backend that all ranks were given, each its own end of it. Collective.

    ValueError if rank or size is not that of the handler, and RuntimeError on the other ranks. These cannot be told of
    another size: a backend of other ranks does not reach them.
    """
    backend = as_backend(given)
    if backend.Get_size() != info.world_size:
        demand_place(backend, info)
    on_all_ranks(backend, lambda: demand_place(backend, info), "the backend is not that of the handler")
    return backend


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
        self.inter: Any = None  # of equal local ranks, for tensors on the CPU
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
        if info.use_inter and not arguments.is_on_gpu:
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

    def has_nccl(self, arguments: Arguments) -> bool:
        """Whether the group of all ranks communicates through NCCL."""
        return self.world is not None and self._is_nccl(self.world, arguments)

    def nccl_modes(self, arguments: Arguments) -> list[MixedCommMode]:
        """Those that the groups can run. Not every NCCL sums numbers of eight bits."""
        is_summed = arguments.element is not Element.FLOAT8_E4M3FN
        if not is_summed or not self.has_nccl(arguments):
            return []
        both = arguments.info.use_mixed and not any(isinstance(one, Within) for one in (self.tp, self.dp))
        return [MixedCommMode.NCCL_ONE, *([MixedCommMode.NCCL_TP_DP] if both else [])]

    def destroy(self, rank: int, device: Any, seconds: float) -> None:
        """Those of torch that this rank is in, in one order on all ranks; that of the host is the last.

        RuntimeError after a time: NCCL waits for the graphs that contain its calls, without a limit.
        """
        made, self._made = self._made, {}
        distributed: Any = import_module("torch.distributed") if made else None

        def work() -> None:
            with import_module("torch").cuda.device(device) if device.type == "cuda" else nullcontext():
                for ranks in sorted(made, reverse=True):
                    if not ranks or rank in ranks:
                        distributed.destroy_process_group(made[ranks])

        if made:
            wait_at_most(
                seconds,
                work,
                f"its groups were not destroyed in {seconds:.0f} s: NCCL waits for the graphs that contain its calls. "
                "Delete these before shutdown()",
            )
