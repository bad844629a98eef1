"""Mapped tensors: which address each rank gives to the others, and what is refused."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from cuda_gctx.comm import _tensors as tensors
from cuda_gctx.comm._backends import LocalBackend
from cuda_gctx.comm._memory import Identity, process_identity

DEVICE: Any = SimpleNamespace(device_id=0, context=SimpleNamespace(current=nullcontext))


def on_all(size: int, work: Any) -> list[Any]:
    """What each of several ranks returns, or the exception that it raises."""
    found: list[Any] = [None] * size

    def run(backend: LocalBackend) -> None:
        rank = backend.Get_rank()
        try:
            found[rank] = work(rank, backend)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(one,)) for one in LocalBackend.of(size, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def mapped(rank: int, processes: list[str]) -> tensors.MappedTensors:
    identities = [Identity("host", process, 0, "bus", 0) for process in processes]
    return tensors.MappedTensors(DEVICE, identities, rank)


def test_threads_reach_tensors_where_they_are() -> None:
    def work(rank: int, backend: LocalBackend) -> Any:
        own = mapped(rank, [process_identity()] * 2)
        own.add(backend, [(4096 * (rank + 1), 512)])
        return own.find(4096 * (rank + 1) + 16, 16)

    assert on_all(2, work) == [(4112, 4112), (8208, 8208)]


def test_what_is_mapped_or_unmapped_later_is_found_or_not() -> None:
    def work(rank: int, backend: LocalBackend) -> Any:
        own, found = mapped(rank, [process_identity()] * 2), []
        begin = 4096 * (rank + 1)
        for _ in range(2):
            found.append(own.find(begin, 16))
            own.add(backend, [(begin, 512)])
            found += [own.find(begin, 16), own.find(begin, 16), own.find(begin, 513)]
            own.remove(begin)
        return [*found, own.find(begin, 16)]

    assert on_all(2, work) == [[None, (begin, begin), (begin, begin), None] * 2 + [None] for begin in (4096, 8192)]
