"""Waits of the primary context for graphs on streams of a green one, as recorded with 13.0 and documented later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from cuda_gctx import Device, Event, EventOptions, Graph, Stream
from cuda_gctx.tune import spin
from cuda_software_driver import session

from ..raw import Raw

pytestmark = pytest.mark.sim_only

LONG_NS = 10_000_000
SILENT, TIMED = EventOptions(), EventOptions(timing_enabled=True)
BLOCKING = EventOptions(blocking_sync=True)


class Bench:
    """A graph of a long kernel, which is launched on a stream of a green context as other libraries launch it."""

    def __init__(self, dev: Device, stream: Stream) -> None:
        self.raw, self.dev, self.stream = Raw(), dev, stream
        spin(stream, 1, 1_000)
        stream.sync()
        with stream.capture() as capture:
            spin(stream, 1, LONG_NS)
        self.graph: Graph = capture.graph
        self.executable = self.graph.instantiate()

    def launch(self, stream: Stream) -> None:
        self.raw.call("cuGraphLaunch", ctypes.c_void_p(self.executable.handle), ctypes.c_void_p(stream.handle))

    def is_done_after(self, *calls: Callable[[], object], on: Stream | None = None) -> bool:
        """Whether the stream is done when a graph was launched, the calls made and the primary context waited for."""
        stream = on or self.stream
        self.launch(stream)
        for call in calls:
            call()
        with self.dev.context.current():
            self.raw.call("cuCtxSynchronize")
        done = stream.is_done
        stream.sync()
        return done


def record(stream: Stream, options: EventOptions) -> Event:
    return stream.record(options=options)


@pytest.mark.parametrize(("driver", "seen"), [("12.8", False), ("13.0", False), ("13.1", True)])
def test_the_primary_context_misses_a_graph_that_is_the_last_work_of_a_green_stream(driver: str, seen: bool) -> None:
    with session("h200", driver=driver), Device(0).partition(16) as parts:
        bench = Bench(parts.device, parts[0].stream)
        stream = parts[0].stream
        assert bench.is_done_after() is seen
        for silent in (SILENT, TIMED, BLOCKING):
            told = silent is not SILENT
            assert bench.is_done_after(lambda silent=silent: record(stream, silent)) is (seen or told)
        assert bench.is_done_after(lambda: spin(stream, 1, 1_000))
        with parts.device.create_stream() as ordinary:
            assert bench.is_done_after(on=ordinary)
        # Events of the primary context miss graphs, and not what stands behind them.
        for told in (SILENT, BLOCKING):
            bench.launch(stream)
            with record(stream, told), parts.device.context.record_event() as event:
                event.sync()
                assert stream.is_done is (seen or told is BLOCKING)
            stream.sync()
        # Of two graphs, the first one is waited for.
        bench.launch(stream)
        with record(stream, SILENT) as first:
            bench.is_done_after()
            assert first.is_done
        bench.executable.close()
        bench.graph.close()
