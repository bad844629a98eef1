"""The operations in torch: the exact values, and the forms of two collectives, of one, and by nodes.

Sums are taken in fp32 in the order of the ranks and rounded once per exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx.comm._backends import CommBackend, gather
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp, ParallelInfo, checked_root
from cuda_gctx.extending import as_bool, as_int

__all__ = ["exchange_by_nodes", "exchange_on_cpu", "exchange_with_nccl", "expected", "rounded_sum"]

Tensor = Any
# Of the types of which no number is infinite: a sum that is larger becomes the largest number.
LARGEST_FINITE = {"torch.float8_e4m3fn": 448.0}


@cache
def _torch() -> Any:
    return import_module("torch")


def rounded_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum in fp32, in the given order, rounded once. A single tensor is returned unchanged, bit for bit."""
    first, *others = tensors
    if not others:
        return first
    total = first.float()
    for one in others:
        total = total + one.float()
    limit = LARGEST_FINITE.get(str(first.dtype))
    return (total if limit is None else total.clamp(-limit, limit)).to(first.dtype)


def _chunk(info: ParallelInfo, tensor: Tensor) -> Tensor:
    return tensor.chunk(info.dp_size)[info.dp_rank]


def expected(
    info: ParallelInfo,
    op: MixedCommOp,
    inputs: Sequence[Tensor],
    exchanges: int = 1,
    *,
    by_nodes: bool = False,
    root: int | None = None,
) -> Tensor:
    """The output of a rank for the inputs of all ranks, in the order of the world ranks.

    info: the place of the rank. op: the operation. inputs: the inputs of all ranks.
    exchanges: how often a sum is rounded: 2 for REDUCESCATTER_ALLREDUCE in two collectives, which round the sum over
    each dp group and then the sum of those. by_nodes: round as HIERARCHICAL does, the sum over each node and then the
    sum of those. ONE_EXCHANGE and TWO_EXCHANGE round once.
    root: the world rank whose input BROADCAST brings to all; None for other operations.

    Raises ValueError unless there is an input of the same shape for each rank.
    """
    exchanges, by_nodes = as_int("exchanges", exchanges, 1, 2), as_bool("by_nodes", by_nodes)
    root = checked_root(info, op, root)
    if len(inputs) != info.world_size:
        raise ValueError(f"expected {info.world_size} inputs, one for each rank, not {len(inputs)}")
    demand_same_shape([tuple(tensor.shape) for tensor in inputs])
    info.output_shape(op, inputs[0].shape)
    if root is not None:
        return inputs[root]
    if op is MixedCommOp.REDUCESCATTER_ALLREDUCE and exchanges == 2:
        halves = [
            rounded_sum([_chunk(info, inputs[rank]) for rank in info.dp_ranks(tp_rank)])
            for tp_rank in range(info.tp_size)
        ]
        return rounded_sum(halves)
    blocks = [[inputs[rank] for rank in block] for block in info.plan(op).blocks]
    if op.divides:
        blocks = [[_chunk(info, one) for one in block] for block in blocks]
    if by_nodes:
        world_ranks = info.plan(op).blocks
        blocks = [
            [rounded_sum(list(of_node)) for of_node in _by_node(info, ranks, block)]
            for ranks, block in zip(world_ranks, blocks, strict=True)
        ]
    sums = [rounded_sum(block) for block in blocks]
    return _torch().cat(sums) if len(sums) > 1 else sums[0]


def _by_node(info: ParallelInfo, ranks: Sequence[int], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors of some ranks in lists, one for each of their nodes, in the order of the ranks."""
    nodes: dict[int, list[Tensor]] = {}
    for rank, tensor in zip(ranks, tensors, strict=True):
        nodes.setdefault(rank // info.local_size, []).append(tensor)
    return list(nodes.values())


def demand_same_shape(shapes: Sequence[Sequence[int]]) -> None:
    """Raises ValueError with the ranks whose shape differs from that of the first rank."""
    other = [rank for rank, shape in enumerate(shapes) if tuple(shape) != tuple(shapes[0])]
    if other:
        found = ", ".join(f"rank {rank}: {list(shapes[rank])}" for rank in (0, *other))
        raise ValueError(f"all ranks must pass inputs of the same shape; found {found}")


def _viewed(value: Any, dtype: Any) -> Any:
    """A tensor, or tensors in a list or in a dict, as those of another type of the same size."""
    if isinstance(value, list):
        return [_viewed(one, dtype) for one in value]
    if isinstance(value, dict):
        return {key: _viewed(one, dtype) for key, one in value.items()}
    return value.view(dtype)


def _gather(backend: CommBackend, value: Any, dtype: Any) -> list[Any]:
    """Tensors of all ranks. Those of eight bits go as bytes: torch.distributed does not get them out of its pickles."""
    if dtype.itemsize > 1:
        return gather(backend, value)
    return [_viewed(one, dtype) for one in gather(backend, _viewed(value, _torch().uint8))]


def exchange_on_cpu(
    info: ParallelInfo,
    op: MixedCommOp,
    x_in: Tensor,
    world: CommBackend,
    tp_group: CommBackend,
    dp_group: CommBackend,
    root: int | None = None,
) -> Tensor:
    """Two collectives, one for each axis, of gathers and of sums that are exact in fp32; a broadcast is one of all."""
    _demand_same_call(info, op, MixedCommMode.GLOO, x_in, world, root)
    if root is not None:
        as_bytes = _viewed(x_in, _torch().uint8) if info.world_rank == root else None
        return _viewed(world.bcast(as_bytes, root), x_in.dtype)
    if op is MixedCommOp.ALLTOALL:
        return _torch().cat([_chunk(info, one) for one in _gather(dp_group, x_in, x_in.dtype)])
    if op.scatters:
        mine = rounded_sum([_chunk(info, one) for one in _gather(dp_group, x_in, x_in.dtype)])
        return rounded_sum(_gather(tp_group, mine, x_in.dtype))
    total = rounded_sum(_gather(tp_group, x_in, x_in.dtype))
    return _torch().cat(_gather(dp_group, total, x_in.dtype)) if op.gathers else total


def exchange_by_nodes(
    info: ParallelInfo, op: MixedCommOp, x_in: Tensor, world: CommBackend, local: CommBackend, inter: CommBackend
) -> Tensor:
    """Sums within each node, exchanges the sums between nodes, and distributes the results within each node.

    local: the ranks of this node; inter: the ranks with this local rank. Shares are left out: a rank sums whole blocks.
    """
    _demand_same_call(info, op, MixedCommMode.HIERARCHICAL, x_in, world)
    plan = info.node_plan(op)
    inputs = _gather(local, x_in, x_in.dtype)
    pieces = [
        rounded_sum([inputs[rank].chunk(info.dp_size)[chunk] if op.scatters else inputs[rank] for rank in plan.sources])
        for chunk in plan.chunks
    ]
    # For each node, what its rank sends to this one.
    received = [theirs[plan.chunk_of_node[info.inter_rank]] for theirs in _gather(inter, pieces, x_in.dtype)]
    sums = {block: rounded_sum([received[node] for node in nodes]) for nodes, block in plan.sums}
    if op.scatters:
        return sums[0]
    blocks: dict[int, Tensor] = {}
    for theirs in _gather(local, sums, x_in.dtype):
        blocks |= theirs
    return _torch().cat([blocks[block] for block in sorted(blocks)])


def _demand_same_call(
    info: ParallelInfo, op: MixedCommOp, mode: MixedCommMode, x_in: Tensor, world: CommBackend, root: int | None = None
) -> None:
    of_root = "" if root is None else f" from rank {root}"
    calls = gather(world, (f"{MixedCommOp(op).name} {mode.name} of {x_in.dtype}{of_root}", tuple(x_in.shape)))
    if len({call for call, _ in calls}) > 1:
        found = ", ".join(f"rank {rank}: {call}" for rank, (call, _) in enumerate(calls))
        raise ValueError(f"all ranks must call the same operation and mode with the same dtype and root; found {found}")
    demand_same_shape([shape for _, shape in calls])
    info.output_shape(op, x_in.shape)


def exchange_with_nccl(
    info: ParallelInfo,
    op: MixedCommOp,
    mode: MixedCommMode,
    x_in: Tensor,
    x_out: Tensor,
    world: Any,
    tp_group: Any,
    dp_group: Any,
    root: int | None = None,
) -> None:
    """Calls collectives of torch.distributed on its groups: one of the world, or one for each axis.

    NCCL chooses the order of sums and their roundings.
    """
    distributed: Any = import_module("torch.distributed")
    if op is MixedCommOp.ALLREDUCE:
        x_out.copy_(x_in)
        distributed.all_reduce(x_out, group=tp_group)
    elif op is MixedCommOp.ALLGATHER:
        distributed.all_gather_into_tensor(x_out, x_in, group=dp_group)
    elif op is MixedCommOp.REDUCESCATTER:
        distributed.reduce_scatter_tensor(x_out, x_in, group=dp_group)
    elif op is MixedCommOp.ALLTOALL:
        distributed.all_to_all_single(x_out, x_in, group=dp_group)
    elif root is not None:
        if info.world_rank == root:
            x_out.copy_(x_in)
        source = root if world is None else distributed.get_global_rank(world, root)
        distributed.broadcast(x_out, src=source, group=world)
    elif op is MixedCommOp.ALLREDUCE_ALLGATHER and mode is MixedCommMode.NCCL_ONE:
        everything = x_in.new_empty((info.world_size * x_in.shape[0], *x_in.shape[1:]))
        distributed.all_gather_into_tensor(everything, x_in, group=world)
        inputs = everything.chunk(info.world_size)
        blocks = info.plan(op).blocks
        for rows, block in zip(x_out.chunk(len(blocks)), blocks, strict=True):
            rows.copy_(rounded_sum([inputs[rank] for rank in block]))
    elif op is MixedCommOp.ALLREDUCE_ALLGATHER:
        total = x_in.clone()
        distributed.all_reduce(total, group=tp_group)
        distributed.all_gather_into_tensor(x_out, total, group=dp_group)
    elif mode is MixedCommMode.NCCL_ONE:
        total = x_in.clone()
        distributed.all_reduce(total, group=world)
        x_out.copy_(_chunk(info, total))
    else:
        distributed.reduce_scatter_tensor(x_out, x_in, group=dp_group)
        distributed.all_reduce(x_out, group=tp_group)
