"""The contract of every function (functions.def), asked of the software driver by the recorder's own loop."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx.sim import library_path, session

from ..hardware.recorder.contract import FUNCTIONS, PTX, Questions, World, ask

pytestmark = pytest.mark.sim_only

ROOT = Path(__file__).resolve().parents[2]
CALLS = ROOT / "cuda_gctx" / "sim" / "_cpp" / "calls"
INVALID_VALUE, INVALID_CONTEXT, DESTROYED, NOT_PERMITTED = 1, 201, 709, 800
INVALID_HANDLE, UNSUPPORTED, INVALIDATED = 400, 900, 901
ALL_VERSIONS = "13.5"
# Of these the first answer is another: there is nothing to refuse, or the question is about the capture itself.
WITHOUT_REFUSAL = {"cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"}


@pytest.fixture(scope="module")
def library() -> Any:
    return ctypes.CDLL(library_path())


@pytest.fixture
def world(library: Any) -> Iterator[World]:
    with session("h200", ALL_VERSIONS, check=False):
        yield World(library)


def answers_of(symbol: str, library: Any, question: Any) -> dict[str, Any]:
    with session("h200", ALL_VERSIONS, check=False):
        return ask(symbol, library, question)


@pytest.mark.parametrize("question", Questions.ALL, ids=lambda question: question.__name__)
def test_every_function_does_as_its_row_says(question: Any, library: Any) -> None:
    for symbol, row in FUNCTIONS.items():
        found = answers_of(symbol, library, question)
        if question is Questions.refused:
            assert all(code == INVALID_VALUE for code in found.values()), (symbol, found)
            assert len(found) >= len(row["needed"]), (symbol, found)
        elif question is Questions.without_context:
            assert not row.get("context") or found == {"no context": INVALID_CONTEXT}, (symbol, found)
        elif question is Questions.called_back:
            code = found.get("callback", 0)
            assert code != NOT_PERMITTED if row.get("early") else code == NOT_PERMITTED, (symbol, found)
        else:
            check_captures(symbol, row["in_capture"], found)


def check_captures(symbol: str, rule: str, found: dict[str, Any]) -> None:
    killed = [UNSUPPORTED, "invalidated"]
    beside, own = found.get("capture"), found.get("capture of its stream")
    # The capture is one of the primary context.
    if beside is not None and (rule in ("unsafe", "context") or (rule == "whole" and "Green" not in symbol)):
        assert beside == killed, (symbol, found)
    elif beside is not None and symbol not in WITHOUT_REFUSAL:
        assert beside[1] == "active", (symbol, found)
    if own is not None and rule in ("own", "context"):
        assert own == killed, (symbol, found)


def test_no_function_checks_by_hand_what_its_row_says() -> None:
    """Null results, flags, captures and callbacks are the frame's business."""
    by_hand = re.compile(
        r"((\w+) == nullptr|(?<![>.])\b[Ff]lags? (?:&|>|!=|==) [^;{]*)\) \{\s*return CUDA_ERROR_INVALID_VALUE"
        r"|disturbs_capture|capture->invalidate|is_inside_function"
    )
    found = []
    for path in sorted(CALLS.glob("*.cpp")):
        for definition in re.split(r"^GCTX_SIM_CALL\(", path.read_text(), flags=re.MULTILINE)[1:]:
            head, body = definition.split("{", 1)
            body = body.split("\n}\n" if body.startswith("\n") else "\n", 1)[0]
            parameters = re.findall(r"\*+ ?(\w+)[,)]", head)
            found += [
                (path.name, head, match[0])
                for match in by_hand.finditer(body)
                if not match[2] or match[2] in parameters
            ]
    assert found == []


def test_a_watchdog_that_asks_an_event_ends_a_global_capture_of_another_thread(world: World) -> None:
    """With a mode of its own that is not global, it may ask."""
    capturing, event, graph = world["capturing"], world["CUevent"], world.buffer()
    answers = {}

    def ask_event(mode: int) -> None:
        world.must("cuCtxSetCurrent", world["CUcontext"])
        world.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(mode)))
        answers[mode] = world.code("cuEventQuery", event)

    for mode, expected, end in ((1, 0, 0), (0, UNSUPPORTED, INVALIDATED)):
        world.must("cuStreamBeginCapture_v2", capturing, 0)
        watchdog = threading.Thread(target=ask_event, args=(mode,))
        watchdog.start()
        watchdog.join()
        assert answers[mode] == expected
        assert world.code("cuStreamEndCapture", capturing, graph) == end


def test_a_callback_that_frees_or_destroys_is_not_permitted(world: World) -> None:
    memory, stream, other, event = world["CUdeviceptr"], world["capturing"], world["CUstream"], world["CUevent"]
    green, primary, out = world["CUgreenCtx"], world["CUcontext"], world.buffer()
    codes: list[int] = []
    calls = (
        ("cuMemFree_v2", memory),
        ("cuEventRecord", event, other),
        ("cuStreamDestroy_v2", other),
        ("cuGreenCtxDestroy", green),
        ("cuDevicePrimaryCtxRetain", out, 0),
        ("cuCtxSetCurrent", primary),
        ("cuMemAlloc_v2", out, 64),
        ("cuEventQuery", event),
        ("cuDeviceGetCount", out),
    )

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def callback(*_: Any) -> None:
        codes.extend(world.code(*call) for call in calls)

    world.must("cuStreamAddCallback", stream, callback, None, 0)
    world.must("cuStreamSynchronize", stream)
    assert codes == [NOT_PERMITTED] * len(calls)
    for name, handle in (("cuStreamDestroy_v2", other), ("cuEventDestroy_v2", event), ("cuMemFree_v2", memory)):
        world.must(name, handle)


def own_context(world: World) -> int:
    """A context that cuCtxCreate made, current."""
    return world.out("cuCtxCreate_v2", 0, 0)


def used(world: World) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    world.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def test_a_context_takes_its_memory_modules_and_events_with_it(world: World) -> None:
    before, primary = used(world), world["CUcontext"]
    context = own_context(world)
    memory = world.out("cuMemAlloc_v2", 64 << 20)
    module = world.out("cuModuleLoadData", world.buffer(PTX))
    function = world.out("cuModuleGetFunction", module, b"nothing")
    array, event = world.array(), world.out("cuEventCreate", 0)
    world.must("cuCtxDestroy_v2", context)
    world.must("cuCtxSetCurrent", primary)
    assert used(world) == before
    assert world.code("cuMemcpyDtoH_v2", world.buffer(), memory, 4) == INVALID_VALUE
    assert world.code("cuMemFree_v2", memory) == INVALID_VALUE
    assert world.code("cuModuleUnload", module) == INVALID_HANDLE
    assert world.code("cuFuncLoad", function) == INVALID_HANDLE
    assert world.code("cuArrayDestroy", array) == INVALID_HANDLE
    assert world.code("cuEventRecord", event, None) == DESTROYED


def test_the_last_release_resets_the_primary_context(world: World) -> None:
    before, memory, module = used(world), world["CUdeviceptr"], world["CUmodule"]
    pooled = world.out("cuMemAllocAsync", 1 << 20, world["CUstream"])
    world.must("cuDevicePrimaryCtxRelease_v2", 0)
    world.must("cuCtxSetCurrent", world.out("cuDevicePrimaryCtxRetain", 0))
    assert used(world) == before
    for address in (memory, pooled):
        assert world.code("cuMemFree_v2", address) == INVALID_VALUE
    assert world.code("cuModuleUnload", module) == INVALID_HANDLE


def test_a_context_waits_for_its_work_before_its_memory_goes(world: World) -> None:
    context = own_context(world)
    stream, memory = world.out("cuStreamCreate", 1), world.out("cuMemAlloc_v2", 1 << 20)
    kept = (ctypes.c_ubyte * (1 << 20))()
    world.must("cuMemHostRegister_v2", ctypes.addressof(kept), len(kept), 0)
    world.must("cuMemsetD8Async", memory, 7, len(kept), stream)
    world.must("cuMemcpyDtoHAsync_v2", ctypes.addressof(kept), memory, len(kept), stream)
    world.must("cuCtxDestroy_v2", context)
    assert set(kept) == {7}


def test_a_function_is_of_the_context_that_its_module_was_loaded_in(world: World) -> None:
    function, kernel = world["CUfunction"], world["CUkernel"]
    own_context(world)
    stream = world.out("cuStreamCreate", 1)
    shape = (1, 1, 1, 1, 1, 1, 0, stream, None, None)
    assert world.code("cuLaunchKernel", function, *shape) == INVALID_HANDLE
    assert world.code("cuLaunchKernel", kernel, *shape) == 0


@pytest.mark.parametrize(("record", "call"), [(True, "cuEventRecordWithFlags"), (False, "cuStreamWaitEvent")])
def test_an_external_event_is_a_node_of_a_graph(world: World, record: bool, call: str) -> None:
    stream, event, graph, count = world["capturing"], world["CUevent"], ctypes.c_void_p(), ctypes.c_size_t()
    given = (event, stream, 1) if record else (stream, event, 1)
    assert world.code(call, *given) == INVALID_VALUE
    world.must("cuStreamBeginCapture_v2", stream, 0)
    world.must(call, *given)
    world.must("cuStreamEndCapture", stream, ctypes.byref(graph))
    world.must("cuGraphGetNodes", graph, None, ctypes.byref(count))
    assert count.value == 1
    node, kind, named = (ctypes.c_void_p * 1)(), ctypes.c_int(), ctypes.c_void_p()
    world.must("cuGraphGetNodes", graph, node, ctypes.byref(count))
    world.must("cuGraphNodeGetType", node[0], ctypes.byref(kind))
    asked = "cuGraphEventRecordNodeGetEvent" if record else "cuGraphEventWaitNodeGetEvent"
    world.must(asked, node[0], ctypes.byref(named))
    assert (kind.value, named.value) == (7 if record else 6, event)


def test_the_legacy_stream_ends_the_capture_of_a_blocking_stream(world: World) -> None:
    graph = world.buffer()
    for flags, expected, end in ((0, 906, INVALIDATED), (1, 0, 0)):
        stream = world.out("cuStreamCreate", flags)
        world.must("cuStreamBeginCapture_v2", stream, 2)
        assert world.code("cuMemsetD8Async", world["CUdeviceptr"], 0, 64, None) == expected
        assert world.code("cuStreamEndCapture", stream, graph) == end


@pytest.mark.parametrize("flags", [3, 5, 6, 7, 0x100])
def test_a_context_has_one_way_to_wait(world: World, flags: int) -> None:
    assert world.code("cuCtxCreate_v2", world.buffer(), flags, 0) == INVALID_VALUE
    assert world.code("cuDevicePrimaryCtxSetFlags_v2", 0, flags) == INVALID_VALUE
    assert world.code("cuCtxSetFlags", flags) == INVALID_VALUE


def test_limits_are_those_of_the_card(world: World) -> None:
    stack, l2_bytes, tebibyte = 0, 6, 1 << 40
    assert world.code("cuCtxSetLimit", stack, tebibyte) == INVALID_VALUE
    world.must("cuCtxSetLimit", l2_bytes, tebibyte)
    value = ctypes.c_size_t(1)
    world.must("cuCtxGetLimit", ctypes.byref(value), l2_bytes)
    attribute = ctypes.c_int()
    world.must("cuDeviceGetAttribute", ctypes.byref(attribute), 108, 0)
    assert value.value == attribute.value


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"7.0", b"9.9", 222),
        (b"sm_70", b"sm_120", 218),
        (b"ret;", b"this is no instruction;", 218),
        (b"ret;", b"ld.global.v2.u32 {%r1, %r2}, [%rd1]; @%p bra end; end: ret;", 0),
        (b"sm_70", b"sm_90a", 0),
    ],
)
@pytest.mark.parametrize("library_call", [False, True])
def test_ptx_is_for_this_driver_and_card(
    world: World, old: bytes, new: bytes, expected: int, library_call: bool
) -> None:
    image, out = world.buffer(PTX.replace(old, new)), world.buffer()
    call = (
        ("cuLibraryLoadData", out, image, None, None, 0, None, None, 0)
        if library_call
        else ("cuModuleLoadData", out, image)
    )
    assert world.code(*call) == expected


def test_a_graph_for_the_device_is_not_freed_automatically(world: World) -> None:
    """Documented: the two flags exclude each other."""
    assert world.code("cuGraphInstantiateWithFlags", world.buffer(), world["CUgraph"], 1 | 4) == INVALID_VALUE


def test_marks_of_an_idle_context_are_there_at_once() -> None:
    """Thousands of records that nobody asks for leave nothing behind: no time passes, and nothing is waited for."""
    with session("h200", ALL_VERSIONS, check=False) as machine:
        world = World(ctypes.CDLL(library_path()))
        event, context, stream = world.out("cuEventCreate", 0), world["CUcontext"], world["CUstream"]
        for _ in range(3000):
            world.must("cuCtxRecordEvent", context, event)
            world.must("cuEventRecord", event, stream)
            world.must("cuCtxWaitEvent", context, event)
        before = machine.time_ns()
        assert world.code("cuEventQuery", event) == 0
        assert machine.time_ns() - before < 1000


def test_records_of_a_busy_context_stand_for_all_before_them(world: World) -> None:
    """Each waits for the last one and for what came between, and the work is done when the last one is."""
    stream, host, events = world["CUstream"], world.pinned(), []
    memory = world["CUdeviceptr"]
    for value in range(1, 300):
        world.must("cuMemsetD8Async", memory, value % 251, 4096, stream)
        events.append(world.out("cuEventCreate", 2))
        world.must("cuCtxRecordEvent", world["CUcontext"], events[-1])
        world.must("cuMemcpyDtoHAsync_v2", host, memory, 4096, stream)
    world.must("cuCtxRecordEvent", world["CUcontext"], events[0])
    world.must("cuEventSynchronize", events[0])
    target = (ctypes.c_ubyte * 4096).from_address(host)
    assert set(target) == {299 % 251}
    assert all(world.code("cuEventQuery", event) == 0 for event in events)
