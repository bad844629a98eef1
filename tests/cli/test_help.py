"""``--help`` of each command: it fits a narrow terminal, and its examples run as they are printed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_gctx.cli._root import root

from .test_command_line import child, commands, run

pytestmark = pytest.mark.sim_only

# The files that the examples name.
PROGRAM = "from cuda_gctx import Device\nprint(Device().sm_count)\n"
MODULE = """
from cuda_gctx.tune import spin
def control(stream): spin(stream, 8, 20_000)
def bulk(stream): spin(stream, 264, 200_000)
def work(): return {"control": control, "bulk": bulk}
"""
FILES = {"control.py": PROGRAM, "train.py": PROGRAM, "loop.py": PROGRAM, "my_module.py": MODULE}


def examples(help_text: str) -> Iterator[str]:
    """The commands below "Examples:", each with the lines that continue it."""
    block = help_text.partition("Examples:\n")[2].partition("\n\n")[0]
    lines = block.replace("\\\n", " ").splitlines()
    yield from (" ".join(line.split()) for line in lines)


PATHS = [path for path, _ in commands(root)]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_help_has_examples_that_run(path: tuple[str, ...], tmp_path: Path) -> None:
    found = list(examples(run(*path, "--help").stdout))
    assert found
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_GCTX_DRIVER": "sim:h200",
            "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "none"),
            "TMPDIR": temporary,  # its name must be short, for the daemon of MPS
        }
        for command in found:
            assert f"cuda-gctx {' '.join(path)}" in command
            words = ["sh", "-c", command]
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
            )
            assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("path", [(), ("sim",), *PATHS], ids=lambda path: " ".join(path) or "cuda-gctx")
def test_the_help_fits_60_columns(path: tuple[str, ...]) -> None:
    text = child(*path, "--help", COLUMNS="60").stdout
    assert [line for line in text.splitlines() if len(line) > 60] == []
