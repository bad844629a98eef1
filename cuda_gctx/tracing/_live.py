"""Follows the files of the recorder while programs run, and counts what arrives by partition."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from cuda_gctx.tracing._lanes import Names, lane_name
from cuda_gctx.tracing._marks import Mark, read_marks
from cuda_gctx.tracing._metrics import Labels, LaneMeter, exposition
from cuda_gctx.tracing._records import Context, Tag, records_from, text_of

__all__ = ["LiveMetrics"]

# Launches whose kernels have not arrived. Kernels of older launches count without their queueing.
MOST_LAUNCHES = 100_000


@dataclass
class _Source:
    """The file of a process, read up to a place."""

    path: Path
    place: int = 0
    program: str = "?"
    contexts: dict[int, Context] = field(default_factory=dict)
    launches: dict[int, int] = field(default_factory=dict)
    dropped: int = 0

    @property
    def pid(self) -> int:
        return int(self.path.name.split(".", 1)[0])

    @property
    def labels(self) -> Labels:
        return ("program", self.program), ("pid", str(self.pid))


class LiveMetrics:
    """The metrics of the processes that record into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[Path, _Source] = {}
        self._meters: dict[Labels, LaneMeter] = {}
        self._lock = threading.Lock()  # a scraper may ask while another one is answered

    def text(self) -> str:
        """Read what has arrived since the last call; returns all metrics as text for Prometheus."""
        with self._lock:
            names, marks = read_marks(sorted(self._folder.glob("*.marks")), {})  # whose times do not matter
            for path in sorted(self._folder.glob("*.records")):
                self._read(self._sources.setdefault(path, _Source(path)), names)
            sources = list(self._sources.values())
            dropped = {source.labels: source.dropped for source in sources}
            return exposition(self._meters, _switches(sources, marks), dropped)

    def _read(self, source: _Source, names: Names) -> None:
        spans: list[tuple[int, int, LaneMeter]] = []
        # A context has another name after the pool of contexts has given it to another partition.
        meters: dict[tuple[int, int], LaneMeter] = {}
        for record, text, place in records_from(source.path, source.place):
            source.place = place
            if Tag.KERNEL <= record.tag <= Tag.GRAPH:
                key = record.context, record.device
                meter = meters.get(key) or meters.setdefault(key, self._meter(source, *key, names))
                spans.append((record.start, record.end, meter))
                if record.tag == Tag.KERNEL:
                    launches = source.launches
                    queued = (launches.get if record.graph else launches.pop)(record.correlation, 0)
                    meter.add_kernel(record.start - queued if 0 < queued <= record.start else None)
            elif record.tag == Tag.LAUNCH:
                source.launches[record.correlation] = record.start
                if len(source.launches) > MOST_LAUNCHES:
                    del source.launches[next(iter(source.launches))]
            elif record.tag == Tag.CONTEXT:
                source.contexts[record.context] = Context.of(record)
            elif record.tag == Tag.DROPPED:
                source.dropped += record.size
            elif record.tag == Tag.PROGRAM:
                source.program = text_of(text)
        for start, end, meter in sorted(spans, key=lambda span: span[:2]):
            meter.add_span(start, end)

    def _meter(self, source: _Source, number: int, device: int, names: Names) -> LaneMeter:
        context = source.contexts.get(number, Context(number, device, 0, False, 0))
        name = lane_name(context, names.get((source.pid, number)))
        labels = ("partition", name), *source.labels, ("device", str(device))
        meter = self._meters.setdefault(labels, LaneMeter())
        meter.sm_count = max(meter.sm_count, context.sm_count)
        return meter


def _switches(sources: list[_Source], marks: list[Mark]) -> dict[Labels, int]:
    counts = Counter(mark.pid for mark in marks if mark.event == "switch")
    return {source.labels: counts[source.pid] for source in sources}
