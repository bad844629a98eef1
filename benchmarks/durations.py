"""Durations in tables of calls."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["duration", "spread"]


def duration(ns: float) -> str:
    """A duration with a suitable unit and three digits."""
    for unit, size in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        value = ns / size
        if value < 999.5 or unit == "ms":
            return f"{value:.{0 if value >= 99.95 or unit == 'ns' else 1 if value >= 9.995 else 2}f} {unit}"
    raise AssertionError("unreachable")


def spread(ns: Mapping[str, float]) -> str:
    """A median, with the 10th and the 90th percentile in parentheses."""
    return f"{duration(ns['median'])} ({duration(ns['p10'])} to {duration(ns['p90'])})"
