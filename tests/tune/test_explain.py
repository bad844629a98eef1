"""The diagnosis of two pieces of work: whether they overlap, what that costs, and which known cause fits if not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import Context, ContextOptions, Device, Event, Stream, StreamOptions, trace
from cuda_gctx.tune import explain, spin
from cuda_gctx.tune._explain import ExplainReport

from ..common import split
from .conftest import host_takes

Machines = Callable[..., Any]
Work = Callable[[Stream], None]

MS = 1_000_000


def busy(blocks: int, ns: int = 2 * MS, times: int = 1) -> Work:
    """Work that keeps half an SM for each block."""

    def work(stream: Stream) -> None:
        for _ in range(times):
            spin(stream, blocks, ns)

    return work


def cause(report: ExplainReport) -> str:
    assert not report.overlaps, str(report)
    return report.causes[0]


# ---- where it runs


def test_kernels_outside_of_the_place_of_the_work_are_named_with_where_they_ran(sim: Machines) -> None:
    sim("h200")
    with Device().partition(control=16, rest=None) as parts, Device().create_stream() as plain:

        def leaves(stream: Stream) -> None:
            spin(stream, 16, MS)
            spin(plain, 8, MS)
            spin(parts.rest.stream, 8, MS)

        report = explain((parts.control, leaves), (parts.rest, busy(16)))
        [first, second] = report.causes[:2]
        assert first.startswith("leaves also runs cuda_gctx_probe outside of all partitions")
        assert second.startswith("leaves also runs cuda_gctx_probe in rest")
        assert not any("cuda_gctx_probe" in cause for cause in explain(parts.control, parts.rest).causes)


def test_a_process_that_is_traced_already_gets_its_report_without_that_question(sim: Machines) -> None:
    sim("h200")
    with Device().partition(control=16, rest=None) as parts, Device().create_stream() as plain, trace():
        report = explain((parts.control, lambda stream: spin(plain, 8, MS)), (parts.rest, busy(16)))
    assert not any("cuda_gctx_probe" in cause for cause in report.causes)


# ---- they overlap


@pytest.mark.alone
def test_disjoint_partitions_overlap_and_neither_is_slower(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        report = explain((parts.small, busy(16)), (parts.large, busy(2 * parts.large.sm_count, 3 * MS)))
        assert report.first.sm_ids == parts.verify().contexts[0].sm_ids
    assert report.overlaps
    assert report.overlap > 0.8
    assert report.overlap_queued > 0.8
    assert report.streams_overlap
    assert report.shared_sms == ()
    assert report.first.slowdown < 1.1
    assert report.second.slowdown < 1.1
    assert report.together_ns < 0.8 * report.in_sequence_ns
    assert report.causes[0] == "neither slows the other by more than 10%"


def test_work_that_shares_sms_reports_what_waiting_for_them_costs(sim: Machines) -> None:
    sim("h200")
    with Device().create_stream() as one, Device().create_stream() as two:
        # 264 blocks fit: a third of the second work finds no room at first.
        report = explain((one, busy(200, 3 * MS)), (two, busy(100, 2 * MS)))
    assert report.overlaps
    assert 0.3 < report.overlap < 0.7
    assert report.second.slowdown == pytest.approx(2.0, abs=0.1)
    assert "2.00 times as long: they share 132 SMs" in report.causes[0]


def test_work_that_overlaps_with_the_end_of_the_other_reports_how_long_it_waited(sim: Machines) -> None:
    sim("h200")
    dev = Device()
    # Three full rounds, and one that leaves room.
    with dev.create_stream() as one, dev.create_stream() as two:
        report = explain((one, busy(6 * dev.sm_count + 8, MS)), (two, busy(8, MS)))
    assert report.overlap > 0.8
    assert report.second.slowdown == pytest.approx(4.0, abs=0.3)
    assert "(it finds room on an SM 3" in report.causes[0]


def test_streams_alone_are_asked_whether_they_overlap_at_all(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        report = explain(parts.small, parts.large.stream)
        assert [report.first.sm_ids, report.second.sm_ids] == [proof.sm_ids for proof in parts.verify().contexts[:2]]
    assert (report.first.name, report.second.name) == ("first", "second")
    assert report.overlap > 0.8
    assert report.streams_overlap
    assert report.shared_sms == ()


def test_a_stream_alone_next_to_work(dev: Device) -> None:
    with dev.create_stream() as one, dev.create_stream() as two:
        report = explain((one, busy(2 * dev.sm_count)), two)
    assert (report.first.name, report.second.name) == ("work", "second")
    assert "fills the SMs" in cause(report)


# ---- they do not


def test_streams_alone_report_why_they_do_not_overlap(dev: Device) -> None:
    with dev.context.current(), dev.create_stream(StreamOptions(nonblocking=False)) as blocking:
        assert "is on the legacy default stream" in cause(explain(blocking, Stream.from_handle(1)))
        assert cause(explain(blocking, blocking)).startswith("both are on one stream")


def test_streams_of_a_program_that_runs_report_its_other_work(dev: Device) -> None:
    with dev.create_stream() as one, dev.create_stream() as two, dev.create_stream() as third:
        spin(one, 8, MS)  # what is queued on the streams themselves is waited for
        for _ in range(20):
            spin(third, 2 * dev.sm_count, 2 * MS)
        report = explain(one, two, rounds=2)
        third.sync()
    assert report.causes[-1].startswith("the small kernel on second completed after")
    assert report.causes[-2].startswith("the small kernel on first completed after")


def test_one_stream_runs_its_work_in_order(dev: Device) -> None:
    with dev.create_stream() as stream:
        report = explain((stream, busy(1)), (stream, busy(1)))
    assert cause(report).startswith("both are on one stream")
    assert not report.streams_overlap
    assert report.overlap == 0.0


def test_work_that_fills_the_device_leaves_no_room_on_it(dev: Device) -> None:
    with dev.create_stream() as one, dev.create_stream() as two:
        report = explain((one, busy(2 * dev.sm_count)), (two, busy(8)))
    answer = cause(report)
    assert "fills the SMs" in answer
    assert "run each in its own partition" in answer
    assert report.streams_overlap
    assert len(report.shared_sms) == dev.sm_count


def test_work_on_the_primary_context_fills_partitions_too(dev: Device) -> None:
    with dev.create_stream() as plain, dev.partition(small=8) as parts:
        answer = cause(explain((plain, busy(2 * dev.sm_count)), (parts.small, busy(8))))
    assert "fills the SMs" in answer
    assert "runs on the primary context, which uses all SMs" in answer


def test_contexts_of_two_splits_share_sms(sim: Machines) -> None:
    sim("h200", driver="13.0")  # where both splits begin with the same SMs
    dev = Device()

    def made(count: int) -> Context:
        [group], _ = split(dev.resources.sm, [count])
        return dev.create_context(ContextOptions([group]))

    with made(16) as large:
        with pytest.warns(Warning, match="SMs"):
            small = made(8)
        with small, large.create_stream() as one, small.create_stream() as two:
            report = explain((one, busy(2 * large.sm_count)), (two, busy(8)))
    assert report.shared_sms
    assert f"the two contexts share {len(report.shared_sms)} SMs" in cause(report)


def test_blocking_streams_wait_for_the_legacy_default_stream(dev: Device) -> None:
    with dev.context.current(), dev.create_stream(StreamOptions(nonblocking=False)) as blocking:
        legacy = Stream.from_handle(1)
        for pair in ((legacy, blocking), (blocking, legacy)):
            report = explain((pair[0], busy(1)), (pair[1], busy(1)))
            assert "is on the legacy default stream" in cause(report)
            assert not report.streams_overlap


def test_work_that_waits_for_an_event_of_the_other_is_found(dev: Device) -> None:
    def records(stream: Stream) -> None:
        spin(stream, 1, 2 * MS)
        stream.record(event)

    def waits(stream: Stream) -> None:
        stream.wait(event)
        spin(stream, 1, 3 * MS)

    with dev.partition(small=8, large=None) as parts:
        event: Event = dev.create_event()
        answer = cause(explain((parts.small, records), (parts.large, waits)))
    assert "they share no SM" in answer
    assert "one waits for an event of the other (waits for records" in answer
    assert "room" not in answer


def test_a_dependency_is_found_within_one_context_too(dev: Device) -> None:
    def waits(stream: Stream) -> None:
        stream.wait(first)
        spin(stream, 1, 2 * MS)

    with dev.create_stream() as first, dev.create_stream() as second:
        answer = cause(explain((first, busy(1)), (second, waits)))
    assert "one waits for an event of the other" in answer
    assert "needs more of an SM" in answer


def test_one_hardware_queue_serialises_and_the_setting_is_named(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200", connections=1)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with Device().partition(small=8, large=None) as parts:
        report = explain((parts.small, busy(1)), (parts.large, busy(1)))
    assert "1 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) for 2 streams" in cause(report)
    assert not report.streams_overlap


def test_a_queue_that_streams_share_among_many_is_reported(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200", connections=1)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    with Device().create_stream() as one, Device().create_stream() as two:
        assert "the streams share a hardware queue" in cause(explain((one, busy(1)), (two, busy(1))))


def test_launches_that_block_are_named(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200", connections=1)  # as blocking launches do, this lets nothing overlap
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with Device().create_stream() as one, Device().create_stream() as two:
        assert cause(explain((one, busy(1)), (two, busy(1)))).startswith("CUDA_LAUNCH_BLOCKING=1")


def test_work_that_waits_for_the_device_is_named(dev: Device) -> None:
    def synchronises(stream: Stream) -> None:
        spin(stream, 1, 2 * MS)
        stream.sync()

    with dev.partition(small=8, large=None) as parts:
        report = explain((parts.small, synchronises), (parts.large, busy(1)))
    assert cause(report).startswith("synchronises waits for the device inside its function")


def test_launches_that_come_late_are_distinguished_from_full_sms(sim: Machines) -> None:
    sim("h200")
    with Device().partition(small=8, large=None) as parts:
        report = explain((parts.small, busy(1, 100, times=300)), (parts.large, busy(1, 100, times=200)))
    assert cause(report).startswith("launch-bound")
    assert report.overlap_queued > 0.8
    assert report.first.called_ns > 1.5 * report.first.alone_ns


@pytest.mark.sim_only
def test_work_that_is_queued_begins_when_the_slower_call_has_ended(dev: Device) -> None:
    def slow_to_call(stream: Stream) -> None:
        host_takes(20 * MS)
        spin(stream, 1, MS)

    with dev.partition(small=8, large=None) as parts:
        for pair in ((slow_to_call, busy(1, MS)), (busy(1, MS), slow_to_call)):
            report = explain((parts.small, pair[0]), (parts.large, pair[1]), rounds=1)
            assert max(report.first.called_ns, report.second.called_ns) > 20 * MS
            assert max(report.first.alone_ns, report.second.alone_ns) < 2 * MS


def test_work_that_is_too_short_is_reported(sim: Machines) -> None:
    sim("h200")
    with Device().partition(small=8, large=None) as parts:
        report = explain((parts.small, busy(1, 10)), (parts.large, busy(1, 10)))
    assert cause(report).startswith("too short")


def test_a_first_call_that_takes_long_is_noted(dev: Device) -> None:
    def loads(stream: Stream) -> None:
        if not loaded:
            loaded.append(True)
            host_takes(20 * MS)
        spin(stream, 1, MS)

    loaded: list[bool] = []
    with dev.partition(small=8, large=None) as parts:
        report = explain((parts.small, loads), (parts.large, busy(1, MS)))
    assert report.overlaps
    assert report.causes[-1].startswith("the first call of loads took")


# ---- the report


def test_the_report_is_a_table_and_json(dev: Device) -> None:
    def decode(stream: Stream) -> None:
        spin(stream, 1, MS)

    def prefill(stream: Stream) -> None:
        spin(stream, 1, 2 * MS)

    with dev.partition(small=8, large=None) as parts:
        report = explain((parts.small, decode), (parts.large, prefill), rounds=2)
    lines = str(report).splitlines()
    assert lines[0].startswith(dev.name)
    assert lines[0].endswith(": overlap")
    assert repr(report).startswith("<ExplainReport: ")
    assert len(repr(report)) < 120
    assert "decode, the shorter" in lines[1]
    assert lines[3].split()[:2] == ["decode", "small"]
    assert lines[4].split()[:2] == ["prefill", "large"]
    answer = json.loads(report.to_json())
    assert answer["overlaps"] is True
    assert answer["first"]["name"] == "decode"
    assert answer["causes"] == list(report.causes)
    assert report.together_ns >= 2 * MS


def test_work_without_names_is_distinguished(dev: Device) -> None:
    with dev.partition(small=8, large=None) as parts:
        for pair, names in (
            ((lambda stream: spin(stream, 1, 1), lambda stream: spin(stream, 1, 1)), ("first", "second")),
            ((busy(1, 1), busy(1, 1)), ("work (1)", "work (2)")),
        ):
            report = explain((parts.small, pair[0]), (parts.large, pair[1]), rounds=1)
            assert (report.first.name, report.second.name) == names


def test_work_finds_its_stream_as_the_current_one_of_torch(torch: Any, dev: Device) -> None:
    def work(stream: Stream) -> None:
        seen.add(torch.cuda.current_stream().cuda_stream == stream.handle)
        spin(stream, 1, MS)

    seen: set[bool] = set()
    with dev.partition(small=8, large=None) as parts:
        explain((parts.small, work), (parts.large, work), rounds=1)
    assert seen == {True}


def test_an_error_of_the_work_comes_out_and_leaves_nothing_behind(sim: Machines) -> None:
    def fails(stream: Stream) -> None:
        spin(stream, 1, MS)
        raise KeyError("mine")

    machine = sim("h200")
    with Device().create_stream() as one, Device().create_stream() as two:
        streams = len(machine.ledger().live_of("stream"))
        with pytest.raises(KeyError, match="mine"):
            explain((one, fails), (two, busy(1)))
        one.sync()
        assert len(machine.ledger().live_of("stream")) <= streams + 1


def test_bad_input_is_refused(sim: Machines) -> None:
    sim("h200", devices=2)
    with Device(0).create_stream() as one, Device(1).create_stream() as two:
        with pytest.raises(ValueError, match="two devices"):
            explain((one, busy(1)), (two, busy(1)))
        with pytest.raises(ValueError, match="rounds must be an int from 1"):
            explain((one, busy(1)), (one, busy(1)), rounds=0)
        with pytest.raises(TypeError, match="rounds must be an int"):
            explain((one, busy(1)), (one, busy(1)), rounds=1.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="explain takes streams or partitions"):
            explain((one, busy(1)), ("two", busy(1)))
        for piece in ((one,), (one, busy(1), 1), (one, None)):
            with pytest.raises(TypeError, match=r"pairs \(stream, work\)"):
                explain(piece, one)
