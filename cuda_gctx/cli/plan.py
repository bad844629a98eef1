"""``cuda-gctx plan``: show the partitions of a layout without creating them."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from cuda_gctx import Device, Layout, SMResourceOptions, SplitError
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import LayoutCommand, on_device
from cuda_gctx.cli._output import ResultTable, console, heading, on_what, write_json
from cuda_gctx.cli._requests import layout_argument
from cuda_gctx.partitions import BACKGROUND, REST, PlannedPartition
from cuda_gctx.partitions import plan as plan_layout


def _fitting(error: ValueError) -> dict[str, Any] | None:
    """The options of a split that would fit."""
    suggestion = error.suggestion if isinstance(error, SplitError) else None
    if not isinstance(suggestion, SMResourceOptions):
        return None
    fields = (
        "count",
        "coscheduled_sm_count",
        "preferred_coscheduled_sm_count",
        "backfill",
        "locality_domain",
        "supplemental_sms",
    )
    return {field: getattr(suggestion, field) for field in fields}


def _show(device: Device, planned: tuple[PlannedPartition, ...]) -> None:
    out = console()
    out.print(heading(device))
    rows = [
        (
            part.name,
            "" if part.name == BACKGROUND else REST if part.requested is None else part.requested,
            part.sm_count,
            part.strategy,
        )
        for part in planned
    ]
    out.print(ResultTable(("partition", "requested", "SMs", "strategy"), rows))
    left = _left(planned)
    out.print(
        f"{left} of {device.sm_count} SMs remain"
        + (" for the background partition" if left else ": there is no background partition")
    )


def _left(planned: tuple[PlannedPartition, ...]) -> int:
    return sum(part.sm_count for part in planned if part.name == BACKGROUND)


@click.command(cls=LayoutCommand)
@partial(layout_argument, required=True)
@on_device
def plan(device: Device, as_json: bool, layout: Layout) -> None:
    """Show the partitions of a layout without creating them.

    LAYOUT has one word for each partition: a number of SMs, a share of the device below 1, or "rest" for all
    remaining SMs. Words can have names.

    The strategy says how the partition is formed: structured (by the structured split of driver 13.1 and newer),
    by-count (one of several equal units), composed (of several units), fine (of pairs of SMs), or bisected (by two
    splits).

    \b
    Examples:
      cuda-gctx plan control=16 rest
      cuda-gctx plan 0.25 64 --profile b200 --driver 13.4
    """
    try:
        planned = plan_layout(device, layout)
    except ValueError as error:
        if as_json:
            write_json("plan", {**on_what(device), "fits": False, "reason": str(error), "suggestion": _fitting(error)})
        raise Failure(str(error)) from None
    if not as_json:
        _show(device, planned)
        return
    partitions = [
        {
            "name": part.name,
            "asked": part.requested,
            "sm_count": part.sm_count,
            "cluster_sms": part.coscheduled_alignment,
            "strategy": part.strategy,
        }
        for part in planned
    ]
    write_json("plan", {**on_what(device), "fits": True, "partitions": partitions, "left": _left(planned)})
