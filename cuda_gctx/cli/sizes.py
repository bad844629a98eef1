"""``cuda-gctx sizes``: list every size that one partition can have."""

from __future__ import annotations

from dataclasses import asdict

import click

from cuda_gctx import Device
from cuda_gctx.cli._options import on_device
from cuda_gctx.cli._output import ResultTable, console, heading, on_what, write_json


@click.command()
@click.option("--all", "unaligned", is_flag=True, help="Also list the sizes that need backfill.")
@on_device
def sizes(device: Device, as_json: bool, unaligned: bool) -> None:
    """List the sizes that a partition can have.

    Queries the driver for each size. SM counts are rounded up to an aligned size. Other sizes need backfill, and
    support only smaller thread-block clusters. "cuda-gctx plan --help" explains the strategies. JSON output always
    contains all sizes.

    \b
    Examples:
      cuda-gctx sizes --profile rtx5080
    """
    possible = device.partition_sizes()
    if as_json:
        write_json("sizes", {**on_what(device), "sizes": [asdict(size) for size in possible]})
        return
    out = console()
    out.print(heading(device))
    rows = [
        (size.sm_count, "yes" if size.aligned else "no", f"up to {size.cluster_sms} SMs", size.strategy)
        for size in sorted(possible, key=lambda size: not size.aligned)
        if size.aligned or unaligned
    ]
    out.print(ResultTable(("SMs", "aligned", "clusters", "strategy"), rows))
    hidden = len(possible) - len(rows)
    if hidden:
        out.print(f"\n{hidden} more sizes need backfill: cuda-gctx sizes --all lists them")
