"""The modules of the folder of the documents, which is no package."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from ..conftest import REPOSITORY


def module_of_docs(name: str) -> ModuleType:
    spec = spec_from_file_location(name, REPOSITORY / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
