"""Import of a framework with a minimum version, and the stream of a target, for the modules of this folder."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

from cuda_gctx._core.extension import Context, Stream, context_stream, lent
from cuda_gctx.partitions import Partition

__all__ = [
    "LEGACY_DEFAULT",
    "Target",
    "load",
    "own_stream",
    "refuse_default_of_green",
    "release",
]

LEGACY_DEFAULT = (0, 1)  # the handles of the legacy default stream

# The target of a block. Any: an object with __cuda_stream__.
Target = Partition | Context | Stream | Any

_checked: dict[tuple[str, str], object] = {}


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def load(module: str, package: str, minimum: str, versioned: str | None = None) -> Any:
    """Import the module; ImportError if its package is missing or older than `minimum`.

    versioned: the module with the version, if not `module`.
    """
    loaded = sys.modules.get(module)
    if loaded is not None and _checked.get((module, minimum)) is loaded:
        return loaded
    try:
        imported = import_module(module)
        with_version = import_module(versioned or module)
    # An OSError says that a library of the package does not load.
    except (ImportError, OSError) as error:
        raise ImportError(
            f"this needs {package} {minimum} or newer, which cannot be imported: {error}", name=module
        ) from error
    version = getattr(with_version, "__version__", None)
    if version is None:
        # The module is a stray folder of that name, or its import is unfinished.
        raise ImportError(f"this needs {package} {minimum} or newer, but {with_version} has no version", name=module)
    if release(version) < release(minimum):
        raise ImportError(f"this needs {package} {minimum} or newer, but found {version}", name=module)
    _checked[module, minimum] = imported
    return imported


def refuse_default_of_green(stream: Stream) -> None:
    """Raise ValueError for the default stream of a green context, whose handle means that of the current context."""
    if stream.handle in LEGACY_DEFAULT and stream.context.is_green:
        raise ValueError(
            "frameworks map this handle to the default stream of the device, not of the green context: pass another "
            "stream of the context"
        )


def own_stream(target: Target) -> Stream:
    """The stream of a partition, a context or a stream, as a separate object.

    Marks the stream as seen by a framework. Frameworks keep handles in caches that nobody can empty, so the driver's
    stream and its context are never destroyed. While the object lives, the SMs of the stream count as used.
    """
    if isinstance(target, Partition):
        stream = target.stream
    elif isinstance(target, Context):
        stream = context_stream(target)
    else:
        stream = target if isinstance(target, Stream) else Stream(target)
    refuse_default_of_green(stream)
    # The default stream is shared, and always exists.
    if stream.handle in LEGACY_DEFAULT:
        return stream
    stream.__cuda_stream__()  # marks the stream as seen by a framework, so that it is never destroyed
    return lent(stream, stream)  # the second stream keeps the partition or the context
