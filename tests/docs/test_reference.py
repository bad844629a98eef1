"""The reference has every public module, and everything in it that can be called has a docstring."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import cuda_gctx

from ..conftest import REPOSITORY

PAGES = REPOSITORY / "docs" / "reference"
DOCUMENTED = re.findall(
    r"automodule:: ([\w.]+)$", "\n".join(page.read_text() for page in PAGES.glob("*.md")), re.MULTILINE
)
# Programs, modules for the other modules of the package, and the library of the core, which is not a module.
WITHOUT_REFERENCE = {"bench", "cli", "draw", "measure", "libcuda_gctx"}


def public_modules() -> set[str]:
    """Modules and packages that users import: with names of their own, and no underscore in the path."""
    found = {"cuda_gctx"}
    for module in pkgutil.iter_modules(cuda_gctx.__path__, "cuda_gctx."):
        if module.name.split(".")[1] not in WITHOUT_REFERENCE and "._" not in module.name:
            found.add(module.name)
    return found


def callables() -> list[tuple[str, object]]:
    found: dict[int, tuple[str, object]] = {}
    for module in DOCUMENTED:
        for name in getattr(importlib.import_module(module), "__all__", ()):
            thing = getattr(importlib.import_module(module), name)
            if not (inspect.isclass(thing) or callable(thing)) or not str(thing.__module__).startswith("cuda_gctx"):
                continue
            found.setdefault(id(thing), (f"{module}.{name}", thing))
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                if not member.startswith("_") and (callable(value) or isinstance(value, (staticmethod, classmethod))):
                    found.setdefault(id(value), (f"{module}.{name}.{member}", getattr(value, "__func__", value)))
    return list(found.values())


def test_every_public_module_has_a_place_in_the_reference() -> None:
    assert public_modules() <= set(DOCUMENTED)


@pytest.mark.parametrize(("name", "thing"), callables(), ids=[name for name, _ in callables()])
def test_what_can_be_called_has_a_docstring(name: str, thing: object) -> None:
    assert (inspect.getdoc(thing) or "").strip(), name
