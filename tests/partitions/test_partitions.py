"""Partitions: named and disjoint; what they lend, what they refuse, and what is left when they close."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import (
    CapturingError,
    ClosedError,
    Context,
    ContextOptions,
    CUDAError,
    Device,
    EventOptions,
    FeatureNotSupported,
    Layout,
    PartitionPool,
    PartitionSpec,
    ResourceOverlapError,
    ResourceOverlapWarning,
    SMResourceOptions,
    SplitError,
    Stream,
    WorkqueueResourceOptions,
    system,
)
from cuda_gctx._core.extension import context_stream
from cuda_gctx.partitions import ClosedPartitionsError, Partitions, partitions, plan, with_background
from cuda_gctx.tune import spin
from cuda_software_driver import session

from ..common import DRIVERS, NEW_DRIVERS, OLD_DRIVERS, leases, on_another_thread, refusal, split
from ..raw import Raw

Machines = Callable[..., Any]


# ---- what comes out


def test_partitions_by_name_are_attributes_items_and_positions(dev: Device) -> None:
    with dev.partition(decode=8, prefill=None) as parts:
        assert parts.names == ("decode", "prefill")
        assert parts.decode is parts["decode"] is parts[0]
        assert parts.prefill is parts["prefill"] is parts[1]
        assert [part.name for part in parts][:2] == ["decode", "prefill"]
        assert "decode" in parts
        assert "encode" not in parts
        assert parts.decode.requested == 8
        assert parts.prefill.requested is None
        assert parts.decode.sm_count >= 8
        assert parts.decode.context.sm_count == parts.decode.sm_count
        assert parts.decode.stream.resources.sm.sm_count == parts.decode.sm_count


def test_partitions_by_position_keep_the_order_asked(sim: Machines) -> None:
    sim("h200")
    with Device(0).partition(24, 8, 16) as parts:
        assert [part.sm_count for part in parts] == [24, 8, 16]
        assert parts.names == ("0", "1", "2")
        assert parts[1].sm_count == 8
        assert [part.sm_count for part in parts[1:]] == [8, 16]
        assert parts[-1].sm_count == 16
        assert parts.background.sm_count == 84


@pytest.mark.parametrize("driver", DRIVERS)
def test_none_is_all_remaining_sms(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    for layout in (Layout(decode=16, prefill=None), Layout(prefill=None, decode=16)):
        with Device(0).partition(layout) as parts:
            assert (parts.decode.sm_count, parts.prefill.sm_count) == (16, 116)
            assert [part.name for part in parts] == list(layout.names)
            assert "background" not in parts
            assert not hasattr(parts, "background")
            assert [proof.name for proof in parts.verify().contexts] == list(layout.names)


@pytest.mark.parametrize("driver", DRIVERS)
def test_sms_that_no_partition_requests_are_the_background_partition(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    with Device(0).partition(decode=16, prefill=PartitionSpec(None, aligned=True)) as parts:
        assert [part.sm_count for part in parts] == [16, 112]
        background = parts.background
        assert background is parts["background"]
        assert "background" in parts
        assert background in parts
        assert background.sm_count == 4
        assert "background" not in parts.names
        assert len(parts) == 2
        assert parts.layout == Layout(decode=16, prefill=SMResourceOptions(None))
        assert [proof.name for proof in parts.verify().contexts] == ["decode", "prefill", "background"]
        assert background.sm_ids is not None
        assert "background" in str(parts)
        assert "background 4" in repr(parts)
    assert "closed" in repr(background)


def test_partitions_can_be_unpacked(dev: Device) -> None:
    with dev.partition(8, 16) as parts:
        small, large = parts
        assert (small, large) == (parts[0], parts[1])
        assert len(parts) == 2


def test_none_alone_is_the_whole_device(dev: Device) -> None:
    with dev.partition(None) as parts:
        assert parts[0].sm_count == dev.sm_count
        assert not hasattr(parts, "background")
        assert len(parts.verify().contexts) == 1


def test_none_with_nothing_left_does_not_fit(dev: Device) -> None:
    everything = SMResourceOptions(dev.sm_count, backfill=True)
    for attempt in (
        lambda: dev.partition(a=everything, b=None),
        lambda: plan(dev, Layout(a=everything, b=None)),
    ):
        message = str(refusal(SplitError, attempt))
        assert f"take all {dev.sm_count} SMs, and none remain for b" in message


def test_requests_by_mapping_and_by_keyword_are_the_same(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        parts = pool.prepare({"decode": 8, "prefill": None})
        assert pool.prepare(decode=8, prefill=None) is parts
        assert pool.prepare(Layout(decode=8, prefill=None)) is parts
        assert pool.prepare(8, None) is pool.prepare((8, None)) is pool.prepare([8, None])
        assert pool.prepare(8) is pool.prepare((8,))
    for spelled in ({"decode": 8, "prefill": None}, Layout(decode=8, prefill=None)):
        with dev.partition(spelled) as opened:
            assert opened.layout == Layout(decode=8, prefill=None)
    with dev.partition(decode=8, prefill=None) as opened:
        assert opened.layout == Layout(decode=8, prefill=None)
    with dev.partition([8, None]) as opened:
        assert opened.layout == Layout(8, None)
    with PartitionPool(dev) as pool:
        for entry in (dev.partition, pool.prepare):
            with pytest.raises(ValueError, match="by position or by name, not both"):
                entry({"decode": 8}, prefill=None)


def test_without_anything_left_there_is_no_background_partition(dev: Device) -> None:
    with dev.partition(SMResourceOptions(None, backfill=True)) as parts:
        assert "no background partition" in str(refusal(AttributeError, lambda: parts.background))
        assert getattr(parts, "background", None) is None
        assert len(parts) == 1
        assert parts[0].sm_count == dev.sm_count
        assert parts.verify().outside == ()


def test_shares_are_rounded_down_so_that_halves_fit(sim: Machines) -> None:
    sim("h200")
    with Device(0).partition(a=0.5, b=0.5) as parts:
        assert (parts.a.sm_count, parts.b.sm_count) == (64, 64)
        assert parts.a.requested == 0.5


def test_options_and_numbers_go_together(sim: Machines) -> None:
    sim("h200", driver="13.1")
    with Device(0).partition(
        exact=SMResourceOptions(10, backfill=True), many=SMResourceOptions([32], coscheduled_sm_count=16), more=8
    ) as parts:
        assert (parts.exact.sm_count, parts.many.sm_count, parts.more.sm_count) == (10, 32, 8)


def test_the_groups_come_from_one_split_and_are_known_to_be_disjoint(dev: Device) -> None:
    with dev.partition(8, 8) as parts:
        resources = [part.context.resources.sm for part in parts]
        assert [a.overlaps(b) for a in resources for b in resources if a is not b] == [False] * (
            len(parts) ** 2 - len(parts)
        )


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_old_and_a_new_context_of_one_layout_are_known_to_be_disjoint(sim: Machines, driver: str) -> None:
    sim("h100", driver=driver)
    dev = Device(0)
    with dev.partition(a=8, b=8) as parts:
        stored = parts.a.context.id
    with dev.partition(8, 8) as parts:  # another split: the driver gives the same SMs again
        assert parts[0].context.id == stored
        whole = with_background(parts)
        for kind in ([part.context for part in whole], [part.stream for part in whole]):
            sms = [user.resources.sm for user in kind]
            assert [[one.overlaps(other) for one in sms] for other in sms] == [
                [one is other for one in sms] for other in sms
            ]


@pytest.mark.parametrize("card", ["h200", "a100", "l40s", "b200"])
def test_a_share_of_whole_units_gives_all_of_them(sim: Machines, card: str) -> None:
    sim(card)
    dev = Device(0)
    whole = dev.resources.sm
    least = max(whole.min_partition_size, whole.coscheduled_alignment)
    for count in range(least, whole.sm_count, whole.coscheduled_alignment):
        # Most of these shares are a little less than what they stand for, as floats and as nine digits.
        assert plan(dev, Layout(count / whole.sm_count))[0].sm_count == count


def test_table_shows_what_was_requested_and_what_it_became(dev: Device) -> None:
    with dev.partition(decode=9, prefill=None) as parts:
        header, decode, prefill, *_ = str(parts).splitlines()[1:]
        assert " ".join(header.split()) == "partition requested SMs SM ids largest cluster strategy"
        assert decode.split()[:3] == ["decode", "9", str(parts.decode.sm_count)]
        assert "all remaining" in prefill
        assert "not verified" in decode
        parts.verify()
        assert "not verified" not in str(parts)
        assert parts.decode.sm_ids is not None
        assert len(parts.decode.sm_ids) == parts.decode.sm_count


def test_requests_are_shown_in_words() -> None:
    requests = [
        SMResourceOptions(10, backfill=True),
        SMResourceOptions(8, locality_domain=0),
        SMResourceOptions(8),
        PartitionSpec(None, aligned=True),
    ]
    assert [partitions.in_words(one) for one in requests] == [
        "10, exactly",
        "8, locality domain 0",
        "8",
        "all aligned",
    ]


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
def test_partition_reports_how_its_split_formed_it_and_a_plan_makes_no_context(sim: Machines, driver: str) -> None:
    sim("h200", driver)
    dev = Device(0)
    layout = Layout(64, 32, 16, 8, 8)  # which 12.4 and 13.0 split by means of a context
    planned = plan(dev, layout)
    assert dev.device_id not in system.memory()
    with dev.partition(layout) as parts:
        assert system.memory()[dev.device_id].idle == (driver != "13.4")
        assert [part.strategy for part in parts] == [part.strategy for part in planned[: len(parts)]]
        assert all(isinstance(part.strategy, str) for part in parts)


def test_a_layout_can_be_given_in_place_of_requests(dev: Device) -> None:
    layout = Layout(decode=8, prefill=None)
    with dev.partition(layout) as parts:
        assert parts.layout == layout
        assert parts.names == ("decode", "prefill")


def test_closed_partitions_raise_closed_error(dev: Device) -> None:
    parts = dev.partition(decode=8)
    part = parts.decode
    pool = PartitionPool(dev)
    parts.close()
    pool.close()
    for use in (
        lambda: parts.decode,
        lambda: parts.background,
        lambda: parts["decode"],
        lambda: part.context,
        lambda: part.stream,
        lambda: pool.current,
        lambda: pool.prepare(decode=8),
        # A default hides an AttributeError, and would hide this one.
        lambda: getattr(parts, "decode", None),
        lambda: hasattr(part, "context"),
    ):
        error = refusal(ClosedPartitionsError, use)
        assert isinstance(error, ClosedError)
        assert not isinstance(error, AttributeError)
        assert "closed" in str(error)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", "free device memory, or open fewer contexts (system.memory() counts them)"),
        ("CUDA_ERROR_UNKNOWN", "run cuda-gctx doctor"),
    ],
)
def test_a_failure_of_the_driver_names_the_partition_and_says_what_to_do(sim: Machines, code: str, advice: str) -> None:
    machine = sim("h200", driver="13.0")
    machine.fail("cuGreenCtxCreate", nth=2, code=code)
    error = refusal(CUDAError, lambda: Device(0).partition(x=48, y=16))
    assert (error.name, error.call) == (code, "cuGreenCtxCreate")
    assert str(error).startswith(f"partition y (16 SMs): cuGreenCtxCreate answered {code} (")
    assert str(error).endswith(advice)
    with Device(0).partition(x=48, y=16) as parts:
        machine.fail("cuGreenCtxStreamCreate", nth=1, code=code)
        error = refusal(CUDAError, lambda: parts.x.stream)
        assert str(error).startswith(f"partition x (48 SMs): cuGreenCtxStreamCreate answered {code} (")
        assert str(error).endswith(advice)


# ---- what is refused


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (-8, ValueError, "sms must be non-negative (0 and None: all remaining SMs), not -8"),
        (True, TypeError, "sms must be an int, not bool"),
        (0.0, ValueError, "or a share of a device (a float above 0 and below 1), not"),
        (1.5, ValueError, "or a share of a device (a float above 0 and below 1), not"),
        (float("nan"), ValueError, "or a share of a device (a float above 0 and below 1), not"),
        ("8", TypeError, "None or SMResourceOptions, not str"),
        ([8], TypeError, "None or SMResourceOptions, not list"),
        (SMResourceOptions([8, 8]), ValueError, "2 groups"),
    ],
)
def test_bad_requests_name_the_partition(dev: Device, request_: Any, error: type[Exception], words: str) -> None:
    message = str(refusal(error, lambda: dev.partition(decode=request_)))
    assert "partition decode" in message
    assert words in message


def test_a_partition_as_a_block_says_what_is_one(dev: Device) -> None:
    with dev.partition(control=8) as parts:
        message = str(refusal(TypeError, lambda: parts.control.__enter__()))
        assert "parts.control.torch()" in message
        assert "parts.control.context.current()" in message


def test_a_partition_of_no_sms_is_refused(dev: Device) -> None:
    for request in (lambda: dev.partition(8, 0), lambda: Layout(control=8, rest=0), lambda: PartitionSpec(0)):
        assert "request all remaining SMs with None" in str(refusal(ValueError, request))


def test_a_share_that_rounds_to_nothing_says_the_smallest_that_works(sim: Machines) -> None:
    sim("h200")
    message = str(refusal(ValueError, lambda: Device(0).partition(tiny=0.01)))
    assert "partition tiny: 0.01 of 132 SMs are 1.3" in message
    assert "request a share of 0.061" in message
    with Device(0).partition(tiny=0.061) as parts:
        assert parts.tiny.sm_count == 8


def test_one_partition_of_all_sms_is_told_to_take_all_that_remain(sim: Machines) -> None:
    sim("h200")
    error = refusal(SplitError, lambda: Device(0).partition(a=132))
    assert "a layout that fits is a=None" in str(error)
    with Device(0).partition(a=None) as parts:
        assert parts.a.sm_count == 132
    error = refusal(SplitError, lambda: Device(0).partition(a=132, b=None))
    assert error.suggestion is None
    assert "request fewer, so that some remain for b" in str(error)


def test_more_than_the_device_has_names_a_layout_that_fits(sim: Machines) -> None:
    machine = sim("h200")
    error = refusal(SplitError, lambda: Device(0).partition(decode=16, prefill=200))
    assert "Layout(decode=16, prefill=200) does not fit into 132 SMs (alignment 8): " in str(error)
    assert ": a layout that fits is decode=16, prefill=112 (CUDA_ERROR" in str(error)
    assert "fits is 16, 112 (CUDA" in str(refusal(SplitError, lambda: Device(0).partition(16, 200)))
    suggestion = error.suggestion
    assert isinstance(suggestion, SMResourceOptions)
    assert isinstance(suggestion.count, tuple)
    with Device(0).partition(*suggestion.count) as parts:
        assert len(parts) == 2
        assert machine.calls("cuGreenCtxCreate") == len(with_background(parts))


def test_position_and_name_together_are_refused(dev: Device) -> None:
    with pytest.raises(ValueError, match="by position or by name"):
        dev.partition(8, decode=8)
    with pytest.raises(ValueError, match="at least one partition"):
        dev.partition()
    with pytest.raises(ValueError, match="a and b request the remaining SMs"):
        dev.partition(a=None, b=None)
    with pytest.raises(TypeError, match="exclusive must be a bool"):
        dev.partition(exclusive=8)


def test_unknown_partition_is_named_with_those_that_exist(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        assert "the names are decode, background" in str(refusal(AttributeError, lambda: parts.encode))
        assert "the names are decode, background" in str(refusal(KeyError, lambda: parts["encode"]))
        with pytest.raises(IndexError):
            parts[1]


# ---- workqueues


@pytest.mark.parametrize("driver", NEW_DRIVERS)
def test_workqueue_options_belong_to_their_partition(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    queue = WorkqueueResourceOptions(sharing_scope="green_ctx_balanced", concurrency_limit=4)
    with Device(0).partition(decode=PartitionSpec(16, workqueue=queue), prefill=None) as parts:
        given = parts.decode.context.resources.workqueue
        assert (given.sharing_scope, given.concurrency_limit) == ("green_ctx_balanced", 4)
        assert parts.prefill.context.resources.workqueue.sharing_scope == "device_ctx"


@pytest.mark.parametrize("driver", OLD_DRIVERS)
def test_workqueue_options_are_refused_before_anything_is_made(sim: Machines, driver: str) -> None:
    machine = sim("h200", driver=driver)
    spec = PartitionSpec(16, workqueue=WorkqueueResourceOptions(concurrency_limit=4))
    error = refusal(FeatureNotSupported, lambda: Device(0).partition(decode=spec))
    assert (error.needs, error.found) == ("13.1", driver)
    assert machine.calls("cuGreenCtxCreate") == 0


# ---- streams, events, occupancy


def test_the_stream_is_made_once_and_a_pool_gives_the_same_streams(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        decode = parts.decode
        assert decode.stream is decode.stream
        first = decode.stream_pool(3)
        assert decode.stream_pool(2) == first[:2]
        assert len({stream.handle for stream in (decode.stream, *decode.stream_pool(4))}) == 5
        high = decode.stream_pool(1, priority=-1)[0]
        assert high.priority == -1
        assert all(stream.context == decode.context for stream in (*first, high))
        with pytest.raises(ValueError, match="out of range"):
            decode.stream_pool(1, priority=5)


@pytest.mark.sim_only
@pytest.mark.parametrize("number", [0, -1, 1025, 10**6, 2**31, 2**63])
def test_a_pool_of_too_many_streams_is_refused_before_one_is_made(sim: Callable[..., Any], number: int) -> None:
    machine = sim("h200")
    with Device(0).partition(decode=8) as parts:
        with pytest.raises(ValueError, match="number must be an int from 1 to 1024"):
            parts.decode.stream_pool(number)
        assert machine.calls("cuGreenCtxStreamCreate") == 0
        assert len({parts.decode.stream, *parts.decode.stream_pool(1024)}) == 1025


@pytest.mark.sim_only
def test_a_pool_that_was_interrupted_goes_on_where_it_was(
    sim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = sim("h200")
    numbers: list[int] = []

    def interrupted(context: Context, number: int, priority: int | None) -> Stream:
        numbers.append(number)
        if len(numbers) == 5:
            raise KeyboardInterrupt
        return context_stream(context, number, priority)

    monkeypatch.setattr("cuda_gctx.partitions.partitions.context_stream", interrupted)
    with Device(0).partition(decode=8) as parts:
        with pytest.raises(KeyboardInterrupt):
            parts.decode.stream_pool(100)
        assert machine.calls("cuGreenCtxStreamCreate") <= 5
        assert len(set(parts.decode.stream_pool(100))) == 100


def test_a_partition_waits_for_all_work_of_another(dev: Device) -> None:
    timed = EventOptions(timing_enabled=True)
    with dev.partition(a=8, b=8) as parts:
        for busy in (parts.a.stream, parts.a.stream_pool(1)[0]):
            begin = busy.record(parts.a.context.create_event(timed))
            spin(busy, 8, 2_000_000)
            parts.b.wait(parts.a)
            end = parts.b.stream.record(parts.b.context.create_event(timed))
            end.sync()
            assert end - begin >= 2


def test_a_partition_waits_for_an_event(dev: Device) -> None:
    with dev.partition(a=8, b=8) as parts:
        event = parts.a.record()
        assert parts.a.record(event) is event
        parts.b.wait(event)
        parts.b.sync()
        assert event.is_done
        with pytest.raises(TypeError, match="not int"):
            parts.a.wait(1)  # type: ignore[arg-type]


def test_sync_waits_for_all_streams_of_a_partition_and_of_all_partitions(dev: Device) -> None:
    with dev.partition(a=8, b=8) as parts:
        streams = [parts.a.stream_pool(2)[1], parts.b.stream, parts.background.stream]
        for stream in streams:
            spin(stream, 8, 1_000_000)
        parts.a.sync()
        assert streams[0].is_done
        parts.sync()
        assert all(stream.is_done for stream in streams)


def test_a_closed_stream_of_a_partition_is_opened_again_for_the_same_stream_of_the_driver(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        for get in (lambda: parts.decode.stream, lambda: parts.decode.stream_pool(2, priority=-1)[1]):
            with get() as stream:
                handle = stream.handle
            assert stream.is_closed
            assert not get().is_closed
            assert get().handle == handle
            assert get() is get()


def test_code_that_runs_in_the_middle_of_a_call_may_use_the_partition(
    dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[Stream] = []

    def interrupted(context: Context, number: int = 0, priority: int | None = None) -> Stream:
        monkeypatch.undo()
        inside.extend((parts.decode.stream, *parts.decode.stream_pool(2)))
        return context_stream(context, number, priority)

    with dev.partition(decode=8) as parts:
        monkeypatch.setattr(partitions, "context_stream", interrupted)
        on_another_thread(lambda: parts.decode.stream)
        assert len(set(inside)) == 3


def test_occupancy_is_that_of_the_partition(sim: Machines) -> None:
    sim("h200")
    with Device(0).partition(small=16, large=None) as parts:
        # 2048 threads fit on an SM of an H200.
        assert parts.small.max_blocks(threads=128) == 16 * 16
        assert parts.small.max_blocks(threads=1024) == 2 * 16
        assert parts.large.max_blocks(threads=1024) == 2 * 116
        assert parts.small.max_cluster_size(threads=128) == 8
        assert parts.small.max_clusters(8, threads=128) > 0


def test_occupancy_on_any_card_grows_with_the_partition(dev: Device) -> None:
    with dev.partition(small=8, large=16) as parts:
        per_sm = parts.small.max_blocks(threads=1024) // parts.small.sm_count
        assert per_sm >= 1
        assert parts.large.max_blocks(threads=1024) == per_sm * parts.large.sm_count
        assert parts.small.max_cluster_size(threads=128) >= 1
        less = parts.small.max_blocks(threads=128, shared_memory=40_000)
        assert 0 < less < parts.small.max_blocks(threads=128)
        with pytest.raises(ValueError, match="threads must be an int from 1"):
            parts.small.max_blocks(threads=0)
        with pytest.raises(TypeError, match="kernel must be a CUfunction"):
            parts.small.max_blocks(object(), threads=128)


# ---- closing


def test_after_close_everything_raises_and_closing_again_does_nothing(dev: Device) -> None:
    parts = dev.partition(decode=8)
    decode, stream, context = parts.decode, parts.decode.stream, parts.decode.context
    parts.close()
    parts.close()
    assert parts.is_closed
    assert context.is_closed
    assert "closed" in repr(parts)
    assert "closed" in str(parts)
    assert "closed" in repr(decode)
    for use in (
        lambda: parts.decode,
        lambda: parts["decode"],
        lambda: parts.background,
        lambda: parts.sync(),
        lambda: list(parts),
        lambda: parts.verify(),
        lambda: parts.__enter__(),
        lambda: decode.stream,
        lambda: decode.context,
        lambda: decode.record(),
        lambda: stream.handle,
        lambda: stream.record(),
        lambda: context.handle,
        lambda: context.create_stream(),
    ):
        assert "closed" in str(refusal(RuntimeError, use))


def test_an_unknown_name_is_refused_with_the_names(dev: Device) -> None:
    with pytest.raises(AttributeError, match="the names are decode, background"), dev.partition(decode=8) as parts:
        parts.encode  # noqa: B018


def test_the_context_of_a_partition_is_closed_with_the_partitions_only(dev: Device) -> None:
    with PartitionPool(dev) as pool:
        part = pool.switch(a=16, b=None).a
        for close in (part.context.close, part.context.__enter__, part.stream.context.close):
            message = str(refusal(RuntimeError, close))
            assert "belongs to partition a" in message
            assert "part.context.current()" in message
            assert "close() of the partitions or the pool" in message
        # Nothing has happened to the layouts that share the context.
        assert pool.switch(a=16, c=None).a.context == part.context
        with part.context.current():
            assert part.context.is_current
    with pytest.raises(ClosedError):
        part.context.close()


def test_attributes_cannot_be_set_or_deleted(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        for name in ("decode", "background", "other"):
            with pytest.raises(AttributeError, match="cannot be set"):
                setattr(parts, name, None)
            with pytest.raises(AttributeError, match="cannot be deleted: close"):
                delattr(parts, name)
        assert parts.decode.sm_count == 8


def test_what_holds_contexts_cannot_be_copied_or_pickled(dev: Device) -> None:
    with dev.partition(decode=8) as parts, PartitionPool(dev) as pool:
        for thing in (parts, parts.decode, pool):
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    attempt(thing)


def test_an_exception_in_the_block_closes_and_goes_on(dev: Device) -> None:
    def run() -> None:
        with dev.partition(decode=8) as parts, parts.decode.context.current():
            opened.append(parts)
            raise LookupError("of the user")

    opened: list[Partitions] = []
    assert str(refusal(LookupError, run)) == "of the user"
    assert opened[0].is_closed


def test_closing_is_refused_while_a_context_is_current(dev: Device) -> None:
    with dev.partition(decode=8) as parts, parts.decode.context.current():
        assert "current on this thread" in str(refusal(RuntimeError, parts.close))
        other = refusal(RuntimeError, lambda: on_another_thread(parts.close))
        assert "current on another thread" in str(other)
        assert parts.decode.stream.is_done  # nothing was closed by the refusals


def test_a_stream_alone_keeps_its_partition(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    stream = dev.partition(decode=16).decode.stream
    gc.collect()
    assert stream.resources.sm.sm_count == 16
    stream.sync()
    # Its SMs are still taken, so others get a warning.
    with pytest.warns(ResourceOverlapWarning, match="decode"):
        dev.partition(other=8).close()
    del stream
    gc.collect()
    assert system.idle_contexts == 4
    made = machine.calls("cuGreenCtxCreate")
    with dev.partition(decode=16):
        assert machine.calls("cuGreenCtxCreate") == made


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failure_of_the_driver_leaves_nothing_behind(sim: Machines, nth: int) -> None:
    machine = sim("h200")
    dev = Device(0)
    machine.fail("cuGreenCtxCreate", nth=nth, code="CUDA_ERROR_UNKNOWN")
    error = refusal(CUDAError, lambda: dev.partition(a=8, b=16))
    assert error.name == "CUDA_ERROR_UNKNOWN"
    assert leases() == 0
    assert system.idle_contexts == nth - 1
    with dev.partition(a=8, b=16, exclusive=True) as parts:  # no claim was left behind either
        assert len(parts) == 2


def test_a_warning_made_an_error_leaves_nothing_behind(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    [group], _ = split(dev.resources.sm, [8])
    with dev.create_context(ContextOptions([group])), warnings.catch_warnings():
        warnings.simplefilter("error")
        refusal(ResourceOverlapWarning, lambda: dev.partition(a=8))
        assert len(machine.ledger().live_of("green context")) == 1
    with dev.partition(a=8, exclusive=True):
        pass


def test_the_sms_of_a_refused_opening_are_free_while_its_traceback_is_kept(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    machine.fail("cuGreenCtxCreate", nth=1)
    with pytest.raises(CUDAError) as kept:
        dev.partition(decode=8)
    assert kept.value.__traceback__ is not None
    with dev.partition(decode=8, exclusive=True):
        pass


def test_an_idle_context_that_was_adopted_and_closed_is_lent_again(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        handle = parts.decode.context.handle
    Context.from_handle(handle).close()
    with dev.partition(decode=8) as parts:
        assert parts.decode.stream.is_done


# ---- who uses which SMs


def test_two_open_partitions_over_the_same_sms_warn_or_raise(dev: Device) -> None:
    with dev.partition(decode=8):
        refusal(ResourceOverlapError, lambda: dev.partition(decode=8, exclusive=True))
        with pytest.warns(ResourceOverlapWarning, match=r"shares? SMs with 'decode' \(8 SMs\)") as caught:
            dev.partition(decode=8).close()
        assert caught[0].filename == __file__
    with dev.partition(decode=8, exclusive=True):
        pass


def test_partitions_over_others_give_one_short_warning(dev: Device) -> None:
    with dev.partition(decode=16, prefill=24), pytest.warns(ResourceOverlapWarning) as caught:
        dev.partition({"a": 16, "b": 8, "c": 40}).close()
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.endswith(": close the others first, or open one layout with all partitions")
    assert all(name in message for name in ("'a'", "'decode'", "'prefill'", "'background'"))
    assert len(message) < 250


def test_idle_contexts_are_in_nobodys_way(dev: Device) -> None:
    dev.partition(decode=8).close()
    assert system.idle_contexts > 0
    [group], _ = split(dev.resources.sm, [8])
    # Warnings are errors in the tests: none is given here.
    with dev.create_context(ContextOptions([group], exclusive=True)):
        refusal(ResourceOverlapError, lambda: dev.partition(decode=8, exclusive=True))


# ---- the store


def test_the_same_sms_are_given_out_again(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    with dev.partition(decode=16, prefill=None) as parts:
        handles = [part.context.handle for part in parts]
    free = machine.memory()["free"]
    made = machine.calls("cuGreenCtxCreate")
    for _ in range(200):
        with dev.partition(x=16, y=None) as parts:
            assert [part.context.handle for part in parts] == handles
            assert parts.x.stream.is_done
    assert machine.calls("cuGreenCtxCreate") == made
    assert machine.memory()["free"] == free
    assert len(machine.ledger().live_of("stream")) == 1


def test_a_context_that_is_lent_again_has_the_name_of_its_partition(dev: Device) -> None:
    with dev.partition(decode=16) as parts:
        assert "'decode'" in repr(parts.decode.context)
    with dev.partition(critical=16) as parts, parts.critical.context.current():
        assert parts.critical.context.name == "critical"
        assert "'critical'" in repr(parts.critical.context)
        assert "partition critical cannot be closed while it is current on this thread" in str(
            refusal(RuntimeError, parts.close)
        )


def test_the_streams_of_a_context_are_lent_again_and_go_with_it(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    handles = []
    for _ in range(2):
        with dev.partition(decode=16) as parts:
            streams = [parts.decode.stream, *parts.decode.stream_pool(2), *parts.decode.stream_pool(1, priority=-1)]
            assert len(set(streams)) == 4
            assert parts.decode.stream_pool(1, priority=0)[0] in streams
            handles.append([stream.handle for stream in streams])
            assert not any(stream.is_owned or "adopted" in repr(stream) for stream in streams)
        assert all(stream.is_closed for stream in streams)
    assert handles[0] == handles[1]
    # Whoever has only the handle can go on until the context is released.
    assert Stream.from_handle(handles[0][0]).resources.sm.sm_count == 16
    system.release_contexts(exposed=True)
    assert machine.ledger().live_of("stream") == ()
    assert machine.ledger().misuse == ()


def test_contexts_are_not_made_while_a_stream_that_is_lent_captures(dev: Device) -> None:
    with dev.partition(decode=16) as parts:
        handle = ctypes.c_void_p(parts.decode.stream.handle)
        Raw().call("cuStreamBeginCapture_v2", handle, 2)
        parts.decode.stream.close()
        with pytest.raises(RuntimeError, match="is capturing a graph, and contexts cannot be created"):
            dev.partition(encode=24)
        graph = ctypes.c_void_p()
        Raw().call("cuStreamEndCapture", handle, ctypes.byref(graph))
        Raw().call("cuGraphDestroy", graph)


def test_a_refused_priority_is_refused_again(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        for _ in range(2):
            with pytest.raises(ValueError, match="out of range"):
                parts.decode.stream_pool(1, priority=-9)


def test_memory_names_only_devices_that_were_used(sim: Machines) -> None:
    sim("h200", devices=2)
    assert system.memory() == {}
    with Device(1).partition(8):
        assert list(system.memory()) == [1]
        assert system.memory()[1].contexts == 2
        assert system.memory()[1].open == 2


@pytest.mark.sim_only
def test_partitions_that_outlive_their_driver_leave_nothing_behind() -> None:
    with session("h200", check=False):
        parts = Device(0).partition(8)
    del parts
    gc.collect()
    assert system.idle_contexts == 0


def test_devices_do_not_share_contexts(sim: Machines) -> None:
    sim("h200", devices=2)
    with Device(0).partition(8):
        pass
    with Device(1).partition(8) as parts:
        assert parts[0].context.device == Device(1)


def capture(stream: Any, begin: bool) -> None:
    handle = ctypes.c_void_p(stream.handle)
    if begin:
        Raw().call("cuStreamBeginCapture_v2", handle, 0)
    else:
        graph = ctypes.c_void_p()
        Raw().call("cuStreamEndCapture", handle, ctypes.byref(graph))
        Raw().call("cuGraphDestroy", graph)


def test_contexts_are_not_made_while_a_stream_of_the_package_captures(dev: Device) -> None:
    dev.partition(decode=8).close()
    stream = dev.create_stream()
    capture(stream, True)
    try:
        message = str(refusal(RuntimeError, lambda: dev.partition(decode=8, unmade=24)))
        with dev.partition(decode=8) as parts:  # nothing to be made
            assert parts.decode.sm_count >= 8
    finally:
        capture(stream, False)
    assert "is capturing a graph" in message
    with dev.partition(decode=8, unmade=24):
        pass


# ---- sizes


@pytest.mark.parametrize("driver", DRIVERS)
def test_sizes_are_those_that_partitions_get(sim: Machines, driver: str) -> None:
    machine = sim("h200", driver=driver)
    dev = Device(0)
    sizes = dev.partition_sizes()
    assert machine.calls("cuGreenCtxCreate") == 0
    assert [size.sm_count for size in sizes] == list(range(2, 134, 2))
    aligned = [size.sm_count for size in sizes if size.aligned]
    assert aligned[0] == 8
    assert all(count % 8 == 0 for count in aligned)
    # 128 SMs are units that the driver pieces together: 120 sit in eights.
    assert [size.sm_count for size in sizes if size.aligned and size.cluster_sms != 8] == [128]
    for size in (sizes[0], sizes[4], sizes[11], sizes[63]):
        request = size.sm_count if size.aligned else SMResourceOptions(size.sm_count, backfill=True)
        with dev.partition(request) as parts:
            assert parts[0].sm_count == size.sm_count
            assert parts[0].coscheduled_alignment == size.cluster_sms


def test_sizes_of_any_card_begin_small_and_end_with_the_device(dev: Device) -> None:
    sizes = [size.sm_count for size in dev.partition_sizes()]
    assert sizes == sorted(set(sizes))
    assert 0 < sizes[0] <= dev.resources.sm.min_partition_size
    assert sizes[-1] <= dev.sm_count


def test_opening_the_same_layout_again_makes_no_context(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    for _ in range(20):
        with dev.partition(a=16, b=32) as parts:
            parts.a.stream.record().sync()
        with dev.create_context(ContextOptions(dev.resources.sm.split(SMResourceOptions([16]))[0])):
            pass
    assert machine.ledger().green_contexts_made <= 4  # on some drivers, the SMs of the third request are others


def test_what_outlives_partitions_keeps_their_sms_and_the_next_owner_is_told(dev: Device) -> None:
    parts = dev.partition(a=16, b=None)
    stream = parts.a.create_stream()
    number = parts.a.context.id
    parts.close()
    message = str(refusal(ResourceOverlapError, lambda: dev.partition(a=16, b=None, exclusive=True)))
    assert "'a' (16 SMs, closed, and kept by a stream or an executable graph)" in message
    with pytest.warns(ResourceOverlapWarning), dev.partition(a=16, b=None) as others:
        assert others.a.context.id != number
    stream.close()
    dev.partition(a=16, b=None, exclusive=True).close()


def test_partitions_are_not_closed_while_a_stream_of_them_captures(dev: Device) -> None:
    parts = dev.partition(a=16, b=None)
    with parts.a.stream.capture() as capture:
        refusal(CapturingError, parts.close)
        assert not parts.is_closed
    capture.graph.close()
    parts.close()


def test_a_context_is_split_inside_of_its_own_sms(dev: Device) -> None:
    with dev.partition(a=64, b=None) as parts, parts.a.context.partition(c=16, d=None) as inner:
        assert (inner.c.sm_count, inner.d.sm_count) == (16, 48)
        assert set(inner.verify().contexts[0].sm_ids) <= set(parts.verify().contexts[0].sm_ids)
