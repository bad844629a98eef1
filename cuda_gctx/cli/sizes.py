"""``cuda-gctx sizes``: every size that one partition can have."""

from __future__ import annotations

from dataclasses import asdict

import click

from cuda_gctx import Device
from cuda_gctx.cli._options import on_device
from cuda_gctx.cli._output import console, heading, on_what, table, write_json


@click.command()
@on_device
def sizes(device: Device, as_json: bool) -> None:
    """Lists every size that one partition can have.

    The driver is asked about each. Aligned sizes are what a number of SMs is rounded up to. The others need backfill,
    and have less room for clusters.
    """
    found = device.partition_sizes()
    if as_json:
        write_json("sizes", {**on_what(device), "sizes": [asdict(size) for size in found]})
        return
    out = console()
    out.print(heading(device))
    rows = [
        (size.sm_count, "yes" if size.aligned else "no", f"up to {size.cluster_sms} SMs", size.strategy)
        for size in found
    ]
    out.print(table(("SMs", "aligned", "clusters", "strategy"), rows))
