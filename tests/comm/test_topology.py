"""Ranks, groups, shapes and plans, for every topology of up to 8 ranks on one or several nodes."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo, _topology
from cuda_gctx.comm._topology import checked_root, on_hosts

from ..common import for_each
from .topologies import TOPOLOGIES, name_of


def ranks(info: ParallelInfo) -> list[ParallelInfo]:
    return [info.at(rank) for rank in range(info.world_size)]


every_topology = for_each(TOPOLOGIES, name=name_of)


@every_topology
def test_grid_places_and_world_ranks_are_one_to_one(first: ParallelInfo) -> None:
    places = {(rank.tp_rank, rank.dp_rank) for rank in ranks(first)}
    assert places == {(tp, dp) for tp in range(first.tp_size) for dp in range(first.dp_size)}
    for rank in ranks(first):
        assert first.rank_of(rank.tp_rank, rank.dp_rank) == rank.world_rank


@every_topology
def test_ranks_follow_the_formulas(first: ParallelInfo) -> None:
    for rank in ranks(first):
        assert rank.world_rank == rank.inter_rank * rank.local_size + rank.local_rank
        assert rank.local_rank == rank.local_tp_rank + rank.local_dp_rank * rank.local_tp_size
        assert rank.inter_rank == rank.inter_tp_rank + rank.inter_dp_rank * rank.inter_tp_size
        assert rank.tp_rank == rank.local_tp_rank + rank.inter_tp_rank * rank.local_tp_size
        assert rank.dp_rank == rank.local_dp_rank + rank.inter_dp_rank * rank.local_dp_size


@every_topology
def test_groups_split_the_world_and_are_the_same_for_all_members(first: ParallelInfo) -> None:
    for groups in (
        {rank.tp_ranks() for rank in ranks(first)},
        {rank.dp_ranks() for rank in ranks(first)},
        {rank.local_ranks() for rank in ranks(first)},
    ):
        assert sorted(member for group in groups for member in group) == list(range(first.world_size))
        # Sums are taken in the order of the world ranks: groups must list them so.
        assert all(list(group) == sorted(group) for group in groups)
    for rank in ranks(first):
        assert rank.tp_ranks()[rank.tp_rank] == rank.dp_ranks()[rank.dp_rank] == rank.world_rank
        assert rank.local_ranks()[rank.local_rank] == rank.world_rank


@every_topology
def test_valid_ops_follow_the_sizes_of_the_axes(first: ParallelInfo) -> None:
    names = {op.name for op in first.valid_ops}
    expected = {
        (False, False): set(),
        (True, False): {"ALLREDUCE"},
        (False, True): {"ALLGATHER", "REDUCESCATTER"},
        (True, True): {"ALLREDUCE_ALLGATHER", "REDUCESCATTER_ALLREDUCE"},
    }
    assert names == expected[first.tp_size > 1, first.dp_size > 1]
    more = ({MixedCommOp.ALLTOALL} if "ALLGATHER" in names else set()) | ({MixedCommOp.BROADCAST} if names else set())
    assert set(first.every_op) - set(first.valid_ops) == more
    for op in set(MixedCommOp) - set(first.every_op):
        with pytest.raises(ValueError, match=f"{op.name} is not valid for tp_size={first.tp_size}"):
            first.plan(op)


def test_what_a_rank_does_in_a_broadcast_is_not_a_plan_and_depends_on_the_root() -> None:
    info = ParallelInfo.of(1, 4, 1, 4, 0, 1, 2, 2)
    for plan in (info.plan, info.node_plan):
        with pytest.raises(ValueError, match="BROADCAST"):
            plan(MixedCommOp.BROADCAST)
    assert info.output_shape(MixedCommOp.BROADCAST, [5, 7]) == (5, 7)
    assert checked_root(info, MixedCommOp.BROADCAST, 3) == 3
    for root, words in ((None, "BROADCAST needs a root"), (4, "root must be an int from 0 to 3, not 4")):
        with pytest.raises(ValueError, match=words):
            checked_root(info, MixedCommOp.BROADCAST, root)
    with pytest.raises(ValueError, match="ALLREDUCE_ALLGATHER has no root: omit root=0"):
        checked_root(info, MixedCommOp.ALLREDUCE_ALLGATHER, 0)


def written(first: ParallelInfo, op: MixedCommOp, elements: int) -> dict[tuple[int, int], tuple[int, ...]]:
    """Who wrote what in the two-exchange form: (target rank, output element) -> the addends as rank * elements + at."""
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    block = first.block_size(op, elements)
    for rank in ranks(first):
        plan = rank.plan(op)
        assert rank.world_rank in plan.sources
        assert rank.world_rank in plan.targets
        for at in range(plan.share * block // plan.shares, (plan.share + 1) * block // plan.shares):
            addends = tuple(source * elements + plan.input_block * block + at for source in plan.sources)
            for target in plan.targets:
                place = target, plan.output_block * block + at
                assert place not in found, "written twice"
                found[place] = addends
    return found


@every_topology
def test_two_exchange_plans_write_each_output_once_with_the_defined_sum(first: ParallelInfo) -> None:
    elements = 2 * first.world_size * first.dp_size
    for op in first.valid_ops:
        found = written(first, op, elements)
        for rank in ranks(first):
            size = first.output_shape(op, [elements])[0]
            block = first.block_size(op, elements)
            for at in range(size):
                of_block, inside = divmod(at, block)
                if op.gathers:
                    addends = tuple(source * elements + inside for source in first.tp_ranks(of_block))
                else:
                    chunk = rank.dp_rank * block if op.scatters else 0
                    addends = tuple(source * elements + chunk + at for source in range(first.world_size))
                assert found.pop((rank.world_rank, at)) == addends
        assert not found


@every_topology
def test_node_plans_write_each_output_once_with_the_defined_sum(first: ParallelInfo) -> None:
    elements = 2 * first.world_size * first.dp_size
    for op in first.valid_ops:
        block = first.block_size(op, elements)
        # (world rank, node, place in the block) -> the addends of what the rank has received from the node.
        received: dict[tuple[int, int, int], frozenset[int]] = {}
        for rank in ranks(first):
            plan = rank.node_plan(op)
            assert rank.local_rank in plan.sources
            assert rank.local_rank in plan.targets
            for node, target in enumerate(rank.inter_ranks()):
                chunk = plan.chunks[plan.chunk_of_node[node]]
                for at in range(plan.share * block // plan.shares, (plan.share + 1) * block // plan.shares):
                    received[target, rank.inter_rank, at] = frozenset(
                        (rank.inter_rank * first.local_size + source) * elements + chunk * block + at
                        for source in plan.sources
                    )
        written: dict[tuple[int, int], frozenset[int]] = {}
        for rank in ranks(first):
            plan = rank.node_plan(op)
            for (nodes, of_block), target in itertools.product(plan.sums, plan.targets):
                assert list(nodes) == sorted(nodes)
                for at in range(plan.share * block // plan.shares, (plan.share + 1) * block // plan.shares):
                    place = rank.inter_rank * first.local_size + target, of_block * block + at
                    assert place not in written, "written twice"
                    written[place] = frozenset().union(*(received[rank.world_rank, node, at] for node in nodes))
        for rank in ranks(first):
            for at in range(first.output_shape(op, [elements])[0]):
                of_block, inside = divmod(at, block)
                addends = rank.plan(op).blocks[of_block]
                chunk = rank.dp_rank * block if op.scatters else 0
                wanted = frozenset(source * elements + chunk + inside for source in addends)
                assert written.pop((rank.world_rank, at)) == wanted
        assert not written


@every_topology
def test_one_exchange_blocks_make_up_the_output(first: ParallelInfo) -> None:
    elements = 4 * first.dp_size
    for op in first.valid_ops:
        for rank in ranks(first):
            plan = rank.plan(op)
            assert len(plan.blocks) * first.block_size(op, elements) == first.output_shape(op, [elements])[0]
            assert plan.blocks == first.plan(op).blocks  # ranks that must agree add in the same order


def test_sizes_left_out() -> None:
    def sizes(**given: int | None) -> tuple[int, int, int, int]:
        info = ParallelInfo.of(0, 8, 0, 4, 0, 2, **given)
        return info.local_tp_size, info.local_dp_size, info.inter_tp_size, info.inter_dp_size

    assert sizes() == (4, 1, 2, 1)
    assert sizes(local_dp_size=2) == (2, 2, 2, 1)
    assert sizes(local_tp_size=1, inter_tp_size=1) == (1, 4, 1, 2)
    assert sizes(local_tp_size=2, local_dp_size=2, inter_dp_size=2) == (2, 2, 1, 2)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 4, 0, 4, 0, 2), r"world_size must be inter_size \* local_size = 2 \* 4 = 8, not 4"),
        ((1, 8, 0, 4, 0, 2), r"world_rank must be inter_rank \* local_size \+ local_rank = 0, not 1"),
        ((0, 4, 4, 4, 0, 1), "local_rank must be an int from 0 to 3, not 4"),
        ((0, 0, 0, 0, 0, 1), "world_size must be an int of at least 1, not 0"),
        ((0, 4, 0, 4, 0, 1, 3), "local_tp_size=3 and local_dp_size=None they do not: choose divisors of 4"),
        ((0, 4, 0, 4, 0, 1, 2, 4), "local_tp_size=2 and local_dp_size=4 they do not"),
        ((0, 4, 0, 4, 0, 1, 0), "local_tp_size must be an int of at least 1, not 0"),
        ((0, 4, 0, 2, 0, 2, None, None, None, 3), "inter_tp_size=None and inter_dp_size=3 they do not"),
    ],
)
def test_wrong_numbers_are_refused_by_name(numbers: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParallelInfo.of(*numbers)  # type: ignore[arg-type]


def test_flashinfers_names_of_modes_are_those_of_the_same_kernels() -> None:
    _topology.say_that_there_is_no_multicast.cache_clear()  # other tests use the names, and it is said once
    assert MixedCommMode.FUSED_OPT_WAITS_UC is MixedCommMode.ONE_EXCHANGE
    assert MixedCommMode["FUSED_OPT_BYTES1_UC"] is MixedCommMode.TWO_EXCHANGE
    with pytest.warns(UserWarning, match="this package uses no multicast"):
        assert MixedCommMode.FUSED_OPT_BYTES2_MC is MixedCommMode.HIERARCHICAL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert MixedCommMode.FUSED_OPT_WAITS_MC is MixedCommMode.ONE_EXCHANGE
    with pytest.raises(AttributeError, match="no mode FUSED_OPT_WAITS_XX"):
        _ = MixedCommMode.FUSED_OPT_WAITS_XX
    assert len(MixedCommMode) == 8


def test_the_constructor_checks_as_of_does() -> None:
    nothing: Any = None
    assert ParallelInfo(0, 4, 0, 4, 0, 1, *[nothing] * 4) == ParallelInfo.of(0, 4, 0, 4, 0, 1)
    with pytest.raises(ValueError, match="world_rank must be an int from 0 to 3, not 7"):
        ParallelInfo(7, 4, 0, 4, 0, 1, 4, 1, 1, 1)
    with pytest.raises(ValueError, match="local_tp_size and local_dp_size must multiply to local_size=4"):
        ParallelInfo(0, 4, 0, 4, 0, 1, 3, 3, 1, 1)


def test_a_rank_that_is_not_an_int_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="local_rank must be an int from 0 to 3, not float"):
        ParallelInfo.of(0, 4, 0.0, 4, 0, 1)  # type: ignore[arg-type]


def test_rows_that_cannot_be_shared_are_refused() -> None:
    info = ParallelInfo.of(0, 4, 0, 4, 0, 1, local_dp_size=2)
    with pytest.raises(ValueError, match="7 rows cannot be divided equally; pass a multiple of 2"):
        info.output_shape(MixedCommOp.REDUCESCATTER_ALLREDUCE, (7, 8))
    with pytest.raises(ValueError, match="0-d tensor"):
        info.output_shape(MixedCommOp.ALLREDUCE_ALLGATHER, ())


def test_values_of_the_ops_are_those_that_programs_have_stored() -> None:
    assert [op.name for op in sorted(MixedCommOp)] == [
        "ALLREDUCE",
        "ALLGATHER",
        "REDUCESCATTER",
        "ALLREDUCE_ALLGATHER",
        "REDUCESCATTER_ALLREDUCE",
        "ALLTOALL",
        "BROADCAST",
    ]


def test_hosts_are_nodes_and_tp_is_the_fast_axis() -> None:
    hosts = ["a"] * 4 + ["b"] * 4
    for tp, grids in {8: (4, 1, 2, 1), 4: (4, 1, 1, 2), 2: (2, 2, 1, 2), 1: (1, 4, 1, 2)}.items():
        for rank in range(8):
            info = on_hosts(rank, hosts, tp)
            assert (info.local_tp_size, info.local_dp_size, info.inter_tp_size, info.inter_dp_size) == grids
            assert (info.world_rank, info.inter_rank, info.tp_size, info.dp_size) == (rank, rank // 4, tp, 8 // tp)
    assert on_hosts(1, ["a", "a"]).tp_size == on_hosts(1, ["a", "a"], dp_size=1).tp_size == 2
    for wrong, words in (
        (["a", "b", "a", "b"], "must be consecutive"),
        (["a", "a", "b"], "with the same number on each host; found a, a, b"),
        (["a"] * 3 + ["b"] * 3, "tp_size=2 must divide the 3 ranks of a host"),
        (["a"] * 3, "tp_size and dp_size must multiply to world_size=3"),
    ):
        with pytest.raises(ValueError, match=words):
            on_hosts(0, wrong, 2)
