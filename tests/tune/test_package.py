"""What importing the tuner loads, and the names that it has."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from cuda_gctx import tune

from ..common import run_python

pytestmark = pytest.mark.sim_only


def test_importing_the_tuner_loads_nothing() -> None:
    done = run_python(
        "import sys, cuda_gctx.tune\n"
        "print({'torch', 'cupy', 'numpy', 'matplotlib', 'cuda_gctx._core.extension'} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    block = next(
        node
        for node in ast.parse(Path(tune.__file__).read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    module_of_name = {name: module for module, names in tune._NAMES_OF_MODULE.items() for name in names}
    assert {alias.asname: node.module for node in imports for alias in node.names} == module_of_name
    for name in tune.__all__:
        assert getattr(tune, name) is getattr(sys.modules[module_of_name[name]], name)
    with pytest.raises(AttributeError, match="no attribute 'tuner'"):
        tune.tuner  # noqa: B018
