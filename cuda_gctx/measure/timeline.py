"""When and where work ran, by the device timer: as values, as a picture, and as a trace for Perfetto."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from cuda_gctx._core.extension import Device, Event, Stamps, Stream, as_int, is_capturing, system
from cuda_gctx._core.text import ranges, table
from cuda_gctx.draw.durations import in_words
from cuda_gctx.draw.svg import Pictured, written
from cuda_gctx.draw.timeline import draw_timeline, layers
from cuda_gctx.partitions import Partition, Partitions, with_background

if TYPE_CHECKING:
    from cuda_gctx._core.extension import SupportsCudaStream

__all__ = ["Span", "Timeline", "Trace", "Track"]

MOST_SPANS = 1_000_000
NOTE = "A bar begins when its stream reached it and an SM of its partition had room, and ends when its work completed."
# In pictures of more spans the bars become too narrow for names.
MANY_SPANS = 100
ZOOM_NOTE = " To zoom in, open the file of chrome_trace() in ui.perfetto.dev."


@dataclass(frozen=True)
class Track:
    """A partition or context, with its SMs if they are known."""

    name: str
    sm_count: int
    sm_ids: tuple[int, ...] | None

    def __str__(self) -> str:
        if self.sm_ids is None:
            return f"{self.sm_count} SMs"
        ids = ranges(self.sm_ids)
        return f"{self.sm_count} SMs: {ids if len(ids) <= 15 else ids[:14].rsplit(',', 1)[0] + ', ...'}"


@dataclass(frozen=True)
class Span:
    """A piece of work: its track, its row (a stream), the SM of its first stamp, and when it ran, in ns of the device
    timer.
    """

    name: str
    track: str
    row: str
    start_ns: int
    end_ns: int
    sm: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def where(self) -> str:
        return f"{self.track}, {self.row}, SM {self.sm}"


@dataclass(frozen=True)
class Trace(Pictured):
    """The spans of a timeline.

    ``str()`` is a table, ``html()`` a page with the picture, ``chrome_trace()`` for Perfetto.
    """

    device: str
    device_id: int
    driver: str
    tracks: tuple[Track, ...]
    spans: tuple[Span, ...]

    @property
    def start_ns(self) -> int:
        """The start of the first span, by the device timer."""
        return min((span.start_ns for span in self.spans), default=0)

    def _rows(self) -> dict[Track, dict[str, list[Span]]]:
        """The spans of each row of each track that has any."""
        rows: dict[str, dict[str, list[Span]]] = {}
        for span in self.spans:
            rows.setdefault(span.track, {}).setdefault(span.row, []).append(span)
        return {track: rows[track.name] for track in self.tracks if track.name in rows}

    def _title_of_page(self) -> str:
        return f"Timeline: {self.device}"

    def _picture(self) -> str:
        note = NOTE + (ZOOM_NOTE if len(self.spans) > MANY_SPANS else "")
        return draw_timeline("Timeline", f"{self.device}, driver {self.driver}", self._rows(), note)

    def chrome_trace(self, path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """The trace for ui.perfetto.dev and chrome://tracing, as a dictionary; also written to `path` as JSON.

        A process is a device, and a thread is a row. Times are microseconds since the first start.
        """

        def event(kind: str, name: str, thread: int, args: dict[str, object], **more: object) -> dict[str, Any]:
            return {"ph": kind, "name": name, "pid": self.device_id, "tid": thread, "args": args, **more}

        events = [event("M", "process_name", 0, {"name": self.device})]
        rows = [(f"{track.name}, {row}", spans) for track, of in self._rows().items() for row, spans in of.items()]
        # On one thread, Perfetto shows overlapping spans only if they are nested: use a thread per layer.
        for thread, (name, layer) in enumerate(((name, one) for name, spans in rows for one in layers(spans)), 1):
            events.append(event("M", "thread_name", thread, {"name": name}))
            events.append(event("M", "thread_sort_index", thread, {"sort_index": thread}))
            for span in layer:
                times = {"ts": (span.start_ns - self.start_ns) / 1e3, "dur": span.duration_ns / 1e3}
                where = {"partition": span.track, "SM": span.sm}
                events.append(event("X", span.name, thread, where, cat="gpu", **times))
        trace = {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {"device": self.device, "driver": self.driver, "start_ns": self.start_ns},
        }
        written(json.dumps(trace), path)
        return trace

    def __str__(self) -> str:
        start_ns = self.start_ns
        rows = [
            (one.track, one.row, one.name, in_words(one.start_ns - start_ns), in_words(one.duration_ns), one.sm)
            for one in self.spans
        ]
        return f"{self.device}, driver {self.driver}\n" + table(("where", "row", "what", "start", "took", "SM"), rows)


class _Places:
    """The track and row of the work of a stream."""

    def __init__(self, parts: tuple[Partition, ...]) -> None:
        self._parts = parts
        self._tracks = {part.context: Track(part.name, part.sm_count, None) for part in parts}
        self._rows: dict[Stream, tuple[str, str]] = {}

    def of(self, stream: Stream) -> tuple[str, str]:
        if stream not in self._rows:
            context = stream.context
            if context not in self._tracks:
                plain = f"context {context.id}" if context.is_green else "primary context"
                name = context.name or plain
                taken = any(name == track.name for track in self._tracks.values())
                self._tracks[context] = Track(f"{name} ({plain})" if taken else name, context.sm_count, None)
            name = self._tracks[context].name
            before = sum(name == other for other, _ in self._rows.values())
            self._rows[stream] = name, f"stream {before + 1}"
        return self._rows[stream]

    def tracks(self) -> tuple[Track, ...]:
        # As late as possible, because verify() may have seen the ids meanwhile.
        ids = {part.name: part.sm_ids for part in self._parts}
        return tuple(replace(track, sm_ids=ids.get(track.name)) for track in self._tracks.values())


class Timeline:
    """Records when pieces of work ran on a device, by stamps in their streams.

    target: Partitions, whose names are shown, or a Device. spans: how many can be recorded.

    A stamp is a kernel of one warp and takes some microseconds of its stream. It runs when the stream reaches it and an
    SM of the stream's context has room, so a span begins when its work could begin.

    Example:

        from cuda_gctx import Device, Timeline, tune

        with Device().partition(control=16, rest=None) as parts:
            timeline = Timeline(parts)
            with timeline.span(parts.control.stream, "step"):
                tune.spin(parts.control.stream, blocks=16, spin_ns=500_000)
            trace = timeline.read()  # waits for the spans
        trace.html("timeline.html")
    """

    def __init__(self, target: Partitions | Device | None = None, *, spans: int = 1024) -> None:
        spans = as_int("spans", spans, 1, MOST_SPANS)
        if target is not None and not isinstance(target, (Partitions, Device)):
            raise TypeError(f"target must be Partitions or a Device, not {type(target).__name__}")
        self._device = target.device if isinstance(target, Partitions) else target or Device()
        self._places = _Places(with_background(target) if isinstance(target, Partitions) else ())
        self._stamps = Stamps(self._device, 2 * spans)
        self._lock = threading.Lock()
        self._spans: list[tuple[str, str, str]] = []
        self._ends: dict[Stream, Event] = {}

    @contextmanager
    def span(self, stream: SupportsCudaStream | Stream, name: str) -> Iterator[None]:
        """Record when the work that is queued on a stream in the ``with`` block runs. Does not wait.

        stream: a Stream, or the stream of another library.
        name: what tables and pictures show.

        Raises RuntimeError if the timeline is full, and ValueError if the stream is on another device.
        """
        queue = stream if isinstance(stream, Stream) else Stream(stream)
        if queue.device != self._device:
            raise ValueError(f"the stream is on {queue.device!r}, but the timeline is on {self._device!r}")
        with self._lock:
            place = 2 * len(self._spans)
            if place >= self._stamps.capacity:
                raise RuntimeError(
                    f"the timeline is full: read() it and start another one, or create one with more than "
                    f"{len(self._spans)} spans"
                )
            self._spans.append((name, *self._places.of(queue)))
        self._stamps.write(queue, place)
        try:
            yield
        finally:
            self._stamps.write(queue, place + 1)
            if not is_capturing(queue):  # a span in a graph is recorded when the graph is replayed
                self._ends[queue] = queue.record(self._ends.get(queue))

    def read(self) -> Trace:
        """Wait for the spans whose blocks have ended; returns their times."""
        for end in list(self._ends.values()):
            end.sync()
        stamps = self._stamps.read()
        spans = []
        for number, (name, track, row) in enumerate(list(self._spans)):
            begin, close = stamps[2 * number : 2 * number + 2]
            if begin is not None and close is not None:
                spans.append(Span(name, track, row, begin[1], close[1], begin[0]))
        return Trace(
            self._device.name,
            self._device.device_id,
            ".".join(map(str, system.driver_version)),
            self._places.tracks(),
            tuple(spans),
        )
