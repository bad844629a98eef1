"""Random programs of the whole API, against a small model and the software driver's ledger.

    python -m tests.trust.state_machine [--operations 300000] [--seed 0]

The threads, tasks and turns, and the model of what is current, are those of tests/core/block_model.py; the operations
of a pool, and the model of what may run at once, are those of tests/partitions/order_model.py. Here are streams,
events, captures, graphs, partitions, the store, blocks of torch (its stand-in), and collections. The model knows which
objects are closed, which streams are part of a capture, and after which work each piece of work has to begin, which the
device's timer shows. At the end nothing may be left with the driver.

After each operation every capture goes on. While streams capture, those that a pool has lent or not, a pool switches,
builds, drops, verifies and closes: the model knows what it refuses, after which nothing has changed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from cuda_gctx import (
    CapturingError,
    ClosedError,
    ContextCurrentError,
    CUDAError,
    Device,
    Event,
    EventOptions,
    FeatureNotSupported,
    Graph,
    GraphExec,
    Layout,
    PartitionPool,
    Partitions,
    ResourceOverlapError,
    SplitError,
    Stream,
    StreamOptions,
    partitions,
)
from cuda_gctx.interop import torch as torch_room
from cuda_gctx.partitions import with_background
from cuda_gctx.partitions.partitions import lent_streams
from cuda_gctx.tune import Plan, Timeline, spin
from tests.core import block_model
from tests.core.block_model import Held, Line, Wrong
from tests.partitions import order_model
from tests.stand_in_torch import StandInTorch

DRIVERS = ("12.4", "12.8", "13.0", "13.1", "13.4")
OPERATIONS = 300_000
MOST_SPANS = 1500
CAPTURES = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
EVENT_WITHOUT_TIMES = 2
MOST = {"flows": 10, "marks": 8, "graphs": 4, "launches": 5, "opened": 3, "recordings": 2}

After = dict[int, int]  # pieces of work, and the time that has to pass after each


@dataclass(eq=False)
class Recording:
    """A capture that goes on."""

    origin: Flow
    capture: Any
    line: Line | None  # the only one whose thread can end it
    ns: int = 0  # what its first stream takes at least
    kernels: int = 0
    joined: set[int] = field(default_factory=set)  # handles of streams that a switch has taken into it
    is_over: bool = False


@dataclass(eq=False)
class Flow:
    """A stream, and after which work its next piece begins."""

    name: str
    stream: Stream
    held: Held
    after: After = field(default_factory=dict)
    recording: Recording | None = None
    is_closed: bool = False
    is_of_pool: bool = False

    def __post_init__(self) -> None:
        self.handle, self.is_owned = self.stream.handle, self.stream.is_owned


@dataclass(eq=False)
class Mark:
    """An event, and what it was recorded behind."""

    name: str
    event: Event
    of: Flow
    after: After
    recording: Recording | None
    is_timed: bool
    at: int  # the operation that recorded it
    is_closed: bool = False


@dataclass(eq=False)
class Recorded:
    """A graph."""

    name: str
    graph: Graph
    ns: int
    kernels: int
    held: Held
    is_closed: bool = False


@dataclass(eq=False)
class Launch:
    """An executable graph."""

    name: str
    graph: GraphExec
    of: Recorded
    handle: int  # of the context in which its kernels run
    was_launched: bool = False
    is_closed: bool = False


@dataclass(eq=False)
class Opened:
    """Partitions, and their contexts."""

    name: str
    parts: Partitions
    held: list[Held]
    is_closed: bool = False


@dataclass(eq=False)
class TorchBlock:
    """A block of torch of a thread."""

    name: str
    block: Any
    handle: int
    line: Line
    is_left: bool = False


@dataclass(frozen=True)
class Reach:
    """The handles of what a switch from or to a layout or plan looks at: contexts, and streams that the pool lends."""

    contexts: frozenset[int]
    lent: frozenset[int]


class OfPool(order_model.Program):
    """The program of a pool, which knows the streams that capture."""

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.pool = PartitionPool(device)
        self.on_device: dict[Plan, list[Stream]] = {}  # of each plan, at the last switch to it
        self.current: Layout | Plan | None = None
        self.has_left = False  # arrangements in a capture, after which no switch was made
        self.captured: Collection[int] = ()

    def usable(self) -> dict[str, Stream]:
        return {part: stream for part, stream in super().usable().items() if stream.handle not in self.captured}

    def switch_to(self, history: order_model.History, target: Layout | Plan) -> None:
        super().switch_to(history, target)
        # A switch to where it is does nothing during a capture.
        self.has_left = history is not self.histories[0] or (self.has_left and target == self.current)
        self.current = target
        if isinstance(target, Plan):
            self.on_device[target] = [stream for stream in self.streams.values() if not stream.context.is_green]

    def knows(self, target: Layout | Plan | None) -> bool:
        """Whether a switch enters the same streams on the device as before."""
        if not isinstance(target, Plan):
            return True
        return target in self.on_device and not any(stream.is_closed for stream in self.on_device[target])

    def device_streams(self) -> list[Stream]:
        """Those of plans that are open."""
        return [stream for streams in self.on_device.values() for stream in streams if not stream.is_closed]

    def known_target(self) -> Layout | Plan | None:
        """One in layouts that are built, and whose SMs a kernel has shown."""
        every, self.layouts = self.layouts, [layout for layout in self.layouts if self.is_known(layout)]
        try:
            return self.target() if self.layouts else None
        finally:
            self.layouts = every

    def is_known(self, layout: Layout) -> bool:
        return layout in self.pool.layouts and all(
            part.context.id in self.sms_of for part in with_background(self.pool.prepare(layout))
        )

    def reach(self, target: Layout | Plan | None) -> Reach:
        layout = target.layout if isinstance(target, Plan) else target
        parts = {part.name: part for part in with_background(self.pool.prepare(layout))} if layout is not None else {}
        streams: list[Stream] = []
        if isinstance(target, Plan):
            parts = {name: parts[name] for name in target.places.values()}
            streams = [*self.on_device.get(target, ()), *(part.stream for part in parts.values())]  # which it lends
        streams += [stream for part in parts.values() for stream in lent_streams(part)]
        return Reach(
            frozenset(part.context.handle for part in parts.values()),
            frozenset(stream.handle for stream in streams if not stream.is_closed),
        )


class Program(block_model.Program):
    """A program of everything."""

    weights: Mapping[str, float] = {
        **{name: weight * 0.6 for name, weight in block_model.WEIGHTS.items()},
        "make_stream": 4,
        "close_stream": 3,
        "drop_stream": 1.5,
        "work": 9,
        "record": 6,
        "wait": 6,
        "wait_stream": 3,
        "look": 4,
        "time_events": 2,
        "close_mark": 2,
        "drop_mark": 1,
        "begin_capture": 2.5,
        "end_capture": 4,
        "leave_capture": 0.5,
        "make_graph": 3,
        "launch": 5,
        "close_graph": 1.5,
        "close_launch": 2,
        "open_parts": 3,
        "close_parts": 3,
        "lend": 4,
        "lend_of_pool": 3,
        "wait_context": 2,
        "sync_context": 2,
        "pool_operation": 5,
        "close_pool": 0.3,
        "drop_store": 0.6,
        "split": 2,
        "enter_torch": 4,
        "leave_torch": 5,
        "collect": 0.7,
        "tie": 1.5,
    }
    leaves_nothing = True
    schedulers: Sequence[str] = ("asyncio", "trio", "anyio on trio", "gevent", "greenlet")

    def __init__(
        self, machine: Any, seed: int, operations: int, every: int = block_model.EVERY, omitted: Collection[int] = ()
    ) -> None:
        gc.collect()
        gc.disable()  # so that objects die when an operation says so
        super().__init__(machine, seed, operations, every, omitted)
        self.flows: list[Flow] = []
        self.marks: list[Mark] = []
        self.recordings: list[Recording] = []
        self.graphs: list[Recorded] = []
        self.launches: list[Launch] = []
        self.opened: list[Opened] = []
        self.of_parts: list[Held] = []
        self.torch_blocks: list[TorchBlock] = []
        self.pool: OfPool | None = None
        self.closed_pools: list[OfPool] = []
        self.of_pool: dict[int, Held] = {}
        self.timeline = Timeline(self.dev, spans=MOST_SPANS)
        self.before: list[tuple[int, After]] = []  # for each piece of work, those that it comes after
        self.seen: set[int] = set()  # contexts whose streams torch has seen, and which lend them again
        self.torch = StandInTorch()
        self.default_torch = self.torch.cuda.current_stream().cuda_stream

    def run(self) -> str:
        real = sys.modules.get("torch")
        sys.modules["torch"] = self.torch
        try:
            return super().run()
        finally:
            gc.enable()
            if real is None:
                del sys.modules["torch"]
            else:
                sys.modules["torch"] = real

    # ---- what is judged

    def named(self, kind: str) -> str:
        return f"{kind} {next(self.numbers)}"

    def some(self, things: Sequence[Any], most_closed: int = 6) -> Any:
        """One of them, or None."""
        return self.random.choice(things) if things else None

    def refused(self, *reasons: tuple[type[Exception], bool]) -> type[Exception] | None:
        return next((kind for kind, is_so in reasons if is_so), None)

    def tried(self, action: Callable[[], Any], *allowed: type[Exception]) -> Any:
        """What an action returns; None if it raises one of these, in which case nothing has changed."""
        try:
            return action()
        except allowed as error:
            self.say(f"(raises {type(error).__name__})")
            return None

    def unless_capturing(self, action: Callable[[], Any], *allowed: type[Exception]) -> Any:
        return self.tried(action, *allowed, *((CapturingError,) if self.recordings else ()))

    def judge(self, line: Line) -> None:
        super().judge(line)
        for recording in self.recordings:
            if not self.captures(recording.origin.handle):
                raise Wrong(f"the capture of {recording.origin.name} has ended")

    def captures(self, stream: int) -> bool:
        """Whether the driver says that a stream captures, and that nothing has spoiled the capture."""
        status = ctypes.c_int()
        self.raw.call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value == CAPTURES

    def check_work(self) -> None:
        """No piece of work began before what it had to come after."""
        times = {int(span.name): (span.start_ns, span.end_ns) for span in self.timeline.read().spans}
        for number, after in self.before:
            for earlier, gap in after.items():
                early = times[earlier][1] + gap - times[number][0]
                if early > order_model.RESOLUTION_NS:
                    raise Wrong(f"work {number} began {early} ns before {gap} ns after the end of work {earlier}")

    def close_all(self) -> None:
        for recording in self.recordings[:]:
            self.end(recording)
        self.dev.sync()
        self.check_work()
        self.end_pool()
        self.check_pools()
        for opened in self.opened:
            opened.parts.close()
        for things in (self.launches, self.graphs):
            for thing in things:
                thing.graph.close()
        for mark in self.marks:
            mark.event.close()
        for flow in self.flows:
            flow.stream.close()
        for of in (self.flows, self.marks, self.graphs, self.launches, self.opened, self.of_parts, self.torch_blocks):
            of.clear()
        self.of_pool.clear()
        del self.timeline
        self.torch.close()
        for block in [block for line in self.lines for block in line.blocks]:
            block.leave = None
        kept, self.lasting = self.lasting, []
        while kept:
            held = kept.pop()
            if held.name != "primary" and held.context is not None:
                held.context.close()
        super().close_all()
        self.contexts.clear()
        self.streams.clear()

    def left(self) -> Sequence[object]:
        partitions.store.drop(pinned=True)
        return ()

    # ---- what the operations of blocks choose from

    def any_context(self) -> Held:
        return self.random.choice([*self.lasting, *self.contexts, *self.of_parts, *self.of_pool.values()])

    def name_of(self, handle: int) -> str:
        known = (held.name for held in [*self.of_parts, *self.of_pool.values()] if held.handle == handle)
        return next(known, None) or super().name_of(handle)

    def is_in_use(self, line: Line, held: Sequence[Held]) -> bool:
        handles = {one.handle for one in held}
        return bool(handles & set(line.handles)) or any(of.owns(one) for of in self.living() for one in held)

    def is_kept_elsewhere(self, line: Line | None, held: Sequence[Held] | None = None) -> bool:
        """Other code uses one of these contexts, or any, on another thread."""
        return any(
            held is None or any(one.handle == kept.handle for one in held)
            for of in self.living()
            if of is not line
            for kept in of.kept
        )

    def has_left(self, line: Line) -> bool:
        """Blocks that end with the next call that changes what is current, which some calls are only at times."""
        return line.first_left() < len(line.blocks)

    def create(self, line: Line, task: int) -> None:
        if not self.recordings:
            super().create(line, task)

    def close(self, line: Line, task: int) -> None:
        if not self.recordings:
            super().close(line, task)

    def use_stream(self, line: Line, task: int) -> None:
        if not self.recordings:
            super().use_stream(line, task)

    def leave_thread(self, line: Line) -> None:
        for recording in [one for one in self.recordings if one.line is line and not self.failure]:
            self.end(recording)

    def forget(self, line: Line) -> None:
        super().forget(line)
        self.torch_blocks = [block for block in self.torch_blocks if block.line is not line]

    # ---- streams and events

    def keep(self, things: list[Any], thing: Any, kind: str) -> None:
        things.append(thing)
        if len(things) > MOST[kind]:
            spare = [one for one in things if getattr(one, "recording", None) is None]
            things.remove(next((one for one in spare if one.is_closed), spare[0]))

    def make_stream(self, line: Line, task: int) -> None:
        held = self.any_context()
        self.say(held.name)
        priority = self.random.choice((None, None, 0, -1))
        if held.is_closed:
            self.demand(ClosedError, lambda: held.context.create_stream())  # type: ignore[union-attr]
            return
        assert held.context is not None
        context = held.context
        stream = self.unless_capturing(lambda: context.create_stream(StreamOptions(priority=priority)))
        if stream is not None:
            if not self.recordings:
                spin(stream, 1, 0)  # what is loaded at its first use cannot be loaded in a capture
            self.keep(self.flows, Flow(self.named("stream"), stream, held), "flows")
            self.say(self.flows[-1].name)

    def a_flow(self) -> Flow | None:
        flow: Flow | None = self.some(self.flows)
        if flow is not None:
            self.say(flow.name)
        return flow

    def close_stream(self, line: Line, task: int) -> None:
        flow = self.a_flow()
        if flow is not None:
            # One that is lent, or that a framework has seen, is not destroyed, and its capture goes on.
            is_sure = flow.recording is None or (flow.is_owned and flow.held.handle not in self.seen)
            kind = CapturingError if flow.recording is not None else None
            answer = self.demand(kind, flow.stream.close, is_sure)
            flow.is_closed = flow.is_closed or not isinstance(answer, Exception)
            if flow.stream.is_closed != flow.is_closed:
                raise Wrong(f"{flow.name} is {'' if flow.stream.is_closed else 'not '}closed")

    def drop_stream(self, line: Line, task: int) -> None:
        """The last name of a stream goes; a capture goes on without it."""
        flow = self.a_flow()
        if flow is not None and (flow.recording is None or flow.recording.origin is flow):
            self.flows.remove(flow)

    def work(self, line: Line, task: int) -> None:
        flow = self.a_flow()
        if flow is None or len(self.before) == MOST_SPANS:
            return
        ns = self.random.randrange(1000, 300_000)
        if flow.is_closed:
            self.demand(ClosedError, lambda: spin(flow.stream, 1, ns))
        elif flow.recording is not None:
            spin(flow.stream, 1, ns)
            flow.recording.kernels += 1
            if flow is flow.recording.origin:
                flow.recording.ns += ns
        elif flow.held.is_closed:
            spin(flow.stream, 1, ns)  # a stream works on where its context is closed; a timeline asks the context
        else:
            number = len(self.before)
            done = self.unless_capturing(lambda: self.stamped(flow.stream, number, ns))
            if done:
                self.before.append((number, flow.after))
                flow.after = {number: 0}

    def stamped(self, stream: Stream, number: int, ns: int) -> bool:
        with self.timeline.span(stream, str(number)):
            spin(stream, 1, ns)
        return True

    def record(self, line: Line, task: int) -> None:
        flow = self.a_flow()
        if flow is None:
            return
        again = self.some([mark for mark in self.marks if mark.of.held.handle == flow.held.handle])
        mark = again if again is not None and self.random.random() < 0.4 else None
        reason = self.refused((ClosedError, flow.is_closed or (mark is not None and mark.is_closed)))
        if mark is not None:
            self.say(mark.name)
            self.demand(reason, lambda: flow.stream.record(mark.event))
        else:
            is_timed = self.random.random() < 0.5
            event = self.demand(reason, lambda: flow.stream.record(options=EventOptions(timing_enabled=is_timed)))
        if reason is None:
            if mark is None:
                mark = Mark(self.named("event"), event, flow, {}, None, is_timed, 0)
                self.keep(self.marks, mark, "marks")
                self.say(mark.name)
            mark.of, mark.after, mark.recording, mark.at = flow, flow.after, flow.recording, len(self.log)

    def wait(self, line: Line, task: int) -> None:
        flow, mark = self.a_flow(), self.some(self.marks)
        if flow is None or mark is None:
            return
        self.say(mark.name)
        if mark.recording is not None and mark.recording.is_over:
            return  # an event of a graph
        theirs, ours = mark.recording, flow.recording
        self.waits(flow, mark.after, theirs, mark.is_closed, lambda: flow.stream.wait(mark.event), ours)

    def wait_stream(self, line: Line, task: int) -> None:
        flow, other = self.a_flow(), self.a_flow()
        if flow is not None and other is not None and flow is not other:
            wait = lambda: flow.stream.wait(other.stream)  # noqa: E731
            self.waits(flow, other.after, other.recording, other.is_closed, wait, flow.recording)

    def waits(
        self,
        flow: Flow,
        after: After,
        theirs: Recording | None,
        is_closed: bool,
        wait: Callable[[], object],
        ours: Recording | None,
    ) -> None:
        if flow.is_closed or is_closed:
            self.demand(ClosedError, wait)
        elif ours is not theirs and ours is not None:
            # Of work outside of the capture, or of another one: nothing may reach the driver.
            return
            self.demand(CapturingError, wait)
        else:
            self.demand(None, wait)
            flow.recording = theirs
            if theirs is None:
                flow.after = {
                    number: max(flow.after.get(number, 0), after.get(number, 0)) for number in {**flow.after, **after}
                }

    def look(self, line: Line, task: int) -> None:
        if self.random.random() < 0.4:
            mark = self.some(self.marks)
            if mark is not None:
                self.say(mark.name)
                if mark.is_closed or not self.recordings:
                    self.demand(ClosedError if mark.is_closed else None, mark.event.sync)
                    self.demand(ClosedError if mark.is_closed else None, lambda: mark.event.is_done)
            return
        flow = self.a_flow()
        if flow is not None:
            reason = self.refused((ClosedError, flow.is_closed), (CapturingError, flow.recording is not None))
            look = self.random.choice((flow.stream.sync, lambda: flow.stream.is_done))
            if reason is not None:
                self.demand(reason, look)
            elif not self.recordings:  # the driver refuses some waits during a capture, and ends it
                self.demand(None, flow.stream.sync)
                if not flow.stream.is_done:
                    raise Wrong("is not done after sync()")

    def time_events(self, line: Line, task: int) -> None:
        marks = [mark for mark in self.marks if mark.is_timed and mark.recording is None and not mark.is_closed]
        if len(marks) > 1 and not self.recordings:
            first, second = self.random.sample(marks, 2)
            first.event.sync()
            second.event.sync()
            ms = second.event - first.event
            if first.of is second.of and (ms < 0) != (second.at < first.at) and ms != 0:
                raise Wrong(f"{second.name} is {ms} ms after {first.name}")

    def close_mark(self, line: Line, task: int) -> None:
        mark = self.some(self.marks)
        if mark is not None:
            self.say(mark.name)
            mark.event.close()
            mark.is_closed = True

    def drop_mark(self, line: Line, task: int) -> None:
        if self.marks:
            del self.marks[self.random.randrange(len(self.marks))]

    # ---- captures and graphs

    def begin_capture(self, line: Line, task: int) -> None:
        flow = self.a_flow()
        if flow is None or len(self.recordings) == MOST["recordings"]:
            return
        mode = self.random.choice(("thread_local", "thread_local", "relaxed", "global"))
        self.say(mode)
        reason = self.refused((ClosedError, flow.is_closed), (CapturingError, flow.recording is not None))
        capture: list[Any] = []

        def begin() -> None:
            capture.append(flow.stream.capture(mode))  # type: ignore[arg-type]
            capture[0].__enter__()

        self.demand(reason, begin)
        if reason is None:
            flow.recording = Recording(flow, capture[0], None if mode == "relaxed" else line)
            self.recordings.append(flow.recording)

    def ready(self, line: Line) -> Recording | None:
        recording: Recording | None = self.some([one for one in self.recordings if one.line in (line, None)])
        return recording

    def end_capture(self, line: Line, task: int) -> None:
        recording = self.ready(line)
        if recording is not None:
            self.say(recording.origin.name)
            graph = self.end(recording)
            if len(self.graphs) < MOST["graphs"]:
                self.graphs.append(graph)

    def members(self, recording: Recording) -> list[Flow]:
        return [flow for flow in self.flows if flow.recording is recording and flow is not recording.origin]

    def over(self, recording: Recording) -> None:
        for flow in (*self.members(recording), recording.origin):
            flow.recording = None
        recording.is_over = True
        self.recordings.remove(recording)
        self.marks = [mark for mark in self.marks if mark.recording is not recording]

    def end(self, recording: Recording) -> Recorded:
        """Joins what takes part, ends the capture, and looks at the graph."""
        for flow in self.members(recording):
            if flow.stream.is_closed or recording.origin.stream.is_closed:
                self.join(recording.origin.handle, flow)
            else:
                recording.origin.stream.wait(flow.stream)
        self.demand(None, lambda: recording.capture.__exit__(None, None, None))
        self.over(recording)
        graph = recording.capture.graph
        if graph.node_count != recording.kernels:
            raise Wrong(f"the graph has {graph.node_count} nodes instead of {recording.kernels}")
        return Recorded(self.named("graph"), graph, recording.ns, recording.kernels, recording.origin.held)

    def join(self, stream: int, other: Flow) -> None:
        """As other code does, which has the handles of closed streams."""
        self.raw.push(other.held.handle)
        event = ctypes.c_void_p(self.raw.handle("cuEventCreate", EVENT_WITHOUT_TIMES))
        self.raw.call("cuEventRecord", event, ctypes.c_void_p(other.handle))
        self.raw.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        self.raw.call("cuEventDestroy_v2", event)
        self.raw.pop()

    def leave_capture(self, line: Line, task: int) -> None:
        """An exception ends a capture."""
        recording = self.ready(line)
        if recording is not None:
            self.say(recording.origin.name)
            recording.capture.__exit__(KeyError, KeyError(), None)
            self.over(recording)

    def make_graph(self, line: Line, task: int) -> None:
        graph = self.some(self.graphs)
        if graph is None or self.recordings or len(self.launches) == MOST["launches"]:
            return
        self.say(graph.name)
        held = self.any_context() if self.random.random() < 0.6 else None
        make: Callable[[], GraphExec]
        if held is None:
            make = graph.graph.instantiate
        else:
            self.say(f"in {held.name}")
            context = held.context
            assert context is not None
            make = lambda: graph.graph.in_partition(context)  # noqa: E731
        if graph.is_closed or (held is not None and held.is_closed):
            self.demand(ClosedError, make)
            return
        made = self.unless_capturing(make, *[ClosedError] * graph.held.is_closed)
        if made is not None:
            place = held or graph.held
            self.launches.append(Launch(self.named("executable"), made, graph, place.handle))
            self.say(self.launches[-1].name)
            if not place.is_closed and made.context.handle != place.handle:
                raise Wrong("it is in another context")

    def launch(self, line: Line, task: int) -> None:
        graph, flow = self.some(self.launches), self.a_flow()
        if graph is None or flow is None or flow.recording is not None:
            return
        self.say(graph.name)
        closed = graph.is_closed or flow.is_closed
        if not closed and flow.held.handle != graph.handle:
            try:
                graph.graph.launch(flow.stream)
            except ValueError:
                return
            raise Wrong("was launched on a stream of another context")
        if closed:
            self.demand(ClosedError, lambda: graph.graph.launch(flow.stream))
        elif self.unless_capturing(lambda: graph.graph.launch(flow.stream) or True):
            graph.was_launched = True
            flow.after = {number: gap + graph.of.ns for number, gap in flow.after.items()}

    def close_graph(self, line: Line, task: int) -> None:
        graph = self.some(self.graphs)
        if graph is not None:
            self.say(graph.name)
            graph.graph.close()
            graph.is_closed = True
            if self.random.random() < 0.5:
                self.graphs.remove(graph)

    def close_launch(self, line: Line, task: int) -> None:
        """It must not be running."""
        graph = self.some(self.launches)
        if graph is not None and not (self.recordings and graph.was_launched):
            self.say(graph.name)
            if graph.was_launched:
                self.dev.sync()
            graph.graph.close()
            graph.is_closed = True
            if self.random.random() < 0.5:
                self.launches.remove(graph)

    # ---- contexts, partitions, pools and the store

    def split(self, line: Line, task: int) -> None:
        whole = self.dev.resources.sm
        counts = [8 * self.random.randint(1, 4) for _ in range(self.random.randint(1, 3))]
        found = self.unless_capturing(lambda: whole.split({"count": counts}))
        if found is not None:
            groups, rest = found
            got = [group.sm_count for group in groups]
            if any(one < asked for one, asked in zip(got, counts, strict=True)) or sum(got) + rest.sm_count > 132:
                raise Wrong(f"a split of {counts} gave {got} and {rest.sm_count}")

    def open_parts(self, line: Line, task: int) -> None:
        if len(self.opened) == MOST["opened"]:
            self.close_parts(line, task)
            return
        names = self.random.sample(("a", "b", "c"), self.random.randint(1, 3))
        layout = {name: 8 * self.random.randint(1, 3) for name in names}
        is_free, is_exclusive = self.random.random() < 0.3, self.random.random() < 0.2
        self.say(f"{layout}{' of free SMs' * is_free}{', exclusive' * is_exclusive}")
        allowed = [SplitError] * is_free + [ResourceOverlapError] * is_exclusive
        parts = self.unless_capturing(
            lambda: self.dev.partition(layout, among="free" if is_free else "all", exclusive=is_exclusive), *allowed
        )
        if parts is not None:
            name = self.named("partitions")
            held = [Held(f"{name}.{part.name}", part.context.handle, part.context) for part in with_background(parts)]
            self.opened.append(Opened(name, parts, held))
            self.of_parts += held
            self.say(name)
            if any(parts[name].sm_count < asked for name, asked in layout.items()):
                raise Wrong(f"{parts} are smaller than asked for")

    def lend(self, line: Line, task: int) -> None:
        opened = self.some(self.opened)
        if opened is None:
            return
        at = self.random.randrange(len(opened.held))
        part, held = with_background(opened.parts)[at], opened.held[at]
        self.say(held.name)
        is_pool = self.random.random() < 0.5
        get: Callable[[], Stream] = (lambda: part.stream_pool(2)[1]) if is_pool else (lambda: part.stream)
        if opened.is_closed:
            self.demand(ClosedError, get)
            return
        stream = self.unless_capturing(get)
        if stream is not None and not any(flow.stream is stream for flow in self.flows):
            self.take_lent(stream, held)

    def take_lent(self, stream: Stream, held: Held, is_of_pool: bool = False) -> None:
        if not self.recordings:
            spin(stream, 1, 0)
        recording = self.captured().get(stream.handle)
        flow = Flow(self.named("stream"), stream, held, {}, recording, is_of_pool=is_of_pool)
        self.keep(self.flows, flow, "flows")
        self.say(self.flows[-1].name)

    def captured(self) -> dict[int, Recording]:
        """The captures that go on, by the handles of their streams."""
        flows = [*self.flows, *(recording.origin for recording in self.recordings)]
        joined = {handle: recording for recording in self.recordings for handle in recording.joined}
        return joined | {flow.handle: flow.recording for flow in flows if flow.recording is not None}

    def lend_of_pool(self, line: Line, task: int) -> None:
        """A stream of a plan, or of a partition of the pool; one object for each stream."""
        if self.pool is None or not self.pool.pool.layouts:
            return
        held, stream = self.lasting[0], None
        device_streams = self.pool.device_streams()
        if device_streams and self.random.random() < 0.3:
            stream = self.random.choice(device_streams)
        else:
            parts = self.pool.pool.prepare(self.random.choice(self.pool.pool.layouts))
            part = self.random.choice(with_background(parts))
            if id(part.context) in self.of_pool:
                held, stream = self.of_pool[id(part.context)], part.stream
        known = {flow.handle for flow in self.flows if not flow.is_closed or flow.recording is not None}
        if stream is not None and not stream.is_closed and stream.handle not in known:
            self.take_lent(stream, held, is_of_pool=True)

    def close_parts(self, line: Line, task: int) -> None:
        opened = self.some(self.opened)
        if opened is None or self.is_kept_elsewhere(line, opened.held):
            return
        self.say(opened.name)
        if opened.is_closed:
            self.demand(None, opened.parts.close)
            self.opened.remove(opened)
            return
        lent = [flow for flow in self.flows if flow.held in opened.held]
        if any(flow.recording is not None for flow in lent):
            return
        line.remove_left()
        is_current = self.is_in_use(line, opened.held)
        is_sure = is_current or not (self.is_rough or any(of.sets for of in self.living()))
        answer = self.demand(ContextCurrentError if is_current or not is_sure else None, opened.parts.close, is_current)
        opened.is_closed = not isinstance(answer, Exception)
        if opened.parts.is_closed != opened.is_closed:
            raise Wrong("is half closed")
        if opened.is_closed:
            for held in opened.held:
                held.is_closed = True
            for flow in lent:
                flow.is_closed = flow.stream.is_closed
            self.of_parts = [held for held in self.of_parts if held not in opened.held[1:]]
        line.sets = [(of, place) for of, place in line.sets if place in line.stack and place.handle == of.handle]

    def wait_context(self, line: Line, task: int) -> None:
        first, second = self.any_context(), self.any_context()
        self.say(f"{first.name} for {second.name}")
        ours, theirs = first.context, second.context
        assert ours is not None
        assert theirs is not None
        if first.is_closed or second.is_closed:
            self.demand(ClosedError, lambda: ours.wait_context(theirs))
        elif self.unless_capturing(lambda: ours.wait_context(theirs) or True, FeatureNotSupported):
            after: After = {}
            for flow in self.flows:
                if flow.held.handle == second.handle and flow.recording is None:
                    after |= {number: max(gap, after.get(number, 0)) for number, gap in flow.after.items()}
            for flow in self.flows:
                if flow.held.handle == first.handle and flow.recording is None:
                    flow.after = {
                        number: max(flow.after.get(number, 0), after.get(number, 0))
                        for number in {**flow.after, **after}
                    }

    def sync_context(self, line: Line, task: int) -> None:
        held = self.any_context()
        self.say(held.name)
        context = held.context
        assert context is not None
        if held.is_closed:
            self.demand(ClosedError, context.sync)
        elif self.unless_capturing(lambda: context.sync() or True) and not self.recordings:  # a query ends them
            for flow in self.flows:
                if flow.held is held and not flow.is_closed and flow.recording is None and not flow.stream.is_done:
                    raise Wrong(f"{flow.name} is not done")

    def pool_operation(self, line: Line, task: int) -> None:
        if self.is_kept_elsewhere(None) or self.has_left(line):
            return
        if self.recordings:
            self.pool_operation_in_capture()
            return
        if self.pool is None:
            self.pool = OfPool(self.dev, self.random.randrange(10**6))
            self.pool.build(self.pool.layouts[0])
            operation = self.pool.switch
        else:
            for layout in self.pool.pool.layouts:  # a kernel could not show those that were built during a capture
                self.pool.build(layout)
            operation = self.pool.an_operation()
        self.say(getattr(operation, "__name__", ""))
        operation()
        if self.pool.steps < 900:
            self.pool.work(self.pool.histories[0])
        self.look_at_pool()

    def pool_operation_in_capture(self) -> None:
        for _ in range(self.random.randint(1, 4) if self.pool is not None else 0):
            assert self.pool is not None
            [operation] = self.random.choices(
                (self.switch_in_capture, self.prepare_in_capture, self.verify_in_capture, self.pool.drop), (5, 2, 2, 2)
            )
            self.say(operation.__name__)
            operation()
            self.pool.captured = self.captured()
            if self.pool.steps < 900:
                self.pool.work(self.pool.histories[0])
            self.pool.captured = ()
            self.look_at_pool()

    def refusing(self, kind: type[Exception] | None, action: Callable[[], object], is_sure: bool = True) -> bool:
        """Whether a pool refuses something. It changes nothing then, and the driver is not what refuses it."""
        assert self.pool is not None
        pool = self.pool.pool
        before = pool.is_closed, pool.layouts, getattr(pool, "current", None)
        error = self.demand(kind, action, is_sure)
        if isinstance(error, CUDAError):
            raise Wrong(f"raised {error}")
        if isinstance(error, Exception) and before != (pool.is_closed, pool.layouts, getattr(pool, "current", None)):
            raise Wrong(f"changed the pool, and raised {type(error).__name__}")
        return isinstance(error, Exception)

    def switch_in_capture(self) -> None:
        assert self.pool is not None
        pool, captured = self.pool, self.captured()
        target = pool.known_target()
        if target is None:
            return
        if not pool.knows(target) and not captured.keys().isdisjoint(one.handle for one in pool.device_streams()):
            return
        new, old = pool.reach(target), pool.reach(pool.current)  # in this order: a plan lends streams of its partitions
        of_old = {captured[handle] for handle in old.lent if handle in captured}
        of_both = {captured[handle] for handle in old.lent | new.lent if handle in captured}
        if of_old and len(of_both) == 1:
            self.switch_within(of_old.pop(), target)
            return
        if of_both and any(flow.is_of_pool and flow.is_closed and flow.recording is not None for flow in self.flows):
            return  # the switch may lend a stream of the current layout that captures, and go on inside its capture
        contexts = {flow.held.handle for flow in self.flows if flow.recording is not None}
        contexts |= {recording.origin.held.handle for recording in self.recordings}
        is_between = bool(contexts & (old.contexts | new.contexts))
        # A stream of a plan that a framework has seen is closed, and goes on to capture.
        is_sure = not pool.has_left and target != pool.current and pool.knows(pool.current)
        kind = self.refused((RuntimeError, bool(of_both) or not is_sure), (CapturingError, is_between))
        self.say(f"{target}")
        self.refusing(kind, lambda: pool.switch_to(pool.histories[0], target), is_sure)

    def switch_within(self, recording: Recording, target: Layout | Plan) -> None:
        """Switches that take streams into a capture, and back to where it was."""
        assert self.pool is not None
        pool, origin = self.pool, self.pool.current
        assert origin is not None
        if any(stream.is_closed for stream in pool.streams.values()):
            return  # a plan gets another one, and goes on elsewhere
        before, history = (dict(pool.streams), dict(pool.places)), order_model.History()
        self.say(f"{target} and back")
        captured = self.captured()
        # A partition lends its stream now, which may be part of another capture: another layout can have lent it.
        is_sure = not pool.has_left and len(self.recordings) == 1
        if self.refusing(None if is_sure else RuntimeError, lambda: pool.switch_to(history, target), is_sure):
            return
        lent = pool.reach(target).lent
        pool.switch_to(history, origin)
        pool.streams, pool.places = before
        lent = (lent | pool.reach(origin).lent) - captured.keys()
        recording.joined |= {handle for handle in lent if self.captures(handle)}
        for flow in self.flows:
            if flow.is_of_pool and not flow.is_closed and flow.handle in recording.joined:
                flow.recording = recording

    def prepare_in_capture(self) -> None:
        assert self.pool is not None
        pool = self.pool.pool
        layout = self.random.choice(self.pool.layouts)
        # The store may have all contexts.
        self.refusing(None if layout in pool.layouts else CapturingError, lambda: pool.prepare(layout), is_sure=False)

    def verify_in_capture(self) -> None:
        assert self.pool is not None
        for layout in self.random.sample(self.pool.pool.layouts, min(1, len(self.pool.pool.layouts))):
            self.refusing(CapturingError, self.pool.pool.prepare(layout).verify)

    def look_at_pool(self) -> None:
        if self.pool is not None and not self.pool.pool.is_closed:
            for layout in self.pool.pool.layouts:
                for part in with_background(self.pool.pool.prepare(layout)):
                    if id(part.context) not in self.of_pool and len(self.of_pool) < 8:
                        name = f"{part.name} of {layout}"
                        self.of_pool[id(part.context)] = Held(name, part.context.handle, part.context)
        for held in self.of_pool.values():
            assert held.context is not None
            was, held.is_closed = held.is_closed, held.context.is_closed
            if held.is_closed and not was and any(of.owns(held) for of in self.living()):
                raise Wrong(f"{held.name} was closed while it is current")
        for flow in self.flows:
            if flow.is_of_pool:
                flow.is_closed = flow.stream.is_closed

    def close_pool(self, line: Line, task: int) -> None:
        if self.pool is not None and not self.is_kept_elsewhere(None) and not self.has_left(line):
            held = [held for held in self.of_pool.values() if not held.is_closed]
            if not self.is_rough and self.is_in_use(line, held):
                self.refusing(ContextCurrentError, self.pool.pool.close)
            elif not self.is_rough and not any(of.sets for of in self.living()):
                captured = self.captured()
                if any(stream.handle in captured for stream in self.pool.device_streams()):
                    # Those of a context that a framework has seen are not destroyed, and their captures go on.
                    self.refusing(CapturingError, self.pool.pool.close, self.lasting[0].handle not in self.seen)
                    if not self.pool.pool.is_closed:
                        return
                self.end_pool()

    def end_pool(self) -> None:
        if self.pool is not None:
            self.pool.pool.close()
            self.look_at_pool()
            for handle in [id_ for id_, held in self.of_pool.items() if held.is_closed][1:]:
                del self.of_pool[handle]
            self.pool.streams, self.pool.on_device = {}, {}
            self.closed_pools.append(self.pool)
            self.pool = None
            if not self.recordings:
                self.check_pools()

    def check_pools(self) -> None:
        """What ran at once, and must not: asked of the device, which ends captures."""
        while self.closed_pools:
            if found := self.closed_pools.pop().wrong():
                raise Wrong(found[0])

    def drop_store(self, line: Line, task: int) -> None:
        if not self.is_kept_elsewhere(None) and not self.has_left(line):
            self.unless_capturing(partitions.store.drop)

    # ---- torch

    def enter_torch(self, line: Line, task: int) -> None:
        flow = self.a_flow()
        if flow is None or self.recordings or len(self.torch_blocks) > 5:
            return
        block = torch_room.use(flow.stream)
        self.settle_torch(line)
        if self.demand(ClosedError if flow.is_closed else None, block.__enter__) is not None and not flow.is_closed:
            self.seen.add(flow.held.handle)
            name = self.named("block of torch")
            self.torch_blocks.append(TorchBlock(name, block, flow.stream.handle, line))
            self.say(name)
        self.look_at_torch(line)

    def of_line(self, line: Line) -> list[TorchBlock]:
        return [block for block in self.torch_blocks if block.line is line]

    def settle_torch(self, line: Line) -> None:
        self.torch_blocks = [block for block in self.torch_blocks if block.line is not line or not block.is_left]

    def leave_torch(self, line: Line, task: int) -> None:
        block = self.some(self.torch_blocks)
        if block is None or self.recordings:
            return
        here = [one for one in self.of_line(line) if not one.is_left]
        if self.random.random() < 0.7 and here:
            block = here[-1]
        if block.is_left:
            return
        self.say(block.name)
        block.is_left = True
        is_in_turn = bool(here) and block is here[-1]
        self.demand(None if is_in_turn else RuntimeError, lambda: block.block.__exit__(None, None, None))
        if block.line is line:
            self.settle_torch(line)
        self.look_at_torch(line)

    def look_at_torch(self, line: Line) -> None:
        open_ = self.of_line(line)
        wanted = open_[-1].handle if open_ else self.default_torch
        found = self.torch.cuda.current_stream().cuda_stream
        if found != wanted:
            raise Wrong(f"torch works on stream {found:#x} instead of {wanted:#x}")

    # ---- collection

    def tie(self, line: Line, task: int) -> None:
        """Something is left to the collector."""
        things: list[Any] = self.random.choice(([*self.flows], [*self.marks], [*self.contexts]))
        things = [thing for thing in things if getattr(thing, "recording", None) is None]
        if things:
            thing = self.random.choice(things)
            self.say(thing.name)
            for of in (self.flows, self.marks, self.contexts):
                if thing in of:
                    of.remove(thing)  # type: ignore[arg-type]
            knot: list[Any] = [thing]
            knot.append(knot)

    def collect(self, line: Line, task: int) -> None:
        gc.collect()


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    block_model.main(Program, OPERATIONS, DRIVERS)
