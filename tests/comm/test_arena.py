"""Symmetric memory: which parts of it tensors get, and when these are given out again."""

from __future__ import annotations

import gc
import itertools
import os
import random
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx.comm import _arena
from cuda_gctx.comm._arena import GRAIN, Arena
from cuda_gctx.comm._backends import LocalBackend

BEGIN = 1 << 30
UNUSED: Any = None


class Memory:
    """Stands in for the memory of the ranks. closed: how often it was freed."""

    closed = 0

    def __init__(self, *given: Any) -> None:
        self.addresses = (BEGIN,)

    def close(self) -> None:
        Memory.closed += 1


class Bytes:
    """Stands in for a tensor: keeps what it was made of."""

    def __init__(self, block: Any, count: int) -> None:
        self.block, self.count = block, count

    def view(self, what: Any) -> Bytes:
        return self

    def __getitem__(self, elements: slice) -> Bytes:
        return Bytes(self.block, elements.stop)

    @property
    def begin(self) -> int:
        return int(self.block.__cuda_array_interface__["data"][0])


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(now=False)
    cuda = SimpleNamespace(is_current_stream_capturing=lambda: state.now)
    torch = SimpleNamespace(cuda=cuda, as_tensor=lambda block, device: Bytes(block, 0))
    monkeypatch.setattr(_arena, "_torch", lambda: torch)
    monkeypatch.setattr(_arena, "Workspaces", Memory)
    Memory.closed = 0
    return state


def arena_of(size: int) -> Arena:
    [backend] = LocalBackend.of(1, 30)
    return Arena(backend, UNUSED, size, 30)


def test_tensors_that_live_share_no_memory_and_that_of_others_is_given_out_again(captures: SimpleNamespace) -> None:
    """Tensors of random sizes are made and deleted; with the last one, all of the memory is free again."""
    refused = 0
    for seed in range(50):
        choose, size = random.Random(seed), GRAIN * 64
        arena, alive = arena_of(size), list[tuple[int, int, Bytes]]()
        for _ in range(200):
            if alive and choose.random() < 0.45:
                del alive[choose.randrange(len(alive))]
                continue
            count = choose.choice([0, 1, 7, 256, choose.randrange(GRAIN * 16)])
            try:
                tensor = arena.empty([count], "float16", 2, "cuda")
            except MemoryError:
                refused += 1
                continue
            assert tensor.begin % GRAIN == 0
            alive.append((tensor.begin, tensor.begin + 2 * count, tensor))
            assert arena.alive == len(alive)
        spans = sorted((begin, end) for begin, end, _ in alive)
        assert all(end <= later for (_, end), (later, _) in itertools.pairwise(spans)), seed
        assert all(begin >= BEGIN and end <= BEGIN + size for begin, end in spans)
        del tensor
        alive.clear()
        gc.collect()
        assert arena.empty([size], "uint8", 1, "cuda").begin == BEGIN, seed
    assert refused


def test_what_was_given_out_during_a_capture_is_not_given_out_again(captures: SimpleNamespace) -> None:
    arena = arena_of(4 * GRAIN)
    captures.now = True
    captured = arena.empty([GRAIN], "uint8", 1, "cuda").begin
    captures.now = False
    gc.collect()
    assert arena.alive == 0
    kept = [arena.empty([GRAIN], "uint8", 1, "cuda") for _ in range(3)]
    assert captured not in [one.begin for one in kept]
    with pytest.raises(MemoryError, match="2048 bytes has no room for 512 more: 3 tensors are in it"):
        arena.empty([1], "uint8", 1, "cuda")


def test_a_forked_child_frees_nothing(captures: SimpleNamespace) -> None:
    arena = arena_of(GRAIN)
    tensor = arena.empty([1], "uint8", 1, "cuda")
    arena.close()
    child = os.fork()
    if child == 0:
        del tensor
        os._exit(Memory.closed)
    assert os.waitpid(child, 0)[1] == 0
    del tensor
    assert Memory.closed == 1


def test_memory_is_freed_once_when_neither_handler_nor_tensors_use_it(captures: SimpleNamespace) -> None:
    arena = arena_of(4 * GRAIN)
    tensors = [arena.empty([2, 8], "float16", 2, "cuda") for _ in range(2)]
    arena.close()
    del tensors[0]
    assert Memory.closed == 0
    tensors.clear()
    assert Memory.closed == 1
    unused = arena_of(GRAIN)
    unused.close()
    assert Memory.closed == 2
