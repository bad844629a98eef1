"""The numbers of a handler's launches, by which a kernel knows the call that runs."""

from __future__ import annotations

from cuda_gctx.comm._topology import MixedCommOp
from cuda_gctx.extending import Counter

__all__ = ["Numbers"]


class Numbers(Counter):
    """Counts the calls of a handler. A number is an operation and a count, which plans take at each launch."""

    COUNT_BITS = 16
    COUNTS = 0xFFFF

    @classmethod
    def of_op(cls, op: MixedCommOp) -> int:
        """The number of a call without its count: not 0, and unlike the 65,534 numbers before it, once it has one."""
        return op << cls.COUNT_BITS

    @classmethod
    def name(cls, number: int) -> str:
        """Describes the call of a number."""
        op, count = number >> cls.COUNT_BITS, number & cls.COUNTS
        return f"{MixedCommOp(op).name} (launch {count})"
