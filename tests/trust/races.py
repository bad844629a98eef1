"""Signals, forks, finalizers, threads and captures at random moments: `python -m tests.trust.races RACE [COUNT]`.

Prints a line of JSON for each race. "wrong" is the number of losses: SMs that stay claimed, children that hang, threads
that wait for each other, contexts that are current after a block, captures that the package has ended.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import select
import signal
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from cuda_gctx import (
    ClosedError,
    Context,
    ContextCurrentError,
    ContextOptions,
    Device,
    Layout,
    PartitionPool,
    ResourceOverlapError,
    SMResourceOptions,
    SplitError,
    system,
)
from cuda_gctx.tune import spin

from ..raw import Raw, RawError

CHILD_SECONDS = 5
RELAXED = 2  # mode of a capture
Result = dict[str, Any]


class Interruption(BaseException):
    """The exception of a signal handler."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interruption


def is_interrupted(seconds: float, action: Callable[[], object]) -> bool:
    """Acts, with a signal after some time. Tells whether it came in time."""
    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            action()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one that is on its way comes here, or never
    except Interruption:
        return True
    return False


def closes(dev: Device, count: int, kind: str) -> Result:
    """A signal in close(), which is then called again."""
    interrupted = rounds = wrong = 0
    while interrupted < count:
        rounds += 1
        owner: Any
        if kind == "partitions":
            owner = dev.partition(a=16, b=None)
            kept = [owner.a.stream, owner.b.stream_pool(3)]
        else:
            owner = PartitionPool(dev)
            kept = [owner.switch(a=16, b=None).a.stream, owner.switch(a=64, b=None).b.stream]
        if is_interrupted(random.uniform(1e-6, 60e-6), owner.close):
            interrupted += 1
            owner.close()
            wrong += dev.resources.sm.free.sm_count != dev.sm_count
        del owner, kept
    return {"rounds": rounds, "interrupted": interrupted, "wrong": wrong}


def limits(dev: Device, count: int) -> Result:
    """A time limit round a block of partitions, which the program keeps."""
    interrupted = rounds = wrong = 0
    kept: list[Any] = []

    def serve() -> None:
        with dev.partition(a=16, b=None) as parts:
            kept[:] = [parts]
            parts.a.stream, parts.b.stream  # noqa: B018  made at first use

    while interrupted < count:
        rounds += 1
        interrupted += is_interrupted(random.uniform(1e-6, 60e-6), serve)
        is_closed = all(parts.is_closed for parts in kept)
        try:
            dev.partition(z=8, w=None, exclusive=True).close()
        except ResourceOverlapError:
            wrong += is_closed
        kept.clear()
    return {"rounds": rounds, "interrupted": interrupted, "wrong": wrong}


def forks(dev: Device, count: int) -> Result:
    """Forks while two threads are inside of the package. The child makes the same call, closes, and builds a layout."""
    pool = PartitionPool(dev)
    pool.switch(a=16, b=None).a.stream, pool.switch(a=64, b=None).b.stream
    parts = Device(1).partition(x=16, y=None)
    layout_numbers, numbers = iter(range(1 << 30)), iter(range(1 << 30))
    works: dict[str, Callable[[], object]] = {
        "switch": lambda: pool.switch(a=16 if next(numbers) % 2 else 64, b=None),
        "prepare": lambda: (pool.prepare(c=16, b=None), pool.drop(c=16, b=None)),
        "layout": lambda: Layout(a=8 + 8 * (next(layout_numbers) % 10), b=None),
        "streams": lambda: parts.x.stream_pool(1 + next(numbers) % 64),
        "partition": lambda: Device(2).partition(x=16, y=None).close(),
    }
    hanging: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for name, work in works.items():
        stopped = threading.Event()

        def run(work: Callable[[], object] = work, stopped: threading.Event = stopped) -> None:
            while not stopped.is_set():
                with suppress(RuntimeError):  # another thread has dropped the layout
                    work()

        threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(count // len(works)):
            answer = in_child([work, pool.close, parts.close, lambda: Layout(z=24), lambda: dev.partition(z=24)])
            hanging[name] += answer is None
            answers[f"{name}: {answer}"] += 1
        stopped.set()
        for thread in threads:
            thread.join()
    pool.close()
    parts.close()
    return {"forks": count, "answers": dict(answers), "wrong": hanging.total()}


def in_child(tries: list[Callable[[], object]]) -> str | None:
    """What each try does in a forked child; None if the child hangs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = []
        for action in tries:
            try:
                action()
            except BaseException as error:
                words.append(type(error).__name__)
            else:
                words.append("nothing")
        gc.collect()
        os.write(writer, " ".join(words).encode())
        os._exit(0)
    os.close(writer)
    is_there, _, _ = select.select([reader], [], [], CHILD_SECONDS)
    if not is_there:
        os.kill(pid, signal.SIGKILL)
    answer = os.read(reader, 1000).decode() if is_there else None
    os.close(reader)
    os.waitpid(pid, 0)
    return answer


def finalizers(dev: Device, seconds: float) -> Result:
    """Servers in cycles close their pools when they are collected, in the middle of calls of other threads."""

    class Server:
        def __init__(self) -> None:
            self.pool, self.itself = PartitionPool(dev), self
            weakref.finalize(self, self.pool.close)

    pools = [PartitionPool(dev)]
    calls = [0, 0, 0]
    before = gc.get_threshold()
    gc.set_threshold(50, 5, 5)
    end = time.monotonic() + seconds

    def handle() -> None:
        with suppress(RuntimeError):  # closed, or collected meanwhile
            pools[0].switch(a=8 + 8 * (calls[0] % 14), b=None)

    def serve() -> None:
        pools[0] = Server().pool
        time.sleep(0.001)

    def repeat(at: int, action: Callable[[], object]) -> None:
        while time.monotonic() < end:
            action()
            calls[at] += 1

    actions = (handle, lambda: dev.partition(a=16, b=None).close(), serve)
    threads = [threading.Thread(target=repeat, args=one, daemon=True) for one in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 30)
    hanging = sum(thread.is_alive() for thread in threads)
    gc.set_threshold(*before)
    pools.clear()
    gc.collect()
    lost = 0 if hanging else dev.sm_count - dev.resources.sm.free.sm_count
    return {"switches": calls[0], "openings": calls[1], "servers": calls[2], "wrong": hanging + lost}


def garbage(dev: Device, seconds: float, seed: int = 0) -> Result:
    """Garbage opens, switches, drops, releases and closes, in the middle of the same calls of three threads."""
    pool, sizes, random_of = PartitionPool(dev, limit=6), range(8, 72, 8), random.Random(seed)
    done: Counter[str] = Counter()
    depth = threading.local()
    end = time.monotonic() + seconds

    def open_one(order: random.Random) -> None:
        parts = dev.partition(a=order.choice(sizes), b=None, among=order.choice(["all", "free"]))
        parts.a.stream.sync()
        parts.close() if order.random() < 0.5 else Garbage(parts)

    def create(order: random.Random) -> None:
        groups, _ = dev.resources.sm.split(order.choice(sizes))
        context = dev.create_context(ContextOptions(groups))
        with context.current():
            stream = context.create_stream()
            stream.record().sync()
        Garbage((context, stream))

    def work_in_block(order: random.Random) -> None:
        with pool.current.a.context.current():
            act(order)

    deeds: list[Callable[[random.Random], object]] = [
        open_one,
        create,
        work_in_block,
        lambda order: pool.switch(a=order.choice(sizes), b=None),
        lambda order: pool.prepare(a=order.choice(sizes), b=None),
        lambda order: pool.drop(a=order.choice(sizes), b=None),
        lambda order: pool.current.a.stream_pool(order.randrange(1, 5)),
        lambda order: system.release_contexts(exposed=order.random() < 0.1),
        lambda order: (Layout(a=order.choice(sizes), b=None), dev.resources.sm.free, system.memory(), pool.layouts),
    ]

    def act(order: random.Random) -> None:
        depth.now = getattr(depth, "now", 0) + 1
        try:
            if depth.now < 5 and time.monotonic() < end:
                done["calls"] += 1
                order.choice(deeds)(order)
        except (SplitError, ClosedError, ContextCurrentError):
            done["refused"] += 1
        except Exception as error:
            is_meant = str(error).endswith(("switch to another layout first", "call pool.switch() first"))
            done["refused" if is_meant else f"{type(error).__name__}: {error}"] += 1
        finally:
            depth.now -= 1

    class Garbage:
        def __init__(self, owned: object) -> None:
            self.itself, self.owned, self.order = self, owned, random.Random(random_of.random())

        def __del__(self) -> None:
            act(self.order)

    def repeat(order: random.Random) -> None:
        while time.monotonic() < end:
            act(order)

    before = gc.get_threshold()
    gc.set_threshold(3, 3, 3)
    threads = [threading.Thread(target=repeat, args=(random.Random(seed + at),), daemon=True) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 30)
    gc.set_threshold(*before)
    hanging = sum(thread.is_alive() for thread in threads)
    if not hanging:
        pool.close()
        gc.collect()
    lost = 0 if hanging else dev.sm_count - dev.resources.sm.free.sm_count
    errors = {error: number for error, number in done.items() if error not in ("calls", "refused")}
    result = {"calls": done["calls"], "refused": done["refused"], "errors": errors}
    return {**result, "wrong": hanging + lost + sum(errors.values())}


def closes_next_to_blocks(dev: Device, count: int) -> Result:
    """A thread enters blocks of partitions that another one closes: no partition closes under an open block."""
    target: list[Context | None] = [None]
    inside: list[Context | None] = [None]
    stopped, done = threading.Event(), Counter[str]()

    def enter() -> None:
        while not stopped.is_set():
            context = target[0]
            with suppress(ClosedError):
                if context is not None:
                    with context.current():
                        inside[0] = context
                        for _ in range(20):
                            done["steps"] += 1
                        inside[0] = None

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=enter)
    thread.start()
    for _ in range(count):
        parts = dev.partition(a=16, b=None)
        context = target[0] = parts.b.context
        for _ in range(random.randrange(500)):  # until the other thread may be in a block
            pass
        while not parts.is_closed:
            try:
                parts.close()
            except ContextCurrentError:
                done["refused"] += 1
        done["wrong"] += inside[0] is context
        target[0] = None
    stopped.set()
    thread.join()
    sys.setswitchinterval(before)
    lost = dev.resources.sm.free.sm_count != dev.sm_count
    return {
        "closes": count,
        "steps in blocks": done["steps"],
        "refused": done["refused"],
        "wrong": done["wrong"] + lost,
    }


def blocks(dev: Device, count: int, seed: int = 0) -> Result:
    """Threads enter blocks, leave them in any order, hand them to each other, and close contexts."""
    groups, _ = dev.resources.sm.split(SMResourceOptions([8] * 6))
    lock, raw = threading.Lock(), Raw()
    done: Counter[str] = Counter()
    wrong: list[int] = []

    def work(number: int, contexts: list[Context], shared: list[Any]) -> None:
        order, mine = random.Random(number), []
        before = raw.current()
        for _ in range(60):
            deed = order.choice(["enter", "enter", "leave", "take", "close"])
            done[deed] += 1
            with suppress(RuntimeError, ValueError):
                if deed == "enter":
                    with lock:
                        context = order.choice(contexts) if contexts else dev.context
                    block = context.current()
                    block.__enter__()
                    mine.append(block)
                    if order.random() < 0.2:
                        shared.append(block)
                elif deed == "leave" and mine:
                    mine.pop(order.randrange(len(mine))).__exit__(None, None, None)
                elif deed == "take":
                    with lock:
                        block = shared.pop(order.randrange(len(shared))) if shared else None
                    if block is not None:
                        block.__exit__(None, None, None)
                elif deed == "close":
                    with lock:
                        closing = contexts.pop(order.randrange(len(contexts))) if len(contexts) > 2 else None
                    if closing is not None and order.random() < 0.5:
                        closing.close()
                    del closing
        for block in reversed(mine):
            with suppress(RuntimeError):
                block.__exit__(None, None, None)
        with suppress(RuntimeError), dev.context.current():
            pass  # its end ends the blocks that other threads have left
        wrong.append(raw.current() != before)

    while done.total() < count:
        contexts = [dev.create_context(ContextOptions([group])) for group in groups]
        shared: list[Any] = []
        seed += 4
        threads = [threading.Thread(target=work, args=(seed + at, contexts, shared)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for context in contexts:
            context.close()
        shared.clear()
        contexts.clear()
        wrong.append(dev.resources.sm.free.sm_count != dev.sm_count)
    return {"operations": done.total(), "wrong": sum(wrong)}


def nested(dev: Device, count: int, seed: int = 0) -> Result:
    """Blocks of one thread, entered and left in order, with what other code leaves on the driver's stack."""
    groups, _ = dev.resources.sm.split(SMResourceOptions([8] * 6))
    contexts, raw, order = [dev.create_context(ContextOptions([group])) for group in groups], Raw(), random.Random(seed)
    primary, mine, wrong = dev.context.handle, [], 0
    for _ in range(count):
        deed = order.choice(["enter", "leave", "push", "pop"])
        if deed == "enter" and len(mine) < 20:
            block = order.choice(contexts).current()
            mine.append((block, raw.current()))
            block.__enter__()
        elif deed == "leave" and mine:
            block, before = mine.pop()
            block.__exit__(None, None, None)
            wrong += raw.current() != before
        elif deed == "push" and mine and order.random() < 0.5:
            raw.push(primary)
        elif deed == "pop" and mine:
            with suppress(RawError):  # nothing is current
                raw.pop()
    while mine:
        mine.pop()[0].__exit__(None, None, None)
    for context in contexts:
        context.close()
    return {"operations": count, "wrong": wrong + (dev.resources.sm.free.sm_count != dev.sm_count)}


def captures(dev: Device, count: int, by_driver: bool) -> Result:
    """One thread captures, another one switches a pool. Captures that begin through the package are never ended."""
    pool, raw = PartitionPool(dev), Raw()
    first, other = pool.switch(a=16, b=None), pool.prepare(a=64, b=None)
    for parts in (first, other):
        spin(parts.a.stream, 1, 100), parts.b.stream
    stopped, errors, switches = threading.Event(), Counter[str](), [0]

    def switch() -> None:
        while not stopped.is_set():
            switches[0] += 1
            try:
                pool.switch(a=16 if switches[0] % 2 else 64, b=None)
            except Exception as error:  # counted
                errors[f"switch: {type(error).__name__}"] += 1

    thread = threading.Thread(target=switch)
    thread.start()
    ended = 0
    stream = first.a.stream
    for _ in range(count):
        try:
            if by_driver:
                raw.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), RELAXED)
                try:
                    spin(stream, 2, 100)
                finally:
                    graph = raw.handle_of_capture(stream.handle)
                raw.call("cuGraphDestroy", ctypes.c_void_p(graph))
            else:
                with stream.capture("relaxed") as capture:
                    spin(stream, 2, 100)
                capture.graph.close()
        except Exception as error:  # counted
            errors[f"capture: {type(error).__name__}"] += 1
            ended += 1
    stopped.set()
    thread.join()
    pool.close()
    wrong = {"wrong": errors["switch: ValueError"]} if by_driver else {"wrong": ended + errors["switch: CUDAError"]}
    return {"captures": count, "switches": switches[0], "ended": ended, "errors": dict(errors), **wrong}


RACES: dict[str, tuple[Callable[[Device, int], Result], int]] = {
    "closes of partitions": (lambda dev, count: closes(dev, count, "partitions"), 10_000),
    "closes of pools": (lambda dev, count: closes(dev, count, "pool"), 10_000),
    "time limits": (limits, 10_000),
    "forks": (forks, 1_000),
    "finalizers": (finalizers, 600),
    "garbage": (garbage, 60),
    "closes next to blocks": (closes_next_to_blocks, 50_000),
    "blocks of threads": (blocks, 1_000_000),
    "nested blocks": (nested, 1_000_000),
    "captures": (lambda dev, count: captures(dev, count, by_driver=False), 100_000),
    "captures of other code": (lambda dev, count: captures(dev, count, by_driver=True), 100_000),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("race", choices=["all", *RACES])
    parser.add_argument("count", nargs="?", type=int, help="interruptions, forks, seconds, operations or captures")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of shared SMs, and of forks in a process with threads
    wrong = 0
    for name, (race, usual) in RACES.items():
        if arguments.race in ("all", name):
            result = race(Device(0), arguments.count or usual)
            print(json.dumps({"race": name, **result}), flush=True)
            wrong += result["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
