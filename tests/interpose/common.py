"""Programs that run in a part of the software driver's device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from cuda_gctx.interpose import environment_of
from cuda_gctx.partitions import layout_of_text
from cuda_software_driver import library_path

from ..common import CUDA_INCLUDE

# Prints the SM count of the device, and a sum of 1024.
NUMBA = """
import numba.cuda, numpy
@numba.cuda.jit
def add(x): x[numba.cuda.grid(1)] += 1
x = numba.cuda.to_device(numpy.zeros(1024, numpy.int32))
add[8, 128](x)
print(numba.cuda.get_current_device().MULTIPROCESSOR_COUNT, x.copy_to_host().sum())
"""

# The first lines of each program in Python.
BEGIN = """
from cuda.bindings import driver as cu
def ask(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
SMS = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
ask(cu.cuInit(0))
device = ask(cu.cuDeviceGet(0))
def use(number=0):
    context = ask(cu.cuDevicePrimaryCtxRetain(number))
    ask(cu.cuCtxSetCurrent(context))
    return context
def sms_of(context):
    return ask(cu.cuCtxGetDevResource(context, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)).sm.smCount
PTX = b".version 8.0\\n.target sm_90\\n.address_size 64\\n.visible .entry k(){ret;}\\0"
def launch(stream, blocks=100_000):
    library = ask(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    kernel = cu.CUfunction(int(ask(cu.cuLibraryGetKernel(library, b"k"))))
    ask(cu.cuLaunchKernel(kernel, blocks, 1, 1, 256, 1, 1, 0, stream, 0, 0))
def is_done(stream):
    return int(cu.cuStreamQuery(stream)[0]) == 0
"""


def part_environment(
    layout: str = "control=16,rest", name: str = "control", machine: str = "h200@13.0", **more: str
) -> dict[str, str]:
    environment = environment_of(layout_of_text(layout), name, str(library_path()), os.environ)
    return {**environment, "CUDA_SOFTWARE_DRIVER_MACHINE": machine, **more}


def run_in_part(
    command: Sequence[str | Path], environment: Mapping[str, str], cwd: Path | None = None
) -> CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False, timeout=120, cwd=cwd
    )


def answers(code: str, layout: str = "control=16,rest", name: str = "control", **more: str) -> str:
    """Return the output of a program in Python that runs in a part."""
    done = run_in_part([sys.executable, "-c", BEGIN + code], part_environment(layout, name, **more))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def compiled(file: Path, source: str, *options: str) -> Path:
    """A program or a library, from a source in C."""
    compiler = shutil.which("cc")
    assert compiler is not None, "no C compiler"
    text = file.with_name(f"{file.name}.c")
    text.write_text(source)
    include = [] if CUDA_INCLUDE is None else ["-I", str(CUDA_INCLUDE)]
    # A library that was built with sanitizers finds their functions when it is loaded.
    linking = "-Wl,--allow-shlib-undefined"
    subprocess.run([compiler, "-o", str(file), str(text), *include, *options, linking], check=True)
    return file
