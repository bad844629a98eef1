"""The contract of every function (functions.def), asked of the software driver by the recorder's own loop."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_software_driver import library_path, session

from .hardware.recorder.contract import Questions
from .hardware.recorder.in_processes import answer
from .hardware.recorder.sentences import SENTENCES
from .hardware.recorder.world import FUNCTIONS, Unavailable, World

ROOT = Path(__file__).resolve().parents[1]
CALLS = ROOT / "cpp" / "calls"
INVALID_VALUE, INVALID_CONTEXT, NOT_PERMITTED, UNSUPPORTED, INVALIDATED, ISOLATION = 1, 201, 800, 900, 901, 905
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
        try:
            return dict(answer((question.__name__, symbol), World(library)))
        except Unavailable as why:
            return {question.__name__: str(why)}


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
            allowed = row.get("early") or row.get("in_callbacks")
            assert code != NOT_PERMITTED if allowed else code == NOT_PERMITTED, (symbol, found)
        elif question is Questions.invalidated:
            takes_stream = any(re.match(r"CUstream \w", one) for one in row["parameters"])
            if found and takes_stream and row["in_capture"] != "about":
                code = UNSUPPORTED if row["in_capture"] in ("own", "unsafe") else INVALIDATED
                assert found == {"invalid capture of its stream": [code, "invalidated"]}, symbol
        else:
            check_captures(symbol, row["in_capture"], found)


def check_captures(symbol: str, rule: str, found: dict[str, Any]) -> None:
    killed = [UNSUPPORTED, "invalidated"]
    beside, own = found.get("capture"), found.get("capture of its stream")
    # The capture is one of the primary context.
    of_whole = rule in ("whole", "awaited") and "Green" not in symbol
    if beside is not None and (rule in ("unsafe", "beside") or of_whole):
        assert beside == killed, (symbol, found)
    elif beside is not None and symbol not in WITHOUT_REFUSAL:
        assert beside[1] == "active", (symbol, found)
    if own is not None and rule == "own":
        assert own == killed, (symbol, found)
    if rule == "joining":
        assert own == [ISOLATION, "invalidated"], (symbol, found)


def test_the_rows_name_the_sentences_that_are_tried() -> None:
    rows = {number: symbol for symbol, row in FUNCTIONS.items() for number in row.get("says", [])}
    assert rows == {number: sentence.function for number, sentence in SENTENCES.items()}


# What a function of the folder must not refuse by itself: a null argument, or flags, of its own parameters. Members of
# structures, and pointers that are needed with something else only, are not arguments that a row could name.
REFUSED_BY_HAND = re.compile(
    r"refuse_if\((?:(?!&&)[^;])*?(?<![>.\w])(?:(\w+) == nullptr|([Ff]lags?) (?:&|>|!=|==) [^;]*?),"
    r"\s*CUDA_ERROR_INVALID_VALUE"
)
# What no function but the frame asks, the bodies of rows and what they call included.
ASKED_BY_HAND = re.compile(r"disturbs_capture|capture->invalidate|refuse_in\(|is_inside_function")
# Those that change captures all the same, and why no row says it.
CHANGES_CAPTURES = {
    "contexts.cpp": {"detach_children": "captures end with the context of their streams, and nothing is refused"},
    "queueing.cpp": {"may_queue": "the order of a context's streams, whichever function queues"},
}
DEFINITION = re.compile(
    r"^(?!struct|class|namespace|enum|#|//|\s|\})(?P<head>[^\n;{}]*\([^;{}]*\))[^\n;{}]* \{(?P<body>[^\n]*\}$|.*?^\}$)",
    re.MULTILINE | re.DOTALL,
)


def checks_by_hand(text: str) -> tuple[int, list[str]]:
    """The number of functions, and what some of them check though their rows say it."""
    found = []
    definitions = list(DEFINITION.finditer(text))
    for definition in definitions:
        head, body = definition["head"], definition["body"]
        parameters = re.findall(r"(\w+)(?= ?[,)=])", head)
        refused = (match for match in REFUSED_BY_HAND.finditer(body) if (match[1] or match[2]) in parameters)
        found += [f"{head}: {match[0]}" for match in refused]
        found += [f"{head}: {match[0]}" for match in ASKED_BY_HAND.finditer(body)]
    return len(definitions), found


def test_no_function_checks_by_hand_what_its_row_says() -> None:
    """Null results, flags, captures and callbacks are the frame's business."""
    functions = 0
    for path in sorted(CALLS.glob("*.cpp")):
        number, found = checks_by_hand(path.read_text())
        functions += number
        if path.name != "entry.cpp":  # the frame
            allowed = sorted(CHANGES_CAPTURES.get(path.name, {}))
            assert [re.split(r"\W+", one.partition("(")[0])[-1] for one in found] == allowed, (path.name, found)
    assert functions > 400


@pytest.mark.parametrize(
    "body",
    [
        "refuse_if(out == nullptr, CUDA_ERROR_INVALID_VALUE);",
        "refuse_if(count == 0 || out == nullptr, CUDA_ERROR_INVALID_VALUE);",
        "refuse_if((flags & ~1u) != 0, CUDA_ERROR_INVALID_VALUE);",
        "refuse_if(flags > 3,\n            CUDA_ERROR_INVALID_VALUE);",
        "if (stream.capture) {\n    stream.capture->invalidate();\n  }",
        "if (stream.capture) {\n    extend(stream);\n  }\n  refuse_if(out == nullptr, CUDA_ERROR_INVALID_VALUE);",
    ],
)
@pytest.mark.parametrize("head", ["SOFTWARE_DRIVER_CALL(cuThing, ", "void body_of_a_row("])
def test_a_check_by_hand_is_seen(head: str, body: str) -> None:
    text = f"{head}Call& c, Stream& stream, unsigned flags, int* out) {{\n  {body}\n}}\n"
    assert checks_by_hand(text)[0] == 1
    assert len(checks_by_hand(text)[1]) == 1


@pytest.mark.parametrize("waiting", ["cuCtxWaitEvent", "cuGreenCtxWaitEvent"])
def test_a_context_that_waits_for_a_captured_event_invalidates_the_capture(world: World, waiting: str) -> None:
    """Also where none of its own streams is capturing."""
    green, event = world["CUgreenCtx"], world["CUevent"]
    others = world.out("cuGreenCtxStreamCreate", green, 1, 0) if waiting == "cuCtxWaitEvent" else world["capturing"]
    context = world["CUcontext"] if waiting == "cuCtxWaitEvent" else green
    world.must("cuStreamBeginCapture_v2", others, 2)
    world.must("cuEventRecord", event, others)
    assert world.code(waiting, context, event) == UNSUPPORTED
    assert world.code("cuStreamEndCapture", others, world.buffer()) == INVALIDATED


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
