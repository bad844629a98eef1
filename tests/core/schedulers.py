"""Schedulers that run several tasks on the calling thread, each in a contextvars.Context of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

# What a task does; at each yield, other tasks may run.
Work = Callable[[], Generator[None, None, None]]


def by_asyncio(*works: Work) -> None:
    async def task(work: Work) -> None:
        for _ in work():
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*map(task, works))

    asyncio.run(main())


def by_trio(*works: Work) -> None:
    import trio

    async def task(work: Work) -> None:
        for _ in work():
            await trio.sleep(0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(task, work)

    trio.run(main)


def by_anyio(backend: str) -> Callable[..., None]:
    def run(*works: Work) -> None:
        import anyio

        async def task(work: Work) -> None:
            for _ in work():
                await anyio.sleep(0)

        async def main() -> None:
            async with anyio.create_task_group() as group:
                for work in works:
                    group.start_soon(task, work)

        anyio.run(main, backend=backend)

    return run


def by_gevent(*works: Work) -> None:
    import gevent

    def task(work: Work) -> None:
        for _ in work():
            gevent.sleep(0)

    gevent.joinall([gevent.spawn(task, work) for work in works], raise_error=True)


def by_greenlet(*works: Work) -> None:
    import greenlet

    main = greenlet.getcurrent()

    def task(work: Work) -> None:
        for _ in work():
            main.switch()

    tasks = [greenlet.greenlet(lambda work=work: task(work)) for work in works]
    while any(not task.dead for task in tasks):
        for task_ in tasks:
            if not task_.dead:
                task_.switch()


# What each needs besides the standard library.
MODULES: dict[str, tuple[str, ...]] = {
    "asyncio": (),
    "trio": ("trio",),
    "anyio on asyncio": ("anyio",),
    "anyio on trio": ("anyio", "trio"),
    "gevent": ("gevent",),
    "greenlet": ("greenlet",),
}
SCHEDULERS = {
    "asyncio": by_asyncio,
    "trio": by_trio,
    "anyio on asyncio": by_anyio("asyncio"),
    "anyio on trio": by_anyio("trio"),
    "gevent": by_gevent,
    "greenlet": by_greenlet,
}
