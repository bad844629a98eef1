"""Records which streams order each other, which work waits of a context cover, and where module functions run."""

from __future__ import annotations

import ctypes
from typing import Any

from .gpu import EVENT_DISABLE_TIMING, PTX, STREAM_NON_BLOCKING, THREADS, Code, Gpu, Green
from .notes import Note

LONG_CYCLES = 20_000_000  # about 10 ms: work that is not ordered behind it ends long before
ALWAYS_THERE = {"NULL": 0, "legacy": 1, "per-thread": 2}


def streams_of(gpu: Gpu, ctx: Any) -> dict[str, Any]:
    """Creates a stream of each kind in the context ctx."""
    driver = gpu.driver
    driver.must("cuCtxSetCurrent", ctx)
    streams = {name: driver.module.CUstream(handle) for name, handle in ALWAYS_THERE.items()}
    streams["blocking"] = driver.must("cuStreamCreate", 0)
    streams["non-blocking"] = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    return streams


def record_default_streams(gpu: Gpu, note: Note) -> Any:
    """Launches on one stream, then on another one, and asks whether the first was done when the second was."""
    driver = gpu.driver
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    green = Green(gpu, gpu.groups(16)[:1])
    contexts = {"primary": gpu.primary, "green": green.ctx}
    kinds = {whose: streams_of(gpu, ctx) for whose, ctx in contexts.items()}

    def ordered(first: tuple[Any, Any], second: tuple[Any, Any]) -> Any:
        driver.must("cuCtxSetCurrent", first[0])
        code: Code = gpu.launch(first[1], 1, LONG_CYCLES) or driver.code("cuEventRecord", event, first[1])
        if code != 0:
            return {"first": code}
        driver.must("cuCtxSetCurrent", second[0])
        code = gpu.launch(second[1], 1, 1) or driver.code("cuStreamSynchronize", second[1])
        answer = {0: "ordered", 600: "not ordered"}[driver.code("cuEventQuery", event)]  # type: ignore[index]
        driver.must("cuEventSynchronize", event)
        return answer if code == 0 else {"second": code}

    def copied(work: tuple[Any, Any], ctx: Any) -> Any:
        """Tells whether a synchronous copy waits for the work."""
        driver.must("cuCtxSetCurrent", work[0])
        code: Code = gpu.launch(work[1], 1, LONG_CYCLES) or driver.code("cuEventRecord", event, work[1])
        if code != 0:
            return {"work": code}
        driver.must("cuCtxSetCurrent", ctx)
        word = ctypes.c_uint32()
        code = driver.code("cuMemcpyDtoH", ctypes.addressof(word), gpu.out, 4)
        answer = {0: "waits", 600: "does not wait"}[driver.code("cuEventQuery", event)]  # type: ignore[index]
        driver.must("cuEventSynchronize", event)
        return answer if code == 0 else {"copy": code}

    gpu.preload()
    for whose, streams in kinds.items():
        for other, others in kinds.items():
            for name, stream in streams.items():
                for then, second in others.items():
                    if whose == other and name == then:
                        continue
                    both = ((contexts[whose], stream), (contexts[other], second))
                    note(f"{whose} {name}, then {other} {then}", lambda both=both: ordered(*both))
        for name, stream in streams.items():
            for other, ctx in contexts.items():
                work = (contexts[whose], stream)
                note(f"a copy with {other} current: {whose} {name}", lambda w=work, c=ctx: copied(w, c))
    return note.answers


def record_nested_waits(gpu: Gpu, note: Note) -> Any:
    """Waits of a context for work of others: the primary, a green one, one made of its SMs, and one of other SMs."""
    driver = gpu.driver
    event, done = (driver.must("cuEventCreate", EVENT_DISABLE_TIMING) for _ in range(2))
    _, groups, remainder = gpu.split(gpu.whole, 40, 0, 1)
    part = Green(gpu, groups)
    inside = driver.must("cuGreenCtxGetDevResource", part.handle, gpu.resource_type(1))
    nested, sibling = Green(gpu, gpu.groups(8, resource=inside)[:1]), Green(gpu, [remainder])
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    places = {
        "the primary context": (gpu.primary, primary_stream),
        "a green context": (part.ctx, part.stream),
        "one made of its SMs": (nested.ctx, nested.stream),
        "one of other SMs": (sibling.ctx, sibling.stream),
    }

    def work(place: str) -> None:
        stream = places[place][1]
        driver.must("cuCtxSetCurrent", places[place][0])
        gpu.launch(stream, 1, LONG_CYCLES)
        driver.must("cuEventRecord", done, stream)

    def is_done(handle: Any, yes: str, no: str) -> Any:
        answer = {0: yes, 600: no}.get(driver.code("cuEventQuery", handle))  # type: ignore[call-overload]
        driver.must("cuEventSynchronize", done)
        driver.must("cuCtxSetCurrent", gpu.primary)
        return answer

    def synchronized(ctx: Any, place: str) -> Any:
        work(place)
        driver.must("cuCtxSetCurrent", ctx)
        driver.must("cuCtxSynchronize")
        return is_done(done, "waits", "does not wait")

    def recorded(ctx: Any, place: str) -> Any:
        work(place)
        code = driver.code("cuCtxRecordEvent", ctx, event)
        return is_done(event, "not covered", "covered") if code == 0 else code

    def waited(ctx: Any, place: str) -> Any:
        """Tells whether later work of the place waits for an event of a stream that belongs to no place."""
        driver.must("cuCtxSetCurrent", gpu.primary)
        gpu.launch(apart, 1, LONG_CYCLES)
        driver.must("cuEventRecord", done, apart)
        code = driver.code("cuCtxWaitEvent", ctx, done)
        stream = places[place][1]
        driver.must("cuCtxSetCurrent", places[place][0])
        driver.must("cuMemsetD32Async", gpu.out, 0, 1, stream)
        driver.must("cuStreamSynchronize", stream)
        return is_done(done, "waits", "does not wait") if code == 0 else code

    apart = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    gpu.preload()
    for name, (ctx, _) in places.items():
        for place in places:
            note(f"cuCtxSynchronize of {name}: work of {place}", lambda c=ctx, p=place: synchronized(c, p))
            note(f"cuCtxRecordEvent of {name}: work of {place}", lambda c=ctx, p=place: recorded(c, p))
            note(f"cuCtxWaitEvent of {name}: work of {place}", lambda c=ctx, p=place: waited(c, p))
    return note.answers


def record_module_functions(gpu: Gpu, note: Note) -> Any:
    """Launches functions of modules on streams of other contexts, and counts the SMs that they ran on."""
    driver = gpu.driver
    contexts = {"primary": None, "green": Green(gpu, gpu.groups(16)[:1]), "second": Green(gpu, gpu.groups(64)[:1])}
    image = ctypes.create_string_buffer(PTX.format(version="7.0", target="sm_70").encode())
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    gpu.preload()

    def ctx_of(name: str) -> Any:
        green = contexts[name]
        return gpu.primary if green is None else green.ctx

    def ran(function: Any, stream: Any, current: Any) -> Any:
        driver.must("cuCtxSetCurrent", current)
        gpu.clear(stream)
        arguments = gpu.arguments(200_000)
        code = driver.code("cuLaunchKernel", function, 4 * gpu.sm_count, 1, 1, THREADS, 1, 1, 0, stream, arguments, 0)
        code = code or driver.code("cuStreamSynchronize", stream)
        driver.must("cuCtxSetCurrent", gpu.primary)
        return len(gpu.marked()) if code == 0 else code

    for owner in contexts:
        driver.must("cuCtxSetCurrent", ctx_of(owner))
        module = driver.must("cuModuleLoadData", ctypes.addressof(image))
        function = driver.must("cuModuleGetFunction", module, b"record_smids")
        for name, green in contexts.items():
            stream = primary_stream if green is None else green.stream
            for current in {owner: 0, name: 0}:
                what = f"a function of {owner} on a stream of {name}, {current} current: SMs"
                note(what, lambda f=function, s=stream, c=current: ran(f, s, ctx_of(c)))
    return note.answers
