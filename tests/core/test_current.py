"""The current context of a thread: blocks that always restore it, and set_current, which returns the previous one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from cuda_gctx import Context, CUDAError, Device

from ..common import on_another_thread, small_contexts
from ..raw import Raw


def test_nothing_becomes_current_by_itself(dev: Device, raw: Raw, two: list[Context]) -> None:
    first, second = two
    with first.create_stream() as stream, dev.create_stream() as other, first.record_event() as event:
        second.wait_event(event)
        other.wait(stream)
        for thing in (stream, other, event, first, dev):
            thing.sync()
        assert stream.priority == other.priority == 0
        assert first.resources.sm.sm_count == second.sm_count
    assert raw.current() == 0


def test_a_with_block_makes_a_context_current_and_restores(raw: Raw, two: list[Context]) -> None:
    first, second = two
    with first.current() as entered:
        assert entered == first
        assert first.is_current
        assert raw.current() == first.handle
        with second.current():
            assert second.is_current
            assert not first.is_current
        assert first.is_current
    assert raw.current() == 0
    assert not first.is_current


def test_one_context_can_be_entered_again_inside_itself(raw: Raw, two: list[Context]) -> None:
    first, _ = two
    with first.current(), first.current():
        assert first.is_current
    assert raw.current() == 0


def test_a_block_can_be_used_again(raw: Raw, two: list[Context]) -> None:
    block = two[0].current()
    for _ in range(2):
        with block:
            assert two[0].is_current
        assert raw.current() == 0


def test_an_exception_restores_too(raw: Raw, two: list[Context]) -> None:
    first, second = two
    with first.current():
        with pytest.raises(ZeroDivisionError), second.current():
            1 / 0  # noqa: B018
        assert raw.current() == first.handle
    assert raw.current() == 0


def test_restores_when_inner_code_replaced_the_current_context(dev: Device, raw: Raw, two: list[Context]) -> None:
    first, second = two
    with first.current():
        with second.current():
            raw.set_current(dev.context.handle)
        assert raw.current() == first.handle
    assert raw.current() == 0


def test_restores_when_inner_code_popped_too_much(raw: Raw, two: list[Context]) -> None:
    first, second = two
    with first.current():
        with second.current():
            raw.pop()
            raw.pop()
            assert raw.current() == 0
        assert raw.current() == first.handle


def test_restores_when_inner_code_set_nothing(raw: Raw, two: list[Context]) -> None:
    first, second = two
    with first.current():
        with second.current():
            raw.set_current(0)
        assert raw.current() == first.handle
    assert raw.current() == 0


def test_set_current_returns_what_was_current(dev: Device, raw: Raw, two: list[Context]) -> None:
    first, second = two
    assert dev.set_current(first) is None
    assert dev.set_current(second) == first
    assert dev.set_current() == second
    assert dev.context.is_current
    assert dev.set_current(first) == dev.context
    raw.set_current(0)


def test_set_current_returns_contexts_of_other_makers(dev: Device, raw: Raw, two: list[Context]) -> None:
    with raw.ordinary_context() as ordinary, raw.green_context(8) as green:
        raw.set_current(ordinary)
        previous = dev.set_current(two[0])
        assert previous is not None
        assert (previous.handle, previous.is_green) == (ordinary, False)
        raw.set_current(green)
        previous = dev.set_current(two[0])
        assert previous is not None
        assert (previous.handle, previous.is_green) == (green, True)
        raw.set_current(0)


def test_what_set_current_returns_can_be_set_again(dev: Device, raw: Raw, two: list[Context]) -> None:
    first, second = two
    dev.set_current(first)
    previous = dev.set_current(second)
    assert dev.set_current(previous) == second
    assert first.is_current
    raw.set_current(0)


def test_each_thread_has_its_own_current_context(raw: Raw, two: list[Context]) -> None:
    first, second = two

    def use_the_other() -> tuple[bool, bool]:
        before = first.is_current
        with second.current():
            return before, second.is_current

    with first.current():
        assert on_another_thread(use_the_other) == (False, True)
        assert first.is_current
        assert not second.is_current


def test_set_current_works_on_a_thread_with_nothing_current(dev: Device, two: list[Context]) -> None:
    def use() -> tuple[object, bool, object]:
        previous = dev.set_current(two[0])
        was_current = two[0].is_current
        return previous, was_current, dev.set_current(dev.context)

    assert on_another_thread(use) == (None, True, two[0])


def test_set_current_refuses_a_context_of_another_device(sim: Callable[..., Any]) -> None:
    sim("h200", devices=2)
    with pytest.raises(ValueError, match="device 1"):
        Device(0).set_current(Device(1).context)


def test_a_device_without_a_number_is_that_of_the_current_context(sim: Callable[..., Any]) -> None:
    sim("h200", devices=2)
    assert Device().device_id == 0
    with Device(1).context.current():
        assert Device().device_id == 1
    (ctx,) = small_contexts(Device(1), 1)
    with ctx.current():
        assert Device() == Device(1)
    ctx.close()


def test_a_block_is_entered_and_left_by_its_methods_and_by_an_exit_stack(raw: Raw, two: list[Context]) -> None:
    first, second = two
    block = first.current()
    assert block.__enter__() is first
    with ExitStack() as stack:
        assert stack.enter_context(second.current()) is second
    assert raw.current() == first.handle
    assert block.__exit__(None, None, None) is None
    assert raw.current() == 0
    with pytest.raises(RuntimeError, match="is not open"):
        block.__exit__(None, None, None)
    assert raw.current() == 0


def test_an_exception_in_enter_comes_before_the_context_is_pushed(sim: Callable[..., Any]) -> None:
    machine = sim()
    (ctx,) = small_contexts(Device(0), 1)
    raw = Raw()
    for function in ("cuCtxGetCurrent", "cuCtxPushCurrent"):
        machine.fail(function, nth=1, code="CUDA_ERROR_UNKNOWN")
        with pytest.raises(CUDAError), ctx.current():
            raise AssertionError("the block is not entered")
        assert raw.current() == 0
    with Device(0).context.current():
        assert not ctx.is_current
    ctx.close()
