"""A line on a terminal that shows the progress of a long measurement."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType

from cuda_gctx._core import clock
from cuda_gctx._core.extension import as_bool

__all__ = ["Progress"]

WIDTH = 30
LEAST_PAUSE_S = 0.1


class Progress:
    """A bar that is updated in place and removed at the end. shown: None: if stderr is a terminal."""

    def __init__(self, shown: bool | None) -> None:
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = on_terminal if shown is None else as_bool("progress", shown)
        self._last = float("-inf")
        self._length = 0

    def show(self, share: float, what: str) -> None:
        """Update the bar. share: how much is done, from 0 to 1."""
        now = clock.now()
        if not self._shown or now - self._last < LEAST_PAUSE_S:
            return
        self._last = now
        full = round(WIDTH * min(max(share, 0.0), 1.0))
        self._write(f"[{'#' * full}{'.' * (WIDTH - full)}] {what}")

    def _write(self, text: str) -> None:
        # A line that wraps cannot be overwritten.
        text = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\r{text.ljust(self._length)}")
        sys.stderr.flush()
        self._length = len(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._length:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()
