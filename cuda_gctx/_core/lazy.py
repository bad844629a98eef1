"""Packages whose public names are imported from their modules at first use, so that importing them is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(
    package: dict[str, Any], names_of_module: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package, given its globals() and where its names are."""
    module_of_name = {name: module for module, names in names_of_module.items() for name in names}

    def getattr_(name: str) -> object:
        if name not in module_of_name:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(module_of_name[name]), name)
        return value

    def dir_() -> list[str]:
        of_the_module = (name for name, value in package.items() if name[:2] == "__" or isinstance(value, ModuleType))
        return sorted({*module_of_name, *(name for name in of_the_module if name[:2] == "__" or name[:1] != "_")})

    return sorted(module_of_name), getattr_, dir_
