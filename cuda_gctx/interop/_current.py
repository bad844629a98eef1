"""The current stream of all frameworks that a program has imported."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from cuda_gctx._core.extension import Stream
from cuda_gctx.interop import cupy, torch

__all__ = ["current_stream_of_frameworks"]

_CURRENT: dict[str, Callable[[Stream], AbstractContextManager[Any]]] = {"torch": torch.current, "cupy": cupy.current}


def current_stream_of_frameworks(stream: Stream) -> AbstractContextManager[None]:
    """Make a stream the current one of torch and of CuPy in a block, if they are imported.

    The caller orders the streams, and keeps the stream alive. A framework that is too old causes a warning, because
    the program may use it for another purpose.
    """
    # A stray folder of that name and a module with an unfinished import lack the attribute "cuda".
    loaded = [name for name in _CURRENT if name in sys.modules and hasattr(sys.modules[name], "cuda")]
    return _current_of(loaded, stream) if loaded else nullcontext()


@contextmanager
def _current_of(frameworks: Iterable[str], stream: Stream) -> Iterator[None]:
    with ExitStack() as blocks:
        for framework in frameworks:
            try:
                blocks.enter_context(_CURRENT[framework](stream))
            except ImportError as error:
                warnings.warn(f"work of {framework} does not go to the stream: {error}", stacklevel=3)
        yield
