"""Which waits cover a graph: it is launched on a stream, something waits, and the stream is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, Code, Gpu, Green, capture
from .notes import Note

LONG_CYCLES = 20_000_000  # about 10 ms: a wait that covers nothing returns long before that
EVENT_BLOCKING_SYNC = 1


def record_waits(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    green = Green(gpu, gpu.groups(16)[:1])
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    streams = {"green": green.stream, "primary": primary_stream}
    flags = {"timing": 0, "no timing": EVENT_DISABLE_TIMING, "blocking": EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC}
    events = {name: driver.must("cuEventCreate", value) for name, value in flags.items()}

    def captured(stream: Any, *after: Callable[[], Any]) -> Any:
        driver.must("cuStreamBeginCapture", stream, capture(gpu, "relaxed"))
        gpu.launch(stream, 1, LONG_CYCLES)
        for call in after:
            call()
        return driver.must("cuGraphInstantiate", driver.must("cuStreamEndCapture", stream), 0)

    graphs = {whose: captured(stream) for whose, stream in streams.items()}
    fill = captured(green.stream, lambda: driver.must("cuMemsetD32Async", gpu.out, 0, 1, green.stream))
    works: dict[str, Callable[[Any], Any]] = {
        "a kernel": lambda stream: gpu.launch(stream, 1, LONG_CYCLES),
        "a graph of the green context": lambda stream: driver.must("cuGraphLaunch", graphs["green"], stream),
        "a graph of the primary context": lambda stream: driver.must("cuGraphLaunch", graphs["primary"], stream),
        "a graph that ends with a fill": lambda stream: driver.must("cuGraphLaunch", fill, stream),
    }

    def wait_in(ctx: Any) -> Code:
        driver.must("cuCtxPushCurrent", ctx)
        code = driver.code("cuCtxSynchronize")
        driver.must("cuCtxPopCurrent")
        return code

    def wait_for_event(record: str, *target: Any) -> Code:
        driver.must(record, *target)
        return driver.code("cuEventSynchronize", events["no timing"])

    event = events["no timing"]
    waits: dict[str, Callable[[], Any]] = {
        "cuCtxSynchronize of the primary context": lambda: wait_in(gpu.primary),
        "cuCtxSynchronize of the green context": lambda: wait_in(green.ctx),
        "cuCtxRecordEvent of the primary context": lambda: wait_for_event("cuCtxRecordEvent", gpu.primary, event),
        "cuCtxRecordEvent of the green context": lambda: wait_for_event("cuCtxRecordEvent", green.ctx, event),
        "cuGreenCtxRecordEvent": lambda: wait_for_event("cuGreenCtxRecordEvent", green.handle, event),
    }

    def after(work: Callable[[Any], Any], stream: Any, *calls: Callable[[], Any]) -> Any:
        """Whether the stream is done when the calls have returned."""
        work(stream)
        for call in calls:
            call()
        code = driver.code("cuStreamQuery", stream)
        driver.must("cuStreamSynchronize", stream)
        return {0: "done", 600: "not done"}.get(code, code)

    def first_of_two(wait: Callable[[], Any]) -> Any:
        begin = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
        driver.must("cuGraphLaunch", graphs["green"], green.stream)
        driver.must("cuEventRecord", begin, green.stream)
        driver.must("cuGraphLaunch", graphs["green"], green.stream)
        wait()
        code = driver.code("cuEventQuery", begin)
        driver.must("cuStreamSynchronize", green.stream)
        return {0: "done", 600: "not done"}.get(code, code)

    for wait, call in waits.items():
        for whose, stream in streams.items():
            for name, work in works.items():
                note(f"{name} on a {whose} stream: {wait}", lambda w=work, s=stream, c=call: after(w, s, c))
    # What is behind the graph when the primary context is waited for.
    graph = works["a graph of the green context"]
    behind: dict[str, Callable[[], Any]] = {
        "a kernel": lambda: gpu.launch(green.stream, 1, 1),
        "a fill": lambda: driver.must("cuMemsetD32Async", gpu.out, 0, 1, green.stream),
        **{
            f"an event, {name}": lambda e=value: driver.must("cuEventRecord", e, green.stream)
            for name, value in events.items()
        },
    }
    for wait in ("cuCtxSynchronize of the primary context", "cuCtxRecordEvent of the primary context"):
        for name, call in behind.items():
            note(f"behind a graph: {name}: {wait}", lambda c=call, w=waits[wait]: after(graph, green.stream, c, w))
        note(f"the first of two graphs: {wait}", lambda w=waits[wait]: first_of_two(w))
    return note.answers
