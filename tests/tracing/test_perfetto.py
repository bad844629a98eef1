"""Files for ui.perfetto.dev, read by the classes that Perfetto generates from its format."""

from __future__ import annotations

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_gctx.tracing._perfetto import PerfettoWriter

from .pftrace import Slice, Track, protos, read_packets, read_tracks

ORIGIN = 1_764_400_000_000_000_000
US = 1_000


@pytest.fixture
def file() -> io.BytesIO:
    return io.BytesIO()


def read(file: io.BytesIO) -> dict[int, Track]:
    return {track.number: track for track in read_tracks(file.getvalue())}


def rows(tracks: dict[int, Track], name: str) -> list[Track]:
    return [track for track in tracks.values() if track.name == name]


def test_streams_are_inside_partitions_inside_a_process(file: io.BytesIO) -> None:
    with PerfettoWriter(file, ORIGIN) as writer:
        process = writer.process(41, "train.py", 0)
        writer.lane(process, "outside of all partitions")
        stream = writer.lane(writer.lane(process, "control"), "stream 7")
        writer.slice(stream, "gemm", "kernel", ORIGIN + 5 * US, ORIGIN + 9 * US)
    tracks = read(file)

    [row] = rows(tracks, "stream 7")
    assert row.slices == [Slice(5 * US, 9 * US, "gemm", "kernel")]
    lane = tracks[row.parent]
    top = tracks[lane.parent]
    assert (lane.name, top.pid, top.described.process.process_name) == ("control", 41, "train.py, GPU 0")
    # The viewer keeps the order in which lanes are added.
    assert top.described.child_ordering == protos.TrackDescriptor.EXPLICIT
    assert rows(tracks, "outside of all partitions")[0].rank < lane.rank


def test_a_program_is_a_process_for_each_device(file: io.BytesIO) -> None:
    with PerfettoWriter(file, ORIGIN) as writer:
        for pid, device in ((41, 0), (41, 1), (42, 0)):
            writer.process(pid, "train.py", device)
    found = [track.described.process for track in read(file).values()]
    assert [process.process_name for process in found] == ["train.py, GPU 0", "train.py, GPU 1", "train.py, GPU 0"]
    assert len({process.pid for process in found}) == 3


def test_overlapping_work_of_a_stream_gets_rows_that_the_viewer_joins(file: io.BytesIO) -> None:
    with PerfettoWriter(file, ORIGIN) as writer:
        process = writer.process(1, "p", 0)
        stream, other = writer.lane(process, "stream 7"), writer.lane(process, "stream 8")
        for start, end in ((0, 10), (5, 15), (10, 20), (12, 14)):
            writer.slice(stream, "node", "kernel", ORIGIN + start, ORIGIN + end)
        writer.slice(other, "node", "kernel", ORIGIN, ORIGIN + 1)
    tracks = read(file)

    found = rows(tracks, "stream 7")
    assert [[one[:2] for one in row.slices] for row in found] == [[(0, 10), (10, 20)], [(5, 15)], [(12, 14)]]
    joined = protos.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
    assert {row.described.sibling_merge_behavior for row in found} == {joined}
    [key] = {row.described.sibling_merge_key_int for row in found}
    [foreign] = rows(tracks, "stream 8")
    assert foreign.described.sibling_merge_key_int != key


def test_details_categories_marks_and_counters_are_kept(file: io.BytesIO) -> None:
    with PerfettoWriter(file, ORIGIN) as writer:
        process = writer.process(1, "p", 0)
        stream = writer.lane(process, "stream 7")
        busy = writer.counter(process, "SMs of busy partitions", "SMs")
        details = {"queued before, ns": 2_500, "graph": 3, "why": "asked"}
        writer.slice(stream, "gemm", "outside", ORIGIN, ORIGIN + US, details)
        writer.mark(stream, "switch to wide", "switch", ORIGIN + 2 * US)
        for time, count in ((0, 16), (US, 132), (3 * US, 0)):
            writer.count(busy, ORIGIN + time, count)
    tracks = read(file)

    [row] = rows(tracks, "stream 7")
    assert row.slices == [Slice(0, US, "gemm", "outside", details)]
    assert row.instants == [(2 * US, "switch to wide", "switch")]
    [counter] = rows(tracks, "SMs of busy partitions")
    assert counter.described.counter.unit_name == "SMs"
    assert counter.values == [(0, 16), (US, 132), (3 * US, 0)]


def test_the_trace_tells_the_wall_clock_of_its_beginning(file: io.BytesIO) -> None:
    with PerfettoWriter(file, ORIGIN):
        pass
    clocks = {
        clock.clock_id: clock.timestamp
        for packet in read_packets(file.getvalue())
        for clock in packet.clock_snapshot.clocks
    }
    assert clocks == {protos.BUILTIN_CLOCK_REALTIME: ORIGIN, protos.BUILTIN_CLOCK_BOOTTIME: 0}


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (-1, 5, "starts 1 ns before the trace"),
        (5, 4, "ends 1 ns before its start"),
        (0, 2**56, "longer than 833 days"),
    ],
)
def test_impossible_times_are_refused_and_leave_the_trace_readable(
    file: io.BytesIO, start: int, end: int, message: str
) -> None:
    with PerfettoWriter(file, ORIGIN) as writer:
        stream = writer.lane(writer.process(1, "p", 0), "stream 7")
        with pytest.raises(ValueError, match=message):
            writer.slice(stream, "gemm", "kernel", ORIGIN + start, ORIGIN + end)
        writer.slice(stream, "gemm", "kernel", ORIGIN, ORIGIN + 1)
    assert [one[:3] for row in rows(read(file), "stream 7") for one in row.slices] == [(0, 1, "gemm")]


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
SPANS = st.tuples(st.integers(0, 2), st.integers(0, 2**50), st.integers(0, 2**50), NAMES)


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SPANS, max_size=40))
def test_every_slice_is_found_once_in_a_row_of_its_lane(spans: list[tuple[int, int, int, str]]) -> None:
    file = io.BytesIO()
    lanes = ("stream 0", "stream 1", "stream 2")
    with PerfettoWriter(file, ORIGIN) as writer:
        process = writer.process(1, "p", 0)
        streams = [writer.lane(process, name) for name in lanes]
        for lane, start, length, name in spans:
            writer.slice(streams[lane], name, "kernel", ORIGIN + start, ORIGIN + start + length)
    tracks = read(file)
    for number, lane_name in enumerate(lanes):
        expected = sorted((start, start + length, name) for lane, start, length, name in spans if lane == number)
        assert sorted(one[:3] for row in rows(tracks, lane_name) for one in row.slices) == expected
