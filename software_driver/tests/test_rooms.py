"""Includes of the C++ sources follow the order of their folders, and no file includes a file of another project."""

from __future__ import annotations

import re
from pathlib import Path

from .common import PROJECT

CPP = PROJECT / "cpp"
# The folders that a folder includes files of, besides itself.
MAY_INCLUDE = {
    "abi": set(),
    "chip": set(),
    "preload": set(),
    "profiler": {"abi"},
    "ptx": set(),
    "runtime": {"abi"},
    "machine": {"abi", "chip", "preload", "ptx"},
    "calls": {"abi", "chip", "machine", "preload", "ptx"},
    "tests": {"abi", "chip", "ptx"},
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def included(file: Path) -> set[str]:
    """The folders of the files that a file includes in quotes."""
    found = set()
    for name in INCLUDE.findall(file.read_text()):
        target = next((path for path in (file.parent / name, CPP / name) if path.is_file()), None)
        assert target is not None, f"{file}: {name} is in no folder of the project"
        found.add(target.resolve().relative_to(CPP).parts[0])
    return found


def test_each_folder_includes_what_it_may() -> None:
    found = {
        folder: {
            other
            for file in (CPP / folder).iterdir()
            if file.suffix in {".cpp", ".hpp", ".h"}
            for other in included(file)
        }
        - {folder}
        for folder in MAY_INCLUDE
    }
    assert found == MAY_INCLUDE
    assert {path.name for path in CPP.iterdir() if path.is_dir()} == MAY_INCLUDE.keys()
