"""Words that several pages of the tuner use."""

from __future__ import annotations

from cuda_gctx.draw.durations import in_words

__all__ = ["WAITS", "words"]

WAITS = "a synchronize, .item(), .cpu() or a blocking copy, or more than about a thousand launches"


def words(seconds: float) -> str:
    """A time as text."""
    return in_words(seconds * 1e9)
