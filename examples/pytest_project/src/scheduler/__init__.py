"""Runs urgent and bulk jobs of one device, each kind on SMs of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from cuda_gctx import CUDAError, Device, Stream

Job = Callable[[Stream], None]


class Scheduler:
    """Urgent jobs have a share of the SMs; without room for partitions, all jobs share the device.

    share: of the SMs, for urgent jobs.
    """

    def __init__(self, device: Device, share: float = 0.125) -> None:
        self.device = device
        self.is_partitioned = True
        try:
            self._parts = device.partition(urgent=share, bulk=None)
        except CUDAError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            self.is_partitioned = False
            self._streams = {kind: device.create_stream() for kind in ("urgent", "bulk")}
        else:
            self._streams = {part.name: part.stream for part in self._parts}

    def submit(self, kind: str, job: Job) -> None:
        """Enqueue a job, "urgent" or "bulk"."""
        job(self._streams[kind])

    def sm_count(self, kind: str) -> int:
        """The number of SMs that jobs of a kind can use."""
        return self._streams[kind].resources.sm.sm_count

    def is_idle(self, kind: str) -> bool:
        """Whether all jobs of a kind have finished."""
        return self._streams[kind].is_done

    def close(self) -> None:
        """Wait for all jobs, and give the SMs back."""
        for stream in self._streams.values():
            stream.sync()
        if self.is_partitioned:
            self._parts.close()
        else:
            for stream in self._streams.values():
                stream.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
