"""``cuda-gctx verify``: open partitions and verify which SMs they run on."""

from __future__ import annotations

import json
from functools import partial
from itertools import cycle
from pathlib import Path

import click
from rich.text import Text

from cuda_gctx import CUDAError, Device, IsolationError, Layout
from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import LayoutCommand, OutputFile, on_device
from cuda_gctx.cli._output import console, on_what, show_report, write_file, write_json
from cuda_gctx.cli._requests import layout_argument
from cuda_gctx.partitions import open_layout
from cuda_gctx.partitions.sm_map import SHARED, SMMap

# A small and a large partition, which every card can provide.
DEFAULT = Layout(small=0.25, large=None)

# For terminals with 16 colours, where those of the pictures would collapse to a few. Red is reserved for shared SMs.
HUES = ("blue", "green", "yellow", "magenta", "cyan")
SIXTEEN = (*HUES, *(f"bright_{hue}" for hue in HUES))


def _coloured(picture: SMMap, terminal: str | None, width: int) -> Text:
    """The SM map in the colours of the pictures, as far as the terminal supports them."""
    few = terminal in ("standard", "windows")
    palette = cycle(SIXTEEN) if few else picture.colours.values()
    colours = {**dict(zip(picture.letters.values(), palette, strict=False)), SHARED: "bold red"}
    shown = Text()
    for number, line in enumerate(picture.lines(width)):
        shown.append("\n" if number else "")
        for text, mark in line:
            shown.append(text, colours.get(mark))
    return shown


@click.command(cls=LayoutCommand)
@partial(layout_argument, required=False)
@click.option("--svg", type=OutputFile(), help="Write the SM map as an SVG picture.")
@click.option("--html", type=OutputFile(), help="Write the SM map as an HTML page.")
@on_device
def verify(device: Device, as_json: bool, layout: Layout | None, svg: Path | None, html: Path | None) -> None:
    """Open partitions and verify which SMs they run on.

    A probe kernel reports the SMs that each partition runs on.

    LAYOUT has the same form as for plan (default: small=0.25 large=rest). The exit status is 1 if the partitions are
    not isolated.

    \b
    Examples:
      cuda-gctx verify control=16 rest --svg map.svg
    """
    with open_layout(device, layout or DEFAULT) as parts:
        try:
            report = parts.verify()
        except IsolationError as error:
            report = error.report
        except CUDAError:
            raise
        except RuntimeError as error:  # the probe did not finish in time
            raise Failure(str(error)) from None
        head = on_what(device)
    picture = report.sm_map()
    if as_json:
        write_json("verify", {**head, "isolated": not report.problems, "report": json.loads(report.to_json())})
    else:
        show_report(str(report))
        out = console()
        out.print()
        out.print(_coloured(picture, out.color_system, out.width), soft_wrap=True)
    if svg is not None:
        write_file(svg, picture.svg())
    if html is not None:
        write_file(html, picture.html())
    if report.problems:
        raise Failure("not isolated: " + "; ".join(report.problems))
