"""CUDA graphs by partition: captured once in each, and replayed in the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from cuda_gctx._core.above import above
from cuda_gctx._core.graph import Graph, GraphExec
from cuda_gctx._core.loan import device_memory
from cuda_gctx.draw.table import table
from cuda_gctx.partitions.partitions import Partition, refuse_pickling
from cuda_gctx.partitions.pool import PartitionPool

__all__ = ["GraphSet"]

Function = Callable[[Partition], Any]


class Replayable(Protocol):
    """A captured graph that can be launched, of any framework."""

    output: Any

    def launch(self, part: Partition) -> None:
        """Enqueue it on the stream of the partition."""

    def close(self) -> None:
        """Destroy it."""


class _OwnGraph:
    """A graph that the stream of a partition captured."""

    def __init__(self, executable: GraphExec, output: Any) -> None:
        self.output = output
        self._executable = executable

    @classmethod
    def capture(cls, part: Partition, function: Function) -> _OwnGraph:
        with part.stream.capture() as capture:
            output = function(part)
        with capture.graph as graph:
            return cls(graph.instantiate(), output)

    def launch(self, part: Partition) -> None:
        self._executable.launch(part.stream)

    def close(self) -> None:
        self._executable.close()


@dataclass(frozen=True)
class _Entry:
    name: str
    sm_count: int
    graph: Replayable
    bytes: int


class GraphSet:
    """Graphs of functions, each captured once in every partition in which it is used.

    A captured kernel belongs to the context in which it was captured, so every partition needs its own graph.
    Partitions of two layouts that share a context share its graphs.

    pool: allows names of partitions, which refer to the pool's current layout. framework: "torch" for functions of
    torch, with a separate memory pool for each graph; None for functions that launch on ``part.stream``. Usable on any
    thread; one graph is captured at a time.
    """

    def __init__(self, pool: PartitionPool | None = None, *, framework: Literal["torch"] | None = None) -> None:
        if framework not in (None, "torch"):
            raise ValueError(f"framework must be 'torch' or None, not {framework!r}")
        self._pool = pool
        self._framework = framework
        self._lock = threading.RLock()
        self._entries: dict[tuple[int, Hashable], _Entry] = {}

    def capture(self, part: Partition | str, key: Hashable, function: Function) -> Any:
        """Capture ``function(part)`` on the stream of a partition, unless it is captured already; returns its result.

        key: distinguishes the graphs of one partition, such as a batch size. With torch, the function is called
        once before the capture, so that its kernels and workspaces exist.
        """
        part = self._partition(part)
        with self._lock:
            known = self._entries.get((part.context.id, key))
            if known is None:
                way: Callable[[Partition, Function], Replayable] = (
                    above.torch_graph if self._framework == "torch" else _OwnGraph.capture
                )
                whole = part.context.device.resources.sm
                before, _ = device_memory(whole)
                graph = way(part, function)
                after, _ = device_memory(whole)
                known = _Entry(part.name, part.sm_count, graph, max(0, before - after))
                self._entries[part.context.id, key] = known
            return known.graph.output

    def add(self, part: Partition | str, key: Hashable, graph: Graph) -> None:
        """Add a graph that was captured elsewhere. ValueError if it was captured in another context."""
        part = self._partition(part)
        if graph.context != part.context:
            raise ValueError(
                f"{graph!r} was not captured in partition {part.name} (context {part.context.id}), and would not run "
                "on its SMs: capture it there"
            )
        with self._lock:
            if (part.context.id, key) in self._entries:
                raise ValueError(f"partition {part.name} has a graph {key!r} already: drop that first")
            entry = _Entry(part.name, part.sm_count, _OwnGraph(graph.instantiate(), None), 0)
            self._entries[part.context.id, key] = entry

    def replay(self, part: Partition | str, key: Hashable) -> Any:
        """Enqueue the graph on the stream of the partition; returns the result of the function at its capture.

        ValueError if the graph was captured in other partitions only: it would run on their SMs.
        """
        part = self._partition(part)
        entry = self._entries.get((part.context.id, key))
        if entry is None:
            self._refuse(part, key)
        entry.graph.launch(part)
        return entry.graph.output

    def _refuse(self, part: Partition, key: Hashable) -> NoReturn:
        others = [f"{one.name} ({one.sm_count} SMs)" for (_, known), one in list(self._entries.items()) if known == key]
        if others:
            raise ValueError(
                f"graph {key!r} was captured in {', '.join(others)} and not in {part.name} ({part.sm_count} SMs), and "
                "would run on the SMs of the former: capture it in this partition too"
            )
        raise ValueError(f"there is no graph {key!r}: capture it first")

    def _partition(self, part: Partition | str) -> Partition:
        if isinstance(part, Partition):
            return part
        if not isinstance(part, str):
            raise TypeError(f"a graph belongs to a Partition or the name of one, not to {type(part).__name__}")
        if self._pool is None:
            raise ValueError("the name of a partition needs a pool: GraphSet(pool)")
        current = self._pool.current
        if current is None:
            raise RuntimeError("the pool has no current layout: call pool.switch() first")
        return current[part]

    @property
    def memory_bytes(self) -> int:
        """The device memory that was allocated during the captures, by the graphs or by concurrent work."""
        return sum(entry.bytes for entry in list(self._entries.values()))

    def drop(self, part: Partition | str | None = None) -> None:
        """Destroy the graphs of a partition, or all of them. They must not be running."""
        context = None if part is None else self._partition(part).context.id
        with self._lock:
            for known in [known for known in self._entries if context in (None, known[0])]:
                self._entries.pop(known).graph.close()

    def __contains__(self, item: tuple[Partition | str, Hashable]) -> bool:
        part, key = item
        return (self._partition(part).context.id, key) in self._entries

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
