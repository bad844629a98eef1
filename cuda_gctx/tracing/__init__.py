"""The trace of a command by partitions, its summary, and its file for ui.perfetto.dev."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from cuda_gctx.interpose import compiled
from cuda_gctx.partitions.trace_marks import TRACE_VARIABLE
from cuda_gctx.tracing._lanes import Lane, lanes_of
from cuda_gctx.tracing._live import LiveMetrics
from cuda_gctx.tracing._marks import Mark, read_marks
from cuda_gctx.tracing._metrics import published
from cuda_gctx.tracing._records import Process, read_process
from cuda_gctx.tracing._summary import Summary, summary
from cuda_gctx.tracing._trace_file import write

__all__ = ["RECORDER", "NoCUPTI", "Recording", "Summary", "Trace", "find_cupti", "published"]

RECORDER = "libcuda_gctx_recorder.so"
INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
CUPTI_VARIABLE, GRAPHS_VARIABLE = "CUDA_GCTX_CUPTI", "CUDA_GCTX_TRACE_GRAPHS"
NAMES = ("libcupti.so.13", "libcupti.so.12")


class NoCUPTI(RuntimeError):
    """NVIDIA's library of profilers is not installed."""


def find_cupti() -> str:
    """The path of CUPTI: that of the Python packages of CUDA, or of a CUDA toolkit. Raises NoCUPTI."""
    package = importlib.util.find_spec("nvidia")
    folders = package.submodule_search_locations or () if package is not None else ()
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    below = [
        os.path.join(home, folder)
        for folder in (os.path.join("extras", "CUPTI", "lib64"), "lib64")
        for home in homes
        if home
    ]
    places = [*(os.path.join(folder, "*", "lib") for folder in folders), *below]
    for name in NAMES:
        for place in places:
            if found := sorted(glob(os.path.join(place, name))):
                return found[-1]
    raise NoCUPTI("CUPTI is not installed: pip install nvidia-cuda-cupti, or set CUDA_HOME to a CUDA toolkit")


@dataclass(frozen=True)
class Trace:
    """The work of the processes of a command on GPUs."""

    processes: tuple[Process, ...]
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]

    def summary(self) -> Summary:
        """Summarize the trace by partitions, kernels and overlaps."""
        return summary(self.processes, self.lanes, self.marks)

    def perfetto(self, out: BinaryIO) -> None:
        """Write a file for ui.perfetto.dev."""
        write(out, self.lanes, self.marks)


class Recording:
    """A private folder in which processes record what they do. Use it as a context.

    cupti: the path of CUPTI. graphs: "nodes" records each kernel of a graph, "whole" each launch of a graph.
    """

    def __init__(self, cupti: str, graphs: str = "nodes") -> None:
        self._cupti, self._graphs = cupti, graphs

    def __enter__(self) -> Recording:
        self._folder = tempfile.TemporaryDirectory(prefix="cuda-gctx-trace-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    @property
    def folder(self) -> str:
        """The path of the folder."""
        return self._folder.name

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment of a program that is to be recorded, and of its children."""
        return {
            **inherited,
            INJECTION_VARIABLE: str(compiled(RECORDER)),
            TRACE_VARIABLE: self.folder,
            CUPTI_VARIABLE: self._cupti,
            GRAPHS_VARIABLE: self._graphs,
        }

    def metrics(self) -> LiveMetrics:
        """The metrics of what is recorded, which grow while programs run."""
        return LiveMetrics(Path(self.folder))

    def read(self, show: Callable[[float, str], None] = lambda share, what: None) -> Trace:
        """Read what was recorded so far. show: takes the share that is done, and what is read."""
        folder = Path(self.folder)
        files = sorted(folder.glob("*.records"))
        found = []
        for number, path in enumerate(files):
            show(number / len(files), f"reading {path.stat().st_size / 1e6:.1f} MB of {path.stem}")
            found.append(read_process(path))
        # A launcher opens the driver, and runs nothing.
        processes = tuple(one for one in found if one.streams or not one.has_ended)
        shifts = {one.pid: one.shift for one in processes}
        names, marks = read_marks(sorted(folder.glob("*.marks")), shifts)
        return Trace(processes, tuple(lanes_of(processes, names)), tuple(marks))
