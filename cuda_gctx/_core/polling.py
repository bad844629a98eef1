"""Completion in coroutines: an event is polled, and the event loop runs in between."""

from __future__ import annotations

from typing import Protocol

__all__ = ["until_done"]

# The first polls have no pause between them; then the pauses grow. Short waits end quickly, and long ones cost little.
POLLS_WITHOUT_PAUSE = 5
FIRST_PAUSE_S = 20e-6
LONGEST_PAUSE_S = 1e-3


class Completing(Protocol):
    """An object that can be polled."""

    @property
    def is_done(self) -> bool: ...


async def until_done(event: Completing) -> None:
    """Return when the event is done. Cancelling the wait cancels nothing on the device."""
    import asyncio

    pause = FIRST_PAUSE_S
    polls = 0
    while not event.is_done:
        polls += 1
        await asyncio.sleep(0 if polls <= POLLS_WITHOUT_PAUSE else pause)
        if polls > POLLS_WITHOUT_PAUSE:
            pause = min(pause * 2, LONGEST_PAUSE_S)
