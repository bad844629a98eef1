"""Draws the three diagrams of docs/concepts.md.

python docs/draw_concepts.py
"""

from __future__ import annotations

from pathlib import Path

from cuda_gctx.draw.svg import Drawing, text_width

IMAGES = Path(__file__).resolve().parent / "images"
HEIGHT, GAP = 30, 10


def box(
    drawing: Drawing, x: float, y: float, width: float, words: str, kind: str
) -> None:
    drawing.rectangle(x, y, width, HEIGHT, kind=kind, corner=3)
    drawing.text(x + width / 2, y + 20, words, anchor="middle", room=width)


def hierarchy() -> str:
    """SMs belong to a context, streams to a context, kernels to a stream."""
    drawing = Drawing("SMs, contexts, streams and kernels")
    rows = [
        ("SMs", [("SM 0-15", 150), ("SM 16-131", 300)]),
        ("context", [("partition control", 150), ("partition rest", 300)]),
        ("streams", [("stream", 150), ("stream", 145), ("stream", 145)]),
        ("kernels", [("step", 150), ("training", 145), ("logging", 145)]),
    ]
    for number, (name, boxes) in enumerate(rows):
        y = 20 + number * (HEIGHT + GAP)
        drawing.text(90, y + 20, name, anchor="end", bold=True)
        x = 104.0
        for place, (words, width) in enumerate(boxes):
            box(drawing, x, y, width, words, "spread" if place == 0 else "bar")
            x += width + GAP
    return drawing.svg(600, 20 + len(rows) * (HEIGHT + GAP) + 6)


def timeline(
    title: str,
    rows: list[tuple[str, list[tuple[float, float, str, str]]]],
    note: str,
) -> str:
    """Rows of boxes over time. Each box: begin, width, words, kind."""
    drawing = Drawing(title)
    for number, (name, boxes) in enumerate(rows):
        y = 20 + number * (HEIGHT + GAP)
        drawing.text(110, y + 20, name, anchor="end", bold=True)
        for begin, width, words, kind in boxes:
            box(drawing, 124 + begin, y, width, words, kind)
    bottom = 20 + len(rows) * (HEIGHT + GAP)
    drawing.text(16, bottom + 16, note, kind="faint")
    width = max(124 + 460, 32 + text_width(note, 12) * 1.15)
    return drawing.svg(width, bottom + 30)


def switch() -> str:
    rows = [
        (
            "SM 0-15",
            [
                (0, 120, "control", "spread"),
                (124, 120, "control", "spread"),
                (248, 200, "control", "spread"),
            ],
        ),
        (
            "SM 16-63",
            [(0, 240, "bulk kernel", "bar"), (248, 200, "control", "spread")],
        ),
        (
            "SM 64-131",
            [(0, 240, "bulk kernel", "bar"), (248, 200, "bulk kernel", "bar")],
        ),
    ]
    return timeline(
        "A switch",
        rows,
        "After a switch, control waits on the device for the kernel that still has its SMs.",
    )


def overlay() -> str:
    rows = [
        ("SM 0-63", [(60, 60, "step", "spread"), (240, 60, "step", "spread")]),
        (
            "SM 64-131",
            [
                (0, 130, "bulk", "bar"),
                (134, 60, "step", "spread"),
                (198, 240, "bulk", "bar"),
            ],
        ),
    ]
    return timeline(
        "An overlay",
        rows,
        "Bulk work has a partition; the step may use all SMs, with the highest priority.",
    )


if __name__ == "__main__":
    for name, picture in {
        "hierarchy": hierarchy(),
        "switch": switch(),
        "overlay": overlay(),
    }.items():
        (IMAGES / f"concept-{name}.svg").write_text(picture)
