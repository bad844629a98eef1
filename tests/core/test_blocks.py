"""Blocks that make a context current: whatever runs inside, what was current before is current after it."""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_gctx import ClosedError, Context, ContextCurrentError, CUDAError, Device

from ..common import refusal, small_contexts
from ..raw import Raw, RawError

# Deeds of other code with the driver's stack inside of a block, which it does not undo.
DEEDS = ["push a", "push b", "push primary", "pop", "set a", "set b", "set primary", "set nothing"]


def do(raw: Raw, deed: str, handles: dict[str, int]) -> None:
    verb, _, name = deed.partition(" ")
    if verb == "push":
        raw.push(handles[name])
    elif verb == "set":
        raw.set_current(handles[name])
    elif raw.current():
        raw.pop()


@pytest.fixture
def handles(dev: Device, two: list[Context]) -> dict[str, int]:
    return {"nothing": 0, "primary": dev.context.handle, "a": two[0].handle, "b": two[1].handle}


@pytest.mark.parametrize("before", ["nothing", "primary", "a", "b"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_was_current_is_current_again_whatever_other_code_left(
    raw: Raw, two: list[Context], handles: dict[str, int], before: str, depth: int
) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.lists(st.sampled_from(DEEDS), max_size=6), min_size=depth, max_size=depth))
    def check(deeds: list[list[str]]) -> None:
        raw.set_current(0)
        raw.set_current(handles[before])

        def nest(level: int) -> None:
            if level == depth:
                return
            now = raw.current()
            with two[level].current():
                assert raw.current() == two[level].handle
                for deed in deeds[level]:
                    do(raw, deed, handles)
                nest(level + 1)
            assert raw.current() == now

        nest(0)
        assert raw.current() == handles[before]
        while raw.current():
            raw.pop()

    check()


def test_after_a_block_that_a_library_left_unbalanced_its_partition_can_be_closed(dev: Device, raw: Raw) -> None:
    for deeds in (["push a"], ["pop"], ["set primary"], ["push a", "push a"], ["set nothing", "push a"]):
        for before in (0, dev.context.handle):
            raw.set_current(before)
            with dev.partition(a=16, b=None) as parts:
                with parts.a.context.current():
                    for deed in deeds:
                        do(raw, deed, {"a": parts.a.context.handle, "primary": dev.context.handle, "nothing": 0})
                assert raw.current() == before
            assert parts.is_closed
            raw.set_current(0)
            while raw.current():
                raw.pop()


def test_what_other_code_has_destroyed_is_not_made_current_again(dev: Device, raw: Raw, two: list[Context]) -> None:
    owner = raw.green_context(8)
    raw.push(owner.__enter__())
    block = two[0].current()
    block.__enter__()
    raw.pop()
    raw.pop()
    owner.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="gone, and nothing is current now"):
        block.__exit__(None, None, None)
    assert raw.current() == 0


def test_a_block_that_is_left_before_an_inner_one_raises_and_ends_with_it(raw: Raw, two: list[Context]) -> None:
    outer, inner = two[0].current(), two[1].current()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="left before the block of"):
        outer.__exit__(None, None, None)
    assert two[1].is_current
    with pytest.raises(ContextCurrentError):
        two[0].close()
    inner.__exit__(None, None, None)
    assert raw.current() == 0


def test_a_block_that_another_thread_leaves_ends_with_its_thread(raw: Raw, two: list[Context]) -> None:
    entered, go_on = threading.Event(), threading.Event()
    block = two[0].current()

    def work() -> None:
        block.__enter__()
        entered.set()
        go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    with pytest.raises(RuntimeError, match="entered on another thread"):
        block.__exit__(None, None, None)
    with pytest.raises(ContextCurrentError):
        two[0].close()
    go_on.set()
    thread.join()
    two[0].close()


def test_a_block_that_another_thread_leaves_ends_with_the_block_around_it(raw: Raw, two: list[Context]) -> None:
    before = raw.current()
    outer, inner = two[0].current(), two[1].current()
    outer.__enter__()
    inner.__enter__()
    with ThreadPoolExecutor(1) as other:
        assert refusal(RuntimeError, other.submit(inner.__exit__, None, None, None).result)
    assert two[1].is_current
    outer.__exit__(None, None, None)
    assert raw.current() == before
    for context in two:
        context.close()


def test_a_block_is_left_once_and_entered_once_at_a_time(raw: Raw, two: list[Context]) -> None:
    block = two[0].current()
    with pytest.raises(RuntimeError, match="not open"):
        block.__exit__(None, None, None)
    with block:
        with pytest.raises(RuntimeError, match="already open"):
            block.__enter__()
        assert two[0].is_current
    with pytest.raises(RuntimeError, match="not open"):
        block.__exit__(None, None, None)
    with block:
        assert two[0].is_current


def test_a_block_of_a_closed_context_is_refused(two: list[Context]) -> None:
    block = two[0].current()
    two[0].close()
    with pytest.raises(ClosedError), block:
        pass


def test_set_current_inside_a_block_is_refused_and_says_what_to_do(dev: Device, raw: Raw, two: list[Context]) -> None:
    with two[0].current():
        message = str(refusal(RuntimeError, lambda: dev.set_current(two[1])))
        assert two[0].is_current
    assert "with context.current()" in message
    assert raw.current() == 0


def test_an_error_inside_a_block_is_not_hidden(raw: Raw, two: list[Context]) -> None:
    with pytest.raises(KeyError), two[0].current():
        raise KeyError
    assert raw.current() == 0


@pytest.mark.parametrize("function", ["cuCtxGetCurrent", "cuCtxGetId", "cuCtxPushCurrent", "cuCtxPopCurrent"])
@pytest.mark.parametrize("inside", [[], ["push b"], ["pop"], ["set b"]], ids=" ".join)
def test_what_was_current_is_current_again_whichever_call_fails_once(
    sim: Callable[..., Any], function: str, inside: list[str]
) -> None:
    machine = sim()
    dev, raw = Device(0), Raw()
    two = small_contexts(dev, 2)
    handles = {"a": two[0].handle, "b": two[1].handle}
    before = dev.context.handle
    for number in range(1, 8):
        raw.set_current(before)
        machine.fail(function, nth=number)
        with suppress(CUDAError), two[0].current():
            for deed in inside:
                with suppress(RawError):
                    do(raw, deed, handles)
        machine.clear_faults()
        assert raw.current() == before, number
        while raw.current():
            raw.pop()
    for context in two:
        context.close()


def test_what_a_thread_made_current_ends_before_join_returns(sim: Callable[..., Any]) -> None:
    sim()
    contexts = small_contexts(Device(0), 2)
    for _ in range(50):
        thread = threading.Thread(target=lambda: [ctx.current().__enter__() for ctx in contexts])
        thread.start()
        thread.join()
    for ctx in contexts:
        ctx.close()
    assert all(ctx.is_closed for ctx in contexts)


def test_the_message_names_the_thread_on_which_it_is_current(dev: Device, two: list[Context]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def use() -> None:
        with two[0].current():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=use)
    thread.start()
    entered.wait()
    message = str(refusal(ContextCurrentError, two[0].close))
    leave.set()
    thread.join()
    assert str(thread.native_id) in message


def test_the_end_of_a_thread_that_threading_does_not_know_is_seen(dev: Device, two: list[Context]) -> None:
    ended = threading.Event()

    class End:
        def __del__(self) -> None:
            ended.set()

    def work() -> None:
        local = threading.local()
        local.end = End()
        two[0].current().__enter__()

    start_new_thread(work, ())
    ended.wait()
    for _ in range(10_000):
        try:
            two[0].close()
            break
        except ContextCurrentError:
            threading.Event().wait(0.001)
    assert two[0].is_closed
