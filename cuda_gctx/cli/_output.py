"""The output of commands: tables and text for people, and JSON for programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import click
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from cuda_gctx import Device, __version__, system
from cuda_gctx.cli._exit import Failure

WRITTEN = "cuda_gctx.cli.written"
GAP = "  "  # between the columns of tables
INDENT = "    "  # of what continues a row
UNIT = re.compile(r"(?<=\d) (?=[A-Za-z]{1,3}\b)")  # the space between a number and its unit
KEPT = "\N{WORD JOINER}"  # in place of that space while a line is broken
# Without a terminal nothing is wrapped or cut, because other programs read it line by line.
UNLIMITED = 100_000


@contextmanager
def writing(file: Path | None = None) -> Iterator[None]:
    """Turn a failure to write a file, or else the standard output, into a message.

    If a pipe is closed, click and rich end silently.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if file is None:
            # The rest of the buffer would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        what = "the standard output" if file is None else repr(str(file))
        raise Failure(f"cannot write {what}: {error.strerror or error}") from None


def write_file(file: Path, text: str) -> None:
    """Write an output file."""
    with writing(file):
        file.write_text(text, encoding="utf-8")


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        with writing():
            if self.is_terminal:
                shown = objects if options.get("soft_wrap") else map(self._folded, objects)
                super().print(*shown, **options)
                return
            with self.capture() as captured:
                super().print(*objects, **options)
            # The last column of a table is filled up with spaces.
            self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def _folded(self, shown: Any) -> Any:
        """A sentence in the width of the terminal."""
        if not isinstance(shown, str):
            return shown
        return "\n".join(piece for line in shown.split("\n") for piece in folded(line, self.width))


def console() -> Console:
    """The standard output: in colour on a terminal (unless NO_COLOR is set), else plain."""
    found = _Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = UNLIMITED
    return found


class ResultTable:
    """Rows below a header, numbers right-aligned, text left-aligned; None is a dash.

    Where no width keeps each word whole, every row is a list of its cells, below each other.
    """

    def __init__(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self._header = header
        self._rows = [["-" if cell is None else cell for cell in row] for row in rows]
        columns = list(zip(*self._rows, strict=True)) or [()] * len(header)
        self._least = [max(map(_unbreakable, (title, *column))) for title, column in zip(header, columns, strict=True)]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Table]:
        if sum(self._least) + len(GAP) * (len(self._least) - 1) <= options.max_width:
            yield self._wide()
        else:
            yield from map(self._long, self._rows)

    def _wide(self) -> Table:
        made = _bare_table(show_header=True)
        for position, (title, least) in enumerate(zip(self._header, self._least, strict=True)):
            numeric = bool(self._rows) and all(isinstance(row[position], (int, float)) for row in self._rows)
            made.add_column(title, justify="right" if numeric else "left", overflow="fold", min_width=least)
        for row in self._rows:
            made.add_row(*map(_text, row))
        return made

    def _long(self, row: Sequence[object]) -> Table:
        made = _bare_table(show_header=False)
        made.add_column(style="bold")
        made.add_column(overflow="fold")
        for title, cell in zip(self._header, row, strict=True):
            made.add_row(title, _text(cell))
        return made


def _bare_table(*, show_header: bool) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold", show_header=show_header)


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _unbreakable(cell: object) -> int:
    """The width of the longest piece of a cell that stays in one line: a word, or a number with its unit."""
    text = str(cell)
    pieces = [text] if re.fullmatch(r"[\d.]+ \w+", text) else text.split()
    return max(map(len, pieces), default=0)


def folded(line: str, width: int) -> list[str]:
    """The line of a report in a width: a row of a table breaks between cells, and a sentence between words."""
    cells = re.split(rf"(?<=\S)(?={GAP}+\S)", line)
    if len(line) <= width:
        return [line]
    pieces = cells[:1]
    for cell in cells[1:]:
        if len(pieces[-1] + cell) <= width:
            pieces[-1] += cell
        else:
            pieces.append(INDENT + cell.strip())
    indent = INDENT if len(cells) > 1 else INDENT[:2] * line.startswith("- ")
    whole = TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [part.replace(KEPT, " ") for piece in pieces for part in whole.wrap(UNIT.sub(KEPT, piece))]


def show_report(text: str) -> None:
    """Print a report in the width of the terminal."""
    out = console()
    for line in text.splitlines():
        for piece in folded(line, out.width):
            out.print(piece, soft_wrap=True)


def tell(text: str) -> None:
    """Write a report to the standard error, in the width of the terminal."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else UNLIMITED
    for line in text.splitlines():
        for piece in folded(line, width):
            click.echo(piece, err=True)


def write_json(command: str, document: Mapping[str, object]) -> None:
    """Print the document of a command."""
    with writing():
        click.echo(json.dumps({"command": command, "version": __version__, **document}, indent=2))
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[WRITTEN] = True


def has_written_json() -> bool:
    """Tells whether the command has printed its document."""
    context = click.get_current_context(silent=True)
    return context is not None and WRITTEN in context.meta


def driver_version() -> str:
    """The CUDA version of the driver in use."""
    return ".".join(map(str, system.driver_version))


def on_what(device: Device) -> dict[str, object]:
    """The device and driver of a document."""
    return {
        "device": {"id": device.device_id, "name": device.name, "sm_count": device.sm_count},
        "driver": driver_version(),
    }


def heading(device: Device) -> str:
    """The device and driver as a heading."""
    return f"{device.name}, driver {driver_version()}: {device.sm_count} SMs"
