"""Completion in coroutines: an event is polled, and the event loop runs in between."""

from __future__ import annotations

from typing import Protocol

__all__ = ["until_done"]

# The pauses grow: short waits end quickly, and long ones cost little.
FIRST_PAUSE_S = 20e-6
LONGEST_PAUSE_S = 1e-3


class Completing(Protocol):
    """An object that can be polled."""

    @property
    def is_done(self) -> bool: ...


async def until_done(event: Completing) -> None:
    """Return when the event is done. Cancelling the wait cancels nothing on the device."""
    import asyncio

    pause = 0.0
    while not event.is_done:
        await asyncio.sleep(pause)
        pause = min(max(pause * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
