"""Draws the rooms of the package, docs/images/rooms.svg, from the uses that tests/house/arrows.py reads.

    python docs/draw_rooms.py

An arrow means "uses". A room that is used through others is not connected again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cuda_gctx.draw.svg import Drawing

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "house"))

from arrows import PROGRAMS, arrows, is_late, room  # noqa: E402

PICTURE = REPOSITORY / "docs" / "images" / "rooms.svg"
LEFT_OUT = {*PROGRAMS, "extending", "_cpp/tests"}

WIDTH, HEIGHT = 780, 764
BOX_WIDTH, BOX_HEIGHT = 178, 42


class Box(NamedTuple):
    """A room: the middle of its top edge, and what is in it."""

    x: float
    y: float
    about: str

    @property
    def bottom(self) -> float:
        return self.y + BOX_HEIGHT


FIRST, SECOND, THIRD, FOURTH = 123, 309, 495, 681
CORE = 440
BOXES = {
    "cli": Box(SECOND, 62, "the command line"),
    "comm": Box(THIRD, 62, "collectives"),
    "tune": Box(SECOND, 130, "the tuner, timelines"),
    "cuda_gctx": Box(THIRD, 198, "the public names"),
    "compat": Box(FOURTH, 198, "drop-ins"),
    "interpose": Box(FIRST, 130, "unmodified programs"),
    "interop": Box(THIRD, 266, "torch, CuPy, Numba, NCCL"),
    "measure": Box(CORE - 95, 334, "the measuring loop"),
    "partitions": Box(CORE + 100, 402, "layouts, pools, proof"),
    "draw": Box(FOURTH, 470, "SVG pictures"),
    "_core": Box(CORE, 470, "Cython classes"),
    "_cpp/handles": Box(CORE, 556, "boxes, registries, claims"),
    "_cpp/resources": Box(CORE, 618, "splits and overlap"),
    "_cpp/driver": Box(CORE, 680, "the table of functions"),
}
LINE = "bar"  # the darker grey


def uses() -> dict[str, set[str]]:
    """The rooms that each room of the package uses, without late imports."""
    found: dict[str, set[str]] = {}
    for file, target in arrows(REPOSITORY):
        name = room(file)
        if {name, room(target)}.isdisjoint(LEFT_OUT) and not is_late(
            (file, target)
        ):
            found.setdefault(name, set()).update({room(target)} - {name})
            found.setdefault(room(target), set())
    return found


def direct(used: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows to rooms that are not also used through others."""

    def reached(name: str) -> set[str]:
        return {
            below for other in used[name] for below in {other} | reached(other)
        }

    return [
        (name, other)
        for name in sorted(used)
        for other in sorted(used[name])
        if not any(other in reached(between) for between in used[name] - {other})
    ]


def arrow(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    drawing.line(x1, y1, x2, y2, LINE)
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    for side in (-0.5, 0.5):
        drawing.line(
            x2, y2, x2 - 8 * (dx + side * dy), y2 - 8 * (dy - side * dx), LINE
        )


def between(drawing: Drawing, upper: str, lower: str) -> None:
    """An arrow from the bottom of one room to the top of another."""
    one, other = BOXES[upper], BOXES[lower]
    arrow(drawing, one.x, one.bottom, other.x, other.y)


def picture() -> str:
    drawing = Drawing("The rooms of cuda_gctx")
    drawing.text(20, 30, "The rooms of cuda_gctx", size=16, bold=True)
    drawing.text(
        20,
        48,
        "An arrow means: uses. What a room uses through others too is not drawn twice.",
        kind="faint",
    )
    drawing.rectangle(CORE - 130, 458, 260, 208, kind="panel", corner=8)
    drawing.text(CORE - 120, 476, "libcuda_gctx.so", kind="faint")
    drawing.text(
        CORE - 130,
        684,
        "The core opens libcuda.so.1 or the software driver: both have the driver's C interface.",
        kind="faint",
    )
    used = uses()
    for upper, lower in direct(used):
        between(drawing, upper, lower)
    for name in sorted(used):
        box = BOXES[name]
        drawing.rectangle(
            box.x - BOX_WIDTH / 2,
            box.y,
            BOX_WIDTH,
            BOX_HEIGHT,
            kind="empty",
            corner=6,
        )
        title = name.removeprefix("_cpp/")
        drawing.text(
            box.x, box.y + 18, title, size=13, bold=True, anchor="middle"
        )
        drawing.text(
            box.x, box.y + 34, box.about, size=11, kind="faint", anchor="middle"
        )
    return drawing.svg(WIDTH, HEIGHT) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture())
