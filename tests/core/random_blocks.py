"""A program: random blocks, set_current, closes and drops, judged by the ledger of the software driver.

``python random_blocks.py --seed 1 --operations 1000000``. On each thread, tasks (each in a contextvars.Context of its
own), greenlets and generators take turns; contexts
are closed and dropped at any moment, also on other threads, and threads end with blocks open. Nothing may be destroyed
while it is current, whatever is refused.
"""

from __future__ import annotations

import argparse
import contextvars
import gc
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from cuda_gctx import Context, ContextOptions, Device, SMResource, SMResourceOptions
from cuda_gctx.sim import session

REFUSED = (RuntimeError, ValueError)


def in_a_block(ctx: Context) -> Iterator[None]:
    with ctx.current():
        yield


class World:
    """What the threads share: the groups of one split, and a context over each."""

    def __init__(self, dev: Device, groups: list[SMResource]) -> None:
        self.dev = dev
        self.groups = groups
        self.contexts: list[Context | None] = [None] * len(groups)
        self.lock = threading.Lock()

    def context(self, number: int) -> Context:
        with self.lock:
            ctx = self.contexts[number]
            if ctx is None or ctx.is_closed:
                ctx = self.contexts[number] = self.dev.create_context(ContextOptions([self.groups[number]]))
            return ctx


class Thread:
    """What one thread does, one operation at a time."""

    def __init__(self, world: World, seed: int, greenlet: Any) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.tasks = [contextvars.copy_context() for _ in range(3)]
        self.blocks: list[Any] = []
        self.generators: list[Any] = []
        self.greenlet = greenlet
        self.greenlets: list[Any] = []

    def any_context(self) -> Context:
        return self.world.context(self.chance.randrange(len(self.world.groups)))

    def enter(self) -> None:
        block = self.any_context().current()
        block.__enter__()
        self.blocks.append(block)

    def leave(self) -> None:
        if self.blocks:
            place = -1 if self.chance.random() < 0.8 else self.chance.randrange(len(self.blocks))
            self.blocks.pop(place).__exit__(None, None, None)

    def start_generator(self) -> None:
        self.generators.append(in_a_block(self.any_context()))
        next(self.generators[-1])

    def end_generator(self) -> None:
        if self.generators:
            self.generators.pop(self.chance.randrange(len(self.generators))).close()

    def switch(self) -> None:
        """Start a greenlet that opens a block and switches away in it, or let one go on to its end."""
        if self.greenlet is None:
            return
        if self.greenlets and self.chance.random() < 0.5:
            self.greenlets.pop(self.chance.randrange(len(self.greenlets))).switch()
            return
        main, ctx = self.greenlet.getcurrent(), self.any_context()

        def work() -> None:
            with suppress(*REFUSED), ctx.current():
                main.switch()

        made = self.greenlet.greenlet(work)
        made.switch()
        if not made.dead:
            self.greenlets.append(made)

    def set_current(self) -> None:
        self.world.dev.set_current(self.any_context() if self.chance.random() < 0.8 else None)

    def close(self) -> None:
        self.any_context().close()

    def drop(self) -> None:
        with self.world.lock:
            self.world.contexts[self.chance.randrange(len(self.world.groups))] = None

    def step(self) -> None:
        actions: list[Callable[[], None]] = [
            *([self.enter] * 3), *([self.leave] * 4), self.start_generator, self.end_generator, self.switch,
            *([self.set_current] * 2), self.close, self.drop,
        ]  # fmt: skip
        action = self.chance.choice(actions)
        with suppress(*REFUSED):
            if action in (self.switch, self.close, self.drop):
                action()
            else:
                self.chance.choice(self.tasks).run(action)

    def end(self) -> None:
        """Leave what can be left; the end of the thread does the rest."""
        for generator in self.generators:
            with suppress(*REFUSED):
                generator.close()
        while self.greenlets:
            with suppress(*REFUSED):
                self.greenlets.pop().switch()
        self.generators.clear()
        self.blocks.clear()


def run(seed: int, operations: int, threads: int = 2, life: int = 400) -> list[str]:
    """The misuse that the ledger has seen."""
    try:
        import greenlet
    except ImportError:
        greenlet = None
    warnings.simplefilter("ignore")
    with session("h200", driver="13.0", check=False) as machine:
        dev = Device(0)
        groups, _ = dev.resources.sm.split(SMResourceOptions([8] * 6))
        world = World(dev, groups)

        def work(number: int) -> None:
            thread = Thread(world, number, greenlet)
            for _ in range(life):
                thread.step()
            thread.end()

        number = 1_000_003 * seed
        for _ in range(max(1, operations // (threads * life))):
            pool = [threading.Thread(target=work, args=(number + one,)) for one in range(threads)]
            number += threads
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
            if machine.ledger().misuse:
                break
        world.contexts.clear()
        gc.collect()
        return [str(one) for one in machine.ledger().misuse]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=1_000_000)
    options = parser.parse_args()
    found = run(options.seed, options.operations)
    print(f"{options.operations} operations with seed {options.seed}: {found or 'no misuse'}")
    sys.exit(bool(found))
