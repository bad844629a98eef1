"""The drawing of the rooms is that of the order that the test of arrows holds."""

from __future__ import annotations

import subprocess
import sys

from ..conftest import REPOSITORY


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    script = REPOSITORY / "docs" / "draw_rooms.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
