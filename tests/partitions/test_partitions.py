"""Partitions: named, disjoint and fenced; what they lend, what they refuse, and what is left when they close."""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from cuda_gctx import (
    ContextOptions,
    CUDAError,
    Device,
    FeatureNotSupported,
    Layout,
    PartitionSpec,
    ResourceOverlapError,
    ResourceOverlapWarning,
    SMResourceOptions,
    SplitError,
    Stream,
    WorkqueueResourceOptions,
    system,
)
from cuda_gctx.partitions import Partitions, store
from cuda_gctx.sim import session

from ..common import DRIVERS, NEW_DRIVERS, OLD_DRIVERS, on_another_thread, refusal, split
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
        assert [part.sm_count for part in parts] == [24, 8, 16, 84]
        assert parts.names == ("0", "1", "2")
        assert parts[1].sm_count == 8
        assert parts[-1] is parts.rest


@pytest.mark.parametrize("driver", DRIVERS)
def test_sms_that_nobody_asked_for_become_the_fence(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    with Device(0).partition(decode=16, prefill=None) as parts:
        assert [part.sm_count for part in parts] == [16, 112, 4]
        assert parts.rest is parts["rest"] is list(parts)[-1]
        assert sum(part.sm_count for part in parts) == Device(0).sm_count
        assert "rest" not in parts.names


def test_without_anything_left_there_is_no_fence(dev: Device) -> None:
    with dev.partition(SMResourceOptions(None, backfill=True)) as parts:
        assert parts.rest is None
        assert len(parts) == 1
        assert parts[0].sm_count == dev.sm_count
        assert parts.verify().outside == ()


def test_fractions_are_rounded_down_so_that_halves_fit(sim: Machines) -> None:
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


def test_table_tells_what_was_asked_and_got(dev: Device) -> None:
    with dev.partition(decode=9, prefill=None) as parts:
        header, decode, prefill, *_ = str(parts).splitlines()[1:]
        assert header.split() == ["partition", "asked", "got", "SMs", "clusters", "strategy"]
        assert decode.split()[:3] == ["decode", "9", str(parts.decode.sm_count)]
        assert "everything left" in prefill
        assert "not verified" in decode
        parts.verify()
        assert "not verified" not in str(parts)
        assert parts.decode.sm_ids is not None
        assert len(parts.decode.sm_ids) == parts.decode.sm_count


def test_a_layout_can_be_given_in_place_of_requests(dev: Device) -> None:
    layout = Layout(decode=8, prefill=None)
    with dev.partition(layout) as parts:
        assert parts.layout is layout
        assert parts.names == ("decode", "prefill")


# ---- what is refused


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (0, ValueError, "at least 1 SM, not 0"),
        (-8, ValueError, "at least 1 SM, not -8"),
        (True, TypeError, "not by a bool"),
        (0.0, ValueError, "no part of a device"),
        (1.5, ValueError, "no part of a device"),
        (float("nan"), ValueError, "no part of a device"),
        ("8", TypeError, "not by str"),
        ([8], TypeError, "not by list"),
        (SMResourceOptions([8, 8]), ValueError, "2 groups"),
    ],
)
def test_bad_requests_name_the_partition(dev: Device, request_: Any, error: type[Exception], words: str) -> None:
    message = str(refusal(error, lambda: dev.partition(decode=request_)))
    assert "partition decode" in message
    assert words in message


def test_a_fraction_that_rounds_to_nothing_says_the_smallest_that_works(sim: Machines) -> None:
    sim("h200")
    message = str(refusal(ValueError, lambda: Device(0).partition(tiny=0.01)))
    assert "partition tiny: 0.01 of 132 SMs are 1.3" in message
    assert "ask for 0.061" in message
    with Device(0).partition(tiny=0.061) as parts:
        assert parts.tiny.sm_count == 8


def test_more_than_the_device_has_names_the_nearest_that_fits(sim: Machines) -> None:
    machine = sim("h200")
    error = refusal(SplitError, lambda: Device(0).partition(decode=16, prefill=200))
    assert "Layout(decode=16, prefill=200) does not fit" in str(error)
    assert "as partitions: decode=16, prefill=" in str(error)
    suggestion = error.suggestion
    assert isinstance(suggestion, SMResourceOptions)
    assert isinstance(suggestion.count, tuple)
    with Device(0).partition(*suggestion.count) as parts:
        assert len(parts) >= 2
    assert machine.calls("cuGreenCtxCreate") == len(parts)


@pytest.mark.parametrize(
    "name", ["rest", "names", "verify", "close", "layout", "device", "is_closed", "_x", "a b", "1"]
)
def test_names_that_could_not_be_attributes_are_refused(dev: Device, name: str) -> None:
    assert repr(name) in str(refusal(ValueError, lambda: dev.partition(**{name: 8})))


def test_every_public_attribute_is_a_name_that_is_refused() -> None:
    for name in dir(Partitions):
        with pytest.raises(ValueError, match="cannot be the name"):
            Layout.of({name: 8})


def test_position_and_name_together_are_refused(dev: Device) -> None:
    with pytest.raises(ValueError, match="by position or by name"):
        dev.partition(8, decode=8)
    with pytest.raises(ValueError, match="at least one partition"):
        dev.partition()
    with pytest.raises(ValueError, match="a and b all ask for everything left"):
        dev.partition(a=None, b=None)
    with pytest.raises(TypeError, match="exclusive must be a bool"):
        dev.partition(exclusive=8)


def test_unknown_partition_is_named_with_those_that_exist(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        assert "the names are decode, rest" in str(refusal(AttributeError, lambda: parts.encode))
        assert "the names are decode, rest" in str(refusal(KeyError, lambda: parts["encode"]))
        with pytest.raises(IndexError):
            parts[2]


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
        with pytest.raises(ValueError, match="at least 1"):
            decode.stream_pool(0)


def test_a_partition_waits_for_all_work_of_another(dev: Device) -> None:
    with dev.partition(a=8, b=8) as parts:
        assert parts.a.stream.is_done
        parts.b.wait(parts.a)
        event = parts.a.record()
        assert parts.a.record(event) is event
        parts.b.wait(event)
        parts.b.context.sync()
        assert event.is_done
        with pytest.raises(TypeError, match="not for int"):
            parts.a.wait(1)  # type: ignore[arg-type]


def test_occupancy_is_that_of_the_partition(sim: Machines) -> None:
    sim("h200")
    with Device(0).partition(small=16, large=None) as parts:
        # 2048 threads fit on an SM of an H200.
        assert parts.small.max_blocks(threads=128) == 16 * 16
        assert parts.small.max_blocks(threads=1024) == 2 * 16
        assert parts.large.max_blocks(threads=1024) == 2 * 112
        assert parts.small.max_cluster_size(threads=128) == 8
        assert parts.rest is not None
        assert parts.rest.max_cluster_size(threads=128) == 2
        assert parts.small.max_clusters(8, threads=128) > 0


def test_occupancy_on_any_card_grows_with_the_partition(dev: Device) -> None:
    with dev.partition(small=8, large=16) as parts:
        per_sm = parts.small.max_blocks(threads=1024) // parts.small.sm_count
        assert per_sm >= 1
        assert parts.large.max_blocks(threads=1024) == per_sm * parts.large.sm_count
        assert parts.small.max_cluster_size(threads=128) >= 1
        less = parts.small.max_blocks(threads=128, shared_memory=40_000)
        assert 0 < less < parts.small.max_blocks(threads=128)
        with pytest.raises(ValueError, match="threads must be at least 1"):
            parts.small.max_blocks(threads=0)
        with pytest.raises(TypeError, match="a kernel is"):
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
        lambda: parts.rest,
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
    # Its SMs are still taken, so that others are told.
    with pytest.warns(ResourceOverlapWarning, match="decode"):
        dev.partition(other=8).close()
    del stream
    gc.collect()
    assert len(store) == 4
    made = machine.calls("cuGreenCtxCreate")
    with dev.partition(decode=16):
        assert machine.calls("cuGreenCtxCreate") == made


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failure_of_the_driver_leaves_nothing_behind(sim: Machines, nth: int) -> None:
    machine = sim("h200")
    dev = Device(0)
    machine.fail("cuGreenCtxCreate", nth=nth)
    error = refusal(CUDAError, lambda: dev.partition(a=8, b=16))
    assert error.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert machine.ledger().live_of("green context") == ()
    assert len(store) == 0
    with dev.partition(a=8, b=16, exclusive=True) as parts:  # no claim was left behind either
        assert len(parts) == 3


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


# ---- who uses which SMs


def test_two_open_partitions_over_the_same_sms_warn_or_raise(dev: Device) -> None:
    with dev.partition(decode=8):
        refusal(ResourceOverlapError, lambda: dev.partition(decode=8, exclusive=True))
        with pytest.warns(ResourceOverlapWarning, match="shares SMs with context 'decode'") as caught:
            dev.partition(decode=8).close()
        assert caught[0].filename == __file__
    with dev.partition(decode=8, exclusive=True):
        pass


def test_contexts_in_the_store_are_in_nobodys_way(dev: Device) -> None:
    dev.partition(decode=8).close()
    assert len(store) > 0
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


def test_the_streams_of_a_context_are_lent_again_and_go_with_it(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    handles = []
    for _ in range(2):
        with dev.partition(decode=16) as parts:
            streams = [parts.decode.stream, *parts.decode.stream_pool(2), *parts.decode.stream_pool(1, priority=-1)]
            assert len(set(streams)) == 4
            assert parts.decode.stream_pool(1, priority=0)[0] not in streams
            handles.append([stream.handle for stream in streams])
            assert not any(stream.is_owned or "adopted" in repr(stream) for stream in streams)
        assert all(stream.is_closed for stream in streams)
    assert handles[0] == handles[1]
    # Whoever has only the handle can go on until the store destroys the context.
    assert Stream.from_handle(handles[0][0]).resources.sm.sm_count == 16
    store.drop()
    assert machine.ledger().live_of("stream") == ()
    assert machine.ledger().misuse == ()


def test_contexts_in_which_a_capture_was_left_are_not_lent_again(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    with dev.partition(decode=16) as parts:
        Raw().call("cuStreamBeginCapture_v2", ctypes.c_void_p(parts.decode.stream.handle), 2)
    assert machine.ledger().live_of("green context") == ()
    with dev.partition(decode=16) as parts:
        assert parts.rest is not None
        parts.rest.wait(parts.decode)
        parts.decode.stream.record().sync()


def test_contexts_that_cannot_be_asked_for_captures_are_not_kept(sim: Machines) -> None:
    machine = sim("h200")
    with Device(0).partition(decode=16) as parts:
        parts.decode.stream.record()
        machine.fail("cuStreamIsCapturing")
    machine.clear_faults()
    assert len(store) == 0
    assert machine.ledger().live_of("green context") == ()


def test_contexts_are_not_made_while_a_stream_that_is_lent_captures(dev: Device) -> None:
    with dev.partition(decode=16) as parts:
        handle = ctypes.c_void_p(parts.decode.stream.handle)
        Raw().call("cuStreamBeginCapture_v2", handle, 2)
        parts.decode.stream.close()
        with pytest.raises(RuntimeError, match="is capturing a graph: contexts cannot be made"):
            dev.partition(encode=24)
        graph = ctypes.c_void_p()
        Raw().call("cuStreamEndCapture", handle, ctypes.byref(graph))
        Raw().call("cuGraphDestroy", graph)


def test_a_refused_priority_is_refused_again(dev: Device) -> None:
    with dev.partition(decode=8) as parts:
        for _ in range(2):
            with pytest.raises(ValueError, match="out of range"):
                parts.decode.stream_pool(1, priority=-9)


def test_the_store_has_a_bound_and_can_be_dropped(sim: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = sim("h200")
    dev = Device(0)
    monkeypatch.setattr(store, "limit", 4)
    for size in (8, 16, 24):
        dev.partition(size).close()
    assert len(store) == store.count(dev) == 4
    assert len(machine.ledger().live_of("green context")) == 4
    made = machine.calls("cuGreenCtxCreate")
    dev.partition(24).close()  # the newest are kept
    assert machine.calls("cuGreenCtxCreate") == made
    assert system.memory()[0].contexts == 4
    assert system.memory()[0].stored == 4
    assert system.memory()[0].destroyed == 2
    assert system.memory()[0].lost_bytes == machine.ledger().lost_bytes
    store.drop()
    assert len(store) == 0
    assert machine.ledger().live_of("green context") == ()
    assert system.memory()[0].lost_bytes == machine.ledger().lost_bytes
    with pytest.raises(ValueError, match="0 or more"):
        store.limit = -1


def test_memory_names_only_devices_that_were_used(sim: Machines) -> None:
    sim("h200", devices=2)
    assert system.memory() == {}
    with Device(1).partition(8):
        assert list(system.memory()) == [1]
        assert system.memory()[1].contexts == 2
        assert system.memory()[1].stored == 0


def test_a_context_closed_by_its_user_is_not_given_out_again(sim: Machines) -> None:
    machine = sim("h200")
    dev = Device(0)
    with dev.partition(8) as parts:
        parts[0].context.close()
    assert len(store) == 0
    assert machine.ledger().live_of("green context") == ()
    with dev.partition(8) as parts:
        assert parts[0].stream.is_done


@pytest.mark.sim_only
def test_partitions_that_outlive_their_driver_leave_nothing_in_the_store() -> None:
    with session("h200", check=False):
        parts = Device(0).partition(8)
    del parts
    gc.collect()
    assert len(store) == 0


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
    assert {size.cluster_sms for size in sizes if size.aligned} == {8}
    for size in (sizes[0], sizes[4], sizes[11]):
        request = size.sm_count if size.aligned else SMResourceOptions(size.sm_count, backfill=True)
        with dev.partition(request) as parts:
            assert parts[0].sm_count == size.sm_count
            assert parts[0].coscheduled_alignment == size.cluster_sms


def test_sizes_of_any_card_begin_small_and_end_with_the_device(dev: Device) -> None:
    sizes = [size.sm_count for size in dev.partition_sizes()]
    assert sizes == sorted(set(sizes))
    assert 0 < sizes[0] <= dev.resources.sm.min_partition_size
    assert sizes[-1] <= dev.sm_count
