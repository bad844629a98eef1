"""Tasks that share a thread: each is told apart by its contextvars.Context, whichever scheduler runs it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from typing import Any

import pytest

from cuda_gctx import Context, ContextCurrentError, Device

from ..common import on_another_thread, refusal
from ..raw import Raw
from .schedulers import MODULES, SCHEDULERS, Work


@pytest.fixture(params=SCHEDULERS)
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    for module in MODULES[request.param]:
        pytest.importorskip(module, reason=f"{module} is not installed here")
    return SCHEDULERS[request.param]


def test_two_tasks_cannot_have_a_block_each(run: Callable[..., None], raw: Raw, two: list[Context]) -> None:
    seen: list[Any] = []

    def hold(ctx: Context) -> Work:
        def work() -> Generator[None, None, None]:
            yield
            try:
                with ctx.current():
                    for _ in range(3):
                        yield
                        seen.append(ctx.is_current)
            except RuntimeError as error:
                seen.append(str(error))

        return work

    run(hold(two[0]), hold(two[1]))
    assert seen.count(True) == 3
    assert False not in seen
    (message,) = [words for words in seen if words is not True]
    assert "belongs to another task" in message
    assert raw.current() == 0


def test_set_current_of_another_task_is_refused_in_a_block(
    run: Callable[..., None], dev: Device, raw: Raw, two: list[Context]
) -> None:
    seen: list[Any] = []

    def block() -> Generator[None, None, None]:
        with two[0].current():
            for _ in range(4):
                yield
                seen.append(two[0].is_current)
        seen.append("end")

    def other() -> Generator[None, None, None]:
        while not seen:
            yield
        if "end" not in seen:
            seen.append(str(refusal(RuntimeError, lambda: dev.set_current(two[1]))))

    run(block, other)
    assert seen.count(True) == 4
    assert sum("is open on this thread" in str(words) for words in seen) == 1
    assert raw.current() == 0


def test_blocks_without_a_switch_inside_are_free(run: Callable[..., None], raw: Raw, two: list[Context]) -> None:
    def use(ctx: Context) -> Work:
        def work() -> Generator[None, None, None]:
            for _ in range(3):
                yield
                with ctx.current(), ctx.current():
                    assert ctx.is_current

        return work

    run(use(two[0]), use(two[1]))
    assert raw.current() == 0


def test_what_is_set_at_the_start_belongs_to_the_thread(
    run: Callable[..., None], dev: Device, raw: Raw, two: list[Context]
) -> None:
    def use() -> Generator[None, None, None]:
        assert two[0].is_current
        with two[1].current():
            assert two[1].is_current
        yield
        assert two[0].is_current

    dev.set_current(two[0])
    run(use, use)
    assert two[0].is_current
    raw.set_current(0)


def test_what_a_task_sets_is_for_later_tasks_as_well(
    run: Callable[..., None], dev: Device, raw: Raw, two: list[Context]
) -> None:
    def start_up() -> Generator[None, None, None]:
        dev.set_current(two[0])
        yield

    def later() -> Generator[None, None, None]:
        yield
        with two[1].current():
            assert two[1].is_current
        assert dev.set_current(two[0]) is two[0]

    run(start_up)
    run(later, later)
    assert two[0].is_current
    raw.set_current(0)


def test_cells_of_a_notebook_are_tasks_of_one_loop(dev: Device, raw: Raw, two: list[Context]) -> None:
    async def first_cell() -> None:
        dev.set_current(two[0])

    async def second_cell() -> bool:
        with two[1].current():
            return two[1].is_current

    async def third_cell() -> bool:
        await asyncio.sleep(0)
        return dev.set_current(two[1]) is two[0]

    loop = asyncio.new_event_loop()
    assert [loop.run_until_complete(cell()) for cell in (first_cell, second_cell, third_cell)] == [None, True, True]
    loop.close()
    raw.set_current(0)


def test_a_block_that_another_task_leaves_is_left_and_raises(raw: Raw, two: list[Context]) -> None:
    async def enter() -> Any:
        block = two[0].current()
        block.__enter__()
        return block

    async def leave(block: Any) -> str:
        return str(refusal(RuntimeError, lambda: block.__exit__(None, None, None)))

    async def main() -> str:
        return await asyncio.create_task(leave(await asyncio.create_task(enter())))

    assert "was entered in another task" in asyncio.run(main())
    assert raw.current() == 0


def test_another_context_of_variables_inside_a_block_is_another_task(dev: Device, raw: Raw, two: list[Context]) -> None:
    def inner() -> None:
        with two[1].current():
            pass

    with two[0].current():
        message = str(refusal(RuntimeError, lambda: contextvars.copy_context().run(inner)))
        assert "contextvars.Context" in message
        assert two[0].is_current
    contextvars.copy_context().run(inner)


def test_the_first_variable_of_a_thread_inside_a_block_changes_nothing(two: list[Context]) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    answers: list[Any] = []

    def work() -> None:
        with two[0].current():
            variable.set(1)
        with two[0].current(), two[1].current():
            variable.set(2)
        answers.append(Raw().current())

    on_another_thread(work)
    assert answers == [0]


def test_an_await_ends_and_leaves_the_context_as_it_was_before(raw: Raw, two: list[Context]) -> None:
    """Work of other tasks runs in the block meanwhile: nothing but their blocks and set_current can be refused."""

    async def work() -> None:
        with two[0].current():
            await asyncio.sleep(0)
            assert two[0].is_current

    asyncio.run(work())
    assert raw.current() == 0


def test_entering_a_block_asks_the_event_loop_for_nothing(raw: Raw, two: list[Context]) -> None:
    class Loop(asyncio.SelectorEventLoop):
        is_armed = False

        def call_soon(self, *args: Any, **options: Any) -> Any:
            assert not self.is_armed
            return super().call_soon(*args, **options)

    async def work() -> None:
        loop.is_armed = True
        with two[0].current():
            assert two[0].is_current
        loop.is_armed = False

    loop = Loop()
    loop.run_until_complete(work())
    loop.close()
    assert raw.current() == 0


def test_a_block_that_a_task_left_open_keeps_its_task_apart_from_later_ones(raw: Raw, two: list[Context]) -> None:
    async def forget() -> None:
        two[0].current().__enter__()

    async def use() -> str:
        return str(refusal(RuntimeError, two[1].current().__enter__))

    def on_a_thread() -> None:
        asyncio.run(forget())
        for _ in range(20):
            assert "belongs to another task" in asyncio.run(use())
        refusal(ContextCurrentError, two[0].close)

    on_another_thread(on_a_thread)
