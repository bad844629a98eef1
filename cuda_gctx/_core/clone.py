"""The import of the installed package if Python finds the sources first, as it does in a clone."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

__all__ = ["use_installed_package"]


def _is_built(spec: ModuleSpec) -> bool:
    folders = spec.submodule_search_locations or ()
    return PathFinder.find_spec("extension", [os.path.join(folder, "_core") for folder in folders]) is not None


def use_installed_package(sources: str) -> None:
    """Import the installed package in place of the sources in `sources`; ImportError if none is installed."""
    clone = os.path.realpath(os.path.dirname(sources))
    spec = PathFinder.find_spec("cuda_gctx", [entry for entry in sys.path if os.path.realpath(entry) != clone])
    if spec is None or spec.loader is None or not _is_built(spec):
        raise ImportError(
            f"{sources} contains the sources of cuda_gctx without compiled modules, and {sys.executable} has no "
            "installed cuda_gctx: run 'make develop' (or 'pip install .') in the clone, and use that environment"
        )
    # Modules that were imported to get here come from the sources: the installed ones are imported in their place.
    for name in [name for name in sys.modules if name.startswith("cuda_gctx.")]:
        del sys.modules[name]
    sys.modules["cuda_gctx"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
