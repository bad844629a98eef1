"""Blocks that do not nest: generators, tasks, other threads; and what other code pushes inside a block."""

from __future__ import annotations

import _thread
import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from cuda_gctx import Context, ContextCurrentError, CUDAError, Device
from cuda_gctx._core.extension import demand_not_current

from ..common import green, on_another_thread, refusal, small_contexts, split
from ..raw import Raw


def in_a_block(ctx: Context) -> Iterator[bool]:
    with ctx.current():
        yield ctx.is_current


PUSHED = [list(pushed) for length in range(4) for pushed in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize("before", ["nothing", "primary", "a", "b"])
@pytest.mark.parametrize("pushed", PUSHED, ids="".join)
def test_contexts_that_inner_code_pushed_and_left_are_gone_after_the_block(
    dev: Device, raw: Raw, two: list[Context], before: str, pushed: list[str]
) -> None:
    handles = {"nothing": 0, "primary": dev.context.handle, "a": two[0].handle, "b": two[1].handle}
    raw.set_current(handles[before])
    with two[0].current():
        for name in pushed:
            raw.push(handles[name])
    # Where the block's own context is on top, it is the only one that goes.
    after = ["a", *pushed][-2] if pushed[-1:] == ["a"] else before
    assert raw.current() == handles[after]
    while raw.current():
        raw.pop()


def test_the_blocks_own_context_that_inner_code_pushed_and_left_belongs_to_that_code(
    dev: Device, raw: Raw, two: list[Context]
) -> None:
    first = two[0]
    with first.current():
        raw.push(first.handle)
    assert first.is_current
    assert "cannot be closed while it is current" in str(refusal(ContextCurrentError, first.close))
    raw.pop()
    assert not raw.current()


def test_generators_that_are_closed_in_the_wrong_order_raise_and_use_nothing_that_is_gone(
    sim: Callable[..., Any],
) -> None:
    machine = sim()
    raw = Raw()
    first, second = small_contexts(Device(0), 2)
    generators = [in_a_block(first), in_a_block(second)]
    assert [next(generator) for generator in generators] == [True, True]
    message = str(refusal(RuntimeError, generators[0].close))
    assert "was left before the block of" in message
    assert "entered inside it" in message
    assert raw.current() == second.handle
    del first
    gc.collect()
    assert len(machine.ledger().live_of("green context")) == 2  # the block that was left keeps it
    generators[1].close()
    assert raw.current() == 0
    assert len(machine.ledger().live_of("green context")) == 1
    assert not machine.ledger().misuse


def test_a_block_that_another_thread_leaves_keeps_its_context_until_its_own_thread_goes_on(
    sim: Callable[..., Any],
) -> None:
    machine = sim()
    (ctx,) = small_contexts(Device(0), 1)
    raw = Raw()
    block = ctx.current()
    block.__enter__()
    leave = [block.__exit__]
    message = str(refusal(RuntimeError, lambda: on_another_thread(lambda: leave[0](None, None, None))))
    assert "entered on another thread" in message
    leave.clear()
    del block, ctx
    gc.collect()
    assert len(machine.ledger().live_of("green context")) == 1
    assert raw.current() != 0
    with Device(0).context.current():
        pass
    assert raw.current() == 0
    assert not machine.ledger().live_of("green context")
    assert not machine.ledger().misuse


def test_a_block_that_is_left_twice_raises(raw: Raw, two: list[Context]) -> None:
    block = two[0].current()
    with block:
        pass
    with pytest.raises(RuntimeError, match="not open"):
        block.__exit__(None, None, None)


def test_one_block_entered_on_two_threads_is_left_by_each_on_its_own(raw: Raw, two: list[Context]) -> None:
    block = two[0].current()
    entered, left = threading.Event(), threading.Event()

    def other() -> int:
        with block:
            entered.set()
            left.wait(60)
        return Raw().current()

    answers: list[int] = []
    with block:
        thread = threading.Thread(target=lambda: answers.append(other()))
        thread.start()
        entered.wait(60)
    assert raw.current() == 0
    left.set()
    thread.join()
    assert answers == [0]


def test_a_context_keeps_one_block_for_its_statements_and_goes_at_once(dev: Device) -> None:
    ctx, last = small_contexts(dev, 2)
    first = ctx.current()
    kept = id(first)
    with first:
        other = ctx.current()
        assert id(other) != kept
    del first
    with ctx.current() as entered:
        assert entered is ctx
    number = id(ctx.current())
    assert number == kept
    # A block keeps its context, and a context that keeps a block goes without a collection.
    is_there, block = weakref.ref(last), last.current()
    del last
    with block as last:
        assert is_there() is last
    again = last.current()
    del last, block
    with again:
        assert is_there() is not None
    gc.disable()
    try:
        del again
        assert is_there() is None
    finally:
        gc.enable()
        ctx.close()


def test_a_block_of_a_closed_context_is_refused_and_may_go_after_it(two: list[Context]) -> None:
    block, other = two[0].current(), two[0].current()
    two[0].close()
    with pytest.raises(RuntimeError, match="has been closed"):
        block.__enter__()
    del block
    with pytest.raises(RuntimeError, match="has been closed"):
        other.__enter__()


def test_a_block_whose_place_was_set_to_another_context_has_its_own_again(
    dev: Device, raw: Raw, two: list[Context]
) -> None:
    a, b = two
    raw.push(dev.context.handle)
    block = a.current()
    block.__enter__()
    # Other code leaves the context of the block below what was current before it.
    for _ in range(2):
        raw.pop()
    raw.push(a.handle)
    raw.push(dev.context.handle)
    block.__exit__(None, None, None)
    dev.set_current(b)
    while raw.current():
        raw.pop()
    dev.set_current(dev.context)
    with block:
        assert a.is_current
    while raw.current():
        raw.pop()


def test_an_error_inside_a_block_with_an_await_is_not_hidden(raw: Raw, two: list[Context]) -> None:
    async def fail() -> None:
        with two[0].current():
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())
    assert raw.current() == 0


@pytest.mark.parametrize("function", ["cuCtxPopCurrent", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_what_was_current_is_current_again_whichever_call_fails(
    sim: Callable[..., Any], function: str, nth: int
) -> None:
    machine = sim()
    dev = Device(0)
    raw = Raw()
    first, second = small_contexts(dev, 2)
    raw.set_current(dev.context.handle)
    before = raw.current()
    block = first.current()
    block.__enter__()
    raw.push(second.handle)
    machine.fail(function, nth=nth, code="CUDA_ERROR_UNKNOWN")
    with suppress(CUDAError):
        block.__exit__(None, None, None)
    machine.clear_faults()
    assert raw.current() == before
    raw.set_current(0)
    first.close()
    second.close()


def test_a_failing_restore_names_what_is_current(sim: Callable[..., Any]) -> None:
    machine = sim(check=False)
    (ctx,) = small_contexts(Device(0), 1)
    block = ctx.current()
    block.__enter__()
    machine.fail("cuCtxPopCurrent", code="CUDA_ERROR_UNKNOWN")
    machine.fail("cuCtxSetCurrent", code="CUDA_ERROR_UNKNOWN")
    message = str(refusal(RuntimeError, lambda: block.__exit__(None, None, None)))
    assert f"{ctx.handle:#x}" in message
    assert "not what was current before the block" in message
    machine.clear_faults()


def test_what_a_thread_made_current_ends_before_join_returns(sim: Callable[..., Any]) -> None:
    machine = sim()
    dev = Device(0)
    for _ in range(200):
        ctx, other = small_contexts(dev, 2)

        def work(ctx: Context = ctx, other: Context = other) -> None:
            dev.set_current(ctx)
            other.current().__enter__()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        ctx.close()
        other.close()
    assert not machine.ledger().live_of("green context")
    assert not machine.ledger().misuse


def test_the_message_names_the_thread_on_which_it_is_current(dev: Device, two: list[Context]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with two[0].current():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    message = str(refusal(ContextCurrentError, two[0].close))
    leave.set()
    thread.join()
    assert f"another thread (native id {thread.native_id})" in message


@pytest.mark.parametrize("driver", ["12.4", "13.0", "13.4"])
def test_what_is_set_inside_a_block_is_not_destroyed_while_it_is_current(sim: Callable[..., Any], driver: str) -> None:
    machine = sim("h200", driver=driver)
    dev = Device(0)
    groups, _ = split(dev.resources.sm, [8] * 5)
    outer = green(dev, groups[0])
    with outer.current():
        dev.set_current(green(dev, groups[1]))
        dev.set_current(green(dev, groups[2]))
    dev.set_current(green(dev, groups[3]))
    dev.set_current(green(dev, groups[4]))
    dev.set_current()
    gc.collect()
    assert len(machine.ledger().live_of("green context")) == 1
    assert not machine.ledger().misuse
    Raw().set_current(0)


def test_what_was_set_in_a_block_of_what_was_current_before_can_be_closed_after_it(
    dev: Device, raw: Raw, two: list[Context]
) -> None:
    raw.set_current(dev.context.handle)
    with two[0].current(), dev.context.current():
        dev.set_current(two[0])
    assert raw.current() == dev.context.handle
    two[0].close()
    while raw.current():
        raw.pop()


def test_a_context_below_what_other_code_has_pushed_cannot_be_closed(dev: Device, raw: Raw, two: list[Context]) -> None:
    first, second = two
    dev.set_current(first)
    raw.push(dev.context.handle)  # of a library
    assert "call Device.set_current() for another context" in str(refusal(ContextCurrentError, first.close))
    dev.set_current(second)
    first.close()
    raw.pop()  # the library's own
    assert raw.current() == second.handle
    dev.set_current(dev.context)
    while raw.current():
        raw.pop()


def test_what_other_code_has_replaced_is_current_no_more(dev: Device, raw: Raw, two: list[Context]) -> None:
    dev.set_current(two[0])
    raw.set_current(dev.context.handle)
    two[0].close()
    while raw.current():
        raw.pop()


def depth(raw: Raw) -> list[int]:
    """The driver's whole stack, from the top."""
    stack = []
    while handle := raw.current():
        stack.append(handle)
        raw.pop()
    for handle in reversed(stack):
        raw.push(handle)
    return stack


@pytest.mark.parametrize("function", ["cuCtxPopCurrent", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent"])
@pytest.mark.parametrize("inside", ["push", "push twice", "pop", "replace", "set"])
def test_the_whole_stack_is_as_it_was_whichever_call_fails(sim: Callable[..., Any], function: str, inside: str) -> None:
    machine = sim("h200", devices=1)
    dev, raw = Device(0), Raw()
    first, second = small_contexts(dev, 2)
    primary = dev.context.handle
    actions: dict[str, Callable[[], object]] = {
        "push": lambda: raw.push(second.handle),
        "push twice": lambda: (raw.push(first.handle), raw.push(primary)),
        "pop": raw.pop,
        "replace": lambda: raw.set_current(primary),
        "set": lambda: dev.set_current(second),
    }
    for nth in range(1, 12):
        raw.set_current(0)
        for handle in (primary, second.handle):
            raw.push(handle)
        before = depth(raw)
        block = first.current()
        block.__enter__()
        actions[inside]()
        machine.fail(function, nth=nth, code="CUDA_ERROR_UNKNOWN")
        with suppress(CUDAError):
            block.__exit__(None, None, None)
        machine.clear_faults()
        assert depth(raw) == before, nth
    while raw.current():
        raw.pop()
    first.close()
    second.close()


@pytest.fixture
def others(raw: Raw) -> Iterator[list[int]]:
    """Contexts of other code, as handles; no context is current on this thread before and after."""
    with raw.ordinary_context() as first, raw.ordinary_context() as second:
        yield [first, second]
        while raw.current():
            raw.pop()


def test_a_block_takes_its_own_place_away_below_what_other_code_left_in_it(
    dev: Device, raw: Raw, two: list[Context], others: list[int]
) -> None:
    (a, b), (f, g) = two, others
    raw.push(f)
    with a.current():
        raw.push(f)
        raw.push(g)
        dev.set_current(b)
        assert depth(raw) == [b.handle, f, a.handle, f]
    assert depth(raw) == [f]
    a.close()
    b.close()


def test_a_block_leaves_alone_what_was_on_the_stack_before_it(
    dev: Device, raw: Raw, two: list[Context], others: list[int]
) -> None:
    (a, b), (f, g) = two, others
    raw.push(f)
    raw.push(f)
    dev.set_current(a)
    raw.push(f)
    with a.current():
        dev.set_current(b)
        raw.push(g)
        dev.set_current(b)
    assert depth(raw) == [f, a.handle, f]
    assert "call Device.set_current() for another context" in str(refusal(ContextCurrentError, a.close))
    dev.set_current(b)
    a.close()
    assert depth(raw) == [b.handle, b.handle, f]


def test_a_context_stays_as_long_as_it_is_on_the_stack_whatever_other_code_has_done_to_it(
    sim: Callable[..., Any],
) -> None:
    machine = sim()
    dev, raw = Device(0), Raw()
    a, b = small_contexts(dev, 2)
    with raw.ordinary_context() as f, raw.ordinary_context() as g:
        raw.push(f)
        block = a.current()
        block.__enter__()
        raw.pop()
        raw.pop()
        for handle in (g, a.handle, f):
            raw.push(handle)
        block.__exit__(None, None, None)
        assert depth(raw) == [f, a.handle, g]
        assert "call Device.set_current() for another context" in str(refusal(ContextCurrentError, a.close))
        dev.set_current(b)
        assert depth(raw) == [b.handle, b.handle, g]
        a.close()
        assert len(machine.ledger().live_of("green context")) == 1
        while raw.current():
            raw.pop()
    b.close()
    assert not machine.ledger().misuse


def test_a_context_that_other_code_has_pushed_is_not_closed_under_it(
    dev: Device, raw: Raw, two: list[Context], others: list[int]
) -> None:
    raw.push(two[0].handle)
    raw.push(others[0])
    assert "cuCtxPopCurrent" in str(refusal(ContextCurrentError, two[0].close))
    raw.pop()
    raw.pop()
    two[0].close()


def test_any_depth_of_what_other_code_has_left_is_taken_away(
    dev: Device, raw: Raw, two: list[Context], others: list[int]
) -> None:
    raw.push(others[0])
    with two[0].current():
        for _ in range(1000):
            raw.push(others[0])
    assert depth(raw) == [others[0]]
    two[0].close()


def test_what_other_code_has_destroyed_is_not_made_current_again(sim: Callable[..., Any]) -> None:
    machine = sim()
    dev, raw = Device(0), Raw()
    (ctx,) = small_contexts(dev, 1)
    block = ctx.current()
    with raw.ordinary_context() as other:
        raw.push(other)
        block.__enter__()
        raw.pop()
        raw.pop()
    message = str(refusal(RuntimeError, lambda: block.__exit__(None, None, None)))
    assert "other code has popped what was current before it" in message
    assert raw.current() == 0
    ctx.close()
    assert not machine.ledger().misuse


def test_the_end_of_a_thread_that_threading_does_not_know_is_seen(dev: Device, two: list[Context]) -> None:
    for _ in range(100):
        is_over = _thread.allocate_lock()
        is_over.acquire()

        def work(is_over: Any = is_over) -> None:
            dev.set_current(two[0])
            two[1].current().__enter__()
            is_over.release()

        _thread.start_new_thread(work, ())
        is_over.acquire()
        for ctx in two:
            try:
                demand_not_current([ctx])
            except ContextCurrentError:  # its last statement may still be on its way
                time.sleep(0.05)
                demand_not_current([ctx])
