"""The software driver is a product of its own: importing its modules imports nothing else of the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cuda_gctx
import cuda_software_driver as sim

MODULES = sorted(
    f"cuda_software_driver.{path.stem}"
    for path in Path(str(sim.__file__)).parent.glob("*.py")
    if path.stem != "__init__"
)


def imported(names: list[str]) -> list[str]:
    """The modules of the package that are loaded after these, below a package that loads none itself."""
    code = f"""
import importlib, json, sys, types
package = sys.modules["cuda_gctx"] = types.ModuleType("cuda_gctx")
package.__path__ = {list(cuda_gctx.__path__)!r}
for name in {names!r}:
    module = importlib.import_module(name)
    [getattr(module, name) for name in getattr(module, "__all__", ())]
print(json.dumps(sorted(name for name in sys.modules if name.startswith("cuda_gctx."))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names_of_package: list[str] = json.loads(done.stdout)
    return names_of_package


def test_all_of_it_is_imported_without_the_rest_of_the_package() -> None:
    assert len(MODULES) > 3
    assert imported(["cuda_software_driver", *MODULES]) == []


def test_the_plugin_imports_nothing_that_a_run_may_not_use() -> None:
    assert imported(["cuda_software_driver.pytest_plugin"]) == []
