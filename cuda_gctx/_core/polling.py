"""Completion in coroutines: an event is asked now and then, and the event loop runs in between."""

from __future__ import annotations

from typing import Protocol

__all__ = ["until_done"]

# The pauses grow from none to the longest, so that what is short ends soon and what is long costs little.
FIRST_PAUSE_S = 20e-6
LONGEST_PAUSE_S = 1e-3


class Completing(Protocol):
    """What can be asked whether it is done."""

    @property
    def is_done(self) -> bool: ...


async def until_done(event: Completing) -> None:
    """Returns when the event is done. Cancelling it cancels nothing on the device."""
    import asyncio

    pause = 0.0
    while not event.is_done:
        await asyncio.sleep(pause)
        pause = min(max(pause * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
