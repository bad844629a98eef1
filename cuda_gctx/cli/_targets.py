"""Functions named as ``MODULE:FUNCTION`` on the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from typing import Any

import click

from cuda_gctx.cli._exit import Failure


def function_named(target: str) -> Callable[..., Any]:
    """The function; modules are also searched for in the current folder. UsageError if there is none."""
    module, colon, path = target.partition(":")
    if "/" in module or module.startswith(".") or module.endswith(".py"):
        words = re.split("[./]", os.path.relpath(module).removesuffix(".py"))
        meant = ".".join(filter(None, words)) or "my_module"
        raise click.UsageError(f"{module!r} is not a module name: write it like {meant}:{path or 'work'}")
    if not (module and colon and path):
        raise click.UsageError(f"{target!r} is not a function: write MODULE:FUNCTION, like my_package.my_module:work")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        value: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise Failure(f"{module} cannot be imported: {error}") from None
        raise click.UsageError(f"no module named {error.name!r} in this folder or on Python's path") from None
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise click.UsageError(f"{module} has no {path}") from None
    if not callable(value):
        raise click.UsageError(f"{target} is not a function: its type is {type(value).__name__}")
    function: Callable[..., Any] = value
    return function


def work_named(targets: Sequence[str]) -> dict[str, Any]:
    """The parts by name. Several targets are the parts; a single target returns all of them."""
    if len(targets) > 1:
        names = [re.split("[.:]", target)[-1] for target in targets]
        functions = dict(zip(names, map(function_named, targets), strict=True))
        if len(functions) < len(targets):
            raise click.UsageError(
                "two of the functions have the same name: write one function that returns all parts by name"
            )
        return functions
    function = function_named(targets[0])
    with suppress(ValueError):  # a function of C without a signature
        try:
            signature(function).bind()
        except TypeError:
            raise click.UsageError(
                f"{targets[0]} takes arguments: name two or more parts, or one function without arguments that returns "
                "all parts by name"
            ) from None
    parts = function()
    if (
        not isinstance(parts, Mapping)
        or len(parts) < 2
        or not all(isinstance(name, str) and callable(part) for name, part in parts.items())
    ):
        raise Failure(
            f"{targets[0]} must return the parts: a mapping of two or more names to functions that take a stream"
        )
    return dict(parts)
