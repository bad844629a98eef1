"""What scripts write into the documentation is what they would write now: the drawing of the rooms, and the outputs of
examples on a GPU.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..conftest import REPOSITORY


@pytest.mark.parametrize("script", ["draw_rooms.py", "record_outputs.py"])
def test_what_a_script_writes_is_up_to_date(script: str) -> None:
    command = [sys.executable, str(REPOSITORY / "docs" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
