"""The summary of a trace: what ran in which partition, what ran outside, and what overlapped."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import combinations, compress

from cuda_gctx._core.text import table
from cuda_gctx.draw.durations import in_words
from cuda_gctx.measure.statistics import nearest_rank
from cuda_gctx.tracing._lanes import Lane, Spans, united
from cuda_gctx.tracing._marks import Mark
from cuda_gctx.tracing._records import Process, Tag

__all__ = ["Summary", "summary"]

SCHEMA = 1
MOST_ROWS = 10
# Shorter waits without recorded work are those for launches.
LONG_NS, LARGE_SHARE = 100_000_000, 0.1


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
    """A traced process.

    has_ended: false if it was killed, which loses the last 200 ms. was_replaced: true if another profiler received the
    records from some time on. dropped: lost records. waited_for_nothing_ns: waits of the host during which no work of
    the process was recorded.
    """

    pid: int
    program: str
    has_ended: bool
    was_replaced: bool
    dropped: int
    waited_for_nothing_ns: int
    error_ns: int


@dataclass(frozen=True)
class Summary:
    """The summary of a traced command. simulated: whether a GPU of it was simulated."""

    simulated: bool
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
            f"{len(self.processes)} {'processes' if many else 'process'}{' (simulated)' if self.simulated else ''}, "
            f"{self.seconds:.3g} s, {count} kernels, {dropped} records dropped",
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
            f"{stray.kernel} ran {_times(stray.count)} on stream {stray.stream}, outside of all partitions, although "
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
        lines += [
            f"process {process.pid} ({process.program}) has a profiler of its own, which took CUPTI over: later work "
            "is missing"
            for process in self.processes
            if process.was_replaced
        ]
        lines += [
            f"process {process.pid} ({process.program}) waited {in_words(process.waited_for_nothing_ns)} for the GPU "
            "while no work of it was recorded: CUPTI may have lost records"
            for process in self.processes
            if process.waited_for_nothing_ns > max(LONG_NS, LARGE_SHARE * self.seconds * 1e9)
        ]
        return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


def _queueing(lane: Lane) -> list[int]:
    """From the launch to the start, of kernels whose launch is known, in order."""
    return sorted(
        start - queued
        for items in lane.streams.values()
        for kind, start, queued in zip(items.kinds, items.starts, items.queued, strict=True)
        if kind == Tag.KERNEL and 0 < queued <= start
    )


def _lane(lane: Lane) -> LaneSummary:
    def count(kind: Tag) -> int:
        return sum(items.kinds.count(kind) for items in lane.streams.values())

    queueing = _queueing(lane)

    def percentile(share: float) -> int | None:
        return queueing[nearest_rank(len(queueing), share)] if queueing else None

    return LaneSummary(
        pid=lane.process.pid,
        program=lane.process.program,
        device=lane.device,
        partition=lane.name,
        sm_count=lane.sm_count,
        kernels=count(Tag.KERNEL),
        graphs=count(Tag.GRAPH),
        copies=count(Tag.COPY),
        fills=count(Tag.FILL),
        busy_ns=lane.busy.total,
        queueing_p50_ns=percentile(0.5),
        queueing_p99_ns=percentile(0.99),
    )


def _kernels(lanes: Sequence[Lane]) -> list[KernelTime]:
    counts: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for lane in lanes:
        for items in lane.streams.values():
            of_stream: Counter[int] = Counter()
            for kind, number, start, end in zip(items.kinds, items.name_numbers, items.starts, items.ends, strict=True):
                if kind == Tag.KERNEL:
                    of_stream[number] += end - start
            numbers = Counter(compress(items.name_numbers, map(Tag.KERNEL.__eq__, items.kinds)))
            for number, count in numbers.items():
                key = items.name_of(Tag.KERNEL, number), lane.name
                counts[key] += count
                times[key] += of_stream[number]
    return [KernelTime(name, lane, counts[name, lane], ns) for (name, lane), ns in times.most_common(MOST_ROWS)]


def _strays(lanes: Sequence[Lane], marks: Sequence[Mark]) -> list[Stray]:
    # Whichever is earlier: the clocks of work and of the program may be apart.
    opened: dict[int, int] = {}
    starts = [(lane.process.pid, lane.start) for lane in lanes if not lane.is_outside]
    for pid, time in [(mark.pid, mark.time) for mark in marks] + starts:
        opened[pid] = min(opened.get(pid, time), time)
    found: Counter[tuple[int, str, int]] = Counter()
    for lane in lanes:
        since = opened.get(lane.process.pid)
        if lane.is_outside and since is not None:
            for (_, stream), items in lane.streams.items():
                after = slice(bisect_left(items.starts, since), None)
                for (kind, number), count in Counter(
                    zip(items.kinds[after], items.name_numbers[after], strict=True)
                ).items():
                    if kind == Tag.KERNEL:
                        found[lane.process.pid, items.name_of(kind, number), stream] += count
    return [Stray(pid, name, stream, count) for (pid, name, stream), count in found.most_common()]


def _common(first: Spans, second: Spans, error: int) -> int:
    """The time in which two lists of spans overlap. Overlaps shorter than the error of the clocks do not count."""
    total, i, j = 0, 0, 0
    while i < len(first) and j < len(second):
        overlap = min(first.ends[i], second.ends[j]) - max(first.starts[i], second.starts[j])
        total += overlap if overlap > error else 0
        if first.ends[i] < second.ends[j]:
            i += 1
        else:
            j += 1
    return total


def _wanted(lane: Lane) -> Spans:
    """The times in which something is queued or runs."""
    return united(
        sorted(
            (queued if 0 < queued < start else start, end)
            for items in lane.streams.values()
            for queued, start, end in zip(items.queued, items.starts, items.ends, strict=True)
        )
    )


def _waited_for_nothing(process: Process, lanes: Sequence[Lane]) -> int:
    """The time in which the host waited and no work was recorded. Unknown, and 0, with graphs that have no times."""
    if any(Tag.GRAPH in items.kinds for lane in lanes for items in lane.streams.values()):
        return 0
    waits = united((start, end) for _, start, end in process.waits)
    busy = united(merge(*(lane.busy for lane in lanes)))
    return waits.total - _common(waits, busy, 0)


def _pairs(lanes: Sequence[Lane]) -> list[Pair]:
    parts = [lane for lane in lanes if not lane.is_outside]
    wanted = {id(lane): _wanted(lane) for lane in parts} if len(parts) > 1 else {}
    found = []
    for one, other in combinations(parts, 2):
        if one.device != other.device:
            continue
        same = one.process is other.process
        error = 0 if same else one.process.error_ns + other.process.error_ns
        first, second = (lane.name if same else f"{lane.name} of process {lane.process.pid}" for lane in (one, other))
        together = _common(one.busy, other.busy, error)
        could = _common(wanted[id(one)], wanted[id(other)], error)
        found.append(Pair(one.device, first, second, together, could))
    return found


def summary(processes: Sequence[Process], lanes: Sequence[Lane], marks: Sequence[Mark]) -> Summary:
    """Summarize a trace."""
    times = [(lane.start, lane.busy.ends[-1]) for lane in lanes]
    seconds = (max(end for _, end in times) - min(start for start, _ in times)) / 1e9 if times else 0.0
    return Summary(
        simulated=any(process.is_simulated for process in processes),
        seconds=seconds,
        processes=tuple(
            ProcessSummary(
                one.pid,
                one.program,
                one.has_ended,
                one.was_replaced,
                one.dropped,
                _waited_for_nothing(one, [lane for lane in lanes if lane.process is one]),
                one.error_ns,
            )
            for one in processes
        ),
        lanes=tuple(map(_lane, lanes)),
        kernels=tuple(_kernels(lanes)),
        strays=tuple(_strays(lanes, marks)),
        pairs=tuple(_pairs(lanes)),
    )
