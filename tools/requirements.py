"""What pyproject.toml requires for a job, and where the CUDA header of the environment is.

    python tools/requirements.py of build            the requirements of the build, one a line
    python tools/requirements.py of lint             those of an extra
    python tools/requirements.py cuda-include [DIR]  the folder of a cuda.h that is new enough to build with

The header comes from the wheel nvidia-cuda-runtime, in DIR or in the environment of this interpreter. The oldest Python
that is supported cannot read TOML, so that lists of strings are read as what they are in Python too.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Of the wheel of cuda.h, as pyproject.toml requires it for the build.
OLDEST, NEWER = (13, 4), (14, 0)


def requirements_of(job: str) -> list[str]:
    section, name = ("build-system", "requires") if job == "build" else ("project.optional-dependencies", job)
    text = (REPOSITORY / "pyproject.toml").read_text()
    found = re.search(
        rf"^\[{re.escape(section)}\]$(?:(?!^\[).)*?^{re.escape(name)} = (\[.*?\])$", text, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise SystemExit(f"pyproject.toml has no requirements of {job!r}")
    requirements: list[str] = ast.literal_eval(found[1])
    return requirements


def cuda_include(folder: str | None = None) -> Path | None:
    """The folder of cuda.h; None if there is none that is new enough."""
    places = {} if folder is None else {"path": [folder]}
    for found in importlib.metadata.distributions(name="nvidia-cuda-runtime", **places):
        if OLDEST <= tuple(map(int, found.version.split(".")[:2])) < NEWER:
            for file in found.files or ():
                if file.name == "cuda.h":
                    return Path(str(file.locate())).parent
    return None


def main(words: list[str]) -> int:
    if words[:1] == ["of"] and len(words) == 2:
        print(*requirements_of(words[1]), sep="\n")
        return 0
    if words[:1] == ["cuda-include"] and len(words) <= 2:
        include = cuda_include(*words[1:])
        if include is None:
            raise SystemExit("no cuda.h of CUDA 13.4 or newer: pip install 'nvidia-cuda-runtime>=13.4,<14'")
        print(include)
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
