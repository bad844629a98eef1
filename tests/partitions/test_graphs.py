"""Graphs: captured on a stream, launched on streams of its context, and one for each partition."""

from __future__ import annotations

import copy
import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest

from cuda_gctx import (
    CapturingError,
    ClosedError,
    CUDAError,
    CUDAWarning,
    Device,
    EventOptions,
    Graph,
    GraphSet,
    Layout,
    Partition,
    PartitionPool,
    Partitions,
    Stream,
    Timeline,
    system,
)
from cuda_gctx.tune import spin

from ..common import leases, on_another_thread, refusal
from ..raw import Raw, RawError

Machines = Callable[..., Any]


@pytest.fixture
def parts(dev: Device) -> Iterator[Partitions]:
    with dev.partition(a=16, b=32) as made:
        for part in made:
            spin(part.stream, 1, 10_000)  # loads the kernel, which a capture does not allow
        dev.sync()
        yield made
        gc.collect()


def captured(part: Partition, ns: int = 10_000) -> Graph:
    with part.stream.capture() as capture:
        spin(part.stream, 1, ns)
    return capture.graph


def milliseconds(part: Partition, action: Callable[[], object]) -> float:
    timed = EventOptions(timing_enabled=True)
    begin = part.stream.record(part.context.create_event(timed))
    action()
    end = part.stream.record(part.context.create_event(timed))
    end.sync()
    return end - begin


# ---- graphs


def test_what_a_stream_captures_runs_when_the_graph_is_launched(parts: Partitions) -> None:
    graph = captured(parts.a, 2_000_000)
    assert graph.node_count >= 1
    assert graph.context == parts.a.context
    assert graph.device == parts.device
    with graph, graph.instantiate() as executable:
        graph.close()  # it is not needed any more
        executable.upload(parts.a.stream)
        assert executable.context == parts.a.context
        for _ in range(2):
            assert milliseconds(parts.a, lambda: executable.launch(parts.a.stream)) >= 2
    assert graph.is_closed
    assert executable.is_closed
    assert "closed" in repr(graph)
    assert "closed" in repr(executable)
    refusal(RuntimeError, lambda: executable.launch(parts.a.stream))


def test_a_graph_is_launched_on_any_stream_of_its_device_and_runs_in_its_own_context(parts: Partitions) -> None:
    with captured(parts.a) as graph, graph.instantiate() as executable, parts.device.create_stream() as outside:
        for stream in (parts.a.stream_pool(1)[0], parts.b.stream, outside):
            executable.upload(stream)
            executable.launch(stream)
        parts.sync()
        outside.sync()
        report = executable.verify()
    [kernel] = report.kernels
    assert set(kernel.sm_ids) == {sm for proof in report.contexts for sm in proof.sm_ids}
    assert len(kernel.sm_ids) == parts.a.sm_count


def test_a_launch_elsewhere_is_work_of_the_part_for_the_order_of_a_pool(sim: Machines) -> None:
    sim("h200")
    with PartitionPool(Device(0)) as pool, Device(0).create_stream() as outside:
        first, second = pool.prepare(a=16, b=None), pool.prepare(a=32, b=None)
        pool.switch(a=16, b=None)
        with captured(first.a) as graph, graph.instantiate() as executable:
            executable.launch(outside)
            done = outside.record()
            pool.switch(a=32, b=None)
            later = second.a.stream.record()
            later.sync()
            assert done.is_done
            pool.switch(a=16, b=None)
            spin(first.a.stream, 1, 1000)
            pool.switch(a=32, b=None)


LONG_NS = 20_000_000


def wait_for_primary(dev: Device, raw: Raw) -> None:
    """What torch.cuda.synchronize() does."""
    with dev.context.current():
        raw.call("cuCtxSynchronize")


def test_waits_of_other_libraries_for_the_device_wait_for_a_graph_of_a_partition(parts: Partitions) -> None:
    # Drivers do not wait for a graph that is the last work on a stream of a green context.
    raw, stream = Raw(), parts.a.stream
    with captured(parts.a, LONG_NS) as graph:
        for ordered in (True, False):
            with graph.instantiate(ordered=ordered) as executable:
                executable.launch(stream)
                wait_for_primary(parts.device, raw)
                assert stream.is_done
        with captured(parts.b, LONG_NS) as other, other.in_partition(parts.a, ordered=False) as moved:
            moved.launch(stream)
            wait_for_primary(parts.device, raw)
            assert stream.is_done


def test_a_device_waits_for_graphs_that_other_code_launched_in_partitions(parts: Partitions) -> None:
    raw = Raw()
    with captured(parts.a, LONG_NS) as graph, graph.instantiate() as executable:
        for wait in (parts.device.sync, parts.device.context.sync):
            raw.call("cuGraphLaunch", ctypes.c_void_p(executable.handle), ctypes.c_void_p(parts.a.stream.handle))
            wait()
            assert parts.a.stream.is_done


def test_a_device_is_waited_for_while_a_partition_captures(parts: Partitions) -> None:
    with parts.a.stream.capture() as capture:
        parts.device.sync()
        spin(parts.a.stream, 1, 10_000)
    capture.graph.close()


@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_what_is_dropped_ends_no_capture(parts: Partitions, mode: Any) -> None:
    graph, context = captured(parts.b), parts.b.context
    things: list[Any] = [graph, graph.instantiate(), graph.in_partition(parts.a), Timeline(parts, spans=8)]
    things += [context.create_stream(), context.record_event()]
    del graph
    with parts.a.stream.capture(mode) as capture:
        things.clear()
    capture.graph.close()


def test_there_is_a_graph_only_after_the_block(parts: Partitions) -> None:
    capture = parts.a.stream.capture()
    refusal(RuntimeError, lambda: capture.graph)
    with pytest.raises(KeyError), capture:
        raise KeyError
    refusal(RuntimeError, lambda: capture.graph)
    assert parts.a.stream.is_done  # it captures no more
    with capture:
        pass
    assert capture.graph.node_count == 0
    capture.graph.close()


def test_a_stream_captures_once_at_a_time(parts: Partitions) -> None:
    stream = parts.a.stream
    with stream.capture("relaxed"):
        assert "end that capture first" in str(refusal(RuntimeError, lambda: stream.capture().__enter__()))
    with pytest.raises(ValueError, match="mode must be one of 'global'"):
        stream.capture("loose")  # type: ignore[arg-type]


def test_a_block_of_a_capture_is_entered_and_left_in_turn(parts: Partitions) -> None:
    capture = parts.a.stream.capture()
    assert "is not open" in str(refusal(RuntimeError, lambda: capture.__exit__(None, None, None)))
    for _ in range(2):
        with capture:
            assert "already open" in str(refusal(RuntimeError, capture.__enter__))
        assert capture.graph.node_count == 0
    with parts.a.stream.capture():
        assert "end that capture first" in str(refusal(RuntimeError, capture.__enter__))
    with capture:  # a refused one leaves nothing behind
        pass


def test_a_block_that_is_left_on_another_thread_ends_on_its_own(parts: Partitions) -> None:
    capture = parts.a.stream.capture()
    with capture:
        message = str(refusal(CapturingError, lambda: on_another_thread(lambda: capture.__exit__(None, None, None))))
        assert "began on another thread: leave its block on that thread" in message
        # The exception of the block takes precedence.
        error = ValueError("of the block")
        on_another_thread(lambda: capture.__exit__(ValueError, error, None))
    assert capture.graph.node_count == 0
    assert parts.a.stream.is_done


def test_a_relaxed_capture_may_end_on_another_thread(parts: Partitions) -> None:
    capture = parts.a.stream.capture("relaxed")
    capture.__enter__()
    on_another_thread(lambda: capture.__exit__(None, None, None))
    assert capture.graph.node_count == 0


def on_this_thread(action: Callable[[], object]) -> None:
    action()


def drop_an_open_capture(
    stream: Stream, mode: Literal["global", "thread_local", "relaxed"], on_thread: Callable[..., object]
) -> None:
    blocks = [stream.capture(mode)]
    blocks[0].__enter__()
    on_thread(blocks.clear)


@pytest.mark.parametrize("on_thread", [on_this_thread, on_another_thread])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_whose_block_is_dropped_ends_with_a_warning(
    parts: Partitions,
    dev: Device,
    mode: Literal["global", "thread_local", "relaxed"],
    on_thread: Callable[..., object],
) -> None:
    stream = parts.a.stream
    with pytest.warns(CUDAWarning, match=r"was dropped .* the capture has ended without a graph"):
        drop_an_open_capture(stream, mode, on_thread)
    assert stream.is_done
    with stream.capture() as again:
        spin(stream, 1, 10_000)
    assert again.graph.node_count == 1
    again.graph.close()
    with dev.create_stream():
        pass


def test_a_dropped_block_leaves_a_later_capture_alone(parts: Partitions) -> None:
    stream, raw = parts.a.stream, Raw()
    blocks = [stream.capture("relaxed")]
    blocks[0].__enter__()
    graph = ctypes.c_void_p()
    raw.call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(graph))
    raw.call("cuGraphDestroy", graph)
    with stream.capture() as later:
        blocks.clear()
        gc.collect()
        spin(stream, 1, 10_000)
    assert later.graph.node_count == 1
    later.graph.close()


def test_a_capture_that_was_invalidated_raises(parts: Partitions) -> None:
    def spoil() -> None:
        with parts.a.stream.capture("relaxed"):
            spin(parts.a.stream, 1, 10_000)
            with suppress(RawError):
                Raw().call("cuStreamSynchronize", ctypes.c_void_p(parts.a.stream.handle))

    error = refusal(CUDAError, spoil)
    assert error.call == "cuStreamEndCapture"
    assert parts.a.stream.is_done


def test_an_executable_graph_keeps_the_sms_of_its_context_and_a_graph_only_the_context(sim: Machines) -> None:
    machine = sim("h200")
    parts = Device(0).partition(16)
    spin(parts[0].stream, 1, 10_000)
    parts.sync()
    graph = captured(parts[0])
    executable = graph.instantiate()
    parts.close()
    assert leases() == 2  # of the layout, whose contexts have one lease
    executable.close()
    assert leases() == 0
    assert "partition 0 has been closed" in str(refusal(ClosedError, graph.instantiate))
    assert system.release_contexts(exposed=True).in_use == 1
    graph.close()
    assert system.release_contexts(exposed=True).destroyed == 1
    assert machine.ledger().live_of("green context") == ()


def test_graphs_cannot_be_copied(parts: Partitions) -> None:
    with captured(parts.a) as graph, graph.instantiate() as executable:
        for thing in (graph, executable, parts.a.stream.capture()):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copy.copy(thing)


# ---- sets of graphs


def test_a_function_is_captured_once_in_each_partition(parts: Partitions) -> None:
    calls: list[str] = []

    def work(part: Partition) -> str:
        calls.append(part.name)
        spin(part.stream, 1, 1_000_000)
        return f"of {part.name}"

    with GraphSet() as graphs:
        for _ in range(2):
            for part in parts:
                assert graphs.capture(part, 8, work) == f"of {part.name}"
        assert calls == ["a", "b"]
        assert len(graphs) == 2
        assert (parts.a, 8) in graphs
        assert (parts.a, 9) not in graphs
        for part in parts:
            assert milliseconds(part, lambda part=part: graphs.replay(part, 8)) >= 1  # type: ignore[misc]
            assert graphs.replay(part, 8) == f"of {part.name}"
        parts.sync()
        assert "a " in str(graphs)
        assert "2 graphs" in repr(graphs)
        assert graphs.memory_bytes >= 0
        graphs.drop(parts.a)
        assert len(graphs) == 1
    assert len(graphs) == 0


@pytest.mark.parametrize("captures", ["each", "once"])
def test_memory_that_is_allocated_during_a_capture_is_counted(parts: Partitions, captures: Any) -> None:
    raw, made = Raw(), ctypes.c_uint64()
    size = 64 << 20

    def allocate() -> None:
        with Device(0).context.current():
            raw.call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(size))

    def work(part: Partition) -> None:
        if not made.value:
            on_another_thread(allocate)
        spin(part.stream, 1, 1000)

    with GraphSet(captures=captures) as graphs:
        graphs.capture(parts.a, 1, work)
        assert graphs.memory_bytes >= size
    with Device(0).context.current():
        raw.call("cuMemFree_v2", made)


def test_a_graph_of_another_partition_is_refused(parts: Partitions) -> None:
    with GraphSet() as graphs:
        graphs.capture(parts.a, "step", lambda part: spin(part.stream, 1, 10_000))
        message = str(refusal(ValueError, lambda: graphs.replay(parts.b, "step")))
        assert "captured in a (16 SMs), and would run there instead of in b (32 SMs)" in message
        assert "there is no graph 'other'" in str(refusal(ValueError, lambda: graphs.replay(parts.a, "other")))
        with captured(parts.a) as graph:
            assert "was not captured in partition b" in str(refusal(ValueError, lambda: graphs.add(parts.b, 1, graph)))
            graphs.add(parts.a, 1, graph)
            assert "drop it first" in str(refusal(ValueError, lambda: graphs.add(parts.a, 1, graph)))
            with parts.b.context.create_stream() as stream:
                assert "was not captured in stream of priority 0" in str(
                    refusal(ValueError, lambda: graphs.add(stream, 1, graph))
                )
        graphs.replay(parts.a, 1)
        parts.sync()


def test_a_graph_is_not_moved_to_a_closed_partition(dev: Device) -> None:
    with dev.partition(a=16) as parts:
        closed = parts.a
    with dev.context.create_stream() as stream, stream.capture() as capture:
        pass
    assert "partition a has been closed" in str(refusal(ClosedError, lambda: capture.graph.in_partition(closed)))


def test_a_refused_graph_leaves_no_trace(sim: Machines) -> None:
    sim("h200", devices=2)
    with Device(0).partition(a=16) as parts, Device(1).partition(a=16) as others, GraphSet(captures="once") as graphs:
        with parts.a.stream.capture() as capture:
            spin(parts.a.stream, 2, 100)
        refusal(ValueError, lambda: graphs.add(others.a, "k", capture.graph))
        assert "there is no graph 'k'" in str(refusal(ValueError, lambda: graphs.replay(parts.a, "k")))
        graphs.add(parts.a, "k", capture.graph)
        graphs.replay(parts.a, "k")
        parts.sync()


def test_names_stand_for_partitions_of_the_current_layout(dev: Device) -> None:
    narrow, wide = Layout(decode=16, prefill=None), Layout(decode=64, prefill=None)
    calls: list[int] = []

    def step(part: Partition) -> int:
        calls.append(part.sm_count)
        spin(part.stream, 1, 10_000)
        return part.sm_count

    with PartitionPool(dev) as pool, GraphSet(pool) as graphs:
        assert "pool.switch() first" in str(refusal(RuntimeError, lambda: graphs.replay("decode", 1)))
        for layout in (narrow, wide):
            spin(pool.prepare(layout).decode.stream, 1, 10_000)
        dev.sync()
        for layout in (narrow, wide, narrow):
            pool.switch(layout)
            graphs.capture("decode", 1, step)
            assert graphs.replay("decode", 1) == pool.current.decode.sm_count
        assert len(calls) == 2
        dev.sync()
    with GraphSet() as graphs:
        assert "needs a pool" in str(refusal(ValueError, lambda: graphs.replay("decode", 1)))
        refusal(TypeError, lambda: graphs.replay(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="framework must be"):
        GraphSet(framework="jax")  # type: ignore[arg-type]


def test_layouts_that_share_a_context_share_its_graphs(sim: Machines) -> None:
    sim("h200")
    with PartitionPool(Device(0)) as pool, GraphSet(pool) as graphs:
        first = pool.switch(decode=16)
        spin(first.decode.stream, 1, 10_000)
        first.sync()
        graphs.capture("decode", 1, lambda part: spin(part.stream, 1, 10_000))
        pool.switch(decode=16, prefill=None)
        graphs.replay("decode", 1)
        assert len(graphs) == 1
        first.sync()


def test_each_stream_of_the_whole_device_has_graphs_of_its_own(dev: Device, parts: Partitions) -> None:
    plain, urgent = dev.create_stream(), dev.create_stream({"priority": dev.priority_range[1]})
    with GraphSet() as graphs:
        for stream in (plain, urgent):
            spin(stream, 1, 10_000)
            stream.sync()
        graphs.capture(plain, "step", lambda stream: spin(stream, 1, 1_000_000))
        message = str(refusal(ValueError, lambda: graphs.replay(urgent, "step")))
        assert f"captured in stream of priority {plain.priority} ({dev.sm_count} SMs)" in message
        assert "capture it in this stream too" in message
        refusal(ValueError, lambda: graphs.replay(parts.a, "step"))
        graphs.capture(urgent, "step", lambda stream: spin(stream, 1, 1_000_000))
        assert len(graphs) == 2
        graphs.replay(urgent, "step")
        urgent.sync()
        graphs.drop(urgent)
        assert (plain, "step") in graphs
        assert (urgent, "step") not in graphs


def test_a_failing_function_leaves_no_graph(parts: Partitions) -> None:
    def fail(part: Partition) -> None:
        raise LookupError("of the user")

    with GraphSet() as graphs:
        assert str(refusal(LookupError, lambda: graphs.capture(parts.a, 1, fail))) == "of the user"
        assert len(graphs) == 0
        assert graphs.capture(parts.a, 1, lambda part: 3) == 3
        on_another_thread(lambda: graphs.replay(parts.a, 1))
        parts.sync()


@pytest.mark.gpu_only
def test_functions_of_torch_are_captured_in_their_partition(torch: Any, parts: Partitions) -> None:
    x = torch.ones(1 << 16, device="cuda:0")
    y = torch.zeros(1 << 16, device="cuda:0")
    with GraphSet(framework="torch") as graphs:
        for part in parts:
            graphs.capture(part, 1, lambda part: y.add_(x))
        torch.cuda.synchronize()
        y.zero_()
        torch.cuda.synchronize()
        for part in parts:
            for _ in range(3):
                graphs.replay(part, 1)
            part.sync()
        assert y.eq(6).all()
        assert graphs.memory_bytes >= 0
