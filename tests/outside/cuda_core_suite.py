"""Runs the tests of cuda.core's green contexts on the objects of this package.

    python tests/outside/cuda_core_suite.py CHECKOUT

CHECKOUT is a checkout of NVIDIA/cuda-python. The program changes what the migration page says: imports, and the stream
that is passed to cuda.core's own functions. Its exit status is 1 if a test fails that ``FAILURES`` does not name, or if
a named one passes. Each of these is a row of the table in docs/frameworks.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import cuda_software_driver as sim

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build" / "cuda-core-suite"
TESTS = Path("cuda_core", "tests", "test_green_context.py")

FAILURES = {
    "test_not_user_constructible": "constructing resources is a TypeError",
    "test_create_stream_on_primary_raises": "a primary context creates streams",
}

NAMES = (
    *("ContextOptions", "DeviceResources", "SMResource", "SMResourceOptions"),
    *("WorkqueueResource", "WorkqueueResourceOptions"),
)
# Patterns, and the text of a user of this package. The kernel and its launch remain cuda.core's.
CHANGES = (
    (rf"^    ({'|'.join(NAMES)}),\n", ""),
    (r"^from cuda\.core\.typing import ", f"from cuda_gctx import {', '.join(NAMES)}\nfrom cuda_gctx import "),
    (r"^from cuda\.core\.\S+ import CUDAError$", "from cuda_gctx import CUDAError"),
    (r"^( +)from cuda\.core import ", r"\1from cuda_gctx import "),
    (r"system\.get_num_devices\(\)", "Device.count()"),
    (r"launch\(stream, ", "launch(core_stream(stream), "),
    (r"\.copy_to\((\w+), stream=stream\)", r".copy_to(\1, stream=core_stream(stream))"),
)

# The fixture of cuda.core's own conftest.py, with a device of this package.
FIXTURE = """\
import cuda_gctx
import pytest


@pytest.fixture
def init_cuda():
    device = cuda_gctx.Device(0)
    device.set_current()
    return device
"""


def adapted(text: str) -> str:
    """The tests as a user of this package would change them. ValueError for a change that applies nowhere."""
    for pattern, replacement in CHANGES:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count == 0:
            raise ValueError(f"the tests have nothing like {pattern}: adapt CHANGES to this checkout")
    return f"from cuda_gctx.interop.cuda_core import core_stream\n{text}"


def failures(report: str) -> set[str]:
    """The names of the tests that failed, without parameters."""
    return set(re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", report, re.MULTILINE))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--machine", default="h200@13.1", help="the simulated machine")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "conftest.py").write_text(FIXTURE)
    (FOLDER / TESTS.name).write_text(adapted((arguments.checkout / TESTS).read_text()))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-rfE", f"--rootdir={FOLDER}", str(FOLDER)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": sim.library_folder(),
            "LD_PRELOAD": f"{sim.library_folder()}/libsoftware_driver_keep_ptx.so",
            "CUDA_SOFTWARE_DRIVER_CACHE": str(FOLDER / "ptx"),
            "CUDA_GCTX_DRIVER": sim.library_path(),
            "CUDA_SOFTWARE_DRIVER_MACHINE": arguments.machine,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, sep="\n")
    failed = failures(done.stdout)
    for name in sorted(failed - FAILURES.keys()):
        print(f"{name} fails, and no difference of the migration page names it")
    for name in sorted(FAILURES.keys() - failed):
        print(f"{name} passes: remove the difference ({FAILURES[name]})")
    return 1 if failed != FAILURES.keys() or done.returncode not in (0, 1) else 0


if __name__ == "__main__":
    sys.exit(main())
