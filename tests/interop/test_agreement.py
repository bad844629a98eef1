"""Ranks agree on their partitions, or all of them raise the same error: torch.distributed is played by threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import Device, Layout
from cuda_gctx.interop.agreement import agree

pytestmark = pytest.mark.sim_only


class Ranks:
    """torch.distributed whose ranks are threads."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._barrier = threading.Barrier(number, timeout=30)
        self._said: list[Any] = [None] * number
        self._here = threading.local()
        self.is_available = self.is_initialized = lambda: True
        self.is_nccl_available = lambda: False

    def get_world_size(self, group: Any) -> int:
        return self._number

    def all_gather_object(self, into: list[Any], said: Any, group: Any) -> None:
        self._said[self._here.rank] = said
        self._barrier.wait()
        into[:] = self._said

    def run(self, call: Callable[[int], None]) -> list[str | None]:
        """Call a function on each rank; returns the error of each."""
        errors: list[str | None] = [None] * self._number

        def work(rank: int) -> None:
            self._here.rank = rank
            try:
                call(rank)
            except Exception as error:
                errors[rank] = f"{type(error).__name__}: {error}"

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self._number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    distributed = Ranks(3)
    torch: Any = ModuleType("torch")
    torch.__version__, torch.distributed = "2.11.0", distributed
    torch.cuda = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return distributed


def test_ranks_with_the_same_layout_agree(ranks: Ranks, dev: Device) -> None:
    assert ranks.run(lambda rank: agree(Layout(comm=16, compute=None), device=dev)) == [None] * 3
    with dev.partition(comm=16, compute=None) as parts:
        assert ranks.run(lambda rank: agree(parts)) == [None] * 3


def test_ranks_that_differ_are_named_by_the_same_error_on_all(ranks: Ranks, dev: Device) -> None:
    errors = ranks.run(lambda rank: agree(Layout(comm=32 if rank == 1 else 16), device=dev))
    assert len(set(errors)) == 1
    assert errors[0] is not None
    assert errors[0].startswith("RanksDifferError: the ranks of this group differ (request")
    assert "request: Layout(comm=16) on ranks 0, 2, Layout(comm=32) on rank 1" in errors[0]
    assert "numbers of SMs: comm 16, background 116 on ranks 0, 2, comm 32, background 100 on rank 1" in errors[0]


def test_layouts_whose_numbers_are_the_same_differ_in_the_request(ranks: Ranks, dev: Device) -> None:
    [error, *_] = ranks.run(lambda rank: agree(Layout(comm=9 if rank else 16), device=dev))
    assert error is not None
    assert "request: " in error
    assert "numbers of SMs" not in error


def test_a_rank_that_cannot_open_its_layout_stops_all(ranks: Ranks, dev: Device) -> None:
    errors = ranks.run(lambda rank: agree(Layout(comm=200 if rank == 2 else 16), device=dev))
    assert len(set(errors)) == 1
    assert errors[0] is not None
    assert "cannot continue: rank 2: SplitError: Layout(comm=200) does not fit" in errors[0]


def test_a_layout_that_fits_nowhere_is_the_error_of_opening_it(ranks: Ranks, dev: Device) -> None:
    errors = ranks.run(lambda rank: agree(Layout(comm=200), device=dev))
    assert len(set(errors)) == 1
    assert errors[0] is not None
    assert errors[0].startswith("SplitError: Layout(comm=200) does not fit")


def test_only_a_layout_or_partitions_can_be_agreed_on(ranks: Ranks, dev: Device) -> None:
    wrong: Any = {"comm": 16}
    with pytest.raises(TypeError, match="must be a Layout or Partitions, not dict"):
        agree(wrong)


def test_ranks_are_those_of_torch_distributed(ranks: Ranks, dev: Device) -> None:
    ranks.is_initialized = lambda: False
    with pytest.raises(RuntimeError, match=r"call init_process_group\(\) first"):
        agree(Layout(16))
