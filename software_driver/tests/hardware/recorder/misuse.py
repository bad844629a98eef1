"""Misuse and lifetime: every item is a process of its own."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .gpu import (
    EVENT_DISABLE_TIMING,
    SM,
    STREAM_NON_BLOCKING,
    WORKQUEUE,
    WORKQUEUE_CONFIG,
    Gpu,
    Green,
    Refused,
    capture,
    count_of,
    create_and_drop,
    current,
    device_resource,
    first_group,
    queried,
)
from .notes import Note


def misuse_resplit(gpu: Gpu, note: Note) -> Any:
    """A group or a remainder given straight back to the split."""
    code, groups, remainder = gpu.split(gpu.whole, 64, 0, 64)
    if code != 0 or not groups:
        return {"code": code}
    for minimum, flags in ((8, 0), (16, 0), (64, 0), (2, 1), (8, 2)):
        note(f"group of 64, min={minimum} flags={flags}", lambda m=minimum, f=flags: gpu.split_row(groups[0], m, f, 4))
        if count_of(remainder):
            note(
                f"remainder, min={minimum} flags={flags}", lambda m=minimum, f=flags: gpu.split_row(remainder, m, f, 4)
            )
    note("remainder of one 8", lambda: gpu.split_row(gpu.remainder(8, 0, 1), 8, 0, 4))
    note("INVALID resource", lambda: gpu.split_row(gpu.driver.module.CUdevResource(), 8, 0, 4))
    note("flags 4", lambda: gpu.split_row(gpu.whole, 8, 4, 4))
    note("flags 8", lambda: gpu.split_row(gpu.whole, 8, 8, 4))
    note("equal calls give equal bytes", lambda: raw(gpu.groups(8)[0]) == raw(gpu.groups(8)[0]))
    note("device query gives equal bytes", lambda: raw(gpu.whole) == raw(device_resource(gpu)))
    note("group of another query's split gives equal bytes", lambda: same_split_of_two_queries(gpu))
    return note.answers


def raw(resource: Any) -> bytes:
    return ctypes.string_at(int(resource.getPtr()), 144)


def same_split_of_two_queries(gpu: Gpu) -> bool:
    one = gpu.groups(8, resource=device_resource(gpu))[0]
    other = gpu.groups(8, resource=device_resource(gpu))[0]
    return raw(one) == raw(other)


def misuse_destroy_while_current(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    note("set current", lambda: driver.code("cuCtxSetCurrent", green.ctx))
    note("destroy the green context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("current after it", lambda: current(gpu, destroyed=green.ctx))
    note("cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))
    note("cuCtxGetDevice", lambda: driver.code("cuCtxGetDevice"))
    note("cuCtxGetFlags", lambda: driver.code("cuCtxGetFlags"))
    note("cuStreamCreate", lambda: driver.code("cuStreamCreate", STREAM_NON_BLOCKING))
    note("cuMemAlloc", lambda: driver.code("cuMemAlloc", 256))
    note("cuEventCreate", lambda: driver.code("cuEventCreate", EVENT_DISABLE_TIMING))
    note("pop", lambda: driver.code("cuCtxPopCurrent"))
    note("current after the pop", lambda: current(gpu, destroyed=green.ctx))
    note("set the primary current", lambda: driver.code("cuCtxSetCurrent", gpu.primary))
    note("memory works again", lambda: driver.code("cuMemAlloc", 256))
    return note.answers


def misuse_push_destroyed(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    driver.must("cuStreamDestroy", green.stream)
    driver.must("cuGreenCtxDestroy", green.handle)
    gpu.preload()
    note("push the destroyed context", lambda: driver.code("cuCtxPushCurrent", green.ctx))
    note("current after it", lambda: current(gpu, destroyed=green.ctx))
    note("cuCtxGetDevResource of it", lambda: queried(gpu, "cuCtxGetDevResource", green.ctx))
    note("cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))
    note("cuStreamCreate", lambda: driver.code("cuStreamCreate", STREAM_NON_BLOCKING))
    note("cuMemAlloc", lambda: driver.code("cuMemAlloc", 256))
    note("launch on the NULL stream", lambda: gpu.launch(0, 1, 1000))
    note("pop", lambda: driver.code("cuCtxPopCurrent"))
    note("current after the pop", lambda: current(gpu, destroyed=green.ctx))
    note("set the destroyed context current", lambda: driver.code("cuCtxSetCurrent", green.ctx))
    note("current after that", lambda: current(gpu, destroyed=green.ctx))
    return note.answers


def misuse_query_destroyed(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    driver.must("cuStreamDestroy", green.stream)
    driver.must("cuGreenCtxDestroy", green.handle)
    note("cuCtxGetDevResource", lambda: queried(gpu, "cuCtxGetDevResource", green.ctx))
    note("cuCtxGetId", lambda: driver.code("cuCtxGetId", green.ctx))
    note("cuCtxGetApiVersion", lambda: driver.code("cuCtxGetApiVersion", green.ctx))
    note("cuCtxRecordEvent", lambda: driver.code("cuCtxRecordEvent", green.ctx, event))
    note("cuCtxWaitEvent", lambda: driver.code("cuCtxWaitEvent", green.ctx, event))
    note("cuGreenCtxGetDevResource", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("cuGreenCtxGetId", lambda: driver.code("cuGreenCtxGetId", green.handle))
    note("cuCtxFromGreenCtx", lambda: driver.code("cuCtxFromGreenCtx", green.handle))
    note("cuGreenCtxRecordEvent", lambda: driver.code("cuGreenCtxRecordEvent", green.handle, event))
    note("cuGreenCtxStreamCreate", lambda: driver.code("cuGreenCtxStreamCreate", green.handle, STREAM_NON_BLOCKING, 0))
    return note.answers


def misuse_destroy_twice(gpu: Gpu, note: Note) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    driver.must("cuStreamDestroy", green.stream)
    note("first", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("second", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("a context made after it", lambda: gpu.smids_of(gpu.groups(8)[:1]))
    return note.answers


def misuse_ctx_destroy(gpu: Gpu, note: Note) -> Any:
    """cuCtxDestroy on the CUcontext of a green context, which the headers forbid."""
    driver, green = gpu.driver, first_group(gpu)
    note("cuCtxDestroy of its CUcontext", lambda: driver.code("cuCtxDestroy", green.ctx))
    note("the green context afterwards", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("cuGreenCtxDestroy afterwards", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    return note.answers


def after_context_is_gone(gpu: Gpu, note: Note, ask: Sequence[tuple[str, Callable[[Any, Any], Any]]]) -> Any:
    driver, green = gpu.driver, first_group(gpu)
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    note("use before", lambda: driver.code("cuStreamSynchronize", green.stream))
    note("destroy the green context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    for name, question in ask:
        note(name, lambda question=question: question(green.stream, event))
    return note.answers


def misuse_stream_after_context(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    one_argument = (
        "cuStreamQuery",
        "cuStreamSynchronize",
        "cuStreamGetPriority",
        "cuStreamGetFlags",
        "cuStreamGetId",
        "cuStreamGetDevice",
        "cuStreamGetCtx",
        "cuStreamGetCtx_v2",
        "cuStreamGetGreenCtx",
        "cuStreamIsCapturing",
    )
    ask: list[tuple[str, Callable[[Any, Any], Any]]] = [
        (name, lambda stream, event, name=name: driver.code(name, stream)) for name in one_argument
    ]
    ask += [
        ("cuStreamGetDevResource", lambda stream, event: queried(gpu, "cuStreamGetDevResource", stream)),
        ("cuEventRecord on it", lambda stream, event: driver.code("cuEventRecord", event, stream)),
        ("cuStreamWaitEvent on it", lambda stream, event: driver.code("cuStreamWaitEvent", stream, event, 0)),
        ("launch on it", lambda stream, event: gpu.launch(stream, 1, 1000)),
        ("begin capture", lambda stream, event: driver.code("cuStreamBeginCapture", stream, capture(gpu, "relaxed"))),
        ("cuStreamDestroy", lambda stream, event: driver.code("cuStreamDestroy", stream)),
        ("cuEventDestroy", lambda stream, event: driver.code("cuEventDestroy", event)),
    ]
    return after_context_is_gone(gpu, note, ask)


def misuse_pushed_stream_after_context(gpu: Gpu, note: Note) -> Any:
    """A stream by cuStreamCreate under the pushed context, and an event recorded on it, after the context goes."""
    driver, green = gpu.driver, first_group(gpu)
    driver.must("cuCtxPushCurrent", green.ctx)
    stream = driver.must("cuStreamCreate", STREAM_NON_BLOCKING)
    event = driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    driver.must("cuEventRecord", event, stream)
    driver.must("cuStreamSynchronize", stream)
    driver.must("cuCtxPopCurrent")
    note("destroy the green context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("cuEventQuery", lambda: driver.code("cuEventQuery", event))
    note("cuEventSynchronize", lambda: driver.code("cuEventSynchronize", event))
    note("a primary stream waits for the event", lambda: driver.code("cuStreamWaitEvent", 0, event, 0))
    note("cuStreamQuery", lambda: driver.code("cuStreamQuery", stream))
    note("cuStreamDestroy", lambda: driver.code("cuStreamDestroy", stream))
    note("cuEventRecord on the primary's NULL stream", lambda: driver.code("cuEventRecord", event, 0))
    note("cuEventDestroy", lambda: driver.code("cuEventDestroy", event))
    return note.answers


def misuse_destroy_with_work(gpu: Gpu, note: Note) -> Any:
    """Destroying a context, or a stream, while a kernel of about half a millisecond is still running on it."""
    driver, green = gpu.driver, first_group(gpu)
    note("launch", lambda: gpu.smids(green))
    note("launch a long one", lambda: gpu.launch(green.stream, 8, 2_000_000))
    note("destroy the stream", lambda: driver.code("cuStreamDestroy", green.stream))
    other = green.new_stream()
    note("launch on another", lambda: gpu.launch(other, 8, 2_000_000))
    note("destroy the context", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("the primary context afterwards", lambda: driver.code("cuCtxSynchronize"))
    return note.answers


def misuse_arguments(gpu: Gpu, note: Note) -> Any:
    driver = gpu.driver
    descriptor = driver.must("cuDevResourceGenerateDesc", gpu.groups(8)[:1], 1)
    for flags in (0, 1, 2, 3):
        note(f"cuGreenCtxCreate flags={flags}", lambda f=flags: create_and_drop(gpu, descriptor, f))
    green = first_group(gpu)
    for flags in (0, 1, 2):
        note(
            f"cuGreenCtxStreamCreate flags={flags}",
            lambda f=flags: driver.code("cuGreenCtxStreamCreate", green.handle, f, 0),
        )
    for priority in (-100, -6, -5, -3, -1, 0, 1, 7):
        note(f"cuGreenCtxStreamCreate priority={priority}", lambda p=priority: priority_of(gpu, green, p))
    driver.must("cuCtxPushCurrent", green.ctx)
    for flags in (0, 1):
        note(f"cuStreamCreate flags={flags} under the pushed context", lambda f=flags: driver.code("cuStreamCreate", f))
    for priority in (-100, -5, 0, 7):
        note(
            f"cuStreamCreateWithPriority priority={priority} under the pushed context",
            lambda p=priority: pushed_priority_of(gpu, p),
        )
    note("priority range under the pushed context", lambda: driver.call("cuCtxGetStreamPriorityRange"))
    driver.must("cuCtxPopCurrent")
    note("flags of a stream", lambda: driver.call("cuStreamGetFlags", green.stream))
    for kind in (0, SM, WORKQUEUE_CONFIG, WORKQUEUE):
        note(
            f"cuDeviceGetDevResource type={kind}", lambda k=kind: queried(gpu, "cuDeviceGetDevResource", gpu.device, k)
        )
    for kind in (0, WORKQUEUE_CONFIG, WORKQUEUE):
        note(
            f"cuGreenCtxGetDevResource type={kind}",
            lambda k=kind: queried(gpu, "cuGreenCtxGetDevResource", green.handle, k),
        )
        note(f"cuCtxGetDevResource type={kind}", lambda k=kind: queried(gpu, "cuCtxGetDevResource", green.ctx, k))
    return note.answers


def priority_of(gpu: Gpu, green: Green, priority: int) -> Any:
    code, stream = gpu.driver.call("cuGreenCtxStreamCreate", green.handle, STREAM_NON_BLOCKING, priority)
    return list(gpu.driver.call("cuStreamGetPriority", stream)) if code == 0 else {"code": code}


def pushed_priority_of(gpu: Gpu, priority: int) -> Any:
    code, stream = gpu.driver.call("cuStreamCreateWithPriority", STREAM_NON_BLOCKING, priority)
    return list(gpu.driver.call("cuStreamGetPriority", stream)) if code == 0 else {"code": code}


def misuse_nulls(gpu: Gpu, note: Note) -> Any:
    driver, module = gpu.driver, gpu.driver.module
    green, event = first_group(gpu), gpu.driver.must("cuEventCreate", EVENT_DISABLE_TIMING)
    null_green, null_ctx = module.CUgreenCtx(0), module.CUcontext(0)
    note("cuCtxGetDevResource(NULL) with the primary current", lambda: queried(gpu, "cuCtxGetDevResource", null_ctx))
    driver.must("cuCtxPushCurrent", green.ctx)
    note(
        "cuCtxGetDevResource(NULL) with the green context current",
        lambda: queried(gpu, "cuCtxGetDevResource", null_ctx),
    )
    driver.must("cuCtxPopCurrent")
    note("split of NULL", lambda: gpu.driver.code("cuDevSmResourceSplitByCount", 1, None, 0, 8))
    note("descriptor of no resources", lambda: driver.code("cuDevResourceGenerateDesc", [], 0))
    note(
        "create from a NULL descriptor",
        lambda: driver.code("cuGreenCtxCreate", module.CUdevResourceDesc(0), gpu.device, 1),
    )
    note("cuCtxRecordEvent(NULL)", lambda: driver.code("cuCtxRecordEvent", null_ctx, event))
    note("cuCtxWaitEvent(NULL)", lambda: driver.code("cuCtxWaitEvent", null_ctx, event))
    note(
        "cuGreenCtxRecordEvent, NULL event",
        lambda: driver.code("cuGreenCtxRecordEvent", green.handle, module.CUevent(0)),
    )
    note("cuGreenCtxGetDevResource(NULL)", lambda: queried(gpu, "cuGreenCtxGetDevResource", null_green))
    note("cuCtxFromGreenCtx(NULL)", lambda: driver.code("cuCtxFromGreenCtx", null_green))
    note("cuGreenCtxGetId(NULL)", lambda: driver.code("cuGreenCtxGetId", null_green))
    note(
        "cuGreenCtxStreamCreate(NULL)",
        lambda: driver.code("cuGreenCtxStreamCreate", null_green, STREAM_NON_BLOCKING, 0),
    )
    note("cuGreenCtxRecordEvent(NULL)", lambda: driver.code("cuGreenCtxRecordEvent", null_green, event))
    note("cuGreenCtxDestroy(NULL)", lambda: driver.code("cuGreenCtxDestroy", null_green))
    return note.answers


def misuse_no_current_context(gpu: Gpu, note: Note) -> Any:
    """Which of the calls need a current context."""
    driver = gpu.driver
    group = gpu.groups(8)[:1]
    gpu.preload()
    driver.must("cuCtxSetCurrent", gpu.driver.module.CUcontext(0))
    note("current", lambda: current(gpu))
    note("device resource", lambda: queried(gpu, "cuDeviceGetDevResource", gpu.device))
    note("split", lambda: gpu.split_row(gpu.whole, 8, 0, 1))
    green = None
    try:
        green = Green(gpu, group)
    except (Refused, RuntimeError) as error:
        note.answers["create"] = str(error)
    note("current after a create", lambda: current(gpu))
    if green is not None:
        note("cuGreenCtxGetDevResource", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
        note("cuStreamSynchronize", lambda: driver.code("cuStreamSynchronize", green.stream))
        note("cuStreamGetGreenCtx", lambda: driver.code("cuStreamGetGreenCtx", green.stream))
        note("launch on its stream", lambda: gpu.launch(green.stream, 1, 1000))
        note("cuEventCreate", lambda: driver.code("cuEventCreate", EVENT_DISABLE_TIMING))
        note("cuStreamGetCtx of the NULL stream", lambda: driver.code("cuStreamGetCtx", 0))
        note("cuStreamGetGreenCtx of the NULL stream", lambda: driver.code("cuStreamGetGreenCtx", 0))
        note("cuStreamDestroy", lambda: driver.code("cuStreamDestroy", green.stream))
        note("cuGreenCtxDestroy", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    return note.answers


def misuse_primary_released(gpu: Gpu, note: Note) -> Any:
    """Creation retains the primary context: it stays active when everybody else has let it go."""
    driver = gpu.driver
    green = first_group(gpu)
    active = lambda: list(driver.call("cuDevicePrimaryCtxGetState", gpu.device)[1])  # noqa: E731
    note("active [flags, active] with the green context", active)
    note("release", lambda: driver.code("cuDevicePrimaryCtxRelease", gpu.device))
    note("active after it", active)
    note("cuGreenCtxGetDevResource", lambda: queried(gpu, "cuGreenCtxGetDevResource", green.handle))
    note("cuStreamSynchronize", lambda: driver.code("cuStreamSynchronize", green.stream))
    note("cuStreamDestroy", lambda: driver.code("cuStreamDestroy", green.stream))
    note("cuGreenCtxDestroy", lambda: driver.code("cuGreenCtxDestroy", green.handle))
    note("active after the destroy", active)
    return note.answers


def misuse_primary_closed(gpu: Gpu, note: Note) -> Any:
    """One library releases and resets what another one has retained and made current (cuda.close() of Numba does)."""
    driver = gpu.driver
    active = lambda: list(driver.call("cuDevicePrimaryCtxGetState", gpu.device)[1])  # noqa: E731

    def use(when: str) -> None:
        note(f"{when}: cuCtxSetCurrent", lambda: driver.code("cuCtxSetCurrent", gpu.primary))
        note(f"{when}: cuMemGetInfo", lambda: driver.code("cuMemGetInfo"))
        note(f"{when}: cuMemAlloc", lambda: driver.code("cuMemAlloc", 4096))
        note(f"{when}: cuCtxSynchronize", lambda: driver.code("cuCtxSynchronize"))

    note("release", lambda: driver.code("cuDevicePrimaryCtxRelease", gpu.device))
    note("active [flags, active] after it", active)
    note("reset", lambda: driver.code("cuDevicePrimaryCtxReset", gpu.device))
    note("active after the reset", active)
    use("by the other library")
    note("active then", active)
    again = note("retained again", lambda: driver.code("cuDevicePrimaryCtxRetain", gpu.device))
    if again == 0:
        use("by the other library after that")
    return note.answers


def misuse_inner_after_outer(gpu: Gpu, note: Note) -> Any:
    """Groups split from a context's resource, used after that context is gone."""
    driver, outer = gpu.driver, Green(gpu, gpu.groups(16)[:1])
    held = driver.must("cuGreenCtxGetDevResource", outer.handle, gpu.resource_type(SM))
    inner = gpu.groups(8, 0, 2, held)
    outer.close()
    note("an inner group", lambda: gpu.smids_of(inner[:1]))
    note("split of the query's result", lambda: gpu.split_row(held, 8, 0, 2))
    note("the query's result", lambda: gpu.smids_of([held]))
    return note.answers


def misuse_edited(gpu: Gpu, note: Note) -> Any:
    """Resources whose public fields somebody changed: whether the driver notices."""
    group = gpu.groups(16)[0]
    group.sm.smCount = 8
    note("smCount 16 changed to 8, as a descriptor", lambda: gpu.smids_of([group]))
    whole = device_resource(gpu)
    whole.sm.smCount = 64
    note("device changed to 64, split by 8", lambda: gpu.split_row(whole, 8, 0, gpu.sm_count))
    note("device changed to 64, split by 120", lambda: gpu.split_row(whole, 120, 0, gpu.sm_count))
    note("device changed to 64, as a descriptor", lambda: gpu.smids_of([whole]))
    return note.answers


def misuse_threads(gpu: Gpu, note: Note) -> Any:
    """One green context current to two threads at once."""
    driver, green = gpu.driver, first_group(gpu)
    note("this thread", lambda: driver.code("cuCtxSetCurrent", green.ctx))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        note("another thread", lambda: pool.submit(driver.code, "cuCtxSetCurrent", green.ctx).result())
        note("launch from another thread", lambda: pool.submit(gpu.launch, green.stream, 1, 1000).result())
        note("launch from this thread", lambda: gpu.launch(green.stream, 1, 1000))
        note("cuCtxSynchronize here", lambda: driver.code("cuCtxSynchronize"))
        note("cuCtxSynchronize there", lambda: pool.submit(driver.code, "cuCtxSynchronize").result())
    return note.answers


def misuse_forked(gpu: Gpu, note: Note) -> Any:
    """Calls in the child of a fork, whose answers come back through a pipe."""
    driver, read_write = gpu.driver, os.pipe()
    error = driver.module.CUresult(1)
    calls: dict[str, tuple[Any, ...]] = {
        "cuInit": (0,),
        "cuDriverGetVersion": (),
        "cuGetErrorName": (error,),
        "cuGetErrorString": (error,),
        "cuGetProcAddress": (b"cuInit", 12000, 0),
        "cuDeviceGet": (0,),
        "cuDeviceGetCount": (),
        "cuCtxGetCurrent": (),
        "cuMemGetInfo": (),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks next to the driver's threads, the subject here
        child = os.fork()
    if child == 0:
        os.write(read_write[1], json.dumps({name: driver.code(name, *given) for name, given in calls.items()}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    answers = json.loads(os.read(read_write[0], 65536))
    for name in calls:
        note(f"in the child: {name}", lambda n=name: answers[n])
    note("in the parent: cuMemGetInfo", lambda: driver.code("cuMemGetInfo"))
    return note.answers


def misuse_capture_ended_elsewhere(gpu: Gpu, note: Note) -> Any:
    """Captures that another thread tries to end, twice, and that their own thread ends then."""
    driver, stream = gpu.driver, gpu.driver.must("cuStreamCreate", STREAM_NON_BLOCKING)

    def elsewhere() -> Any:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            code = pool.submit(driver.code, "cuStreamEndCapture", stream).result()
        return [code, int(driver.must("cuStreamIsCapturing", stream))]

    for mode in ("global", "thread_local", "relaxed"):
        driver.must("cuStreamBeginCapture", stream, capture(gpu, mode))
        note(f"{mode}: first attempt, and the status after it", elsewhere)
        note(f"{mode}: second attempt, and the status after it", elsewhere)
        note(f"{mode}: on its own thread", lambda: driver.code("cuStreamEndCapture", stream))
    return note.answers
