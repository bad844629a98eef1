"""A world of ranks in one process: threads, each with its own partition of a GPU, or on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from cuda_gctx import Device, Partition
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._handler import MixedCommHandler
from cuda_gctx.extending import as_int, as_seconds

__all__ = ["LocalRank", "LocalWorld", "local_world"]

Result = TypeVar("Result")


class LocalRank:
    """One rank of a local world.

    rank, size: its number, and the number of ranks. device: its GPU, None on the CPU. partition: the partition for its
    kernels, None on the CPU. backend: its connection to the other ranks on the host.
    """

    def __init__(self, device: Device | None, partition: Partition | None, backend: LocalBackend) -> None:
        self.rank = backend.Get_rank()
        self.size = backend.Get_size()
        self.device = device
        self.partition = partition
        self.backend = backend

    def handler(
        self,
        dtype: Any,
        *,
        nodes: int = 1,
        local_tp_size: int | None = None,
        local_dp_size: int | None = None,
        inter_tp_size: int | None = None,
        inter_dp_size: int | None = None,
        **options: Any,
    ) -> MixedCommHandler:
        """Create the handler of this rank. All ranks of the world do so at the same time.

        dtype: the type of the elements, as for MixedCommHandler.
        nodes: the number of nodes into which the ranks are divided.
        local_tp_size, local_dp_size, inter_tp_size, inter_dp_size: as for MixedCommHandler.
        options: those of MixedCommHandler; nodes exchange by peer access, because threads cannot be ranks of NVSHMEM.

        Raises ValueError if this division of the ranks is not possible.
        """
        nodes = as_int("nodes", nodes, 1)
        if self.size % nodes:
            raise ValueError(f"{self.size} ranks cannot be divided into {nodes} nodes of equal size")
        local_size = self.size // nodes
        inter_rank, local_rank = divmod(self.rank, local_size)
        device = "cpu" if self.device is None else f"cuda:{self.device.device_id}"
        return MixedCommHandler(
            self.rank,
            self.size,
            local_rank,
            local_size,
            inter_rank,
            nodes,
            local_tp_size,
            local_dp_size,
            inter_tp_size,
            inter_dp_size,
            dtype,
            device,
            partition=self.partition,
            comm_backend=self.backend,
            **{"transport": "peers", **options},
        )

    def __repr__(self) -> str:
        where = "the CPU" if self.partition is None else f"{self.partition.sm_count} SMs"
        return f"<LocalRank {self.rank} of {self.size} on {where}>"


class LocalWorld:
    """The ranks of a world in one process. Close it, or use it in a ``with`` block.

    backgrounds: for each device, the partition of the remaining SMs; None if there are none.
    """

    def __init__(
        self, ranks: Sequence[LocalRank], partitions: ExitStack, backgrounds: Sequence[Partition | None]
    ) -> None:
        self.ranks = tuple(ranks)
        self.backgrounds = tuple(backgrounds)
        self._partitions = partitions

    def run(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """Calls ``function(rank, *arguments)`` on one thread for each rank, concurrently; returns the results.

        If ranks raise exceptions, raises the first one, because others may follow from it. The world cannot be used
        after that, because ranks may have stopped at different places.
        """
        results: list[Any] = [None] * len(self.ranks)
        failures: list[tuple[int, BaseException]] = []

        def work(rank: LocalRank) -> None:
            try:
                results[rank.rank] = function(rank, *arguments)
            except BaseException as error:
                failures.append((rank.rank, error))
                rank.backend.abort()

        threads = [
            threading.Thread(target=work, args=(rank,), name=f"rank {rank.rank}", daemon=True) for rank in self.ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0][1]
        return results

    def close(self) -> None:
        """Closes the partitions of all ranks. Shut down the handlers first."""
        self._partitions.close()

    def __enter__(self) -> LocalWorld:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<LocalWorld of {len(self)} ranks>"


def local_world(
    size: int, device: Device | Sequence[Device] | None = None, *, sms: int | None = None, timeout_s: float = 60.0
) -> LocalWorld:
    """Create a world of `size` ranks in this process, for tests and for several models that share one GPU.

    device: the GPU whose SMs the ranks share, or several GPUs, each with the same number of ranks, in order; None: the
    ranks are on the CPU. sms: the number of SMs of each rank; None: an equal share. timeout_s: how long ranks wait for
    each other on the host.

    Raises ValueError if the ranks cannot be divided equally among the devices, and SplitError if there are too few SMs.
    """
    size, timeout_s = as_int("size", size, 1), as_seconds("timeout_s", timeout_s)
    sms = None if sms is None else as_int("sms", sms, 1)
    backends = LocalBackend.of(size, timeout_s)
    with ExitStack() as undo:
        places: list[tuple[Device | None, Partition | None]] = [(None, None)] * size
        backgrounds: list[Partition | None] = []
        if device is None:
            if sms is not None:
                raise ValueError("ranks on the CPU have no SMs: pass a device, or omit sms")
        else:
            devices = [device] if isinstance(device, Device) else list(device)
            if not devices or size % len(devices):
                raise ValueError(f"{size} ranks cannot be divided equally among {len(devices)} devices")
            places = []
            for gpu in devices:
                on_it = size // len(devices)
                grain = gpu.resources.sm.coscheduled_alignment
                share = gpu.sm_count // on_it // grain * grain if sms is None else sms
                parts = undo.enter_context(gpu.partition(*[share] * on_it))
                places += [(gpu, parts[number]) for number in range(on_it)]
                backgrounds.append(getattr(parts, "background", None))
        ranks = [LocalRank(*place, backend) for place, backend in zip(places, backends, strict=True)]
        return LocalWorld(ranks, undo.pop_all(), backgrounds)
