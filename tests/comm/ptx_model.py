"""The memory model of PTX, for programs of a few instructions: every execution that its axioms allow.

Written from the chapter "Memory Consistency Model" of the PTX ISA: morally strong operations, release and acquire
patterns, observation, base causality, causality across proxies; the axioms Coherence, Atomicity, No-Thin-Air,
SC-per-Location and Causality. fence.sc and partial overlaps are left out: the kernels have none. What the chapter says
of proxies in general is taken for the asynchronous one.

A program is a list of threads; each of their steps has the name of a primitive of the kernels, or `write` and `read`,
which are ordinary accesses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Step", "Thread", "executions"]

SCOPES = {"cta": 2, "gpu": 1, "sys": 0}  # by how many of (device, block) it has to have in common


class Primitive(NamedTuple):
    """kind: of events; scope: empty for a weak one; order: release, acquire, both or none."""

    kind: str
    scope: str = ""
    order: str = ""
    is_async: bool = False


PRIMITIVES = {
    "write": Primitive("W"),
    "read": Primitive("R"),
    "store_relaxed": Primitive("W", "sys"),
    "load_relaxed": Primitive("R", "sys"),
    "store_release": Primitive("W", "sys", "release"),
    "load_acquire": Primitive("R", "sys", "acquire"),
    "store_own": Primitive("W", "gpu"),
    "load_own": Primitive("R", "gpu"),
    "add_own": Primitive("RW", "gpu"),
    "fence_device": Primitive("F", "gpu", "both"),
    "fence_system": Primitive("F", "sys", "both"),
    "sync_block": Primitive("B"),
    "sync_warp": Primitive("B"),
    "all_of_block": Primitive("B"),
    "barrier_arrive": Primitive("RW", "cta", "release"),
    "arrive_without_release": Primitive("RW", "cta"),
    "barrier_try_wait": Primitive("R", "cta", "acquire"),
    "try_wait_without_acquire": Primitive("R", "cta"),
    "fence_bulk": Primitive("P"),
    "fence_bulk_shared": Primitive("P"),
    # Of a copy to or from shared memory, what it does with one of its two places. They end at the next wait.
    "bulk_load": Primitive("R", is_async=True),
    "bulk_store": Primitive("W", is_async=True),
    "bulk_wait": Primitive("wait"),
    "bulk_wait_read": Primitive("wait"),
    # What follows is stored when all that was loaded before is there.
    "kernel_ends": Primitive("end"),
    "branches": Primitive("end"),
    "nothing": Primitive(""),
}


@dataclass(frozen=True)
class Step:
    """name: of a primitive; place: the memory that it accesses, or the barrier; value: what it stores or adds.

    seen: what it has to load for the execution to count; None: anything.
    """

    name: str
    place: str = ""
    value: int = 0
    seen: int | None = None


@dataclass(frozen=True)
class Thread:
    device: int
    block: int
    steps: tuple[Step, ...]


class Event(NamedTuple):
    number: int
    thread: int
    step: int
    kind: str
    primitive: Primitive
    place: str
    value: int
    seen: int | None
    where: tuple[int, int]

    @property
    def is_strong(self) -> bool:
        return bool(self.primitive.scope)

    def reaches(self, other: Event) -> bool:
        common = SCOPES[self.primitive.scope]
        return self.where[:common] == other.where[:common]


Pairs = set[tuple[int, int]]


def executions(threads: Sequence[Thread]) -> Iterator[dict[tuple[int, int], int]]:
    """What the loads return, by thread and step, in each execution that the axioms allow and that counts."""
    program = _Program(threads)
    reads = [one for one in program.events if one.kind == "R"]
    writes = [one for one in program.events if one.kind == "W"]
    sources = [
        [None, *(w for w in writes if w.place == r.place and (r.number, w.number) not in program.rmw)] for r in reads
    ]
    places = sorted({one.place for one in writes})
    orders = [list(itertools.permutations([w.number for w in writes if w.place == place])) for place in places]
    for chosen in itertools.product(*sources):
        rf = {(w.number, r.number) for r, w in zip(reads, chosen, strict=True) if w is not None}
        values = program.values(rf)
        if values is None:
            continue
        if any(r.seen not in (None, values[r.number]) for r in reads):
            continue
        for order in itertools.product(*orders):
            co = {pair for one in order for pair in itertools.combinations(one, 2)}
            if program.allows(rf, co):
                yield {(r.thread, r.step): values[r.number] for r in reads}
                break


class _Program:
    """Events and what of their relations is the same in every execution."""

    def __init__(self, threads: Sequence[Thread]) -> None:
        self.events: list[Event] = []
        self.rmw: Pairs = set()
        self.po: Pairs = set()
        self.dependencies: Pairs = set()
        for number, thread in enumerate(threads):
            self._add(number, thread)
        self.numbers = range(len(self.events))
        barriers = [one for one in self.events if one.kind == "B"]
        self.barriers = {
            (a.number, b.number)
            for a, b in itertools.permutations(barriers, 2)
            if a.place == b.place and a.where == b.where
        }

    def _add(self, number: int, thread: Thread) -> None:
        own: list[Event] = []
        loaded: set[int] = set()
        under_way: list[Event] = []
        for at, step in enumerate(thread.steps):
            primitive = PRIMITIVES[step.name]
            if primitive.kind == "wait":
                under_way = []
                continue
            if primitive.kind == "end":
                loaded = {one.number for one in own if one.kind == "R"}
                continue
            made = []
            for kind in primitive.kind:
                what = len(self.events), number, at, kind, primitive, step.place, step.value, step.seen
                made.append(Event(*what, (thread.device, thread.block)))
                self.events.append(made[-1])
            for one in made:
                # A copy comes after what is before it; what follows does not come after it until it is waited for.
                self.po |= {(before.number, one.number) for before in own if before not in under_way}
                if one.kind == "W":
                    self.dependencies |= {(load, one.number) for load in loaded}
            if len(made) == 2:
                self.rmw.add((made[0].number, made[1].number))
                self.po.add((made[0].number, made[1].number))
            own += made
            if primitive.is_async:
                under_way += made

    def values(self, rf: Pairs) -> dict[int, int] | None:
        """Of each event; None if a value comes out of thin air."""
        sources = {read: write for write, read in rf}
        added = {write: read for read, write in self.rmw}
        found: dict[int, int] = {}

        def value(number: int, seen: frozenset[int]) -> int | None:
            if number in seen:
                return None
            event = self.events[number]
            if event.kind == "R":
                return value(sources[number], seen | {number}) if number in sources else 0
            before = value(added[number], seen | {number}) if number in added else 0
            return None if before is None else before + event.value

        for event in self.events:
            if event.kind in "RW":
                one = value(event.number, frozenset())
                if one is None:
                    return None
                found[event.number] = one
        return found

    def allows(self, rf: Pairs, co: Pairs) -> bool:
        events = self.events
        read_from = {read: write for write, read in rf}
        writes = [one for one in events if one.kind == "W"]
        fr = {
            (r.number, w.number)
            for r in events
            if r.kind == "R"
            for w in writes
            if w.place == r.place
            and (r.number not in read_from or (read_from[r.number], w.number) in co)
            and (r.number, w.number) not in self.rmw
        } | {pair for pair in self.rmw if pair[0] not in read_from or (read_from[pair[0]], pair[1]) in co}
        strong = {pair for pair in rf | co | fr if self._are_morally_strong(*pair)}
        same_place = {(a, b) for a, b in self.po if self._same_place(a, b)}
        if not _is_acyclic(strong | same_place, self.numbers):
            return False
        if not _is_acyclic(rf | self.dependencies, self.numbers):
            return False
        for read, write in self.rmw:
            if any((read, other) in strong & fr and (other, write) in strong & co for other in self.numbers):
                return False
        observation = self._observation(rf)
        base = _closed(self.po | self._synchronizes(observation) | self.barriers, self.numbers)
        across = {(a, b) for a, b in base if self._same_place(a, b) and self._is_preserved(a, b, base)}
        causality = across | {(a, c) for a, b in observation for d, c in across if b == d}
        if any(self._both("W", a, b) and (a, b) not in co and a != b for a, b in causality):
            return False
        return not any((b, a) in causality for a, b in rf | fr) and all(a != b for a, b in causality)

    def _both(self, kind: str, a: int, b: int) -> bool:
        return self.events[a].kind == self.events[b].kind == kind and self.events[a].place == self.events[b].place

    def _same_place(self, a: int, b: int) -> bool:
        one, other = self.events[a], self.events[b]
        return one.kind in "RW" and other.kind in "RW" and one.place == other.place

    def _are_morally_strong(self, a: int, b: int) -> bool:
        one, other = self.events[a], self.events[b]
        if one.primitive.is_async != other.primitive.is_async:
            return False
        if (a, b) in self.po or (b, a) in self.po:
            return True
        return one.is_strong and other.is_strong and one.reaches(other) and other.reaches(one)

    def _observation(self, rf: Pairs) -> Pairs:
        """By morally strong loads, and through atomic operations."""
        strong = {pair for pair in rf if self._are_morally_strong(*pair)}
        found = set(strong)
        while True:
            more = {(a, d) for a, b in found for r, w in self.rmw if b == r for c, d in strong if c == w} - found
            if not more:
                return found
            found |= more

    def _synchronizes(self, observation: Pairs) -> Pairs:
        events = self.events
        releases: Pairs = set()  # the first operation of a pattern, and the store that shows it
        acquires: Pairs = set()  # the load that sees it, and the last operation of the pattern
        for one in events:
            if one.kind == "W" and one.primitive.order == "release":
                releases.add((one.number, one.number))
            if one.kind == "R" and one.primitive.order == "acquire":
                acquires.add((one.number, one.number))
        for a, b in self.po:
            one, other = events[a], events[b]
            if (
                other.kind == "W"
                and other.is_strong
                and (one.kind == "F" or ((a, a) in releases and self._same_place(a, b)))
            ):
                releases.add((a, b))
            if (
                one.kind == "R"
                and one.is_strong
                and (other.kind == "F" or ((b, b) in acquires and self._same_place(a, b)))
            ):
                acquires.add((a, b))
        return {
            (first, last)
            for first, store in releases
            for load, last in acquires
            if (store, load) in observation and self._are_morally_strong(first, last)
        }

    def _is_preserved(self, a: int, b: int, base: Pairs) -> bool:
        """Whether base causality orders two operations across the proxies through which they go."""
        one, other = self.events[a], self.events[b]
        if not one.primitive.is_async and not other.primitive.is_async:
            return True
        if one.primitive.is_async and other.primitive.is_async and one.where == other.where:
            return True
        fences = [f for f in self.events if f.kind == "P" and (a, f.number) in base and (f.number, b) in base]
        near_one = [f for f in fences if f.where == one.where] if one.primitive.is_async else [None]
        near_other = [f for f in fences if f.where == other.where] if other.primitive.is_async else [None]
        return any(
            f is None or g is None or f == g or (f.number, g.number) in base
            for f, g in itertools.product(near_one, near_other)
        )


def _closed(pairs: Pairs, numbers: range) -> Pairs:
    after = dict.fromkeys(numbers, 0)
    for a, b in pairs:
        after[a] |= 1 << b
    for through in numbers:
        for one in numbers:
            if after[one] >> through & 1:
                after[one] |= after[through]
    return {(a, b) for a in numbers for b in numbers if after[a] >> b & 1}


def _is_acyclic(pairs: Pairs, numbers: range) -> bool:
    return all(a != b for a, b in _closed(pairs, numbers))
