"""Blocks in which a framework works in a target. A block can be reused, nested, and entered on several threads.

The current stream belongs to a thread, so the blocks of a thread must end in the reverse order of their beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from functools import wraps
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import Any, TypeVar, cast

from cuda_gctx._core.extension import Stream, show_to_device
from cuda_gctx.interop._frameworks import Target, own_stream

__all__ = ["Block", "Enter"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Makes a stream current, and puts a function on the stack that restores the previous one. Returns the framework's
# stream and a function that makes the outer stream wait for the work of the block.
Enter = Callable[[Stream, ExitStack], tuple[Any, Callable[[], None]]]


class _Entry:
    """An entry of a block that has not ended."""

    def __init__(self, block: Block, stream: Stream) -> None:
        self.block = block
        self.has_ended = False
        self._stream = stream

    def enter(self) -> Any:
        with ExitStack() as undo:
            inner, self._join = self.block.enter(self._stream, undo)
            undo.callback(self.join)
            self._undo = undo.pop_all()
        return inner

    def join(self) -> None:
        # A wait of the framework for the whole device then covers a graph that it launched on the stream.
        show_to_device(self._stream)
        self._join()

    def leave(self, *error: Any) -> None:
        self._undo.__exit__(*error)


class _ThreadBlocks(threading.local):
    """The open blocks of a thread, the innermost last."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []

    def settle(self, *error: Any) -> None:
        """Leave the first ended block and the blocks inside it, and enter the open ones of these again.

        This completes even if a block raises. error: the exception of the ended block, as in __exit__.
        """
        first = next((at for at, entry in enumerate(self.entries) if entry.has_ended), None)
        if first is None:
            return
        left = self.entries[first:]
        del self.entries[first:]
        in_order = ExitStack()  # runs in the reverse order of the calls below
        for entry in reversed(left):
            if not entry.has_ended:
                in_order.callback(self.enter, entry)
        for entry in left:
            in_order.push(entry.leave)
        in_order.__exit__(*(error or (None, None, None)))

    def enter(self, entry: _Entry) -> Any:
        inner = entry.enter()
        self.entries.append(entry)
        return inner


_blocks_here = _ThreadBlocks()


class Block(ContextDecorator, AbstractContextManager[Any]):
    """A ``with`` block or decorated function in which a framework works in a target."""

    def __init__(self, target: Target, enter: Enter) -> None:
        self.enter = enter
        self._target = target
        self._entries: list[_Entry] = []  # of all threads

    def __call__(self, function: Function) -> Function:
        def refused() -> TypeError:
            return TypeError(
                f"{getattr(function, '__name__', repr(function))} is a coroutine function or a generator, which would "
                "run outside of the block: decorate functions without await and yield"
            )

        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            if isawaitable(result) or isgenerator(result) or isasyncgen(result):
                if iscoroutine(result) or isgenerator(result):
                    result.close()
                raise refused()
            return result

        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            raise refused()
        return super().__call__(cast(Function, checked))

    def __enter__(self) -> Any:
        _blocks_here.settle()
        entry = _Entry(self, own_stream(self._target))
        inner = _blocks_here.enter(entry)
        self._entries.append(entry)
        return inner

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        entry = next(
            (entry for entry in reversed(_blocks_here.entries) if entry.block is self and not entry.has_ended), None
        )
        if entry is not None:
            innermost = [entry for entry in _blocks_here.entries if not entry.has_ended][-1]
            self._entries.remove(entry)
            entry.has_ended = True
            _blocks_here.settle(kind, error, traceback)
            if entry is innermost:
                return
            wrong = f"before that of {innermost.block._target!r}, which was entered inside it"
        else:
            if self._entries:
                # The thread that entered the block continues in it until it enters or leaves another block.
                entry = self._entries.pop()
                entry.has_ended = True
                entry.join()
            wrong = "on a thread on which it was not entered"
        if kind is None:
            raise RuntimeError(
                f"the block of {self._target!r} was left {wrong}: blocks cannot be interleaved on a thread; do not "
                "await or yield inside a block"
            )
