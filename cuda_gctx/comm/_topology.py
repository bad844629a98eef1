"""The place of a rank and its work in an operation: ranks, groups, shapes, byte counts. Needs no GPU and no framework.

Tensor parallelism (tp) is the fast axis, both among the ranks of a node and among the nodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import EnumMeta, IntEnum
from functools import cache
from itertools import groupby
from typing import Any

from cuda_gctx.extending import as_int

__all__ = [
    "MixedCommMode",
    "MixedCommOp",
    "NodePlan",
    "ParallelInfo",
    "Plan",
    "checked_root",
    "on_hosts",
    "say_that_there_is_no_multicast",
]


class MixedCommOp(IntEnum):
    """The operation. ``n`` is the first dimension of the input, ``dp`` the size of the data-parallel group.

    ALLREDUCE: [n, ..] -> [n, ..], the sum over the world.
    ALLGATHER: [n, ..] -> [n * dp, ..], the inputs in the order of the dp ranks.
    REDUCESCATTER: [n, ..] -> [n / dp, ..], chunk ``dp_rank`` of the sum over the world.
    ALLREDUCE_ALLGATHER: [n, ..] -> [n * dp, ..], the sums over each tp group in the order of the dp ranks.
    REDUCESCATTER_ALLREDUCE: [n, ..] -> [n / dp, ..], chunk ``dp_rank`` of the sum over the world.
    ALLTOALL: [n, ..] -> [n, ..], chunk ``dp_rank`` of each input, in the order of the dp ranks. It can be called where
    ALLGATHER is valid.
    BROADCAST: [n, ..] -> [n, ..], the input of one rank of the world, the root.

    ALLTOALL and BROADCAST are not in the lists of valid operations: these contain only operations that all modes in the
    list of valid modes compute.
    """

    ALLREDUCE = 0
    ALLGATHER = 1
    REDUCESCATTER = 2
    ALLREDUCE_ALLGATHER = 3
    REDUCESCATTER_ALLREDUCE = 4
    ALLTOALL = 5
    BROADCAST = 6

    @property
    def gathers(self) -> bool:
        """The output has ``dp`` times as many rows as the input."""
        return self in (MixedCommOp.ALLGATHER, MixedCommOp.ALLREDUCE_ALLGATHER)

    @property
    def scatters(self) -> bool:
        """The input has ``dp`` times as many rows as the output."""
        return self in (MixedCommOp.REDUCESCATTER, MixedCommOp.REDUCESCATTER_ALLREDUCE)

    @property
    def divides(self) -> bool:
        """Each dp rank gets a separate chunk of the input."""
        return self.scatters or self is MixedCommOp.ALLTOALL


@cache
def say_that_there_is_no_multicast() -> None:
    message = "modes with multicast are run by the same kernels as those without: this package uses no multicast"
    warnings.warn(message, UserWarning, stacklevel=4)


class _Modes(EnumMeta):
    """The modes, and FlashInfer's names for forms with multicast."""

    def __getattr__(cls, name: str) -> Any:
        without = name.removesuffix("_MC") + "_UC"
        if name.startswith("FUSED_") and name.endswith("_MC") and without in cls.__members__:
            say_that_there_is_no_multicast()
            return cls.__members__[without]
        if name in cls.__members__:
            return cls.__members__[name]
        raise AttributeError(f"{cls.__name__} has no mode {name}")


class MixedCommMode(IntEnum, metaclass=_Modes):
    """The way in which an operation is computed.

    ONE_EXCHANGE: one kernel sends every input to each rank that needs it; for small messages.
    TWO_EXCHANGE: one kernel, in which each rank sums a share and sends the sum to others; for large messages.
    HIERARCHICAL: each node sums, the nodes exchange the sums, each node distributes the result; for several nodes.
    NCCL_ONE: one collective of NCCL, with a local operation before or after it.
    NCCL_TP_DP: two collectives of NCCL, one for each axis.
    GLOO: tensors on the CPU, exchanged through gloo or through the ranks' own backend.
    COPY_ENGINES: all-gathers, all-to-alls and broadcasts by copies between devices. Each rank runs a kernel of one
    block, only to meet the others.
    AUTOTUNE: the fastest mode in the measurements of ``run_autotune()``; before that, a choice by the size.
    """

    ONE_EXCHANGE = 0
    TWO_EXCHANGE = 1
    HIERARCHICAL = 2
    NCCL_ONE = 3
    NCCL_TP_DP = 4
    GLOO = 5
    AUTOTUNE = 6
    COPY_ENGINES = 7
    # FlashInfer's names.
    FUSED_OPT_WAITS_UC = 0
    FUSED_OPT_BYTES1_UC = 1
    FUSED_OPT_BYTES2_UC = 2


@dataclass(frozen=True)
class Plan:
    """The work of one rank in an operation, the same for the kernels and for the references.

    blocks: the output consists of this many equal blocks. Each is the sum over the listed world ranks, in the listed
    order.
    sources, targets: the ranks whose inputs this rank sums, and those that get the sums; both include this rank.
    share, shares: the rank sums part ``share`` of ``shares`` equal parts of one block.
    input_block: the chunk of the inputs for that block, in units of the block. 0 if the block is the whole input.
    output_block: the place of the block in the output, in units of the block.
    """

    blocks: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    share: int
    shares: int
    input_block: int
    output_block: int


@dataclass(frozen=True)
class NodePlan:
    """The work of one rank in the hierarchical form of an operation.

    First, the ranks of a node sum their inputs: a rank sums part ``share`` of ``shares`` equal parts of some chunks of
    the inputs. Then ranks with the same local rank exchange these pieces. Last, each rank sums what it has received and
    sends the sums to ranks of its node.

    sources: the local ranks whose inputs are summed, in this order.
    chunks: the chunks of the inputs, in units of the block. 0 if the block is the whole input.
    chunk_of_node: for each node, the chunk that it receives, as an index of ``chunks``.
    sums: for each sum over nodes, the nodes in the order in which they are added, and the block of the output.
    targets: the local ranks that receive the sums.
    """

    sources: tuple[int, ...]
    share: int
    shares: int
    chunks: tuple[int, ...]
    chunk_of_node: tuple[int, ...]
    sums: tuple[tuple[tuple[int, ...], int], ...]
    targets: tuple[int, ...]


def _rank_and_size(level: str, rank: int, size: int) -> tuple[int, int]:
    size = as_int(f"{level}_size", size, 1)
    return as_int(f"{level}_rank", rank, 0, size - 1), size


def _sizes(level: str, size: int, tp: int | None, dp: int | None) -> tuple[int, int]:
    """level: "local", "inter" or, for the world, nothing."""
    prefix = f"{level}_" if level else ""
    tp, dp = (
        given if given is None else as_int(f"{prefix}{axis}_size", given, 1) for axis, given in (("tp", tp), ("dp", dp))
    )
    if tp is None and dp is None:
        return size, 1
    if tp is None:
        assert dp is not None
        tp = size // dp if size % dp == 0 else 0
    elif dp is None:
        dp = size // tp if size % tp == 0 else 0
    if tp * dp != size:
        raise ValueError(
            f"{prefix}tp_size and {prefix}dp_size must multiply to {level or 'world'}_size={size}; with "
            f"{prefix}tp_size={tp or None} and {prefix}dp_size={dp or None} they do not: choose divisors of {size}"
        )
    return tp, dp


@dataclass(frozen=True)
class ParallelInfo:
    """A rank in its topology: ``tp_size`` x ``dp_size`` ranks, on ``inter_size`` nodes of ``local_size`` ranks."""

    world_rank: int
    world_size: int
    local_rank: int
    local_size: int
    inter_rank: int
    inter_size: int
    local_tp_size: int
    local_dp_size: int
    inter_tp_size: int
    inter_dp_size: int

    def __post_init__(self) -> None:
        numbers: dict[str, int] = {}
        for level in ("world", "local", "inter"):
            rank, size = f"{level}_rank", f"{level}_size"
            numbers[rank], numbers[size] = _rank_and_size(level, getattr(self, rank), getattr(self, size))
        inter_size, local_size = numbers["inter_size"], numbers["local_size"]
        if numbers["world_size"] != inter_size * local_size:
            raise ValueError(
                f"world_size must be inter_size * local_size = {inter_size} * {local_size} = "
                f"{inter_size * local_size}, not {numbers['world_size']}"
            )
        place = numbers["inter_rank"] * local_size + numbers["local_rank"]
        if numbers["world_rank"] != place:
            raise ValueError(
                f"world_rank must be inter_rank * local_size + local_rank = {place}, not {numbers['world_rank']}"
            )
        for level in ("local", "inter"):
            tp, dp = f"{level}_tp_size", f"{level}_dp_size"
            numbers[tp], numbers[dp] = _sizes(level, numbers[f"{level}_size"], getattr(self, tp), getattr(self, dp))
        for name, number in numbers.items():
            object.__setattr__(self, name, number)

    @classmethod
    def of(
        cls,
        world_rank: int,
        world_size: int,
        local_rank: int,
        local_size: int,
        inter_rank: int,
        inter_size: int,
        local_tp_size: int | None = None,
        local_dp_size: int | None = None,
        inter_tp_size: int | None = None,
        inter_dp_size: int | None = None,
    ) -> ParallelInfo:
        """The place of a rank. Checks every number.

        world_rank, world_size: the number of the rank, and of all ranks.
        local_rank, local_size: the same within its node.
        inter_rank, inter_size: the number of its node, and of all nodes.
        local_tp_size, local_dp_size, inter_tp_size, inter_dp_size: the division of each level. If both sizes of a level
        are None, all ranks are tp; if one is None, it is the remaining factor.

        Raises TypeError or ValueError for numbers that do not fit together.
        """
        sizes: list[Any] = [local_tp_size, local_dp_size, inter_tp_size, inter_dp_size]
        return cls(world_rank, world_size, local_rank, local_size, inter_rank, inter_size, *sizes)

    def at(self, world_rank: int) -> ParallelInfo:
        """Another rank of the same topology.

        world_rank: its number among all.
        """
        return _at(self, as_int("world_rank", world_rank, 0, self.world_size - 1))

    @property
    def local_tp_rank(self) -> int:
        return self.local_rank % self.local_tp_size

    @property
    def local_dp_rank(self) -> int:
        return self.local_rank // self.local_tp_size

    @property
    def inter_tp_rank(self) -> int:
        return self.inter_rank % self.inter_tp_size

    @property
    def inter_dp_rank(self) -> int:
        return self.inter_rank // self.inter_tp_size

    @property
    def tp_rank(self) -> int:
        return self.local_tp_rank + self.inter_tp_rank * self.local_tp_size

    @property
    def tp_size(self) -> int:
        return self.local_tp_size * self.inter_tp_size

    @property
    def dp_rank(self) -> int:
        return self.local_dp_rank + self.inter_dp_rank * self.local_dp_size

    @property
    def dp_size(self) -> int:
        return self.local_dp_size * self.inter_dp_size

    @property
    def use_local_tp(self) -> bool:
        return self.local_tp_size > 1

    @property
    def use_inter_tp(self) -> bool:
        return self.inter_tp_size > 1

    @property
    def use_tp(self) -> bool:
        return self.tp_size > 1

    @property
    def use_dp(self) -> bool:
        return self.dp_size > 1

    @property
    def use_inter(self) -> bool:
        return self.inter_size > 1

    @property
    def use_mixed(self) -> bool:
        """Both axes have more than one rank."""
        return self.use_tp and self.use_dp

    def rank_of(self, tp_rank: int, dp_rank: int) -> int:
        """The world rank at a position of the tp x dp grid.

        tp_rank, dp_rank: the position.
        """
        inter_tp, local_tp = divmod(as_int("tp_rank", tp_rank, 0, self.tp_size - 1), self.local_tp_size)
        inter_dp, local_dp = divmod(as_int("dp_rank", dp_rank, 0, self.dp_size - 1), self.local_dp_size)
        inter_rank = inter_tp + inter_dp * self.inter_tp_size
        return inter_rank * self.local_size + local_tp + local_dp * self.local_tp_size

    def tp_ranks(self, dp_rank: int | None = None) -> tuple[int, ...]:
        """The world ranks of a tp group in the order of their tp ranks.

        dp_rank: which group; None: this rank's own.
        """
        dp_rank = self.dp_rank if dp_rank is None else dp_rank
        return tuple(self.rank_of(tp_rank, dp_rank) for tp_rank in range(self.tp_size))

    def dp_ranks(self, tp_rank: int | None = None) -> tuple[int, ...]:
        """The world ranks of a dp group in the order of their dp ranks.

        tp_rank: which group; None: this rank's own.
        """
        tp_rank = self.tp_rank if tp_rank is None else tp_rank
        return tuple(self.rank_of(tp_rank, dp_rank) for dp_rank in range(self.dp_size))

    def local_ranks(self) -> tuple[int, ...]:
        """The world ranks of this node."""
        first = self.inter_rank * self.local_size
        return tuple(range(first, first + self.local_size))

    def inter_ranks(self) -> tuple[int, ...]:
        """The world ranks with this local rank, in the order of the nodes."""
        return tuple(range(self.local_rank, self.world_size, self.local_size))

    @property
    def valid_ops(self) -> tuple[MixedCommOp, ...]:
        if self.use_mixed:
            return MixedCommOp.ALLREDUCE_ALLGATHER, MixedCommOp.REDUCESCATTER_ALLREDUCE
        if self.use_dp:
            return MixedCommOp.ALLGATHER, MixedCommOp.REDUCESCATTER
        return (MixedCommOp.ALLREDUCE,) if self.use_tp else ()

    @property
    def every_op(self) -> tuple[MixedCommOp, ...]:
        """The valid operations, and ALLTOALL and BROADCAST where they can be called."""
        more = [MixedCommOp.ALLTOALL] if self.use_dp and not self.use_tp else []
        return (*self.valid_ops, *more, MixedCommOp.BROADCAST) if self.valid_ops else ()

    def demand_valid(self, op: MixedCommOp) -> None:
        """Check that an operation is valid in this topology.

        op: the operation. Raises ValueError if it is not.
        """
        if op not in self.every_op:
            valid = ", ".join(one.name for one in self.every_op) or "none, because the world has one rank"
            raise ValueError(
                f"{MixedCommOp(op).name} is not valid for tp_size={self.tp_size} and dp_size={self.dp_size}; valid: "
                f"{valid}"
            )

    def output_shape(self, op: MixedCommOp, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the output of an operation.

        op: the operation. shape: that of the input.

        Raises ValueError if the input cannot be divided by the number of ranks.
        """
        self.demand_valid(op)
        if not shape:
            raise ValueError("a 0-d tensor has no rows: pass a tensor with at least one dimension")
        rows, *rest = shape
        if op.gathers:
            return rows * self.dp_size, *rest
        if not op.divides:
            return tuple(shape)
        if rows % self.dp_size:
            raise ValueError(
                f"{op.name} gives each of {self.dp_size} dp ranks the same number of rows: {rows} rows cannot be "
                f"divided equally; pass a multiple of {self.dp_size}"
            )
        return rows // self.dp_size if op.scatters else rows, *rest

    def plan(self, op: MixedCommOp) -> Plan:
        """The work of this rank in an operation.

        op: the operation. Raises ValueError for one that is not valid, and for BROADCAST, which depends on its root.
        """
        return _plan(self, op)

    def node_plan(self, op: MixedCommOp) -> NodePlan:
        """The work of this rank in the hierarchical form of an operation.

        op: the operation. Raises ValueError if it is not valid, and for ALLTOALL and BROADCAST, which lack such a form.
        """
        if op not in self.valid_ops:
            self.demand_valid(op)
            raise ValueError(f"{op.name} sums nothing, and has no hierarchical form")
        node = tuple(range(self.local_size))
        first = self.local_dp_rank * self.local_tp_size
        tp_group = node[first : first + self.local_tp_size]
        nodes = tuple(range(self.inter_size))
        dp_of_node = tuple(one // self.inter_tp_size for one in nodes)
        # The blocks of this rank's local dp rank, one for each dp rank among the nodes.
        blocks = tuple(self.local_dp_rank + one * self.local_dp_size for one in range(self.inter_dp_size))
        if op.scatters:
            return NodePlan(node, self.local_tp_rank, self.local_tp_size, blocks, dp_of_node, ((nodes, 0),), tp_group)
        sums = tuple(
            (tuple(one for one in nodes if dp_of_node[one] == dp_rank), block) for dp_rank, block in enumerate(blocks)
        )
        return NodePlan(tp_group, self.local_tp_rank, self.local_tp_size, (0,), (0,) * self.inter_size, sums, node)

    def block_size(self, op: MixedCommOp, input_size: int) -> int:
        """The size of one block of the output, in the unit of `input_size`.

        op: the operation. input_size: that of the input, in elements or bytes.
        """
        return input_size // self.dp_size if op.divides else input_size


# What handlers ask for again and again, for all ranks.
@cache
def _at(info: ParallelInfo, world_rank: int) -> ParallelInfo:
    inter_rank, local_rank = divmod(world_rank, info.local_size)
    return ParallelInfo.of(
        world_rank,
        info.world_size,
        local_rank,
        info.local_size,
        inter_rank,
        info.inter_size,
        info.local_tp_size,
        info.local_dp_size,
        info.inter_tp_size,
        info.inter_dp_size,
    )


@cache
def _plan(info: ParallelInfo, op: MixedCommOp) -> Plan:
    info.demand_valid(op)
    if op is MixedCommOp.BROADCAST:
        raise ValueError("BROADCAST has no plan: what a rank does depends on the root")
    world = tuple(range(info.world_size))
    tp, dp = info.tp_rank, info.dp_rank
    if op is MixedCommOp.ALLREDUCE:
        return Plan((world,), world, world, info.world_rank, info.world_size, 0, 0)
    if op.gathers or op is MixedCommOp.ALLTOALL:
        blocks = tuple(info.tp_ranks(group) for group in range(info.dp_size))
        return Plan(blocks, blocks[dp], world, tp, info.tp_size, 0, dp)
    return Plan((world,), world, info.tp_ranks(), tp, info.tp_size, dp, 0)


def checked_root(info: ParallelInfo, op: MixedCommOp, root: int | None) -> int | None:
    """The root of a call, as it was given; ValueError unless BROADCAST has one, and no other operation."""
    if op is MixedCommOp.BROADCAST:
        if root is None:
            raise ValueError("BROADCAST needs a root: pass root=, the world rank whose input all ranks get")
        return as_int("root", root, 0, info.world_size - 1)
    if root is not None:
        raise ValueError(f"{MixedCommOp(op).name} has no root: omit root={root}, which is for BROADCAST")
    return None


def on_hosts(
    world_rank: int, hosts: Sequence[str], tp_size: int | None = None, dp_size: int | None = None
) -> ParallelInfo:
    """The place of a rank whose nodes are hosts.

    hosts: the name of each rank's host, in the order of the ranks. tp_size, dp_size: the division of all ranks. If both
    are None, all ranks are tp; if one is None, it is the remaining factor.

    Raises ValueError if the ranks of a host are not consecutive, if hosts have different numbers of ranks, or if
    neither the tp size nor the number of ranks of a host divides the other.
    """
    nodes = [list(of_host) for _, of_host in groupby(hosts)]
    if len({one[0] for one in nodes}) < len(nodes) or len({len(one) for one in nodes}) > 1:
        raise ValueError(
            f"the ranks of a host must be consecutive, with the same number on each host; found {', '.join(hosts)}"
        )
    world_size, local_size = len(hosts), len(nodes[0])
    tp, _ = _sizes("", world_size, tp_size, dp_size)
    if local_size % tp and tp % local_size:
        raise ValueError(f"tp_size={tp} must divide the {local_size} ranks of a host, or be a multiple of them")
    local_tp, inter_tp = min(tp, local_size), max(tp // local_size, 1)
    inter_rank, local_rank = divmod(world_rank, local_size)
    grids = local_tp, local_size // local_tp, inter_tp, len(nodes) // inter_tp
    return ParallelInfo.of(world_rank, world_size, local_rank, local_size, inter_rank, len(nodes), *grids)
