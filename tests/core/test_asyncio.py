"""Completion in coroutines: events and partitions are awaited, and the event loop runs meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cuda_gctx import Device, Partitions
from cuda_gctx._core.extension import spin
from cuda_gctx._core.polling import until_done


@pytest.fixture
def parts(dev: Device) -> Iterator[Partitions]:
    with dev.partition(a=8, b=8) as made:
        yield made


def test_an_event_is_awaited(parts: Partitions) -> None:
    async def run() -> None:
        spin(parts.a.stream, 8, 200_000)
        event = parts.a.stream.record()
        assert await event is None
        assert event.is_done

    asyncio.run(run())


def test_a_partition_is_awaited(parts: Partitions) -> None:
    async def run() -> None:
        for stream in (parts.a.stream, parts.a.stream_pool(1)[0]):
            spin(stream, 8, 200_000)
        await parts.a.done()
        assert parts.a.stream.is_done
        assert parts.a.stream_pool(1)[0].is_done

    asyncio.run(run())


def test_the_loop_goes_on_while_something_is_awaited() -> None:
    class Late:
        asked = 0

        @property
        def is_done(self) -> bool:
            self.asked += 1
            return turns >= 20

    turns = 0

    async def others() -> None:
        nonlocal turns
        while turns < 20:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        late = Late()
        await asyncio.gather(until_done(late), others())
        assert late.asked > 1

    asyncio.run(run())


def test_cancelling_leaves_the_work_alone(parts: Partitions) -> None:
    async def run() -> None:
        spin(parts.a.stream, 8, 200_000)
        event = parts.a.stream.record()
        task = asyncio.ensure_future(parts.a.done())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await event
        await parts.a.done()

    asyncio.run(run())


def test_an_event_that_was_closed_cannot_be_awaited(parts: Partitions) -> None:
    event = parts.a.stream.record()
    event.close()

    async def run() -> None:
        with pytest.raises(RuntimeError, match="closed"):
            await event

    asyncio.run(run())
