"""Builds the wheel of an editable install, in the folder in which the package itself is compiled.

    python tools/editable.py WHEELS BUILD    the folder of the wheel, and that of what is compiled

Needs the build requirements; pip would want them in the environment into which it installs.
"""

from __future__ import annotations

import sys

from scikit_build_core.build import build_editable

if __name__ == "__main__":
    wheels, build = sys.argv[1:]
    settings = {
        "build-dir": build,
        "editable.rebuild": "true",
        "editable.verbose": "false",
        "cmake.define.CUDA_GCTX_WERROR": "ON",
    }
    build_editable(wheels, settings)
