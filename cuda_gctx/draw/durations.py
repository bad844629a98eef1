"""Durations as text."""

from __future__ import annotations

from collections.abc import Mapping

UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))


def in_words(ns: float) -> str:
    """A duration with a suitable unit and four digits, for reports of one run."""
    name, size = next((unit for unit in reversed(UNITS) if abs(ns) >= unit[1]), UNITS[0])
    return f"{ns / size:.4g} {name}"


def duration(ns: float) -> str:
    """A duration with a suitable unit and three digits, for tables of calls."""
    for unit, size in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        value = ns / size
        if value < 999.5 or unit == "ms":
            return f"{value:.{0 if value >= 99.95 or unit == 'ns' else 1 if value >= 9.995 else 2}f} {unit}"
    raise AssertionError("unreachable")


def spread(ns: Mapping[str, float]) -> str:
    """A median, with the 10th and the 90th percentile in parentheses."""
    return f"{duration(ns['median'])} ({duration(ns['p10'])} to {duration(ns['p90'])})"
