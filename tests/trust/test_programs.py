"""Random programs of the whole API, against a model of what is open, current and captured.

Whatever a program does, the free SMs are those of the device without those of open and lingering leases, contexts are
made only if all with the same SMs are in use, what was current before a block is current after it, and at the end
nothing is claimed.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cuda_gctx import (
    CapturingError,
    ClosedError,
    Context,
    ContextCurrentError,
    Device,
    PartitionPool,
    ResourceOverlapWarning,
    SplitError,
    Stream,
    system,
)
from cuda_software_driver import session

from ..common import green, leases, refusal, split
from ..raw import Raw

Answer = TypeVar("Answer")
GROUPS, GROUP_SMS = 3, 16
INDEX = st.integers(0, 1 << 16)


@dataclass(eq=False)
class Lease:
    """The things that an object has open. group: of the split. sm_count: without a group; a pool has at least these."""

    owner: Any
    contexts: list[Context]
    group: int | None = None
    handle: int = 0  # of the context of a group
    sm_count: int = 0
    is_among_free: bool = True  # of the units that are counted as free; others share all units that are not known
    is_open: bool = True
    streams: list[Stream] = field(default_factory=list)
    captures: list[tuple[Stream, Any]] = field(default_factory=list)

    @property
    def is_claimed(self) -> bool:
        return self.is_open or bool(self.streams)


@dataclass(eq=False)
class Block:
    lease: Lease
    block: Any
    before: int


class Worker:
    """A thread with its open blocks; the first one is the calling thread itself."""

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self.pool = pool
        self.blocks: list[Block] = []
        self.base = 0

    def run(self, action: Callable[[], Answer]) -> Answer:
        return action() if self.pool is None else self.pool.submit(action).result()


class Programs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ends = ExitStack()
        self.ends.enter_context(session("h200@13.0"))
        self.dev = Device()
        self.raw = Raw()
        self.groups, _ = split(self.dev.resources.sm, [GROUP_SMS] * GROUPS)
        self.leases: list[Lease] = []
        self.made: list[set[int]] = [set() for _ in range(GROUPS)]  # handles of contexts of each group
        self.workers = [Worker(), Worker(self.ends.enter_context(ThreadPoolExecutor(1)))]

    # ---- the model

    @property
    def is_capturing(self) -> bool:
        return any(lease.captures for lease in self.leases)

    def open_leases(self) -> list[Lease]:
        return [lease for lease in self.leases if lease.is_open]

    def claimed(self) -> list[Lease]:
        return [lease for lease in self.leases if lease.is_claimed]

    def is_current(self, lease: Lease) -> bool:
        return any(block.lease is lease for worker in self.workers for block in worker.blocks)

    def free_sms(self) -> int:
        groups = {lease.group for lease in self.claimed() if lease.group is not None}
        return self.dev.resources.sm.sm_count - GROUP_SMS * len(groups) - sum(one.sm_count for one in self.claimed())

    @staticmethod
    def driver_contexts() -> int:
        return sum(use.contexts for use in system.memory().values())

    # ---- opening

    # The driver does not report which SMs a group has: groups are not opened beside what has units of another split.
    @precondition(lambda self: not self.is_capturing and all(lease.group is not None for lease in self.claimed()))
    @rule(group=st.integers(0, GROUPS - 1))
    def open_context(self, group: int) -> None:
        before = self.driver_contexts()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceOverlapWarning)  # two contexts of one group
            context = green(self.dev, self.groups[group])
        in_use = {lease.handle for lease in self.claimed() if lease.group == group}
        if self.driver_contexts() != before:
            assert self.made[group] <= in_use, "an idle context was there"
        self.made[group].add(context.handle)
        self.leases.append(Lease(context, [context], group, context.handle, is_among_free=False))

    @precondition(lambda self: not self.is_capturing)
    @rule(first=st.sampled_from([8, 16, 24]), second=st.sampled_from([8, 16]))
    def open_partitions(self, first: int, second: int) -> None:
        free = self.free_sms()
        try:
            parts = self.dev.partition(a=first, b=second, among="free", exclusive=True)
        except SplitError:
            assert free < self.dev.resources.sm.sm_count
            return
        self.leases.append(
            Lease(parts, [parts.a.context, parts.b.context], sm_count=parts.a.sm_count + parts.b.sm_count)
        )

    @precondition(lambda self: not self.is_capturing and not self.claimed())
    @rule(layouts=st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3, unique=True))
    def open_pool(self, layouts: list[int]) -> None:
        pool = PartitionPool(self.dev)
        prepared = [pool.prepare({"a": count}) for count in layouts]
        for count in layouts:
            pool.switch({"a": count})
        contexts = [one.a.context for one in prepared]
        self.leases.append(Lease(pool, contexts, sm_count=max(layouts), is_among_free=False))

    # ---- use

    @precondition(lambda self: self.open_leases() and not self.is_capturing)
    @rule(which=INDEX, one=INDEX, is_seen=st.booleans())
    def make_stream(self, which: int, one: int, is_seen: bool) -> None:
        lease = self.chosen(self.open_leases(), which)
        stream = self.chosen(lease.contexts, one).create_stream()
        if is_seen:
            assert stream.handle
        stream.record().sync()
        lease.streams.append(stream)

    @precondition(lambda self: any(lease.streams for lease in self.leases))
    @rule(which=INDEX, is_dropped=st.booleans())
    def end_stream(self, which: int, is_dropped: bool) -> None:
        lease = self.chosen([lease for lease in self.leases if lease.streams], which)
        stream = lease.streams[-1]
        if any(one is stream for one, _ in lease.captures):
            assert refusal(CapturingError, stream.close)
            return
        lease.streams.pop()
        if not is_dropped:
            stream.close()
        del stream
        gc.collect()

    @precondition(lambda self: any(lease.streams and lease.is_open for lease in self.leases))
    @rule(which=INDEX)
    def capture(self, which: int) -> None:
        lease = self.chosen([lease for lease in self.open_leases() if lease.streams], which)
        stream = lease.streams[-1]
        if not any(one is stream for one, _ in lease.captures):
            block = stream.capture("relaxed")
            block.__enter__()
            lease.captures.append((stream, block))

    @precondition(lambda self: self.is_capturing)
    @rule(which=INDEX)
    def end_capture(self, which: int) -> None:
        lease = self.chosen([lease for lease in self.leases if lease.captures], which)
        stream, block = lease.captures.pop()
        block.__exit__(None, None, None)
        stream.sync()  # raises during a capture
        block.graph.close()

    # ---- blocks

    @precondition(lambda self: self.open_leases())
    @rule(worker=st.integers(0, 1), which=INDEX, one=INDEX)
    def enter(self, worker: int, which: int, one: int) -> None:
        thread, lease = self.workers[worker], self.chosen(self.open_leases(), which)
        context = self.chosen(lease.contexts, one)
        before = thread.run(self.raw.current)
        block = context.current()
        thread.run(block.__enter__)
        thread.blocks.append(Block(lease, block, before))
        assert thread.run(self.raw.current) == context.handle

    @precondition(lambda self: any(worker.blocks for worker in self.workers))
    @rule(worker=st.integers(0, 1), deeds=st.lists(st.sampled_from(["push", "pop", "set nothing"]), max_size=3))
    def disturb(self, worker: int, deeds: list[str]) -> None:
        thread = self.workers[worker]
        for deed in deeds if thread.blocks else ():
            if deed == "push":
                thread.run(lambda: self.raw.push(self.dev.context.handle))
            elif deed == "set nothing":
                thread.run(lambda: self.raw.set_current(0))
            elif thread.run(self.raw.current):
                thread.run(self.raw.pop)

    @precondition(lambda self: any(worker.blocks for worker in self.workers))
    @rule(worker=st.integers(0, 1))
    def leave(self, worker: int) -> None:
        thread = self.workers[worker]
        if thread.blocks:
            block = thread.blocks.pop()
            thread.run(lambda: block.block.__exit__(None, None, None))
            assert thread.run(self.raw.current) == block.before

    # ---- ends

    @precondition(lambda self: self.open_leases())
    @rule(which=INDEX)
    def close(self, which: int) -> None:
        lease = self.chosen(self.open_leases(), which)
        if self.is_current(lease) or lease.captures:
            with pytest.raises((ContextCurrentError, CapturingError)) as refused:
                lease.owner.close()
            assert self.is_current(lease) if isinstance(refused.value, ContextCurrentError) else lease.captures
            del refused
        else:
            lease.owner.close()
            lease.is_open = False
            assert refusal(ClosedError, lease.contexts[0].create_stream)

    @precondition(lambda self: not self.is_capturing)
    @rule(exposed=st.booleans())
    def release(self, exposed: bool) -> None:
        before = self.driver_contexts()
        released = system.release_contexts(exposed=exposed)
        assert self.driver_contexts() == before - released.destroyed
        live = {lease.handle for lease in self.claimed()}
        if released.destroyed:  # their addresses may be used again
            self.made = [handles & live for handles in self.made]

    @rule()
    def collect(self) -> None:
        gc.collect()

    # ---- what holds at any time

    @invariant()
    def free_sms_are_those_that_no_lease_has(self) -> None:
        known = self.dev.resources.sm.free.sm_count
        assert known <= self.free_sms()
        if all(lease.is_among_free for lease in self.claimed()):
            assert known == self.free_sms()

    @invariant()
    def contexts_are_open_lingering_or_idle(self) -> None:
        for use in system.memory().values():
            assert use.contexts == use.open + use.lingering + use.idle

    @staticmethod
    def chosen(those: list[Any], which: int) -> Any:
        return those[which % len(those)]

    def teardown(self) -> None:
        try:
            while self.is_capturing:
                self.end_capture(0)
            for number, worker in enumerate(self.workers):
                while worker.blocks:
                    self.leave(number)
            for lease in self.leases:
                for stream in lease.streams:
                    stream.close()
                lease.owner.close()
            assert leases() == 0
            assert self.dev.resources.sm.free.sm_count == self.dev.resources.sm.sm_count
        finally:
            self.leases.clear()
            self.ends.close()


@pytest.mark.parametrize(
    "programs", [pytest.param(30, id="sampled"), pytest.param(6000, id="all", marks=pytest.mark.long)]
)
def test_programs_end_with_nothing_claimed(programs: int) -> None:
    run_state_machine_as_test(
        Programs,
        settings=settings(
            max_examples=programs,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
