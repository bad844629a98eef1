"""What the modules of this folder share: a framework that is new enough, and the stream that a target stands for."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from weakref import finalize, ref

from cuda_gctx._context import Context
from cuda_gctx._stream import Stream
from cuda_gctx.partitions import Partition

__all__ = ["LEGACY_DEFAULT", "Target", "current_stream_of_frameworks", "load", "own_stream", "release"]

LEGACY_DEFAULT = (0, 1)  # the handles of the legacy default stream

# Anything with __cuda_stream__ will do as well.
Target = Partition | Context | Stream | Any

_lock = threading.Lock()
_checked: dict[tuple[str, str], object] = {}
# One stream for each context that is used itself: frameworks keep memory for each stream that they see.
_stream_of_context: dict[int, tuple[ref[Context], Stream]] = {}


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, to be compared."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def load(module: str, package: str, minimum: str, versioned: str | None = None) -> Any:
    """The module, imported; ImportError if its package is missing or older than `minimum`.

    versioned: the module that tells the version, if it is not the same.
    """
    known = sys.modules.get(module)
    if known is not None and _checked.get((module, minimum)) is known:
        return known
    try:
        found = import_module(module)
        version = import_module(versioned or module).__version__
    except ImportError as error:
        raise ImportError(
            f"this needs {package} {minimum} or newer, which cannot be imported: {error}", name=module
        ) from error
    if release(version) < release(minimum):
        raise ImportError(f"this needs {package} {minimum} or newer, and found {version}", name=module)
    _checked[module, minimum] = found
    return found


def _kept_stream(context: Context) -> Stream:
    with _lock:
        # Closing a context ends the use of its stream too, even if the object lives on.
        for key, (owner, _) in list(_stream_of_context.items()):
            known = owner()
            if known is None or known.is_closed:
                _stream_of_context.pop(key, None)
        if id(context) in _stream_of_context:
            return _stream_of_context[id(context)][1]
        made = context.create_stream()
        # Another object for it is kept: what create_stream() gives refers to its Context, which would live as long.
        stream = Stream.from_handle(made.handle)
        _stream_of_context[id(context)] = ref(context), stream
        # By identity, and gone before the identity is used again. At exit the process takes everything along.
        finalize(context, _stream_of_context.pop, id(context), None).atexit = False
        return stream


def own_stream(target: Target) -> Stream:
    """The stream of a partition, a context or a stream, as an object of its own.

    The driver's stream then lives as long as this object, also when the partition or the stream is closed meanwhile: a
    framework that holds its handle cannot tell.
    """
    if isinstance(target, Partition):
        stream = target.stream
    elif isinstance(target, Context):
        stream = _kept_stream(target)
    else:
        stream = target if isinstance(target, Stream) else Stream(target)
    # The default stream is everybody's, and always there.
    return Stream.from_handle(stream.handle, owner=(stream, target)) if stream.handle else stream


@contextmanager
def current_stream_of_frameworks(stream: Stream) -> Iterator[None]:
    """Makes a stream the current one of torch and of CuPy, where they are imported, for the length of a block.

    Nothing waits for anything: the order with other streams is the caller's, who also keeps the stream alive.
    """
    with ExitStack() as blocks:
        for framework in ("torch", "cupy"):
            if sys.modules.get(framework) is not None:
                blocks.enter_context(import_module(f"cuda_gctx.interop.{framework}").current(stream))
        yield
