"""The parts that are tuned: functions that enqueue work on a stream, and what is found out about each by itself.

A part is first called behind a gate: its stream waits for a kernel that spins on another stream. So the device can only
begin when the host is done, and three things show. The time between events around the call is the device's alone; if
there is none, nothing was enqueued on the stream. And if the host came back only when the gate was open, the function
waits for the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from cuda_gctx._core.errors import CUDAError
from cuda_gctx._core.event import Event, EventOptions
from cuda_gctx._core.lease import is_capturing
from cuda_gctx._core.probe import spin
from cuda_gctx._core.stream import Stream
from cuda_gctx.interop._frameworks import current_stream_of_frameworks

__all__ = [
    "TIMED",
    "Part",
    "PartFacts",
    "PartFailed",
    "entered",
    "examine",
    "libraries_loaded",
    "naming",
    "parts_of",
    "seconds_between",
    "why_not",
]

LEAST_PARTS, MOST_PARTS = 2, 8
TIMED = EventOptions(timing_enabled=True)
# How long a gate stays shut: longer than the call takes the host, and than a person's machine hiccups.
LEAST_GATE_S, MOST_GATE_S = 0.002, 0.9
GATE_TO_CALL = 5
GATED_CALLS = 3
# Two events with a kernel between them are further apart than two without, by at least this; a launch takes longer.
LEAST_WORK_S = 0.5e-6
LIBRARIES = ("torch", "cupy")


class PartFailed(RuntimeError):
    """What a part raised is its cause."""


@dataclass(frozen=True)
class Part:
    """A function that enqueues work on the stream it is given, with its name."""

    name: str
    function: Callable[[Stream], object]

    def enqueue(self, stream: Stream, plan: object) -> None:
        """Calls the function. What it raises comes out with the name of the part and the plan."""
        try:
            self.function(stream)
        except Exception as error:
            raise PartFailed(f"{self.name} failed ({plan}): {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class PartFacts:
    """A part by itself: seconds of the device and of the host for a call, and whether it waits for the device."""

    device_s: float
    host_s: float
    waits: bool


def parts_of(work: Sequence[Any], named: dict[str, Any]) -> tuple[Part, ...]:
    """The parts that were given, by position with the name of the function, or by name."""
    parts = []
    for function in work:
        name = getattr(function, "__name__", None)
        if not callable(function):
            raise TypeError(f"work is a function that takes a stream, not {type(function).__name__}")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{function!r} has no name of its own: give it by name, like overlap(decode=...)")
        parts.append(Part(name, function))
    for name, function in named.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function that takes a stream, not {type(function).__name__}")
        if not name.strip() or not name.isprintable():
            raise ValueError(f"{name!r} cannot be read in a table: give that part another name")
        parts.append(Part(name, function))
    names = [part.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two parts are named {twice}: give one of them another name, like overlap(other_{twice}=...)")
    if not LEAST_PARTS <= len(parts) <= MOST_PARTS:
        raise ValueError(f"overlap takes from {LEAST_PARTS} to {MOST_PARTS} parts, not {len(parts)}")
    return tuple(parts)


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Says what was under way, where the device or the driver reports an error."""
    try:
        yield
    except CUDAError as error:
        error.args = (f"{error} ({what})",)
        raise


# ---- libraries


def libraries_loaded() -> bool:
    """Whether a library is there that can be told an SM count."""
    return any(sys.modules.get(name) is not None for name in LIBRARIES)


@contextmanager
def _library_sms(stream: Stream, on: bool) -> Iterator[None]:
    """Tells the libraries that are loaded the SM count of the stream, for the length of a block."""
    with ExitStack() as blocks:
        if on:
            from cuda_gctx.interop.library_sms import cupy_block, torch_block

            for name, block in zip(LIBRARIES, (torch_block, cupy_block), strict=True):
                library = sys.modules.get(name)
                if library is not None and library.cuda.is_available():
                    blocks.enter_context(block(library, stream, "on"))
        yield


@contextmanager
def entered(stream: Stream, library_sms: bool = False) -> Iterator[None]:
    """A block in which libraries work on the stream, and go by its SM count if they are told."""
    with current_stream_of_frameworks(stream), _library_sms(stream, True) if library_sms else nullcontext():
        yield


def why_not(stream: Stream) -> str | None:
    """Why the libraries cannot be told an SM count; None if they can."""
    try:
        with entered(stream, True):
            return None
    except Exception as error:  # of a library, which may be of any version and kind
        return f"{type(error).__name__}: {error}"


# ---- a part by itself


def seconds_between(start: Event, end: Event) -> float:
    """The seconds from one event to another by the clock of the device, on which both are done."""
    try:
        return (end - start) / 1000
    except CUDAError as error:
        if error.name != "CUDA_ERROR_INVALID_HANDLE":
            raise
        raise RuntimeError(
            f"the driver does not tell the time between events of two contexts ({error}), so that parts on different "
            f"streams cannot be timed here"
        ) from error


@dataclass
class _Gated:
    device_s: float
    host_s: float
    waited: bool


def _gated(part: Part | None, stream: Stream, gate: Stream, gate_s: float) -> _Gated:
    """One call (of nothing, for None) behind a gate."""
    with ExitStack() as closing:
        spin(gate, 1, round(gate_s * 1e9))
        opened = closing.enter_context(gate.record())
        stream.wait(opened)
        start = closing.enter_context(stream.record(options=TIMED))
        before = time.perf_counter()
        if part is not None:
            part.enqueue(stream, "alone")
        host_s = time.perf_counter() - before
        waited = opened.is_done
        end = closing.enter_context(stream.record(options=TIMED))
        end.sync()
        return _Gated(seconds_between(start, end), host_s, waited)


def examine(part: Part, stream: Stream, gate: Stream, demand_time: Callable[[], None]) -> PartFacts:
    """Calls a part for the first times. ValueError if it enqueues nothing on its stream.

    demand_time: raises if there is no time for another call.
    """
    with entered(stream):
        # The first call loads kernels and lets allocators grow; both may wait for the device.
        part.enqueue(stream, "alone")
        if is_capturing(stream):
            raise RuntimeError(f"{part.name} leaves its stream capturing a graph: end the capture in the function")
        stream.sync()
        demand_time()
        before = time.perf_counter()
        part.enqueue(stream, "alone")
        called_s = time.perf_counter() - before
        stream.sync()
        gate_s = min(max(LEAST_GATE_S, GATE_TO_CALL * called_s), MOST_GATE_S)
        nothing = [_gated(None, stream, gate, LEAST_GATE_S / 10) for _ in range(GATED_CALLS)]
        calls = []
        for _ in range(GATED_CALLS):
            demand_time()
            calls.append(_gated(part, stream, gate, gate_s))
            if not calls[-1].waited:
                break
            gate_s = min(2 * gate_s, MOST_GATE_S)
    waits = all(call.waited for call in calls)
    last = calls[-1]
    if not waits and last.device_s < min(call.device_s for call in nothing) + LEAST_WORK_S:
        raise ValueError(
            f"{part.name} enqueued nothing on the stream it was given: it has to launch its work there, or, with torch "
            f"and CuPy, on their current stream"
        )
    return PartFacts(last.device_s, called_s if waits else last.host_s, waits)
