"""The picture of an SM map: a panel per GPC, a row per TPC, and a colour per owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cuda_gctx.draw.svg import MARGIN, Drawing, Entry, Pictured, colours_of, heading, ink_on, legend, text_width

__all__ = ["PictureOfSMs"]

CELL, GAP, PAIR_GAP = 30, 2, 4
PANEL_GAP, PANEL_PAD, PANEL_HEAD = 10, 8, 38
PANELS_OF_A_ROW = 9
LEAST_WIDTH = 560
WIDEST_ENTRY = 780  # of the legend: a longer name is shortened
SHARED, SHARED_COLOUR = "!", "#b00020"


class Cell(Protocol):
    """An SM and its owners."""

    @property
    def sm(self) -> int: ...
    @property
    def owners(self) -> tuple[str, ...]: ...


class Panel(Protocol):
    """The SMs of a GPC, or of another group."""

    @property
    def label(self) -> str: ...
    @property
    def cells(self) -> Sequence[Cell]: ...


def _sms(count: int) -> str:
    return f"{count} SM" if count == 1 else f"{count} SMs"


@dataclass(frozen=True)
class PictureOfSMs(Pictured):
    """The picture of an SM map.

    owners: names with the ids of their SMs. letters: the letter of each owner. has_gpcs: the panels are GPCs.
    """

    device: str
    driver: str
    panels: Sequence[Panel]
    owners: Sequence[tuple[str, Sequence[int]]]
    letters: Mapping[str, str]
    has_gpcs: bool

    def _title_of_page(self) -> str:
        return f"SM map of {self.device}"

    def _picture(self) -> str:
        """Draw a panel per GPC, a row per TPC (two SMs), and hover texts."""
        drawing = Drawing(f"SM map of {self.device}, driver {self.driver}")
        rows = self.panels
        colours = colours_of(name for name, _ in self.owners)
        panel_width = 2 * CELL + GAP + 2 * PANEL_PAD
        across = min(PANELS_OF_A_ROW, max(len(rows), 1))
        note = (
            "Panels are GPCs, detected by where thread-block clusters ran. A row is a TPC: two SMs."
            if self.has_gpcs
            else "The GPCs are not known here: SMs are shown by id, two in a row."
        )
        entries = self._legend(colours)
        width = max(
            2 * MARGIN + across * panel_width + (across - 1) * PANEL_GAP,
            2 * MARGIN + text_width(note, 11),
            2 * MARGIN + min(max((entry.width for entry in entries), default=0), WIDEST_ENTRY),
            LEAST_WIDTH,
        )
        heading(drawing, "SM map", self.device, width, tail=f", driver {self.driver}")
        y: float = 66 + legend(drawing, MARGIN, 66, entries, width - MARGIN) + 6
        for first in range(0, len(rows), across):
            line = rows[first : first + across]
            tall = max((len(row.cells) + 1) // 2 for row in line)
            height = PANEL_HEAD + tall * (CELL + PAIR_GAP) - PAIR_GAP + PANEL_PAD
            for position, row in enumerate(line):
                x = MARGIN + position * (panel_width + PANEL_GAP)
                drawing.rectangle(x, y, panel_width, height, kind="panel", corner=6)
                drawing.text(x + panel_width / 2, y + 16, row.label, size=11, bold=True, anchor="middle")
                drawing.text(x + panel_width / 2, y + 30, _sms(len(row.cells)), size=11, kind="faint", anchor="middle")
                for i, cell in enumerate(row.cells):
                    cell_x = x + PANEL_PAD + i % 2 * (CELL + GAP)
                    top = y + PANEL_HEAD + i // 2 * (CELL + PAIR_GAP)
                    self._draw(drawing, cell_x, top, cell, row.label, colours)
            y += height + PANEL_GAP
        drawing.text(MARGIN, y + 10, note, size=11, kind="faint")
        return drawing.svg(width, y + 26)

    def _draw(self, drawing: Drawing, x: float, y: float, cell: Cell, place: str, colours: dict[str, str]) -> None:
        who = " and ".join(cell.owners) or "nobody"
        hover = f"SM {cell.sm}: {who}{', shared' if len(cell.owners) > 1 else ''} ({place})"
        if not cell.owners:
            drawing.rectangle(x, y, CELL, CELL, kind="empty", corner=4, hover=hover)
            drawing.text(x + CELL / 2, y + 19, str(cell.sm), size=10.5, kind="faint", anchor="middle")
            return
        part = CELL / len(cell.owners)
        for i, owner in enumerate(cell.owners):
            corner = 4 if len(cell.owners) == 1 else 0
            drawing.rectangle(x + i * part, y, part, CELL, fill=colours[owner], kind="cell", corner=corner, hover=hover)
        ink = ink_on(colours[cell.owners[0]])
        if len(cell.owners) > 1:  # a plate under the text, which would otherwise cross two colours
            drawing.rectangle(x + 5, y + 3, CELL - 10, CELL - 6, fill="#ffffff", corner=3, hover=hover)
            ink = SHARED_COLOUR
        middle = x + CELL / 2
        drawing.text(
            middle, y + 13, self._mark(cell.owners), size=10.5, kind="mark", anchor="middle", bold=True, fill=ink
        )
        drawing.text(middle, y + 25, str(cell.sm), size=9.5, kind="mark", anchor="middle", fill=ink)

    def _mark(self, owners: tuple[str, ...]) -> str:
        return SHARED if len(owners) > 1 else self.letters[owners[0]]

    def _legend(self, colours: dict[str, str]) -> list[Entry]:
        entries = [Entry(colours[name], self.letters[name], name, f", {_sms(len(sms))}") for name, sms in self.owners]
        owners = [cell.owners for panel in self.panels for cell in panel.cells]
        free, shared = sum(not names for names in owners), sum(len(names) > 1 for names in owners)
        entries += [Entry(None, "", "nobody", f", {_sms(free)}")] if free else []
        return entries + ([Entry(SHARED_COLOUR, SHARED, "shared", f", {_sms(shared)}")] if shared else [])
