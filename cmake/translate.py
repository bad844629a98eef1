"""Translates the Cython modules of the package to C++: those that have changed, in one process.

    python cmake/translate.py REPOSITORY OUT MODULE...

MODULE is the path of a module in the package, such as _core/stream; OUT/_core/stream.cpp is written, and next to it, as
the last, the list of the files that it was made from.
"""

from __future__ import annotations

import sys
from pathlib import Path


def is_current(translated: Path, used: Path, newest: float) -> bool:
    """Whether a module was translated to its end, and is newer than `newest` and than all that it was made from."""
    if not translated.exists() or not used.exists():
        return False
    made = translated.stat().st_mtime
    if made < newest or used.stat().st_mtime < made:
        return False
    _, _, files = used.read_text().partition(": \\\n  ")
    sources = [Path(file) for file in files.rstrip("\n").split(" \\\n  ")]
    return all(source.exists() and source.stat().st_mtime <= made for source in sources)


def translate(repository: Path, out: Path, module: str) -> int:
    """How many errors there are."""
    from Cython.Compiler import CmdLine, Main

    translated = out / f"{module}.cpp"
    translated.parent.mkdir(parents=True, exist_ok=True)
    words = ["--cplus", "-3", "-X", "auto_pickle=False", "--depfile", "-I", str(repository), "-o", str(translated)]
    name = "cuda_gctx." + module.replace("/", ".")
    options, sources = CmdLine.parse_command_line(
        [*words, "--module-name", name, str(repository / "cuda_gctx" / f"{module}.pyx")]
    )
    return int(Main.compile(sources, options).num_errors)


def main(repository: Path, out: Path, modules: list[str]) -> int:
    newest = Path(__file__).stat().st_mtime
    changed = [one for one in modules if not is_current(out / f"{one}.cpp", out / f"{one}.cpp.dep", newest)]
    return min(sum(translate(repository, out, module) for module in changed), 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
