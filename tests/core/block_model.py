"""Random programs of blocks, set_current, other code's pushes, closes and drops, against a model of what is current.

    python tests/core/block_model.py [--operations 1000000] [--seed 0]

A program runs on three threads, each with three tasks of a scheduler. One operation runs at a time, so that a seed
gives the same program each time. After each operation the driver's current context is compared with
the model's, and the software driver's ledger says whether something was destroyed while it was on the stack of a
thread, or used after.

In half of the programs, other code pushes contexts of its own only, and pops and replaces what it has pushed: there the
whole stack is as the model says. In the others it pushes contexts of this package too, which it keeps as long as they
are on the stack, and pops and replaces whatever is on top: there the current context is as the model says, but for a
block's own context that other code has left on top.

A program that fails is printed as its seed and the operations that are needed for it to fail, as far as leaving out
others shows. Each operation draws from a seed of its own, so that one that is left out changes no other's choices.
tests/trust/state_machine.py has more operations.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate, count
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from cuda_gctx import ClosedError, Context, ContextCurrentError, ContextOptions, Device, SMResourceOptions
from cuda_software_driver import LedgerError, session
from tests.core.schedulers import MODULES, SCHEDULERS, Work
from tests.raw import Raw

DRIVERS = ("12.4", "13.0", "13.4")
THREADS, TASKS = 3, 3
PROGRAM = 500  # operations
DEEP = 12  # blocks and pushes of a thread
EVERY = 50  # operations between looks at the ledger
# To leave out operations of a program that fails.
MOST_TRIES = int(os.environ.get("CUDA_GCTX_SHRINK_TRIES", "300"))

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


LOST = "other code has popped what was current before it"


class Wrong(Exception):
    """What happened is not what the model says."""


class Lost(Exception):
    """Other code has popped, and let go of, what a block had to make current again."""


@dataclass(eq=False)
class Held:
    """A context, and whether the program still has its object."""

    name: str
    handle: int
    context: Context | None
    is_closed: bool = False


@dataclass(eq=False)
class Place:
    """A place on the driver's stack, and whether set_current has put there what it shows."""

    handle: int
    is_set: bool = False


@dataclass(eq=False)
class Block:
    """A block of a task."""

    held: Held
    at: int  # its place on the driver's stack
    before: int  # the handle below it, or 0
    task: int
    leave: Callable[[], object] | None
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
    blocks: list[Block] = field(default_factory=list)
    stack: list[Place] = field(default_factory=list)
    sets: list[tuple[Held, Place]] = field(default_factory=list)  # where other code leaves places of others alone
    kept: list[Held] = field(default_factory=list)  # what other code has pushed of ours
    allowed: set[int] = field(default_factory=set)  # what may be current now as well, by other code's doing

    @property
    def top(self) -> int:
        return self.stack[-1].handle if self.stack else 0

    @property
    def handles(self) -> list[int]:
        return [place.handle for place in self.stack]

    def innermost_open(self) -> Block | None:
        return next((block for block in reversed(self.blocks) if not block.is_left), None)

    def first_left(self) -> int:
        """The first of the blocks that end with the next call, because they were left before their turn."""
        keep = len(self.blocks)
        while keep > 0 and self.blocks[keep - 1].is_left:
            keep -= 1
        return keep

    def remove_left(self) -> Block | None:
        """The outermost block that has ended."""
        keep = self.first_left()
        last = self.blocks[keep] if keep < len(self.blocks) else None
        if last is not None:
            self.restore(last)
        del self.blocks[keep:]
        return last

    def restore(self, block: Block) -> None:
        """What was on the stack before a block is there again, and nothing else."""
        if self.top == block.held.handle:  # the block looks no further
            self.allowed.add(self.handles[-2] if len(self.stack) > 1 else 0)
        del self.stack[block.at :]
        if self.top != block.before:  # other code has taken away what was there
            self.stack = [Place(block.before)] * (block.before != 0)
        self.sets = [(held, place) for held, place in self.sets if place in self.stack]

    def set(self, held: Held) -> None:
        """What was set since the innermost block was entered is replaced, wherever it is."""
        low = self.blocks[-1].at if self.blocks else 0
        run = [place for place in self.stack[low:] if place.is_set]
        if self.stack and self.stack[-1] not in run:
            self.stack[-1].is_set = True
            run.append(self.stack[-1])
        elif not self.stack:
            self.stack.append(Place(held.handle, is_set=True))
            run.append(self.stack[-1])
        self.sets = [(of, place) for of, place in self.sets if place in self.stack[:low]]
        for place in run:
            place.handle = held.handle
            self.sets.append((held, place))

    def owns(self, held: Held) -> bool:
        """A block, or what set_current has made current, if other code has not replaced it."""
        is_set = any(of.handle == place.handle == held.handle and place in self.stack for of, place in self.sets)
        return is_set or any(block.held.handle == held.handle for block in self.blocks)

    def let_go(self, handle: int) -> None:
        """Other code has popped a context."""
        held = next((held for held in self.kept if held.handle == handle), None)
        if held is not None:
            self.kept.remove(held)

    def prune(self) -> None:
        """Other code lets go of what is not on the stack any more."""
        for held in set(self.kept):
            for _ in range(self.kept.count(held) - self.handles.count(held.handle)):
                self.kept.remove(held)


def in_a_block(ctx: Context) -> Iterator[None]:
    with ctx.current():
        yield


class Program:
    """One program; run() returns what is wrong, and "" if nothing is. omitted: the operations that are left out."""

    weights: Mapping[str, float] = WEIGHTS
    schedulers: Sequence[str] = tuple(SCHEDULERS)
    leaves_nothing = False  # with the driver, once the package has let go of it

    def __init__(
        self, machine: Any, seed: int, operations: int, every: int = EVERY, omitted: Collection[int] = ()
    ) -> None:
        for name in {name for scheduler in self.schedulers for name in MODULES[scheduler]}:
            import_module(name)  # on one thread: some cannot be imported by two at once
        self.machine, self.seed, self.operations, self.every, self.omitted = machine, seed, operations, every, omitted
        self.is_rough = seed % 2 == 1
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.failure = ""
        self.numbers = count()
        self.names, self.cumulated = list(self.weights), list(accumulate(self.weights.values()))
        self.dev, self.raw = Device(0), Raw()
        whole = self.dev.resources.sm
        self.groups, _ = whole.split(SMResourceOptions([whole.min_partition_size] * 5))
        self.foreign = [self.raw.handle("cuCtxCreate_v2", 0, 0) for _ in range(2)]
        self.raw.pop()
        self.raw.pop()
        primary, kept = self.dev.context, self.dev.create_context(ContextOptions([self.groups[0]]))
        self.lasting = [Held("primary", primary.handle, primary), Held("kept", kept.handle, kept)]
        self.contexts: list[Held] = []
        self.streams: list[Any] = []
        self.ended: Line | None = None
        self.finished, self.ending = threading.Event(), threading.Lock()
        self.lines = [self.new_line() for _ in range(THREADS)]
        self.turn: tuple[Line, int] = (self.lines[0], 0)

    def run(self) -> str:
        for line in tuple(self.lines):  # those that start later are started by the program
            self.start(line)
        self.finished.wait()
        for line in self.lines:  # grows while threads end and others start
            line.thread.join()
            self.forget(line)
        try:
            if not self.failure:
                self.close_all()  # nothing is current on any thread
        except BaseException as error:
            self.failure = f"at the end: {type(error).__name__}: {error}"
        self.contexts.clear()
        self.streams.clear()
        self.lasting.clear()
        for handle in self.foreign:
            self.raw.call("cuCtxDestroy_v2", ctypes.c_void_p(handle))
        gc.collect()
        if not self.failure:
            self.failure = self.misuse() or ", ".join(map(str, self.left()))
        return self.failure

    def close_all(self) -> None:
        """What the program closes at its end."""
        for held in self.contexts:
            if held.context is not None:
                held.context.close()

    def left(self) -> Sequence[object]:
        """What is alive at the end, when the program holds nothing any more, and must not be."""
        live: Sequence[object] = self.machine.ledger().live_of("green context")
        return live

    def misuse(self) -> str:
        return "; ".join(map(str, self.machine.ledger().faults))

    # ---- threads, tasks and turns

    def new_line(self) -> Line:
        return Line(f"thread {next(self.numbers)}", self.random.choice(self.schedulers))

    def start(self, line: Line) -> None:
        line.thread = threading.Thread(target=self.run_line, args=(line,))
        line.thread.start()

    def run_line(self, line: Line) -> None:
        try:
            SCHEDULERS[line.scheduler](*[self.work_of(line, task) for task in range(TASKS)])
            with self.ending:
                self.leave_thread(line)
        except BaseException as error:
            self.fail(f"{line.name}: {error!r}")

    def leave_thread(self, line: Line) -> None:
        """What only this thread can end, at its end."""

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
            self.random.seed(f"{self.seed} {len(self.log)}")
            name = self.random.choices(self.names, cum_weights=self.cumulated)[0]
            is_left_out = len(self.log) in self.omitted
            self.log.append("" if is_left_out else f"{line.name} ({line.scheduler}), task {task}: {name}")
            try:
                if not is_left_out:
                    getattr(self, name)(line, task)
            except Lost:  # nothing that could be made current again: what is now is the truth
                self.say("(what was current before is lost)")
                line.stack = [Place(handle) for handle in self.whole_stack()]
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
        for block in line.blocks:
            if block.leave is not None and not (block.is_generator and block.is_left):
                self.demand(RuntimeError, block.leave)
        # What other code pushed there is current until the system has ended the thread, which is after join().
        while Path(f"/proc/self/task/{line.thread.native_id}").exists():
            time.sleep(0.0001)
        for of in (line.blocks, line.stack, line.sets, line.kept):
            of.clear()

    # ---- what is judged

    def say(self, what: str) -> None:
        self.log[-1] += " " + what

    def demand(self, kind: type[Exception] | None, action: Callable[[], object], is_sure: bool = True) -> Any:
        """What an action returns, or the error that it has to raise; it may raise it if that is not sure."""
        try:
            answer = action()
        except RuntimeError as error:
            if self.is_rough and LOST in str(error):
                raise Lost(str(error)) from None
            if kind is None or not isinstance(error, kind):
                raise Wrong(f"raised {type(error).__name__}: {error}") from None
            self.say(f"(raises {type(error).__name__})")
            return error
        if kind is not None and is_sure:
            raise Wrong(f"did not raise {kind.__name__}")
        return answer

    def judge(self, line: Line) -> None:
        if self.is_rough or self.random.random() < LOOK_DEEP:
            whole = self.whole_stack()
            if not self.is_rough and whole != line.handles:
                raise Wrong(
                    f"the stack is {[*map(self.name_of, whole)]} instead of {[*map(self.name_of, line.handles)]}"
                )
        else:
            whole = [self.raw.current()]
        if (top := whole[-1] if whole else 0) != line.top and not (self.is_rough and top in line.allowed):
            raise Wrong(f"{self.name_of(top)} is current instead of {self.name_of(line.top)}")
        if self.is_rough:
            line.stack = [Place(handle) for handle in whole]
            line.prune()
        line.allowed.clear()
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
        line.blocks.append(Block(held, len(line.stack), line.top, task, leave, is_generator))
        line.stack.append(Place(held.handle))

    def leave(self, line: Line, task: int) -> None:
        block = line.innermost_open()
        if block is not None:
            self.leave_block(line, task, line, block)

    def leave_any(self, line: Line, task: int) -> None:
        """A block of any thread and task."""
        found = [(of, block) for of in self.living() for block in of.blocks if block.leave is not None]
        if found:
            self.leave_block(line, task, *self.random.choice(found))

    def leave_block(self, line: Line, task: int, of: Line, block: Block) -> None:
        if block.leave is None:  # its object is gone
            return
        self.say(f"{block.held.name} of {of.name}, task {block.task}")
        if block.is_left:
            self.demand(None if block.is_generator else RuntimeError, block.leave)
            return
        block.is_left = True
        inner = of.blocks[of.blocks.index(block) + 1 :]
        if of is not line or any(not above.is_left for above in inner):
            self.demand(RuntimeError, block.leave)
            return
        line.remove_left()
        self.demand(None if block.task == task else RuntimeError, block.leave)

    def abandon(self, line: Line, task: int) -> None:
        """The object of an open block is dropped."""
        block = line.innermost_open()
        if block is not None and not block.is_generator:
            block.leave = None

    def set_current(self, line: Line, task: int) -> None:
        held = self.any_context()
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
        handle = previous.handle if previous is not None else 0
        if handle != line.top and not (self.is_rough and handle in line.allowed):
            raise Wrong(f"{previous} was current instead of {self.name_of(line.top)}")
        line.set(held)

    def pushed(self, line: Line) -> int:
        """What other code pushes, and keeps if it is of this package."""
        ours = [held for held in [*self.lasting, *self.contexts] if not held.is_closed]
        if self.is_rough and self.random.random() < 0.5:
            line.kept.append(self.random.choice(ours))
            return line.kept[-1].handle
        return self.random.choice(self.foreign)

    def push(self, line: Line, task: int) -> None:
        if len(line.stack) <= DEEP:
            handle = self.pushed(line)
            self.say(self.name_of(handle))
            self.raw.push(handle)
            line.stack.append(Place(handle))

    def pop(self, line: Line, task: int) -> None:
        """Other code pops what it has pushed, or whatever there is."""
        if line.stack and (self.is_rough or line.top in self.foreign):
            self.raw.pop()
            line.let_go(line.stack.pop().handle)

    def replace(self, line: Line, task: int) -> None:
        if self.is_rough or not line.stack or line.top in self.foreign:
            handle, before = self.pushed(line), line.top
            self.say(self.name_of(handle))
            self.raw.set_current(handle)
            line.stack[-1:] = [Place(handle)]
            line.let_go(before)

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
        if any(held in of.kept for of in self.living() if of is not line):
            return  # other code still uses it there
        left = line.remove_left()
        is_current = held.handle in line.handles or any(of.owns(held) for of in self.living())
        # An entry that other code has replaced may still be there, until its thread looks. And where other code pops
        # what is not its own, a block may take with it what is not above it.
        may_be = self.is_rough or any(held is of for one in self.living() for of, _ in one.sets)
        is_sure = is_current and not (self.is_rough and left is not None)
        answer = self.demand(ContextCurrentError if is_current or may_be else None, held.context.close, is_sure)
        held.is_closed = not isinstance(answer, Exception)
        line.sets = [(of, place) for of, place in line.sets if place in line.stack and place.handle == of.handle]

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
        if not held.is_closed:
            self.streams = [*self.streams, stream][-6:]


def run_once(kind: type[Program], driver: str, seed: int, size: int, every: int, omitted: Collection[int]) -> Program:
    program = None
    try:
        with session("h200", driver=driver, check=kind.leaves_nothing) as machine:
            program = kind(machine, seed, size, every, omitted)
            program.run()
    except LedgerError as error:
        assert program is not None
        program.failure = program.failure or str(error)
    return program


def shrunk(failed: Program, driver: str) -> Program:
    """The same program without what it does not need to fail."""
    kind = type(failed)
    best = run_once(kind, driver, failed.seed, len(failed.log), 1, ())
    if not best.failure:
        return failed
    omitted: set[int] = set()
    chunk, tries = len(best.log) // 2, 0
    while chunk > 0 and tries < MOST_TRIES:
        for start in range(0, len(best.log), chunk):
            more = set(range(start, min(start + chunk, len(best.log)))) - omitted
            if more and (tries := tries + 1) <= MOST_TRIES:
                found = run_once(kind, driver, failed.seed, len(best.log), 1, omitted | more)
                if found.failure:
                    best, omitted = found, {at for at in omitted | more if at < len(found.log)}
        chunk //= 2
    return best


def run_program(seed: int, operations: int, driver: str, kind: type[Program] = Program) -> str:
    """Runs one program; if it fails, the report names the operations that it needs to."""
    program = run_once(kind, driver, seed, operations, EVERY, ())
    if not program.failure:
        return ""
    shown = shrunk(program, driver)
    title = f"seed {seed}, driver {driver}, {len(program.log)} operations: {shown.failure}"
    return "\n".join([title, *(f"  {at}. {line}" for at, line in enumerate(shown.log, 1) if line)])


def run(operations: int, seed: int, kind: type[Program] = Program, drivers: Sequence[str] = DRIVERS) -> str:
    """Runs programs of consecutive seeds, and returns the report of the first that fails."""
    done = 0
    for number in count(seed):
        if done >= operations:
            return ""
        size = min(PROGRAM, operations - done)
        if failure := run_program(number, size, drivers[number % len(drivers)], kind):
            return failure
        done += size
        if number % 200 == 199:
            print(f"{done} operations", file=sys.stderr, flush=True)
    return ""


def main(kind: type[Program], operations: int, drivers: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=sys.modules[kind.__module__].__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--operations", type=int, default=operations)
    parser.add_argument("--seed", type=int, default=0, help="of the first program, which has up to 500 operations")
    chosen = parser.parse_args()
    report = run(chosen.operations, chosen.seed, kind, drivers)
    print(report or f"{chosen.operations} operations from seed {chosen.seed}: nothing is wrong")
    raise SystemExit(report != "")


if __name__ == "__main__":
    main(Program, 1_000_000, DRIVERS)
