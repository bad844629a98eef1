"""Host threads, one for each part: they enqueue the work of their part as a program with such threads does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import Any

__all__ = ["Hosts"]

Job = Callable[[], object]


class Hosts:
    """A thread for each part. The jobs of one run can meet at its barrier."""

    def __init__(self, names: Sequence[str]) -> None:
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=f"tune {name}") for name in names}
        self._modes = _modes_of_torch()

    @contextmanager
    def running(self, jobs: Mapping[str, Job], barrier: Barrier | None = None) -> Iterator[None]:
        """A block during which each part has a job, and which waits for all of them; raises what one of them raised.

        barrier: is broken if a job fails, so that no other job waits for it.
        """
        futures = [
            self._threads[name].submit(copy_context().run, partial(self._work, job, barrier))
            for name, job in jobs.items()
        ]
        try:
            yield
        finally:
            wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error

    def _work(self, job: Job, barrier: Barrier | None) -> None:
        try:
            with self._modes():
                job()
        except BaseException:
            if barrier is not None:
                barrier.abort()
            raise

    def close(self) -> None:
        """Wait for the jobs that were started, and end the threads."""
        for thread in self._threads.values():
            thread.shutdown(wait=True)


def _modes_of_torch() -> Callable[[], Any]:
    """Blocks that give a thread the modes of this thread, such as inference_mode(), which torch keeps by thread."""
    torch: Any = sys.modules.get("torch")
    names = ("is_grad_enabled", "is_inference_mode_enabled", "set_grad_enabled", "inference_mode")
    if not all(hasattr(torch, name) for name in names):
        return nullcontext
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @contextmanager
    def modes() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            yield

    return modes
