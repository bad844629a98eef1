"""The output of commands: tables and text for people, and JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cuda_gctx import Device, __version__, system
from cuda_gctx.cli._exit import Failure

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
                super().print(*objects, **options)
                return
            with self.capture() as captured:
                super().print(*objects, **options)
            # The last column of a table is filled up with spaces.
            self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def console() -> Console:
    """The standard output: in colour on a terminal (unless NO_COLOR is set), else plain."""
    found = _Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = UNLIMITED
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """The rows below the header, numbers right-aligned, text left-aligned; None is a dash."""
    body = [["-" if cell is None else cell for cell in row] for row in rows]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, title in enumerate(header):
        numeric = bool(body) and all(isinstance(row[position], (int, float)) for row in body)
        made.add_column(title, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def show_report(text: str) -> None:
    """Print a report. Sentences wrap at the width of the terminal; tables do not."""
    out = console()
    for line in text.splitlines():
        is_table = "  " in line.strip()
        wrapped = (
            [line] if is_table or not line else wrap(line, out.width, subsequent_indent="  " * line.startswith("- "))
        )
        for piece in wrapped:
            out.print(piece, soft_wrap=True)


def write_json(command: str, document: Mapping[str, object]) -> None:
    """Print the document of a command."""
    with writing():
        click.echo(json.dumps({"command": command, "version": __version__, **document}, indent=2))


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
