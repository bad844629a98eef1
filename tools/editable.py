"""Builds the wheel of an editable install, in the folder in which the project itself is compiled.

    python tools/editable.py PROJECT WHEELS BUILD OPTION    the last turns warnings of the compiler into errors

Needs the build requirements; pip would want them in the environment into which it installs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scikit_build_core.build import build_editable

if __name__ == "__main__":
    project, wheels, build, strict = sys.argv[1:]
    settings = {
        "build-dir": str(Path(build).resolve()),
        "editable.rebuild": "true",
        "editable.verbose": "false",
        f"cmake.define.{strict}": "ON",
    }
    folder = str(Path(wheels).resolve())
    os.chdir(project)
    build_editable(folder, settings)
