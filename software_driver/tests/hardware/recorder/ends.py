"""What becomes of work whose stream or green context is destroyed, and which waits cover it.

Each question makes a green context, gives its stream about 4 ms of work (of copies and fills: about 1 ms), destroys the
stream, the context or both, waits for something, and looks into host memory that the work writes. "later": the work was
done when other work, which takes longer, had ended. Copies and fills stand alone: behind a kernel they are over so soon
that a wait for the kernel is as good as one for them.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

from .gpu import EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, THREADS, Gpu, Green, capture
from .graph_waits import EVENT_BLOCKING_SYNC
from .notes import Note

SMS, WAVES, WAVE_CYCLES = 8, 4, 2_000_000  # a wave: about 1 ms
BLOCKS = WAVES * 2 * SMS
BYTES, LONG_BYTES, UNWRITTEN, WRITTEN = 4096, 64 << 20, 0xFF, 7
TIMES = 200
Call = Callable[[], Any]


class Bench:
    """A green context with work, and host memory that shows when the work is done."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.driver = gpu, gpu.driver
        self.groups = gpu.groups(SMS)[:1]
        self.stream = self.driver.must("cuStreamCreate", STREAM_NON_BLOCKING)  # of the primary context
        self.event = self.driver.must("cuEventCreate", EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC)
        self.host = int(self.driver.must("cuMemHostAlloc", LONG_BYTES, 0))
        self.shown = (ctypes.c_ubyte * BYTES).from_address(self.host)
        self.last = (ctypes.c_ubyte * BYTES).from_address(self.host + LONG_BYTES - BYTES)
        self.source = self.driver.must("cuMemAlloc", LONG_BYTES)
        self.driver.must("cuMemsetD8", self.source, WRITTEN, LONG_BYTES)
        gpu.launch(self.stream, 1, 1)
        self.driver.must("cuCtxSynchronize")
        self.green: Green

    def launch(self, out: int, stream: Any) -> None:
        """A block that begins writes a word, whose highest byte is 0, and stays for a wave."""
        values = (ctypes.c_uint64 * 2)(out, WAVE_CYCLES)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(values) + 8)
        kernel, shape = self.gpu.kernel("record_blocks"), (BLOCKS, 1, 1, THREADS, 1, 1, 0)
        self.driver.must("cuLaunchKernel", kernel, *shape, stream, ctypes.addressof(pointers), 0)

    def is_done(self) -> bool:
        copied = self.shown[BYTES - 1] == WRITTEN
        return self.last[BYTES - 1] == WRITTEN if self.is_long else copied or not any(self.shown[3 : 4 * BLOCKS : 4])

    # Works, for the stream of the green context.

    def kernel(self) -> None:
        self.launch(self.host, self.green.stream)

    def short_copy(self) -> None:
        self.driver.must("cuMemcpyDtoHAsync", self.host, self.source, BYTES, self.green.stream)

    def fill_and_copy(self) -> None:
        self.driver.must("cuMemsetD8Async", self.source, WRITTEN, BYTES, self.green.stream)
        self.short_copy()

    def long_copy(self) -> None:
        self.is_long = True
        self.driver.must("cuMemcpyDtoHAsync", self.host, self.source, LONG_BYTES, self.green.stream)

    def long_fill(self) -> None:
        self.is_long = True
        self.driver.must("cuMemsetD8Async", self.host, WRITTEN, LONG_BYTES, self.green.stream)

    def in_graph(self, work: Call) -> Call:
        def launch() -> None:
            driver, stream = self.driver, self.green.stream
            driver.must("cuStreamBeginCapture", stream, capture(self.gpu, "relaxed"))
            work()
            graph = driver.must("cuGraphInstantiate", driver.must("cuStreamEndCapture", stream), 0)
            driver.must("cuGraphLaunch", graph, stream)

        return launch

    # What is destroyed.

    def destroy_stream(self) -> None:
        self.driver.must("cuStreamDestroy", self.green.stream)
        self.green.stream = None

    def destroy_context(self) -> None:
        self.driver.must("cuGreenCtxDestroy", self.green.handle)
        self.green.stream = self.green.handle = None

    # Waits.

    def wait(self) -> None:
        self.driver.must("cuCtxSynchronize")

    def wait_in_green(self) -> None:
        self.driver.must("cuCtxPushCurrent", self.green.ctx)
        self.driver.must("cuCtxSynchronize")
        self.driver.must("cuCtxPopCurrent")

    def wait_for_event(self) -> None:
        self.driver.must("cuEventSynchronize", self.event)

    def record_primary(self) -> None:
        self.driver.must("cuCtxRecordEvent", self.gpu.primary, self.event)

    def record_green(self) -> None:
        self.driver.must("cuGreenCtxRecordEvent", self.green.handle, self.event)

    def record_stream(self) -> None:
        self.driver.must("cuEventRecord", self.event, self.green.stream)

    def let_primary_stream_wait(self) -> None:
        self.driver.must("cuStreamWaitEvent", self.stream, self.event, 0)

    def wait_for_legacy(self) -> None:
        self.driver.must("cuStreamSynchronize", self.driver.module.CUstream(1))

    def free_other(self) -> None:
        self.driver.must("cuMemFree", self.other)

    def ask(self, work: Call, before: tuple[Call, ...], destroy: tuple[Call, ...], after: tuple[Call, ...]) -> str:
        self.is_long = False
        for page in (self.shown, self.last):
            ctypes.memset(page, UNWRITTEN, BYTES)
        self.other = self.driver.must("cuMemAlloc", BYTES)
        self.green = Green(self.gpu, self.groups)
        for call in (work, *before, *destroy, *after):
            call()
        answer = "done" if self.is_done() else ""
        if not answer:
            for _ in range(2 * WAVES):
                self.launch(int(self.gpu.out), self.stream)
            self.driver.must("cuStreamSynchronize", self.stream)
        if self.green.stream is not None:
            self.driver.must("cuStreamSynchronize", self.green.stream)
        self.green.close()
        return answer or ("later" if self.is_done() else "never")


def recorder_of(name: str, of: Callable[[Bench], Call]) -> Callable[[Gpu, Note], Any]:
    def record(gpu: Gpu, note: Note) -> Any:
        bench = Bench(gpu)
        stream, context = bench.destroy_stream, bench.destroy_context
        destroys: dict[str, tuple[Call, ...]] = {
            "nothing": (),
            "the stream": (stream,),
            "the context": (context,),
            "the stream and the context": (stream, context),
        }
        # What is called before the end, and after it; the last ones need the context.
        always: dict[str, tuple[tuple[Call, ...], tuple[Call, ...]]] = {
            "nothing": ((), ()),
            "the primary context": ((), (bench.wait,)),
            "an event of the primary context": ((), (bench.record_primary, bench.wait_for_event)),
            "an event of the stream, recorded before": ((bench.record_stream,), (bench.wait_for_event,)),
            "an event of the green context, recorded before": ((bench.record_green,), (bench.wait_for_event,)),
            "the primary context, with an event of the green one before": ((bench.record_green,), (bench.wait,)),
            "the primary context, one of whose streams waits for an event of the green one": (
                (bench.record_green, bench.let_primary_stream_wait),
                (bench.wait,),
            ),
            "the legacy stream of the primary context": ((), (bench.wait_for_legacy,)),
            "cuMemFree of other memory": ((), (bench.free_other,)),
        }
        while_there: dict[str, tuple[tuple[Call, ...], tuple[Call, ...]]] = {
            "the green context": ((), (bench.wait_in_green,)),
            "an event of the green context": ((), (bench.record_green, bench.wait_for_event)),
            "the primary context, behind an event of the green one": ((), (bench.record_green, bench.wait)),
        }
        for destroyed, destroy in destroys.items():
            for waited, (before, after) in (always if context in destroy else always | while_there).items():
                note(
                    f"{name}, {destroyed} destroyed, wait for {waited}",
                    lambda b=before, d=destroy, a=after: bench.ask(of(bench), b, d, a),
                )
        return note.answers

    return record


def record_repeated(gpu: Gpu, note: Note) -> Any:
    """What one answer cannot show: a wait that ends too early now and then. How often is not compared."""
    bench = Bench(gpu)
    for name, work in (("a short copy", bench.short_copy), ("a fill and a short copy", bench.fill_and_copy)):
        for destroyed, destroy in (("nothing", ()), ("the context", (bench.destroy_context,))):

            def repeated(work: Call = work, destroy: tuple[Call, ...] = destroy) -> Any:
                return {"measured": Counter(bench.ask(work, (), destroy, (bench.wait,)) for _ in range(TIMES))}

            note(f"{name}, {destroyed} destroyed, {TIMES} waits for the primary context", repeated)
    return note.answers


SECTIONS = {
    "ends.repeated": record_repeated,
    "ends.kernel": recorder_of("a kernel", lambda bench: bench.kernel),
    "ends.graph": recorder_of("a graph", lambda bench: bench.in_graph(bench.kernel)),
    "ends.long_copy": recorder_of("a long copy", lambda bench: bench.long_copy),
    "ends.long_fill": recorder_of("a long fill", lambda bench: bench.long_fill),
    "ends.graph_of_long_copy": recorder_of("a graph of a long copy", lambda bench: bench.in_graph(bench.long_copy)),
}
