"""What pyproject.toml requires for a job, and where the CUDA header of the environment is.

    python tools/requirements.py of build            the requirements of the build, one a line
    python tools/requirements.py of test cli comm    those of dependency groups and of extras, with the extras they name
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
OLDEST, NEWER = (13, 5), (14, 0)
EXTRAS = "project.optional-dependencies"


def requirements_of(job: str) -> list[str]:
    text = (REPOSITORY / "pyproject.toml").read_text()
    places = [("build-system", "requires")] if job == "build" else [("dependency-groups", job), (EXTRAS, job)]
    for section, name in places:
        found = re.search(
            rf"^\[{re.escape(section)}\]$(?:(?!^\[).)*?^{re.escape(name)} = (\[.*?\])$", text, re.MULTILINE | re.DOTALL
        )
        if found is not None:
            return [each for requirement in ast.literal_eval(found[1]) for each in expanded(requirement)]
    raise SystemExit(f"pyproject.toml has no requirements of {job!r}")


def expanded(requirement: str) -> list[str]:
    """A requirement, or those of the extras of this package that it names."""
    own = re.fullmatch(r"cuda-gctx\[(.*)\]", requirement)
    return [each for extra in own[1].split(",") for each in requirements_of(extra)] if own else [requirement]


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
    if words[:1] == ["of"] and len(words) > 1:
        print(*(requirement for job in words[1:] for requirement in requirements_of(job)), sep="\n")
        return 0
    if words[:1] == ["cuda-include"] and len(words) <= 2:
        include = cuda_include(*words[1:])
        if include is None:
            raise SystemExit("no cuda.h of CUDA 13.5 or newer: pip install 'nvidia-cuda-runtime>=13.5,<14'")
        print(include)
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
