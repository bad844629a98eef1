"""Many threads at once: making, splitting, adopting and closing, with one object for each driver object."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cuda_gctx import (
    ClosedError,
    Context,
    Device,
    ResourceOverlapError,
    ResourceOverlapWarning,
    Stream,
)
from cuda_gctx._core.extension import context_stream, run_probe

from ..common import green, leases, small_contexts, split
from ..raw import Raw
from .fronts import Front

THREADS = 16


def on_many_threads(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What the work gives on each of many threads that start together; the first error is raised here."""
    barrier = threading.Barrier(threads)
    answers: list[Any] = [None] * threads
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(60)
            answers[number] = work(number)
        except BaseException as error:  # raised again where the test sees it
            errors.append(error.with_traceback(None))

    pool = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    if errors:
        raise errors[0]
    return answers


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
def test_threads_make_and_close_contexts_of_their_own(sim: Callable[..., Any], driver: str) -> None:
    machine = sim("h200", driver=driver)
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [2] * THREADS, backfill=True)

    def work(number: int) -> int:
        chance = random.Random(number)
        for _ in range(20):
            with green(dev, groups[number], exclusive=True) as ctx:
                streams = [ctx.create_stream() for _ in range(chance.randint(1, 3))]
                with ctx.current():
                    assert ctx.is_current
                    streams[0].record().sync()
                for stream in streams:
                    assert stream.context == ctx
                    assert stream.resources.sm.sm_count == 2
                    if chance.random() < 0.5:
                        stream.close()
            del stream, streams  # the SMs are taken as long as a stream uses them
        return Raw().current()

    assert on_many_threads(work) == [0] * THREADS
    gc.collect()
    assert leases() == 0
    assert not machine.ledger().live_of("stream")
    assert not machine.ledger().misuse


@pytest.mark.parametrize("driver", ["12.4", "13.4"])
def test_threads_split_the_same_resources(sim: Callable[..., Any], driver: str) -> None:
    machine = sim("h200", driver=driver)
    whole = Device(0).resources.sm
    (group,), _ = split(whole, 48)

    def work(number: int) -> Any:
        for _ in range(10):
            split(whole, [16, 10], backfill=[False, True])
            inner, left = split(group, [8, 16])
        return [piece.sm_count for piece in [*inner, left]]

    assert on_many_threads(work) == [[8, 16, 24]] * THREADS
    # The hidden contexts are shared: one for the group, and on the old driver one for the mixed split.
    assert machine.calls("cuGreenCtxCreate") == (2 if driver == "12.4" else 1)


def test_one_thread_alone_gets_sms_that_many_want(sim: Callable[..., Any]) -> None:
    sim()
    dev = Device(0)
    (group,), _ = split(dev.resources.sm, 16)

    def work(number: int) -> Context | None:
        try:
            return green(dev, group, exclusive=True)
        except ResourceOverlapError:
            return None

    for _ in range(10):
        winners = [ctx for ctx in on_many_threads(work) if ctx is not None]
        assert len(winners) == 1
        winners.pop().close()


def test_the_first_use_on_many_threads_at_once(sim: Callable[..., Any]) -> None:
    machine = sim()
    contexts = on_many_threads(lambda number: Device(0).context)
    assert len(set(contexts)) == 1
    assert machine.calls("cuDevicePrimaryCtxRetain") == 1
    assert on_many_threads(lambda number: Device(0).resources.sm.sm_count) == [132] * THREADS


def test_foreign_handles_are_adopted_as_one_object(dev: Device) -> None:
    raw = Raw()
    with raw.green_context(8) as handle, raw.stream(handle) as stream_handle:
        contexts = on_many_threads(lambda number: Context.from_handle(handle))
        assert len(set(contexts)) == 1
        assert len({hash(context) for context in contexts}) == 1
        streams = on_many_threads(lambda number: Stream.from_handle(stream_handle))
        assert len(set(streams)) == 1
        assert all(stream.context == contexts[0] for stream in streams)
        for thing in [*streams, *contexts]:
            thing.close()


def test_our_own_handles_are_found_while_others_come_and_go(sim: Callable[..., Any]) -> None:
    sim()
    dev = Device(0)
    (ctx,) = small_contexts(dev, 1)
    mine = ctx.create_stream()

    def work(number: int) -> None:
        for _ in range(30):
            with ctx.create_stream() as stream:
                found = Stream.from_handle(stream.handle)
                assert found == stream
                assert found.is_owned
                assert Stream.from_handle(mine.handle) == mine
                assert Context.from_handle(ctx.handle) == ctx

    on_many_threads(work)
    mine.close()
    ctx.close()


def test_a_context_may_be_closed_while_others_ask_for_its_streams(sim: Callable[..., Any]) -> None:
    sim()
    dev = Device(0)
    messages = set()
    for _ in range(300):
        (ctx,) = small_contexts(dev, 1)

        def work(number: int, ctx: Context = ctx) -> str:
            try:
                if number == 0:
                    ctx.close()
                else:
                    context_stream(ctx, number % 2).close()
            except RuntimeError as error:
                return str(error)
            return ""

        messages.update(on_many_threads(work))
    assert all(not words or "closed" in words for words in messages)


def test_recycled_addresses_never_bring_back_the_dead(sim: Callable[..., Any]) -> None:
    sim()
    dev = Device(0)
    raw = Raw()
    dead_at: dict[int, list[Stream]] = {}
    lock = threading.Lock()
    recycled = []

    def work(number: int) -> None:
        for _ in range(20):
            with raw.stream(dev.context.handle) as handle:
                stream = Stream.from_handle(handle)
                with lock:
                    older = list(dead_at.get(handle, ()))
                    recycled.extend(older)
                assert all(stream != other for other in older)
                assert Stream.from_handle(handle) == stream
                stream.sync()
                with lock:
                    dead_at.setdefault(handle, []).append(stream)

    on_many_threads(work, 4)
    assert recycled, "no address was used twice: this test shows nothing"
    for streams in dead_at.values():
        for stream in streams:
            stream.close()


def test_closing_and_making_streams_at_the_same_time_is_one_or_the_other(sim: Callable[..., Any]) -> None:
    machine = sim()
    dev = Device(0)
    for _ in range(20):
        (ctx,) = small_contexts(dev, 1)

        def work(number: int, ctx: Context = ctx) -> Stream | str | None:
            try:
                return ctx.close() if number % 4 == 0 else ctx.create_stream()
            except RuntimeError as error:
                return str(error)

        for outcome in on_many_threads(work, 8):
            if isinstance(outcome, Stream):
                outcome.sync()
                outcome.close()
            else:
                assert outcome is None or "closed" in outcome
        assert ctx.is_closed
        assert leases() == 0
    assert not machine.ledger().misuse


def test_closing_and_making_current_at_the_same_time_never_leaves_a_dead_context_current(
    sim: Callable[..., Any],
) -> None:
    machine = sim()
    dev = Device(0)
    for _ in range(20):
        (ctx,) = small_contexts(dev, 1)

        def work(number: int, ctx: Context = ctx) -> list[str]:
            refusals = []
            for _ in range(5):
                try:
                    if number == 0:
                        ctx.close()
                    else:
                        with ctx.current(), ctx.create_stream() as stream:
                            stream.sync()
                except RuntimeError as error:
                    refusals.append(str(error))
            return refusals

        for refusal in chain.from_iterable(on_many_threads(work, 4)):
            assert "closed" in refusal or "current on another thread" in refusal
        ctx.close()
    assert not machine.ledger().misuse


def test_a_hundred_threads_drop_what_another_made(sim: Callable[..., Any]) -> None:
    machine = sim()
    dev = Device(0)
    contexts = small_contexts(dev, 8)
    pile: list[Any] = []
    for ctx in contexts:
        pile += [ctx, ctx.create_stream(), ctx.create_event(), ctx.create_stream().record()]
    del ctx, contexts
    random.Random(1).shuffle(pile)

    def work(number: int) -> None:
        while True:
            try:
                thing = pile.pop()
            except IndexError:
                return
            del thing

    on_many_threads(work)
    gc.collect()
    assert leases() == 0
    assert not [found for found in machine.ledger().live if found.kind in ("stream", "event")]
    assert not machine.ledger().misuse


def test_streams_are_closed_while_the_probe_runs_on_them(dev: Device) -> None:
    """The probe works on its own copy of the handle: a crash within seconds where it does not."""
    (ctx,) = small_contexts(dev, 1)
    cell: list[Stream | None] = [None]
    is_over = threading.Event()

    def close() -> None:
        while not is_over.is_set():
            stream = cell[0]
            if stream is not None:
                stream.close()

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        cell[0] = stream = ctx.create_stream()
        with suppress(ClosedError):
            run_probe([stream], [1], 1000, 10**10)
    is_over.set()
    for thread in threads:
        thread.join()
    ctx.close()


def test_overlap_warnings_reach_the_thread_that_made_the_context(dev: Device) -> None:
    (group,), _ = split(dev.resources.sm, 16)
    with green(dev, group), warnings.catch_warnings():
        warnings.simplefilter("error")

        def work(number: int) -> str:
            try:
                green(dev, group)
            except ResourceOverlapWarning as warning:
                return str(warning)
            return ""

        assert all("shares SMs" in message for message in on_many_threads(work, 4))


# ---- locks that are held over a driver call

# The first thread is inside the slow call; the second one waits for a lock of the first; the main thread lets the first
# go on. It never gets to run if the second one waits with the GIL.
PROGRAM = """
import ctypes, os, sys, threading
from cuda_gctx import Device, system
from cuda_gctx._core.extension import probe_blocks_per_sm
front = ctypes.CDLL(sys.argv[1])
front.front_wait.restype = ctypes.c_char_p
system.driver_version
{setup}
front.front_arm(1)
first = threading.Thread(target=lambda: {first})
first.start()
while front.front_wait() != b"{slow}":
    front.front_go()
front.front_arm(0)
begun = threading.Event()
second = threading.Thread(target=lambda: (begun.set(), {second}))
second.start()
begun.wait()
for _ in range(2000):
    os.sched_yield()
front.front_go()
first.join()
second.join()
print("done")
"""

CASES = {
    "resources while the probe is loaded": (
        "cuLibraryLoadData",
        "dev = Device(0); context = dev.context",
        "probe_blocks_per_sm(context)",
        "Device(0).resources.sm",
    ),
    "resources while the primary context is made": (
        "cuDevicePrimaryCtxRetain",
        "dev = Device(0)",
        "dev.context",
        "Device(0).resources.sm",
    ),
    "set_current while the probe is loaded": (
        "cuLibraryLoadData",
        "dev = Device(0); context = dev.context",
        "probe_blocks_per_sm(context)",
        "dev.set_current()",
    ),
}


@pytest.mark.sim_only
@pytest.mark.parametrize("case", CASES)
def test_nobody_waits_for_a_driver_call_of_another_thread_with_the_gil(tmp_path: Path, case: str) -> None:
    front = Front(tmp_path)
    slow, setup, first, second = CASES[case]
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(slow=slow, setup=setup, first=first, second=second), front.library],
        env=front.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.stdout, child.stderr) == ("done\n", "")
