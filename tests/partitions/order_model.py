"""Random programs of a pool against a model: which work may run at once on which SMs.

    python tests/partitions/order_model.py --seeds 200 [--first 1000] [--cards h200,b200] [--drivers 12.4,13.4]

Without CUDA_GCTX_DRIVER, and with a GPU, it runs there; else on the software driver, with all cards and drivers by
default. Every piece of work writes the device's timer before and after it, and a kernel shows the SMs of each context,
so that nothing is taken from what the package says about itself.

A program switches between layouts and plans that share contexts, from several threads and tasks, enqueues work of
random length, captures graphs, closes streams, drops layouts, and opens partitions of free SMs next to the pool.

The model: an arrangement is a set of uses, each a part of the program and the place where it runs. Two pieces of work
of different arrangements may run at once only if they share no SMs and belong to different parts, or if their uses
belong to one arrangement: one of them, from that of the first piece on, has both, and the use of the second has stayed
since then.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeAlias

from cuda_gctx import (
    CapturingError,
    ContextCurrentError,
    Device,
    Layout,
    Partition,
    PartitionPool,
    SplitError,
    Stream,
    Timeline,
)
from cuda_gctx.partitions import with_background
from cuda_gctx.partitions.verification import verify
from cuda_gctx.tune import Plan, spin
from cuda_software_driver import session

CARDS = ("h200", "h100", "a100", "b200", "l40s", "rtx4090", "rtx5080", "thor")
DRIVERS = ("12.4", "12.5", "12.8", "13.0", "13.1", "13.4")
PARTS = ("a", "b", "c")
LONGEST_NS = 3_000_000
# Stamps that are written by different SMs differ by less.
RESOLUTION_NS = 2_000

Use: TypeAlias = tuple[str, object]  # a part and its place


@dataclass(frozen=True)
class Step:
    """A piece of work: its use, its SMs, the number of its arrangement, and the number of its stamps."""

    use: Use
    sms: frozenset[int]
    arrangement: int
    number: int


class History:
    """Arrangements in their order, and the work that was enqueued in each."""

    def __init__(self) -> None:
        self.arrangements: list[frozenset[Use]] = []
        self.steps: list[Step] = []

    def may_run_at_once(self, first: Step, second: Step) -> bool:
        if first.use[0] != second.use[0] and not first.sms & second.sms:
            return True
        for arrangement in reversed(self.arrangements[first.arrangement : second.arrangement + 1]):
            if second.use not in arrangement:
                return False
            if first.use in arrangement:
                return True
        return False

    def problems(self, times: Mapping[int, tuple[int, int]]) -> list[str]:
        """What ran at once and must not."""
        return [
            f"{second.use} of arrangement {second.arrangement} began "
            f"{times[first.number][1] - times[second.number][0]} ns before the end of {first.use}, of "
            f"{first.arrangement}"
            for first in self.steps
            for second in self.steps
            if first.arrangement < second.arrangement
            and not self.may_run_at_once(first, second)
            and times[second.number][0] + RESOLUTION_NS < times[first.number][1]
        ]


def layouts_for(device: Device) -> list[Layout]:
    """Layouts of the first three parts, many of which share contexts."""
    grain, sms = device.resources.sm.min_partition_size, device.sm_count
    small, large = grain * max(1, sms // grain // 8), grain * max(2, sms // grain // 3)
    return [
        Layout(a=small, b=None),
        Layout(b=small, a=None),
        Layout(a=small),
        Layout(b=large, c=None),
        Layout(c=large),
        Layout(a=small, b=small, c=None),
        Layout(c=small, a=small, b=None),
        Layout(a=grain, c=large),
    ]


class Program:
    """One random program, and what it did wrong."""

    def __init__(self, device: Device, seed: int, *, operations: int = 40, most_steps: int = 1000) -> None:
        self.device = device
        self.random = random.Random(seed)
        self.operations = operations
        self.problems: list[str] = []
        self.layouts = layouts_for(device)
        self.timeline = Timeline(device, spans=most_steps)
        self.steps = 0
        self.histories = [History()]  # the first of the program, the others each of one graph
        self.sms_of: dict[int, frozenset[int]] = {}
        self.streams: dict[str, Stream] = {}
        self.places: dict[str, object] = {}
        self.lock = threading.Lock()

    # ---- what the device shows

    def sms(self, stream: Stream) -> frozenset[int]:
        if not stream.context.is_green:
            return frozenset(range(self.device.sm_count))
        return self.sms_of[stream.context.id]

    def build(self, layout: Layout) -> None:
        """Build a layout, and let a kernel show its SMs. The pool is not told."""
        parts = with_background(self.pool.prepare(layout))
        for part in parts:
            if part.context.id not in self.sms_of:
                self.device.sync()  # other work on the same SMs can keep the probe from them
                report = verify({part.name: part.context})
                self.sms_of[part.context.id] = frozenset(report.contexts[0].sm_ids)
        if sum(len(self.sms_of[part.context.id]) for part in parts) != len(
            frozenset().union(*(self.sms_of[part.context.id] for part in parts))
        ):
            self.problems.append(f"partitions of {layout} share SMs")

    # ---- what a program does

    def step(self, history: History, part: str, stream: Stream) -> None:
        number, self.steps = self.steps, self.steps + 1
        with self.timeline.span(stream, str(number)):
            spin(stream, 1, self.random.randrange(1000, LONGEST_NS))  # one block: it leaves room for what races with it
        history.steps.append(Step((part, self.places[part]), self.sms(stream), len(history.arrangements) - 1, number))

    def usable(self) -> dict[str, Stream]:
        """The streams that take work, by their parts."""
        return {part: stream for part, stream in self.streams.items() if not stream.is_closed}

    def work(self, history: History, at_most: int = 3) -> None:
        for _ in range(self.random.randint(0, at_most)):
            if streams := self.usable():
                part = self.random.choice(list(streams))
                self.step(history, part, streams[part])

    def entered(self, history: History, streams: Mapping[str, Stream]) -> None:
        self.streams = dict(streams)
        self.places = {
            part: stream.context.id if stream.context.is_green else ("stream", stream.handle)
            for part, stream in streams.items()
        }
        history.arrangements.append(frozenset(self.places.items()))

    def stream_of(self, part: Partition) -> Stream:
        return part.stream if self.random.random() < 0.7 else self.random.choice(part.stream_pool(2))

    def switch_to(self, history: History, target: Layout | Plan) -> None:
        if isinstance(target, Plan):
            self.entered(history, target.switch(self.pool))
        else:
            parts = with_background(self.pool.switch(target))
            # Streams that are lent during a capture are not part of it.
            lent = self.stream_of if history is self.histories[0] else lambda part: part.stream
            self.entered(history, {part.name: lent(part) for part in parts})

    def plan(self) -> Plan:
        parts = tuple(self.random.sample(PARTS, self.random.randint(2, 3)))
        kind: Any = self.random.choice(
            ("sequence", "streams", "priority", "overlay", "overlay", "partitions", "partitions")
        )
        first = self.random.choice(parts) if kind in ("priority", "overlay") else None
        if kind not in ("overlay", "partitions"):
            return Plan(kind, parts, first=first)
        layout = self.random.choice(self.layouts)
        self.build(layout)
        names = [part.name for part in with_background(self.pool.prepare(layout))]
        placed = [part for part in parts if part != first]
        if kind == "partitions" and len(names) < len(placed):
            return Plan("streams", parts)
        chosen = (
            self.random.sample(names, len(placed))
            if kind == "partitions"
            else self.random.choices(names, k=len(placed))
        )
        return Plan(kind, parts, layout, dict(zip(placed, chosen, strict=True)), first=first)

    def target(self) -> Layout | Plan:
        if self.random.random() < 0.7:
            return self.plan()
        layout = self.random.choice(self.layouts)
        self.build(layout)
        return layout

    def switch(self) -> None:
        self.switch_to(self.histories[0], self.target())

    def capture(self) -> None:
        """A graph of work in one arrangement, during which a switch is refused and changes nothing."""
        self.switch_to(self.histories[0], self.target())
        # What is made or loaded at its first use cannot be made during a capture.
        for part, stream in self.streams.items():
            self.step(self.histories[0], part, stream)
        self.device.sync()
        other = self.random.choice([layout for layout in self.layouts if layout in self.pool.layouts] or [None])
        history = History()
        history.arrangements.append(self.histories[0].arrangements[-1])
        part = self.random.choice(list(self.streams))
        stream = self.streams[part]
        with stream.capture() as capture:
            self.step(history, part, stream)
            if other is not None:
                with suppress(CapturingError):  # switching to the current layout does nothing
                    assert self.pool.switch(other) is self.pool.current
            self.step(history, part, stream)
        with capture.graph as graph, graph.instantiate() as executable:
            executable.launch(stream)
            self.device.sync()
        self.histories.append(history)

    def look(self) -> None:
        """Let time pass on the host."""
        for stream in self.random.sample(list(self.usable().values()), min(1, len(self.usable()))):
            if self.random.random() < 0.5:
                stream.sync()
            else:
                assert stream.is_done in (True, False)

    def close_stream(self) -> None:
        target = self.plan()
        self.switch_to(self.histories[0], target)
        self.work(self.histories[0])
        self.random.choice(list(self.streams.values())).close()
        self.switch_to(self.histories[0], target)

    def drop(self) -> None:
        layout = self.random.choice(self.layouts)
        try:
            self.pool.drop(layout)
        except ContextCurrentError:
            pass
        except RuntimeError as error:
            assert "is the current layout of the pool" in str(error)  # noqa: PT017
        else:
            assert layout not in self.pool.layouts

    def tell(self) -> None:
        """Verify a layout in the middle of other work."""
        layout = self.random.choice(self.layouts)
        self.build(layout)
        parts = self.pool.prepare(layout)
        self.device.sync()  # other work on the same SMs can keep the probe from them
        parts.verify()

    def open_free(self) -> None:
        """Partitions of free SMs next to the pool."""
        taken = {
            sm
            for layout in set(self.layouts) & set(self.pool.layouts)
            for part in with_background(self.pool.prepare(layout))
            for sm in self.sms_of[part.context.id]
        }
        try:
            parts = self.device.partition(self.device.resources.sm.min_partition_size, among="free")
        except SplitError:
            return
        with parts:
            if taken & set(verify({"free": parts[0].context}).contexts[0].sm_ids):
                self.problems.append("free SMs are those of a layout of the pool")

    # ---- how it is run

    @contextmanager
    def callers(self) -> Iterator[Sequence[Callable[[Callable[[], None]], object]]]:
        """Ways to call a function: here, on threads, and in a task."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        async def in_a_task(action: Callable[[], None]) -> None:
            await asyncio.sleep(0)
            action()

        try:
            with ThreadPoolExecutor(3) as threads:
                yield (
                    lambda action: action(),
                    lambda action: threads.submit(action).result(),
                    lambda action: asyncio.run_coroutine_threadsafe(in_a_task(action), loop).result(),
                )
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    @contextmanager
    def bustle(self) -> Iterator[None]:
        """Another thread that looks up, builds and drops, while the block runs."""
        known, own = self.pool.layouts, Layout(noise=self.device.resources.sm.min_partition_size)
        is_over = threading.Event()

        def run() -> None:
            while not is_over.wait(0.0005):
                self.pool.prepare(known[0])
                self.pool.prepare(own)
                with suppress(CapturingError):  # where the other thread captures on the same SMs
                    self.pool.drop(own)
                gc.collect(0)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def an_operation(self) -> Callable[[], None]:
        return self.random.choices(
            [
                *(self.switch, self.look, self.capture, self.close_stream, self.drop, self.tell, self.open_free),
                lambda: gc.collect() and None,
            ],
            [50, 12, 6, 4, 5, 3, 2, 2],
        )[0]

    def run(self) -> list[str]:
        """What it did wrong."""
        with ExitStack() as closing:
            self.pool = closing.enter_context(PartitionPool(self.device))
            callers = closing.enter_context(self.callers())
            self.build(self.layouts[0])
            self.switch()
            if self.random.random() < 0.25:
                closing.enter_context(self.bustle())
            for _ in range(self.operations):
                self.random.choice(callers)(self.an_operation())
                self.work(self.histories[0])
        return self.wrong()

    def wrong(self) -> list[str]:
        """What has been wrong, once all work is done."""
        self.device.sync()
        times = {int(span.name): (span.start_ns, span.end_ns) for span in self.timeline.read().spans}
        if len(times) != self.steps:
            return [*self.problems, f"{self.steps - len(times)} of {self.steps} pieces of work did not run"]
        found = list(self.problems)
        for number, history in enumerate(self.histories):
            where = f"in graph {number}: " if number else ""
            found += [where + problem for problem in history.problems(times)]
        return found


def programs(device: Device, seeds: Sequence[int]) -> dict[int, list[str]]:
    """What the programs of some seeds did wrong, of those that did anything."""
    return {seed: found for seed in seeds if (found := Program(device, seed).run())}


# Plans that share layouts, whose parts have each other's places.
NARROW, WIDE, OTHER = Layout(a=16, b=None), Layout(a=64, b=None), Layout(b=64)
PLANS = [
    Plan("sequence", ("a", "b")),
    Plan("streams", ("a", "b")),
    *(Plan("priority", ("a", "b"), first=part) for part in "ab"),
    *(
        Plan("overlay", ("a", "b"), layout, {other: place}, first=first)
        for layout in (NARROW, WIDE)
        for place in "ab"
        for first, other in ("ab", "ba")
    ),
    Plan("overlay", ("a", "b"), OTHER, {"b": "b"}, first="a"),
    *(
        Plan("partitions", ("a", "b"), layout, {"a": one, "b": other})
        for layout in (NARROW, WIDE)
        for one, other in ("ab", "ba")
    ),
    Plan("partitions", ("a", "b"), OTHER, {"a": "b", "b": "background"}),
    Plan("partitions", ("a", "b"), OTHER, {"a": "background", "b": "b"}),
]


def pairs_of_plans(device: Device) -> list[str]:
    """Return what is wrong with the switch from each plan to each other one."""
    program = Program(device, 0, most_steps=4 * len(PLANS) ** 2)
    with PartitionPool(device) as program.pool:
        for layout in (NARROW, WIDE, OTHER):
            program.build(layout)
        for pair in permutations(PLANS, 2):
            history = History()
            program.histories.append(history)
            for plan in pair:
                program.switch_to(history, plan)
                for part, stream in program.streams.items():
                    program.step(history, part, stream)
            device.sync()
    return program.wrong()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="number of programs for each card and driver")
    parser.add_argument("--first", type=int, help="the first seed; a random one by default")
    parser.add_argument("--cards", default=",".join(CARDS), help="of the software driver")
    parser.add_argument("--drivers", default=",".join(DRIVERS), help="of the software driver")
    arguments = parser.parse_args()
    first = arguments.first if arguments.first is not None else random.SystemRandom().randrange(10**9)
    seeds = range(first, first + arguments.seeds)
    wrong = 0
    for card, driver in (
        [(card, driver) for card in arguments.cards.split(",") for driver in arguments.drivers.split(",")]
        if os.environ.get("CUDA_GCTX_DRIVER", "sim") == "sim" and not has_gpu()
        else [(None, None)]
    ):
        with session(card, driver=driver, check=False) if card is not None else ExitStack():
            found = programs(Device(0), seeds)
        print(f"{card or 'this GPU'} {driver or ''}: seeds {first} to {seeds[-1]}, {len(found)} wrong", flush=True)
        for seed, problems in found.items():
            print(f"  seed {seed}: {len(problems)}, such as {problems[0]}")
        wrong += len(found)
    return 1 if wrong else 0


def has_gpu() -> bool:
    try:
        return Device.count() > 0
    except RuntimeError:
        return False


if __name__ == "__main__":
    sys.exit(main())
