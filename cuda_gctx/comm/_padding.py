"""Calls whose blocks are no multiple of what the kernels move: on padded copies of their tensors."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx.comm._message import Message

__all__ = ["Padded"]


@cache
def _torch() -> Any:
    return import_module("torch")


def _copy_rows(to: Any, source: Any) -> None:
    """Copies row by row, which the driver does.

    A kernel that copies all rows is loaded at its first launch. That waits for the kernels of all ranks of this
    process, which may wait for a rank that cannot launch meanwhile.
    """
    for row, its_source in zip(to, source, strict=True):
        row.copy_(its_source)


class Padded:
    """Runs the kernels of a mode on padded copies of the tensors of calls that have one size.

    mode: a mode with kernels of this package. captured: gets the copies of calls in captures, because replays use them,
    and torch's allocator knows only the captures that torch began.
    """

    is_of_torch = True

    def __init__(self, mode: Any, captured: list[Any]) -> None:
        self._mode = mode
        self._captured = captured
        self._plan: Any = None

    def run(self, message: Message, sms: int) -> None:
        """Computes a call. The first one makes the plan that later ones launch."""
        sizes, element = message.sizes, message.x_in.element_size()
        width, content = sizes.block_bytes // element, (sizes.block_bytes - sizes.padding) // element
        counts = sizes.in_bytes // sizes.block_bytes, sizes.out_bytes // sizes.block_bytes
        x_in, x_out = (message.x_in.new_empty((count, width)) for count in counts)
        _copy_rows(x_in[:, :content], message.x_in.view(-1, content))
        given = x_in.data_ptr(), x_out.data_ptr()
        if self._plan is None:
            padded = message._replace(x_in=x_in, x_out=x_out, in_address=given[0], out_address=given[1])
            self._plan, _ = self._mode.run(padded, sms)
        else:
            self._mode.launch(self._plan, given)
        _copy_rows(message.x_out.view(-1, content), x_out[:, :content])
        if _torch().cuda.is_current_stream_capturing():
            self._captured.append((x_in, x_out))
