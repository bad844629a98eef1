"""When work ran, and where, by the timer of the device: as values, as a picture, and as a trace for Perfetto."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from cuda_gctx._core.context import Context
from cuda_gctx._core.device import Device
from cuda_gctx._core.driver import system
from cuda_gctx._core.event import Event
from cuda_gctx._core.lease import is_capturing
from cuda_gctx._core.probe import Stamps, probe_blocks_per_sm, run_probe
from cuda_gctx._core.stream import Stream
from cuda_gctx.draw.durations import in_words
from cuda_gctx.draw.svg import page
from cuda_gctx.draw.table import ranges, table
from cuda_gctx.draw.timeline import Bar, Group, Row, draw_timeline, layers
from cuda_gctx.partitions import Partition, Partitions

if TYPE_CHECKING:
    from cuda_gctx._core.stream import SupportsCudaStream

__all__ = ["Span", "Timeline", "Trace", "Track"]

PROBE_TIMEOUT_NS = 10_000_000_000
MOST_SPANS = 1_000_000
SPANS_NOTE = (
    "A bar begins when its stream got there and an SM of its partition had room, and ends when what was queued in it "
    "is done."
)
PROBE_NOTE = "A bar is a block of the probe kernel on its SM."


@dataclass(frozen=True)
class Track:
    """Whose work it is: a partition or a context, with its SMs as far as they are known."""

    name: str
    sm_count: int
    sm_ids: tuple[int, ...] | None

    def __str__(self) -> str:
        if self.sm_ids is None:
            return f"{self.sm_count} SMs"
        told = ranges(self.sm_ids)
        return f"{self.sm_count} SMs: {told if len(told) <= 15 else told[:14].rsplit(',', 1)[0] + ', ...'}"


@dataclass(frozen=True)
class Span:
    """A piece of work: whose it is, on which row (a stream or an SM), when it ran, in ns of the device's timer.

    sm: the SM that took up its first stamp, or on which the block ran.
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


@dataclass(frozen=True)
class Trace:
    """What a timeline has seen.

    ``str()`` is a table, ``html()`` a page with the picture, ``chrome_trace()`` for Perfetto.
    """

    device: str
    device_id: int
    driver: str
    title: str
    note: str
    tracks: tuple[Track, ...]
    spans: tuple[Span, ...]

    @property
    def start_ns(self) -> int:
        """When the first span starts, by the timer of the device."""
        return min((span.start_ns for span in self.spans), default=0)

    def _rows(self) -> dict[Track, dict[str, list[Span]]]:
        """The spans of each row of each track that has any."""
        found: dict[Track, dict[str, list[Span]]] = {}
        for track in self.tracks:
            rows: dict[str, list[Span]] = {}
            for span in self.spans:
                if span.track == track.name:
                    rows.setdefault(span.row, []).append(span)
            if rows:
                found[track] = rows
        return found

    def _bar(self, span: Span) -> Bar:
        begin, end = span.start_ns - self.start_ns, span.end_ns - self.start_ns
        told = f"{span.name}: {in_words(begin)} to {in_words(end)}, took {in_words(span.duration_ns)}"
        return Bar(span.name, span.start_ns, span.end_ns, f"{told}\n{span.track}, {span.row}, SM {span.sm}")

    def svg(self, path: str | PathLike[str] | None = None) -> str:
        """The picture; also written to `path` if one is given."""
        groups = []
        for track, rows in self._rows().items():
            # One stream needs no name beside that of its partition.
            labels = [""] if len(rows) == 1 else list(rows)
            bars = [tuple(map(self._bar, spans)) for spans in rows.values()]
            groups.append(Group(track.name, str(track), tuple(map(Row, labels, bars))))
        return _written(draw_timeline(self.title, f"{self.device}, driver {self.driver}", groups, self.note), path)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The picture as a page of its own, with nothing to load from anywhere; also written to `path`."""
        return _written(page(f"{self.title}: {self.device}", self.svg()), path)

    def chrome_trace(self, path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """The trace for ui.perfetto.dev and chrome://tracing, as what JSON makes of it; also written to `path`.

        The process is the device, a thread a row. Times are microseconds from the first start.
        """
        events: list[dict[str, Any]] = [self._told("process_name", 0, name=self.device)]
        thread = 0
        for track, rows in self._rows().items():
            for row, spans in rows.items():
                # Perfetto shows what overlaps on one thread only if one is inside the other: a thread for each layer.
                for layer in layers(spans):
                    thread += 1
                    events.append(self._told("thread_name", thread, name=f"{track.name}, {row}"))
                    events.append(self._told("thread_sort_index", thread, sort_index=thread))
                    events += [self._event(span, thread) for span in layer]
        trace = {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {"device": self.device, "driver": self.driver, "start_ns": self.start_ns},
        }
        _written(json.dumps(trace), path)
        return trace

    def _told(self, what: str, thread: int, **args: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": self.device_id, "tid": thread, "args": args}

    def _event(self, span: Span, thread: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": span.name,
            "cat": "gpu",
            "ts": (span.start_ns - self.start_ns) / 1e3,
            "dur": span.duration_ns / 1e3,
            "pid": self.device_id,
            "tid": thread,
            "args": {"partition": span.track, "SM": span.sm},
        }

    def __str__(self) -> str:
        rows = [
            (
                span.track,
                span.row,
                span.name,
                in_words(span.start_ns - self.start_ns),
                in_words(span.duration_ns),
                span.sm,
            )
            for span in self.spans
        ]
        return f"{self.device}, driver {self.driver}\n" + table(("where", "row", "what", "start", "took", "SM"), rows)

    def _repr_html_(self) -> str:
        return self.svg()


def _written(text: str, path: str | PathLike[str] | None) -> str:
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return text


class _Places:
    """Which track and row the work of a stream belongs to."""

    def __init__(self, parts: tuple[Partition, ...]) -> None:
        self._parts = parts
        self._names: list[tuple[Context, str]] = [(part.context, part.name) for part in parts]
        self._others: dict[str, Track] = {}
        self._rows: dict[Stream, tuple[str, str]] = {}
        self._streams: dict[str, int] = {}

    def of(self, stream: Stream) -> tuple[str, str]:
        if stream not in self._rows:
            track = self._track_of(stream.context)
            self._streams[track] = self._streams.get(track, 0) + 1
            self._rows[stream] = track, f"stream {self._streams[track]}"
        return self._rows[stream]

    def _track_of(self, context: Context) -> str:
        for known, name in self._names:
            if known == context:
                return name
        plain = f"context {context.id}" if context.is_green else "primary context"
        name = context.name or plain
        if any(name == taken for _, taken in self._names):
            name = f"{name} ({plain})"
        self._names.append((context, name))
        self._others[name] = Track(name, context.sm_count, None)
        return name

    def tracks(self) -> tuple[Track, ...]:
        # Asked late: verify() may have seen the ids meanwhile.
        named = (Track(part.name, part.sm_count, part.sm_ids) for part in self._parts)
        return (*named, *self._others.values())


class Timeline:
    """Notes when pieces of work ran on a device, by stamps in their streams.

    target: Partitions, whose names are shown, or a Device. spans: how many can be noted.

        timeline = tune.Timeline(parts)
        with timeline.span(parts.decode.stream, "step"):
            ...  # enqueue work on that stream
        timeline.html("timeline.html")

    A stamp is a kernel of one warp, some microseconds of its stream. It runs when the stream gets to it and an SM of
    the stream's context has room: so a span begins when its work could begin.
    """

    def __init__(self, target: Partitions | Device | None = None, *, spans: int = 1024) -> None:
        if isinstance(spans, bool) or not isinstance(spans, int):
            raise TypeError(f"spans must be an int, not {type(spans).__name__}")
        if not 1 <= spans <= MOST_SPANS:
            raise ValueError(f"spans must be from 1 to {MOST_SPANS}, not {spans}")
        if target is not None and not isinstance(target, (Partitions, Device)):
            raise TypeError(f"a timeline is of Partitions or a Device, not of {type(target).__name__}")
        self._device = target.device if isinstance(target, Partitions) else target or Device()
        self._places = _Places(tuple(target) if isinstance(target, Partitions) else ())
        self._stamps = Stamps(self._device, 2 * spans)
        self._lock = threading.Lock()
        self._spans: list[tuple[str, str, str]] = []
        self._ends: dict[Stream, Event] = {}

    @contextmanager
    def span(self, stream: SupportsCudaStream | Stream, name: str) -> Iterator[None]:
        """Notes when what is queued on a stream in the ``with`` block runs. Does not wait."""
        queue = stream if isinstance(stream, Stream) else Stream(stream)
        if queue.device != self._device:
            raise ValueError(f"the stream is one of {queue.device!r}, the timeline of {self._device!r}")
        with self._lock:
            place = 2 * len(self._spans)
            if place >= self._stamps.capacity:
                raise RuntimeError(
                    f"the timeline is full: read() what it has and begin a new one, or make one with more than "
                    f"{len(self._spans)} spans"
                )
            self._spans.append((name, *self._places.of(queue)))
        self._stamps.write(queue, place)
        try:
            yield
        finally:
            self._stamps.write(queue, place + 1)
            if not is_capturing(queue):  # a span of a graph is there when the graph has been replayed
                self._ends[queue] = queue.record(self._ends.get(queue))

    def read(self) -> Trace:
        """Waits for the spans that have ended in the program, and tells when they ran."""
        for end in list(self._ends.values()):
            end.sync()
        stamps = self._stamps.read()
        spans = []
        for number, (name, track, row) in enumerate(list(self._spans)):
            begin, end_stamp = stamps[2 * number], stamps[2 * number + 1]
            if begin is not None and end_stamp is not None:
                spans.append(Span(name, track, row, begin[1], end_stamp[1], begin[0]))
        return _trace(self._device, "Timeline", SPANS_NOTE, self._places.tracks(), spans)

    def svg(self, path: str | PathLike[str] | None = None) -> str:
        """``read().svg(path)``"""
        return self.read().svg(path)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """``read().html(path)``"""
        return self.read().html(path)

    def chrome_trace(self, path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """``read().chrome_trace(path)``"""
        return self.read().chrome_trace(path)

    @staticmethod
    def of_probe(parts: Partitions, *, spin_ns: int = 200_000) -> Trace:
        """Fills all partitions at once with the kernel that verify() runs, and tells when each block ran on which SM.

        spin_ns: how long a block stays.
        """
        per_sm = max(1, probe_blocks_per_sm(parts[0].context))
        with ExitStack() as closing:
            streams = [closing.enter_context(part.context.create_stream()) for part in parts]
            blocks = [part.sm_count * per_sm for part in parts]
            seen = run_probe(streams, blocks, spin_ns, PROBE_TIMEOUT_NS)
        spans, tracks = [], []
        for part, ran in zip(parts, seen, strict=True):
            tracks.append(Track(part.name, part.sm_count, tuple(sorted({sm for sm, _, _ in ran}))))
            spans += [Span("block", part.name, f"SM {sm}", start, end, sm) for sm, start, end in sorted(ran)]
        return _trace(parts.device, "Probe blocks by SM", PROBE_NOTE, tuple(tracks), spans)


def _trace(device: Device, title: str, note: str, tracks: tuple[Track, ...], spans: list[Span]) -> Trace:
    driver = ".".join(map(str, system.driver_version))
    return Trace(device.name, device.device_id, driver, title, note, tracks, tuple(spans))
