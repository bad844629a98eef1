"""Timelines: when work ran and where, by the device's own timer, as values, as a picture, and as a trace."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cuda_gctx import CUDAError, Device, Partitions
from cuda_gctx.draw.durations import in_words
from cuda_gctx.draw.timeline import draw_timeline, layers
from cuda_gctx.measure.timeline import Span, Timeline, Trace, Track
from cuda_gctx.tune import spin

from ..common import green, refusal, split
from ..raw import Raw

Machines = Callable[..., Any]

SPIN_NS = 300_000
SVG = "{http://www.w3.org/2000/svg}"


def by_name(trace: Trace) -> dict[str, Span]:
    return {span.name: span for span in trace.spans}


def two_at_once(parts: Partitions) -> Timeline:
    """Two steps on one partition, next to a long one on the other."""
    timeline = Timeline(parts)
    with timeline.span(parts.large.stream, "long"):
        spin(parts.large.stream, 1, 4 * SPIN_NS)
    for name in ("one", "two"):
        with timeline.span(parts.small.stream, name):
            spin(parts.small.stream, 1, SPIN_NS)
    return timeline


# ---- what is noted


def test_spans_of_a_stream_follow_each_other_and_take_as_long_as_their_work(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        spans = by_name(two_at_once(parts).read())
    assert spans["one"].duration_ns >= SPIN_NS
    assert spans["two"].start_ns >= spans["one"].end_ns
    assert spans["long"].duration_ns >= 4 * SPIN_NS


@pytest.mark.sim_only
def test_stamps_take_little_of_the_time(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        spans = by_name(two_at_once(parts).read())
    assert spans["one"].duration_ns < SPIN_NS + 10_000
    assert spans["two"].start_ns < spans["one"].end_ns + 10_000
    assert spans["long"].start_ns < spans["one"].start_ns < spans["two"].end_ns < spans["long"].end_ns


def test_a_span_is_of_the_partition_whose_sms_it_ran_on(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        parts.verify()
        trace = two_at_once(parts).read()
        assert [track.name for track in trace.tracks] == [part.name for part in parts]
        assert [track.sm_ids for track in trace.tracks] == [part.sm_ids for part in parts]
    owned = {track.name: set(track.sm_ids or ()) for track in trace.tracks}
    assert {span.name: span.track for span in trace.spans} == {"long": "large", "one": "small", "two": "small"}
    assert all(span.sm in owned[span.track] for span in trace.spans)


def test_streams_outside_of_partitions_are_named_by_their_context(dev: Device) -> None:
    [group, other], _ = split(dev.resources.sm, [8, 8])
    timeline = Timeline(dev)
    with green(dev, group, name="radio") as named, green(dev, other) as unnamed:
        contexts = (named, unnamed, dev.context)
        streams = [context.create_stream() for context in contexts]
        for stream in streams:
            with timeline.span(stream, "work"):
                spin(stream, 1, 1_000)
        trace = timeline.read()
        assert [span.track for span in trace.spans] == ["radio", f"context {unnamed.id}", "primary context"]
        assert [track.sm_count for track in trace.tracks] == [context.sm_count for context in contexts]
        for stream in streams:
            stream.close()


def test_contexts_of_one_name_are_distinguished(dev: Device) -> None:
    groups, _ = split(dev.resources.sm, [8, 8])
    timeline = Timeline(dev)
    with green(dev, groups[0], name="radio") as first, green(dev, groups[1], name="radio") as second:
        for context in (first, second):
            with context.create_stream() as stream, timeline.span(stream, "work"):
                spin(stream, 1, 1_000)
        tracks = [span.track for span in timeline.read().spans]
        assert tracks == ["radio", f"radio (context {second.id})"]


def test_each_stream_of_a_partition_has_a_row(dev: Device) -> None:
    with dev.partition(small=8) as parts:
        timeline = Timeline(parts)
        first, second = parts.small.stream_pool(2)
        for stream in (first, second, first):
            with timeline.span(stream, "work"):
                spin(stream, 1, SPIN_NS)
        assert [span.row for span in timeline.read().spans] == ["stream 1", "stream 2", "stream 1"]


def test_a_stream_of_another_library_can_be_noted(dev: Device) -> None:
    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.handle

    with dev.create_stream() as stream:
        timeline = Timeline(dev)
        with timeline.span(Foreign(), "work"):
            spin(stream, 1, SPIN_NS)
        assert timeline.read().spans[0].duration_ns >= SPIN_NS


def test_what_was_noted_can_be_read_after_the_partitions_are_closed(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        timeline = two_at_once(parts)
    trace = timeline.read()
    assert len(trace.spans) == 3
    assert trace.tracks[0].sm_count == 8


def test_a_span_that_has_not_ended_is_not_reported_and_one_with_an_error_is(dev: Device) -> None:
    def fail() -> None:
        with timeline.span(stream, "failed"):
            raise KeyError("x")

    with dev.create_stream() as stream:
        timeline = Timeline(dev)
        with timeline.span(stream, "open"):
            with pytest.raises(KeyError):
                fail()
            assert [span.name for span in timeline.read().spans] == ["failed"]
        assert [span.name for span in timeline.read().spans] == ["open", "failed"]


def test_a_span_in_a_captured_graph_is_that_of_its_last_replay(dev: Device) -> None:
    raw = Raw()
    with dev.create_stream() as stream, dev.context.current():
        timeline = Timeline(dev)
        spin(stream, 1, 1)  # loads the kernel, which a capture may not
        stream.sync()
        handle, graph = ctypes.c_void_p(stream.handle), ctypes.c_void_p()
        raw.call("cuStreamBeginCapture_v2", handle, 0)
        with timeline.span(stream, "captured"):
            spin(stream, 1, SPIN_NS)
        raw.call("cuStreamEndCapture", handle, ctypes.byref(graph))
        replay = ctypes.c_void_p(raw.handle("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0)))
        assert timeline.read().spans == ()  # captured, and not run yet
        ends = []
        for _ in range(2):
            raw.call("cuGraphLaunch", replay, handle)
            stream.sync()
            [span] = timeline.read().spans
            assert span.duration_ns >= SPIN_NS
            ends.append(span.end_ns)
        assert ends[1] >= ends[0] + SPIN_NS
        raw.call("cuGraphExecDestroy", replay)
        raw.call("cuGraphDestroy", graph)


def test_a_full_timeline_says_so(dev: Device) -> None:
    with dev.create_stream() as stream:
        timeline = Timeline(dev, spans=1)
        with timeline.span(stream, "first"):
            pass
        with pytest.raises(RuntimeError, match="full"), timeline.span(stream, "second"):
            pass
        assert [span.name for span in timeline.read().spans] == ["first"]


@pytest.mark.parametrize("function", ["cuMemAlloc", "cuMemsetD8Async"])
def test_a_timeline_that_cannot_be_made_leaves_nothing_behind(sim: Machines, function: str) -> None:
    machine = sim("h200")
    dev = Device()
    with dev.create_stream() as stream:
        spin(stream, 1, 1)
        free = machine.memory()["free"]
        machine.fail(function, nth=1)
        assert refusal(CUDAError, lambda: Timeline(dev)).call == function
        assert machine.memory()["free"] == free
        assert len(machine.ledger().live_of("stream")) == 1


def test_streams_of_another_device_are_refused(sim: Machines) -> None:
    sim("h200", devices=2)
    timeline = Timeline(Device(0))
    with (
        Device(1).create_stream() as stream,
        pytest.raises(ValueError, match="Device"),
        timeline.span(stream, "x"),
    ):
        pass


@pytest.mark.parametrize("spans", [0, -1, 10_000_000])
def test_a_number_of_spans_that_cannot_be_is_refused(dev: Device, spans: int) -> None:
    with pytest.raises(ValueError, match="spans must be an int from"):
        Timeline(dev, spans=spans)


def test_only_partitions_and_devices_have_timelines(dev: Device) -> None:
    for wrong in ("decode", dev.context):
        with pytest.raises(TypeError, match="Partitions or a Device"):
            Timeline(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="spans must be an int"):
        Timeline(dev, spans=1.5)  # type: ignore[arg-type]


# ---- pictures and traces


def test_the_picture_names_the_device_the_parts_and_every_span(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        svg = two_at_once(parts).read().svg()
    root = ElementTree.fromstring(svg)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert any(dev.name in (word or "") for word in words)
    assert {"small", "large", "long"} <= set(words)
    hovers = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert sorted(hover.split(":")[0] for hover in hovers) == ["long", "one", "two"]
    assert all(re.search(r": [\d.]+ [num]?s to [\d.]+ [num]?s, took [\d.]+ [num]?s\n", hover) for hover in hovers)


def test_names_that_cannot_be_written_or_are_too_long_leave_the_picture_whole() -> None:
    name = "n" * 100 + "\x07"
    rows = {row: [Span("bell\x07", "\x1b[31mred", row, 0, 10, 3)] for row in ("stream 1", "stream 2")}
    svg = draw_timeline("Timeline", "a GPU" * 100, {Track(name, 8, None): rows}, "")
    root = ElementTree.fromstring(svg)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert titles[:2] == ["a GPU" * 100, "n" * 100 + "\ufffd"]
    assert titles[2] == "bell\ufffd: 0 ns to 10 ns, took 10 ns\n\ufffd[31mred, stream 1, SM 3"
    shown = "".join(root.itertext())
    [fits] = re.findall("\ufffd(n+)\N{HORIZONTAL ELLIPSIS}", shown)
    assert 14 <= len(fits) <= 18  # what fits next to the name of the row
    assert "bell\ufffd" in shown


def test_a_bar_is_as_long_as_its_span(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        trace = two_at_once(parts).read()
    widths = {}
    for box in ElementTree.fromstring(trace.svg()).iter(f"{SVG}rect"):
        for title in box.iter(f"{SVG}title"):
            widths[(title.text or "").split(":")[0]] = float(box.attrib["width"])
    durations = {name: span.duration_ns for name, span in by_name(trace).items()}
    assert widths["long"] / widths["one"] == pytest.approx(durations["long"] / durations["one"], rel=0.02)


def test_a_picture_of_more_spans_than_it_has_room_for_names_of_says_how_to_zoom_in(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        trace = two_at_once(parts).read()
    [span, *_] = trace.spans
    for spans in (3, 100, 101):
        assert ("To zoom in" in replace(trace, spans=(span,) * spans).svg()) == (spans > 100)


def test_a_page_loads_nothing_and_is_written_where_asked(dev: Device, tmp_path: Path) -> None:
    with dev.partition(small=8, large=None) as parts:
        page = two_at_once(parts).read().html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<link|src=|url\(|@import", page)


def test_the_trace_is_what_perfetto_reads(dev: Device, tmp_path: Path) -> None:
    with dev.partition(small=8, large=None) as parts:
        read = two_at_once(parts).read()
    trace = read.chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace
    work = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    reported = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert len(work) + len(reported) == len(trace["traceEvents"])
    assert {event["name"] for event in work} == {"long", "one", "two"}
    for event in work:
        assert event["ts"] >= 0
        assert event["dur"] >= SPIN_NS / 1e3
        assert event["pid"] == dev.device_id
    assert {event["args"]["name"] for event in reported if event["name"] == "process_name"} == {dev.name}
    threads = {event["tid"]: event["args"]["name"] for event in reported if event["name"] == "thread_name"}
    assert {threads[event["tid"]] for event in work} == {"small, stream 1", "large, stream 1"}
    assert min(event["ts"] for event in work) == 0
    begins = {span.name: span.start_ns - read.start_ns for span in read.spans}
    assert {event["name"]: round(event["ts"] * 1000) for event in work} == begins
    assert max(begins.values()) > 0


def test_what_overlaps_has_threads_of_its_own_in_the_trace(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        trace = two_at_once(parts).read()
    spans = tuple(replace(span, track="small", row="stream 1") for span in trace.spans)
    events = replace(trace, spans=spans).chrome_trace()["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    assert len({event["tid"] for event in work}) == 2
    for a, b in combinations(work, 2):
        assert a["tid"] != b["tid"] or a["ts"] + a["dur"] <= b["ts"] or b["ts"] + b["dur"] <= a["ts"]


def test_an_empty_timeline_can_be_shown(dev: Device) -> None:
    trace = Timeline(dev).read()
    assert trace.spans == ()
    assert dev.name in str(trace)
    assert dev.name in trace.html()
    assert trace.chrome_trace()["traceEvents"][0]["name"] == "process_name"


def test_the_table_of_a_trace_has_a_line_for_each_span(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        trace = two_at_once(parts).read()
    head, columns, *lines = str(trace).splitlines()
    assert head.startswith(dev.name)
    assert columns.split() == ["where", "row", "what", "start", "took", "SM"]
    assert len(lines) == 3


def test_layers_hold_nothing_that_overlaps() -> None:
    bars = [Span("", "", "", begin, end, 0) for begin, end in [(0, 10), (2, 4), (4, 8), (5, 6), (10, 12)]]
    assert [[(bar.start_ns, bar.end_ns) for bar in layer] for layer in layers(bars)] == [
        [(0, 10), (10, 12)],
        [(2, 4), (4, 8)],
        [(5, 6)],
    ]


@pytest.mark.parametrize(
    ("ns", "words"), [(0, "0 ns"), (999, "999 ns"), (1_500, "1.5 us"), (2_345_678, "2.346 ms"), (3e9, "3 s")]
)
def test_times_have_the_unit_that_suits_them(ns: float, words: str) -> None:
    assert in_words(ns) == words
