"""Signatures and types of compiled modules, for autodoc: a compiled module has docstrings, its stub has the types."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

# A line of a docstring about arguments: "name: text", or "one, other: text". More of them can follow on the same line,
# or on the lines that continue it.
ARGUMENT = re.compile(r"^((?:\w+, )*\w+): (?=\S)")
FURTHER = re.compile(r"(?<=[.;]) (?=(?:\w+, )*\w+: \S)")


@cache
def stub(module: str) -> dict[str, ast.stmt]:
    """The declarations of a compiled module by their dotted names; empty for a module written in Python."""
    origin = getattr(import_module(module).__spec__, "origin", None) or ""
    path = Path(origin).with_name(Path(origin).name.split(".")[0] + ".pyi")
    if not origin.endswith(".so") or not path.exists():
        return {}
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{item.name}": item
                for item in node.body
                if isinstance(item, ast.FunctionDef)
            }
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = node
    return found


def declaration(name: str, thing: object) -> ast.stmt | None:
    """The stub's declaration of a documented object; `name` is the name under which it is documented."""
    owner = getattr(thing, "__objclass__", thing)
    module = getattr(owner, "__module__", None)
    if not isinstance(module, str) or not module.startswith("cuda_gctx."):
        return None
    qualified = getattr(thing, "__qualname__", None) or ".".join(
        name.split(".")[-2:]
    )
    return stub(module).get(qualified)


def constructor(name: str, thing: object) -> ast.FunctionDef | None:
    """How an instance is made, or None for a class whose instances come from other calls."""
    found = stub(getattr(thing, "__module__", ""))
    for special in ("__new__", "__init__"):
        node = found.get(f"{getattr(thing, '__name__', '')}.{special}")
        if isinstance(node, ast.FunctionDef) and "Never" not in ast.unparse(
            node.args
        ):
            return node
    return None


def signature(node: ast.FunctionDef, *, bound: bool) -> tuple[str, str | None]:
    """Arguments and result as they are written, without `self`."""
    given = node.args
    if bound:
        (given.posonlyargs or given.args)[:1] = []
    result = None if node.returns is None else ast.unparse(node.returns)
    return f"({ast.unparse(given)})", result


def is_static(node: ast.FunctionDef) -> bool:
    return any(
        ast.unparse(decorator) == "staticmethod"
        for decorator in node.decorator_list
    )


def process_signature(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: Any,
    given: str | None,
    result: str | None,
) -> tuple[str | None, str | None] | None:
    """Take the signature from the stub."""
    if inspect.isclass(thing) and stub(thing.__module__):
        node = constructor(name, thing)
        return (
            ("", None)
            if node is None
            else (signature(copied(node), bound=True)[0], None)
        )
    node = declaration(name, thing)
    if not isinstance(node, ast.FunctionDef) or what not in (
        "function",
        "method",
    ):
        return None
    return signature(copied(node), bound=what == "method" and not is_static(node))


def copied(node: ast.FunctionDef) -> ast.FunctionDef:
    copy = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(copy, ast.FunctionDef)
    return copy


def arguments_of(thing: object) -> set[str]:
    """The names of the arguments of a function, or of a class and its fields."""
    node = (
        declaration("", thing)
        if not inspect.isclass(thing)
        else constructor("", thing)
    )
    if isinstance(node, ast.FunctionDef):
        given = node.args
        rest = [one for one in (given.vararg, given.kwarg) if one is not None]
        return {
            argument.arg
            for argument in [
                *given.posonlyargs,
                *given.args,
                *given.kwonlyargs,
                *rest,
            ]
        }
    try:
        found = set(inspect.signature(thing).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = set()
    return found | (
        set(getattr(thing, "__annotations__", ()))
        if inspect.isclass(thing)
        else set()
    )


def fields(paragraph: list[str], names: set[str]) -> list[str]:
    """A paragraph about arguments as a field for each. A sentence about something else belongs to the field before."""
    written: list[str] = []
    for piece in FURTHER.split(" ".join(line.strip() for line in paragraph)):
        said, _, text = piece.partition(": ")
        if written and not set(said.split(", ")) <= names:
            written[-1] += f" {piece}"
            continue
        text = text.rstrip(";")
        written += [f":param {name}: {text}" for name in said.split(", ")]
    return written


def with_fields(lines: list[str], names: set[str]) -> list[str]:
    """The same with each "name: text" as a field, and each indented example as code."""
    written: list[str] = []
    inside: str | None = None  # "code", or nothing
    paragraph: list[str] = []  # about arguments
    for line in [*lines, ""]:
        if paragraph and (not line.strip() or ARGUMENT.match(line)):
            written += fields(paragraph, names)
            paragraph = []
        if ARGUMENT.match(line) or paragraph:
            if (
                not paragraph
                and written
                and written[-1]
                and not written[-1].startswith(":param ")
            ):
                written.append("")
            paragraph.append(line)
            inside = None
            continue
        if inside != "code" and line.startswith("    "):
            inside = "code"
            written += [".. code-block:: python", ""]
        elif line.strip() and not line.startswith("    "):
            inside = None
        written.append(line)
    return written


def process_docstring(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: Any,
    lines: list[str],
) -> None:
    """Write the lines on arguments as fields, and add the type of a compiled property."""
    if what in ("class", "function", "method", "exception"):
        lines[:] = with_fields(lines, arguments_of(thing))
    if lines[:1] == ["Structure/Union member"]:  # ctypes puts this on each field
        lines.clear()
    if what == "data" and isinstance(thing, str):  # autodoc takes that of str
        lines.clear()
    node = declaration(name, thing)
    if (
        what in ("attribute", "property")
        and isinstance(node, ast.FunctionDef)
        and node.returns is not None
    ):
        lines += ["", f":type: {ast.unparse(node.returns)}"]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-process-docstring", process_docstring)
    return {"parallel_read_safe": True}
