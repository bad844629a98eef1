"""Every public operation of the core and of partitions, discovered, on the software driver.

Only the arguments stand here, for those that take some.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cuda_gctx import (
    Context,
    Event,
    GraphSet,
    Layout,
    Partition,
    PartitionPool,
    Partitions,
    Stream,
    StreamOptions,
    WorkqueueResourceOptions,
    system,
)
from cuda_gctx.tune import spin
from cuda_software_driver import library_path

from ..common import green, on_another_thread, refusal, split
from ..core import every_call
from ..raw import Raw

Operation = Callable[[Any], object]

OBJECT_OF: dict[type, str] = {
    Partitions: "parts",
    Partition: "part",
    PartitionPool: "pool",
    GraphSet: "graphs",
    Layout: "layout",
}
PROTOCOLS = ("__contains__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__")
# What hands over to another library at once.
ELSEWHERE = {"Partition": {"torch", "cupy"}}


def spinning(place: Any) -> None:
    spin(getattr(place, "stream", place), blocks=1, spin_ns=0)


def used_and_closed(owner: Any) -> None:
    with owner:
        pass


def read_all(values: Any) -> list[Any]:
    return list(values)


def captured_and_dropped(w: Any) -> None:
    with GraphSet(captures="once") as graphs:
        graphs.capture(w.part, 1, spinning)
        graphs.capture(w.parts.b, 1, spinning)


def set_and_back(w: Any) -> None:
    on_another_thread(lambda: w.dev.set_current(w.ctx))  # what is current goes with the thread


# One operation each, which is undone or stays as a whole: also in place of what the core's own list does.
WITH_ARGUMENTS: dict[str, Operation] = {
    "Device.set_current": set_and_back,
    "Partitions.__contains__": lambda w: "a" in w.parts,
    "Partitions.__enter__": lambda w: used_and_closed(w.dev.partition(8, exclusive=False)),
    "Partitions.__exit__": lambda w: w.dev.partition(16, exclusive=False).__exit__(None, None, None),
    "Partitions.__getitem__": lambda w: w.parts["a"],
    "Partitions.__iter__": lambda w: read_all(w.parts),
    "Partitions.close": lambda w: w.dev.partition({"x": 24, "y": 8}, exclusive=False).close(),
    "Partition.__enter__": lambda w: refusal(TypeError, w.part.__enter__),
    "Partition.wait": lambda w: (w.part.wait(w.parts.b), w.part.wait(w.event)),
    "Partition.stream_pool": lambda w: w.part.stream_pool(2),
    "Partition.max_blocks": lambda w: None,  # of a kernel: another room
    "Partition.max_cluster_size": lambda w: None,
    "Partition.max_clusters": lambda w: None,
    "PartitionPool.__enter__": lambda w: used_and_closed(PartitionPool(w.dev)),
    "PartitionPool.__exit__": lambda w: PartitionPool(w.dev).__exit__(None, None, None),
    "PartitionPool.close": lambda w: PartitionPool(w.dev).close(),
    "PartitionPool.current": lambda w: (w.pool.switch(a=16, b=32), w.pool.current),
    "PartitionPool.drop": lambda w: (w.pool.prepare(c=40), w.pool.drop(c=40)),
    "PartitionPool.prepare": lambda w: w.pool.prepare(a=24, b=24),
    "PartitionPool.switch": lambda w: (w.pool.switch(a=24, b=24), w.pool.switch(a=16, b=32)),
    "GraphSet.__contains__": lambda w: (w.part, 1) in w.graphs,
    "GraphSet.__enter__": lambda w: used_and_closed(GraphSet()),
    "GraphSet.__exit__": lambda w: GraphSet().__exit__(None, None, None),
    "GraphSet.add": lambda w: None,  # of graphs that torch has captured
    "GraphSet.capture": lambda w: (w.graphs.capture(w.part, 1, spinning), w.graphs.capture(w.parts.b, 1, spinning)),
    "GraphSet.drop": captured_and_dropped,
    "GraphSet.replay": lambda w: (w.graphs.capture(w.part, 1, spinning), w.graphs.replay(w.part, 1)),
    "Layout.of": lambda w: Layout.of({"a": 8}),
    "Layout.from_json": lambda w: Layout.from_json(w.layout.to_json()),
}


def with_a_workqueue(w: Any) -> None:
    queue = w.dev.resources.workqueue
    queue.configure(WorkqueueResourceOptions("green_ctx_balanced", 4))
    green(w.dev, w.group, queue).close()


def default_stream(w: Any) -> None:
    with w.dev.context.current():
        Stream.from_handle(1)


# Further ways through a method.
MORE: dict[str, Operation] = {
    "a split that backfills": lambda w: split(w.whole, [16, 10], backfill=[False, True]),
    "a context of several groups": lambda w: green(w.dev, *split(w.whole, [8, 16, 24])[0]).close(),
    "a context with a workqueue": with_a_workqueue,
    "a green context of other code": lambda w: Context.from_handle(w.other_context).resources.sm,
    "a stream of other code": lambda w: Stream.from_handle(w.other_stream).resources.sm,
    "a stream of the primary context": lambda w: w.dev.create_stream(StreamOptions(priority=-1)).close(),
    "a default stream": default_stream,
}


def operations() -> dict[str, Operation]:
    found = every_call.every_call() | MORE
    found.update((label, use) for label, use in WITH_ARGUMENTS.items() if label in found)
    del found["blocks that end out of order"]  # a fault between its steps leaves a block open, as the program asked
    for kind, name_of_object in OBJECT_OF.items():
        for name in vars(kind):
            if (name.startswith("_") and name not in PROTOCOLS) or name in ELSEWHERE.get(kind.__name__, ()):
                continue
            label = f"{kind.__name__}.{name}"
            found[label] = WITH_ARGUMENTS.get(label) or as_it_is(name_of_object, name)
    return found


def as_it_is(name_of_object: str, name: str) -> Operation:
    def use(w: Any) -> object:
        found = getattr(getattr(w, name_of_object), name)
        return found() if callable(found) else found

    return use


@contextmanager
def world() -> Iterator[Any]:
    """What operations work on; nothing of it is left afterwards."""
    w, raw = every_call.world(library_path()), Raw()
    w.parts = w.dev.partition({"a": 16, "b": 32}, exclusive=False)
    w.part, w.layout = w.parts.a, w.parts.layout
    w.pool, w.graphs = PartitionPool(w.dev), GraphSet(captures="once")
    with raw.green_context(16) as w.other_context, raw.stream(w.other_context) as w.other_stream:
        yield w
    simulated = ctypes.CDLL(library_path())
    assert simulated.cuStreamDestroy_v2(ctypes.c_void_p(w.foreign_stream)) == 0
    assert simulated.cuCtxDestroy_v2(ctypes.c_void_p(w.foreign)) == 0
    for owner in (w.graphs, w.pool, w.parts, w.executable, w.graph):
        owner.close() if hasattr(owner, "close") else owner.drop()
    for owned in [*(value for value in vars(w).values() if isinstance(value, (Stream, Event))), w.ctx]:
        owned.close()
    vars(w).clear()
    system.release_contexts()
