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
import itertools
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from cuda_gctx.comm import MixedCommMode, MixedCommOp, ParallelInfo
from cuda_gctx.comm._protocol import Geometry, next_epoch, region_of

# A module of the tests where pytest imports this one, a neighbour where Python runs it.
try:
    from .topologies import TOPOLOGIES
except ImportError:
    from topologies import TOPOLOGIES  # type: ignore[no-redef]

ONE, TWO, NODES = MixedCommMode.ONE_EXCHANGE, MixedCommMode.TWO_EXCHANGE, MixedCommMode.HIERARCHICAL
Place = tuple[int, Any]
# Interleavings that one process runs at a time.
PART = 500

# Parts of the protocols that are left out. The simulator must find each.
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
    "sent after the sums": TWO,
    "fetched before the sums": TWO,
    "START of the first block": TWO,
    "no flags to itself": TWO,
    "fetched before END": TWO,
    "no wait for READY": NODES,
    "READY before the sums": NODES,
    "no wait for DATA": NODES,
    "DATA of the first block": NODES,
    "DATA is not released": NODES,
    "exchanges are not counted": NODES,
}


STAGED_ALONE = ("sent after the sums", "fetched before the sums")
# Those of kernels that copy what is staged.
COPIED_ALONE = ("START of the first block", "no flags to itself", "fetched before END")

# The steps of a block of a kernel, by its index and how many blocks there are.
Kernel = Callable[[Any, int, int], Iterator[Any]]


class Violation(Exception):
    """What the protocol must not let happen."""


class Store:
    """A store on its way."""

    __slots__ = ("followers", "missing", "place", "seen", "value")

    def __init__(self, place: Place, value: Any, seen: frozenset[Store]) -> None:
        self.place = place
        self.value = value
        self.seen = seen  # what a rank that acquires this store has seen too
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
        self.node_plans = [info.at(rank).node_plan(op) for rank in range(info.world_size)]
        self.geometry = Geometry(info.world_size, 64, 64)
        self.region = region_of(info, 64)
        self.exchanges = [0] * info.world_size
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
        # Whether tensors are staged, in parts, and in which calls the kernels copy.
        self.staged = mode is TWO and (broken in (*STAGED_ALONE, *COPIED_ALONE) or self.random.random() < 0.5)
        self.copied = [broken in COPIED_ALONE or self.random.random() < 0.3 for _ in self.calls]
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
        if self.mode is not ONE:  # packets are not released
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

        def slot(source: int, target: int, unit: int) -> Any:
            if self.broken == "slots by block":
                return "slot", epoch & 1, source, index, unit // blocks
            return geometry.slot(slots, source, target, unit)

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
                    self.put(block, target, ("data", slot(rank, target, unit)), data)
                    self.put(block, target, slot(rank, target, unit), (epoch, None))
                else:
                    self.put(block, target, slot(rank, target, unit), (epoch, data))
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
                place = rank, slot(source, rank, unit)
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
        rank, plan = block.rank, self.plans[block.rank]

        def move(unit: int) -> None:
            for source in plan.sources:
                self.fetch_input(rank, source, call)
            for target in plan.targets:
                self.put(block, target, ("output", plan.output_block, plan.share, unit), (call, plan.sources))

        ranks = list(range(self.info.world_size))
        yield from self.meeting(block, call, index, blocks, units, ranks, (*plan.sources, *plan.targets), move)

    def staged_steps(self, rank: int, call: int, units: int) -> list[tuple[int, Kernel]]:
        """The copies and kernels of a call whose tensors are staged, in an order that streams for copies allow."""
        plan, ranks = self.plans[rank], list(range(self.info.world_size))
        others = [one for one in ranks if one != rank]

        def send(part: Sequence[int]) -> Kernel:
            def kernel(block: Block, index: int, blocks: int) -> Iterator[Any]:
                for peer, unit in list(itertools.product(others, part))[index::blocks]:
                    if rank in self.plans[peer].sources:
                        yield
                        self.put(block, peer, ("staged input", rank, unit), self.memory[rank, "input"])

            return kernel

        def sum_up(number: int, part: Sequence[int], copies: tuple[Kernel, Kernel] | None = None) -> Kernel:
            def kernel(block: Block, index: int, blocks: int) -> Iterator[Any]:
                def move(at: int) -> None:
                    for source in plan.sources:
                        place = "input" if source == rank else ("staged input", source, part[at])
                        found = self.memory.get((rank, place))
                        if found != call:
                            raise Violation(f"rank {rank} summed call {found} of rank {source} in call {call}")
                    total = call, plan.sources
                    if rank in plan.targets:
                        self.put(block, rank, ("output", plan.output_block, plan.share, part[at]), total)
                    self.put(block, rank, ("staged output", part[at]), total)

                return self.meeting(block, (call, number), index, blocks, len(part), ranks, (), move, copies)

            return kernel

        def fetch(part: Sequence[int]) -> Kernel:
            def kernel(block: Block, index: int, blocks: int) -> Iterator[Any]:
                for peer, unit in list(itertools.product(others, part))[index::blocks]:
                    theirs = self.plans[peer]
                    if rank in theirs.targets:
                        yield
                        found = self.memory.get((peer, ("staged output", unit)))
                        self.put(block, rank, ("output", theirs.output_block, theirs.share, unit), found)

            return kernel

        if self.copied[call] and self.broken not in STAGED_ALONE:
            part = range(units)
            return [(self.random.randint(1, 3), sum_up(0, part, (send(part), fetch(part))))]
        # The same parts on all ranks.
        parts = [range(units)] if call % 2 else [range(0, units, 2), range(1, units, 2)]
        sends: list[tuple[int, Kernel]] = [(1, send(part)) for part in parts]
        sums = [(self.random.randint(1, 3), sum_up(number, part)) for number, part in enumerate(parts)]
        fetches: list[tuple[int, Kernel]] = [(1, fetch(part)) for part in parts]
        if self.broken == "sent after the sums":
            return [*sums, *sends, *fetches]
        if self.broken == "fetched before the sums":
            return [*sends, *fetches, *sums]
        early, late = self.random.random() < 0.5, self.random.random() < 0.5
        steps = sends if early else []
        for number, one in enumerate(sums):
            steps = [*steps, *([] if early else [sends[number]]), one, *([] if late else [fetches[number]])]
        return [*steps, *(fetches if late else [])]

    def fetch_input(self, rank: int, source: int, call: int) -> None:
        found = self.memory.get((source, "input"))
        if found != call:
            raise Violation(f"rank {rank} fetched the input of call {found} from rank {source} in call {call}")

    def meeting(
        self,
        block: Block,
        call: Any,
        index: int,
        blocks: int,
        units: int,
        ranks: Sequence[int],
        involved: Sequence[int],
        move: Callable[[int], None],
        copies: tuple[Kernel, Kernel] | None = None,
    ) -> Iterator[Any]:
        """START, the moves, and END of some ranks.

        involved: the ranks whose addresses are used. copies: what the blocks do before and behind that.
        """
        rank, geometry = block.rank, self.geometry
        mailbox = geometry.mailbox(0) if self.mode is TWO else geometry.node_mailboxes
        yield
        epoch = next_epoch(self.epoch[rank])
        mark = 1 if self.broken == "flags without an epoch" else epoch
        others = [one for one in ranks if one != rank or (copies and self.broken != "no flags to itself")]

        def arrive(rounds: int) -> bool:
            """Whether all blocks have arrived so often; the last one knows what they know."""
            self.arrived[rank] += 1
            self.arrived_seen[rank] |= block.seen
            is_last = self.arrived[rank] == rounds * blocks
            if is_last and self.broken != "END of each block":
                block.seen |= self.arrived_seen[rank]
            return is_last

        def flag(peer: int, which: int) -> int:
            return mailbox + ranks.index(peer) * geometry.MAILBOX_BYTES + which

        def is_set(value: Any) -> bool:
            return bool(value[0] == mark)

        sends_start = index == 0
        if copies:
            send, fetch = copies
            yield from send(block, index, blocks)
            yield
            have_all_copied = arrive(1)
            if self.broken != "START of the first block":
                sends_start = have_all_copied
        if sends_start:
            for peer in others:
                self.put(block, peer, flag(rank, geometry.MAILBOX_INPUT), call)
                release = self.broken != "START is not released"
                self.put(block, peer, flag(rank, geometry.MAILBOX_START), (mark, call), release=release)
        for peer in others:
            if self.broken == "no wait for START":
                continue
            place = rank, flag(peer, geometry.MAILBOX_START)
            yield place, is_set
            if self.acquire(block, place)[1] != call and self.broken != "flags without an epoch":
                raise Violation(f"rank {rank} saw START of call {self.memory[place][1]} in call {call}")
        for peer in others:
            if peer in involved and self.broken != "no wait for START":
                address = self.memory.get((rank, flag(peer, geometry.MAILBOX_INPUT)))
                if address != call:
                    raise Violation(f"rank {rank} took the addresses of call {address} of rank {peer} in call {call}")
        for unit in range(index, units, blocks):
            yield
            move(unit)
        yield
        last = arrive(2 if copies else 1)
        if last or self.broken == "END of each block":
            for peer in others:
                release = self.broken != "END is not released"
                self.put(block, peer, flag(rank, geometry.MAILBOX_END), (mark, call), release=release)
        if not last and not copies:
            return
        if copies and self.broken == "fetched before END":
            yield from fetch(block, index, blocks)
        for peer in others:
            if self.broken == "no wait for END":
                continue
            place = rank, flag(peer, geometry.MAILBOX_END)
            yield place, is_set
            if self.acquire(block, place)[1] != call and self.broken != "flags without an epoch":
                raise Violation(f"rank {rank} saw END of call {self.memory[place][1]} in call {call}")
        if copies:
            if self.broken != "fetched before END":
                yield from fetch(block, index, blocks)
            yield
            if not arrive(3):
                return
        self.arrived[rank] = 0
        self.arrived_seen[rank] = frozenset()
        self.epoch[rank] = epoch

    # ---- between nodes

    def node_steps(self, rank: int, call: int, units: int) -> list[tuple[int, Kernel]]:
        """The kernels of a call in the hierarchical form: the number of blocks of each, and its steps."""
        info, plan, region = self.info.at(rank), self.node_plans[rank], self.region
        node, peers = info.inter_rank, info.inter_ranks()
        local = info.local_ranks()
        others = [one for one in range(info.inter_size) if one != node]

        # Behind the workspace, as where kernels exchange themselves.
        begin = self.geometry.total_bytes

        def signal(of_node: int, which: int) -> int:
            return begin + region.signal(of_node) + which

        def outgoing(piece: int) -> int:
            return begin + region.outgoing(piece)

        def incoming(of_node: int) -> int:
            return begin + region.incoming(of_node)

        def number() -> int:
            return self.exchanges[rank] + 1

        def collect(piece: int) -> Kernel:
            def kernel(block: Block, index: int, blocks: int) -> Iterator[Any]:
                def move(unit: int) -> None:
                    for source in plan.sources:
                        self.fetch_input(rank, local[source], call)
                    self.put(block, rank, (outgoing(piece), unit), (call, plan.chunks[piece]))

                involved = [local[source] for source in plan.sources]
                return self.meeting(block, call, index, blocks, units, local, involved, move)

            return kernel

        def say_ready(block: Block, of_exchange: int) -> None:
            for one in others:
                self.put(block, peers[one], signal(node, region.SIGNAL_READY), of_exchange, release=True)

        def exchange(block: Block, index: int, blocks: int) -> Iterator[Any]:
            is_early = self.broken == "READY before the sums"  # as if it were sent for the next exchange
            if index == 0 and (call == 0 or not is_early):
                say_ready(block, number())
            for one in others:
                yield
                place = rank, signal(one, region.SIGNAL_READY)
                if self.broken == "no wait for READY":
                    continue
                yield place, lambda value: value >= number()
                self.acquire(block, place)
            for one in others:
                piece = outgoing(plan.chunk_of_node[one])
                for unit in range(index, units, blocks):
                    yield
                    value = self.memory.get((rank, (piece, unit)))
                    self.put(block, peers[one], (incoming(node), unit), value)
                if index == 0:
                    self.put(block, peers[one], incoming(node), (call, number()))
            yield
            self.arrived[rank] += 1
            self.arrived_seen[rank] |= block.seen
            last = self.arrived[rank] == blocks
            if last and self.broken != "DATA of the first block":
                block.seen |= self.arrived_seen[rank]
            if self.arrived[rank] == 1 if self.broken == "DATA of the first block" else last:
                for one in others:
                    release = self.broken != "DATA is not released"
                    self.put(block, peers[one], signal(node, region.SIGNAL_DATA), number(), release=release)
            if not last:
                return
            self.arrived[rank] = 0
            self.arrived_seen[rank] = frozenset()
            for one in others:
                place = rank, signal(one, region.SIGNAL_DATA)
                if self.broken != "no wait for DATA":
                    yield place, lambda value: value >= number()
                    self.acquire(block, place)
                header = self.memory.get((rank, incoming(one)))
                if header != (call, number()):
                    raise Violation(f"rank {rank} saw the header {header} of node {one} in call {call}")
            if self.broken != "exchanges are not counted":
                self.exchanges[rank] += 1
            if is_early:
                say_ready(block, number())

        def spread(nodes: Sequence[int], of_block: int) -> Kernel:
            def kernel(block: Block, index: int, blocks: int) -> Iterator[Any]:
                def move(unit: int) -> None:
                    for one in nodes:
                        piece = outgoing(plan.chunk_of_node[one]) if one == node else incoming(one)
                        found = self.memory.get((rank, (piece, unit)))
                        theirs = self.node_plans[peers[one]]
                        if found != (call, theirs.chunks[theirs.chunk_of_node[node]]):
                            raise Violation(f"rank {rank} added {found} of node {one} in call {call}")
                    for target in plan.targets:
                        self.put(block, local[target], ("output", of_block, plan.share, unit), call)

                return self.meeting(
                    block, call, index, blocks, units, local, [local[target] for target in plan.targets], move
                )

            return kernel

        some = self.random.randint
        steps = [(some(1, 3), collect(piece)) for piece in range(len(plan.chunks))]
        steps.append((some(1, 3), exchange))
        return steps + [(some(1, 3), spread(nodes, of_block)) for nodes, of_block in plan.sums]

    def stream(self, stream: Block) -> Iterator[Any]:
        """The calls of a rank, one after the other; looks at what each has left."""
        rank = stream.rank
        for call, units in enumerate(self.calls):
            # Its own memory: what was there before a kernel began is there for everybody who reads it.
            self.memory[rank, "input"] = call
            for number, (blocks, kernel) in enumerate(self.kernels(rank, call, units)):
                ended = rank, ("ended", call, number)
                self.memory[ended] = 0
                for index in range(blocks):
                    self.start(stream, ended, index, blocks, kernel)
                yield ended, lambda count, blocks=blocks: count == blocks
            if self.mode is not ONE:
                yield
                self.look_at_output(rank, call, units)
                # From here on the output may be read by anything, and the input written to.
                yield
                self.look_at_output(rank, call, units)
                self.memory[rank, "input"] = "written over"
        self.done += 1

    def kernels(self, rank: int, call: int, units: int) -> list[tuple[int, Kernel]]:
        if self.mode is NODES:
            return self.node_steps(rank, call, units)
        if self.staged:
            return self.staged_steps(rank, call, units)
        kernel = self.one_exchange if self.mode is ONE else self.two_exchange
        blocks = self.random.randint(1, 3)
        return [(blocks, lambda block, index, blocks: kernel(block, call, index, blocks, units))]

    def look_at_output(self, rank: int, call: int, units: int) -> None:
        for writer in range(self.info.world_size):
            if self.mode is TWO:
                plan = self.plans[writer]
                blocks = [plan.output_block] if rank in plan.targets else []
                share, wanted = plan.share, (call, plan.sources)
            else:
                of_node = self.node_plans[writer]
                node, local_rank = divmod(rank, self.info.local_size)
                is_target = writer // self.info.local_size == node and local_rank in of_node.targets
                blocks = [block for _, block in of_node.sums] if is_target else []
                share, wanted = of_node.share, call
            for block, unit in itertools.product(blocks, range(units)):
                found = self.memory.get((rank, ("output", block, share, unit)))
                if found != wanted:
                    raise Violation(f"rank {rank} has {found} from rank {writer} after call {call}, unit {unit}")

    def start(self, stream: Block, ended: Place, index: int, blocks: int, kernel: Kernel) -> None:
        block = Block(stream.rank)
        block.seen = frozenset(one for one in stream.seen if one.followers is not None)

        def steps() -> Iterator[Any]:
            yield from kernel(block, index, blocks)
            # The end of a kernel: its own rank sees all that it has stored there.
            for one in block.seen:
                if one.place[0] == block.rank and one.followers is not None:
                    self.force(one)
            stream.seen |= frozenset(one for one in block.seen if one.followers is not None)
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
    return [
        (info, op, mode)
        for info in TOPOLOGIES
        for op in info.valid_ops
        for mode in ((ONE, TWO, NODES) if info.use_inter else (ONE, TWO))
    ]


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
