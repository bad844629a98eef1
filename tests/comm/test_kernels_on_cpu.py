"""The kernels' own sources on the CPU: every topology and operation, random sizes, grids and delays; broken variants.

Their memory is as weak as the model in cpu_memory.hpp lets it be. What a GPU alone can show (whether it keeps to the
model, its copy engines, its speed) is not tested here.
"""

from __future__ import annotations

import faulthandler
import itertools
import mmap
import os
import random
import re
import shutil
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._compile import FOLDER
from cuda_gctx.comm._protocol import ALIGNMENT, Element, Fault, Geometry, Packing, region_of

from .cpu_kernels import (
    BITS,
    LIMIT,
    ORDERING,
    ORDERINGS,
    HostCall,
    Ranks,
    aligned,
    build,
    build_nodes,
    expected_bits,
    narrowed,
)
from .topologies import TOPOLOGIES, name_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ONE, TWO, NODES = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE, MixedCommMode.HIERARCHICAL
PACKET_BYTES = 4096
STAGED_BYTES = 16 * 1024
# In both types.
NO_NUMBER = 0x7FFF

# Of the modes in which all ranks meet. There, a topology of several nodes has the plans of one of a single node, with
# the ranks in another order, if at all.
ON_ONE_NODE = [info for info in TOPOLOGIES if info.inter_size == 1]
GRIDS = [(2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (2, 2), (4, 2)]  # tp x dp
CASES = [
    (info, op)
    for info in ON_ONE_NODE
    if (info.tp_size, info.dp_size) in GRIDS
    for op in (*info.valid_ops, *([MixedCommOp.ALLTOALL] if info.dp_size == 3 else []))
]


# Of these, with packets of 64 bits, in every run: an operation that scatters, and one that does not.
HALVES = {(2, 1, False), (2, 2, True)}

# In the hierarchical form: one operation of each topology, which together have tp, dp and both on each level.
NODE_GRIDS = {
    (2, 1, 2, 1): MixedCommOp.ALLREDUCE,
    (2, 1, 1, 2): MixedCommOp.ALLREDUCE_ALLGATHER,
    (1, 2, 2, 2): MixedCommOp.REDUCESCATTER_ALLREDUCE,
    (1, 2, 1, 2): MixedCommOp.ALLGATHER,
    (1, 1, 1, 2): MixedCommOp.REDUCESCATTER,
}  # local tp x dp, inter tp x dp
ON_NODES = {
    (one.local_tp_size, one.local_dp_size, one.inter_tp_size, one.inter_dp_size): one
    for one in TOPOLOGIES
    if one.inter_size > 1
}
NODE_CASES = [(ON_NODES[sizes], op) for sizes, op in NODE_GRIDS.items()]
OTHER_NODE_CASES = [
    case for info in ON_NODES.values() for op in info.valid_ops if (case := (info, op)) not in NODE_CASES
]


# A sample in each run; 1,000 schedules of each scenario: pytest --long tests/comm/test_kernels_on_cpu.py -k thousand
SCHEDULES = pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(1000), marks=pytest.mark.long)], ids=["sample", "thousand"]
)


def ids(value: Any) -> str:
    return name_of(value) if isinstance(value, ParallelInfo) else value.name


def one_of_three(faults: Iterable[str]) -> list[Any]:
    """Faults of the kernels, each of which is a compilation: every run has the first, the fourth, and so on."""
    return [
        pytest.param(fault, marks=() if number % 3 == 0 else pytest.mark.long) for number, fault in enumerate(faults)
    ]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def geometry_of(info: ParallelInfo) -> Geometry:
    return Geometry(info.world_size, PACKET_BYTES, STAGED_BYTES)


def data(rng: np.random.Generator, elements: int, element: Element) -> Any:
    numbers = (rng.standard_normal(elements) * rng.choice([1e-3, 1, 100])).astype(np.float32)
    numbers[rng.random(elements) < 0.1] = -0.0
    bits = aligned(elements * element.bytes).view(BITS[element])
    bits[:] = narrowed(numbers, element)
    return bits


def run_calls(
    ranks: Ranks,
    seed: int,
    count: int,
    *,
    element: Element,
    modes: tuple[MixedCommMode, ...],
    broken_staging: bool = False,
) -> list[str]:
    """Calls of random modes, sizes and grids, back to back; what was wrong. broken_staging: all of them staged."""
    info, op, world = ranks.info, ranks.op, ranks.info.world_size
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    calls: list[list[Any]] = [[] for _ in range(world)]
    wanted, found = [], []
    for number in range(count):
        mode = choose.choice(modes)
        staged = broken_staging or (mode is TWO and choose.random() < 0.5)
        part_bytes = choose.choice([1 << 20, 768])
        dp = info.dp_size if op.divides else 1
        # Small messages now and then, so that packets of older calls lie behind those of the last one.
        # Some are larger than what packets carry at once, or than what is staged at once.
        few, many = choose.randint(1, PACKET_BYTES // 16), choose.randint(1, PACKET_BYTES // 4)
        elements = ALIGNMENT // element.bytes * choose.choice([1, 2, 3, 17, few, few, many]) * dp
        inputs = [data(rng, elements, element) for _ in range(world)]
        is_in_place = op is MixedCommOp.ALLREDUCE and choose.random() < 0.3
        for rank in range(world):
            out = aligned(element.bytes * info.output_shape(op, [elements])[0]).view(BITS[element])
            tensors = ranks.tensors(rank, inputs[rank].nbytes, out.nbytes)
            tensors = (tensors[0], tensors[0]) if is_in_place else tensors
            grid = choose.randint(1, 3)
            if staged:
                how: dict[str, Any] = {"choose": choose, "part_bytes": part_bytes, "broken": broken_staging}
                how["by_kernel"] = number % 2 == 1 and not broken_staging
                made = ranks.staged_call(rank, *tensors, grid=grid, **how)
            else:
                made = ranks.call(rank, mode, *tensors, grid=grid)
            calls[rank] += ranks.surround(made, *tensors, inputs[rank], out)
            wanted.append(expected_bits(info.at(rank), op, inputs, element))
            found.append(out)
    if disorder := ranks.run(calls, seed):
        return [disorder]
    wrong = [f"fault {ranks.fault(rank)} at rank {rank}" for rank in range(world) if ranks.fault(rank)[0]]
    wrong += [f"output {at}" for at, (one, other) in enumerate(zip(wanted, found, strict=True)) if (one != other).any()]
    return wrong


@pytest.mark.parametrize(("info", "op"), CASES, ids=ids)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.long)], ids=["few", "many"])
def test_every_operation_gives_the_exact_bits(info: ParallelInfo, op: MixedCommOp, seeds: range, folder: Path) -> None:
    element = Element((info.world_size + op) % 4)
    library = build(folder, info, op, geometry_of(info), element=element)
    for seed in seeds:
        ranks = Ranks(info, op, library, geometry_of(info))
        # Near the end of the epochs, where they wrap.
        ranks.set_epochs([0, 0xFFFFFFFD][seed % 2])
        modes = (ONE,) if op is MixedCommOp.ALLTOALL else (ONE, TWO)
        assert run_calls(ranks, seed, 5, element=element, modes=modes) == []


@pytest.mark.parametrize(
    ("info", "op"),
    [
        pytest.param(info, op, marks=[] if (info.tp_size, info.dp_size, op.scatters) in HALVES else pytest.mark.long)
        for info, op in CASES
    ],
    ids=ids,
)
def test_packets_in_halves_give_the_exact_bits(info: ParallelInfo, op: MixedCommOp, folder: Path) -> None:
    element = Element((info.world_size + op) % 4)
    how: dict[str, Any] = {"packing": Packing.HALVES}
    library = build(folder, info, op, geometry_of(info), element=element, **how)
    for seed in range(4):
        ranks = Ranks(info, op, library, geometry_of(info), **how)
        ranks.set_epochs([0, 0xFFFFFFFD][seed % 2])
        assert run_calls(ranks, seed, 5, element=element, modes=(ONE,)) == []


def run_a_round_of_epochs(ranks: Ranks, seed: int) -> list[str]:
    """A large call, small ones past both places where old packets are cleared, and a large one of the same epoch."""
    rng, world = np.random.default_rng(seed), ranks.info.world_size
    wrong = []
    for epoch, sizes in ((1, [2048]), (0x7FFFFFFC, [8] * 6), (0xFFFFFFFC, [8, 8, 8, 2048])):
        ranks.set_epochs(epoch)
        calls: list[list[Any]] = [[] for _ in range(world)]
        wanted, found = [], []
        for elements in sizes:
            inputs = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
            for rank in range(world):
                out = aligned(2 * elements).view(np.uint16)
                tensors = ranks.tensors(rank, 2 * elements, 2 * elements)
                made = ranks.call(rank, ONE, *tensors, grid=2)
                calls[rank] += ranks.surround(made, *tensors, inputs[rank], out)
                wanted.append(expected_bits(ranks.info.at(rank), ranks.op, inputs, Element.BFLOAT16))
                found.append(out)
        wrong += [disorder] if (disorder := ranks.run(calls, seed)) else []
        wrong += [f"epoch {epoch:#x}" for one, other in zip(wanted, found, strict=True) if (one != other).any()]
        wrong += [f"fault {ranks.fault(rank)}" for rank in range(world) if ranks.fault(rank)[0]]
    return wrong


CLEARING = "  if (clears(epoch)) {\n    clear_slots(a.call, epoch);\n    sync_block();\n  }\n"
# What is wrong with clearing.
BADLY_CLEARED = {
    "never": (CLEARING, ""),
    "the slots of this call": ("successor(call, hop), epoch - 1, packet)", "successor(call, hop), epoch, packet)"),
    "before anything is received": (
        "  epoch = begin_call(call, word);\n  if (epoch == 0) return false;\n",
        "  epoch = begin_call(call, word);\n  if (epoch == 0) return false;\n" + CLEARING,
    ),
    "once in a round": ("(epoch | 0x80000001u) == 0xffffffffu", "(epoch | 1) == 0xffffffffu"),
}


@pytest.mark.parametrize("packing", list(Packing), ids=ids)
def test_no_packet_is_taken_for_one_of_an_earlier_round_of_the_epochs(packing: Packing, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16, packing=packing)
    for seed in range(4):
        assert run_a_round_of_epochs(Ranks(info, op, library, geometry_of(info), packing=packing), seed) == [], seed


@pytest.mark.parametrize("badly", BADLY_CLEARED)
def test_packets_that_are_badly_cleared_are_found_out(badly: str, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16, replace=[BADLY_CLEARED[badly]])

    def is_wrong(seed: int) -> bool:
        return run_a_round_of_epochs(Ranks(info, op, library, geometry_of(info), limit=20_000), seed) != []

    assert is_found_out(is_wrong), f"packets that are cleared {badly} gave the right bits 100 times"


@pytest.mark.parametrize("is_torn", [False, True], ids=["whole", "torn"])
def test_torn_packets_are_seen_when_the_ranks_meet(is_torn: bool, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 3)
    call = "store_packet(slot_at(call, successor(call, hop), 0, place), marked(number))"
    tear = [(call, call.replace("store_packet", "store_packet_in_halves"))]
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16, replace=tear if is_torn else [])
    found = []
    for seed in range(3):
        ranks = Ranks(info, op, library, geometry_of(info))
        assert ranks.run([[ranks.look_for_torn_packets(rank)] for rank in range(3)], seed) == ""
        found += [ranks.has_seen_torn_packets(rank) for rank in range(3)]
        # Nothing is left, and nothing is waited for.
        slots = slice(ranks.geometry.slots, ranks.geometry.staged_input)
        assert not any(one[slots].any() for one in ranks.workspaces)
        assert [ranks.fault(rank) for rank in range(3)] == [(0, 0)] * 3
    assert all(found) if is_torn else not any(found)


# Of calls that copy.
HOWS = ("mapped", "in place", "staged")
# Without one of the meetings, by its place among the kernels of a call.
MEETINGS = {"before the copies": 0, "after the copies": 1}


def run_copies(ranks: Ranks, seed: int, count: int, hows: Sequence[str], without: int | None = None) -> list[str]:
    """All-gathers and broadcasts by copies, and all-gathers by a kernel, back to back; what was wrong."""
    info, op, world = ranks.info, ranks.op, ranks.info.world_size
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    calls: list[list[Any]] = [[] for _ in range(world)]
    wanted, found = [], []
    for _ in range(count):
        elements = 8 * choose.choice([1, 3, 17, 200])
        inputs = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
        how = choose.choice(hows)
        root = choose.randrange(world) if how.startswith("broadcast") else None
        room = ALIGNMENT * -(-elements // 8 // choose.choice([1, 3]))
        out_elements = elements * (world if root is None else 1)
        tensors = [ranks.tensors(rank, 2 * elements, 2 * out_elements) for rank in range(world)]
        in_place = how.endswith("in place")
        mapped = [int(one[in_place].ctypes.data) for one in tensors]
        for rank in range(world):
            x_in, x_out = tensors[rank]
            out = aligned(x_out.nbytes).view(np.uint16)
            if in_place:
                x_in = x_out[rank * 2 * elements if root is None else 0 :][: 2 * elements]
            if how == "by a kernel":
                made = ranks.call(rank, TWO, x_in, x_out, grid=choose.randint(1, 3))
            else:
                there = [] if how.endswith("staged") else mapped
                made = ranks.copy_engine_call(rank, x_in, x_out, inputs=there, room=room, root=root)
                if without is not None:
                    gone = made.pop(without)
                    copies = [(one.to, one.source, one.size) for one in gone.before[: gone.copies_before]]
                    # Nothing comes behind the last meeting of a root.
                    (made[without].begin_with if without < len(made) else made[-1].end_with)(*copies)
            calls[rank] += ranks.surround(made, x_in, x_out, inputs[rank], out)
            bits = expected_bits(info.at(rank), op, inputs, Element.BFLOAT16) if root is None else inputs[root]
            wanted.append(bits)
            found.append(out)
    for one in calls:
        one += [HostCall(0, 1, 1, 0)] * (max(map(len, calls)) - len(one))
    if disorder := ranks.run(calls, seed):
        return [disorder]
    wrong = [f"fault {ranks.fault(rank)} at rank {rank}" for rank in range(world) if ranks.fault(rank)[0]]
    wrong += [f"output {at}" for at, (one, other) in enumerate(zip(wanted, found, strict=True)) if (one != other).any()]
    return wrong


@pytest.fixture(params=[(1, 2), (1, 3)], ids=["2 ranks", "3 ranks"])
def gathering(request: pytest.FixtureRequest, folder: Path) -> Callable[[], Ranks]:
    info, op = next((info, op) for info, op in CASES if (info.tp_size, info.dp_size) == request.param)
    assert op is MixedCommOp.ALLGATHER
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16)
    return lambda: Ranks(info, op, library, geometry_of(info), limit=20_000)


def test_copies_between_meetings_give_the_exact_bits(gathering: Callable[[], Ranks]) -> None:
    hows = [*HOWS, "by a kernel", *(f"broadcast {how}" for how in HOWS)]
    for seed in range(5):
        assert run_copies(gathering(), seed, 6, hows) == [], seed


@pytest.mark.parametrize("how", ["mapped", "broadcast mapped"])
@pytest.mark.parametrize("without", MEETINGS)
def test_copies_without_a_meeting_are_found_out(without: str, how: str, gathering: Callable[[], Ranks]) -> None:
    assert is_found_out(lambda seed: run_copies(gathering(), seed, 3, [how], MEETINGS[without]) != [])


@SCHEDULES
def test_a_rank_that_does_not_come_spoils_what_others_send_and_no_own_data(
    seeds: range, gathering: Callable[[], Ranks]
) -> None:
    """All-gathers and broadcasts by copies, with random sizes, roots, places and missing ranks."""
    for seed in seeds:
        ranks, choose, rng = gathering(), random.Random(seed), np.random.default_rng(seed)
        ranks.limit = 300
        world, missing = ranks.info.world_size, choose.randrange(ranks.info.world_size)
        in_place, root = choose.random() < 0.6, choose.choice([None, *range(world)])
        elements = 8 * choose.choice([1, 3, 17, 200])
        room = ALIGNMENT * -(-elements // 8 // choose.choice([1, 3]))
        own = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
        sources = range(world) if root is None else (root,)
        outs = [ranks.tensors(rank, 0, 2 * elements * len(sources))[1].view(np.uint16) for rank in range(world)]
        inputs = [ranks.tensors(rank, 2 * elements, 0)[0].view(np.uint16) for rank in range(world)]
        for rank in range(world):
            if in_place:
                inputs[rank] = outs[rank] if root is not None else np.split(outs[rank], world)[rank]
            inputs[rank][:] = own[rank]
        there = choose.choice([[], [int(one.ctypes.data) for one in inputs]])
        how: dict[str, Any] = {"inputs": there, "room": room, "root": root}
        calls = [ranks.copy_engine_call(rank, inputs[rank], outs[rank], **how) for rank in range(world)]
        for call in calls[missing]:
            call.present = 0
        for one in calls:
            one += [HostCall(0, 1, 1, 0)] * (max(map(len, calls)) - len(one))
        # A rank with a fault goes on to copy, whatever others write meanwhile.
        assert ranks.run(calls, seed, to_the_end=True) != "a deadlock", seed
        assert ranks.is_spoiled_once, seed
        for rank in range(world):
            assert bool(ranks.fault(rank)[0]) == (rank != missing), seed
            if rank == missing:
                continue
            for source, block in zip(sources, np.split(outs[rank], len(sources)), strict=True):
                wanted = own[rank] if source == rank else NO_NUMBER
                assert (block == wanted).all(), (seed, rank, source)
            if root in {None, rank} or not in_place:
                assert (inputs[rank] == own[rank]).all(), (seed, rank)


def test_no_output_is_spoiled_without_a_record_for_the_host(folder: Path) -> None:
    """A rank has a fault, and its record has been cleared: as beside recover()."""
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    for seed, mode in itertools.product(range(5), (ONE, TWO)):
        ranks = Ranks(info, op, library, geometry_of(info), limit=300)
        assert call_once(ranks, mode, [64] * 2, missing=1, seed=seed) == ""
        ranks.faults[0][:] = 0
        x_in, x_out = aligned(128), aligned(128)
        ranks._kept += [x_in, x_out]
        assert ranks.run([[one_call(ranks, 0, mode, x_in, x_out, is_copied=False)], [HostCall(0, 1, 1, 0)]], seed) == ""
        assert (x_out.view(np.uint16) == NO_NUMBER).all()
        assert ranks.fault(0)[0] == Fault.TIMEOUT, (seed, mode)


@pytest.mark.parametrize("mode", [ONE, TWO, "staged"], ids=str)
def test_a_call_that_begins_behind_a_fault_changes_no_memory_of_ranks(mode: Any, folder: Path) -> None:
    """A replay that begins while ranks recover: a later call does not find it."""
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    for seed in range(10):
        choose = random.Random(seed)
        ranks = Ranks(info, op, library, geometry_of(info), limit=300)
        epoch = choose.choice([0, 0xFFFFFFFD, choose.randrange(1 << 32)])
        ranks.set_epochs(epoch)
        for rank in range(2):
            ranks.workspaces[rank][:4].view(np.uint32)[0] = Fault.TIMEOUT
            ranks.faults[rank][:8].view(np.uint64)[0] = Fault.TIMEOUT << 32 | rank
        before = [one[: ranks.geometry.staged_input].copy() for one in ranks.workspaces]
        calls = []
        for rank in range(2):
            elements = 8 * choose.choice([17, 64, 256])
            x_in, x_out = aligned(2 * elements), aligned(2 * elements).view(np.uint16)
            ranks._kept += [x_in, x_out]
            if mode == "staged":
                how: dict[str, Any] = {"choose": choose, "part_bytes": 1 << 20}
                calls.append(ranks.staged_call(rank, x_in, x_out, grid=choose.randint(1, 32), **how))
            else:
                calls.append(ranks.call(rank, mode, x_in, x_out, grid=choose.randint(1, 32)))
        assert ranks.run(calls, seed, to_the_end=True) == "", seed
        for one, other in zip(before, ranks.workspaces, strict=True):
            assert (one == other[: ranks.geometry.staged_input]).all(), seed


def run_node_calls(ranks: Ranks, seed: int, count: int, *, element: Element) -> list[str]:
    """Hierarchical calls of random sizes, grids and numbers of rounds, back to back; what was wrong."""
    info, op, world = ranks.info, ranks.op, ranks.info.world_size
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    calls: list[list[Any]] = [[] for _ in range(world)]
    wanted, found = [], []
    for number in range(seed, seed + count):
        staged, rounds = number % 2 == 1, 1 + number % 3
        dp = info.dp_size if op.divides else 1
        units = max(choose.choice([1, 2, 3, 17, choose.randint(1, 200)]), rounds)
        elements, room = ALIGNMENT // element.bytes * units * dp, ALIGNMENT * -(-units // rounds)
        inputs = [data(rng, elements, element) for _ in range(world)]
        for rank in range(world):
            out = aligned(element.bytes * info.output_shape(op, [elements])[0]).view(BITS[element])
            tensors = ranks.tensors(rank, inputs[rank].nbytes, out.nbytes)
            grid = choose.randint(1, 3)
            made = ranks.node_call(rank, *tensors, grid=grid, staged=staged, room=room)
            calls[rank] += ranks.surround(made, *tensors, inputs[rank], out)
            wanted.append(expected_bits(info.at(rank), op, inputs, element, by_nodes=True))
            found.append(out)
    if disorder := ranks.run(calls, seed):
        return [disorder]
    wrong = [f"fault {ranks.fault(rank)} at rank {rank}" for rank in range(world) if ranks.fault(rank)[0]]
    wrong += [f"output {at}" for at, (one, other) in enumerate(zip(wanted, found, strict=True)) if (one != other).any()]
    return wrong


@pytest.mark.parametrize(
    ("info", "op"), [*NODE_CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in OTHER_NODE_CASES)], ids=ids
)
def test_the_hierarchical_form_gives_the_exact_bits(info: ParallelInfo, op: MixedCommOp, folder: Path) -> None:
    element = Element((info.world_size + op) % 4)
    geometry = geometry_of(info)
    library = build_nodes(folder, info, op, geometry, region_of(info, STAGED_BYTES), element=element)
    for seed in range(2):
        ranks = Ranks(info, op, library, geometry)
        ranks.set_epochs([0, 0xFFFFFFFD][seed % 2])
        assert run_node_calls(ranks, seed, 3, element=element) == []


@pytest.mark.parametrize("sizes", [(2, 1, 1, 2), (1, 2, 2, 2)], ids=["two nodes", "four nodes"])
def test_blocks_that_send_through_nvshmem_count_data_up_together(sizes: tuple[int, ...], folder: Path) -> None:
    info, op = ON_NODES[sizes], NODE_GRIDS[sizes]
    geometry, region = geometry_of(info), region_of(info, STAGED_BYTES)
    library = build_nodes(folder, info, op, geometry, region, element=Element.BFLOAT16, with_nvshmem=True)
    for seed in range(4):
        ranks = Ranks(info, op, library, geometry, with_nvshmem=True)
        assert run_node_calls(ranks, seed, 3, element=Element.BFLOAT16) == []


# The modes of one kernel, and whether it copies what is staged as well.
WAYS = [
    pytest.param(mode, is_copied, id=f"{mode.name}{', copied' * is_copied}")
    for mode, is_copied in ((ONE, False), (TWO, False), (TWO, True))
]


# What is taken out of the sources, and the mode that must then go wrong.
BROKEN = {
    "one slot": (ONE, " + (epoch & 1) * ((WORLD - 1) * SLOT_BYTES)", ""),
    "a packet in two halves": (
        ONE,
        "{ store_packet(slot, packet); }",
        "{ store_packet_in_halves(slot, packet); }",
    ),
    "one packet of a batch is not waited for": (
        ONE,
        "if (is_of(theirs[step][other], epoch)) continue;",
        "if (is_of(theirs[step][other], epoch) || step == 1) continue;",
    ),
    "one half of a packet is not waited for": (
        ONE,
        "return packet.word[1] == epoch && packet.word[3] == epoch;",
        "return packet.word[1] == epoch;",
    ),
    "packets behind the end": (
        ONE,
        "DEVICE bool has(u32 packet) const { return vector_of(packet) < vectors; }",
        "DEVICE bool has(u32 packet) const { return packet < count; }",
    ),
    "pieces of blocks next to each other": (
        ONE,
        "a.output + block * a.block_stride + Packets::vector_of(packet) * 16ull, result",
        "a.output + block * a.block_bytes + Packets::vector_of(packet) * 16ull, result",
    ),
    "no wait for START": (TWO, "peer_is_here = wait_flag(", "(void)sizeof wait_flag("),
    "no wait for END": (TWO, "    done = wait_flag(call, mailbox_of(own, thread) + MAILBOX_END, thread, epoch);", ""),
    "END of each block": (
        TWO,
        "      is_last = is_last_block(word, is_copied ? 2 : 1);\n",
        "      is_last_block(word, 1);\n",
    ),
    "START of the first block": (
        TWO,
        "      sends_start = is_last_block(word, 1);",
        "      sends_start = add_own(word, 1) % 4096 == 0;",
    ),
    "blocks of copies that do not wait for their own rank": (
        TWO,
        "(is_copied || thread != call.rank)",
        "thread != call.rank",
    ),
    "fetches before END": (
        TWO,
        "  if (!is_last && !is_copied) return;\n",
        "  if (!is_last && !is_copied) return;\n  if (is_copied) copy(a.fetches);\n",
    ),
    "the word is given back before the fetches": (TWO, "is_last_block(word, 3)", "true"),
    "stages filled before they are read": (TWO, "      bulk_wait_read<1>();\n", ""),
    "END before the copies are complete": (TWO, "  bulk_wait();\n  return true;", "  return true;"),
    "tiles stored before they are summed": (
        TWO,
        "SOURCES == 1 ? &tiles.full[stage] : &tiles.summed[stage]",
        "&tiles.full[stage]",
    ),
    "no wait for READY": (
        NODES,
        "is_ready = wait_signal(a, signal_of(a.region[a.node], thread) + SIGNAL_READY, thread, number, 1);",
        ";",
    ),
    "DATA of the first block": (
        NODES,
        "    is_last = is_last_block(word);\n    // Orders",
        "    is_last = (add_own(word, 1) & 4095) == 0;\n    // Orders",
    ),
    "DATA of each block through NVSHMEM": (NODES, "DATA_OF_EXCHANGE - (block_count() - 1)", "DATA_OF_EXCHANGE"),
    "one DATA for an exchange through NVSHMEM": (NODES, "#define DATA_OF_EXCHANGE 65536", "#define DATA_OF_EXCHANGE 1"),
}


@pytest.mark.parametrize("broken", one_of_three(BROKEN))
def test_broken_sources_are_found_out(broken: str, folder: Path) -> None:
    info = next(one for one in ON_ONE_NODE if (one.tp_size, one.dp_size) == (2, 2))
    op = MixedCommOp.ALLREDUCE_ALLGATHER
    mode, old, new = BROKEN[broken]
    with_nvshmem = "NVSHMEM" in broken
    packing = Packing.HALVES if "half" in broken else Packing.WHOLE
    geometry = geometry_of(info)
    if mode is NODES:
        info = ON_NODES[2, 1, 1, 2]
        region = region_of(info, STAGED_BYTES)
        library = build_nodes(
            folder,
            info,
            op,
            geometry,
            region,
            element=Element.BFLOAT16,
            with_nvshmem=with_nvshmem,
            replace=[(old, new)],
        )
    else:
        library = build(folder, info, op, geometry, element=Element.BFLOAT16, packing=packing, replace=[(old, new)])

    def is_wrong(seed: int) -> bool:
        ranks = Ranks(info, op, library, geometry, limit=20_000, with_nvshmem=with_nvshmem, packing=packing)
        if mode is NODES:
            return run_node_calls(ranks, seed, 4, element=Element.BFLOAT16) != []
        return run_calls(ranks, seed, 6, element=Element.BFLOAT16, modes=(mode,)) != []

    assert is_found_out(is_wrong), "the broken kernels gave the right bits 100 times"


def is_found_out(is_wrong: Callable[[int], bool]) -> bool:
    """Whether something is wrong with one of 100 seeds. In a child: what is broken may also crash."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        code = 1
        try:
            code = int(not any(map(is_wrong, range(100))))
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return status == 0 or os.WIFSIGNALED(status)


def run_at_once(
    ranks: Ranks,
    mode: MixedCommMode,
    seed: int,
    sizes: tuple[int, int] = (512, 1024),
    copied: tuple[bool, bool] = (False, False),
) -> tuple[list[str], set[int]]:
    """Two calls of each rank that nothing orders: what was wrong and no fault, and the kinds of the faults.

    copied: whether each of them is staged and copied by its kernel.
    """
    rng, world = np.random.default_rng(seed), ranks.info.world_size
    calls: list[list[Any]] = [[] for _ in range(world)]
    outputs = []
    # On all ranks, the first one begins before the second one.
    for number, (elements, is_copied) in enumerate(zip(sizes, copied, strict=True)):
        inputs = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
        for rank in range(world):
            out = aligned(2 * elements).view(np.uint16)
            call = one_call(ranks, rank, mode, inputs[rank], out, is_copied=is_copied)
            call.is_unordered = number == 1
            calls[rank].append(call)
            outputs.append((expected_bits(ranks.info.at(rank), ranks.op, inputs, Element.BFLOAT16), out, rank))
        ranks._kept.append(inputs)
    disorder = ranks.run(calls, seed)
    kinds = {ranks.fault(rank)[0] for rank in range(world)}
    wrong = [disorder] if disorder else []
    for wanted, out, rank in outputs:
        # What is not right on a rank with a fault is no number.
        is_right = out == wanted
        if ranks.fault(rank)[0]:
            is_right |= out == NO_NUMBER
        if not is_right.all():
            wrong.append(f"output of rank {rank}")
    return wrong, kinds


@pytest.mark.parametrize(("mode", "is_copied"), WAYS)
def test_two_kernels_of_a_rank_at_once_give_right_sums_or_a_fault(
    mode: MixedCommMode, is_copied: bool, folder: Path
) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16)
    found = set()
    # Of two sizes, and of one, where nothing but the addresses of tensors tells the two apart.
    for seed, sizes in itertools.product(range(20), [(512, 1024), (512, 512)]):
        ranks = Ranks(info, op, library, geometry_of(info), limit=300)
        # One of the two alone is copied: where one runs behind the other and nothing orders them, both race for the
        # memory in which they are staged.
        copied = (is_copied and seed % 2 == 0, is_copied and seed % 2 == 1)
        wrong, kinds = run_at_once(ranks, mode, seed, sizes, copied)
        assert wrong == [], (seed, sizes)
        found |= kinds
    assert Fault.OVERLAP in found


def run_any_calls(ranks: Ranks, mode: MixedCommMode, seed: int) -> tuple[list[str], set[int]]:
    """Run two calls of each rank: what was wrong, and the kinds of the faults.

    Draws at random: launch numbers, epochs, sizes, blocks of each rank, the order on each rank, the ranks on which
    nothing orders the two calls, staging by the kernel, and how late each kernel begins.
    """
    choose, rng, world = random.Random(seed), np.random.default_rng(seed), ranks.info.world_size
    ranks.set_epochs(choose.choice([0, 0xFFFFFFFD, 0x7FFFFFFD, choose.randrange(1 << 32)]))
    ahead, between = choose.choice([choose.randrange(40), choose.randrange(0xFFFF)]), choose.randrange(3)
    at_once = [rank for rank in range(world) if choose.random() < 0.6]
    copied = choose.choice([None, None, 0, 1]) if mode is TWO else None
    made: list[list[HostCall]] = [[] for _ in range(world)]
    sizes = [8 * choose.choice([1, 17, 64, 256, choose.randint(1, 256)]) for _ in range(2)]
    outputs = []
    for rank in range(world):
        ranks.skip_launches(rank, ahead)
    for number, elements in enumerate(sizes):
        inputs = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
        ranks._kept.append(inputs)
        for rank in range(world):
            out = aligned(2 * elements).view(np.uint16)
            grid = choose.choice([1, 2, choose.randint(1, 32)])
            if number == copied:
                how: dict[str, Any] = {"choose": choose, "part_bytes": 1 << 20, "by_kernel": True}
                [call] = ranks.staged_call(rank, inputs[rank], out, grid=grid, **how)
            else:
                [call] = ranks.call(rank, mode, inputs[rank], out, grid=grid)
            ranks.skip_launches(rank, between)
            call.late = choose.choice([0, 0, 0, choose.randrange(300), choose.randrange(30_000)])
            made[rank].append(call)
            outputs.append((expected_bits(ranks.info.at(rank), ranks.op, inputs, Element.BFLOAT16), out, rank))
    for rank in range(world):
        # Nothing tells calls of one size apart.
        if sizes[0] != sizes[1] and choose.random() < 0.1:
            made[rank].reverse()
        made[rank][1].is_unordered = rank in at_once
    wrong = ["a deadlock"] if ranks.run(made, seed, to_the_end=True) == "a deadlock" else []
    for wanted, out, rank in outputs:
        is_right = (out == wanted) | ((out == NO_NUMBER) & bool(ranks.fault(rank)[0]))
        wrong += [] if is_right.all() else [f"output of rank {rank}"]
    wrong += [] if ranks.is_spoiled_once else ["an output was spoiled twice"]
    return wrong, {ranks.fault(rank)[0] for rank in range(world)}


@pytest.mark.parametrize("mode", [ONE, TWO], ids=ids)
@pytest.mark.parametrize("tp", [2, 3])
@SCHEDULES
def test_any_two_calls_leave_right_sums_or_no_numbers_beside_a_fault(
    mode: MixedCommMode, tp: int, seeds: range, folder: Path
) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == tp)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16)
    found: set[int] = set()
    for seed in seeds:
        limit = random.Random(seed).choice([300, 3000])
        wrong, kinds = run_any_calls(Ranks(info, op, library, geometry_of(info), limit=limit), mode, seed)
        assert wrong == [], seed
        found |= kinds
    assert found >= {Fault.NONE, Fault.OVERLAP, Fault.TIMEOUT}


def run_late(ranks: Ranks, seed: int) -> list[str]:
    """Run a call of TWO_EXCHANGE whose ranks begin about as late as others wait: what was wrong.

    Some blocks have then ended, or found all ranks, when others of their kernel give up. Draws sizes, blocks, limits,
    lateness and epochs at random.
    """
    choose, rng, world = random.Random(seed), np.random.default_rng(seed), ranks.info.world_size
    ranks.set_epochs(choose.choice([0, 0xFFFFFFFD, choose.randrange(1 << 32)]))
    ranks.limit = choose.choice([1, 3, 30, 100])
    elements = 8 * choose.randint(1, 256)
    inputs = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
    outputs = [aligned(2 * elements).view(np.uint16) for _ in range(world)]
    calls = []
    for rank in range(world):
        grid = choose.choice([2, 8, choose.randint(1, 32)])
        [call] = ranks.call(rank, TWO, inputs[rank], outputs[rank], grid=grid)
        call.late = choose.choice([0, choose.randrange(30_000 * ranks.limit)])
        calls.append([call])
    wrong = ["a deadlock"] if ranks.run(calls, seed, to_the_end=True) == "a deadlock" else []
    for rank, out in enumerate(outputs):
        wanted = expected_bits(ranks.info.at(rank), ranks.op, inputs, Element.BFLOAT16)
        is_right = (out == wanted) | ((out == NO_NUMBER) & bool(ranks.fault(rank)[0]))
        wrong += [] if is_right.all() else [f"output of rank {rank}"]
    return [*wrong, *([] if ranks.is_spoiled_once else ["an output was spoiled twice"])]


@pytest.mark.parametrize("tp", [2, 3])
@SCHEDULES
def test_blocks_that_give_up_leave_no_number_that_may_be_wrong(tp: int, seeds: range, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == tp)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16)
    for seed in seeds:
        assert run_late(Ranks(info, op, library, geometry_of(info)), seed) == [], seed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("swap_own_word_if(note, epoch, 0) == epoch;", "false;"),
        ("done = swap_own_if(own + CONTROL_FAULT, 0, 0) == 0;", "done = true;"),
        ("swap_own_word_if(note, epoch, 0) == epoch;", "true;"),
    ],
    ids=["shares of ended blocks", "a fault at the end", "whose share it is"],
)
def test_spoiling_without_a_step_is_found_out(old: str, new: str, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 3)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16, replace=[(old, new)])
    assert is_found_out(lambda seed: run_late(Ranks(info, op, library, geometry_of(info)), seed) != [])


def run_plans_at_once(ranks: Ranks, seed: int, *, to_the_end: bool = True) -> tuple[list[str], set[int]]:
    """Run two staged calls that nothing orders on one rank or on all: what was wrong, and the kinds of the faults.

    Draws sizes, parts, grids, epochs, launch numbers, how late kernels begin, and whether one call is one kernel, at
    random. to_the_end: whether outputs say what is wrong, and not accesses that nothing orders.
    """
    choose, rng, world = random.Random(seed), np.random.default_rng(seed), ranks.info.world_size
    at_once = choose.choice([(0,), range(world)])
    calls: list[list[Any]] = [[] for _ in range(world)]
    outputs = []
    ahead = choose.choice([choose.randrange(40), choose.randrange(0xFFFF)])
    ranks.set_epochs(choose.choice([0, 0xFFFFFFFD, choose.randrange(1 << 32)]))
    for rank in range(world):
        ranks.skip_launches(rank, ahead)
    elements = 8 * choose.choice([17, 64, 256])
    # One kernel does not wait for the other call: it has a fault.
    by_kernel = choose.choice([(False, False), (False, True), (True, False)]) if to_the_end else (False, False)
    for number in range(2):
        elements = choose.choice([elements, 8 * choose.randint(1, 256)])
        how: dict[str, Any] = {"part_bytes": choose.choice([1 << 20, 768]), "by_kernel": by_kernel[number]}
        how["grid"] = choose.choice([1, choose.randint(1, 4), choose.randint(1, 32)])
        inputs = [data(rng, elements, Element.BFLOAT16) for _ in range(world)]
        ranks._kept.append(inputs)
        for rank in range(world):
            out = aligned(2 * elements).view(np.uint16)
            made = ranks.staged_call(rank, inputs[rank], out, choose=choose, **how)
            for call in made:
                call.is_unordered = number == 1 and rank in at_once
                call.late = choose.choice([0, 0, 0, choose.randrange(3000)])
            calls[rank] += made
            wanted = expected_bits(ranks.info.at(rank), ranks.op, inputs, Element.BFLOAT16)
            outputs.append((wanted, out, rank))
    ended = ranks.run(calls, seed, to_the_end=to_the_end)
    kinds = {ranks.fault(rank)[0] for rank in range(world)}
    wrong = [ended] if ended == "a deadlock" or (ended and not to_the_end) else []
    for wanted, out, rank in outputs:
        is_right = (out == wanted) | ((out == NO_NUMBER) & bool(ranks.fault(rank)[0]))
        wrong += [] if is_right.all() else [f"output of rank {rank}"]
    wrong += [] if ranks.is_spoiled_once else ["an output was spoiled twice"]
    return wrong, kinds


@SCHEDULES
def test_plans_at_once_give_right_sums_or_a_fault(seeds: range, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16)
    found: list[int] = []
    for seed in seeds:
        wrong, kinds = run_plans_at_once(Ranks(info, op, library, geometry_of(info), limit=30_000), seed)
        assert wrong == [], seed
        found += kinds
    # The second call of most pairs waits for the first one, and both are right.
    assert found.count(Fault.NONE) > len(found) / 2


@pytest.mark.parametrize(("mode", "is_copied"), WAYS)
def test_a_replay_after_a_fault_leaves_no_numbers(mode: MixedCommMode, is_copied: bool, folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    ranks = Ranks(info, op, library, geometry_of(info), limit=300)
    assert call_once(ranks, mode, [64] * 2, missing=1, is_copied=is_copied) == ""
    # The host has not asked for the fault, and both ranks run.
    x_in, x_out = zip(*((aligned(128), aligned(128)) for _ in range(2)), strict=True)
    calls = [[one_call(ranks, rank, mode, x_in[rank], x_out[rank], is_copied=is_copied)] for rank in range(2)]
    assert ranks.run(calls, 1) == ""
    assert (x_out[0].view(np.uint16) == NO_NUMBER).all()
    # Packets were on their way before the fault; tensors are not.
    assert ranks.fault(1) == ((0, 0) if mode is ONE else (Fault.TIMEOUT, 0))
    assert (x_out[1].view(np.uint16) == (0 if mode is ONE else NO_NUMBER)).all()
    # Behind copies: what they brought is taken for what it is.
    kept = aligned(128)
    assert ranks.run([[ranks.spoil(0, kept)], [ranks.spoil(1, kept)]], 1) == ""
    assert (kept.view(np.uint16) == NO_NUMBER).all()
    ranks.stops = True
    calls = [[one_call(ranks, rank, mode, x_in[rank], x_out[rank], is_copied=is_copied)] for rank in range(2)]
    assert ranks.run(calls, 1) == "the device was stopped"


@pytest.mark.parametrize("taken_out", one_of_three(ORDERINGS))
def test_an_ordering_that_is_taken_out_is_found_out(taken_out: str, folder: Path) -> None:
    # Blocks of several warps, kernels that begin before the one before them has ended, and a host that reads faults.
    file, _, function = taken_out.partition(": ")
    if file == "nodes":
        info, op = ON_NODES[2, 1, 1, 2], MixedCommOp.ALLREDUCE_ALLGATHER
        region = region_of(info, STAGED_BYTES)
        library = build_nodes(folder, info, op, geometry_of(info), region, element=Element.BFLOAT16)
    else:
        info, op = next((info, op) for info, op in CASES if info.tp_size == 3)
        library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16, threads_of_two=40)
    # With blocks of one warp, packets of large messages come in several batches.
    sizes = (64, 64) if "sync_warp" in taken_out else (160, 160)
    how: dict[str, Any] = {"block_sizes": sizes, "threads_of_two": 40, "is_programmatic": file == "one_exchange"}

    def is_wrong(seed: int, taken_out: str | None = taken_out) -> bool:
        ranks = Ranks(info, op, library, geometry_of(info), limit=20_000, taken_out=taken_out, is_watched=True, **how)
        if file == "nodes":
            return run_node_calls(ranks, seed, 3, element=Element.BFLOAT16) != []
        if "hold" in function or "give_back" in function:
            ranks.limit = LIMIT
            return run_plans_at_once(ranks, seed, to_the_end=False)[0] != []
        if "spoil_for_ended" in function:
            return run_late(ranks, seed) != []
        if "write_record" in function:
            ranks.limit = 300
            return call_once(ranks, TWO, [64] * 3, missing=1, seed=seed) != ""
        outputs: list[Any] = []
        # In ONE_EXCHANGE, packets of all ranks have come for most of the output.
        mode, elements = (ONE, [512, 512, 520]) if file == "one_exchange" else (TWO, [64, 64, 512])
        call_once(ranks, mode, elements, seed=seed, outputs=outputs)
        if any((one != NO_NUMBER).any() for one in outputs):
            return True
        if [ranks.fault(rank)[0] for rank in range(3)] != [Fault.MISMATCH] * 3:
            return True
        ranks = Ranks(info, op, library, geometry_of(info), limit=20_000, taken_out=taken_out, is_watched=True, **how)
        # Calls that clear old packets as well.
        ranks.set_epochs(0x7FFFFFFC)
        if run_calls(ranks, seed, 3, element=Element.BFLOAT16, modes=(mode,)):
            return True
        if "all_of_block" not in function:
            return False
        ranks = Ranks(info, op, library, geometry_of(info), limit=300, taken_out=taken_out, **how)
        return run_at_once(ranks, mode, seed)[0] != []

    assert is_found_out(is_wrong), f"without {taken_out}, nothing was wrong 100 times"
    assert not is_wrong(0, None)


def test_every_primitive_that_orders_can_be_taken_out() -> None:
    # One that is added later is taken out as well, wherever it is called.
    lines = (FOLDER / "primitives.cuh").read_text().splitlines()
    for function in re.split(r"\n(?=DEVICE )", "\n".join(line.partition("//")[0] for line in lines))[1:]:
        name = re.search(r"DEVICE .*?(\w+)\(", function)
        assert name is not None
        orders = re.search(r"\.(acquire|release|acq_rel|wait|sc)\b|fence\.|wait_group|membar|__sync|\bbar\.", function)
        # Its release is that of the instruction, and hands nothing on: the thread that arrives is the one that copies.
        assert bool(orders) == (name[1] in {*ORDERING, "barrier_arrive_and_expect"}), name[1]


def test_results_that_are_fetched_before_the_sums_are_found_out(folder: Path) -> None:
    info = next(one for one in ON_ONE_NODE if (one.tp_size, one.dp_size) == (2, 2))
    op = MixedCommOp.ALLREDUCE_ALLGATHER
    library = build(folder, info, op, geometry_of(info), element=Element.BFLOAT16)
    ranks = Ranks(info, op, library, geometry_of(info))
    wrong = run_calls(ranks, 1, 2, element=Element.BFLOAT16, modes=(TWO,), broken_staging=True)
    assert any(one.startswith("output") for one in wrong)


def one_call(ranks: Ranks, rank: int, mode: MixedCommMode, x_in: Any, x_out: Any, *, is_copied: bool) -> HostCall:
    """A call that is one kernel. is_copied: it is staged, and the kernel copies."""
    if is_copied:
        how: dict[str, Any] = {"choose": random.Random(0), "part_bytes": 1 << 20, "by_kernel": True}
        [call] = ranks.staged_call(rank, x_in, x_out, grid=2, **how)
    else:
        [call] = ranks.call(rank, mode, x_in, x_out, grid=2)
    return call


def call_once(
    ranks: Ranks,
    mode: MixedCommMode,
    elements: list[int],
    *,
    missing: int | None = None,
    seed: int = 1,
    is_copied: bool = False,
    outputs: list[Any] | None = None,
) -> str:
    """One call, in which each rank has its own number of elements; one rank may not come. What Ranks.run() returns.

    outputs: takes what each rank has as its output.
    """
    calls = []
    for rank, count in enumerate(elements):
        x_in, x_out = aligned(2 * count), aligned(2 * count)
        ranks._kept += [x_in, x_out]
        if outputs is not None:
            outputs.append(x_out.view(np.uint16))
        call = one_call(ranks, rank, mode, x_in, x_out, is_copied=is_copied)
        call.present = rank != missing
        calls.append([call])
    return ranks.run(calls, seed)


@pytest.mark.parametrize(("mode", "is_copied"), WAYS)
def test_a_rank_that_does_not_come_is_a_fault_that_names_it(mode: MixedCommMode, is_copied: bool, folder: Path) -> None:
    # Of two ranks: of more, one that the machine lets wait could be named as well.
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    ranks = Ranks(info, op, library, geometry_of(info), limit=300)
    assert call_once(ranks, mode, [64] * 2, missing=1, is_copied=is_copied) == ""
    assert [ranks.fault(rank) for rank in range(2)] == [(Fault.TIMEOUT, 1), (0, 0)]
    # With a fault, the next call ends at once: there is nothing to wait for, however long the limit.
    ranks.limit = 1 << 62
    assert call_once(ranks, mode, [64] * 2, missing=1, is_copied=is_copied) == ""


@pytest.mark.parametrize(("mode", "is_copied"), WAYS)
def test_ranks_with_different_sizes_are_a_fault_on_all_without_waiting(
    mode: MixedCommMode, is_copied: bool, folder: Path
) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 3)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    for seed in range(30):
        ranks = Ranks(info, op, library, geometry_of(info))
        assert call_once(ranks, mode, [64, 64, 512], seed=seed, is_copied=is_copied) == "", seed
        assert [ranks.fault(rank)[0] for rank in range(3)] == [Fault.MISMATCH] * 3, seed
        # Where a rank has learnt it from one that was called with the same, that one is named.
        assert all(ranks.fault(rank)[1] in {2, 1 - rank} for rank in (0, 1)), seed


@SCHEDULES
@pytest.mark.parametrize(("mode", "is_copied"), WAYS)
def test_ranks_that_do_not_agree_have_no_numbers(
    mode: MixedCommMode, is_copied: bool, seeds: range, folder: Path
) -> None:
    """Random sizes, grids and blocks of up to five warps; with equal sizes, another type of one rank."""
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    for seed in seeds:
        choose, rng = random.Random(seed), np.random.default_rng(seed)
        block_sizes = choose.choice([(4, 8), (32, 64), (160, 160)])
        ranks = Ranks(info, op, library, geometry_of(info), limit=100_000, block_sizes=block_sizes)
        elements = [8 * choose.choice([1, 3, 17, 64, 200]) for _ in range(2)]
        calls, outputs = [], []
        for rank, count in enumerate(elements):
            x_in, x_out = data(rng, count, Element.FLOAT16), aligned(2 * count).view(np.uint16)
            ranks._kept += [x_in, x_out]
            outputs.append(x_out)
            if is_copied:
                call = one_call(ranks, rank, mode, x_in, x_out, is_copied=True)
            else:
                dtype = ["float16", "bfloat16"][rank]
                [call] = ranks.call(rank, mode, x_in, x_out, grid=choose.randint(1, 8), dtype=dtype)
            calls.append([call])
        if is_copied and elements[0] == elements[1]:
            continue
        assert ranks.run(calls, seed, to_the_end=True) != "a deadlock", seed
        assert [ranks.fault(rank)[0] for rank in range(2)] == [Fault.MISMATCH] * 2, seed
        assert ranks.is_spoiled_once, seed
        for rank in range(2):
            assert (outputs[rank] == NO_NUMBER).all(), (seed, rank, elements)


def test_ranks_in_different_modes_are_a_fault_on_all(folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    ranks = Ranks(info, op, library, geometry_of(info), limit=300)
    tensors = [(aligned(128), aligned(128)) for _ in range(2)]
    calls = [ranks.call(rank, mode, *tensors[rank], grid=2) for rank, mode in enumerate((ONE, TWO))]
    assert ranks.run(calls, 1) == ""
    assert [ranks.fault(rank) for rank in range(2)] == [(Fault.TIMEOUT, 1), (Fault.TIMEOUT, 0)]


def call_nodes_once(ranks: Ranks, elements: list[int], *, missing: int | None = None) -> list[tuple[int, int]]:
    """One hierarchical call, in which each rank has its own number of elements; the faults of all ranks."""
    calls = []
    for rank, count in enumerate(elements):
        x_in, x_out = aligned(2 * count), aligned(2 * count)
        ranks._kept += [x_in, x_out]
        calls.append(ranks.node_call(rank, x_in, x_out, grid=2))
        for call in calls[-1]:
            call.present = rank != missing
    assert ranks.run(calls, 1) == ""
    return [ranks.fault(rank) for rank in range(len(elements))]


def test_nodes_that_do_not_agree_or_do_not_come_are_a_fault_that_names_the_rank(folder: Path) -> None:
    # Two nodes of one rank, and two nodes of two: the equal local rank of the other node is the one that is named.
    op = MixedCommOp.ALLREDUCE
    for sizes, elements, of_others in (
        ((1, 1, 2, 1), [64, 512], [1, 0]),
        ((2, 1, 2, 1), [64, 64, 512, 512], [2, 3, 0, 1]),
    ):
        info = ON_NODES[sizes]
        region = region_of(info, STAGED_BYTES)
        library = build_nodes(folder, info, op, geometry_of(info), region, element=Element.FLOAT16)
        ranks = Ranks(info, op, library, geometry_of(info))
        assert call_nodes_once(ranks, elements) == [(Fault.MISMATCH, other) for other in of_others]
    ranks = Ranks(info, op, library, geometry_of(info), limit=300)
    faults = call_nodes_once(ranks, [64] * 4, missing=2)
    assert faults[0] == (Fault.TIMEOUT, 2)
    assert faults[2] == (0, 0)
    assert {kind for kind, _ in faults[1::2]} == {Fault.TIMEOUT}


class Aliased:
    """Memory that is mapped twice, as by two processes."""

    def __init__(self, size: int) -> None:
        file = os.memfd_create("tensor")
        os.ftruncate(file, size)
        self._maps = [mmap.mmap(file, size) for _ in range(2)]
        os.close(file)
        self.own, self.peers = (np.frombuffer(one, np.uint16) for one in self._maps)


def test_the_kernel_gives_each_rank_the_address_under_which_it_sees_the_tensor(folder: Path) -> None:
    info, op = next((info, op) for info, op in CASES if info.tp_size == 2)
    library = build(folder, info, op, geometry_of(info), element=Element.FLOAT16)
    ranks = Ranks(info, op, library, geometry_of(info))
    inputs, outputs = ([Aliased(4096) for _ in range(2)] for _ in range(2))
    calls = []
    for rank in range(2):
        inputs[rank].own[:] = np.full(2048, rank + 1, np.float16).view(np.uint16)
        # The own address is of no use to others: only the peer is given the alias.
        aliases = [(0, int(one[rank].peers.ctypes.data)) for one in (inputs, outputs)]
        seen: Any = tuple(pair if rank == 0 else pair[::-1] for pair in aliases)
        how: dict[str, Any] = {"grid": 2, "seen": seen}
        calls.append(ranks.call(rank, MixedCommMode.TWO_EXCHANGE, inputs[rank].own, outputs[rank].own, **how))
    assert ranks.run(calls, seed=1) == ""
    for rank in range(2):
        assert ranks.fault(rank) == (0, 0)
        assert (outputs[rank].own.view(np.float16) == 3).all()
