"""Loading a framework that is new enough, and the stream of a target: shared by the modules of this folder."""

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

# Or any object with __cuda_stream__.
Target = Partition | Context | Stream | Any

_checked: dict[tuple[str, str], object] = {}


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def load(module: str, package: str, minimum: str, versioned: str | None = None) -> Any:
    """Import the module; ImportError if its package is missing or older than `minimum`.

    versioned: the module with the version, if it is another one.
    """
    loaded = sys.modules.get(module)
    if loaded is not None and _checked.get((module, minimum)) is loaded:
        return loaded
    try:
        imported = import_module(module)
        with_version = import_module(versioned or module)
    # OSError: one of its libraries does not load.
    except (ImportError, OSError) as error:
        raise ImportError(
            f"this needs {package} {minimum} or newer, which cannot be imported: {error}", name=module
        ) from error
    version = getattr(with_version, "__version__", None)
    if version is None:
        # A stray folder of that name, or an unfinished import.
        raise ImportError(f"this needs {package} {minimum} or newer, but {with_version} has no version", name=module)
    if release(version) < release(minimum):
        raise ImportError(f"this needs {package} {minimum} or newer, but found {version}", name=module)
    _checked[module, minimum] = imported
    return imported


def refuse_default_of_green(stream: Stream) -> None:
    """Raise ValueError for the default stream of a green context: its handle stands for that of the current context."""
    if stream.handle in LEGACY_DEFAULT and stream.context.is_green:
        raise ValueError(
            "frameworks map this handle to the default stream of the device, not of the green context: pass another "
            "stream of the context"
        )


def own_stream(target: Target) -> Stream:
    """The stream of a partition, a context or a stream, as a separate object.

    The stream then counts as seen by a framework. Frameworks keep handles in caches that nobody can empty, so the
    driver's stream and its context are never destroyed. While this object lives, its SMs are in use, too.
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
    stream.__cuda_stream__()  # a framework sees it: it is never destroyed
    return lent(stream, stream)  # which keeps the partition or the context
