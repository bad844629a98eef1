"""Tells ``cuda-gctx trace`` the names of contexts, and when layouts are opened and switched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

__all__ = ["IS_TRACED", "TRACE_VARIABLE", "mark"]

TRACE_VARIABLE = "CUDA_GCTX_TRACE"
# Whether this process was started by cuda-gctx trace.
IS_TRACED = TRACE_VARIABLE in os.environ


class _Part(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def context(self) -> Any: ...


def mark(event: str, parts: Iterable[_Part]) -> None:
    """Note an event with the names of partitions and the numbers of their contexts. event: open or switch."""
    contexts = {part.context.id: part.name for part in parts}
    line = json.dumps({"event": event, "time": time.time_ns(), "contexts": contexts})
    with suppress(OSError):
        file = os.path.join(os.environ[TRACE_VARIABLE], f"{os.getpid()}.marks")
        with open(file, "a", encoding="utf-8") as marks:
            marks.write(line + "\n")
