"""``cuda-gctx verify``: opens partitions, and proves where they run."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import cycle, groupby
from pathlib import Path

import click
from rich.text import Text

from cuda_gctx import CUDAError, Device, IsolationError, Layout
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import OutputFile, on_device
from cuda_gctx.cli._output import console, on_what, write_file, write_json
from cuda_gctx.cli._requests import layout_argument
from cuda_gctx.draw.sm_map import SHARED, SMMap

# A small part beside a large one, which every card can give.
DEFAULT = Layout(small=0.25, large=None)

# For terminals of 16 colours, where those of the pictures would become the same few. Without red, which is for shared.
HUES = ("blue", "green", "yellow", "magenta", "cyan")
SIXTEEN = (*HUES, *(f"bright_{hue}" for hue in HUES))


def _coloured(picture: SMMap, terminal: str | None) -> Text:
    """The map of SMs as it is printed, each context in its colour of the pictures where the terminal has it."""
    few = terminal in ("standard", "windows")
    own = cycle(SIXTEEN) if few else picture.colours.values()
    colours = {**dict(zip(picture.letters.values(), own, strict=False)), SHARED: "bold red"}
    *lines, legend = str(picture).splitlines()
    start = max((len(row.label) for row in picture.rows()), default=0) + 2
    shown = Text()
    for line in lines:
        marks, gap, behind = line[start:].partition("  ")
        shown.append(line[:start])
        for mark, same in groupby(marks):
            shown.append("".join(same), colours.get(mark))
        shown.append(f"{gap}{behind}\n")
    for entry in re.split("(, )", legend):
        shown.append(entry[:1], colours.get(entry[:1]))
        shown.append(entry[1:])
    return shown


@click.command()
@partial(layout_argument, required=False)
@click.option("--svg", type=OutputFile(), help="Write the map of SMs as a picture.")
@click.option("--html", type=OutputFile(), help="Write it as a page.")
@on_device
def verify(device: Device, as_json: bool, layout: Layout | None, svg: Path | None, html: Path | None) -> None:
    """Opens partitions, and proves where they run.

    A kernel on every SM tells whether each partition runs on its own.

    LAYOUT is written as for plan; without one it is small=0.25 large=rest. Ends with status 1 if they are not
    isolated.
    """
    with device.partition(layout or DEFAULT) as parts:
        try:
            report = parts.verify()
        except IsolationError as error:
            report = error.report
        except CUDAError:
            raise
        except RuntimeError as error:  # the probe did not finish in time
            raise Failure(str(error)) from None
        told = on_what(device)
    picture = report.sm_map()
    if as_json:
        write_json("verify", {**told, "isolated": not report.problems, "report": json.loads(report.to_json())})
    else:
        out = console()
        out.print(str(report), soft_wrap=True)
        out.print()
        out.print(_coloured(picture, out.color_system), soft_wrap=True)
    if svg is not None:
        write_file(svg, picture.svg())
    if html is not None:
        write_file(html, picture.html())
    if report.problems:
        raise Failure("not isolated: " + "; ".join(report.problems))
