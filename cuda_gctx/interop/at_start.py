"""A partition for torch from the start of a process: ``cuda-gctx run --as NAME`` does this in each process.

The partition belongs to the thread on which torch initialises CUDA, and to its backward passes. Other threads keep
torch's default stream, on all SMs. Work on streams that the program creates also uses all SMs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda_gctx._core.extension import Device

__all__ = ["HOOK", "PARTITION_VARIABLE", "follow_torch"]

PARTITION_VARIABLE = "CUDA_GCTX_AS"
# The folder of the sitecustomize that calls follow_torch().
HOOK = str(Path(__file__).with_name("hook"))

# The partitions and the block of torch, which stay open as long as the process.
_kept: list[Any] = []


def _device() -> Device:
    """The device of this process: the number of torchrun's local rank, if the process sees that many devices."""
    from cuda_gctx._core.extension import Device  # not in each Python process of the command

    rank = os.environ.get("LOCAL_RANK", "")
    return Device(int(rank) if rank.isdecimal() and int(rank) < Device.count() else 0)


def _enter(name: str) -> None:
    """Run torch on this thread in a partition of the layout from the environment, until the process ends."""
    from cuda_gctx.interop.mps import granted
    from cuda_gctx.interop.torch import use

    device = _device()
    granted(device).demand()
    parts = device.partition()
    try:
        part = getattr(parts, name)
    except AttributeError:
        parts.close()
        raise
    block = use(part, library_sms="on")
    block.__enter__()
    _kept.extend((parts, block))
    print(f"cuda-gctx: torch runs in partition {name}, {part.sm_count} SMs of {device.name}", file=sys.stderr)


class _FinderOfTorch(MetaPathFinder):
    """Calls a function with torch after its import."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then(module: ModuleType) -> None:
            execute(module)
            self._then(sys.modules[fullname])

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


def follow_torch() -> None:
    """Enter the partition that the environment names when torch initialises CUDA, as soon as torch is imported."""
    enter = partial(_enter, os.environ[PARTITION_VARIABLE])
    # The list of functions that torch calls when it initialises CUDA.
    sys.meta_path.insert(0, _FinderOfTorch(lambda torch: torch.cuda._lazy_call(enter)))
