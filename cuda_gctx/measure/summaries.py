"""Summaries of samples, for reports and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_gctx.measure.statistics import median, quantile

__all__ = ["Spread", "summary"]


@dataclass(frozen=True)
class Spread:
    """Samples in seconds: their value, 10th and 90th percentile, and number.

    value: the median of the samples, or another estimate, such as a quantile of all calls.
    """

    value: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float], value: float | None = None) -> Spread:
        """The spread of samples.

        values: the samples, in any order and unit. value: the estimate, if it is not their median.
        """
        value = median(values) if value is None else value
        return cls(value, quantile(values, 0.1), quantile(values, 0.9), len(values))


def summary(values: Sequence[float], unit: float = 1.0, digits: int | None = None) -> dict[str, float]:
    """Samples for a document: median, extremes and percentiles, divided by `unit`, rounded to `digits`."""
    statistics = {
        "median": median(values),
        "min": min(values),
        "p10": quantile(values, 0.1),
        "p90": quantile(values, 0.9),
        "p99": quantile(values, 0.99),
        "max": max(values),
    }
    scaled = {name: float(value) / unit for name, value in statistics.items()}
    if digits is not None:
        scaled = {name: round(value, digits) for name, value in scaled.items()}
    return {**scaled, "samples": len(values)}
