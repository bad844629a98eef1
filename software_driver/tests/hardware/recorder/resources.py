"""The structured split, workqueues, resources of streams, and what the header of 13.1 and newer refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from .gpu import (
    SM,
    WORKQUEUE,
    WORKQUEUE_CONFIG,
    Code,
    Gpu,
    Green,
    capture,
    count_of,
    first_group,
    queried,
)
from .notes import Note

BACKFILL = 1
EXAMPLES: dict[str, list[tuple[int, int, int, int]]] = {
    # [smCount, coscheduledSmCount, preferredCoscheduledSmCount, flags] of each group, from the driver's documentation
    "16 for clusters of 16": [(16, 0, 0, 0)],
    "16 without clusters": [(16, 2, 2, 0)],
    "16 without clusters, then the rest": [(16, 2, 2, 0), (0, 2, 2, BACKFILL)],
    "28 and 32 for clusters of 4": [(28, 4, 4, 0), (32, 4, 4, 0)],
    "all that can run clusters of 8": [(0, 8, 8, 0)],
    "8, then the rest for clusters of 4": [(8, 2, 2, 0), (0, 4, 4, 0)],
    "discover by default": [(0, 0, 0, 0)],
    "discover 2": [(0, 2, 0, 0)],
    "discover 4": [(0, 4, 0, 0)],
    "discover 16": [(0, 16, 0, 0)],
    "discover 32": [(0, 32, 0, 0)],
    "discover 8, preferred 16": [(0, 8, 16, 0)],
    "everything by backfill": [(0, 2, 2, BACKFILL)],
    "everything by backfill of 8": [(0, 8, 8, BACKFILL)],
    "30 by backfill of 8": [(30, 8, 0, BACKFILL)],
    "130 by backfill of 16": [(130, 16, 0, BACKFILL)],
    "uneven": [(8, 0, 0, 0), (24, 0, 0, 0), (64, 0, 0, 0)],
    "uneven of 2": [(2, 2, 0, 0), (6, 2, 0, 0), (10, 2, 0, 0)],
    "two discoveries": [(0, 8, 0, 0), (0, 2, 0, 0)],
    "discovery first, then 8": [(0, 8, 0, 0), (8, 2, 0, 0)],
    "odd count": [(7, 2, 0, 0)],
    "odd co-scheduling": [(16, 3, 0, 0)],
    "co-scheduling of 34": [(34, 34, 0, 0)],
    "not a multiple": [(20, 8, 0, 0)],
    "more than there is": [(4096, 2, 0, 0)],
    "unknown flag": [(16, 0, 0, 128)],
    "no groups": [],
}


def record_structured_split(gpu: Gpu, note: Note) -> Any:
    """[code, SMs of each group, SMs of the remainder, the parameters written back], with and without a result array."""
    code, found = gpu.driver.call("cuGetProcAddress", b"cuDevSmResourceSplit", max(gpu.version, 13010), 0)
    address = int(found[0]) if code == 0 and found[0] else 0
    if not address:
        note("cuDevSmResourceSplit through the bindings", lambda: split_through_bindings(gpu))
        note.answers["cuDevSmResourceSplit"] = {"absent": True, "cuGetProcAddress": code}
        return note.answers
    # Through ctypes and not the bindings, which cannot leave the result array out and do not hand the parameters back.
    pointer, word = ctypes.c_void_p, ctypes.c_uint
    split = ctypes.CFUNCTYPE(ctypes.c_int, pointer, word, pointer, pointer, word, pointer)(address)

    def ask(groups: list[tuple[int, int, int, int]], dry: bool, flags: int = 0) -> tuple[Any, list[Any]]:
        count = len(groups)
        params = (ctypes.c_uint32 * (16 * max(count, 1)))()
        for index, group in enumerate(groups):
            params[16 * index : 16 * index + 4] = list(group)
        results = [gpu.driver.module.CUdevResource() for _ in range(count)]
        array = ctypes.create_string_buffer(144 * max(count, 1))
        remainder = gpu.driver.module.CUdevResource()
        code = split(
            None if dry else ctypes.addressof(array),
            count,
            int(gpu.whole.getPtr()),
            int(remainder.getPtr()),
            flags,
            ctypes.addressof(params),
        )
        for index, result in enumerate(results):
            ctypes.memmove(int(result.getPtr()), ctypes.addressof(array) + 144 * index, 144)
        written = [list(params[16 * index : 16 * index + 5]) for index in range(count)]
        if code != 0:
            return [code, written], []
        sizes = [] if dry else [count_of(result) for result in results]
        return [code, sizes, count_of(remainder), written], [*results, remainder]

    for name, groups in EXAMPLES.items():
        note(f"{name}: split", lambda groups=groups: ask(groups, dry=False)[0])
        note(f"{name}: dry", lambda groups=groups: ask(groups, dry=True)[0])
    note("flags 1", lambda: ask([(16, 0, 0, 0)], dry=False, flags=1)[0])
    for name in list(EXAMPLES)[: 4 if gpu.quick else 8]:
        note(
            f"{name}: smids",
            lambda name=name: [
                gpu.smids_of([part]) if count_of(part) else [] for part in ask(EXAMPLES[name], dry=False)[1]
            ],
        )
    return note.answers


def split_through_bindings(gpu: Gpu) -> Any:
    params = getattr(gpu.driver.module, "CU_DEV_SM_RESOURCE_GROUP_PARAMS", None)
    return gpu.driver.code("cuDevSmResourceSplit", 1, gpu.whole, 0, [params()] if params is not None else [])


def workqueue_fields(gpu: Gpu, name: str, handle: Any) -> Any:
    code, resource = gpu.driver.call(name, handle, gpu.resource_type(WORKQUEUE_CONFIG))
    if code != 0:
        return {"code": code}
    config = resource.wqConfig
    return {"wqConcurrencyLimit": config.wqConcurrencyLimit, "sharingScope": int(config.sharingScope)}


def record_workqueues(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    note("device: configuration", lambda: workqueue_fields(gpu, "cuDeviceGetDevResource", gpu.device))
    note("device: queue", lambda: queried(gpu, "cuDeviceGetDevResource", gpu.device, WORKQUEUE))
    note("primary: configuration", lambda: workqueue_fields(gpu, "cuCtxGetDevResource", gpu.primary))
    note("primary: queue", lambda: queried(gpu, "cuCtxGetDevResource", gpu.primary, WORKQUEUE))
    green = first_group(gpu)
    note("green: configuration", lambda: workqueue_fields(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("green: queue", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle, WORKQUEUE))
    for name, stream in (("green stream", green.stream), ("NULL stream", gpu.driver.module.CUstream(0))):
        for kind in (SM, WORKQUEUE_CONFIG, WORKQUEUE):
            note(f"{name}: resource type {kind}", lambda s=stream, k=kind: queried(gpu, "cuStreamGetDevResource", s, k))

    def with_configuration(limit: int, scope: int) -> Any:
        config = driver.must("cuDeviceGetDevResource", gpu.device, gpu.resource_type(WORKQUEUE_CONFIG))
        config.wqConfig.wqConcurrencyLimit = limit
        config.wqConfig.sharingScope = driver.enum("CUdevWorkqueueConfigScope", scope)
        with Green(gpu, [gpu.groups(8)[0], config]) as made:
            return {
                "configuration": workqueue_fields(gpu, "cuGreenCtxGetDevResource", made.handle),
                "sm": queried(gpu, "cuGreenCtxGetDevResource", made.handle),
            }

    code, _ = driver.call("cuDeviceGetDevResource", gpu.device, gpu.resource_type(WORKQUEUE_CONFIG))
    if code == 0:
        for limit in (0, 1, 2, 8, 32, 128, 1000):
            for scope in (0, 1):
                note(f"limit {limit}, scope {scope}", lambda n=limit, s=scope: with_configuration(n, s))
    return note.answers


def record_refusals(gpu: Gpu, note: Note) -> Any:
    """Codes of calls that the headers speak of: descriptors, limits of launches, captures that are over."""
    driver = gpu.driver

    def described(make: Callable[[], Sequence[Any]]) -> Code:
        resources = make()
        return driver.code("cuDevResourceGenerateDesc", resources, len(resources))

    note("descriptor: two groups of one split", lambda: described(lambda: gpu.groups(16, asked=2)))
    note(
        "descriptor: a group and the remainder",
        lambda: described(lambda: [gpu.groups(16, asked=2)[0], gpu.remainder(16, asked=2)]),
    )
    note(
        "descriptor: groups of two splits",
        lambda: described(lambda: [gpu.groups(8, asked=2)[1], gpu.groups(16, asked=2)[1]]),
    )
    note(
        "descriptor: groups of two grains",
        lambda: described(lambda: [gpu.groups(8, asked=1)[0], gpu.groups(2, flags=1, asked=60)[50]]),
    )

    def launched(grid: tuple[int, int, int], block: tuple[int, int, int] = (32, 1, 1), shared: int = 0) -> Code:
        return driver.code(
            "cuLaunchKernel", gpu.kernel("record_smids"), *grid, *block, shared, 0, gpu.arguments(1000), 0
        )

    note("launch: grid.y of 65536", lambda: launched((1, 65536, 1)))
    note("launch: grid.z of 65536", lambda: launched((1, 1, 65536)))
    note("launch: block.z of 65", lambda: launched((1, 1, 1), (1, 1, 65)))
    note("launch: 200 KiB of shared memory that were not allowed", lambda: launched((1, 1, 1), shared=200 << 10))
    note(
        "instantiate: unknown flags",
        lambda: driver.code("cuGraphInstantiate", driver.must("cuGraphCreate", 0), 1 << 30),
    )
    note("cuMemHostAlloc: unknown flags", lambda: driver.code("cuMemHostAlloc", 64, 0xFFFF))

    def over(outcome: str) -> Any:
        streams = [driver.must("cuStreamCreate", 1) for _ in range(2)]
        event = driver.must("cuEventCreate", 0)
        driver.must("cuStreamBeginCapture", streams[0], capture(gpu, "relaxed"))
        gpu.launch(streams[0], 1, 1000)
        driver.must("cuEventRecord", event, streams[0])
        if outcome == "unjoined":
            driver.must("cuStreamWaitEvent", streams[1], event, 0)
            gpu.launch(streams[1], 1, 1000)
        ended = driver.code("cuStreamEndCapture", streams[0])
        return {
            "cuStreamEndCapture": ended,
            "cuStreamWaitEvent of its event": driver.code("cuStreamWaitEvent", streams[1], event, 0),
            "cuStreamIsCapturing": driver.code("cuStreamIsCapturing", streams[1]),
            "a launch": gpu.launch(streams[1], 1, 1000),
        }

    note("a capture that ended well", lambda: over("well"))
    note("a capture that ended unjoined", lambda: over("unjoined"))
    return note.answers
