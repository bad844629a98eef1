"""``cuda-gctx mps``: the MPS settings that give each partition of a layout its own process."""

from __future__ import annotations

from functools import partial

import click

from cuda_gctx import Device, Layout
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import LayoutCommand, on_device
from cuda_gctx.cli._output import on_what, write_json
from cuda_gctx.cli._requests import layout_argument
from cuda_gctx.interop.mps import mps_plan


@click.command(cls=LayoutCommand)
@partial(layout_argument, required=True)
@on_device
def mps(device: Device, as_json: bool, layout: Layout) -> None:
    """Print the MPS settings that give each partition its own process.

    Prints the environment for percentages, the commands for static partitions, and the file of MPS v3. Starts nothing.
    LAYOUT has the same form as for plan.

    \b
    Examples:
      cuda-gctx mps control=16 rest
    """
    try:
        planned = mps_plan(device, layout)
    except ValueError as error:
        raise Failure(str(error)) from None
    if as_json:
        write_json("mps", {**on_what(device), "plan": planned.to_dict()})
    else:
        click.echo(str(planned), nl=False)
