"""Layouts as arguments of the command line: words, ``control=16 rest``, JSON, or the path of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from cuda_gctx import Layout
from cuda_gctx.partitions import REST, layout_of_text


def layout_of(words: Sequence[str]) -> Layout:
    """The layout that the words describe; BadParameter if they are invalid."""
    try:
        return layout_of_text(" ".join(words))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _convert(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> Layout | None:
    return layout_of(words) if words else None


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    name, equals, word = incomplete.rpartition("=")
    return [CompletionItem(f"{name}{equals}{REST}")] if REST.startswith(word) else []


def layout_argument(command: Callable[..., None], *, required: bool) -> Callable[..., None]:
    """Add the argument of a layout; the command receives the Layout as `layout`, or None."""
    metavar = "LAYOUT..." if required else "[LAYOUT]..."
    return click.argument(
        "layout", nargs=-1, required=required, metavar=metavar, callback=_convert, shell_complete=_complete
    )(command)
