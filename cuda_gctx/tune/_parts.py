"""The parts that are tuned: functions that enqueue work on a stream, and what a first look at each one shows.

A part is first called behind a gate, so that the device can begin only when the host is done. This shows three things:
the time between events around the call is the device's alone; without such time, nothing was enqueued on the stream;
and if the gate opened before the call returned, the function waits for the device. A wait for the whole device behind a
call shows whether the part has put work on another stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from cuda_gctx._core import clock
from cuda_gctx._core.extension import CUDAError, Device, Event, Stream, is_capturing
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.interop.torch import graph_of_calls
from cuda_gctx.measure.loop import QUEUED, TIMED, Batch, hold, seconds_between, timed_batch

__all__ = [
    "LAUNCHES",
    "Launch",
    "Part",
    "PartError",
    "PartFacts",
    "captured",
    "demand_choice",
    "entered",
    "examine",
    "libraries_loaded",
    "naming",
    "parts_of",
    "period_of",
    "ways_of",
    "why_no_hint",
]

LEAST_PARTS, MOST_PARTS = 2, 8
GATED_CALLS = 3
# So many empty batches show that a call enqueued nothing, of so many at the most.
EMPTY_BATCHES, MOST_EMPTY_BATCHES = 3, 9
# A kernel between two events adds at least this to the time between them; a launch takes longer.
LEAST_WORK_S = 0.5e-6
# A wait for an idle device takes the host less than this.
IDLE_WAIT_S = 20e-6
# The calls that show whether cheap and dear ones alternate, the longest period, and by how much they differ at least.
PERIOD_CALLS, LONGEST_PERIOD, ALTERNATES = 12, 4, 0.1
# Calls of parts that take longer are not repeated for that.
LONGEST_FOR_PERIOD_S = 0.02
LIBRARIES = ("torch", "cupy")


class PartError(RuntimeError):
    """A part raised an exception, which is the cause of this one, or works on another stream than the one it got."""

    __module__ = __name__.rpartition(".")[0]  # the public name


@dataclass(frozen=True)
class Part:
    """A named function that enqueues work on the stream that it is called with."""

    name: str
    function: Callable[[Stream], object]

    def enqueue(self, stream: Stream, plan: object) -> None:
        """Call the function; what it raises is raised again with the names of the part and the plan."""
        try:
            self.function(stream)
        except (Exception, SystemExit) as error:  # a part has no say in when the program ends
            # Only of the call itself: without a frame of the function.
            is_call = isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None
            hint = "; parts are called with one argument, as f(stream)" if is_call else ""
            raise PartError(f"{self.name} failed ({plan}): {type(error).__name__}: {error}{hint}") from error


# Each function is called, or captured once on each of its streams and replayed.
Launch: TypeAlias = Literal["calls", "graphs"]
LAUNCHES: tuple[Launch, ...] = ("calls", "graphs")


@dataclass(frozen=True)
class PartFacts:
    """What the first calls of a part show.

    device_s, host_s: what a call takes the device and the host. waits: whether it waits for the device. period: after
    so many calls, their costs repeat.
    """

    device_s: float
    host_s: float
    waits: bool
    period: int = 1


def demand_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError unless an argument is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def parts_of(work: Sequence[Any], named: dict[str, Any]) -> tuple[Part, ...]:
    """The parts: functions by position, with their own names, or by name. Refuses all that is wrong at once."""
    parts = [part_of(function, "") for function in work]
    problems = []
    if not LEAST_PARTS <= len(parts) + len(named) <= MOST_PARTS:
        problems.append(f"overlap takes from {LEAST_PARTS} to {MOST_PARTS} parts, not {len(parts) + len(named)}")
    if not all(part.name for part in parts):
        problems.append("a function without a name, such as a lambda, needs one: overlap(control=lambda stream: ...)")
    for name, function in named.items():
        parts.append(Part(name, part_of(function, name).function))
        if not name.strip() or not name.isprintable():
            problems.append(f"{name!r} is not readable in a table: choose another name")
    names = [part.name for part in parts if part.name.isidentifier()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        problems.append(f"two parts are named {twice}: rename one of them, like overlap(other_{twice}=...)")
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(parts)


def part_of(function: Any, name: str) -> Part:
    """A single part; `name` is used if the function has none."""
    if not callable(function):
        raise TypeError(f"{name or 'work'} must be a function that takes a stream, not {type(function).__name__}")
    own = getattr(function, "__name__", "")
    return Part(own if own.isidentifier() else name, function)


def ways_of(also: object, names: Sequence[str]) -> tuple[Part, ...]:
    """The further ways to do the work of all parts."""
    if also is None:
        return ()
    if not isinstance(also, Mapping):
        raise TypeError(f"also must be a mapping of names to functions, not {type(also).__name__}")
    ways = []
    for name, function in also.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ValueError(f"{name!r} is not readable in a table: choose another name for this way")
        if name in names:
            raise ValueError(f"{name!r} in also has the name of a part: choose another name")
        if not callable(function):
            raise TypeError(f"also[{name!r}] must be a function that takes a stream, not {type(function).__name__}")
        ways.append(Part(name, function))
    return tuple(ways)


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Add what was being measured to an error of the device or the driver."""
    try:
        yield
    except CUDAError as error:
        error.args = (f"{error} ({what})",)
        raise


def _library(name: str) -> Any:
    """The library of this name; None if it is not loaded, or has no GPU to work on (a torch for CPUs has none)."""
    library: Any = sys.modules.get(name)
    return library if library is not None and library.cuda.is_available() else None


def libraries_loaded() -> bool:
    """Whether a library is loaded that takes an SM count hint."""
    return any(map(_library, LIBRARIES))


@contextmanager
def _library_sms(stream: Stream) -> Iterator[None]:
    """Set the SM count hint of the loaded libraries to that of the stream, within a block."""
    from cuda_gctx.interop.library_sms import cupy_block, torch_block

    with ExitStack() as blocks:
        for name, block in zip(LIBRARIES, (torch_block, cupy_block), strict=True):
            library = _library(name)
            if library is not None:
                blocks.enter_context(block(library, stream, "on"))
        yield


@contextmanager
def _with_library_sms(stream: Stream) -> Iterator[None]:
    with current_stream_of_frameworks(stream), _library_sms(stream):
        yield


def entered(stream: Stream, library_sms: bool = False) -> AbstractContextManager[None]:
    """A block in which libraries work on the stream, with its SM count as their hint if `library_sms` is set."""
    return _with_library_sms(stream) if library_sms else current_stream_of_frameworks(stream)


def why_no_hint(stream: Stream) -> str | None:
    """Why the SM count hint cannot be set; None if it can."""
    try:
        with entered(stream, True):
            return None
    except Exception as error:  # of a library, which may be of any version and kind
        return f"{type(error).__name__}: {error}"


def captured(part: Part, stream: Stream, library_sms: bool, plan: object, closing: ExitStack) -> Part:
    """The part as a graph that is captured on the stream, after a first call, and launched there.

    closing: destroys the graph.
    """
    call = partial(part.enqueue, stream, plan)
    try:
        with entered(stream, library_sms):
            if _library("torch") is not None:
                graph = graph_of_calls(stream, call)
                closing.callback(graph.close)
                return Part(part.name, lambda _: graph.replay())
            with stream.capture() as capture:
                call()
            with capture.graph as once:
                executable = closing.enter_context(once.instantiate())
            return Part(part.name, executable.launch)
    except (CUDAError, RuntimeError) as error:
        raise PartError(
            f'{part.name} cannot be captured as a graph ({plan}): {error}; launch="graphs" needs functions that only '
            "enqueue work"
        ) from error


def _is_nothing(seconds: float, stream: Stream, gate_s: float) -> bool:
    """Whether work on a stream took no longer than no work.

    What disturbs a batch makes it longer, so the shortest of several empty ones counts. Behind a gate that has opened,
    a batch takes as long as the host, and is no evidence.
    """
    shown = 0
    for _ in range(MOST_EMPTY_BATCHES):
        empty = timed_batch([stream], tuple, gate_s)
        if not empty.gate_opened:
            if seconds >= empty.seconds[0] + LEAST_WORK_S:
                return False
            shown += 1
        if shown == EMPTY_BATCHES:
            return True
    return False


def _wait_s(device: Device, stream: Stream) -> float:
    """How long a wait for the whole device takes, by its own timer. stream: an idle one."""
    with stream.record(options=TIMED) as before:
        before.sync()
        device.sync()
        with stream.record(options=TIMED) as after:
            after.sync()
            return seconds_between(before, after)


def _elsewhere(device: Device, stream: Stream, call: Callable[[], object]) -> bool:
    """Whether a call leaves the device busy when its stream is done."""
    call()
    stream.sync()
    waited_s = _wait_s(device, stream)
    return waited_s > IDLE_WAIT_S + 3 * _wait_s(device, stream)


def period_of(seconds: Sequence[float]) -> int:
    """After how many calls their times repeat; 1 if they are alike, or follow no short period."""

    def spread(period: int) -> float:
        phases = [seconds[start::period] for start in range(period)]
        return max((max(phase) - min(phase)) / min(phase) for phase in phases)

    alike = ALTERNATES * 0.3
    if spread(1) < ALTERNATES:
        return 1
    return next((period for period in range(2, LONGEST_PERIOD + 1) if spread(period) < alike), 1)


def _calls_one_by_one(stream: Stream, call: Callable[[], object], host_s: float) -> list[float]:
    """The device times of some calls in succession."""
    with ExitStack() as closing:
        closing.enter_context(hold([stream], QUEUED.gate_s(PERIOD_CALLS * host_s)))
        marks = [closing.enter_context(stream.record(options=TIMED))]
        for _ in range(PERIOD_CALLS):
            call()
            marks.append(closing.enter_context(stream.record(options=TIMED)))
        marks[-1].sync()
        return [seconds_between(one, other) for one, other in pairwise(marks)]


def examine(part: Part, stream: Stream, demand_time: Callable[[], None]) -> PartFacts:
    """Call a part for the first times. ValueError if it enqueues nothing on its stream, PartError if on another one.

    demand_time: raises if there is no time for another call.
    """

    def call() -> Sequence[Event]:
        part.enqueue(stream, "alone")
        return ()

    with entered(stream):
        # The first call loads kernels and lets allocators grow; both may wait for the device.
        call()
        if is_capturing(stream):
            raise RuntimeError(f"{part.name} leaves its stream capturing a graph: end the capture inside the function")
        stream.sync()
        stream.device.sync()
        demand_time()
        # Twice, because something else may keep the device busy once.
        elsewhere = all(_elsewhere(stream.device, stream, call) for _ in range(2))
        before = clock.now()
        call()
        called_s = clock.now() - before
        stream.sync()
        gate_s = QUEUED.gate_s(called_s)
        calls: list[Batch] = []
        for _ in range(GATED_CALLS):
            demand_time()
            calls.append(timed_batch([stream], call, gate_s))
            if not calls[-1].gate_opened:
                break
            gate_s = min(2 * gate_s, QUEUED.most_s)
        waits = all(batch.gate_opened for batch in calls)
        last = calls[-1]
        if not waits and _is_nothing(last.seconds[0], stream, gate_s):
            raise ValueError(
                f"part {part.name!r} enqueued no work on the stream that it received: launch its work on that stream "
                "or, with torch and CuPy, on their current stream"
            )
        if elsewhere:
            raise PartError(
                f"{part.name} puts work on another stream, where no plan can place it: the device is busy after the "
                "stream of the part is done; launch all work on the stream that the part receives"
            )
        host_s = called_s if waits else min(called_s, last.host_s)
        period = 1
        if not waits and last.seconds[0] <= LONGEST_FOR_PERIOD_S:
            demand_time()
            period = period_of(_calls_one_by_one(stream, call, host_s))
    return PartFacts(last.seconds[0], host_s, waits, period)
