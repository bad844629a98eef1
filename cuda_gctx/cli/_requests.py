"""Layouts as arguments of the command line: ``16 rest`` by position, ``decode=16 prefill=rest`` by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from cuda_gctx import Layout
from cuda_gctx.partitions import Request

REST = "rest"


def _amount(word: str) -> Request:
    if word == REST:
        return None
    try:
        return int(word)
    except ValueError:
        pass
    try:
        share = float(word)
    except ValueError:
        raise click.BadParameter(
            f"invalid request {word!r}: write a number of SMs (16), a fraction of the device (0.25), or {REST!r}"
        ) from None
    if share == 1:
        raise click.BadParameter(f"{word!r} is not a fraction below 1: write {REST!r} for all remaining SMs")
    return share


def layout_of(words: Sequence[str]) -> Layout:
    """The layout that the words describe; BadParameter if they are invalid."""
    split = [word.rpartition("=") for word in words]
    names = [name for name, equals, _ in split if equals]
    amounts = [_amount(amount) for *_, amount in split]
    if names and len(names) != len(words):
        raise click.BadParameter("name all partitions or none of them: decode=16 prefill=rest, or 16 rest")
    if len(set(names)) != len(names):
        raise click.BadParameter("each partition needs a different name")
    try:
        return Layout.of(dict(zip(names, amounts, strict=True)) if names else amounts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _convert(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> Layout | None:
    return layout_of(words) if words else None


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    name, equals, word = incomplete.rpartition("=")
    return [CompletionItem(f"{name}{equals}{REST}")] if REST.startswith(word) else []


def layout_argument(command: Callable[..., None], *, required: bool) -> Callable[..., None]:
    """Add the argument of a layout, which the command gets as the Layout `layout`, or as None."""
    metavar = "LAYOUT..." if required else "[LAYOUT]..."
    return click.argument(
        "layout", nargs=-1, required=required, metavar=metavar, callback=_convert, shell_complete=_complete
    )(command)
