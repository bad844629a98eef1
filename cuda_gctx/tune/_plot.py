"""The picture of a report: a bar for each plan, the bound, and what the parts take in it."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from cuda_gctx.draw.svg import colours_of
from cuda_gctx.tune._objectives import TailLatency, Throughput
from cuda_gctx.tune._report import Report, Result, names_of_plans, title_of, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot"]

MOST_BARS = 14
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
CHOSEN, OTHER, BOUND = "#1f2328", "#b4bcc4", "#d55e00"
LONGEST_TITLE, LONGEST_LABEL = 100, 40
# The axis ends a little behind the sequence and the choice: far slower plans are cut off, and say so.
BEHIND = 1.6


def plot(report: Report, path: str | PathLike[str] | None) -> Figure:
    """The picture of a report, also written to `path` if one is given."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f'a picture needs matplotlib, which cannot be imported ({error}): pip install "cuda-gctx[plot]"',
            name="plot",
        ) from error

    results = report.foremost(MOST_BARS)
    size, unit = next((known for known in UNITS if report.bound >= known[0]), UNITS[-1])
    figure = Figure(figsize=(9, 1.9 + 0.42 * len(results)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    title = _plain(" beside ".join(report.alone), LONGEST_TITLE)
    figure.suptitle(f"{title}\n{report.device}, driver {report.driver}, {report.date}", fontsize=11)
    limit = _axis(axes, report, results, size)
    _bars(axes, report, results, size, limit)
    if not isinstance(report.objective, TailLatency):
        _parts(axes, report, results, size)
    label = f"bound: {words(report.bound)}"
    axes.axvline(report.bound / size, color=BOUND, linestyle="--", linewidth=1.4, label=label, zorder=4)
    axes.set_xlabel(f"{title_of(report.objective)}, {unit} (black line: p10 to p90)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _plain(text: str, longest: int) -> str:
    """A text of somebody else's as it stands: no mathematics, and no longer than there is room."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return cut.replace("$", r"\$")


def _axis(axes: Any, report: Report, results: Sequence[Result], size: float) -> float:
    """Sets the axis of time, and returns where it ends. That of latencies is logarithmic and cuts nothing off."""
    slowest = max(result.seconds.p90 for result in results) / size
    if isinstance(report.objective, TailLatency):
        limit = slowest * 6
        axes.set_xscale("log")
        axes.set_xlim(report.bound / size / 2, limit)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        return limit
    near = max(r.seconds.p90 for r in results if r.plan == report.choice or r.plan.kind in ("sequence", "streams"))
    limit = min(slowest * 1.18, BEHIND * near / size)
    axes.set_xlim(0, limit)
    return limit


def _bars(axes: Any, report: Report, results: Sequence[Result], size: float, limit: float) -> None:
    rows = range(len(results))
    spreads = [
        [max(0.0, (r.seconds.median - r.seconds.p10) / size) for r in results],
        [max(0.0, (r.seconds.p90 - r.seconds.median) / size) for r in results],
    ]
    axes.barh(
        rows,
        [result.seconds.median / size for result in results],
        height=0.72,
        color=[CHOSEN if result.plan == report.choice else OTHER for result in results],
        xerr=spreads,
        error_kw={"ecolor": "black", "capsize": 3, "linewidth": 1},
    )
    for row, result in enumerate(results):
        text = words(result.seconds.median)
        rates = [(name, part.calls_per_second) for name, part in result.parts.items()]
        if isinstance(report.objective, TailLatency):
            told = (f"; {_plain(name, LONGEST_LABEL)} {rate:.4g} calls/s" for name, rate in rates if rate is not None)
            text += "".join(told)
        end = result.seconds.p90 / size
        # What is cut off tells its time inside, where there is room.
        cut = end > 0.9 * limit
        axes.annotate(
            f"{text} \N{RIGHTWARDS ARROW}" if end > limit else text,
            (min(end, limit), row - 0.24 if cut else row),
            xytext=(-6 if cut else 6, 0),
            textcoords="offset points",
            ha="right" if cut else "left",
            va="center",
            fontsize=8,
            zorder=5,
        )
    plans, briefly = names_of_plans(report, results)
    axes.set_yticks(list(rows), [_plain(plan, 2 * LONGEST_LABEL) for plan in plans], fontsize=9)
    if briefly:
        axes.set_ylabel("partitions by their sizes, in the order of the title", fontsize=8)
    for label, result in zip(axes.get_yticklabels(), results, strict=True):
        label.set_fontweight("bold" if result.plan == report.choice else "normal")
    axes.invert_yaxis()


def _parts(axes: Any, report: Report, results: Sequence[Result], size: float) -> None:
    """A thin line in each bar for each part: from when it could begin to its end, or what its calls in a mix take."""
    weights = report.objective.weights if isinstance(report.objective, Throughput) else {}
    names = list(report.alone)
    for place, (name, colour) in enumerate(colours_of(names).items()):
        found = [(row, r.parts[name].seconds) for row, r in enumerate(results)]
        lengths = {row: spent.median * weights.get(name, 1) / size for row, spent in found if spent is not None}
        middle = 0.12 + 0.4 * ((place + 0.5) / len(names) - 0.5)
        axes.barh(
            [row + middle for row in lengths],
            list(lengths.values()),
            height=0.3 / len(names),
            color=colour,
            # Without the blank, matplotlib leaves out what begins with an underscore.
            label=f" {_plain(name, LONGEST_LABEL)}",
            zorder=3,
        )
