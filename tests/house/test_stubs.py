"""The stubs describe the built modules: every name, property, method and parameter, in both directions.

They are written by hand, because nothing that a program could read has the types. Cython declares what C stores (bint,
uintptr_t, object), not what Python passes (a bool or one of numpy's, options or a dict of their fields). Annotations in
the sources would be the same text at another place: Cython converts by them (a bool becomes an int before it can be
refused), or, told not to, ignores them. A built module has no signatures of constructors and no types of properties.
mypy's stubgen takes docstrings of the extension module for code, and stops.
"""

from __future__ import annotations

import ast
import enum
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

import cuda_gctx

PACKAGE = Path(cuda_gctx.__file__).parent
MODULE_OF_STUB = {
    stub: ".".join(("cuda_gctx", *stub.relative_to(PACKAGE).with_suffix("").parts))
    for stub in sorted(PACKAGE.rglob("*.pyi"))
}
CONSTRUCTORS = [
    pytest.param(module, definition.name, function.args, id=definition.name)
    for stub, module in MODULE_OF_STUB.items()
    for definition in ast.parse(stub.read_text()).body
    if isinstance(definition, ast.ClassDef)
    for function in definition.body
    if isinstance(function, ast.FunctionDef) and function.name in ("__init__", "__new__")
]

# What Cython adds to every module and class, and operators: the interpreter calls them by position whatever the names
# of their parameters, and gives a class both sides of each.
NOT_OURS = r"""
.*\.__(reduce|setstate)_cython__
.*\.__test__
.*\.__pyx_\w+
.*\.__r?(eq|ne|lt|le|gt|ge|sub)__
"""

# torch's own types are read by nobody here, and to read them takes half a minute.
WITHOUT_TORCH = """
[mypy]
[mypy-torch.*]
follow_imports = skip
ignore_missing_imports = True
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    written = tmp_path / "mypy.ini"
    written.write_text(WITHOUT_TORCH)
    return written


def test_stubs_match_the_built_modules(tmp_path: Path, config: Path) -> None:
    pytest.importorskip("mypy", reason="the stub checker is part of mypy, which is not installed here")
    allowlist = tmp_path / "allowlist"
    allowlist.write_text(NOT_OURS)
    check = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-disjoint-bases"),
            *("--mypy-config-file", config),
            *("--allowlist", allowlist, "--ignore-unused-allowlist", *MODULE_OF_STUB.values()),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_a_dict_of_options_has_the_fields_of_the_options() -> None:
    kinds = 0
    for stub in MODULE_OF_STUB:
        classes = {one.name: one for one in ast.parse(stub.read_text()).body if isinstance(one, ast.ClassDef)}
        for name, kind in classes.items():
            if not name.endswith("Options") or name == "Options":
                continue
            [constructor] = [one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "__new__"]
            fields = classes[f"{name.removesuffix('Options')}Fields"].body
            named = [
                one.target.id for one in fields if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            assert named == [argument.arg for argument in constructor.args.args[1:]], name
            kinds += 1
    assert kinds == 5


def test_type_checkers_find_wrong_uses(tmp_path: Path, config: Path) -> None:
    """Each line of the file has an ignore, and one that is not needed is an error."""
    pytest.importorskip("mypy", reason="the type checker is not installed here")
    check = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file", config),
            *("--cache-dir", tmp_path, Path(__file__).with_name("wrong_uses.py")),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize(("module", "name", "parameters"), CONSTRUCTORS)
def test_constructor_takes_what_its_stub_says(module: str, name: str, parameters: ast.arguments) -> None:
    constructor = getattr(importlib.import_module(module), name)
    wrong = object()
    if parameters.kwarg is not None:  # "*args: Never, **kwargs: Never": made by something else, and it says by what
        with pytest.raises(TypeError, match=r" (comes?|is an answer) "):
            constructor()
        return
    if isinstance(constructor, enum.EnumMeta) or not isinstance(constructor.__init__, types.WrapperDescriptorType):
        return  # a look-up by value, or a constructor with a signature, which was compared above
    # A constructor in C has no signature to read; what it takes shows in what it refuses.
    positional = [parameter.arg for parameter in parameters.args[1:]]
    keywords = positional + [parameter.arg for parameter in parameters.kwonlyargs]

    with pytest.raises(TypeError, match=rf"(exactly|at most) {len(positional)} positional arguments?"):
        constructor(*[wrong] * (len(positional) + 1))
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_parameter'"):
        constructor(**dict.fromkeys(keywords, wrong), no_such_parameter=wrong)
    with pytest.raises(TypeError) as refusal:  # of the value: no constructor takes a bare object
        constructor(**dict.fromkeys(keywords, wrong))
    assert "keyword argument" not in str(refusal.value)
