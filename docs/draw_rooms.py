"""Draws the rooms of the package, docs/images/rooms.svg, from the order that tests/house/test_arrows.py holds.

    python docs/draw_rooms.py [--check]

An arrow means "may use". Arrows that follow from others are left out. With --check, nothing is written, and the exit
status is 1 if the picture is out of date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cuda_gctx.draw.svg import Drawing

REPOSITORY = Path(__file__).resolve().parents[1]
ORDER = REPOSITORY / "tests" / "house" / "test_arrows.py"
PICTURE = REPOSITORY / "docs" / "images" / "rooms.svg"
LEFT_OUT = {"_cpp/tests", "sim/_cpp/tests"}

WIDTH, HEIGHT = 780, 836
BOX_WIDTH, BOX_HEIGHT = 178, 42


class Box(NamedTuple):
    """A room: the middle of its top edge, and what is in it."""

    x: float
    y: float
    about: str

    @property
    def bottom(self) -> float:
        return self.y + BOX_HEIGHT


LEFT, MIDDLE, RIGHT = 118, 318, 518
SOFTWARE_DRIVER = 640
BOXES = {
    "cli": Box(MIDDLE, 62, "the command line"),
    "bench": Box(LEFT, 130, "call costs, the demo"),
    "tune": Box(MIDDLE, 130, "the tuner, timelines"),
    "comm": Box(RIGHT, 130, "collectives"),
    "compat": Box(MIDDLE, 198, "drop-ins"),
    "cuda_gctx": Box(MIDDLE, 266, "the public names"),
    "interop": Box(MIDDLE, 334, "torch, CuPy, Numba, NCCL"),
    "partitions": Box(MIDDLE, 402, "layouts, pools, proof"),
    "measure": Box(MIDDLE - 104, 470, "the measuring loop"),
    "draw": Box(MIDDLE + 104, 470, "SVG pictures"),
    "sim": Box(SOFTWARE_DRIVER, 470, "sessions, pytest plugin"),
    "_core": Box(MIDDLE, 538, "Cython classes"),
    "_cpp/handles": Box(MIDDLE, 624, "boxes, registries, claims"),
    "_cpp/resources": Box(MIDDLE, 686, "splits and overlap"),
    "_cpp/driver": Box(MIDDLE, 748, "the table of functions"),
    "sim/_cpp/calls": Box(SOFTWARE_DRIVER, 624, "a file for each group"),
    "sim/_cpp/machine": Box(SOFTWARE_DRIVER, 686, "objects, clock, ledger"),
    "sim/_cpp/abi": Box(SOFTWARE_DRIVER - 62, 748, "the interface"),
    "sim/_cpp/chip": Box(SOFTWARE_DRIVER + 62, 748, "the SMs"),
}
LINE = "bar"  # the darker grey
NARROW = {"sim/_cpp/abi", "sim/_cpp/chip"}


def order() -> dict[str, set[str]]:
    """MAY_USE of the test, which is not a module that can be imported."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(ORDER.read_text()).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(target, ast.Name) and target.id in ("CORE", "SOFTWARE_DRIVER", "BASE", "MAY_USE"):
                exec(compile(ast.Module([node], []), str(ORDER), "exec"), {}, names)
    return names["MAY_USE"]  # type: ignore[return-value]


def direct(allowed: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""

    def reached(room: str) -> set[str]:
        return {below for other in allowed[room] for below in {other} | reached(other)}

    return [
        (room, other)
        for room in sorted(allowed)
        for other in sorted(allowed[room])
        if not any(other in reached(between) for between in allowed[room] - {other})
    ]


def arrow(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    drawing.line(x1, y1, x2, y2, LINE)
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    for side in (-0.5, 0.5):
        drawing.line(x2, y2, x2 - 8 * (dx + side * dy), y2 - 8 * (dy - side * dx), LINE)


def between(drawing: Drawing, upper: str, lower: str) -> None:
    """An arrow from the bottom of one room to the top of another, or from side to side."""
    one, other = BOXES[upper], BOXES[lower]
    if one.y == other.y:
        arrow(drawing, one.x - width(upper) / 2, one.y + BOX_HEIGHT / 2, other.x + width(lower) / 2, other.y + 21)
    elif one.x - other.x > 300:
        arrow(drawing, one.x, one.bottom, other.x + width(lower) / 2, other.y + BOX_HEIGHT / 2)
    elif other.x - one.x > 300:
        # Around the boxes between them.
        drawing.line(one.x + width(upper) / 2, one.y + BOX_HEIGHT / 2, other.x + 40, one.y + BOX_HEIGHT / 2, LINE)
        arrow(drawing, other.x + 40, one.y + BOX_HEIGHT / 2, other.x + 40, other.y)
    else:
        arrow(drawing, one.x, one.bottom, other.x, other.y)


def width(room: str) -> float:
    return BOX_WIDTH * 0.66 if room in NARROW else BOX_WIDTH


def picture() -> str:
    drawing = Drawing("The rooms of cuda_gctx")
    drawing.text(20, 30, "The rooms of cuda_gctx", size=16, bold=True)
    drawing.text(20, 48, "An arrow means: may use. Rooms may also use what those below them use.", kind="faint")
    for x, words in ((MIDDLE, "libcuda_gctx.so"), (SOFTWARE_DRIVER, "libcuda_gctx_sim.so")):
        drawing.rectangle(x - 130, 594, 260, 208, kind="panel", corner=8)
        drawing.text(x - 120, 612, words, kind="faint")
    drawing.text(
        MIDDLE - 130,
        822,
        "The core opens libcuda.so.1 or the software driver: both have the driver's C interface.",
        kind="faint",
    )
    allowed = {room: below - LEFT_OUT for room, below in order().items() if room not in LEFT_OUT}
    for upper, lower in direct(allowed):
        between(drawing, upper, lower)
    for room in allowed:
        box = BOXES[room]
        drawing.rectangle(box.x - width(room) / 2, box.y, width(room), BOX_HEIGHT, kind="empty", corner=6)
        name = room.removeprefix("sim/").removeprefix("_cpp/")
        drawing.text(box.x, box.y + 18, name, size=13, bold=True, anchor="middle")
        drawing.text(box.x, box.y + 34, box.about, size=11, kind="faint", anchor="middle")
    return drawing.svg(WIDTH, HEIGHT) + "\n"


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if PICTURE.read_text() == picture() else f"{PICTURE} is out of date: python docs/draw_rooms.py")
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
