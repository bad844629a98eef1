"""Waits of the primary context for graphs on streams of a green one, as recorded with 13.0 and documented later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from cuda_software_driver import session

from .objects import BLOCKING_SYNC, DISABLE_TIMING, Device, Event, Stream

LONG_NS = 10_000_000
SILENT, TIMED, BLOCKING = DISABLE_TIMING, 0, DISABLE_TIMING | BLOCKING_SYNC
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry long() { ret; }
.visible .entry quick() { ret; }
\0"""


class Bench:
    """A graph of a long kernel, which is launched on a stream of a green context."""

    def __init__(self, dev: Device, stream: Stream) -> None:
        self.raw, self.dev, self.stream = dev.raw, dev, stream
        with dev.current():
            self._library = self.raw.handle("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        self.run("quick", stream)
        stream.sync()
        self.raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), 0)
        self.run("long", stream)
        graph = ctypes.c_void_p()
        self.raw.call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(graph))
        self._graph = graph
        with dev.current():
            self._executable = self.raw.handle("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))

    def close(self) -> None:
        self.raw.call("cuGraphExecDestroy", ctypes.c_void_p(self._executable))
        self.raw.call("cuGraphDestroy", self._graph)
        self.raw.call("cuLibraryUnload", ctypes.c_void_p(self._library))

    def run(self, name: str, stream: Stream) -> None:
        kernel = self.raw.handle("cuLibraryGetKernel", ctypes.c_void_p(self._library), name.encode())
        shape = (1, 1, 1, 32, 1, 1, 0)
        with stream.context.current():
            self.raw.call("cuLaunchKernel", ctypes.c_void_p(kernel), *shape, ctypes.c_void_p(stream.handle), None, None)

    def launch(self, stream: Stream) -> None:
        self.raw.call("cuGraphLaunch", ctypes.c_void_p(self._executable), ctypes.c_void_p(stream.handle))

    def is_done_after(self, *calls: Callable[[], object], on: Stream | None = None) -> bool:
        """Whether the stream is done when a graph was launched, the calls made and the primary context waited for."""
        stream = on or self.stream
        self.launch(stream)
        for call in calls:
            call()
        self.dev.sync()
        done = stream.is_done
        stream.sync()
        return done


def event_of_context(dev: Device) -> Event:
    """An event of all work of the primary context."""
    event = dev.create_event()
    dev.raw.call("cuCtxRecordEvent", ctypes.c_void_p(dev.handle), ctypes.c_void_p(event.handle))
    return event


@pytest.mark.parametrize(("driver", "seen"), [("12.8", False), ("13.0", False), ("13.1", True)])
def test_the_primary_context_misses_a_graph_that_is_the_last_work_of_a_green_stream(driver: str, seen: bool) -> None:
    with session("h200", driver=driver) as machine:
        machine.kernel("long", block_ns=LONG_NS)
        machine.kernel("quick", block_ns=1_000)
        with Device() as dev, dev.green(16) as green, green.create_stream() as stream:
            bench = Bench(dev, stream)
            events: list[Event] = []
            assert bench.is_done_after() is seen
            for silent in (SILENT, TIMED, BLOCKING):
                told = silent is not SILENT
                done = bench.is_done_after(lambda silent=silent: events.append(stream.record(silent)))
                assert done is (seen or told)
            assert bench.is_done_after(lambda: bench.run("quick", stream))
            with dev.create_stream() as ordinary:
                assert bench.is_done_after(on=ordinary)
            # Events of the primary context miss graphs, and not the work behind them.
            for told in (SILENT, BLOCKING):
                bench.launch(stream)
                with stream.record(told), event_of_context(dev) as event:
                    event.sync()
                    assert stream.is_done is (seen or told is BLOCKING)
                stream.sync()
            # Of two graphs, the wait includes the first.
            bench.launch(stream)
            with stream.record(SILENT) as first:
                bench.is_done_after()
                assert first.is_done
            for event in events:
                event.close()
            bench.close()
