"""A block in which a framework works in a target. It can be reused, nested, and entered on several threads.

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


class _Opened:
    """A block that is open."""

    def __init__(self, block: Block, stream: Stream) -> None:
        self.block = block
        self.is_left = False
        self._stream = stream

    def enter(self) -> Any:
        with ExitStack() as undo:
            inner, self._join = self.block.enter(self._stream, undo)
            undo.callback(self.join)
            self._undo = undo.pop_all()
        return inner

    def join(self) -> None:
        # The framework may have launched a graph, and waits for the device as a whole.
        show_to_device(self._stream)
        self._join()

    def leave(self, *error: Any) -> None:
        self._undo.__exit__(*error)


class _Here(threading.local):
    """The open blocks of a thread, the innermost last."""

    def __init__(self) -> None:
        self.opened: list[_Opened] = []

    def settle(self, *error: Any) -> None:
        """Leave the first block that has ended and the blocks inside it, and enter again those that have not ended.

        This completes even if a block raises. error: the exception of the ended block, as in __exit__.
        """
        first = next((at for at, block in enumerate(self.opened) if block.is_left), None)
        if first is None:
            return
        ended = self.opened[first:]
        del self.opened[first:]
        in_turn = ExitStack()  # called in the reverse order
        for block in reversed(ended):
            if not block.is_left:
                in_turn.callback(self.enter, block)
        for block in ended:
            in_turn.push(block.leave)
        in_turn.__exit__(*(error or (None, None, None)))

    def enter(self, opened: _Opened) -> Any:
        inner = opened.enter()
        self.opened.append(opened)
        return inner


_here = _Here()


class Block(ContextDecorator, AbstractContextManager[Any]):
    """A ``with`` block or decorated function in which a framework works in a target."""

    def __init__(self, target: Target, enter: Enter) -> None:
        self.enter = enter
        self._target = target
        self._opened: list[_Opened] = []  # on any thread

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
        _here.settle()
        opened = _Opened(self, own_stream(self._target))
        inner = _here.enter(opened)
        self._opened.append(opened)
        return inner

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        opened = next(
            (opened for opened in reversed(_here.opened) if opened.block is self and not opened.is_left), None
        )
        if opened is not None:
            innermost = [opened for opened in _here.opened if not opened.is_left][-1]
            self._opened.remove(opened)
            opened.is_left = True
            _here.settle(kind, error, traceback)
            if opened is innermost:
                return
            wrong = f"before that of {innermost.block._target!r}, which was entered inside it"
        else:
            if self._opened:
                # The other thread continues in the block until its next one; it cannot be notified.
                elsewhere = self._opened.pop()
                elsewhere.is_left = True
                elsewhere.join()
            wrong = "on a thread on which it was not entered"
        if kind is None:
            raise RuntimeError(
                f"the block of {self._target!r} was left {wrong}: blocks cannot be interleaved on a thread; do not "
                "await or yield inside a block"
            )
