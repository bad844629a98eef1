"""Graphs that are captured once and moved: where they run, what is refused, in which order they run, what they keep."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import (
    Context,
    Device,
    Graph,
    GraphExec,
    GraphSet,
    IsolationError,
    Partition,
    Partitions,
    Stream,
    system,
)
from cuda_gctx.tune import spin

from ..common import leases, on_another_thread, refusal
from ..raw import PROBE, Probe, Raw, RawError

Machines = Callable[..., Any]
MS = 1_000_000


class Function(Probe):
    """The same kernel as a function of a module, which has no CUkernel."""

    def __enter__(self) -> Function:
        super().__enter__()
        with self.dev.context.current():
            self._module = self.raw.handle("cuModuleLoadData", ctypes.c_char_p(PROBE))
            self.kernel = self.raw.handle("cuModuleGetFunction", ctypes.c_void_p(self._module), b"cuda_gctx_probe")
        return self

    def __exit__(self, *exc: Any) -> None:
        with self.dev.context.current():
            self.raw.call("cuModuleUnload", ctypes.c_void_p(self._module))
        super().__exit__(*exc)


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("shape", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class AddedNode(ctypes.Structure):
    """The parameters of a conditional node that is added to a graph."""

    _fields_ = (
        ("type", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 3),
        ("handle", ctypes.c_uint64),
        ("condition", ctypes.c_uint),
        ("bodies", ctypes.c_uint),
        ("made", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("rest", ctypes.c_uint64 * 27),
    )


COOPERATIVE, CLUSTER, PROGRAMMATIC, PRIORITY, UPDATABLE = 2, 4, 6, 8, 13
CONDITIONAL = 13
NON_PORTABLE_CLUSTERS = 14


def launch(probe: Probe, stream: Stream, blocks: int, kind: int, *value: int) -> None:
    """A launch of the probe with one attribute."""
    attribute = Attribute(kind, 0, (ctypes.c_uint * 16)(*(one & 0xFFFFFFFF for one in value)))
    handle, address = stream.handle, ctypes.addressof(attribute)
    config = Config((ctypes.c_uint * 7)(blocks, 1, 1, 1024, 1, 1, 0), handle, address, 1)
    values = (ctypes.c_uint64(probe.out), ctypes.c_uint32(blocks), ctypes.c_uint64(1000))
    addresses = (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in values))
    probe.raw.call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(probe.kernel), addresses, None)


@pytest.fixture
def parts(dev: Device) -> Iterator[Partitions]:
    with dev.partition(a=16, b=32) as made:
        for part in made:
            spin(part.stream, 1, 0)  # loads the kernel, which a capture does not allow
        dev.sync()
        yield made
        gc.collect()


@pytest.fixture(params=[Probe, Function], ids=["kernel", "function"])
def probe(request: pytest.FixtureRequest, dev: Device) -> Iterator[Probe]:
    with request.param(dev) as probe:
        probe.sms(dev.context)
        yield probe


def captured(stream: Stream, action: Callable[[], object]) -> Graph:
    with stream.context.current(), stream.capture("relaxed") as capture:
        action()
    return capture.graph


def ran_on(probe: Probe, graph: GraphExec, stream: Stream) -> set[int]:
    graph.launch(stream)
    stream.sync()
    with stream.context.current():
        return {record[0] for record in probe.records()}


def sms(part: Partition) -> set[int]:
    return set(part.context.verify().contexts[0].sm_ids)


# ---- where they run


def test_kernels_run_where_the_graph_was_moved_to(dev: Device, parts: Partitions, probe: Probe) -> None:
    places: list[tuple[Any, Stream, set[int]]] = [
        *((part, part.stream, sms(part)) for part in parts),
        (dev, dev.create_stream(), set(range(dev.sm_count))),
    ]
    for origin in (places[-1], places[0]):
        with captured(origin[1], lambda origin=origin: probe.launch(origin[1])) as graph:  # type: ignore[misc]
            for place, stream, expected in places:
                with graph.in_partition(place) as moved:
                    assert moved.context == stream.context
                    assert ran_on(probe, moved, stream) == expected
                    assert moved.verify().kernels[0].sm_ids == tuple(sorted(expected))
            with graph.instantiate() as executable:
                assert ran_on(probe, executable, origin[1]) == origin[2]


@pytest.mark.parametrize("driver", ["12.4", "12.8", "13.1", "13.5"])
def test_other_drivers_move_too_as_far_as_they_are_simulated(sim: Machines, driver: str) -> None:
    sim("h200", driver=driver)
    with Device(0).partition(16, 24) as parts:
        spin(parts[0].stream, 1, 0)
        graph = captured(parts[0].stream, lambda: spin(parts[0].stream, 132, 1000))
        with graph, graph.in_partition(parts[1]) as moved:
            moved.launch(parts[1].stream)
            assert set(moved.verify().kernels[0].sm_ids) == sms(parts[1])
        parts.sync()


def test_a_moved_graph_is_launched_on_any_stream_of_its_device(parts: Partitions) -> None:
    graph = captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 1000))
    with graph, graph.in_partition(parts.b) as moved:
        moved.launch(parts.a.stream)
        moved.upload(parts.b.stream)
        moved.launch(parts.b.stream_pool(1)[0])
        parts.sync()


def test_nodes_of_every_kind_move_or_stay(dev: Device, parts: Partitions, probe: Probe) -> None:
    raw, stream = Raw(), dev.create_stream()
    host = (ctypes.c_ubyte * 64)()
    called: list[int] = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(1))
    event = dev.create_event()
    with dev.context.current():
        memory = [raw.handle("cuMemAlloc_v2", ctypes.c_size_t(64)) for _ in range(2)]
    first, second = (ctypes.c_void_p(address) for address in memory)
    size, on = ctypes.c_size_t(64), ctypes.c_void_p(stream.handle)

    def everything() -> None:
        raw.call("cuMemsetD8Async", first, ctypes.c_ubyte(7), size, on)
        raw.call("cuMemcpyDtoDAsync_v2", second, first, size, on)
        raw.call("cuMemcpyDtoHAsync_v2", host, second, size, on)
        raw.call("cuLaunchHostFunc", on, callback, None)
        raw.call("cuEventRecordWithFlags", ctypes.c_void_p(event.handle), on, 1)  # external: a node
        probe.launch(stream)

    inner = captured(stream, everything)
    outer, node = raw.handle("cuGraphCreate", 0), ctypes.c_void_p()
    raw.call(
        "cuGraphAddChildGraphNode",
        ctypes.byref(node),
        ctypes.c_void_p(outer),
        None,
        ctypes.c_size_t(0),
        ctypes.c_void_p(inner.handle),
    )
    with inner, Graph.from_handle(outer) as graph, graph.in_partition(parts.a) as moved:
        assert ran_on(probe, moved, parts.a.stream) == sms(parts.a)
        assert bytes(host) == bytes([7] * 64)
        assert called == [1]
        [kernel] = moved.verify().kernels
        assert kernel.name == "cuda_gctx_probe"
        assert called == [1]  # the probe of the graph does nothing else
    raw.call("cuGraphDestroy", ctypes.c_void_p(outer))
    with dev.context.current():
        for address in memory:
            raw.call("cuMemFree_v2", ctypes.c_void_p(address))


def test_copies_and_batches_of_copies_leave_the_context_that_they_were_captured_in(sim: Machines) -> None:
    """A graph with a node in a context that is gone cannot be launched."""
    sim("h200", driver="13.5")
    dev, raw = Device(0), Raw()
    bytes_, only, order = (ctypes.c_size_t * 1)(64), (ctypes.c_size_t * 1)(0), (ctypes.c_uint * 8)(1)
    with dev.partition(16) as parts, dev.context.current():
        first, second, third = (ctypes.c_void_p(raw.handle("cuMemAlloc_v2", bytes_[0])) for _ in range(3))
        with raw.green_context(8) as context:
            stream = raw.create_stream(context)
            on = ctypes.c_void_p(stream)
            raw.call("cuStreamBeginCapture_v2", on, 2)
            raw.call("cuMemsetD8Async", first, ctypes.c_ubyte(7), ctypes.c_size_t(64), on)
            raw.call("cuMemcpyDtoDAsync_v2", second, first, ctypes.c_size_t(64), on)
            batch = ctypes.byref(third), ctypes.byref(second), bytes_, ctypes.c_size_t(1)
            raw.call("cuMemcpyBatchAsync_v2", *batch, order, only, ctypes.c_size_t(1), on)
            graph = raw.handle_of_capture(stream)
            moved = Graph.from_handle(graph).in_partition(parts[0])
            raw.destroy_stream(stream)
        with moved:
            moved.launch(parts[0].stream)
            parts.sync()
        found = (ctypes.c_ubyte * 64)()
        raw.call("cuMemcpyDtoH_v2", found, third, ctypes.c_size_t(64))
        assert bytes(found) == bytes([7] * 64)
        raw.call("cuGraphDestroy", ctypes.c_void_p(graph))
        for memory in (first, second, third):
            raw.call("cuMemFree_v2", memory)


def test_launch_attributes_and_programmatic_edges_do_not_stand_in_the_way(
    dev: Device, parts: Partitions, probe: Probe
) -> None:
    stream, blocks = dev.create_stream(), 2 * parts.a.sm_count
    for attribute in ((COOPERATIVE, 1), (CLUSTER, 2, 1, 1), (PROGRAMMATIC, 1), (PRIORITY, -2)):

        def action(attribute: tuple[int, ...] = attribute) -> None:
            for _ in range(2):  # the second one begins with the first one, where that is programmatic
                launch(probe, stream, blocks, *attribute)

        with captured(stream, action) as graph, graph.in_partition(parts.a) as moved:
            moved.launch(parts.a.stream)
            for kernel in moved.verify().kernels:
                assert set(kernel.sm_ids) == sms(parts.a), attribute


def test_nodes_that_use_no_sm_stay_as_they_are(dev: Device, parts: Partitions) -> None:
    raw, stream = Raw(), dev.create_stream()
    on = ctypes.c_void_p(stream.handle)
    with dev.context.current():
        memory = ctypes.c_void_p(raw.handle("cuMemAlloc_v2", ctypes.c_size_t(64)))
    first, second = dev.create_event(), dev.create_event()

    def everything() -> None:
        raw.call("cuEventRecordWithFlags", ctypes.c_void_p(first.handle), on, 1)  # external: a node
        raw.call("cuStreamWaitEvent", on, ctypes.c_void_p(second.handle), 1)
        raw.call("cuStreamWriteValue32_v2", on, memory, ctypes.c_uint(41), 0)

    graph, node = captured(stream, everything), ctypes.c_void_p()
    none = None, ctypes.c_size_t(0)
    raw.call("cuGraphAddEmptyNode", ctypes.byref(node), ctypes.c_void_p(graph.handle), *none)
    with graph, graph.in_partition(parts.a) as moved:
        assert graph.node_count == 4
        stream.record(second)
        moved.launch(parts.a.stream)
        parts.sync()
        word = ctypes.c_uint()
        with dev.context.current():
            raw.call("cuMemcpyDtoH_v2", ctypes.byref(word), memory, ctypes.c_size_t(4))
            raw.call("cuMemFree_v2", memory)
        assert word.value == 41
        assert first.is_done
        assert moved.verify().kernels == ()


def test_verification_raises_if_a_kernel_would_run_elsewhere(
    parts: Partitions, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda_gctx.partitions import verification

    graph = captured(parts.a.stream, lambda: probe.launch(parts.a.stream))
    with graph, graph.in_partition(parts.b) as moved:
        assert "1 kernels of the graph ran in it" in str(moved.verify())
        strange = min(set(range(132)) - sms(parts.b))
        with monkeypatch.context() as lying:
            lying.setattr(
                verification,
                "probe_kernels",
                lambda *_: [("one", parts.b.context.id, (strange,)), ("two", parts.b.context.id, ())],
            )
            error = refusal(IsolationError, moved.verify)
        assert f"kernel one ran on SM {strange}, which are not those of its context" in str(error)
        assert "the probe did not run in the place of kernel two" in str(error)


# ---- what is refused


def test_launches_that_are_too_large_for_the_partition_are_refused_with_the_numbers(
    dev: Device, parts: Partitions, probe: Probe
) -> None:
    stream, most = dev.create_stream(), 2 * parts.a.sm_count
    for blocks in (most, most + 1):
        graph = captured(stream, lambda blocks=blocks: launch(probe, stream, blocks, COOPERATIVE, 1))  # type: ignore[misc]
        with graph:
            if blocks == most:
                graph.in_partition(parts.a).close()
                continue
            message = str(refusal(ValueError, partial(graph.in_partition, parts.a)))
            assert f"cooperative launch of {most + 1} blocks" in message
            assert f"(16 SMs) runs {most} of them at once" in message
            with graph.in_partition(parts.b) as moved:
                moved.verify()


def test_clusters_that_do_not_fit_are_refused_with_the_numbers(dev: Device) -> None:
    with Probe(dev) as probe, dev.partition(small=8, rest=32) as parts, dev.create_stream() as stream:
        probe.sms(dev.context)
        probe.raw.call("cuKernelSetAttribute", NON_PORTABLE_CLUSTERS, 1, ctypes.c_void_p(probe.kernel), 0)
        largest = parts.small.max_cluster_size(threads=1024)
        for blocks in (largest, 2 * largest):
            with captured(stream, partial(launch, probe, stream, blocks, CLUSTER, blocks, 1, 1)) as graph:
                if blocks == largest:
                    with graph.in_partition(parts.small) as moved:
                        moved.launch(parts.small.stream)
                        assert set(moved.verify().kernels[0].sm_ids) <= sms(parts.small)
                    continue
                message = str(refusal(ValueError, partial(graph.in_partition, parts.small)))
                assert f"kernel cuda_gctx_probe runs in clusters of {blocks} blocks" in message
                assert f"(8 SMs) has room for {largest} at most" in message


def test_graphs_that_the_driver_does_not_copy_are_refused(dev: Device, parts: Partitions) -> None:
    raw, stream = Raw(), dev.create_stream()

    def allocate() -> None:
        address = ctypes.c_void_p()
        on = ctypes.c_void_p(stream.handle)
        raw.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(64), on)
        raw.call("cuMemFreeAsync", address, on)

    with captured(stream, allocate) as graph:
        message = str(refusal(ValueError, lambda: graph.in_partition(parts.a)))
        assert "cannot be moved: it allocates or frees memory" in message

    condition, added, own = ctypes.c_uint64(), AddedNode(type=CONDITIONAL, condition=0, bodies=1), dev.context
    with captured(stream, lambda: None) as graph:
        handle = ctypes.c_void_p(graph.handle)
        context = ctypes.c_void_p(own.handle)
        raw.call("cuGraphConditionalHandleCreate", ctypes.byref(condition), handle, context, 1, 1)
        added.handle, added.context = condition.value, own.handle
        node, none = ctypes.c_void_p(), ctypes.c_size_t(0)
        raw.call("cuGraphAddNode", ctypes.byref(node), handle, None, none, ctypes.byref(added))
        message = str(refusal(ValueError, lambda: graph.in_partition(parts.a)))
        assert "cannot be moved: it has a conditional node" in message
        assert "capture it in each partition" in message


def test_kernels_that_others_update_on_the_device_are_refused(dev: Device, parts: Partitions) -> None:
    stream = dev.create_stream()
    with Probe(dev) as probe:
        probe.sms(dev.context)
        with dev.context.current():
            refusal(RawError, lambda: launch(probe, stream, 1, UPDATABLE, 1))  # a graph alone has such kernels
        graph = captured(stream, lambda: launch(probe, stream, 1, UPDATABLE, 1))
        message = str(refusal(ValueError, lambda: graph.in_partition(parts.a)))
        assert "cannot be moved: it has a kernel node that kernels can update" in message
        graph.close()


def test_only_places_of_the_same_device_are_taken(sim: Machines) -> None:
    sim("h200", devices=2)
    with (
        Device(0).partition(16) as parts,
        Device(1).partition(16) as others,
        captured(parts[0].stream, lambda: None) as graph,
    ):
        message = str(refusal(ValueError, lambda: graph.in_partition(others[0])))
        assert "captured on device 0" in message
        for wrong in (None, "a", 3):
            refusal(TypeError, partial(graph.in_partition, wrong))
        refusal(TypeError, lambda: graph.in_partition(parts[0], ordered=1))  # type: ignore[arg-type]


def test_an_executable_graph_of_the_driver_cannot_be_moved(parts: Partitions) -> None:
    raw = Raw()
    with (
        captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 1000)) as graph,
        graph.in_partition(parts.b) as moved,
    ):
        info = (ctypes.c_uint64 * 4)()
        update = ctypes.c_void_p(moved.handle), ctypes.c_void_p(graph.handle), info
        assert refusal(RawError, lambda: raw.call("cuGraphExecUpdate_v2", *update)).code == 910  # UPDATE_FAILURE


# ---- order


def elapsed_ms(parts: Partitions, action: Callable[[], object]) -> float:
    """The time of the device from now to the end of what an action enqueues."""
    timed = {"timing_enabled": True}
    dev = parts.device
    begin, end = dev.create_event(timed), dev.create_event(timed)
    with dev.create_stream() as stream:
        stream.record(begin)
        for part in parts:
            part.context.wait_event(begin)
        action()
        for part in parts:
            stream.wait(part.record())
        stream.record(end)
        stream.sync()
    return end - begin


@pytest.mark.alone
def test_executables_of_one_capture_run_one_behind_the_other(parts: Partitions) -> None:
    with captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 5 * MS)) as graph:
        moved = [graph.in_partition(part) for part in parts]
        loose = [graph.in_partition(part, ordered=False) for part in parts]

        def both(graphs: list[GraphExec]) -> None:
            for part, one in zip(parts, graphs, strict=True):
                one.launch(part.stream)

        both(moved)
        assert elapsed_ms(parts, lambda: both(moved)) >= 10
        both(loose)
        assert 5 <= elapsed_ms(parts, lambda: both(loose)) < 10
        # Also the graph as it was captured, and from another thread.
        with graph.instantiate() as first:
            first.launch(parts.a.stream)

            def switch() -> None:
                first.launch(parts.a.stream)
                on_another_thread(lambda: moved[1].launch(parts.b.stream))

            assert elapsed_ms(parts, switch) >= 10
        for one in (*moved, *loose):
            one.close()


# ---- what they keep


def test_a_moved_graph_keeps_the_context_the_graph_and_its_owner(sim: Machines) -> None:
    machine = sim("h200")

    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    with Device(0).create_stream() as stream:
        own = captured(stream, lambda: spin(stream, 1, 1000))
        parts = Device(0).partition(16)
        moved = Graph.from_handle(own.handle, owner).in_partition(parts[0])
    del owner
    place = parts[0].stream
    moved.launch(place)
    place.sync()
    parts.close()
    system.release_contexts()
    gc.collect()
    assert gone() is not None
    assert leases() == 2
    moved.close()
    assert moved.is_closed
    own.close()
    del moved, place
    gc.collect()
    assert gone() is None
    assert leases() == 0
    assert machine.ledger().live_of("graph") == ()


def test_the_graph_may_be_closed_before_what_was_moved(parts: Partitions) -> None:
    graph = captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 1000))
    with graph.in_partition(parts.b) as moved:
        graph.close()
        moved.launch(parts.b.stream)
        moved.verify()
        refusal(RuntimeError, lambda: graph.in_partition(parts.b))
    refusal(RuntimeError, lambda: moved.launch(parts.b.stream))


def test_graphs_are_moved_on_several_threads_at_once(parts: Partitions) -> None:
    graph = captured(parts.a.stream, lambda: [spin(parts.a.stream, 1, 0) for _ in range(20)])
    made: list[GraphExec] = []
    with graph:
        for _ in range(4):
            on_another_thread(lambda: made.append(graph.in_partition(parts.b)))
        for one in made:
            with one:
                one.launch(parts.b.stream)
    parts.sync()


# ---- graphs of others


def test_a_graph_of_another_library_is_adopted_and_not_destroyed(dev: Device, parts: Partitions) -> None:
    raw = Raw()
    own = captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 1000))
    foreign = ctypes.c_void_p()
    raw.call("cuGraphClone", ctypes.byref(foreign), ctypes.c_void_p(own.handle))
    assert foreign.value is not None
    with Graph.from_handle(foreign.value) as graph:
        assert graph.context == parts.a.context
        assert graph.node_count == 1
        with graph.in_partition(dev) as moved, dev.create_stream() as stream:
            moved.launch(stream)
            stream.sync()
    own.close()
    raw.call("cuGraphDestroy", foreign)
    refusal(ValueError, lambda: Graph.from_handle(0))


def test_graphs_of_torch_and_cuda_core_are_taken_by_their_words(parts: Partitions) -> None:
    own = captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 1000))
    of_torch = SimpleNamespace(raw_cuda_graph=lambda: own.handle)
    with own, Graph(of_torch) as graph, graph.in_partition(parts.b) as moved:
        moved.launch(parts.b.stream)
        parts.sync()

    def not_kept() -> int:
        raise RuntimeError("no raw graph")

    for without, error, words in (
        (SimpleNamespace(raw_cuda_graph=not_kept), ValueError, "keep_graph=True"),
        (SimpleNamespace(handle=own), TypeError, "no graph of an executable one"),
        (object(), TypeError, "Graph.from_handle"),
    ):
        assert words in str(refusal(error, lambda without=without: Graph(without)))  # type: ignore[misc]


# ---- sets of graphs


def test_a_set_captures_once_and_moves_at_the_first_use(dev: Device, parts: Partitions) -> None:
    calls: list[str] = []

    def step(place: Partition | Stream) -> str:
        calls.append("step")
        spin(place if isinstance(place, Stream) else place.stream, 1, MS)
        return "result"

    whole = dev.create_stream()
    with GraphSet(captures="once") as graphs:
        assert graphs.capture(parts.a, 8, step) == "result"
        for place in (parts.b, whole, parts.a, parts.b):
            assert graphs.replay(place, 8) == "result"
        assert graphs.capture(parts.b, 8, step) == "result"
        dev.sync()
        assert calls == ["step"]
        assert len(graphs) == 3
        assert (parts.b, 8) in graphs
        assert "there is no graph 9" in str(refusal(ValueError, lambda: graphs.replay(parts.a, 9)))
        graphs.drop(parts.b)
        assert (parts.b, 8) not in graphs
        graphs.replay(parts.b, 8)
        with captured(parts.a.stream, lambda: spin(parts.a.stream, 1, 0)) as graph:
            graphs.add(parts.b, 1, graph)
            assert "drop it first" in str(refusal(ValueError, lambda: graphs.add(parts.a, 1, graph)))
            graphs.replay(parts.a, 1)
            dev.sync()
        graphs.drop()
        assert "there is no graph 8" in str(refusal(ValueError, lambda: graphs.replay(parts.a, 8)))
    with pytest.raises(ValueError, match="captures must be 'each' or 'once'"):
        GraphSet(captures="twice")  # type: ignore[arg-type]


def test_a_context_of_a_closed_partition_is_not_moved_to(dev: Device) -> None:
    with dev.create_stream() as stream, captured(stream, lambda: None) as graph:
        with dev.partition(16) as parts:
            context: Context = parts[0].context
        refusal(RuntimeError, lambda: graph.in_partition(context))
