"""Python imports this file when it starts under ``cuda-gctx run --as NAME``; then the one that this file hides."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from cuda_gctx.interop.at_start import follow_torch

follow_torch()

hidden = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != os.path.dirname(__file__)])
if hidden is not None and hidden.loader is not None:
    hidden.loader.exec_module(module_from_spec(hidden))
