"""``with cuda_gctx.trace()``: a trace of this process from Python."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import ExitStack
from os import PathLike
from types import TracebackType
from typing import Literal

from cuda_gctx._core.extension import Context, system
from cuda_gctx.draw.svg import Pictured
from cuda_gctx.interpose import compiled
from cuda_gctx.partitions.trace_marks import mark_open_layouts, marks_in
from cuda_gctx.tracing import RECORDER, Recording, Summary, Trace, find_cupti
from cuda_gctx.tracing._lanes import OUTSIDE
from cuda_gctx.tracing._picture import draw_lanes
from cuda_gctx.tracing._records import Tag

__all__ = ["OUTSIDE", "BlockTrace", "trace"]


class BlockTrace(Pictured):
    """The work of this process on GPUs in a ``with`` block. After it, ``print()`` it, or show it in a notebook."""

    def __init__(self, graphs: Literal["nodes", "whole"]) -> None:
        if graphs not in ("nodes", "whole"):
            raise ValueError(f"graphs must be 'nodes' or 'whole', not {graphs!r}")
        self._graphs: Literal["nodes", "whole"] = graphs
        self._found: Trace | None = None
        self._stack = ExitStack()

    def __enter__(self) -> BlockTrace:
        driver = system.driver_path
        # A driver that simulates a device has a CUPTI beside it.
        beside = os.path.join(os.path.dirname(driver), "libcupti.so.13")
        cupti = beside if os.path.exists(beside) else find_cupti()
        library = str(compiled(RECORDER))
        recorder = ctypes.CDLL(library)
        address = ctypes.cast(ctypes.CDLL(driver).cuDriverGetVersion, ctypes.c_void_p)
        with ExitStack() as stack:
            recording = stack.enter_context(Recording(cupti, self._graphs))
            stack.callback(self._read, recording)
            stack.enter_context(marks_in(recording.folder, library))
            if not recorder.cuda_gctx_begin_recording(
                os.fsencode(recording.folder), os.fsencode(cupti), int(self._graphs == "whole"), address
            ):
                raise RuntimeError("CUPTI cannot record this process: end the other profiler that uses it")
            stack.callback(recorder.cuda_gctx_end_recording)
            mark_open_layouts()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _read(self, recording: Recording) -> None:
        self._found = recording.read()

    @property
    def _trace(self) -> Trace:
        if self._found is None:
            raise RuntimeError("the trace has no values yet: read it after its with block")
        return self._found

    def summary(self) -> Summary:
        """Summarize by partitions, kernels and overlaps. Raises RuntimeError before the end of the block."""
        return self._trace.summary()

    def to_json(self) -> str:
        """The summary as JSON, with the fields of ``cuda-gctx trace --json``."""
        return json.dumps(self.summary().to_dict(), indent=2)

    def perfetto(self, path: str | PathLike[str]) -> None:
        """Write a file for ui.perfetto.dev.

        path: the file, which is replaced.
        """
        with open(path, "wb") as out:
            self._trace.perfetto(out)

    def kernels_outside_of(self, context: Context) -> list[tuple[str, str]]:
        """The kernels that ran in other contexts than one: the name of each, and the partition.

        context: the one.
        """
        found = {
            (items.name_of(kind, number), lane.name)
            for lane in self._trace.lanes
            for (ran_in, _), items in lane.streams.items()
            if ran_in != context.id
            for kind, number in zip(items.kinds, items.name_numbers, strict=True)
            if kind == Tag.KERNEL
        }
        return sorted(found)

    def __str__(self) -> str:
        return str(self.summary())

    def _title_of_page(self) -> str:
        return "Trace"

    def _picture(self) -> str:
        return draw_lanes(self._trace.lanes)


def trace(graphs: Literal["nodes", "whole"] = "nodes") -> BlockTrace:
    """Trace this process in a ``with`` block; see BlockTrace.

    graphs: "nodes" records each kernel of a graph, "whole" each launch of a graph.

    Work that still runs at the end of the block is not recorded. Raises NoCUPTI if CUPTI is not installed, and
    RuntimeError if the process is traced already.

    Example:

        import cuda_gctx
        from cuda_gctx import Device, tune

        with Device().partition(control=16, rest=None) as parts, cuda_gctx.trace() as found:
            tune.spin(parts.control.stream, blocks=16, spin_ns=50_000)
            parts.sync()
        print(found)  # the partition of each kernel, and what overlapped
    """
    return BlockTrace(graphs)
