"""Pictures as SVG text: shapes with hover texts, in colours that colour-blind people can tell apart, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Drawing", "colours_of", "ink_on", "page"]

# The palette of Okabe and Ito, blue and orange first.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
LIGHT = {"paper": "#ffffff", "panel": "#f3f5f7", "line": "#d0d7de", "ink": "#1f2328", "faint": "#59636e"}
DARK = {"paper": "#0d1117", "panel": "#1a2028", "line": "#3d444d", "ink": "#e6edf3", "faint": "#9da7b1"}


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _shade(colour: str, turn: int) -> str:
    """The colour as it is for the first turn through the palette, darker for each further one."""
    return "#" + "".join(f"{round(part * 0.55**turn):02x}" for part in _channels(colour))


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order of the names."""
    return {name: _shade(PALETTE[i % len(PALETTE)], i // len(PALETTE)) for i, name in enumerate(dict.fromkeys(names))}


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = _channels(colour)
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#1f2328"


def number(value: float) -> str:
    """A coordinate, as short as it can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _style(colours: dict[str, str]) -> str:
    return (
        f".gctx-paper{{fill:{colours['paper']};stroke:{colours['line']}}}"
        f".gctx-panel{{fill:{colours['panel']};stroke:{colours['line']}}}"
        f".gctx-line{{stroke:{colours['line']}}}"
        f".gctx-empty{{fill:{colours['paper']};stroke:{colours['faint']}}}"
        f".gctx-ink{{fill:{colours['ink']}}}"
        f".gctx-faint{{fill:{colours['faint']}}}"
    )


# The classes have a prefix of their own, because in a notebook a style reaches the whole page.
STYLE = (
    f".gctx-ink,.gctx-faint,.gctx-mark{{font-family:{FONT}}}"
    + _style(LIGHT)
    + f"@media (prefers-color-scheme:dark){{{_style(DARK)}}}"
    + ".gctx-hover:hover{stroke:#d55e00;stroke-width:2}"
)


class Drawing:
    """An SVG picture on a sheet of its own colour, with a title. Shapes stand in the order in which they are added."""

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
        """A box with a colour, or of a kind: "paper", "panel", "empty". `hover` is told where the pointer rests."""
        colour = f' fill="{fill}"' if fill else ""
        told = f"<title>{escape(hover)}</title></rect>" if hover else "</rect>"
        self._shapes.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'rx="{number(corner)}" class="gctx-{kind}"{colour}>{told}'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self._shapes.append(
            f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="gctx-line"/>'
        )

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
    ) -> None:
        """Words on a baseline: "ink", "faint", or "mark" with a colour, which lets the pointer through to its box."""
        weight = ' font-weight="600"' if bold else ""
        colour = f' fill="{fill}" pointer-events="none"' if fill else ""
        self._shapes.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" text-anchor="{anchor}" '
            f'class="gctx-{kind}"{weight}{colour}>{escape(words)}</text>'
        )

    def svg(self, width: float, height: float) -> str:
        """The picture, of that size."""
        w, h = number(width), number(height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
                f'aria-label="{escape(self.title)}" font-family="{FONT}">',
                f"<style>{STYLE}</style>",
                f'<rect x="0.5" y="0.5" width="{number(width - 1)}" height="{number(height - 1)}" rx="8" '
                'class="gctx-paper"/>',
                *self._shapes,
                "</svg>",
            ]
        )


def legend(drawing: Drawing, x: float, y: float, entries: Iterable[tuple[str | None, str]], limit: float) -> float:
    """Swatches (None: an empty one) with words, in rows up to `limit`; gives the height that they take."""
    at, row = x, y
    for fill, words in entries:
        width = 26 + text_width(words, 12)
        if at > x and at + width > limit:
            at, row = x, row + 20
        drawing.rectangle(at, row, 13, 13, fill=fill, kind="hover" if fill else "empty", corner=3)
        drawing.text(at + 19, row + 11, words)
        at += width + 14
    return row + 20 - y


def text_width(words: str, size: float) -> float:
    """About how wide words are; fonts differ, so it is on the safe side."""
    return len(words) * size * 0.55


def page(title: str, svg: str) -> str:
    """A picture as a page of its own, with nothing to load from anywhere."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        "<style>:root{color-scheme:light dark}body{margin:16px;overflow-x:auto}"
        f"body{{background:{LIGHT['panel']}}}"
        f"@media (prefers-color-scheme:dark){{body{{background:#010409}}}}</style>\n"
        f"</head>\n<body>\n{svg}\n</body>\n</html>\n"
    )
