"""How ranks communicate on the host: the protocol of a backend, torch.distributed, and ranks that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, Protocol, TypeVar

__all__ = [
    "CommBackend",
    "LocalBackend",
    "TorchBackend",
    "Within",
    "as_backend",
    "barrier_within",
    "demand_all_equal",
    "demand_equal",
    "gather",
    "gather_results",
    "on_all_ranks",
    "wait_at_most",
]

Value = TypeVar("Value")


class CommBackend(Protocol):
    """Connects the ranks on the host. Communicators of mpi4py are such backends."""

    def Get_rank(self) -> int:
        """The number of this rank."""

    def Get_size(self) -> int:
        """The number of ranks."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The object of one rank, on every rank.

        obj: the object, on the rank that has it. root: the number of that rank.
        """

    def barrier(self) -> None:
        """Wait until every rank has called it."""


def as_backend(group: Any) -> CommBackend:
    """A backend as it is, and a process group of torch.distributed as one."""
    return group if hasattr(group, "Get_rank") else TorchBackend(group)


def gather(backend: CommBackend, value: Value) -> list[Value]:
    """The values of all ranks, in the order of the ranks, on each of them."""
    together = getattr(backend, "gather_to_all", None)
    if together is not None:
        values: list[Value] = together(value)
        return values
    return [backend.bcast(value, root) for root in range(backend.Get_size())]


def gather_results(
    backend: CommBackend, work: Callable[[], Any], errors: tuple[type[Exception], ...], problem: str
) -> list[Any]:
    """The results of `work` on each rank, which must not be strings; RuntimeError on all ranks if it fails on one."""
    result: Any
    try:
        result = work()
    except errors as error:
        result = str(error) or type(error).__name__
    results = gather(backend, result)
    failed = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, str)]
    if failed:
        raise RuntimeError(f"{problem}: {'; '.join(failed)}")
    return results


def on_all_ranks(backend: CommBackend, work: Callable[[], Value], problem: str) -> Value:
    """The result of `work`, which communicates with nobody. An error of it is also an error on all other ranks.

    There it is a RuntimeError, with the rank and its message.
    """
    error: Exception | None = None
    try:
        result = work()
    except Exception as raised:
        error = raised
    errors = gather(backend, None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(errors) if text is not None]
    if failed:
        raise RuntimeError(f"{problem}: {'; '.join(failed)}")
    return result


def wait_at_most(seconds: float, work: Callable[[], object], too_late: str) -> None:
    """Runs a wait on the host that has no time limit of its own. RuntimeError(too_late) after a time.

    A thread waits, and ends with the work.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise RuntimeError(too_late)
    for error in errors:
        raise error


def barrier_within(backend: CommBackend, seconds: float) -> None:
    """A barrier; RuntimeError after a time."""
    limited = getattr(backend, "barrier_within", None)
    if limited is None:
        wait_at_most(seconds, backend.barrier, f"the other ranks did not come within {seconds:g} s")
    else:
        limited(seconds)


def demand_equal(backend: CommBackend, what: str, value: object) -> None:
    """ValueError on every rank if a value is not the same on all."""
    demand_all_equal(backend, {what: value})


def demand_all_equal(backend: CommBackend, values: dict[str, object]) -> None:
    """The same for several values at once; all ranks have the same names."""
    of_ranks = gather(backend, values)
    for what, value in of_ranks[0].items():
        if any(one[what] != value for one in of_ranks):
            found = ", ".join(f"rank {rank}: {one[what]}" for rank, one in enumerate(of_ranks))
            raise ValueError(f"{what} must be the same on all ranks; found {found}")


class TorchBackend:
    """A process group of torch.distributed; None: the default one."""

    def __init__(self, group: Any = None) -> None:
        self._distributed: Any = import_module("torch.distributed")
        self._group = group

    def Get_rank(self) -> int:
        return int(self._distributed.get_rank(self._group))

    def Get_size(self) -> int:
        return int(self._distributed.get_world_size(self._group))

    @property
    def group(self) -> Any:
        """The process group."""
        return self._distributed.group.WORLD if self._group is None else self._group

    def bcast(self, obj: Any, root: int = 0) -> Any:
        box = [obj]
        source = root if self._group is None else self._distributed.get_global_rank(self._group, root)
        self._distributed.broadcast_object_list(box, src=source, group=self._group)
        return box[0]

    def barrier(self) -> None:
        self._distributed.barrier(self._group)

    def barrier_within(self, seconds: float) -> None:
        if self._distributed.get_backend(self._group) == "gloo":
            self._distributed.monitored_barrier(self._group, timeout=timedelta(seconds=seconds))
            return
        cuda = import_module("torch").cuda
        device = cuda.current_device() if cuda.is_initialized() else None

        def barrier() -> None:
            # NCCL uses the current device of the thread.
            with cuda.device(device):
                self.barrier()

        wait_at_most(seconds, barrier, f"the other ranks did not come within {seconds:g} s")

    def gather_to_all(self, value: Any) -> list[Any]:
        values = [None] * self.Get_size()
        self._distributed.all_gather_object(values, value, group=self._group)
        return values


class Within:
    """Some ranks of a backend, for its gathers: all ranks call them at the same time, each with its own group."""

    def __init__(self, backend: Callable[[], CommBackend], ranks: Sequence[int]) -> None:
        """backend: returns that of all ranks, which a checkpoint may replace."""
        self._backend = backend
        self._ranks = tuple(ranks)

    def Get_rank(self) -> int:
        return self._ranks.index(self._backend().Get_rank())

    def Get_size(self) -> int:
        return len(self._ranks)

    def barrier(self) -> None:
        self._backend().barrier()

    def gather_to_all(self, value: Any) -> list[Any]:
        values = gather(self._backend(), value)
        return [values[rank] for rank in self._ranks]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.gather_to_all(obj)[root]


class _Meeting:
    """The meeting point of the threads of a group."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size


class LocalBackend:
    """Ranks that are threads of one process. A rank that fails, or is missing, is an error on all others."""

    def __init__(self, meeting: _Meeting, rank: int, timeout_s: float) -> None:
        self._meeting = meeting
        self._rank = rank
        self._timeout_s = timeout_s

    @classmethod
    def of(cls, size: int, timeout_s: float) -> tuple[LocalBackend, ...]:
        """One for each rank of a new group."""
        meeting = _Meeting(size)
        return tuple(cls(meeting, rank, timeout_s) for rank in range(size))

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._meeting.values)

    def barrier(self) -> None:
        self.barrier_within(self._timeout_s)

    def barrier_within(self, seconds: float) -> None:
        seconds = min(seconds, self._timeout_s)
        try:
            self._meeting.barrier.wait(seconds)
        except threading.BrokenBarrierError:
            raise RuntimeError(
                f"rank {self._rank} waited for the other ranks: one has failed, or was missing for {seconds} s"
            ) from None

    def gather_to_all(self, value: Any) -> list[Any]:
        self._meeting.values[self._rank] = value
        self.barrier()
        values = list(self._meeting.values)
        # No rank writes its next value before all ranks have read this one.
        self.barrier()
        return values

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.gather_to_all(obj)[root]

    def subgroup(self, ranks: Sequence[int]) -> LocalBackend:
        """A group of some ranks. Every rank calls it, with the ranks of the group that it is in."""
        first = ranks[0] == self._rank
        groups = self.gather_to_all(LocalBackend.of(len(ranks), self._timeout_s) if first else None)
        mine: LocalBackend = groups[ranks[0]][list(ranks).index(self._rank)]
        return mine

    def abort(self) -> None:
        """Makes every rank that waits, now or later, fail."""
        self._meeting.barrier.abort()
