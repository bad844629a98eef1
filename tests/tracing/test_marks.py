"""The marks of openings, which other threads make while a trace begins."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from cuda_gctx.interpose import compiled
from cuda_gctx.partitions.trace_marks import mark_open_layouts, mark_opening, marks_in
from cuda_gctx.tracing import RECORDER


class Opened:
    pass


def test_a_trace_can_begin_while_other_threads_open_layouts(tmp_path: Path) -> None:
    is_over = threading.Event()

    def open_layouts() -> None:
        while not is_over.is_set():
            kept = [Opened() for _ in range(200)]
            for layout in kept:
                mark_opening(layout, ())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=open_layouts) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            with marks_in(str(tmp_path), str(compiled(RECORDER))):
                mark_open_layouts()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
