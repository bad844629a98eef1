"""The current stream of all frameworks that a program has imported."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cuda_gctx._core.stream import Stream
from cuda_gctx.interop import cupy, torch

__all__ = ["current_stream_of_frameworks"]


@contextmanager
def current_stream_of_frameworks(stream: Stream) -> Iterator[None]:
    """Make a stream the current one of torch and of CuPy in a block, if they are imported.

    The caller orders the streams, and keeps the stream alive. A framework that is too old causes a warning, because
    the program may use it for another purpose.
    """
    with ExitStack() as blocks:
        for framework, current in (("torch", torch.current), ("cupy", cupy.current)):
            # A stray folder of that name has no such attribute, nor has a module whose import is unfinished.
            if not hasattr(sys.modules.get(framework), "cuda"):
                continue
            try:
                blocks.enter_context(current(stream))
            except ImportError as error:
                warnings.warn(f"work of {framework} does not go to the stream: {error}", stacklevel=3)
        yield
