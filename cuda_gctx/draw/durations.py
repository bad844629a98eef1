"""Durations with their units, in pictures and next to them."""

from __future__ import annotations

__all__ = ["UNITS", "in_words"]

UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))


def in_words(ns: float) -> str:
    """A duration with a suitable unit and four digits, for reports of one run."""
    name, size = next((unit for unit in reversed(UNITS) if abs(ns) >= unit[1]), UNITS[0])
    return f"{ns / size:.4g} {name}"
