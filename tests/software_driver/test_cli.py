"""Both command lines of the software driver give this package the machine, and print the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.sim_only


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return program("-m", "cuda_software_driver", *arguments)


def test_run_gives_this_package_the_same_machine() -> None:
    ask = "from cuda_gctx import Device, system; print(Device.count(), Device(1).name, system.driver_version)"
    done = command("run", "--driver", "12.8", "--devices", "2", "--", sys.executable, "-c", ask)
    assert done.stdout == "2 NVIDIA H200 (simulated) (12, 8)\n"


FOREIGN_FIRST = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
foreign = ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(foreign), 0) == 0
from cuda_gctx import Device
assert Device(0).context.handle == foreign.value, "another machine"
"""


def test_run_shares_the_machine_with_libraries_that_use_the_driver_before_the_package() -> None:
    done = command("run", "--", sys.executable, "-c", FOREIGN_FIRST)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["profiles"],
        ["profiles", "--json"],
        ["explain"],
        ["path"],
        ["run", "--gpu", "b200", "--", sys.executable, "-c", "raise SystemExit(7)", "--json"],
        ["run", "--gpu", "voodoo", "--", "true"],
        ["run"],
    ],
    ids=" ".join,
)
def test_the_command_line_of_the_package_does_the_same(arguments: list[str]) -> None:
    pytest.importorskip("click", reason="click is not installed here")
    this, that = command(*arguments), program("-m", "cuda_gctx.cli", "sim", *arguments)
    assert (this.returncode, this.stdout) == (that.returncode, that.stdout)


def test_help_names_the_command_of_this_package() -> None:
    pytest.importorskip("click", reason="click is not installed here")
    assert program("-m", "cuda_gctx.cli", "sim", "--help").stdout.startswith("Usage: cuda-gctx sim ")
