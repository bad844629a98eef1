"""What the modules of this folder share: a framework that is new enough, and the stream that a target stands for."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from cuda_gctx._core.context import Context
from cuda_gctx._core.lease import kept_stream
from cuda_gctx._core.stream import Stream
from cuda_gctx.partitions import Partition

__all__ = [
    "LEGACY_DEFAULT",
    "Target",
    "current_stream_of_frameworks",
    "load",
    "own_stream",
    "refuse_default_of_green",
    "release",
]

LEGACY_DEFAULT = (0, 1)  # the handles of the legacy default stream

# Anything with __cuda_stream__ will do as well.
Target = Partition | Context | Stream | Any

_checked: dict[tuple[str, str], object] = {}


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
        telling = import_module(versioned or module)
    # OSError: a library that it is made of does not load.
    except (ImportError, OSError) as error:
        raise ImportError(
            f"this needs {package} {minimum} or newer, which cannot be imported: {error}", name=module
        ) from error
    version = getattr(telling, "__version__", None)
    if version is None:
        # A stray folder of that name, or an import that is not done.
        raise ImportError(f"this needs {package} {minimum} or newer, and {telling} has no version", name=module)
    if release(version) < release(minimum):
        raise ImportError(f"this needs {package} {minimum} or newer, and found {version}", name=module)
    _checked[module, minimum] = found
    return found


def refuse_default_of_green(stream: Stream) -> None:
    """ValueError for the default stream of a green context: its handle means that of the context that is current."""
    if stream.handle in LEGACY_DEFAULT and stream.context.is_green:
        raise ValueError(
            "frameworks take the default stream of a green context for that of the device: give another stream of the "
            "context"
        )


def own_stream(target: Target) -> Stream:
    """The stream of a partition, a context or a stream, as an object of its own.

    The driver's stream then lives as long as this object, also when the partition or the stream is closed meanwhile: a
    framework that holds its handle cannot tell.
    """
    if isinstance(target, Partition):
        stream = target.stream
    elif isinstance(target, Context):
        stream = kept_stream(target)
    else:
        stream = target if isinstance(target, Stream) else Stream(target)
    refuse_default_of_green(stream)
    # The default stream is everybody's, and always there.
    return stream if stream.handle in LEGACY_DEFAULT else Stream.from_handle(stream.handle, owner=(stream, target))


@contextmanager
def current_stream_of_frameworks(stream: Stream) -> Iterator[None]:
    """Makes a stream the current one of torch and of CuPy, where they are imported, for the length of a block.

    Nothing waits for anything: the order with other streams is the caller's, who also keeps the stream alive. A
    framework that is too old is warned of, because it may be imported for something else.
    """
    with ExitStack() as blocks:
        for framework in ("torch", "cupy"):
            # A stray folder of that name has no such thing, nor has one whose import is not done.
            if not hasattr(sys.modules.get(framework), "cuda"):
                continue
            try:
                blocks.enter_context(import_module(f"cuda_gctx.interop.{framework}").current(stream))
            except ImportError as error:
                warnings.warn(f"what {framework} is given does not go to the stream: {error}", stacklevel=3)
        yield
