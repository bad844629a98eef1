"""Pictures as SVG text: shapes with hover texts, in colours for the colour-blind too, for light and dark mode."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from itertools import accumulate
from math import floor, inf, log10
from os import PathLike
from typing import NamedTuple
from unicodedata import east_asian_width

__all__ = [
    "Drawing",
    "Entry",
    "Pictured",
    "colours_of",
    "heading",
    "ink_on",
    "legend",
    "lines_of",
    "page",
    "text_width",
    "written",
]

# The palette of Okabe and Ito, blue and orange first; the yellow is darker, to be seen on a light sheet.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#d4c93a")
# White is easier to read on these.
DARK_COLOURS = ("#0072b2",)
MARGIN = 20  # around a picture
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
LIGHT = {"paper": "#ffffff", "panel": "#f3f5f7", "line": "#d0d7de", "ink": "#1f2328", "faint": "#59636e"}
DARK = {"paper": "#0d1117", "panel": "#1a2028", "line": "#3d444d", "ink": "#e6edf3", "faint": "#9da7b1"}

# What no XML 1.0 document can hold, not even as a reference.
# All but "[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", which takes eight times as long to compile.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _xml(words: str) -> str:
    """Words as text of SVG and HTML; a control character becomes U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", words))


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order of the names. With more names than colours, colours are repeated."""
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(dict.fromkeys(names))}


def ink_on(colour: str) -> str:
    """White or nearly black, whichever is easier to read on a colour of the palette."""
    return "#ffffff" if colour in DARK_COLOURS else LIGHT["ink"]


def number(value: float) -> str:
    """A coordinate, as short as it can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _style(colours: dict[str, str]) -> str:
    return (
        f".gctx-paper{{fill:{colours['paper']};stroke:{colours['line']}}}"
        f".gctx-panel{{fill:{colours['panel']};stroke:{colours['line']}}}"
        f".gctx-line{{stroke:{colours['line']}}}"
        f".gctx-empty{{fill:{colours['paper']};stroke:{colours['faint']}}}"
        f".gctx-cell{{stroke:{colours['faint']}}}"
        f".gctx-ink{{fill:{colours['ink']}}}"
        f".gctx-label{{fill:{colours['ink']};stroke:{colours['paper']};stroke-width:4;paint-order:stroke}}"
        f".gctx-faint{{fill:{colours['faint']}}}"
        f".gctx-bar{{fill:{colours['line']};stroke:{colours['faint']}}}"
        f".gctx-best{{fill:{colours['ink']}}}"
        f".gctx-spread{{fill:{colours['paper']};stroke:{colours['ink']}}}"
    )


# The classes have a prefix of their own, because in a notebook a style reaches the whole page.
STYLE = (
    f".gctx-ink,.gctx-label,.gctx-faint,.gctx-mark{{font-family:{FONT}}}"
    + _style(LIGHT)
    + f"@media (prefers-color-scheme:dark){{{_style(DARK)}}}"
    + ".gctx-bound{stroke:#d55e00;fill:#d55e00;stroke-width:1.5}line.gctx-bound{stroke-dasharray:4 3}"
    + ".gctx-hover:hover,.gctx-cell:hover{stroke:#d55e00;stroke-width:2}"
)


class Drawing:
    """An SVG picture with a background and a title. Later shapes cover earlier ones."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._shapes: list[str] = []

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str | None = None,
        kind: str = "hover",
        corner: float = 0,
        hover: str | None = None,
    ) -> None:
        """A box: with a colour, outlined if of kind "cell"; or of a kind with colours of its own, such as "panel".

        `hover` appears where the pointer rests.
        """
        colour = f' fill="{fill}"' if fill else ""
        title = f"<title>{_xml(hover)}</title></rect>" if hover else "</rect>"
        self._shapes.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'rx="{number(corner)}" class="gctx-{kind}"{colour}>{title}'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, kind: str = "line", *, colour: str | None = None
    ) -> None:
        """A line of a kind, "line" or "bound", or with a colour."""
        look = f'class="gctx-{kind}"' if colour is None else f'stroke="{colour}" stroke-width="2"'
        self._shapes.append(f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" {look}/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12,
        kind: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        fill: str | None = None,
        room: float = inf,
        tail: str = "",
    ) -> None:
        """Words on a baseline: "ink", "label" (with a rim of the sheet's colour, over lines), "faint", or "mark" with a
        colour, which lets the pointer through to its box.

        Words that do not fit into `room` are shortened, except for their `tail`, and shown in full on hover.
        """
        wide = 1.15 * size if bold else size
        shown = _shortened(words, wide, room - text_width(tail, wide))
        title = f"<title>{_xml(words + tail)}</title>" if shown != words else ""
        weight = ' font-weight="600"' if bold else ""
        colour = f' fill="{fill}" pointer-events="none"' if fill else ""
        self._shapes.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" text-anchor="{anchor}" '
            f'class="gctx-{kind}"{weight}{colour}>{title}{_xml(shown + tail)}</text>'
        )

    def svg(self, width: float, height: float) -> str:
        """The picture, of that size."""
        w, h = number(width), number(height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
                f'aria-label="{_xml(self.title)}" font-family="{FONT}">',
                f"<style>{STYLE}</style>",
                f'<rect x="0.5" y="0.5" width="{number(width - 1)}" height="{number(height - 1)}" rx="8" '
                'class="gctx-paper"/>',
                *self._shapes,
                "</svg>",
            ]
        )


class Entry(NamedTuple):
    """An entry of a legend: a swatch with a letter in it, a name, and a text behind the name.

    fill: the colour of the swatch; None for an empty one, or for one of a `kind` that has colours of its own.
    """

    fill: str | None
    letter: str
    name: str
    tail: str
    kind: str = "empty"

    @property
    def width(self) -> float:
        return 26 + text_width(self.name + self.tail, 12)


def legend(drawing: Drawing, x: float, y: float, entries: Iterable[Entry], limit: float) -> float:
    """Draw the entries in one row, or in columns if one row is too short; returns their height."""
    at, row = x, y
    shown = list(entries)
    widths = [entry.width + 14 for entry in shown]
    column = max(widths, default=0) if sum(widths) > limit - x else None
    for entry in shown:
        advance = entry.width + 14 if column is None else column
        if at > x and at + (entry.width if column is None else column) > limit:
            at, row = x, row + 20
        drawing.rectangle(at, row, 13, 13, fill=entry.fill, kind="cell" if entry.fill else entry.kind, corner=3)
        if entry.fill:
            ink = ink_on(entry.fill)
            drawing.text(at + 6.5, row + 10, entry.letter, size=10, kind="mark", anchor="middle", bold=True, fill=ink)
        drawing.text(at + 19, row + 11, entry.name, room=limit - at - 19, tail=entry.tail)
        at += advance
    return row + 20 - y


def round_ticks(most: float, number: int) -> list[float]:
    """Round values from 0 to `most` for an axis, at most so many above 0."""
    rough = most / number
    power = 10.0 ** floor(log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
    return [step * count for count in range(number + 1) if step * count <= most]


def heading(drawing: Drawing, title: str, subtitle: str, width: float, tail: str = "") -> None:
    """Draw the title of a picture of this width, and a line below it. A line that is cut still ends with `tail`."""
    room = width - 2 * MARGIN
    drawing.text(MARGIN, 32, title, size=17, bold=True, room=room)
    drawing.text(MARGIN, 51, subtitle, kind="faint", room=room, tail=tail)


def text_width(words: str, size: float) -> float:
    """The approximate width of words; fonts differ, so it is an upper estimate."""
    return size * sum(1.1 if east_asian_width(c) in "WF" else 0.75 if c.isupper() else 0.55 for c in words)


def lines_of(words: str, size: float, room: float) -> list[str]:
    """Words in lines that fit into `room`. A longer word gets a separate line."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and text_width(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _shortened(words: str, size: float, room: float) -> str:
    if text_width(words, size) <= room:
        return words
    ends = accumulate(text_width(letter, size) for letter in words)
    return words[: sum(end <= room - size for end in ends)] + "\N{HORIZONTAL ELLIPSIS}"


def written(text: str, path: str | PathLike[str] | None) -> str:
    """The text, also written to a file if a path is given."""
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return text


def page(title: str, svg: str) -> str:
    """A picture as an HTML page that loads no other files and scales to the window."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_xml(title)}</title>\n"
        "<style>:root{color-scheme:light dark}body{margin:16px}"
        "svg{max-width:100%;height:auto}"
        f"body{{background:{LIGHT['panel']}}}"
        f"@media (prefers-color-scheme:dark){{body{{background:#010409}}}}</style>\n"
        f"</head>\n<body>\n{svg}\n</body>\n</html>\n"
    )


class Pictured:
    """A base class for objects with a picture. A subclass draws it, and defines the title of its page."""

    def _picture(self) -> str:
        raise NotImplementedError

    def _title_of_page(self) -> str:
        raise NotImplementedError

    def svg(self, path: str | PathLike[str] | None = None) -> str:
        """The picture as SVG; also written to `path`."""
        return written(self._picture(), path)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The picture as an HTML page that loads no other files; also written to `path`."""
        return written(page(self._title_of_page(), self._picture()), path)

    def _repr_html_(self) -> str:
        return self._picture()
