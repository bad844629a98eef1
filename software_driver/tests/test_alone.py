"""The software driver is a product of its own: importing its modules imports nothing of another project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cuda_software_driver as sim

MODULES = sorted(
    f"cuda_software_driver.{path.stem}"
    for path in Path(str(sim.__file__)).parent.glob("*.py")
    if path.stem != "__init__"
)


def imported(names: list[str]) -> list[str]:
    """The modules of cuda_gctx and of ctypes that are loaded after the given modules and their public names."""
    code = f"""
import importlib, json, sys
before = set(sys.modules)
for name in {names!r}:
    module = importlib.import_module(name)
    [getattr(module, name) for name in getattr(module, "__all__", ())]
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(loaded & {{"cuda_gctx", "ctypes", "numpy", "click", "rich"}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names_of_packages: list[str] = json.loads(done.stdout)
    return names_of_packages


def test_all_of_it_is_imported_without_another_package() -> None:
    assert len(MODULES) > 3
    assert imported(["cuda_software_driver", *MODULES]) == ["ctypes"]


def test_the_plugin_imports_nothing_that_a_run_may_not_use() -> None:
    assert imported(["cuda_software_driver.pytest_plugin"]) == []
