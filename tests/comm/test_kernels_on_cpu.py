"""The kernels' own sources on the CPU: every topology and operation, random sizes, grids and delays; broken variants.

What a GPU alone can show (its memory model, its copy engines, its speed) is not tested here.
"""

from __future__ import annotations

import ctypes
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._launch import one_exchange_arguments, two_exchange_arguments
from cuda_gctx.comm._protocol import Geometry

from .cpu_kernels import Ranks, aligned, build, expected_bits, narrowed
from .topologies import TOPOLOGIES, name_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ONE, TWO = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE
PACKET_BYTES = 4096
STAGED_BYTES = 64 * 1024

# A topology of several nodes has the plans of one of a single node, with the ranks in another order, if at all.
CASES = [(info, op) for info in TOPOLOGIES if info.inter_size == 1 for op in info.valid_ops]


def ids(value: Any) -> str:
    return name_of(value) if isinstance(value, ParallelInfo) else value.name


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def geometry_of(info: ParallelInfo) -> Geometry:
    return Geometry(info.world_size, PACKET_BYTES, STAGED_BYTES)


def data(rng: np.random.Generator, elements: int, is_bfloat16: bool) -> Any:
    numbers = (rng.standard_normal(elements) * rng.choice([1e-3, 1, 100])).astype(np.float32)
    numbers[rng.random(elements) < 0.1] = -0.0
    bits = aligned(elements * 2).view(np.uint16)
    bits[:] = narrowed(numbers, is_bfloat16)
    return bits


def run_calls(ranks: Ranks, seed: int, count: int, *, is_bfloat16: bool, modes: tuple[MixedCommMode, ...]) -> list[str]:
    """Calls of random modes, sizes and grids, back to back; what was wrong."""
    info, op, world = ranks.info, ranks.op, ranks.info.world_size
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    calls: list[list[Any]] = [[] for _ in range(world)]
    wanted, found = [], []
    for _ in range(count):
        mode = choose.choice(modes)
        staged = mode is TWO and choose.random() < 0.5
        dp = info.dp_size if op.scatters else 1
        # Small messages now and then, so that packets of older calls lie behind those of the last one.
        elements = 8 * choose.choice([1, 2, 3, 17, choose.randint(1, PACKET_BYTES // 16)]) * dp
        inputs = [data(rng, elements, is_bfloat16) for _ in range(world)]
        for rank in range(world):
            out = aligned(2 * info.output_shape(op, [elements])[0]).view(np.uint16)
            calls[rank].append(ranks.call(rank, mode, inputs[rank], out, grid=choose.randint(1, 3), staged=staged))
            wanted.append(expected_bits(info.at(rank), op, inputs, is_bfloat16))
            found.append(out)
            ranks._kept.append(inputs)
    ranks.run(calls, seed)
    wrong = [f"fault {ranks.fault(rank)} at rank {rank}" for rank in range(world) if ranks.fault(rank)[0]]
    wrong += [f"output {at}" for at, (one, other) in enumerate(zip(wanted, found, strict=True)) if (one != other).any()]
    return wrong


@pytest.mark.parametrize(("info", "op"), CASES, ids=ids)
def test_every_operation_gives_the_exact_bits(info: ParallelInfo, op: MixedCommOp, folder: Path) -> None:
    is_bfloat16 = (info.world_size + op) % 2 == 0
    library = build(folder, info, op, geometry_of(info), is_bfloat16=is_bfloat16)
    for seed in range(2):
        ranks = Ranks(info, op, library, geometry_of(info))
        # Near the end of the epochs, where they wrap.
        ranks.set_epochs([0, 0xFFFFFFFD][seed])
        assert run_calls(ranks, seed, 5, is_bfloat16=is_bfloat16, modes=(ONE, TWO)) == []


@pytest.mark.parametrize(("info", "op"), CASES, ids=ids)
def test_host_and_kernels_agree_on_the_structs(info: ParallelInfo, op: MixedCommOp, folder: Path) -> None:
    is_bfloat16 = (info.world_size + op) % 2 == 0
    library = build(folder, info, op, geometry_of(info), is_bfloat16=is_bfloat16)
    plan = info.plan(op)
    one = one_exchange_arguments(info.world_size)
    two = two_exchange_arguments(info.world_size, len(plan.sources), len(plan.targets))
    assert library.size_of_one_exchange() == ctypes.sizeof(one)
    assert library.size_of_two_exchange() == ctypes.sizeof(two)
