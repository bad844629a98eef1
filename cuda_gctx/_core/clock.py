"""The host clock of every measurement. Call it as ``clock.now()``: tests replace it with a virtual clock."""

from __future__ import annotations

import time

__all__ = ["now"]

now = time.perf_counter  # seconds since an arbitrary moment
