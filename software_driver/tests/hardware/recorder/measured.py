"""Times and amounts of memory, which a replay does not compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from .gpu import (
    CREATE_DEFAULT_STREAM,
    STREAM_NON_BLOCKING,
    Gpu,
    Green,
    device_resource,
)
from .notes import Note


def record_measured(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver

    def microseconds(work: Callable[[], Any], repeats: int) -> dict[str, float]:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            times.append((time.perf_counter() - begin) * 1e6)
        return {"median": round(statistics.median(times), 2), "min": round(min(times), 2), "max": round(max(times), 2)}

    def free() -> int:
        return int(driver.must("cuMemGetInfo")[0])

    group = gpu.groups(8)[:1]
    create_times, destroy_times, contexts, greens, streams = [], [], [], [], []
    with Green(gpu, group):  # the first one pays for what the process does once
        pass
    before = free()
    pairs = 20
    kept_alive = 0
    for _ in range(pairs):
        descriptor = driver.must("cuDevResourceGenerateDesc", group, 1)
        start = time.perf_counter()
        handle = driver.must("cuGreenCtxCreate", descriptor, gpu.device, CREATE_DEFAULT_STREAM)
        made = time.perf_counter()
        kept_alive = kept_alive or before - free()
        contexts.append(int(driver.must("cuCtxFromGreenCtx", handle)))
        greens.append(int(handle))
        stream = driver.must("cuGreenCtxStreamCreate", handle, STREAM_NON_BLOCKING, 0)
        streams.append(int(stream))
        driver.must("cuStreamDestroy", stream)
        begin = time.perf_counter()
        driver.must("cuGreenCtxDestroy", handle)
        destroy_times.append((time.perf_counter() - begin) * 1e6)
        create_times.append((made - start) * 1e6)
    after = free()
    note.answers.update(
        {
            "create_us": round(statistics.median(create_times), 1),
            "destroy_us": round(statistics.median(destroy_times), 1),
            "bytes_while_one_lives": kept_alive,
            "bytes_lost_per_pair": (before - after) / pairs,
            "pairs": pairs,
            "CUcontext_addresses_used": len(set(contexts)),
            "CUgreenCtx_addresses_used": len(set(greens)),
            "CUstream_addresses_used": len(set(streams)),
        }
    )
    eights = gpu.groups(8)
    note("query_us", lambda: microseconds(lambda: device_resource(gpu), 200))
    note("split_us", lambda: microseconds(lambda: gpu.split(gpu.whole, 8, 0, 1), 200))
    note(
        "descriptor_of_1_us", lambda: microseconds(lambda: driver.call("cuDevResourceGenerateDesc", eights[:1], 1), 100)
    )
    few = eights[:8]
    note(
        "descriptor_of_8_us", lambda: microseconds(lambda: driver.call("cuDevResourceGenerateDesc", few, len(few)), 100)
    )

    def ids() -> Any:
        with Green(gpu, group) as made:
            return {
                "cuCtxGetId primary": driver.call("cuCtxGetId", gpu.primary)[1],
                "cuCtxGetId green": driver.call("cuCtxGetId", made.ctx)[1],
                "cuGreenCtxGetId": driver.call("cuGreenCtxGetId", made.handle)[1],
                "cuStreamGetId": driver.call("cuStreamGetId", made.stream)[1],
            }

    note("ids", ids)

    def fresh_stream_recycled() -> Any:
        with Green(gpu, group) as made:
            seen = []
            for _ in range(10):
                stream = made.new_stream()
                seen.append(int(stream))
                driver.must("cuStreamDestroy", stream)
            return len(set(seen))

    note("stream_addresses_used_by_10_on_one_context", fresh_stream_recycled)
    return note.answers
