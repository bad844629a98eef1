"""CUDA graphs by partition or stream: captured once in each, and replayed in the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

from cuda_gctx._core.above import above
from cuda_gctx._core.graph import Graph, GraphExec
from cuda_gctx._core.loan import device_memory
from cuda_gctx._core.stream import Stream
from cuda_gctx._core.text import table
from cuda_gctx.partitions.partitions import Partition, refuse_pickling
from cuda_gctx.partitions.pool import PartitionPool

__all__ = ["GraphSet"]

# A graph belongs to a partition, on whose stream it runs, or to a stream of its own, as on the whole device.
Place: TypeAlias = Partition | Stream
Function = Callable[[Any], Any]


class Replayable(Protocol):
    """A captured graph that can be launched, of any framework."""

    output: Any

    def launch(self, place: Place) -> None:
        """Enqueue it on the stream of the place."""

    def close(self) -> None:
        """Destroy it."""


def _stream_of(place: Place) -> Stream:
    return place if isinstance(place, Stream) else place.stream


def _key(place: Place) -> int | Stream:
    return place if isinstance(place, Stream) else place.context.id


def _described(place: Place) -> tuple[str, int]:
    """The name and the SM count of a place."""
    if isinstance(place, Stream):
        return f"stream of priority {place.priority}", place.resources.sm.sm_count
    return place.name, place.sm_count


def _called(place: Place) -> str:
    return _described(place)[0] if isinstance(place, Stream) else f"partition {place.name}"


class _OwnGraph:
    """A graph that the stream of a place captured."""

    def __init__(self, executable: GraphExec, output: Any) -> None:
        self.output = output
        self._executable = executable

    @classmethod
    def capture(cls, place: Place, function: Function) -> _OwnGraph:
        with _stream_of(place).capture() as capture:
            output = function(place)
        with capture.graph as graph:
            return cls(graph.instantiate(), output)

    def launch(self, place: Place) -> None:
        self._executable.launch(_stream_of(place))

    def close(self) -> None:
        self._executable.close()


@dataclass(frozen=True)
class _Entry:
    name: str
    sm_count: int
    graph: Replayable
    bytes: int


class GraphSet:
    """Graphs of functions, each captured once in every partition or stream in which it is used.

    A captured kernel belongs to the context in which it was captured, so every partition needs its own graph.
    Partitions of two layouts that share a context share its graphs. A stream serves work on the whole device; its
    graphs are its own, because a captured kernel keeps the priority of the stream.

    pool: allows names of partitions, which refer to the pool's current layout. framework: "torch" for functions of
    torch, with a separate memory pool for each graph; None for functions that launch on ``part.stream``, or on the
    stream. Usable on any thread; one graph is captured at a time.
    """

    def __init__(self, pool: PartitionPool | None = None, *, framework: Literal["torch"] | None = None) -> None:
        if framework not in (None, "torch"):
            raise ValueError(f"framework must be 'torch' or None, not {framework!r}")
        self._pool = pool
        self._framework = framework
        self._lock = threading.RLock()
        self._entries: dict[tuple[int | Stream, Hashable], _Entry] = {}

    def capture(self, part: Place | str, key: Hashable, function: Function) -> Any:
        """Capture ``function(part)`` in a partition or a stream, unless it is captured already; returns its result.

        key: distinguishes the graphs of one place, such as a batch size. With torch, the function is called
        once before the capture, so that its kernels and workspaces exist.
        """
        place = self._place(part)
        with self._lock:
            entry = self._entries.get((_key(place), key))
            if entry is None:
                capture: Callable[[Place, Function], Replayable] = (
                    above.torch_graph if self._framework == "torch" else _OwnGraph.capture
                )
                whole = place.context.device.resources.sm
                before, _ = device_memory(whole)
                graph = capture(place, function)
                after, _ = device_memory(whole)
                entry = _Entry(*_described(place), graph, max(0, before - after))
                self._entries[_key(place), key] = entry
            return entry.graph.output

    def add(self, part: Place | str, key: Hashable, graph: Graph) -> None:
        """Add a graph that was captured elsewhere. Raises ValueError if it was captured in another context.

        key: distinguishes the graphs of one partition.
        """
        place = self._place(part)
        if graph.context != place.context:
            raise ValueError(
                f"{graph!r} was not captured in {_called(place)} (context {place.context.id}), and would not run "
                "on its SMs: capture it there"
            )
        with self._lock:
            if (_key(place), key) in self._entries:
                raise ValueError(f"{_called(place)} has a graph {key!r} already: drop that first")
            entry = _Entry(*_described(place), _OwnGraph(graph.instantiate(), None), 0)
            self._entries[_key(place), key] = entry

    def replay(self, part: Place | str, key: Hashable) -> Any:
        """Enqueue the graph on the stream of the partition; returns the result of the function at its capture.

        key: that of the capture.

        Raises ValueError if the graph was captured in other partitions only: it would run on their SMs.
        """
        place = self._place(part)
        entry = self._entries.get((_key(place), key))
        if entry is None:
            self._refuse(place, key)
        entry.graph.launch(place)
        return entry.graph.output

    def _refuse(self, place: Place, key: Hashable) -> NoReturn:
        others = [
            f"{entry.name} ({entry.sm_count} SMs)" for (_, known), entry in list(self._entries.items()) if known == key
        ]
        if others:
            name, sm_count = _described(place)
            raise ValueError(
                f"graph {key!r} was captured in {', '.join(others)} and not in {name} ({sm_count} SMs), and "
                f"would run on the SMs of the former: capture it in this {type(place).__name__.lower()} too"
            )
        raise ValueError(f"there is no graph {key!r}: capture it first")

    def _place(self, part: Place | str) -> Place:
        if isinstance(part, Partition | Stream):
            return part
        if not isinstance(part, str):
            raise TypeError(
                f"a graph belongs to a Partition or the name of one, or to a Stream, not to {type(part).__name__}"
            )
        if self._pool is None:
            raise ValueError("the name of a partition needs a pool: GraphSet(pool)")
        try:
            current = self._pool.current
        except AttributeError as error:
            raise RuntimeError(f"{error}") from None
        return current[part]

    @property
    def memory_bytes(self) -> int:
        """The device memory that was allocated during the captures, by the graphs or by concurrent work."""
        return sum(entry.bytes for entry in list(self._entries.values()))

    def drop(self, part: Place | str | None = None) -> None:
        """Destroy the graphs of a partition or a stream, or all of them. They must not be running."""
        only = None if part is None else _key(self._place(part))
        with self._lock:
            for known in [known for known in self._entries if only is None or known[0] == only]:
                self._entries.pop(known).graph.close()

    def __contains__(self, item: tuple[Place | str, Hashable]) -> bool:
        part, key = item
        return (_key(self._place(part)), key) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __enter__(self) -> GraphSet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.drop()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __str__(self) -> str:
        rows = [
            (entry.name, entry.sm_count, key, f"{entry.bytes / 2**20:.1f}")
            for (_, key), entry in list(self._entries.items())
        ]
        return table(("partition", "SMs", "graph", "MiB"), rows)

    def __repr__(self) -> str:
        return f"<GraphSet: {len(self)} graphs, {self.memory_bytes / 2**20:.1f} MiB>"
