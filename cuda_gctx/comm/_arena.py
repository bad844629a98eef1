"""Memory that all ranks have mapped since the handler was built: tensors in it are neither staged nor mapped."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from math import prod
from typing import Any
from weakref import finalize

from cuda_gctx import Device
from cuda_gctx.comm._backends import CommBackend, gather
from cuda_gctx.comm._memory import Workspaces

__all__ = ["Arena"]

# Tensors begin at multiples of it, as in torch's allocator.
GRAIN = 512


@cache
def _torch() -> Any:
    return import_module("torch")


class _Block:
    """A part of the arena, as an array of bytes. A tensor of it keeps it alive."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


class Arena:
    """The memory of this rank, of which it gives out parts, and that of the other ranks. Collective.

    addresses: those of all ranks, as this rank reaches them. seen: that of this rank, as each rank reaches it.
    """

    def __init__(self, backend: CommBackend, device: Device, size: int, timeout_s: float) -> None:
        self.size = size
        self._memory = Workspaces(backend, device, size, timeout_s)
        self.addresses = self._memory.addresses
        self._begin = self.addresses[backend.Get_rank()]
        self.seen = tuple(theirs[backend.Get_rank()] for theirs in gather(backend, self.addresses))
        # A tensor can die wherever Python collects garbage, also on a thread that has the lock.
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._free = [(0, size // GRAIN * GRAIN)]  # offsets and sizes, in order
        self._dead: deque[tuple[int, int]] = deque()
        self._alive = 0
        self._is_closed = False

    @property
    def alive(self) -> int:
        """The number of tensors whose memory is in use."""
        return self._alive

    def empty(self, shape: Sequence[int], dtype: Any, element_bytes: int, device: Any) -> Any:
        """A tensor whose content is not set. MemoryError if there is no room for it.

        Its memory is given out again when the tensor is gone, unless a graph was being captured.
        """
        is_captured = bool(_torch().cuda.is_current_stream_capturing())
        size = max(-(-prod(shape) * element_bytes // GRAIN) * GRAIN, GRAIN)
        with self._lock:
            offset = self._take(size)
            self._alive += 1
        block = _Block(self._begin + offset, max(prod(shape) * element_bytes, element_bytes))
        finalize(block, self._end, offset, 0 if is_captured else size).atexit = False
        return _torch().as_tensor(block, device=device).view(dtype)[: prod(shape)].view(shape)

    def _take(self, size: int) -> int:
        self._collect()
        for at, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[at : at + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        raise MemoryError(
            f"the symmetric memory of {self.size} bytes has no room for {size} more: {self._alive} tensors are in it. "
            "Delete some, or make the handler with a larger symmetric_bytes="
        )

    def _collect(self) -> None:
        """Joins the memory of tensors that are gone with the free parts next to it."""
        while self._dead:
            self._free.append(self._dead.popleft())
        self._free.sort()
        joined: list[tuple[int, int]] = []
        for offset, size in self._free:
            if joined and sum(joined[-1]) == offset:
                offset, size = joined[-1][0], joined.pop()[1] + size
            joined.append((offset, size))
        self._free = joined

    def _end(self, offset: int, size: int) -> None:
        """A tensor is gone. size: 0 if its memory is not given out again."""
        if os.getpid() != self._process:  # a forked child has no memory, and perhaps a lock that nobody gives back
            return
        if size:
            self._dead.append((offset, size))
        with self._lock:
            self._alive -= 1
            self._close_if_unused()

    def close(self) -> None:
        """Frees the memory when no tensor uses it any more."""
        with self._lock:
            self._is_closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and self._alive == 0:
            self._memory.close()

    def release(self) -> None:
        """Releases the physical memory; addresses stay reserved."""
        self._memory.release()

    def restore(self, backend: CommBackend) -> None:
        """Maps new memory at the same addresses. Collective."""
        self._memory.restore(backend)
