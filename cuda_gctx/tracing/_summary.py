"""The summary of a trace: what ran in which partition, what ran outside, and what overlapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

from cuda_gctx._core.text import table
from cuda_gctx.draw.durations import in_words
from cuda_gctx.measure.statistics import quantile
from cuda_gctx.tracing._lanes import Lane, merged
from cuda_gctx.tracing._marks import Mark
from cuda_gctx.tracing._records import Item, Process

__all__ = ["Summary", "summary"]

SCHEMA = 1
MOST_ROWS = 10


@dataclass(frozen=True)
class KernelTime:
    """The kernels of one name in one lane."""

    name: str
    partition: str
    count: int
    total_ns: int


@dataclass(frozen=True)
class LaneSummary:
    """The work of a partition of a process, or of its work outside of partitions.

    queueing: from the launch to the start, of kernels whose launch is known; kernels in graphs from the graph's launch.
    """

    pid: int
    program: str
    device: int
    partition: str
    sm_count: int
    kernels: int
    graphs: int
    copies: int
    fills: int
    busy_ns: int
    queueing_p50_ns: int | None
    queueing_p99_ns: int | None


@dataclass(frozen=True)
class Stray:
    """Kernels that ran outside of all partitions of their process, although some were open."""

    pid: int
    kernel: str
    stream: int
    count: int


@dataclass(frozen=True)
class Pair:
    """Two partitions of a device. could_ns: how long both had work; together_ns: how long both ran something."""

    device: int
    first: str
    second: str
    together_ns: int
    could_ns: int


@dataclass(frozen=True)
class ProcessSummary:
    """A traced process. has_ended: false if it was killed, which loses the last 200 ms. dropped: lost records."""

    pid: int
    program: str
    has_ended: bool
    dropped: int
    error_ns: int


@dataclass(frozen=True)
class Summary:
    """What a traced command did."""

    seconds: float
    processes: tuple[ProcessSummary, ...]
    lanes: tuple[LaneSummary, ...]
    kernels: tuple[KernelTime, ...]
    strays: tuple[Stray, ...]
    pairs: tuple[Pair, ...]

    def to_dict(self) -> dict[str, object]:
        """The summary as JSON values."""
        return {"schema": SCHEMA, **asdict(self)}

    def __str__(self) -> str:
        count = sum(lane.kernels for lane in self.lanes)
        dropped = sum(process.dropped for process in self.processes)
        many = len(self.processes) != 1
        has_graphs = any(lane.graphs for lane in self.lanes)
        lines = [
            f"{len(self.processes)} {'processes' if many else 'process'}, {self.seconds:.3g} s, {count} kernels, "
            f"{dropped} records dropped",
            "",
        ]
        rows = [
            (
                *([f"{lane.pid} {lane.program}"] if many else []),
                lane.partition,
                lane.sm_count or None,
                lane.kernels,
                *([lane.graphs] if has_graphs else []),
                in_words(lane.busy_ns),
                None if lane.queueing_p50_ns is None else in_words(lane.queueing_p50_ns),
                None if lane.queueing_p99_ns is None else in_words(lane.queueing_p99_ns),
                lane.copies + lane.fills,
            )
            for lane in self.lanes
        ]
        first = (*(["process"] if many else []), "partition", "SMs", "kernels", *(["graphs"] if has_graphs else []))
        columns = (*first, "busy", "queued p50", "p99", "copies")
        lines.append(table(columns, rows))
        if self.kernels:
            found = [(_short(one.name), one.partition, one.count, in_words(one.total_ns)) for one in self.kernels]
            lines += ["", table(("kernel", "partition", "count", "time"), found)]
        lines += [
            f"{stray.kernel} ran {stray.count} times on stream {stray.stream}, outside of all partitions, although "
            f"partitions of process {stray.pid} were open"
            for stray in self.strays[:MOST_ROWS]
        ]
        for pair in self.pairs:
            if pair.together_ns:
                lines.append(f"{pair.first} and {pair.second} ran at the same time for {in_words(pair.together_ns)}")
            elif pair.could_ns:
                lines.append(
                    f"{pair.first} and {pair.second} never ran at the same time, although both had work for "
                    f"{in_words(pair.could_ns)}"
                )
        lines += [
            f"process {process.pid} ({process.program}) was killed: up to 200 ms before its end are missing"
            for process in self.processes
            if not process.has_ended
        ]
        return "\n".join(lines)


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


def _lane(lane: Lane) -> LaneSummary:
    kinds = Counter(item.kind for item in lane.items)
    queued = [
        item.start - item.queued for item in lane.items if item.kind == "kernel" and 0 < item.queued <= item.start
    ]
    return LaneSummary(
        pid=lane.process.pid,
        program=lane.process.program,
        device=lane.device,
        partition=lane.name,
        sm_count=lane.sm_count,
        kernels=kinds["kernel"],
        graphs=kinds["graph"],
        copies=kinds["copy"],
        fills=kinds["fill"],
        busy_ns=sum(end - start for start, end in lane.busy()),
        queueing_p50_ns=round(quantile(queued, 0.5)) if queued else None,
        queueing_p99_ns=round(quantile(queued, 0.99)) if queued else None,
    )


def _kernels(lanes: Sequence[Lane]) -> list[KernelTime]:
    counts: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for lane in lanes:
        for item in lane.items:
            if item.kind == "kernel":
                counts[item.name, lane.name] += 1
                times[item.name, lane.name] += item.end - item.start
    return [KernelTime(name, lane, counts[name, lane], ns) for (name, lane), ns in times.most_common(MOST_ROWS)]


def _strays(lanes: Sequence[Lane], marks: Sequence[Mark]) -> list[Stray]:
    # Whichever is earlier: the clocks of work and of the program may be apart.
    opened: dict[int, int] = {}
    for pid, time in [(mark.pid, mark.time) for mark in marks] + [
        (lane.process.pid, lane.items[0].start) for lane in lanes if not lane.is_outside
    ]:
        opened[pid] = min(opened.get(pid, time), time)
    found: Counter[tuple[int, str, int]] = Counter()
    for lane in lanes:
        since = opened.get(lane.process.pid)
        if lane.is_outside and since is not None:
            for item in lane.items:
                if item.kind == "kernel" and item.start >= since:
                    found[lane.process.pid, item.name, item.stream] += 1
    return [Stray(pid, name, stream, count) for (pid, name, stream), count in found.most_common()]


def _common(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]], error: int) -> int:
    """How long two lists of spans overlap. Overlaps that are shorter than the error of the clocks do not count."""
    total, i, j = 0, 0, 0
    while i < len(first) and j < len(second):
        overlap = min(first[i][1], second[j][1]) - max(first[i][0], second[j][0])
        total += overlap if overlap > error else 0
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total


def _wanted(items: Sequence[Item]) -> list[tuple[int, int]]:
    """The times in which something is queued or runs."""
    return merged(sorted((item.queued if 0 < item.queued < item.start else item.start, item.end) for item in items))


def _pairs(lanes: Sequence[Lane]) -> list[Pair]:
    parts = [lane for lane in lanes if not lane.is_outside]
    found = []
    for one, other in combinations(parts, 2):
        if one.device != other.device:
            continue
        same = one.process is other.process
        error = 0 if same else one.process.error_ns + other.process.error_ns
        first, second = (lane.name if same else f"{lane.name} of process {lane.process.pid}" for lane in (one, other))
        together = _common(one.busy(), other.busy(), error)
        could = _common(_wanted(one.items), _wanted(other.items), error)
        found.append(Pair(one.device, first, second, together, could))
    return found


def summary(processes: Sequence[Process], lanes: Sequence[Lane], marks: Sequence[Mark]) -> Summary:
    """Summarize a trace."""
    times = [
        (process.items[0].start, max(item.end for item in process.items)) for process in processes if process.items
    ]
    seconds = (max(end for _, end in times) - min(start for start, _ in times)) / 1e9 if times else 0.0
    return Summary(
        seconds=seconds,
        processes=tuple(
            ProcessSummary(one.pid, one.program, one.has_ended, one.dropped, one.error_ns) for one in processes
        ),
        lanes=tuple(map(_lane, lanes)),
        kernels=tuple(_kernels(lanes)),
        strays=tuple(_strays(lanes, marks)),
        pairs=tuple(_pairs(lanes)),
    )
