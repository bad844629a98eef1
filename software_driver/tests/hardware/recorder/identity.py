"""Which context a stream and a handle belong to, and their ids."""

from __future__ import annotations

from typing import Any

from .gpu import (
    STREAM_NON_BLOCKING,
    Gpu,
    Green,
    current,
    first_group,
    queried,
    who,
)
from .notes import Note


def record_identity(gpu: Gpu, note: Note) -> Any:
    driver, module = gpu.driver, gpu.driver.module
    green, second = first_group(gpu), Green(gpu, gpu.groups(8)[1:2])
    primary_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    driver.must("cuCtxPushCurrent", green.ctx)
    pushed_stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    driver.must("cuCtxPopCurrent")
    contexts = {"green": green.ctx, "second": second.ctx}
    greens = {"green": green.handle, "second": second.handle}

    def green_name(handle: Any) -> str:
        value = int(handle) if handle is not None else 0
        if value == 0:
            return "none"
        return next((name for name, known in greens.items() if int(known) == value), "another")

    def of_stream(stream: Any) -> Any:
        answer: dict[str, Any] = {}
        code, handle = driver.call("cuStreamGetGreenCtx", stream)
        answer["cuStreamGetGreenCtx"] = green_name(handle) if code == 0 else code
        code, ctx = driver.call("cuStreamGetCtx", stream)
        answer["cuStreamGetCtx"] = who(gpu, ctx, **contexts) if code == 0 else code
        code, both = driver.call("cuStreamGetCtx_v2", stream)
        answer["cuStreamGetCtx_v2"] = [who(gpu, both[0], **contexts), green_name(both[1])] if code == 0 else code
        answer["cuStreamGetDevResource"] = queried(gpu, "cuStreamGetDevResource", stream)
        answer["cuStreamGetPriority"] = list(driver.call("cuStreamGetPriority", stream))
        answer["cuStreamGetFlags"] = list(driver.call("cuStreamGetFlags", stream))
        answer["cuStreamGetDevice"] = driver.code("cuStreamGetDevice", stream)
        return answer

    streams = {
        "NULL stream": module.CUstream(0),
        "legacy stream": module.CUstream(1),
        "per-thread stream": module.CUstream(2),
        "stream of the primary": primary_stream,
        "stream of green": green.stream,
        "stream of second": second.stream,
        "stream by cuStreamCreate under green": pushed_stream,
    }
    for name, ctx in (("primary", gpu.primary), ("green", green.ctx), ("no context", module.CUcontext(0))):
        driver.must("cuCtxSetCurrent", ctx)
        note(f"{name} current", lambda: current(gpu, **contexts))
        for stream_name, stream in streams.items():
            note(f"{name} current: {stream_name}", lambda stream=stream: of_stream(stream))
        note(f"{name} current: cuCtxGetDevice", lambda: driver.code("cuCtxGetDevice"))
        note(f"{name} current: cuCtxGetFlags", lambda: list(driver.call("cuCtxGetFlags")))
        note(f"{name} current: MULTIPROCESSOR_COUNT", lambda: gpu.attribute("MULTIPROCESSOR_COUNT"))
        note(f"{name} current: cuCtxGetId(NULL) works", lambda: driver.code("cuCtxGetId", module.CUcontext(0)))
        note(f"{name} current: cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))
    driver.must("cuCtxSetCurrent", gpu.primary)
    note("cuCtxGetApiVersion: primary", lambda: list(driver.call("cuCtxGetApiVersion", gpu.primary)))
    note("cuCtxGetApiVersion: green", lambda: list(driver.call("cuCtxGetApiVersion", green.ctx)))
    note(
        "cuCtxFromGreenCtx is the same twice",
        lambda: (
            int(driver.must("cuCtxFromGreenCtx", green.handle)) == int(driver.must("cuCtxFromGreenCtx", green.handle))
        ),
    )
    note("the CUcontext is the CUgreenCtx's address", lambda: int(green.ctx) == int(green.handle))
    note("the CUcontext is the primary", lambda: int(green.ctx) == int(gpu.primary))

    def ids() -> Any:
        answers = {
            "cuCtxGetId primary": driver.call("cuCtxGetId", gpu.primary),
            "cuCtxGetId green": driver.call("cuCtxGetId", green.ctx),
            "cuCtxGetId second": driver.call("cuCtxGetId", second.ctx),
            "cuGreenCtxGetId green": driver.call("cuGreenCtxGetId", green.handle),
            "cuGreenCtxGetId second": driver.call("cuGreenCtxGetId", second.handle),
        }
        values = {name: value for name, (code, value) in answers.items() if code == 0}
        same = sorted([a, b] for a in values for b in values if a < b and values[a] == values[b])
        return {"codes": {name: code for name, (code, _) in answers.items()}, "equal": same}

    note("ids", ids)

    def recreated() -> Any:
        context_ids, green_ids, stream_ids = [], [], []
        for _ in range(3):
            with first_group(gpu) as made:
                context_ids.append(driver.call("cuCtxGetId", made.ctx)[1])
                green_ids.append(driver.call("cuGreenCtxGetId", made.handle)[1])
                stream_ids.append(driver.call("cuStreamGetId", made.stream)[1])
        kinds = {"cuCtxGetId": context_ids, "cuGreenCtxGetId": green_ids, "cuStreamGetId": stream_ids}
        return {
            name: "absent" if None in seen else "all different" if len(set(seen)) == 3 else "reused"
            for name, seen in kinds.items()
        }

    note("ids of contexts made one after the other", recreated)
    note(
        "SMs of a stream made under the pushed context",
        lambda: gpu.smids_on(pushed_stream, gpu.primary, 4 * gpu.sm_count),
    )
    note(
        "SMs of green's stream with the primary current",
        lambda: gpu.smids_on(green.stream, gpu.primary, 4 * gpu.sm_count),
    )
    note("SMs of green's stream with second current", lambda: gpu.smids_on(green.stream, second.ctx, 4 * gpu.sm_count))
    note(
        "SMs of a primary stream with green current", lambda: gpu.smids_on(primary_stream, green.ctx, 4 * gpu.sm_count)
    )
    note("SMs of the NULL stream with green current", lambda: gpu.smids_on(0, green.ctx, 4 * gpu.sm_count))
    note("SMs of the legacy stream with green current", lambda: gpu.smids_on(1, green.ctx, 4 * gpu.sm_count))
    note("SMs of the per-thread stream with green current", lambda: gpu.smids_on(2, green.ctx, 4 * gpu.sm_count))
    return note.answers
