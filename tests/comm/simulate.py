"""The protocols of the kernels under arbitrary interleavings: no lost packet, no overwrite, no deadlock.

    python tests/comm/simulate.py --interleavings 100000 [--seed N]

Blocks of all ranks run in steps, in any order and with any lag. A store becomes visible at any later time, in any
order, except that stores of a rank to one address keep theirs, and that a released store comes after everything that
its block had stored or had seen arrive. So it makes no difference when a block stores, only when it reads. Places in
memory and epochs are those of the kernels (cuda_gctx.comm._protocol). What a block does within itself, with shared
memory and bulk copies, is tested with the kernels' own sources on the CPU.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._protocol import Geometry, next_epoch

# A module of the tests where pytest imports this one, a neighbour where Python runs it.
try:
    from .topologies import TOPOLOGIES
except ImportError:
    from topologies import TOPOLOGIES  # type: ignore[no-redef]

ONE, TWO = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE
Place = tuple[int, Any]
# Interleavings that one process runs at a time.
PART = 500

# What can be left out of the protocols. Each must be found.
BROKEN = {
    "one slot": ONE,
    "slots by block": ONE,
    "a flag apart from its data": ONE,
    "the first block ends the epoch": ONE,
    "no wait for one rank": ONE,
    "no wait for START": TWO,
    "no wait for END": TWO,
    "END of each block": TWO,
    "END is not released": TWO,
    "START is not released": TWO,
    "flags without an epoch": TWO,
}


class Violation(Exception):
    """What the protocol must not let happen."""


class Store:
    """A store on its way."""

    __slots__ = ("followers", "missing", "place", "seen", "value")

    def __init__(self, place: Place, value: Any, seen: frozenset[Store]) -> None:
        self.place = place
        self.value = value
        self.seen = seen  # what whoever acquires this store has seen too
        self.missing = 0  # how many stores must become visible before
        self.followers: list[Store] | None = []  # None once it is visible


class Block:
    """A thread of control: a block of a kernel, or a stream that runs kernels."""

    __slots__ = ("rank", "seen", "steps")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.seen: frozenset[Store] = frozenset()
        self.steps: Iterator[Any] = iter(())


class Simulation:
    """Some calls of one operation by all ranks, once."""

    def __init__(self, info: ParallelInfo, op: MixedCommOp, mode: MixedCommMode, seed: int, broken: str = "") -> None:
        self.info, self.op, self.mode, self.broken = info, op, mode, broken
        self.random = random.Random(seed)
        self.plans = [info.at(rank).plan(op) for rank in range(info.world_size)]
        self.chunks = [info.at(rank).dp_rank if op.scatters else 0 for rank in range(info.world_size)]
        self.geometry = Geometry(info.world_size, 64, 64)
        self.memory: dict[Place, Any] = {}
        self.writer: dict[Place, frozenset[Store]] = {}
        self.last: dict[tuple[int, Place], Store] = {}
        self.waiting: dict[Place, list[tuple[Block, Callable[[Any], bool]]]] = defaultdict(list)
        self.ready: list[Block] = []
        self.visible: list[Store] = []  # stores that may become visible now
        self.arrived = [0] * info.world_size
        self.arrived_seen: list[frozenset[Store]] = [frozenset()] * info.world_size
        # Some runs begin where the epochs wrap.
        self.epoch = [self.random.choice([0, 0xFFFFFFFD, 0xFFFFFFFE])] * info.world_size
        self.calls = [self.random.randint(1, 3) for _ in range(self.random.randint(2, 4))]  # units of each call
        # A run has fast and slow ranks, and a fast or a slow memory.
        self.speed = [self.random.choice([1, 1, 3, 9]) for _ in range(info.world_size)]
        self.delivery = self.random.choice([0.1, 0.5, 0.9])
        self.done = 0

    # ---- memory

    def put(self, block: Block, rank: int, place: Any, value: Any, *, release: bool = False) -> None:
        target = rank, place
        store = Store(target, value, block.seen if release else frozenset())
        before = [self.last.get((block.rank, target))]
        if release:
            before += list(block.seen)
        for one in before:
            if one is not None and one.followers is not None:
                one.followers.append(store)
                store.missing += 1
        self.last[block.rank, target] = store
        if self.mode is TWO:  # packets are not released
            block.seen |= {store}
        if not store.missing:
            self.visible.append(store)

    def deliver(self, store: Store) -> None:
        assert store.followers is not None
        followers, store.followers = store.followers, None
        self.memory[store.place] = store.value
        self.writer[store.place] = store.seen
        for one in followers:
            one.missing -= 1
            if not one.missing:
                self.visible.append(one)
        waiting = self.waiting.pop(store.place, [])
        for block, holds in waiting:
            if holds(store.value):
                self.ready.append(block)
            else:
                self.waiting[store.place].append((block, holds))

    def acquire(self, block: Block, place: Place) -> Any:
        block.seen |= frozenset(one for one in self.writer.get(place, ()) if one.followers is not None)
        return self.memory[place]

    # ---- kernels: each yields where others may run, and what it waits for

    def one_exchange(self, block: Block, call: int, index: int, blocks: int, units: int) -> Iterator[Any]:
        rank, world, geometry = block.rank, self.info.world_size, self.geometry
        yield
        epoch = next_epoch(self.epoch[rank])
        slots = 0 if self.broken == "one slot" else epoch

        def slot(source: int, unit: int) -> Any:
            if self.broken == "slots by block":
                return "slot", epoch & 1, source, index, unit // blocks
            return geometry.slot(slots, source, unit)

        def content(source: int, target: int, unit: int) -> Any:
            return call, source, self.chunks[target], unit

        if index == 0:
            for target in range(world):
                if target != rank:
                    self.put(block, target, geometry.header(slots, rank), (epoch, (call, units)))
        for unit in range(index, units, blocks):
            for hop in range(1, world):
                target = (rank + hop) % world
                data = content(rank, target, unit)
                if self.broken == "a flag apart from its data":
                    self.put(block, target, ("data", slot(rank, unit)), data)
                    self.put(block, target, slot(rank, unit), (epoch, None))
                else:
                    self.put(block, target, slot(rank, unit), (epoch, data))
        skipped = (rank + 1) % world if self.broken == "no wait for one rank" and self.random.random() < 0.5 else rank
        for source in range(world):
            if index == 0 and source not in (rank, skipped):
                place = rank, geometry.header(slots, source)
                yield place, lambda value: value[0] == epoch
                if self.memory[place][1] != (call, units):
                    raise Violation(f"rank {rank} saw the header {self.memory[place]} in call {call}")
        for unit in range(index, units, blocks):
            for source in range(world):
                if source in (rank, skipped):
                    continue
                place = rank, slot(source, unit)
                yield place, lambda value: value[0] == epoch
                found = self.memory[place][1]
                if self.broken == "a flag apart from its data":
                    found = self.memory.get((rank, ("data", place[1])))
                if found != content(source, rank, unit):
                    raise Violation(f"rank {rank} read {found} from rank {source} in call {call}, unit {unit}")
        yield
        self.arrived[rank] += 1
        if self.broken == "the first block ends the epoch" and self.arrived[rank] == 1:
            self.epoch[rank] = epoch
        if self.arrived[rank] == blocks:
            self.arrived[rank] = 0
            self.epoch[rank] = epoch

    def two_exchange(self, block: Block, call: int, index: int, blocks: int, units: int) -> Iterator[Any]:
        rank, world, geometry, plan = block.rank, self.info.world_size, self.geometry, self.plans[block.rank]
        yield
        epoch = next_epoch(self.epoch[rank])
        mark = 1 if self.broken == "flags without an epoch" else epoch
        others = [one for one in range(world) if one != rank]

        def flag(peer: int, which: int) -> int:
            return geometry.mailbox(peer) + which

        def said(value: Any) -> bool:
            return bool(value[0] == mark)

        if index == 0:
            for peer in others:
                self.put(block, peer, flag(rank, geometry.MAILBOX_INPUT), call)
                release = self.broken != "START is not released"
                self.put(block, peer, flag(rank, geometry.MAILBOX_START), (mark, call), release=release)
        for peer in others:
            if self.broken == "no wait for START":
                continue
            place = rank, flag(peer, geometry.MAILBOX_START)
            yield place, said
            if self.acquire(block, place)[1] != call and self.broken != "flags without an epoch":
                raise Violation(f"rank {rank} saw START of call {self.memory[place][1]} in call {call}")
        for peer in others:
            if peer in (*plan.sources, *plan.targets) and self.broken != "no wait for START":
                address = self.memory.get((rank, flag(peer, geometry.MAILBOX_INPUT)))
                if address != call:
                    raise Violation(f"rank {rank} took the addresses of call {address} of rank {peer} in call {call}")
        for unit in range(index, units, blocks):
            yield
            for source in plan.sources:
                found = self.memory.get((source, "input"))
                if found != call:
                    raise Violation(f"rank {rank} fetched the input of call {found} from rank {source} in call {call}")
            for target in plan.targets:
                self.put(block, target, ("output", plan.output_block, plan.share, unit), (call, plan.sources))
        yield
        self.arrived[rank] += 1
        self.arrived_seen[rank] |= block.seen
        last = self.arrived[rank] == blocks
        if not last and self.broken != "END of each block":
            return
        if self.broken != "END of each block":
            block.seen |= self.arrived_seen[rank]
        for peer in others:
            release = self.broken != "END is not released"
            self.put(block, peer, flag(rank, geometry.MAILBOX_END), (mark, call), release=release)
        if not last:
            return
        for peer in others:
            if self.broken == "no wait for END":
                continue
            place = rank, flag(peer, geometry.MAILBOX_END)
            yield place, said
            if self.acquire(block, place)[1] != call and self.broken != "flags without an epoch":
                raise Violation(f"rank {rank} saw END of call {self.memory[place][1]} in call {call}")
        self.arrived[rank] = 0
        self.arrived_seen[rank] = frozenset()
        self.epoch[rank] = epoch

    def stream(self, stream: Block) -> Iterator[Any]:
        """The calls of a rank, one after the other; looks at what each has left."""
        rank = stream.rank
        for call, units in enumerate(self.calls):
            blocks = self.random.randint(1, 3)
            ended = rank, ("ended", call)
            self.memory[ended] = 0
            # Its own memory: what was there before a kernel began is there for everybody who reads it.
            self.memory[rank, "input"] = call
            for index in range(blocks):
                self.start(stream, call, index, blocks, units)
            yield ended, lambda count, blocks=blocks: count == blocks
            if self.mode is TWO:
                yield
                self.look_at_output(rank, call, units)
                # From here on the output may be read by anything, and the input written to.
                yield
                self.look_at_output(rank, call, units)
                self.memory[rank, "input"] = "written over"
        self.done += 1

    def look_at_output(self, rank: int, call: int, units: int) -> None:
        for writer in range(self.info.world_size):
            plan = self.plans[writer]
            if rank not in plan.targets:
                continue
            for unit in range(units):
                found = self.memory.get((rank, ("output", plan.output_block, plan.share, unit)))
                if found != (call, plan.sources):
                    raise Violation(f"rank {rank} has {found} from rank {writer} after call {call}, unit {unit}")

    def start(self, stream: Block, call: int, index: int, blocks: int, units: int) -> None:
        block = Block(stream.rank)
        block.seen = frozenset(one for one in stream.seen if one.followers is not None)
        kernel = self.one_exchange if self.mode is ONE else self.two_exchange

        def steps() -> Iterator[Any]:
            yield from kernel(block, call, index, blocks, units)
            # The end of a kernel: its own rank sees all that it has stored there.
            for one in block.seen:
                if one.place[0] == block.rank and one.followers is not None:
                    self.force(one)
            stream.seen |= frozenset(one for one in block.seen if one.followers is not None)
            ended = block.rank, ("ended", call)
            self.memory[ended] += 1
            for waiter, holds in self.waiting.pop(ended, []):
                if holds(self.memory[ended]):
                    self.ready.append(waiter)
                else:
                    self.waiting[ended].append((waiter, holds))

        block.steps = steps()
        self.ready.append(block)

    def force(self, store: Store) -> None:
        """Makes a store of a rank to its own memory visible: those before it to the same place are so already."""
        if store in self.visible:
            self.visible.remove(store)
            self.deliver(store)

    # ---- the scheduler

    def run(self) -> None:
        """Raises Violation if something goes wrong."""
        for rank in range(self.info.world_size):
            stream = Block(rank)
            stream.steps = self.stream(stream)
            self.ready.append(stream)
        pick = self.random.random
        while self.ready or self.visible:
            if self.visible and (not self.ready or pick() < self.delivery):
                at = int(pick() * len(self.visible))
                self.visible[at], self.visible[-1] = self.visible[-1], self.visible[at]
                self.deliver(self.visible.pop())
                continue
            at = int(pick() * len(self.ready))
            block = self.ready[at]
            if pick() * self.speed[block.rank] >= 1:
                continue
            self.ready[at], self.ready[-1] = self.ready[-1], self.ready[at]
            self.ready.pop()
            wanted = next(block.steps, self)
            if wanted is self:
                continue
            if wanted is None:
                self.ready.append(block)
                continue
            place, holds = wanted
            if place in self.memory and holds(self.memory[place]):
                self.ready.append(block)
            else:
                self.waiting[place].append((block, holds))
        if self.done != self.info.world_size:
            waiting = [(block.rank, place) for place, blocks in self.waiting.items() for block, _ in blocks]
            raise Violation(f"deadlock: {len(waiting)} blocks wait for ever, such as {waiting[:3]}")


def every_geometry() -> list[tuple[ParallelInfo, MixedCommOp, MixedCommMode]]:
    return [(info, op, mode) for info in TOPOLOGIES for op in info.valid_ops for mode in (ONE, TWO)]


def first_violation(first: int, count: int) -> str | None:
    """Runs so many interleavings, each with the next seed and the next geometry; what went wrong, if anything did."""
    geometries = every_geometry()
    for seed in range(first, first + count):
        info, op, mode = geometries[seed % len(geometries)]
        try:
            Simulation(info, op, mode, seed).run()
        except Violation as error:
            return f"seed {seed}, {op.name} {mode.name}, {info}: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interleavings", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    last = options.seed + options.interleavings
    with ProcessPoolExecutor(options.jobs) as pool:
        parts = [
            pool.submit(first_violation, first, min(PART, last - first)) for first in range(options.seed, last, PART)
        ]
        for done, part in enumerate(parts):
            violation = part.result()
            if violation is not None:
                pool.shutdown(cancel_futures=True)
                print(violation)
                return 1
            print(f"{min((done + 1) * PART, options.interleavings)} interleavings", end="\r", file=sys.stderr)
    print(f"{options.interleavings} interleavings of {len(every_geometry())} geometries: all right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
