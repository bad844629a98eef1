"""Puts the studies on the path of modules, as running one of them does."""

from __future__ import annotations

import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[2]
if str(STUDIES) not in sys.path:
    sys.path.append(str(STUDIES))
