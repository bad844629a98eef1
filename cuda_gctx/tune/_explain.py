"""Why two pieces of work overlap or do not: measured by stamps in their streams, explained in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuda_gctx._core.arguments import as_int
from cuda_gctx._core.driver import system
from cuda_gctx._core.probe import run_probe, spin
from cuda_gctx._core.stream import Stream, is_capturing
from cuda_gctx.measure.loop import QUEUED
from cuda_gctx.measure.statistics import median
from cuda_gctx.partitions import Partition
from cuda_gctx.partitions.verification import IsolationError, verify
from cuda_gctx.tune._causes import STAND_IN_NS, causes_of
from cuda_gctx.tune._explain_report import ExplainReport, Runs, Window, Work, WorkReport

__all__ = ["explain"]

# Work whose window is longer than this many times its time alone waited, or was slowed.
STRETCHED = 1.2
SPIN_NS = 200_000
TIMEOUT_NS = 10_000_000_000

Where = Partition | Stream | Any


def explain(first: Where | tuple[Where, Work], second: Where | tuple[Where, Work], *, rounds: int = 5) -> ExplainReport:
    """Measure two pieces of work, each ``(where, work)``, alone and together, and report whether they overlap and why.

    first, second: the two; without work, only the place.
    where: a Partition, a Stream, or the stream of another library.
    work: a function that is called with the Stream, enqueues work on it, and returns. During the call the stream is
    the current stream of torch and CuPy, if they are imported. It is called about ``5 * rounds`` times. Nothing else
    should be queued on the streams meanwhile.

    rounds: how often each is measured, 1 to 1000.

    A place without work gets a small kernel, which shows whether two streams of a running program can overlap. First,
    explain waits for what is queued on them. Raises ValueError for streams of two devices, and RuntimeError during a
    capture or if work raises.
    """
    rounds = as_int("rounds", rounds, 1, 1000)
    pieces = [_piece(first), _piece(second)]
    places, works = [place for place, _ in pieces], [work for _, work in pieces]
    streams = [_stream_of(place) for place in places]
    if streams[0].device != streams[1].device:
        raise ValueError("the streams are on two devices, whose timers cannot be compared")
    for stream in streams:
        if is_capturing(stream):
            raise RuntimeError(f"{stream!r} is capturing a graph: call explain before or after the capture")
    labels = [_label(*pair) for pair in zip(places, streams, strict=True)]
    runs = Runs(streams, works)
    report, contexts_cause = _measured(runs, _names(works), labels, rounds)
    return replace(report, causes=causes_of(report, runs, [work is _stands_in for work in works], contexts_cause))


def _measured(runs: Runs, names: Sequence[str], labels: Sequence[str], rounds: int) -> tuple[ExplainReport, str | None]:
    """The report without its causes, and why contexts with disjoint SMs did not run concurrently."""
    first_call_ns = []
    for which in (0, 1):
        runs.call(which)
        first_call_ns.append(runs.call_ns[which])
        runs.sync()
    sms, contexts_cause = _sms(runs.streams)
    streams_overlap = _run_at_once(runs.streams)

    calls: list[list[int]] = [[], []]
    called: list[list[int]] = [[], []]
    alone: list[list[int]] = [[], []]
    windows: list[Window] = []
    queued: list[Window] = []
    reversed_: list[Window] = []
    for _ in range(rounds):
        for which in (0, 1):
            begin, end = runs.run([which])[which]
            called[which].append(end - begin)
            calls[which].append(runs.call_ns[which])
        windows.append(_window(runs.run([0, 1]), False))
        gate_s = QUEUED.gate_s((max(calls[0]) + max(calls[1])) / 1e9)
        for which in (0, 1):
            begin, end = runs.run([which], gate_s=gate_s)[which]
            alone[which].append(end - begin)
        queued.append(_window(runs.run([0, 1], gate_s=gate_s), True))
        reversed_.append(_window(runs.run([1, 0], gate_s=gate_s), True))
    alone_ns, called_ns = list(map(median, alone)), list(map(median, called))
    together_ns = median([window.first[1] for window in queued]), median([window.second[1] for window in queued])
    first, second = (
        WorkReport(
            name=names[which],
            context=labels[which],
            sm_ids=sms[which],
            alone_ns=alone_ns[which],
            called_ns=called_ns[which],
            call_ns=median(calls[which]),
            first_call_ns=first_call_ns[which],
            together_ns=together_ns[which],
        )
        for which in (0, 1)
    )
    report = ExplainReport(
        device=runs.streams[0].device.name,
        driver=".".join(map(str, system.driver_version)),
        first=first,
        second=second,
        windows=(*windows, *queued),
        overlap=_overlap(windows, called_ns),
        overlap_queued=_overlap(queued, alone_ns),
        overlap_reversed=_overlap(reversed_, alone_ns),
        in_sequence_ns=sum(called_ns),
        together_ns=median([window.length for window in windows]),
        streams_overlap=streams_overlap,
        shared_sms=tuple(sorted(set(first.sm_ids) & set(second.sm_ids))),
        causes=(),
    )
    return report, contexts_cause


def _window(times: dict[int, tuple[int, int]], queued: bool) -> Window:
    origin = min(begin for begin, _ in times.values())
    (a, b), (c, d) = times[0], times[1]
    return Window((a - origin, b - origin), (c - origin, d - origin), queued)


def _active(window: tuple[int, int], alone: float) -> tuple[float, float]:
    """When work can have run: its first stamp may be much earlier if it then waits for an event or for room."""
    begin, end = window
    return (begin if end - begin <= STRETCHED * alone else end - alone), end


def _overlap(windows: Sequence[Window], alone: Sequence[float]) -> float:
    """The share of the shorter work that runs while the other does."""
    shares = []
    for window in windows:
        (a, b), (c, d) = _active(window.first, alone[0]), _active(window.second, alone[1])
        shares.append((min(b, d) - max(a, c)) / max(min(b - a, d - c), 1))
    return min(max(median(shares), 0.0), 1.0)


def _stream_of(where: Where) -> Stream:
    if isinstance(where, Partition):
        return where.stream
    return where if isinstance(where, Stream) else Stream(where)


def _label(where: Where, stream: Stream) -> str:
    """The name of the place in which the work runs."""
    context = stream.context
    kind = f"green context {context.id}" if context.is_green else "primary context"
    return where.name if isinstance(where, Partition) else context.name or kind


def _names(works: Sequence[Work]) -> list[str]:
    names = ["<lambda>" if work is _stands_in else getattr(work, "__name__", "<lambda>") for work in works]
    names = [order if name == "<lambda>" else name for name, order in zip(names, ("first", "second"), strict=True)]
    return names if names[0] != names[1] else [f"{names[0]} (1)", f"{names[1]} (2)"]


def _sms(streams: Sequence[Stream]) -> tuple[list[tuple[int, ...]], str | None]:
    """The SMs of the context of each stream, and why contexts with disjoint SMs did not run concurrently."""
    contexts = [stream.context for stream in streams]
    named = {str(i): context for i, context in enumerate(contexts) if contexts.index(context) == i}
    try:
        report = verify(named)
    except IsolationError as error:
        report = error.report
    except RuntimeError:
        return [(), ()], None  # other work occupies the SMs
    seen = {proof.name: proof.sm_ids for proof in report.contexts}
    return [seen[str(contexts.index(context))] for context in contexts], report.cause


def _run_at_once(streams: Sequence[Stream]) -> bool:
    """Whether two small kernels overlap on these streams."""
    (first,), (second,) = run_probe(list(streams), [1, 1], SPIN_NS, TIMEOUT_NS)
    return first[1] < second[2] and second[1] < first[2]


def _stands_in(stream: Stream) -> None:
    spin(stream, 1, STAND_IN_NS)


def _piece(given: Where | tuple[Where, Work]) -> tuple[Where, Work]:
    if not isinstance(given, tuple):
        return given, _stands_in
    if len(given) != 2 or not callable(given[1]):
        raise TypeError(
            "explain takes streams or partitions, or pairs (stream, work), where work is called with the stream"
        )
    return given
