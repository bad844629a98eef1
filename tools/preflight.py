"""Checks that this machine can build the package, before anything is installed.

Removes the environments of another interpreter.

    python tools/preflight.py STAMP

STAMP names the interpreter that the environments of the clone belong to. One sentence says what is missing. Python 3.6
and newer can run this file, so that an old interpreter gets its sentence.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

OLDEST_PYTHON = (3, 10)
OLDEST_MAKE = 4
ENVIRONMENTS = (".venv", "build/tools", "build/linters", "build/pages", "build/package", "build/software-driver")
PROGRAM = (
    "#include <concepts>\n#include <span>\nstatic_assert(std::integral<int>);\n"
    "int main() { return std::span<int>{}.size(); }\n"
)


def problem():
    """Returns the first obstacle as a sentence, or None."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return f"{sys.executable} is Python {version}, and the package needs 3.10 or newer: make PYTHON=python3.12 ..."
    if os.environ.get("MAKE_VERSION", "4").split(".")[0] < str(OLDEST_MAKE):
        return f"this is make {os.environ['MAKE_VERSION']}, and the Makefile needs GNU make 4 or newer"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return f"Python {version} cannot make environments: install its package python3-venv"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return f"Python {version} has no Python.h: install its package python3-dev"
    compiler = (os.environ.get("CXX") or "c++").split()
    try:
        ran = subprocess.run(
            [*compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
            input=PROGRAM.encode(),
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return f"there is no C++ compiler {compiler[0]}: install g++ 12 or newer, or set CXX"
    return f"{compiler[0]} does not compile C++20: install g++ 12 or newer, or set CXX" if ran.returncode else None


def main(words):
    stamp = Path(words[0])
    identity = f"{os.path.realpath(sys.executable)} {sys.version}\n"
    known = stamp.read_text() if stamp.exists() else None
    if known == identity:
        return 0
    found = problem()
    if found is not None:
        print(found, file=sys.stderr)
        return 1
    for folder in ENVIRONMENTS if known is not None else ():
        shutil.rmtree(folder, ignore_errors=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(identity)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
