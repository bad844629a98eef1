"""The order in which ranks start collectives: equal on ranks that share groups, and each group in one partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib import import_module
from itertools import combinations, groupby
from typing import Any, NamedTuple

from cuda_gctx._core.extension import Stream, as_seconds
from cuda_gctx.interop._frameworks import load
from cuda_gctx.interop.agreement import MINIMUM, RanksDifferError

__all__ = ["launch_order"]

# What torch.distributed calls, and the functional collectives of compiled code.
_NAMESPACES = ("c10d", "_c10d_functional")
_BOXED_GROUP = "__torch__.torch.classes.c10d.ProcessGroup"


# The operations between two ranks, with the place of the other rank's number in the group among their arguments.
_SEND, _RECEIVE, _RECEIVE_ANY, _PEER = "send", "recv", "recv_any_source", 2


class Launch(NamedTuple):
    """A collective, or a transfer: the name of its group, the ranks that take part, and the operation.

    is_transfer: whether one rank sends and another one receives. Both name the operation alike.
    """

    group: str
    ranks: tuple[int, ...]
    operation: str
    is_transfer: bool = False


def _group_of(torch: Any, arguments: Sequence[Any]) -> Any:
    """The group among the arguments of a collective; None if there is none."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and str(argument._type()) == _BOXED_GROUP:
            return torch.distributed.ProcessGroup.unbox(argument)
    names = [argument for argument in arguments if isinstance(argument, str)]
    return torch.distributed.distributed_c10d._resolve_process_group(names[-1]) if names else None


def launch_of(name: str, ranks: tuple[int, ...], operation: str, args: Sequence[Any], own: int) -> Launch:
    """A launch of this rank. What one rank sends and another one receives is the same transfer for both."""
    if operation == _RECEIVE_ANY:
        return Launch(name, (own,), f"a transfer to rank {own}", True)
    if operation not in (_SEND, _RECEIVE):
        return Launch(name, ranks, operation)
    peer = ranks[args[_PEER]]
    source, target = (own, peer) if operation == _SEND else (peer, own)
    return Launch(name, tuple(sorted((own, peer))), f"a transfer from rank {source} to {target}", True)


@cache
def _recorder(torch: Any) -> Any:
    dispatch: Any = import_module("torch.utils._python_dispatch")

    class Recorder(dispatch.TorchDispatchMode):  # type: ignore[misc]
        """Records the collectives of a thread, and raises an error if a group is used in a second context."""

        def __init__(self) -> None:
            super().__init__()
            self.launches: list[Launch] = []
            self.contexts: dict[str, Any] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in _NAMESPACES:
                group = _group_of(torch, args)
                if group is not None:
                    self._note(group, func._opname.strip("_"), args)
            return func(*args, **(kwargs or {}))

        def _note(self, group: Any, operation: str, args: Any) -> None:
            name = group.group_name
            if torch.cuda.is_initialized():
                context = Stream(torch.cuda.current_stream()).context
                first = self.contexts.setdefault(name, context)
                if context != first:
                    raise RuntimeError(
                        f"group {name} is used in {first!r} and in {context!r}: its collectives can deadlock if they "
                        "run concurrently; create one group for each partition with new_group(part)"
                    )
            ranks = tuple(torch.distributed.get_process_group_ranks(group))
            self.launches.append(launch_of(name, ranks, operation, args, torch.distributed.get_rank()))

    return Recorder


def _in_order(launches: Iterable[Launch]) -> list[Launch]:
    """The launches, with successive transfers in any order: they may be of one batch, which starts them at once."""
    found: list[Launch] = []
    for is_transfer, run in groupby(launches, key=lambda launch: launch.is_transfer):
        same = list(run)
        found += sorted(same) if is_transfer else same
    return found


def first_difference(launches: Sequence[Sequence[Launch]]) -> str:
    """The first difference between the collectives of two ranks, in the groups of both; "" if there is none."""
    # Who sends to a rank that receives from any one is not known: such transfers are not compared.
    from_any = {(one.group, rank) for rank, found in enumerate(launches) for one in found if one.ranks == (rank,)}
    for one, other in combinations(range(len(launches)), 2):
        ours, theirs = (
            _in_order(
                launch
                for launch in launches[rank]
                if {one, other} <= set(launch.ranks)
                and not (launch.is_transfer and {(launch.group, one), (launch.group, other)} & from_any)
            )
            for rank in (one, other)
        )
        for place in range(max(len(ours), len(theirs))):
            said = [
                f"{found[place].operation} of group {found[place].group}" if place < len(found) else "none"
                for found in (ours, theirs)
            ]
            if said[0] != said[1]:
                return f"collective {place + 1} is {said[0]} on rank {one} and {said[1]} on rank {other}"
    return ""


@contextmanager
def launch_order(timeout: float = 60) -> Iterator[None]:
    """A ``with`` block that compares the order in which the ranks start collectives. Put it around a step or two.

    At its end, all ranks raise the same RanksDifferError if two of them start the collectives of their common groups in
    different orders: such a program can deadlock, in partitions too, even if it has not done so yet. Inside, a
    collective raises RuntimeError instead of its launch if its group was used in another context before.

    timeout: the seconds for which a rank waits for the others at the end, if one of them has failed or hangs.

    What one rank sends and another one receives is the same transfer. Successive transfers may have any order.

    Every rank of torch.distributed must enter the block. It records the collectives of its thread, including those in
    code from torch.compile, and makes each operation of torch slower. RuntimeError if no rank has recorded any.
    """
    limit = timedelta(seconds=as_seconds("timeout", timeout))
    torch = load("torch", "torch", MINIMUM)
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError("launch_order() compares the ranks of torch.distributed: call init_process_group() first")
    hosts = distributed.new_group(backend="gloo", timeout=limit)  # waits for no device
    try:
        with _recorder(torch)() as recorder:
            yield
        launches: list[Any] = [None] * distributed.get_world_size(hosts)
        distributed.all_gather_object(launches, recorder.launches, group=hosts)
    finally:
        distributed.destroy_process_group(hosts)
    if not any(launches):
        raise RuntimeError(
            "launch_order() has recorded no collective on any rank: it records the collectives of its block's thread; "
            "call them there, or put a block into each thread, one after the other"
        )
    difference = first_difference(launches)
    if difference:
        raise RanksDifferError(f"the ranks start collectives in different orders: {difference}")
