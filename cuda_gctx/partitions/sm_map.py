"""The SM map: which partition owns which SM of a device, as text, as rows of cells, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from os import PathLike
from textwrap import wrap
from typing import TYPE_CHECKING, TypeVar

from cuda_gctx._core.text import ranges

if TYPE_CHECKING:
    from cuda_gctx.draw.sm_map import PictureOfSMs

__all__ = ["MapCell", "MapRow", "SMMap"]

Item = TypeVar("Item")

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
NOBODY, SHARED = ".", "!"
SMS_OF_A_LINE = 32  # of text, if the GPCs are not known
SMS_OF_A_PANEL = 16  # of the picture, likewise
COLUMNS = 80  # of text, at most
LEAST_OF_IDS = 16  # columns


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


@dataclass(frozen=True)
class SMMap:
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
        from cuda_gctx.draw.svg import colours_of

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

    def lines(self, columns: int = COLUMNS) -> tuple[tuple[tuple[str, str], ...], ...]:
        """The lines of the text as runs of (text, mark): the letter of an owner, or of what is shared, or "".

        columns: the width of the text; more than 80 are not used.
        """
        columns = min(columns, COLUMNS)
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
            first, *more = wrap(ids, max(columns - indent, LEAST_OF_IDS), subsequent_indent="   ")
            lines.append((*runs, (" " * (longest - len(mark) + 2) + first, "")))
            lines += [((" " * indent + text, ""),) for text in more]
        return (*lines, *self._legend_lines(columns))

    def _legend_lines(self, columns: int) -> list[tuple[tuple[str, str], ...]]:
        entries = [(letter, f" = {name}") for name, letter in self.letters.items()]
        everyone = self._owners_of.values()
        entries += [(SHARED, " = shared")] if any(len(owners) > 1 for owners in everyone) else []
        entries += [(NOBODY, " = nobody")] if not all(everyone) else []
        lines: list[list[tuple[str, str]]] = []
        length = columns
        for position, (mark, text) in enumerate(entries):
            comma = ", " if position < len(entries) - 1 else ""
            if length + len(mark + text + comma.rstrip()) > columns:
                lines.append([])
                length = 0
            lines[-1] += [(mark, mark.strip(NOBODY)), (text + comma, "")]
            length += len(mark + text + comma)
        return [tuple(line) for line in lines]

    def text(self, columns: int = COLUMNS) -> str:
        """The map as text. columns: its width; more than 80 are not used."""
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self.lines(columns))

    def __str__(self) -> str:
        return self.text()

    def svg(self, path: str | PathLike[str] | None = None) -> str:
        """The picture as SVG; also written to `path`."""
        return self._picture().svg(path)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The picture as an HTML page that loads no other files; also written to `path`."""
        return self._picture().html(path)

    def _picture(self) -> PictureOfSMs:
        from cuda_gctx.draw.sm_map import PictureOfSMs

        panels = self._rows(self._panels())
        return PictureOfSMs(self.device, self.driver, panels, self.owners, self.letters, bool(self.gpcs))

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return self.svg()
