"""The drop-ins have the names and arguments of the releases that were compared last.

``releases.py`` compares the newest releases with the same record every week.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from typing import Any

import pytest

import cuda_gctx

from . import releases

KNOWN: dict[str, Any] = json.loads(releases.RECORD.read_text())
DROP_INS = {
    ("torch", "torch/cuda/green_contexts.py"): "cuda_gctx.compat.torch_green",
    ("flashinfer-python", "flashinfer/green_ctx.py"): "cuda_gctx.compat.flashinfer",
}
# Constructors that their users do not call.
ELSEWHERE = {"SMPartition.__init__"}


@pytest.mark.parametrize(("package", "file"), DROP_INS)
def test_a_drop_in_has_the_names_and_arguments_of_the_release(package: str, file: str) -> None:
    module = import_module(DROP_INS[package, file])
    functions = KNOWN[package]["files"][file]
    assert len(functions) >= 11
    for name, facts in functions.items():
        if name in ELSEWHERE:
            continue
        found: Any = module
        for part in name.split("."):
            found = inspect.getattr_static(found, part)
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        assert releases.arguments_in(facts) <= set(inspect.signature(found).parameters), name


@pytest.mark.parametrize("file", KNOWN["cuda-core"]["files"])
def test_the_package_has_the_names_of_cuda_core(file: str) -> None:
    for name in KNOWN["cuda-core"]["files"][file]:
        assert name.rpartition(".")[2] in dir(getattr(cuda_gctx, name.partition(".")[0])), name


def test_a_difference_is_reported() -> None:
    text = "class A:\n    def f(self, a, *, b=1):\n        raise ValueError('x')\n\ndef _own(): ...\n"
    before = {"x.py": releases.facts_of("x.py", text)}
    assert before == {"x.py": {"A.f": "(self, a, b) ValueError"}}
    now = {"x.py": releases.facts_of("x.py", text.replace("b=1", "c=1") + "def new(): ...\n")}
    assert releases.differences("torch", before, before) == []
    found = releases.differences("torch", before, now)
    assert [line.split(" of ")[0] for line in found] == ["torch: A.f", "torch: new"]
