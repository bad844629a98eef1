"""What a kernel reports when it cannot finish: a record in memory of the host, and the exception that it becomes."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from cuda_gctx import CUDAError, Device
from cuda_gctx.comm._driver_calls import call, driver
from cuda_gctx.comm._numbers import Numbers
from cuda_gctx.comm._protocol import Fault

__all__ = ["CommFault", "FaultRecord"]

OVER = "the handler cannot be used until all ranks call recover()"


class CommFault(RuntimeError):
    """A rank was missing for the time limit, or ranks had different arguments, or two kernels of a rank ran at once.

    The handler cannot be used until all ranks call recover(). kind: "timeout", "mismatch" or "overlap"; peer_rank: the
    world rank that the kernel waited for, or the rank on which the two ran.
    """

    __module__ = __name__.rpartition(".")[0]  # the public name

    def __init__(self, message: str, kind: str, peer_rank: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.peer_rank = peer_rank


class FaultRecord:
    """Words of host memory that the kernels of a rank write to, once: kind and peer, a detail, and torn packets."""

    BYTES = 24

    def __init__(self, device: Device, rank: int, timeout_s: float) -> None:
        self._device = device
        self._rank = rank
        self._timeout_s = timeout_s
        flags = driver().CU_MEMHOSTALLOC_PORTABLE | driver().CU_MEMHOSTALLOC_DEVICEMAP
        with device.context.current():
            self.host_address = int(call("cuMemHostAlloc", self.BYTES, flags))
            self.address = int(call("cuMemHostGetDevicePointer", self.host_address, 0))
        self._words = (ctypes.c_uint64 * 3).from_address(self.host_address)
        self.clear()

    def set(self, kind: Fault, peer: int) -> None:
        """Reports a fault, if there is none."""
        if not self:
            self._words[1], self._words[0] = 0, kind << 32 | peer

    def clear(self) -> None:
        self._words[:] = [0, 0, 0]

    def __bool__(self) -> bool:
        """Whether there is a fault."""
        return self._words[0] != 0

    def read(self) -> tuple[int, int, int]:
        """Kind, peer and detail; the kind is 0 where there is no fault."""
        word = self._words[0]
        return word >> 32, word & 0xFFFFFFFF, self._words[1]

    @property
    def has_torn_packet(self) -> bool:
        return self._words[2] != 0

    def exception(self) -> CommFault:
        """What is raised for the fault that there is."""
        kind, peer, detail = self.read()
        if kind == Fault.MISMATCH:
            return CommFault(
                f"rank {self._rank} and rank {peer} were called with different operations, modes, types, sizes or "
                f"roots; {OVER}",
                "mismatch",
                peer,
            )
        if kind == Fault.OVERLAP:
            running, other = Numbers.name(detail >> 32), Numbers.name(detail & 0xFFFFFFFF)
            return CommFault(
                f"two kernels of rank {self._rank} ran at the same time, of {running} and of {other}: order the "
                f"streams on which the handler is used and on which its graphs are replayed; {OVER}",
                "overlap",
                peer,
            )
        return CommFault(
            f"rank {self._rank} waited for rank {peer} for {self._timeout_s} s, in call {detail}; {OVER}",
            "timeout",
            peer,
        )

    def close(self) -> None:
        if self.host_address:
            host, self.host_address = self.host_address, 0
            del self._words
            with suppress(CUDAError), self._device.context.current():
                call("cuMemFreeHost", host)
