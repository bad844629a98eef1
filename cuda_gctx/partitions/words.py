"""Layouts as people write them, ``control=16,rest``, and the layout from the environment of a process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cuda_gctx._core.extension import environment_variable
from cuda_gctx.partitions.layout import Layout, Request, layout_of

__all__ = [
    "LAYOUT_VARIABLE",
    "PART_VARIABLE",
    "REST",
    "GivenLayout",
    "given_layout",
    "given_names",
    "layout_of_text",
    "no_layout",
]

# The layout that Device.partition() opens without arguments.
LAYOUT_VARIABLE = "CUDA_GCTX_LAYOUT"
_VARIABLE = LAYOUT_VARIABLE.encode()
# The partition in which "cuda-gctx run --as" puts this process: its name, its position, and the groups of the layout.
PART_VARIABLE = "CUDA_GCTX_PART"
# The word for all remaining SMs.
REST = "rest"


class GivenLayout(NamedTuple):
    """The layout of the environment. Its text is for messages: the variable and its value."""

    layout: Layout
    text: str


def _request(word: str) -> Request:
    if word == REST:
        return None
    try:
        count = int(word)
    except ValueError:
        return _share(word)
    if count == 0:
        raise ValueError(f"0 SMs: leave the partition out, or write {REST!r} for all remaining SMs")
    return count


def _share(word: str) -> float:
    try:
        share = float(word)
    except ValueError:
        raise ValueError(
            f"invalid request {word!r}: write a number of SMs (16), a fraction of the device (0.25), or {REST!r}"
        ) from None
    if share == 1:
        raise ValueError(f"{word!r} is not a fraction below 1: write {REST!r} for all remaining SMs")
    return share


def _layout_of_words(words: Sequence[str]) -> Layout:
    names: list[str] = []
    requests: list[Request] = []
    nameless: set[str] = set()
    for word in words:
        name, equals, text = word.rpartition("=")
        if not equals:
            nameless.add(text)
        # Beside named partitions, the word for all remaining SMs is a name too.
        names.append(name if equals else text)
        requests.append(_request(text))
    if nameless.issuperset(names):
        return layout_of(tuple(requests), {})
    if nameless - {REST}:
        raise ValueError("name all partitions or none of them: control=16 rest, or 16 rest")
    named = dict(zip(names, requests, strict=True))
    if len(named) < len(names):
        name = max(names, key=names.count)
        raise ValueError(f"each partition needs a different name: {name!r} is given twice")
    return layout_of((named,), {})


def layout_of_text(text: str) -> Layout:
    """The layout that a text describes. ValueError if the text is not a layout.

    text: words with commas or spaces between them, the JSON of a Layout, or the path of a file with either. A path
    contains a slash or ends in ".json".
    """
    text = text.strip()
    if not text.startswith("{") and ("/" in text or text.endswith(".json")):
        try:
            text = Path(text).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the file cannot be read: {error}") from None
    if text.startswith("{"):
        return Layout.from_json(text)
    return _layout_of_words(re.findall(r"[^\s,]+", text))


def given_layout() -> GivenLayout | None:
    """The layout of CUDA_GCTX_LAYOUT; None if it is empty or not set. ValueError if its value is not a layout."""
    value = environment_variable(_VARIABLE)  # each opening asks
    if value is None or not value.strip():
        return None
    text = f"{LAYOUT_VARIABLE}={value!r}"
    try:
        return GivenLayout(layout_of_text(value), text)
    except ValueError as error:
        raise ValueError(f"{text} is not a layout: {error}") from None


def no_layout() -> str:
    """The message about a missing layout."""
    part = environment_variable(PART_VARIABLE.encode())
    if part:
        return (
            f"this process runs in partition {part.split()[0]}, which is its whole device and has no layout: request "
            "the partitions to split it into"
        )
    return f"a layout needs at least one partition: request one, or set {LAYOUT_VARIABLE}"


def given_names(layout: Layout) -> str:
    """The end of a message about the names of a layout: their source, if that is the environment."""
    with suppress(ValueError):  # it was changed in the meantime
        given = given_layout()
        if given is not None and given.layout == layout:
            return f", from {given.text}"
    return ""
