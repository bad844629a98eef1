"""CUDA graphs by partition or stream: capture in each one, or capture once and move, and replay in the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar

from cuda_gctx._core.extension import Graph, GraphExec, Stream, device_memory
from cuda_gctx._core.text import table
from cuda_gctx.partitions.partitions import Partition, refuse_pickling
from cuda_gctx.partitions.pool import PartitionPool

__all__ = ["GraphSet"]

# A graph belongs to a partition, on whose stream it runs, or to a stream of its own, as on the whole device.
Place: TypeAlias = Partition | Stream
Function = Callable[[Any], Any]
Made = TypeVar("Made")


class Replayable(Protocol):
    """A captured graph that can be launched, of any framework."""

    output: Any

    def launch(self, place: Place) -> None:
        """Enqueue the graph on the stream of the place."""

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
        graph, output = _captured(place, function)
        with graph:
            return cls(graph.instantiate(), output)

    def launch(self, place: Place) -> None:
        self._executable.launch(_stream_of(place))

    def close(self) -> None:
        self._executable.close()


def _captured(place: Place, function: Function) -> tuple[Graph, Any]:
    """The graph of a function that the stream of a place captured, and the function's result."""
    with _stream_of(place).capture() as capture:
        output = function(place)
    return capture.graph, output


@dataclass(frozen=True)
class _Capture:
    """A graph that is moved to every place in which it is used."""

    graph: Graph
    output: Any
    bytes: int


@dataclass(frozen=True)
class _Entry:
    name: str
    sm_count: int
    graph: Replayable
    bytes: int


class GraphSet:
    """Graphs of functions, by the partition or stream that they run in.

    Partitions of two layouts that share a context share its graphs. A stream is for work on the whole device, and does
    not share its graphs.

    pool: allows names of partitions, which refer to the pool's current layout. framework: "torch" for functions of
    torch, with a separate memory pool for each capture; None for functions that launch on ``part.stream``, or on the
    stream. captures: "each" captures a function in every place in which it is used, where it can read the SM count;
    "once" captures it in the first one, and moves the graph to the others when they first need it. Its executable
    graphs share their memory, so their launches run one behind the other on the device.

    Usable on any thread; one graph is captured at a time.

    Example:

        from cuda_gctx import Device, GraphSet
        from cuda_gctx.tune import spin

        def step(part):
            spin(part.stream, blocks=8, spin_ns=10_000)

        with Device().partition(control=16, rest=None) as parts, GraphSet() as graphs:
            graphs.capture(parts.control, "step", step)
            graphs.replay(parts.control, "step")
            parts.sync()
            print(len(graphs))  # 1
    """

    def __init__(
        self,
        pool: PartitionPool | None = None,
        *,
        framework: Literal["torch"] | None = None,
        captures: Literal["each", "once"] = "each",
    ) -> None:
        if framework not in (None, "torch"):
            raise ValueError(f"framework must be 'torch' or None, not {framework!r}")
        if captures not in ("each", "once"):
            raise ValueError(f"captures must be 'each' or 'once', not {captures!r}")
        self._pool = pool
        self._framework = framework
        self._once = captures == "once"
        self._lock = threading.RLock()
        self._entries: dict[tuple[int | Stream, Hashable], _Entry] = {}
        self._captures: dict[Hashable, _Capture] = {}

    def capture(self, part: Place | str, key: Hashable, function: Function) -> Any:
        """Capture ``function(part)`` in a partition or a stream, unless it is already captured; returns its result.

        key: distinguishes the graphs of one place, such as a batch size. With torch, the function is called
        once before the capture, so that its kernels and workspaces exist.
        """
        place = self._place(part)
        with self._lock:
            entry = self._entries.get((_key(place), key))
            if entry is None:
                entry = self._moved(place, key, function) if self._once else self._new(place, key, function)
            return entry.graph.output

    def _new(self, place: Place, key: Hashable, function: Function) -> _Entry:
        capture: Callable[..., Any] = _OwnGraph.capture
        if self._framework == "torch":
            from cuda_gctx.interop.torch import capture_graph as capture
        graph, allocated = self._measured(place, lambda: capture(place, function))
        return self._enter(place, key, graph, allocated)

    def _moved(self, place: Place, key: Hashable, function: Function) -> _Entry:
        """The graph of a key in a place, moved from its capture. Captures the function if there is no capture."""
        known = self._captures.get(key)
        if known is None:
            capture: Callable[..., tuple[Graph, Any]] = _captured
            if self._framework == "torch":
                from cuda_gctx.interop.torch import capture_once as capture
            (graph, output), allocated = self._measured(place, lambda: capture(place, function))
            try:
                return self._keep(place, key, _Capture(graph, output, allocated))
            except BaseException:
                graph.close()
                raise
        return self._move(place, key, known)

    def _keep(self, place: Place, key: Hashable, capture: _Capture) -> _Entry:
        """Move a capture to its first place, and keep it for others. A refused move leaves no trace."""
        entry = self._move(place, key, capture)
        self._captures[key] = capture
        return entry

    def _move(self, place: Place, key: Hashable, capture: _Capture) -> _Entry:
        moved, allocated = self._measured(place, lambda: capture.graph.in_partition(place))
        return self._enter(place, key, _OwnGraph(moved, capture.output), allocated)

    def _enter(self, place: Place, key: Hashable, graph: Replayable, allocated: int) -> _Entry:
        entry = self._entries[_key(place), key] = _Entry(*_described(place), graph, allocated)
        return entry

    @staticmethod
    def _measured(place: Place, make: Callable[[], Made]) -> tuple[Made, int]:
        """The result of a call, and the device memory that was allocated meanwhile."""
        whole = place.context.device.resources.sm
        before, _ = device_memory(whole)
        made = make()
        after, _ = device_memory(whole)
        return made, max(0, before - after)

    def add(self, part: Place | str, key: Hashable, graph: Graph) -> None:
        """Add a graph that was captured elsewhere. With captures="once", it is moved to the places that use it.

        key: distinguishes the graphs of one partition.

        Raises ValueError if it was captured in another context and captures is "each".
        """
        place = self._place(part)
        if self._once:
            with self._lock:
                if key in self._captures:
                    raise ValueError(f"there is already a graph {key!r}: drop it first")
                self._keep(place, key, _Capture(graph, None, 0))
            return
        if graph.context != place.context:
            raise ValueError(
                f"{graph!r} was not captured in {_called(place)} (context {place.context.id}), so it would not "
                "run on its SMs: capture it there"
            )
        with self._lock:
            if (_key(place), key) in self._entries:
                raise ValueError(f"{_called(place)} already has a graph {key!r}: drop it first")
            entry = _Entry(*_described(place), _OwnGraph(graph.instantiate(), None), 0)
            self._entries[_key(place), key] = entry

    def replay(self, part: Place | str, key: Hashable) -> Any:
        """Enqueue the graph on the stream of the partition; returns the result of the function at its capture.

        key: that of the capture.

        With captures="once", the graph is first moved to the partition, unless it is already there. Otherwise raises
        ValueError if it was captured in other partitions only: it would run on their SMs.
        """
        place = self._place(part)
        entry = self._entries.get((_key(place), key))
        if entry is None:
            entry = self._first_use(place, key)
        entry.graph.launch(place)
        return entry.graph.output

    def _first_use(self, place: Place, key: Hashable) -> _Entry:
        with self._lock:
            known = self._captures.get(key)
            if known is None:
                self._refuse(place, key)
            return self._entries.get((_key(place), key)) or self._move(place, key, known)

    def _refuse(self, place: Place, key: Hashable) -> NoReturn:
        others = [
            f"{entry.name} ({entry.sm_count} SMs)" for (_, known), entry in self._entries.copy().items() if known == key
        ]
        if others:
            name, sm_count = _described(place)
            raise ValueError(
                f"graph {key!r} was captured in {', '.join(others)}, and would run there instead of in {name} "
                f"({sm_count} SMs): capture it in this {type(place).__name__.lower()} too"
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
        entries, captures = list(self._entries.values()), list(self._captures.values())
        return sum(one.bytes for one in entries) + sum(one.bytes for one in captures)

    def drop(self, part: Place | str | None = None) -> None:
        """Destroy the graphs of a partition or a stream, or all of them. They must not be running.

        A capture that was moved there stays available to other partitions until all graphs are dropped.
        """
        only = None if part is None else _key(self._place(part))
        with self._lock:
            for known in [known for known in self._entries if only is None or known[0] == only]:
                self._entries.pop(known).graph.close()
            if part is None:
                while self._captures:
                    self._captures.popitem()[1].graph.close()

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
            for (_, key), entry in self._entries.copy().items()
        ]
        return table(("partition", "SMs", "graph", "MiB"), rows)

    def __repr__(self) -> str:
        return f"<GraphSet: {len(self)} graphs, {self.memory_bytes / 2**20:.1f} MiB>"
