"""Puts the studies on the path of modules, as running one of them does, and this folder, for what its tests share."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
