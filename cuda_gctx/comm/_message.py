"""A call as the modes see it: its tensors, checked, the sizes that follow, and where the other ranks see them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from cuda_gctx.comm._gradients import demand_no_gradient
from cuda_gctx.comm._protocol import ALIGNMENT
from cuda_gctx.comm._tensors import MappedTensors, span
from cuda_gctx.comm._topology import MixedCommOp, ParallelInfo, checked_root

__all__ = ["Message", "Messages", "Sizes"]


class Sizes(NamedTuple):
    """What follows from an operation and the shape of its input; sizes are in bytes.

    out_shape: of the output. in_bytes, out_bytes: of all blocks of the input and of the output.
    block_bytes: of one block with its padding, a multiple of what the kernels move. padding: what the tensors lack.
    """

    op: MixedCommOp
    out_shape: tuple[int, ...]
    in_bytes: int
    out_bytes: int
    block_bytes: int
    padding: int = 0

    @property
    def largest(self) -> int:
        """Of input and output."""
        return max(self.in_bytes, self.out_bytes)


class Message(NamedTuple):
    """One call. It does not change on its way.

    in_address, out_address: of the tensors on this rank. seen: their addresses in the processes of all ranks; None if
    not both are mapped. is_reached: whether the kernels of all ranks reach both tensors. root: of a broadcast.
    """

    sizes: Sizes
    x_in: Any
    x_out: Any
    in_address: int
    out_address: int
    seen: tuple[tuple[int, ...], tuple[int, ...]] | None
    is_reached: bool
    root: int | None = None


class Messages:
    """Makes the messages of a handler.

    mapped: the tensors that other ranks reach; None on the CPU. reaches_all: whether they reach any tensor.
    """

    def __init__(
        self, info: ParallelInfo, dtype: Any, device: Any, mapped: MappedTensors | None, *, reaches_all: bool
    ) -> None:
        self._info = info
        self._dtype = dtype
        self._device = device
        self._mapped = mapped
        self._reaches_all = reaches_all

    def of(self, op: MixedCommOp, x_in: Any, x_out: Any, *, is_checked: bool, root: int | None = None) -> Message:
        """The message of a call. is_checked: that the caller has checked device, type, layout and shapes."""
        device, dtype = self._device, self._dtype
        demand_no_gradient(x_in, x_out)
        # Asked twice, where a function would take as long as what it asks.
        if not (is_checked or (x_in.device == device and x_in.dtype is dtype and x_in.is_contiguous())):
            self.demand_tensor("x_in", x_in)
        sizes = self.sizes(op, x_in.shape, x_in.element_size())
        root = checked_root(self._info, sizes.op, root)
        if x_out is None:
            x_out = x_in.new_empty(sizes.out_shape)
        elif not is_checked:
            if not (x_out.device == device and x_out.dtype is dtype and x_out.is_contiguous()):
                self.demand_tensor("x_out", x_out)
            if x_out.shape != sizes.out_shape:
                raise ValueError(f"x_out must have shape {list(sizes.out_shape)}, not {list(x_out.shape)}")
        in_address, out_address = x_in.data_ptr(), x_out.data_ptr()
        seen = None
        if self._mapped and not sizes.padding:
            in_seen = self._mapped.find(in_address, sizes.in_bytes)
            out_seen = self._mapped.find(out_address, sizes.out_bytes)
            seen = None if in_seen is None or out_seen is None else (in_seen, out_seen)
        is_reached = self._reaches_all or seen is not None
        return Message(sizes, x_in, x_out, in_address, out_address, seen, is_reached, root)

    def sizes(self, op: MixedCommOp, shape: Sequence[int], element_size: int) -> Sizes:
        """The sizes of a call; ValueError if the operation is not valid, or the shape cannot be divided."""
        op, in_shape = MixedCommOp(op), tuple(shape)
        out_shape = self._info.output_shape(op, in_shape)
        in_bytes, out_bytes = (prod(one) * element_size for one in (in_shape, out_shape))
        block_bytes = self._info.block_size(op, in_bytes)
        padding = -block_bytes % ALIGNMENT
        if padding:
            blocks = in_bytes // block_bytes, out_bytes // block_bytes
            block_bytes += padding
            in_bytes, out_bytes = (count * block_bytes for count in blocks)
        return Sizes(op, out_shape, in_bytes, out_bytes, block_bytes, padding)

    def is_reached(self, tensor: Any, padding: int = 0) -> bool:
        """Tell whether the kernels of all ranks reach a tensor, or the copy of it that has padding."""
        is_mapped = self._mapped is not None and not padding and self._mapped.find(*span(tensor)) is not None
        return self._reaches_all or is_mapped

    def demand_tensor(self, name: str, tensor: Any) -> None:
        if tensor.device != self._device:
            raise ValueError(f"{name} must be on {self._device}, not on {tensor.device}")
        if tensor.dtype is not self._dtype:
            raise ValueError(f"{name} must have dtype {self._dtype}, not {tensor.dtype}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous: call {name}.contiguous()")
