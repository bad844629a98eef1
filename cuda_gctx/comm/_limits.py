"""The limits on blocks and threads that a handler's later calls use. A program may change them at any time."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cuda_gctx.comm._protocol import one_exchange_threads
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp
from cuda_gctx.extending import as_int

__all__ = ["WARP", "Limits", "MaxBlockSizes", "block_sizes"]

WARP = 32
# The number of threads that no block of a device exceeds.
LARGEST_BLOCK = 1024


def block_sizes(smallest: int, largest: int | None, world: int) -> tuple[int, int]:
    """The smallest and the largest number of threads per SM of the kernel for small messages, checked."""
    most = one_exchange_threads(world)
    if largest is not None:
        most = min(most, as_int("max_block_size", largest, WARP, LARGEST_BLOCK))
    found = as_int("min_block_size", smallest, WARP, most), most
    for name, size in zip(("min_block_size", "max_block_size"), found, strict=True):
        if size % WARP:
            raise ValueError(f"{name} must be a multiple of {WARP}, not {size}")
    return found


@dataclass
class Limits:
    """The limits of later calls: threads per SM of ONE_EXCHANGE, and tiles of a block of TWO_EXCHANGE."""

    fewest_threads: int
    most_threads: dict[MixedCommOp, int]
    fewest_steps: int


class MaxBlockSizes(UserDict[tuple[MixedCommOp, MixedCommMode], int]):
    """The largest number of threads per SM, by operation and mode.

    change: checks a new value for an operation, and makes later calls use it. The kernels of other modes than
    ONE_EXCHANGE are compiled for their number of threads.
    """

    def __init__(
        self, sizes: Mapping[tuple[MixedCommOp, MixedCommMode], int], change: Callable[[MixedCommOp, int], int]
    ) -> None:
        self._change: Callable[[MixedCommOp, int], int] | None = None
        super().__init__(sizes)
        self._change = change

    def __setitem__(self, key: tuple[MixedCommOp, MixedCommMode], size: int) -> None:
        if self._change is not None:
            usual = self[key]
            op, mode = key
            if mode is MixedCommMode.ONE_EXCHANGE:
                size = self._change(op, size)
            elif size != usual:
                raise ValueError(f"the kernel of {mode.name} has {usual} threads: max_block_size cannot be {size}")
        super().__setitem__(key, size)

    def __delitem__(self, key: tuple[MixedCommOp, MixedCommMode]) -> None:
        raise TypeError("max_block_size_dict has a value for each operation and mode: set it instead of removing it")
