"""The SM map: which partition owns which SM of a device, as text, as rows of cells, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from textwrap import wrap
from typing import TypeVar

from cuda_gctx._core.text import ranges
from cuda_gctx.draw.svg import MARGIN, Drawing, Entry, Pictured, colours_of, heading, ink_on, legend, text_width

__all__ = ["MapCell", "MapRow", "SMMap"]

Item = TypeVar("Item")

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
NOBODY, SHARED = ".", "!"
SMS_OF_A_LINE = 32  # of text, if the GPCs are not known
SMS_OF_A_PANEL = 16  # of the picture, likewise
COLUMNS = 80  # of text

CELL, GAP, PAIR_GAP = 30, 2, 4
PANEL_GAP, PANEL_PAD, PANEL_HEAD = 10, 8, 38
PANELS_OF_A_ROW = 9
LEAST_WIDTH = 560
WIDEST_ENTRY = 780  # of the legend: a longer name is shortened
SHARED_COLOUR = "#b00020"


@dataclass(frozen=True)
class MapCell:
    """One SM: its id, and the names of its owners (none, one, or several that share it)."""

    sm: int
    owners: tuple[str, ...]


@dataclass(frozen=True)
class MapRow:
    """A labelled group of SMs: a GPC, if the GPCs are known."""

    label: str
    cells: tuple[MapCell, ...]


def _pieces(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _sms(count: int) -> str:
    return f"{count} SM" if count == 1 else f"{count} SMs"


@dataclass(frozen=True)
class SMMap(Pictured):
    """Which partition or context owns which SM. ``str()`` is for terminals, ``svg()`` and ``html()`` are pictures.

    owners: names with the ids of their SMs, in order.
    gpcs: the SM ids of each GPC; empty if the GPCs are unknown, in which case the map is ordered by SM id.
    outside: SMs of the device without an owner.
    """

    device: str
    driver: str
    owners: tuple[tuple[str, tuple[int, ...]], ...]
    gpcs: tuple[tuple[int, ...], ...] = ()
    outside: tuple[int, ...] = ()

    @cached_property
    def _owners_of(self) -> dict[int, tuple[str, ...]]:
        ids = {*self.outside, *(sm for gpc in self.gpcs for sm in gpc)}
        found: dict[int, tuple[str, ...]] = {}
        for name, sms in self.owners:
            ids.update(sms)
            for sm in sms:
                found[sm] = (*found.get(sm, ()), name)
        return {sm: found.get(sm, ()) for sm in range(max(ids, default=-1) + 1)}

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each owner in the pictures, as ``#rrggbb``."""
        return colours_of(name for name, _ in self.owners)

    @property
    def letters(self) -> dict[str, str]:
        """The letter of each owner, in the text and in the pictures."""
        return {name: LETTERS[i % len(LETTERS)] for i, (name, _) in enumerate(self.owners)}

    def rows(self) -> tuple[MapRow, ...]:
        """The SMs by GPC, single TPCs last; by id if the GPCs are unknown."""
        if not self.gpcs:
            return self._rows((f"SM {piece[0]:3}", piece) for piece in _pieces(list(self._owners_of), SMS_OF_A_LINE))
        return self._rows(self._panels())

    def _panels(self) -> list[tuple[str, Sequence[int]]]:
        """Names and SMs of the panels of the picture."""
        if not self.gpcs:
            return [(f"SM {piece[0]}-{piece[-1]}", piece) for piece in _pieces(list(self._owners_of), SMS_OF_A_PANEL)]
        large = [gpc for gpc in self.gpcs if len(gpc) > 2]
        pairs = [sm for gpc in self.gpcs if len(gpc) <= 2 for sm in gpc]
        known = {sm for gpc in self.gpcs for sm in gpc}
        unknown = [sm for sm in self._owners_of if sm not in known]
        panels: list[tuple[str, Sequence[int]]] = [(f"GPC {i}", gpc) for i, gpc in enumerate(large)]
        return panels + [(label, sms) for label, sms in (("single TPCs", pairs), ("unknown", unknown)) if sms]

    def _rows(self, named: Iterable[tuple[str, Sequence[int]]]) -> tuple[MapRow, ...]:
        return tuple(MapRow(label, tuple(MapCell(sm, self._owners_of[sm]) for sm in sms)) for label, sms in named)

    def _mark(self, cell: MapCell) -> str:
        if len(cell.owners) > 1:
            return SHARED
        return self.letters[cell.owners[0]] if cell.owners else NOBODY

    def lines(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """The lines of the text as runs of (text, mark): the letter of an owner, or of what is shared, or ""."""
        rows = self.rows()
        width = max((len(row.label) for row in rows), default=0)
        marks = [" ".join("".join(map(self._mark, pair)) for pair in _pieces(row.cells, 2)) for row in rows]
        longest = max(map(len, marks), default=0)
        lines: list[tuple[tuple[str, str], ...]] = []
        for row, mark in zip(rows, marks, strict=True):
            head = f"{row.label.ljust(width)}  "
            runs = [(head, ""), *(("".join(same), letter.strip(f" {NOBODY}")) for letter, same in groupby(mark))]
            if not self.gpcs:
                lines.append(tuple(runs))
                continue
            indent = len(head) + longest + 2
            ids = f"SM {ranges(cell.sm for cell in row.cells)}"
            first, *more = wrap(ids, COLUMNS - indent, subsequent_indent="   ")
            lines.append((*runs, (" " * (longest - len(mark) + 2) + first, "")))
            lines += [((" " * indent + text, ""),) for text in more]
        return (*lines, *self._legend_lines())

    def _legend_lines(self) -> list[tuple[tuple[str, str], ...]]:
        entries = [(letter, f" = {name}") for name, letter in self.letters.items()]
        everyone = self._owners_of.values()
        entries += [(SHARED, " = shared")] if any(len(owners) > 1 for owners in everyone) else []
        entries += [(NOBODY, " = nobody")] if not all(everyone) else []
        lines: list[list[tuple[str, str]]] = []
        length = COLUMNS
        for position, (mark, text) in enumerate(entries):
            comma = ", " if position < len(entries) - 1 else ""
            if length + len(mark + text + comma.rstrip()) > COLUMNS:
                lines.append([])
                length = 0
            lines[-1] += [(mark, mark.strip(NOBODY)), (text + comma, "")]
            length += len(mark + text + comma)
        return [tuple(line) for line in lines]

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines())

    def _title_of_page(self) -> str:
        return f"SM map of {self.device}"

    def _picture(self) -> str:
        """Draw a panel per GPC, a row per TPC (two SMs), and hover texts."""
        drawing = Drawing(f"SM map of {self.device}, driver {self.driver}")
        rows = self._rows(self._panels())
        colours = self.colours
        panel_width = 2 * CELL + GAP + 2 * PANEL_PAD
        across = min(PANELS_OF_A_ROW, max(len(rows), 1))
        note = (
            "Panels are GPCs, detected by where thread-block clusters ran. A row is a TPC: two SMs."
            if self.gpcs
            else "The GPCs are not known here: SMs are shown by id, two in a row."
        )
        entries = self._legend()
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

    def _draw(self, drawing: Drawing, x: float, y: float, cell: MapCell, place: str, colours: dict[str, str]) -> None:
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
        drawing.text(middle, y + 13, self._mark(cell), size=10.5, kind="mark", anchor="middle", bold=True, fill=ink)
        drawing.text(middle, y + 25, str(cell.sm), size=9.5, kind="mark", anchor="middle", fill=ink)

    def _legend(self) -> list[Entry]:
        colours, letters = self.colours, self.letters
        entries = [Entry(colours[name], letters[name], name, f", {_sms(len(sms))}") for name, sms in self.owners]
        free = sum(not owners for owners in self._owners_of.values())
        shared = sum(len(owners) > 1 for owners in self._owners_of.values())
        entries += [Entry(None, "", "nobody", f", {_sms(free)}")] if free else []
        return entries + ([Entry(SHARED_COLOUR, SHARED, "shared", f", {_sms(shared)}")] if shared else [])

    def _repr_svg_(self) -> str:
        return self._picture()
