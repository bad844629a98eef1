"""Events and captures across contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import (
    CAPTURE_MODES,
    CREATE_DEFAULT_STREAM,
    EVENT_DISABLE_TIMING,
    SPIN_CYCLES,
    STREAM_NON_BLOCKING,
    Gpu,
    Green,
    capture,
    create_and_drop,
    first_group,
    queried,
)
from .notes import Note


def record_events(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    green, second = first_group(gpu), Green(gpu, gpu.groups(8)[1:2])
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    note("cuGreenCtxRecordEvent", lambda: driver.code("cuGreenCtxRecordEvent", green.handle, event))
    note("cuGreenCtxWaitEvent of another", lambda: driver.code("cuGreenCtxWaitEvent", second.handle, event))
    note("cuGreenCtxWaitEvent of the same", lambda: driver.code("cuGreenCtxWaitEvent", green.handle, event))
    note("cuCtxRecordEvent green", lambda: driver.code("cuCtxRecordEvent", green.ctx, event))
    note("cuCtxWaitEvent green", lambda: driver.code("cuCtxWaitEvent", second.ctx, event))
    note("cuCtxRecordEvent primary", lambda: driver.code("cuCtxRecordEvent", gpu.primary, event))
    note("cuCtxWaitEvent primary", lambda: driver.code("cuCtxWaitEvent", gpu.primary, event))
    note("cuEventSynchronize", lambda: driver.code("cuEventSynchronize", event))
    note("cuEventRecord on a green stream", lambda: driver.code("cuEventRecord", event, green.stream))
    note("cuStreamWaitEvent on a primary stream", lambda: driver.code("cuStreamWaitEvent", 0, event, 0))

    def timed() -> Any:
        begin, end = (driver.must("cuEventCreate", 0) for _ in range(2))
        answer: dict[str, Any] = {
            "record begin": driver.code("cuGreenCtxRecordEvent", green.handle, begin),
            "launch": gpu.launch(green.stream, 8, SPIN_CYCLES),
            "record end": driver.code("cuGreenCtxRecordEvent", green.handle, end),
            "cuEventSynchronize": driver.code("cuEventSynchronize", end),
        }
        code, elapsed = driver.call("cuEventElapsedTime", begin, end)
        answer["cuEventElapsedTime"] = code
        answer["elapsed is more than 0.05 ms"] = code == 0 and elapsed > 0.05
        return answer

    note("time between events of a whole context", timed)

    during: dict[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "cuGreenCtxRecordEvent": lambda: driver.code("cuGreenCtxRecordEvent", green.handle, event),
        "cuGreenCtxWaitEvent": lambda: driver.code("cuGreenCtxWaitEvent", green.handle, event),
        "cuCtxRecordEvent green": lambda: driver.code("cuCtxRecordEvent", green.ctx, event),
        "cuCtxWaitEvent green": lambda: driver.code("cuCtxWaitEvent", green.ctx, event),
        "cuCtxRecordEvent primary": lambda: driver.code("cuCtxRecordEvent", gpu.primary, event),
        "cuCtxWaitEvent primary": lambda: driver.code("cuCtxWaitEvent", gpu.primary, event),
        "cuGreenCtxRecordEvent of another": lambda: driver.code("cuGreenCtxRecordEvent", second.handle, event),
        "cuGreenCtxWaitEvent of another": lambda: driver.code("cuGreenCtxWaitEvent", second.handle, event),
        "cuGreenCtxCreate": lambda: create_and_drop(
            gpu, driver.must("cuDevResourceGenerateDesc", gpu.groups(8)[:1], 1), CREATE_DEFAULT_STREAM
        ),
        "cuGreenCtxStreamCreate": lambda: driver.code("cuGreenCtxStreamCreate", green.handle, STREAM_NON_BLOCKING, 0),
        "cuGreenCtxGetDevResource": lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle),
        "cuStreamGetGreenCtx": lambda: driver.code("cuStreamGetGreenCtx", green.stream),
        "cuStreamSynchronize of another of its streams": lambda: driver.code("cuStreamSynchronize", idle),
        "cuStreamSynchronize of a stream of another": lambda: driver.code("cuStreamSynchronize", idle_of_another),
        "cuStreamSynchronize of a primary stream": lambda: driver.code("cuStreamSynchronize", idle_of_primary),
        "cuStreamSynchronize of the null stream": lambda: driver.code("cuStreamSynchronize", 0),
        "cuCtxSynchronize": lambda: driver.code("cuCtxSynchronize"),
        "cuCtxSynchronize green": lambda: synchronized(green),
        "cuCtxSynchronize of another": lambda: synchronized(second),
    }
    idle, idle_of_another = green.new_stream(), second.new_stream()
    idle_of_primary = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)

    def synchronized(current: Green) -> Any:
        driver.must("cuCtxPushCurrent", current.ctx)
        code = driver.code("cuCtxSynchronize")
        driver.must("cuCtxPopCurrent")
        return code

    def while_capturing(mode: str, stream: Any, ask: Callable[[], Any]) -> Any:
        """[begin, the question, end]: what a call answers during a capture, and whether the capture survives it."""
        begin = driver.code("cuStreamBeginCapture", stream, capture(gpu, mode))
        answer = ask()
        end, graph = driver.call("cuStreamEndCapture", stream)
        if end == 0 and graph is not None and int(graph):
            driver.call("cuGraphDestroy", graph)
        return [begin, answer, end]

    for mode in CAPTURE_MODES:
        for name, ask in during.items():
            note(
                f"while a green stream captures ({mode}): {name}",
                lambda m=mode, a=ask: while_capturing(m, green.stream, a),
            )
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    for name in ("cuCtxRecordEvent primary", "cuCtxRecordEvent green", "cuGreenCtxRecordEvent", "cuGreenCtxCreate"):
        note(
            f"while a primary stream captures (relaxed): {name}",
            lambda name=name: while_capturing("relaxed", primary_stream, during[name]),
        )
    for name in [name for name in during if "Synchronize" in name]:
        note(
            f"while a primary stream captures (thread_local): {name}",
            lambda name=name: while_capturing("thread_local", primary_stream, during[name]),
        )

    # What may be asked of a stream while it captures. Each answer: begin, the question, end.
    questions = (
        *("cuStreamGetId", "cuStreamGetFlags", "cuStreamQuery", "cuStreamSynchronize", "cuStreamGetPriority"),
        *("cuStreamGetCtx", "cuStreamGetGreenCtx", "cuStreamIsCapturing"),
    )
    for mode in CAPTURE_MODES:
        for whose, stream in (("green", green.stream), ("primary", primary_stream)):
            for name in questions:
                note(
                    f"a {whose} stream that captures ({mode}) is asked: {name}",
                    lambda m=mode, s=stream, n=name: while_capturing(m, s, lambda: driver.code(n, s)),
                )

    def destroyed_while_capturing() -> Any:
        gone = Green(gpu, gpu.groups(8)[2:3])
        answer = {
            "begin": driver.code("cuStreamBeginCapture", gone.stream, capture(gpu, "relaxed")),
            "destroy the context": driver.code("cuGreenCtxDestroy", gone.handle),
        }
        answer["end"] = driver.code("cuStreamEndCapture", gone.stream)
        return answer

    note("the context of a capturing stream is destroyed", destroyed_while_capturing)

    def replayed(captured_on: Any, made_current: Any, replay_on: Any) -> Any:
        blocks = 4 * gpu.sm_count
        driver.must("cuCtxSetCurrent", made_current)
        try:
            driver.must("cuStreamBeginCapture", captured_on, capture(gpu, "relaxed"))
            launched = gpu.launch(captured_on, blocks)
            graph = driver.must("cuStreamEndCapture", captured_on)
        finally:
            driver.call("cuCtxSetCurrent", gpu.primary)
        if launched != 0:
            return {"code": launched}
        executable = driver.must("cuGraphInstantiate", graph, 0)
        gpu.clear(replay_on)
        driver.must("cuGraphLaunch", executable, replay_on)
        driver.must("cuStreamSynchronize", replay_on)
        seen = gpu.marked()
        driver.call("cuGraphExecDestroy", executable)
        driver.call("cuGraphDestroy", graph)
        return seen

    note("SMs: captured on green, replayed on the primary", lambda: replayed(green.stream, gpu.primary, primary_stream))
    note("SMs: captured on green, replayed on second", lambda: replayed(green.stream, gpu.primary, second.stream))
    note("SMs: captured on the primary, replayed on green", lambda: replayed(primary_stream, gpu.primary, green.stream))
    note("SMs: captured on the primary, green current", lambda: replayed(primary_stream, green.ctx, primary_stream))

    def replayed_after_destroy() -> Any:
        gone = Green(gpu, gpu.groups(8)[2:3])
        driver.must("cuStreamBeginCapture", gone.stream, capture(gpu, "relaxed"))
        gpu.launch(gone.stream, 8, 1000)
        graph = driver.must("cuStreamEndCapture", gone.stream)
        executable = driver.must("cuGraphInstantiate", graph, 0)
        answer = {"destroy": driver.code("cuGreenCtxDestroy", gone.handle)}
        answer["launch the graph"] = driver.code("cuGraphLaunch", executable, primary_stream)
        answer["synchronize"] = driver.code("cuStreamSynchronize", primary_stream)
        answer["instantiate again"] = driver.code("cuGraphInstantiate", graph, 0)
        return answer

    # Last: a graph of a destroyed context may take the process with it.
    note("a graph whose context is destroyed before the replay", replayed_after_destroy)
    return note.answers
