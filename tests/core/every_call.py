"""A program: every public method of the core's objects, on a driver whose calls go on only when Python runs elsewhere.

``python every_call.py FRONT SIMULATED`` with the library that front.c becomes, and that of the software driver. It
prints as JSON, for each method, the driver calls that it made and those that kept the GIL.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from cuda_gctx import (
    Context,
    ContextOptions,
    CUDAError,
    Device,
    Event,
    EventOptions,
    Graph,
    GraphExec,
    SMResource,
    SMResourceOptions,
    Stream,
    StreamOptions,
    system,
)
from cuda_gctx._core import extension as core
from cuda_gctx._core.extension import DeviceResources, WorkqueueResource, probe_kernels

CLASSES = (Device, Context, Stream, Event, Graph, GraphExec, SMResource, DeviceResources, WorkqueueResource)
PROTOCOLS = ("__cuda_stream__", "__enter__", "__exit__", "__eq__", "__hash__", "__repr__", "__sub__", "__init__")

# What hands over to a higher room or to another library at once, and changes no driver object by itself.
ELSEWHERE = {
    "Device": {
        *("allocate", "can_access_peer", "create_graph_builder", "default_stream", "memory_resource", "properties"),
        "partition_sizes",
    },
    "Context": {"torch", "cupy", "verify"},
    "Stream": {"torch", "cupy"},
    "GraphExec": {"verify"},
    "SMResource": {"free"},
}


def in_a_block(block: Any) -> None:
    with block:
        pass


# How a method is called that takes something; every other one is called, or read, as it is.
WITH_ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "Device.__eq__": lambda w: w.dev == Device(0),
    "Device.__init__": lambda w: Device(),
    "Device.set_current": lambda w: (w.dev.set_current(w.ctx), w.dev.set_current()),
    "Device.create_context": lambda w: w.dev.create_context(ContextOptions([w.group])).close(),
    "Device.partition": lambda w: w.dev.partition(8, exclusive=False).close(),
    "Context.__eq__": lambda w: w.ctx == w.dev.context,
    "Context.__exit__": lambda w: w.dev.create_context(ContextOptions([w.group])).__exit__(None, None, None),
    "Context.close": lambda w: w.dev.create_context(ContextOptions([w.group])).close(),
    "Context.partition": lambda w: w.ctx.partition(8, None).close(),
    "Context.current": lambda w: (in_a_block(w.ctx.current()), in_a_block(w.dev.context.current())),
    "Context.from_handle": lambda w: (Context.from_handle(w.ctx.handle), Context.from_handle(w.foreign).handle),
    "Context.wait_context": lambda w: (w.ctx.wait_context(w.dev.context), w.dev.context.wait_context(w.ctx)),
    "Context.wait_event": lambda w: w.ctx.wait_event(w.event),
    "Stream.__eq__": lambda w: (w.stream == Stream.from_handle(w.stream.handle), w.adopted == Stream(w.adopted)),
    "Stream.__exit__": lambda w: w.ctx.create_stream().__exit__(None, None, None),
    "Stream.__init__": lambda w: Stream(w.other),
    "Stream.close": lambda w: (w.ctx.create_stream().close(), w.dev.create_stream().close()),
    "Stream.capture": lambda w: in_a_block(w.stream.capture()),
    "Stream.from_handle": lambda w: (Stream.from_handle(w.foreign_stream), w.adopted.is_nonblocking),
    "Stream.wait": lambda w: (w.stream.wait(w.event), w.stream.wait(w.other), w.other.wait(w.stream)),
    "Event.__eq__": lambda w: w.event == w.timed,
    "Event.__exit__": lambda w: w.ctx.create_event().__exit__(None, None, None),
    "Event.__sub__": lambda w: w.timed - w.timed,
    "Event.close": lambda w: w.ctx.create_event().close(),
    "Graph.__exit__": lambda w: captured(w.stream).__exit__(None, None, None),
    "Graph.close": lambda w: captured(w.stream).close(),
    "Graph.__init__": lambda w: Graph(SimpleNamespace(raw_cuda_graph=lambda: w.graph.handle)),
    "Graph.from_handle": lambda w: Graph.from_handle(w.graph.handle),
    "Graph.in_partition": lambda w: w.graph.in_partition(w.dev).close(),
    "GraphExec.__exit__": lambda w: w.graph.instantiate().__exit__(None, None, None),
    "GraphExec.close": lambda w: w.graph.instantiate().close(),
    "GraphExec.launch": lambda w: w.executable.launch(w.stream),
    "GraphExec.upload": lambda w: w.executable.upload(w.stream),
    "SMResource.__eq__": lambda w: w.group == w.whole,
    "SMResource.overlaps": lambda w: w.group.overlaps(w.whole),
    "SMResource.split": lambda w: (w.whole.split([8, 16]), w.group.split(8)),
    "WorkqueueResource.configure": lambda w: w.workqueue.configure({"concurrency_limit": 2}),
}

# What is dropped without being closed, and what the higher rooms call.
MORE: dict[str, Callable[[Any], object]] = {
    "a stream is dropped": lambda w: w.ctx.create_stream(),
    "an event is dropped": lambda w: w.ctx.create_event(),
    "a context is dropped": lambda w: w.dev.create_context(ContextOptions([w.group])),
    "the resources of a context are dropped last": lambda w: w.dev.create_context(ContextOptions([w.group])).resources,
    "blocks that end out of order": lambda w: out_of_order(w),
    "what was set on a thread goes with it": lambda w: set_on_a_thread(w),
    "a graph is dropped": lambda w: captured(w.stream).instantiate(),
    "streams with priorities": lambda w: w.ctx.create_stream(StreamOptions(priority=-1)),
    "what higher rooms ask": lambda w: (
        *(core.context_stream(w.ctx), core.any_has_capture([w.ctx]), core.capturing_stream(w.whole)),
        *(core.is_idle(w.ctx), core.is_capturing(w.stream), core.device_memory(w.whole)),
        *(core.are_free([w.whole]), core.idle_identities(w.whole), core.seen_sm_ids(w.ctx)),
    ),
    "probe": lambda w: (
        *(core.run_probe([w.stream], [8], 1000, 10**10), core.spin(w.stream, 1, 0)),
        *(core.probe_blocks_per_sm(w.ctx), core.max_cluster_size(w.stream, 0, 32, 0)),
        *(core.max_clusters(w.stream, 0, 32, 0, 1), stamped(w)),
        probe_kernels(w.graph.in_partition(w.ctx), w.dev.create_stream(), 0, 10**10),
    ),
    "system": lambda w: (
        *(system.features(), system.memory(), system.idle_contexts, system.driver_version, repr(system)),
        system.release_contexts(),
    ),
}

# Calls that this program's own driver refuses.
FAILING: dict[str, Callable[[Any], object]] = {
    "what was current before a block is not known": lambda w: failing("cuCtxGetCurrent", w.ctx.current().__enter__),
    "a block is not entered": lambda w: failing("cuCtxPushCurrent", w.ctx.current().__enter__),
    "a block is not left": lambda w: failing("cuCtxPopCurrent", lambda: in_a_block(w.dev.context.current())),
    "a block is not left at the end of a thread": lambda w: failing("cuCtxPopCurrent", lambda: entered_on_a_thread(w)),
}


def captured(stream: Stream) -> Graph:
    with stream.capture() as capture:
        core.spin(stream, 1, 0)
    return capture.graph


def stamped(w: Any) -> object:
    stamps = core.Stamps(w.dev, 2)
    stamps.write(w.stream, 0)
    return stamps.read()


def out_of_order(w: Any) -> None:
    outer = w.dev.create_context(ContextOptions([w.group])).current()
    inner = w.ctx.current()
    outer.__enter__()
    inner.__enter__()
    try:
        outer.__exit__(None, None, None)
    except RuntimeError:
        del outer
    inner.__exit__(None, None, None)


def set_to_a_new_one(w: Any) -> None:
    w.dev.set_current(w.dev.create_context(ContextOptions([w.group])))


def failing(function: str, use: Callable[[], object]) -> None:
    os.environ.update(FAIL=f"{function}:999", MS="0")
    try:
        use()
    except CUDAError as error:
        assert (function in error.call, error.name) == (True, "CUDA_ERROR_UNKNOWN")  # noqa: PT017
    else:
        assert function == "cuCtxPopCurrent"
    finally:
        del os.environ["FAIL"]


def entered_on_a_thread(w: Any) -> None:
    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("always")
        thread.submit(w.ctx.current().__enter__).result()
    assert "CUDA_ERROR_UNKNOWN" in str(caught[0].message)


def set_on_a_thread(w: Any) -> None:
    with ThreadPoolExecutor(1) as thread:  # what it raises is raised here
        thread.submit(set_to_a_new_one, w).result()


def world(library: str) -> Any:
    """What the calls are made on. library: of the software driver."""
    dev = Device(0)
    whole = dev.resources.sm
    (first, group), _ = whole.split(SMResourceOptions([16, 16]))
    ctx = dev.create_context(ContextOptions([first]))
    stream, other = ctx.create_stream(), dev.create_stream()
    timed = ctx.create_event(EventOptions(timing_enabled=True))
    foreign, foreign_stream = ctypes.c_void_p(), ctypes.c_void_p()
    simulated = ctypes.CDLL(library)
    assert simulated.cuCtxCreate_v2(ctypes.byref(foreign), 0, 0) == 0
    assert simulated.cuStreamCreate(ctypes.byref(foreign_stream), 0) == 0
    assert simulated.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
    core.spin(stream, 1, 0)
    graph = captured(stream)
    dev.context.resources  # noqa: B018
    return SimpleNamespace(
        dev=dev, whole=whole, group=group, ctx=ctx, stream=stream, other=other, event=stream.record(),
        timed=stream.record(timed), foreign=foreign.value, foreign_stream=foreign_stream.value,
        adopted=Stream.from_handle(foreign_stream.value or 0), graph=graph, executable=graph.instantiate(),
        workqueue=dev.resources.workqueue if system.features()["workqueues"] else None, resources=ctx.resources,
    )  # fmt: skip


OBJECT_OF = {
    Device: "dev", Context: "ctx", Stream: "stream", Event: "event", Graph: "graph", GraphExec: "executable",
    SMResource: "whole", DeviceResources: "resources", WorkqueueResource: "workqueue",
}  # fmt: skip


def as_it_is(kind: type, name: str) -> Callable[[Any], object]:
    def use(w: Any) -> object:
        found = getattr(getattr(w, OBJECT_OF[kind]), name)
        return found() if callable(found) else found

    return use


def every_call() -> dict[str, Callable[[Any], object]]:
    calls = dict(MORE)
    for kind in CLASSES:
        for name in {name: None for part in kind.__mro__[:-1] for name in vars(part)}:
            if (name.startswith("_") and name not in PROTOCOLS) or name in ELSEWHERE.get(kind.__name__, ()):
                continue
            label = f"{kind.__name__}.{name}"
            calls[label] = WITH_ARGUMENTS.get(label) or as_it_is(kind, name)
    return calls


def main() -> None:
    warnings.simplefilter("ignore")
    front: Any = ctypes.CDLL(sys.argv[1])
    front.front_wait.restype = front.front_stuck.restype = ctypes.c_char_p
    problem = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(sys.argv[2]).softwareDriverConfigure(b"h200@13.4", problem, len(problem)) == 0, problem.value
    seen: list[str] = []

    def let_go_on() -> None:
        while (name := front.front_wait()) is not None:
            seen.append(name.decode())
            front.front_go()

    helper = threading.Thread(target=let_go_on, daemon=True)
    helper.start()
    everything = world(sys.argv[2])
    outcome: dict[str, Any] = {}
    for label, use in (every_call() | FAILING).items():
        seen.clear()
        front.front_forget()
        front.front_arm(1)
        failed = None
        try:
            use(everything)
        except Exception as error:  # a call that fails made its driver calls, too
            failed = repr(error.with_traceback(None))
        front.front_arm(0)
        outcome[label] = {"calls": list(seen), "kept": front.front_stuck().decode().split(), "failed": failed}
    front.front_end()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
