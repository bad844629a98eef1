"""The protocols in the simulator, which must find every broken variant, and the geometry of workspaces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._limits import Limits
from cuda_gctx.comm._message import Sizes
from cuda_gctx.comm._modes import CopyEngines, Fetched
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._protocol import (
    ALIGNMENT,
    MOST_BLOCKS,
    MOST_RANKS,
    SHARED_BYTES,
    Element,
    Geometry,
    NodeStep,
    Packing,
    Region,
    defines,
    demand_ranks,
    next_epoch,
    node_defines,
    part_of,
    region_of,
    share_of,
    shared_bytes,
    signature,
    stages_and_tile,
    tile_bytes,
)
from cuda_gctx.comm._staging import Part, Span, Staging

from ..common import for_each
from .cpu_kernels import NotedKernels, NotedPlan
from .simulate import BROKEN, Simulation, Violation, every_geometry, first_violation
from .topologies import TOPOLOGIES, name_of

GEOMETRIES = every_geometry()


def words(value: Any) -> str:
    return name_of(value) if isinstance(value, ParallelInfo) else str(value)


def test_every_geometry_survives_random_interleavings() -> None:
    # "python tests/comm/simulate.py --interleavings 100000" runs many more.
    assert first_violation(0, len(GEOMETRIES)) is None


@for_each(BROKEN)
def test_simulator_finds_what_is_broken(broken: str) -> None:
    cases = [(info, op) for info, op, mode in GEOMETRIES if mode is BROKEN[broken] and info.world_size <= 4]

    def is_found(seed: int) -> bool:
        info, op = cases[seed % len(cases)]
        try:
            Simulation(info, op, BROKEN[broken], seed, broken).run()
        except Violation:
            return True
        return False

    assert len([*itertools.islice(filter(is_found, range(120)), 3)]) == 3


def test_simulated_blocks_run_in_the_order_of_the_seed() -> None:
    info, op, mode = GEOMETRIES[-1]
    lengths = set()
    for _ in range(2):
        simulation = Simulation(info, op, mode, 7)
        simulation.run()
        lengths.add(simulation.random.random())
    assert len(lengths) == 1


def places(geometry: Geometry, rank: int) -> list[tuple[str, int, int]]:
    """Everything that is written to in a workspace: name, begin and end."""
    found = [
        ("fault", geometry.CONTROL_FAULT, 4),
        ("exchanges", geometry.CONTROL_EXCHANGES, 8),
        ("packet word", geometry.CONTROL_PACKET_WORD, 8),
        ("flag word", geometry.CONTROL_FLAG_WORD, 8),
        ("node word", geometry.CONTROL_NODE_WORD, 8),
        ("put word", geometry.CONTROL_PUT_WORD, 8),
        ("ended blocks", geometry.CONTROL_ENDED, 8 * MOST_BLOCKS),
        ("staged input", geometry.staged_input, geometry.staged_bytes + geometry.world_size * ALIGNMENT),
        ("staged output", geometry.staged_output, geometry.staged_bytes),
    ]
    words = (geometry.MAILBOX_START, geometry.MAILBOX_INPUT, geometry.MAILBOX_OUTPUT, geometry.MAILBOX_END)
    for source in range(geometry.world_size):
        found += [(f"mailbox {source}", geometry.mailbox(source) + word, 8) for word in words]
        of_node = geometry.node_mailboxes + source * geometry.MAILBOX_BYTES
        found += [(f"node mailbox {source}", of_node + word, 8) for word in words]
        for epoch in (0, 1):
            found.append((f"header {source} {epoch}", geometry.header(epoch, source), 8))
            if source == rank:
                continue
            ends = 0, Packing.WHOLE.packets_of(geometry.packet_bytes) - 1
            first, last = (geometry.slot(epoch, source, rank, packet) for packet in ends)
            found.append((f"slot {source} {epoch}", first, last + 16 - first))
    return [(name, begin, begin + size) for name, begin, size in found]


@for_each(range(1, 9), [0, -1], [(16, 0), (4096, 16), (512 * 1024, 64 << 20)])
def test_nothing_in_a_workspace_overlaps(world: int, rank: int, sizes: tuple[int, int]) -> None:
    geometry = Geometry(world, *sizes)
    end = 0
    for name, begin, stop in sorted(places(geometry, rank % world), key=lambda place: place[1:]):
        assert begin >= end, f"{name} begins at {begin}, before {end}"
        assert begin % min(ALIGNMENT, max(stop - begin, 1)) == 0, name
        end = stop
    assert end <= geometry.total_bytes


@for_each([one for one in TOPOLOGIES if one.use_inter], [16, 4096, 100_000, 64 << 20], name=words)
def test_nothing_in_a_region_overlaps_and_every_piece_fits(first: ParallelInfo, message: int) -> None:
    region = region_of(first, message)
    of_nodes = range(first.inter_size)
    found = [(region.signal(node) + word, 8) for node in of_nodes for word in (region.SIGNAL_READY, region.SIGNAL_DATA)]
    pieces = [region.outgoing(piece) for piece in range(region.pieces)] + [region.incoming(node) for node in of_nodes]
    found += [(begin, region.HEADER_BYTES + region.piece_bytes) for begin in pieces]
    end = 0
    for begin, size in sorted(found):
        assert begin >= end
        end = begin + size
    assert end <= region.total_bytes
    assert all(begin % 128 == 0 for begin in pieces)
    for op in first.valid_ops:
        plan = first.node_plan(op)
        assert len(plan.chunks) <= region.pieces
        block = message // first.dp_size // ALIGNMENT * ALIGNMENT
        assert all(part_of(share, plan.shares, block)[1] <= region.piece_bytes for share in range(plan.shares))


def test_sizes_that_the_kernels_cannot_move_are_refused() -> None:
    with pytest.raises(ValueError, match="packet_bytes must be a multiple of 16, not 24"):
        Geometry(2, 24, 16)


def test_epochs_skip_that_of_fresh_memory_and_alternate() -> None:
    epoch = 0xFFFFFFF0
    for _ in range(64):
        following = next_epoch(epoch)
        assert following not in (0, epoch)
        assert (following ^ epoch) & 1
        epoch = following
    assert next_epoch(0) == 1


@for_each([one for one in TOPOLOGIES if one.valid_ops], [1, 2, 7, 64, 1000], name=words)
def test_shares_make_up_the_output_of_each_rank(first: ParallelInfo, units: int) -> None:
    for op in first.valid_ops:
        block_bytes = units * ALIGNMENT
        for target in range(first.world_size):
            written = sorted(
                (offset, offset + size)
                for rank in range(first.world_size)
                if target in first.at(rank).plan(op).targets
                for _, offset, size in [share_of(first.at(rank), op, block_bytes)]
                if size
            )
            assert written[0][0] == 0
            assert written[-1][1] == len(first.plan(op).blocks) * block_bytes
            assert all(one[1] == other[0] for one, other in itertools.pairwise(written))
            assert all(begin % ALIGNMENT == 0 for begin, _ in written)


@for_each(range(1, MOST_RANKS + 1))
def test_tiles_fit_in_shared_memory(sources: int) -> None:
    stages, tile = stages_and_tile(sources)
    assert stages >= 2  # one is emptied while another is filled
    assert tile % ALIGNMENT == 0
    assert shared_bytes(sources) <= SHARED_BYTES


@for_each([0, 16, 4096, 1 << 20, 1 << 28], [1, 8, 132], [512, 16384])
def test_tiles_are_neither_tiny_nor_larger_than_a_stage(share: int, grid: int, stage: int) -> None:
    size = tile_bytes(share, grid, 4, stage)
    assert min(1024, stage) <= size <= stage
    assert size % ALIGNMENT == 0


def test_more_ranks_than_a_warp_has_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="connect at most 32 ranks, not 33"):
        demand_ranks(MOST_RANKS + 1)
    # In the hierarchical form, those of a node meet.
    info, region = ParallelInfo.of(0, 256, 0, 32, 0, 8), Region(8, 32, 4096)
    op, geometry = info.valid_ops[0], Geometry(256, 4096, 4096)
    assert node_defines(info, op, NodeStep.COLLECT, geometry, region, element=Element.BFLOAT16)["WORLD"] == "32"
    info = ParallelInfo.of(0, 66, 0, 33, 0, 2)
    with pytest.raises(ValueError, match="not 33"):
        node_defines(info, op, NodeStep.COLLECT, geometry, region, element=Element.BFLOAT16)


@for_each([16, 48, 4096, 512 * 1024], [2, 3, 8])
def test_what_packets_carry_at_once_fits_in_a_slot(size: int, world: int) -> None:
    geometry = Geometry(world, size, 0)
    for packing in Packing:
        at_once = geometry.at_once(packing)
        assert at_once > 0
        assert at_once % ALIGNMENT == 0
        assert packing.packets_of(at_once) * 16 <= geometry.slot_bytes


def test_signatures_differ_with_all_that_ranks_must_agree_on() -> None:
    op, other_op = MixedCommOp.ALLGATHER, MixedCommOp.REDUCESCATTER
    one, two = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE
    found = {
        signature(op, one, "torch.float16", 64, is_staged=False),
        signature(other_op, one, "torch.float16", 64, is_staged=False),
        signature(op, two, "torch.float16", 64, is_staged=False),
        signature(op, one, "torch.bfloat16", 64, is_staged=False),
        signature(op, one, "torch.float16", 80, is_staged=False),
        signature(op, one, "torch.float16", 64, is_staged=True),
    }
    assert len(found) == 6


def test_defines_are_the_same_on_all_ranks() -> None:
    for first in TOPOLOGIES:
        for op in first.valid_ops:
            geometry = Geometry(first.world_size, 4096, 4096)
            found = [
                defines(first.at(rank), op, geometry, element=Element.BFLOAT16) for rank in range(first.world_size)
            ]
            assert all(one == found[0] for one in found)
            region = region_of(first, 4096)
            for step in NodeStep:
                words = [
                    node_defines(first.at(rank), op, step, geometry, region, element=Element.BFLOAT16)
                    for rank in range(first.world_size)
                ]
                assert all(one == words[0] for one in words)


def spans(copies: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Begins and ends in order, none of which overlaps the next one."""
    found = sorted((begin, begin + size) for begin, size in copies if size)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(found))
    return found


@for_each([one for one in TOPOLOGIES if one.valid_ops], [1, 3, 64], name=words)
def test_staged_parts_fit_and_bring_every_rank_what_it_sums_and_gets(first: ParallelInfo, units: int) -> None:
    world = range(first.world_size)
    x_in, x_out = 1 << 20, 1 << 30
    for op, part_bytes, rounds in itertools.product(first.valid_ops, (16, 1 << 20), (1, 7)):
        block = units * ALIGNMENT
        in_bytes = block * (first.dp_size if op.scatters else 1)
        out_bytes = block * (first.dp_size if op.gathers else 1)
        # The workspaces hold all of a message, or some of it at a time.
        staged_bytes = max(max(in_bytes, out_bytes) // rounds // ALIGNMENT, 1) * ALIGNMENT
        geometry = Geometry(first.world_size, 4096, staged_bytes)
        bases = [1 << (40 + rank) for rank in world]
        calls = [
            list(Staging(first.at(rank), op, geometry, bases, part_bytes).rounds(x_in, x_out, block)) for rank in world
        ]
        assert len({tuple(map(len, parts)) for parts in calls}) == 1
        assert rounds > 1 or len(calls[0]) == 1
        for together in zip(*calls, strict=True):
            demand_that_a_round_fits(first, op, geometry, bases, together)
        # The output of each rank is complete: its own sums, and those that it fetches.
        for rank in world:
            parts = [part for one in calls[rank] for part in one]
            own = [(part.outputs[rank], part.size) for part in parts if part.outputs[rank]]
            mine = spans([*own, *((one.to, one.size) for part in parts for one in part.fetches)])
            assert (mine[0][0], mine[-1][1]) == (x_out, x_out + out_bytes)
            assert sum(end - begin for begin, end in mine) == out_bytes


def demand_that_a_round_fits(
    first: ParallelInfo, op: MixedCommOp, geometry: Geometry, bases: list[int], calls: tuple[list[Part], ...]
) -> None:
    """calls: the parts of a round, for each rank."""
    sent = [one for parts in calls for part in parts for one in part.sends]
    for rank, (base, parts) in enumerate(zip(bases, calls, strict=True)):
        plan = first.at(rank).plan(op)
        arrived = spans((one.to - base, one.size) for one in sent if base <= one.to < 2 * base)
        # What the kernel reads is its own tensor, or has arrived.
        for part, source in itertools.product(parts, set(plan.sources) - {rank}):
            begin = part.inputs[source] - base
            assert not part.size or any(one <= begin and begin + part.size <= end for one, end in arrived)
        if arrived:
            assert arrived[0][0] >= geometry.staged_input
            assert arrived[-1][1] <= geometry.staged_output
        # What the others fetch is what it has stored for them in the same part.
        for number, part in enumerate(parts):
            stored = {(address, part.size) for address in part.outputs if address >= base}
            assert len(stored) <= 1
            assert all(begin + size <= base + geometry.total_bytes for begin, size in stored)
            theirs = {(one.source, one.size) for other in calls for one in other[number].fetches}
            assert {one for one in theirs if base <= one[0] < 2 * base} <= stored


def test_numbers_of_launches_fit_in_a_word_and_name_their_operation() -> None:
    for op, count in itertools.product(MixedCommOp, (1, 9, Numbers.COUNTS)):
        number = Numbers.of_op(op) | count
        assert 0 < number < 1 << 20
        assert Numbers.name(number) == f"{op.name} (launch {count})"


@for_each([16, 1024, 48 * 1000, (1 << 20) + 16], [(32, 32), (256, 512), (33, 100), (300, 300)], list(Packing))
def test_packets_are_shared_by_whole_warps_that_fit_on_the_sms(
    size: int, threads_of_blocks: tuple[int, int], packing: Packing
) -> None:
    fewest, most = threads_of_blocks
    # Four threads exchange words, and all threads of a warp go through a loop together.
    info = next(one for one in TOPOLOGIES if one.world_size == 2)
    for sms in (1, 8, 132):
        op, plan = info.valid_ops[0], NotedPlan(info.valid_ops[0], [Span(0, size)], [Span(0, size)])
        fields = {"peer": (0, 0), "fault": 0, "limit": 0, "stops": False}
        how: Any = info, op, Geometry(2, 2 * size, 0), fields, Limits(fewest, {op: most}, 4)
        NotedKernels(*how, is_programmatic=False, packing=packing).one_exchange(plan, size, 0, sms)  # type: ignore[arg-type]
        [(blocks, threads)] = [step[3:5] for step in plan.steps]
        assert threads % 32 == 0
        assert blocks * threads < sms * (most + 4 * 32)
        assert blocks < 1 << 12  # of which one word counts the arrivals
        assert blocks * threads >= min(packing.packets_of(size), sms * (most - 4 * 32))


@for_each([False, True], [MixedCommOp.ALLGATHER, MixedCommOp.ALLTOALL, MixedCommOp.BROADCAST])
def test_a_plan_of_copies_writes_each_part_of_the_output_once_and_nothing_that_it_reads(
    is_in_place: bool, op: MixedCommOp
) -> None:
    nothing: Any = None
    block, x_in = 48, 1 << 20
    for info in (one for one in TOPOLOGIES if one.tp_size == 1 and one.world_size > 1):
        is_broadcast, world = op is MixedCommOp.BROADCAST, info.world_size
        if is_in_place and op is MixedCommOp.ALLTOALL:
            continue
        for rank, root in itertools.product(range(world), range(world) if is_broadcast else [None]):
            own = info.at(rank)
            mode = CopyEngines("float16", nothing, Numbers(), own, {}, nothing, (), 0, ())
            count = 1 if is_broadcast else world
            in_bytes = block * (world if op.divides else 1)
            sizes = Sizes(op, (), in_bytes, block * count, block)
            x_out = x_in - (0 if is_broadcast else own.dp_rank * block) if is_in_place else x_in + in_bytes
            call = Fetched(sizes, root, None, is_in_place)
            reads, writes = mode.tensors(call, x_in, x_out)
            places = {one.begin: one.source for one in writes}
            others = [one for one in range(world) if info.at(one).dp_rank != own.dp_rank] if root is None else [root]
            # In place, the data of a rank itself is there.
            sources = [*others, *([] if root is not None else [rank])]
            expected = {
                x_out + (0 if is_broadcast else info.at(one).dp_rank * block): one
                for one in sources
                if not (is_in_place and one == rank)
            }
            assert places == expected
            assert {one.size for one in writes} <= {block}
            read = {one.begin + at for one in reads for at in range(one.size)}
            assert read <= set(range(x_in, x_in + in_bytes))
            assert bool(read) == (not is_in_place or root in (None, rank))
            assert not read & {one.begin + at for one in writes for at in range(one.size)}
