"""Random programs of blocks, set_current, other code's pushes, closes and drops, against a model of what is current.

    python tests/core/block_model.py [--operations 1000000] [--seed 0]

A program runs on three threads, each with three tasks of a scheduler. One operation runs at a time, so that a seed
gives the same program each time. After each operation the driver's current context is compared with
the model's, and the software driver's ledger says whether something was destroyed while it was current, or used after.
A program that fails is printed as its seed and the shortest sequence of operations from its start that fails.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from cuda_gctx import ClosedError, Context, ContextCurrentError, ContextOptions, Device, SMResourceOptions
from cuda_gctx.sim import session
from tests.core.schedulers import SCHEDULERS, Work
from tests.raw import Raw

DRIVERS = ("12.4", "13.0", "13.4")
THREADS, TASKS = 3, 3
PROGRAM = 500  # operations
DEEP = 12  # blocks and pushes of a thread
EVERY = 50  # operations between looks at the ledger

WEIGHTS = {
    "enter": 24,
    "leave": 24,
    "leave_any": 4,
    "set_current": 11,
    "push": 6,
    "pop": 7,
    "replace": 2,
    "pop_and_push": 2,
    "create": 8,
    "close": 8,
    "drop": 6,
    "use_stream": 4,
    "abandon": 0.2,
    "end_thread": 0.8,
}
SWITCH_TASK, SWITCH_THREAD, LOOK_DEEP = 0.06, 0.05, 0.1


class Wrong(Exception):
    """What happened is not what the model says."""


@dataclass(eq=False)
class Held:
    """A context, and whether the program still has its object."""

    name: str
    handle: int
    context: Context | None
    is_closed: bool = False


@dataclass(eq=False)
class Entry:
    """A block of a task; or what set_current made current, which has no task."""

    held: Held
    below: list[int]  # the driver's stack when it was entered
    task: int | None = None
    leave: Callable[[], object] | None = None
    is_generator: bool = False
    is_left: bool = False


@dataclass(eq=False)
class Line:
    """A thread of the program, and the model of what is current there, the innermost last."""

    name: str
    scheduler: str
    thread: Any = None
    wake: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_over: bool = False
    entries: list[Entry] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)
    is_exact: bool = True  # else no more of the stack is known than its top

    @property
    def top(self) -> int:
        return self.stack[-1] if self.stack else 0

    def innermost_open(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.task is not None and not entry.is_left), None)

    def first_left(self) -> int:
        """Where those entries begin that end with the next call: blocks left before their turn, and what is inside."""
        keep = len(self.entries)
        for at in reversed(range(keep)):
            if self.entries[at].task is not None:
                if not self.entries[at].is_left:
                    break
                keep = at
        return keep

    def remove_left(self) -> None:
        keep = self.first_left()
        ours: list[int] = []
        while len(self.entries) > keep:
            entry = self.entries.pop()
            ours.append(entry.held.handle)
            if entry.task is not None:
                self.restore(entry.below, ours)
                ours = []

    def restore(self, below: list[int], ours: list[int]) -> None:
        """What was current is current again; the rest of the stack too, where other code left all of ours in place."""
        at, before = len(below), below[-1] if below else 0
        is_there = len(self.stack) > at and self.stack[:at] == below and self.stack[at] in ours
        others = range(at + 1, len(self.stack))
        is_only = not any(self.stack[i] in ours and self.stack[i - 1] == before for i in others)
        self.is_exact = self.is_exact and is_there and is_only
        self.stack = list(below)

    def set(self, held: Held) -> None:
        self.stack[-1:] = [held.handle]
        if self.entries and self.entries[-1].task is None:
            self.entries.pop()
        self.entries.append(Entry(held, []))

    def is_foreign_on_top(self) -> bool:
        blocks = [entry for entry in self.entries if entry.task is not None]
        is_set = self.entries != [] and self.entries[-1].task is None
        return len(self.stack) > (len(blocks[-1].below) + 1 if blocks else 0) + is_set

    def is_below_others(self) -> bool:
        """Whether other code has pushed something above the innermost entry: the program sets nothing then."""
        keep = self.first_left()
        top = self.top if keep == len(self.entries) else (self.entries[keep].below or [0])[-1]
        return keep > 0 and self.entries[keep - 1].held.handle != top

    def forget_replaced(self) -> None:
        while self.entries and self.entries[-1].task is None and self.entries[-1].held.handle not in self.stack:
            self.entries.pop()


def in_a_block(ctx: Context) -> Iterator[None]:
    with ctx.current():
        yield


class Program:
    """One program; run() returns what is wrong, and "" if nothing is."""

    def __init__(self, machine: Any, seed: int, operations: int, every: int = EVERY) -> None:
        self.machine, self.operations, self.every = machine, operations, every
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.failure = ""
        self.numbers = count()
        self.names = list(WEIGHTS)
        self.cumulated = [sum(list(WEIGHTS.values())[: at + 1]) for at in range(len(WEIGHTS))]
        self.dev, self.raw = Device(0), Raw()
        whole = self.dev.resources.sm
        self.groups, _ = whole.split(SMResourceOptions([whole.min_partition_size] * 5))
        # Of other code, which pushes these alone: nobody can tell its pushes of a context of ours from our own.
        self.foreign = [self.raw.handle("cuCtxCreate_v2", 0, 0) for _ in range(2)]
        self.raw.pop()
        self.raw.pop()
        primary, kept = self.dev.context, self.dev.create_context(ContextOptions([self.groups[0]]))
        self.lasting = [Held("primary", primary.handle, primary), Held("kept", kept.handle, kept)]
        self.contexts: list[Held] = []
        self.streams: list[Any] = []
        self.ended: Line | None = None
        self.finished = threading.Event()
        self.lines = [self.new_line() for _ in range(THREADS)]
        self.turn: tuple[Line, int] = (self.lines[0], 0)

    def run(self) -> str:
        for line in tuple(self.lines):  # those that start later are started by the program
            self.start(line)
        self.finished.wait()
        for line in self.lines:  # grows while threads end and others start
            line.thread.join()
            self.forget(line)
            # What other code pushed there is current until the system has ended the thread, which is after join().
            while Path(f"/proc/self/task/{line.thread.native_id}").exists():
                time.sleep(0.0001)
        for held in self.contexts:
            if not self.failure and held.context is not None:
                held.context.close()  # nothing is current on any thread
        self.contexts.clear()
        self.streams.clear()
        self.lasting.clear()
        for handle in self.foreign:
            self.raw.call("cuCtxDestroy_v2", ctypes.c_void_p(handle))
        gc.collect()
        if not self.failure:
            self.failure = self.misuse() or ", ".join(map(str, self.machine.ledger().live_of("green context")))
        return self.failure

    def misuse(self) -> str:
        return "; ".join(map(str, self.machine.ledger().faults))

    # ---- threads, tasks and turns

    def new_line(self) -> Line:
        return Line(f"thread {next(self.numbers)}", self.random.choice(list(SCHEDULERS)))

    def start(self, line: Line) -> None:
        line.thread = threading.Thread(target=self.run_line, args=(line,))
        line.thread.start()

    def run_line(self, line: Line) -> None:
        try:
            SCHEDULERS[line.scheduler](*[self.work_of(line, task) for task in range(TASKS)])
        except BaseException as error:
            self.fail(f"{line.name}: {error!r}")

    def work_of(self, line: Line, task: int) -> Work:
        def work() -> Iterator[None]:
            while not line.is_over:
                if self.turn == (line, task):
                    try:
                        self.act(line, task)
                    except BaseException as error:
                        self.fail(f"{type(error).__name__}: {error}")
                while self.turn[0] is not line and not line.is_over:
                    line.wake.acquire()  # the whole thread waits
                yield

        return work  # type: ignore[return-value]

    def finish(self) -> None:
        for line in self.lines:
            line.is_over = True
            line.wake.release()
        self.finished.set()

    def fail(self, what: str) -> None:
        self.failure = self.failure or what
        self.finish()

    def hand_over(self, line: Line, task: int) -> None:
        self.turn = (line, task)
        line.wake.release()

    def act(self, line: Line, task: int) -> None:
        """Operations of a task, until it is another's turn."""
        if self.ended is not None:
            self.bury(self.ended)
        while self.turn == (line, task) and not line.is_over:
            if len(self.log) == self.operations:
                self.finish()
                return
            name = self.random.choices(self.names, cum_weights=self.cumulated)[0]
            self.log.append(f"{line.name} ({line.scheduler}), task {task}: {name}")
            getattr(self, name)(line, task)
            if not line.is_over:
                self.judge(line)
                self.switch(line)

    def switch(self, line: Line) -> None:
        drawn = self.random.random()
        if drawn < SWITCH_THREAD:
            self.hand_over(self.random.choice(self.living()), self.random.randrange(TASKS))
        elif drawn < SWITCH_THREAD + SWITCH_TASK:
            self.turn = (line, self.random.randrange(TASKS))

    def living(self) -> list[Line]:
        return [line for line in self.lines if not line.is_over]

    def end_thread(self, line: Line, task: int) -> None:
        self.ended = line
        line.is_over = True
        self.hand_over(self.random.choice(self.living()), self.random.randrange(TASKS))

    def bury(self, line: Line) -> None:
        """After the end of a thread nothing is current there, and its blocks are over."""
        line.thread.join()
        self.ended = None
        self.forget(line)
        self.lines.append(self.new_line())
        self.start(self.lines[-1])

    def forget(self, line: Line) -> None:
        """The blocks of a thread that has ended are over."""
        for entry in line.entries:
            if entry.leave is not None and not (entry.is_generator and entry.is_left):
                self.demand(RuntimeError, entry.leave)
        line.entries.clear()

    # ---- what is judged

    def say(self, what: str) -> None:
        self.log[-1] += " " + what

    def demand(self, kind: type[Exception] | None, action: Callable[[], object]) -> Any:
        """What an action returns, which has to raise an error of this kind, or none."""
        try:
            answer = action()
        except RuntimeError as error:
            if kind is None or not isinstance(error, kind):
                raise Wrong(f"raised {type(error).__name__}: {error}") from None
            self.say(f"(raises {type(error).__name__})")
            return None
        if kind is not None:
            raise Wrong(f"did not raise {kind.__name__}")
        return answer

    def judge(self, line: Line) -> None:
        top = self.raw.current()
        if top != line.top:
            raise Wrong(f"{self.name_of(top)} is current instead of {self.name_of(line.top)}")
        if not line.is_exact or self.random.random() < LOOK_DEEP:
            whole = self.whole_stack()
            if line.is_exact and whole != line.stack:
                raise Wrong(f"the stack is {[*map(self.name_of, whole)]} instead of {[*map(self.name_of, line.stack)]}")
            line.stack, line.is_exact = whole, True
        if len(self.log) % self.every == 0 and (misuse := self.misuse()):
            raise Wrong(misuse)

    def whole_stack(self) -> list[int]:
        popped = []
        while self.raw.current():
            popped.append(self.raw.pop())
        popped.reverse()
        for handle in popped:
            self.raw.push(handle)
        return popped

    def name_of(self, handle: int) -> str:
        if handle in self.foreign:
            return f"other code's {self.foreign.index(handle) + 1}"
        known = (held.name for held in [*self.lasting, *self.contexts] if held.handle == handle)
        return next(known, f"{handle:#x}" if handle else "nothing")

    # ---- operations

    def any_context(self) -> Held:
        return self.random.choice([*self.lasting, *self.contexts])

    def enter(self, line: Line, task: int) -> None:
        if len(line.stack) > DEEP:
            self.leave(line, task)
            return
        held = self.any_context()
        context, is_generator = held.context, self.random.random() < 0.3
        assert context is not None
        self.say(f"{held.name}{', a generator' if is_generator else ''}")
        if held.is_closed:
            self.demand(ClosedError, context.current)
            return
        if is_generator:
            generator: Any = in_a_block(context)
            enter, leave = generator.__next__, generator.close
        else:
            block = context.current()
            enter, leave = block.__enter__, lambda: block.__exit__(None, None, None)
        line.remove_left()
        inner = line.innermost_open()
        if inner is not None and inner.task != task:
            self.demand(RuntimeError, enter)
            return
        self.demand(None, enter)
        if not line.is_exact:
            line.stack, line.is_exact = self.whole_stack()[:-1], True
        line.entries.append(Entry(held, list(line.stack), task, leave, is_generator))
        line.stack.append(held.handle)

    def leave(self, line: Line, task: int) -> None:
        entry = line.innermost_open()
        if entry is not None:
            self.leave_entry(line, task, line, entry)

    def leave_any(self, line: Line, task: int) -> None:
        """A block of any thread and task."""
        found = [(of, entry) for of in self.living() for entry in of.entries if entry.leave is not None]
        if found:
            self.leave_entry(line, task, *self.random.choice(found))

    def leave_entry(self, line: Line, task: int, of: Line, entry: Entry) -> None:
        if entry.leave is None:  # its object is gone
            return
        self.say(f"{entry.held.name} of {of.name}, task {entry.task}")
        if entry.is_left:
            self.demand(None if entry.is_generator else RuntimeError, entry.leave)
            return
        entry.is_left = True
        inner = of.entries[of.entries.index(entry) + 1 :]
        is_outer = any(above.task is not None and not above.is_left for above in inner)
        if of is not line or is_outer:
            self.demand(RuntimeError, entry.leave)
            return
        line.remove_left()
        self.demand(None if entry.task == task else RuntimeError, entry.leave)

    def abandon(self, line: Line, task: int) -> None:
        """The object of an open block is dropped."""
        entry = line.innermost_open()
        if entry is not None and not entry.is_generator:
            entry.leave = None

    def set_current(self, line: Line, task: int) -> None:
        held = self.any_context()
        if line.is_below_others():
            return
        self.say(held.name)

        def action() -> Context | None:
            return self.dev.set_current(held.context)

        if held.is_closed:
            self.demand(ClosedError, action)
            return
        line.remove_left()
        inner = line.innermost_open()
        if inner is not None and inner.task != task:
            self.demand(RuntimeError, action)
            return
        previous = self.demand(None, action)
        if (previous.handle if previous is not None else 0) != line.top:
            raise Wrong(f"{previous} was current instead of {self.name_of(line.top)}")
        line.set(held)

    def push(self, line: Line, task: int) -> None:
        if len(line.stack) <= DEEP:
            handle = self.random.choice(self.foreign)
            self.say(self.name_of(handle))
            self.raw.push(handle)
            line.stack.append(handle)

    def pop(self, line: Line, task: int) -> None:
        """Other code pops what it has pushed."""
        if line.is_foreign_on_top():
            self.raw.pop()
            line.stack.pop()

    def replace(self, line: Line, task: int) -> None:
        if not line.is_foreign_on_top() and any(entry.task is not None for entry in line.entries):
            return
        handle = self.random.choice(self.foreign)
        self.say(self.name_of(handle))
        self.raw.set_current(handle)
        line.stack[-1:] = [handle]

    def pop_and_push(self, line: Line, task: int) -> None:
        if line.stack:
            self.raw.push(self.raw.pop())

    def create(self, line: Line, task: int) -> None:
        if len(self.contexts) < 6:
            context = self.dev.create_context(ContextOptions([self.random.choice(self.groups)]))
            self.contexts.append(Held(f"context {next(self.numbers)}", context.handle, context))
            self.say(self.contexts[-1].name)

    def close(self, line: Line, task: int) -> None:
        if not self.contexts:
            return
        held = self.random.choice(self.contexts)
        assert held.context is not None
        self.say(held.name)
        if held.is_closed:
            self.demand(None, held.context.close)
            return
        line.remove_left()
        if line.is_exact:
            line.forget_replaced()
        elif any(entry.held is held for entry in line.entries):
            return  # whether it is on the stack is not known before the call
        is_current = held.handle == line.top
        is_current |= any(entry.held is held for of in self.living() for entry in of.entries)
        self.demand(ContextCurrentError if is_current else None, held.context.close)
        held.is_closed = not is_current

    def drop(self, line: Line, task: int) -> None:
        """The program's only name of a context or of a stream goes."""
        if self.streams and self.random.random() < 0.3:
            self.streams.pop(self.random.randrange(len(self.streams)))
        elif self.contexts:
            self.say(self.contexts.pop(self.random.randrange(len(self.contexts))).name)

    def use_stream(self, line: Line, task: int) -> None:
        if self.streams and self.random.random() < 0.5:
            self.random.choice(self.streams).record().sync()
            return
        held = self.any_context()
        assert held.context is not None
        stream = self.demand(ClosedError if held.is_closed else None, held.context.create_stream)
        if stream is not None:
            self.streams = [*self.streams, stream][-6:]


def run_program(seed: int, operations: int, driver: str) -> str:
    """Runs one program, and once more if it fails: the report names the shortest sequence of operations that does."""
    with session("h200", driver=driver, check=False) as machine:
        program = Program(machine, seed, operations)
        if not program.run():
            return ""
    with session("h200", driver=driver, check=False) as machine:
        again = Program(machine, seed, len(program.log), every=1)
        again.run()
        shown = again if again.failure else program
    title = f"seed {seed}, driver {driver}, {len(shown.log)} operations: {shown.failure}"
    return "\n".join([title, *(f"  {at}. {line}" for at, line in enumerate(shown.log, 1))])


def run(operations: int, seed: int) -> str:
    """Runs programs of consecutive seeds, and returns the report of the first that fails."""
    done = 0
    for number in count(seed):
        if done >= operations:
            return ""
        size = min(PROGRAM, operations - done)
        if failure := run_program(number, size, DRIVERS[number % len(DRIVERS)]):
            return failure
        done += size
        if number % 200 == 199:
            print(f"{done} operations", file=sys.stderr, flush=True)
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = run(arguments.operations, arguments.seed)
    print(report or f"{arguments.operations} operations from seed {arguments.seed}: nothing is wrong")
    raise SystemExit(report != "")
