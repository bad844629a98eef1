"""PTX of programs that NVRTC compiles to machine code is kept, so that their kernels are executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed here")
pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed here")

SOURCE = """
extern "C" __global__ void scale(float* values, float by) {
  __shared__ float moved[64];
  moved[threadIdx.x ^ 1] = values[threadIdx.x] * by;
  __syncthreads();
  values[threadIdx.x] = moved[threadIdx.x];
}
"""
COMPILE = f"""
import sys
from cuda.core import Device, Program, ProgramOptions
device = Device()
device.set_current()
code = Program({SOURCE!r}, "c++", ProgramOptions(arch=f"sm_{{device.arch}}")).compile("cubin")
open(sys.argv[1], "wb").write(code.code)
"""
LAUNCH = """
import ctypes, sys
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
device = Device()
device.set_current()
stream = device.create_stream()
kernel = ObjectCode.from_cubin(open(sys.argv[1], "rb").read()).get_kernel("scale")
memory = LegacyPinnedMemoryResource().allocate(256)
values = (ctypes.c_float * 64).from_address(int(memory.handle))
values[:] = range(64)
launch(stream, LaunchConfig(grid=1, block=64), kernel, memory, ctypes.c_float(2))
stream.sync()
print(list(values)[:4])
"""


def run(code: str, argument: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_SOFTWARE_DRIVER_CACHE": str(cache)}
    words = ["-m", "cuda_software_driver", "run", "--driver", "13.5", "--", sys.executable, "-c", code, str(argument)]
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=120, env=environment
    )


def test_kernel_of_machine_code_is_executed_by_its_kept_ptx(tmp_path: Path) -> None:
    cubin, cache = tmp_path / "scale.cubin", tmp_path / "cache"
    assert (done := run(COMPILE, cubin, cache)).returncode == 0, done.stderr
    done = run(LAUNCH, cubin, cache)
    assert done.stdout == "[2.0, 0.0, 6.0, 4.0]\n", done.stderr


def test_machine_code_without_ptx_is_not_executed_and_says_what_to_do(tmp_path: Path) -> None:
    cubin = tmp_path / "scale.cubin"
    assert run(COMPILE, cubin, tmp_path / "cache").returncode == 0
    done = run(LAUNCH, cubin, tmp_path / "empty")
    assert done.returncode == 1
    assert "kernel scale writes, and the kernel was not executed (its image is machine code without PTX" in done.stderr
    assert "without -rdc=true" in done.stderr
    assert "clear caches of compiled kernels" in done.stderr


CONDITIONS = """
import ctypes
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
device = Device()
device.set_current()
stream = device.create_stream()
source = '''
extern "C" __device__ __cudart_builtin__ void CUDARTAPI cudaGraphSetConditional(
    cudaGraphConditionalHandle handle, unsigned int value);
extern "C" __global__ void count(int* word, cudaGraphConditionalHandle handle) {
  ++*word;
  cudaGraphSetConditional(handle, *word % 10 != 0);
}
extern "C" __global__ void choose(cudaGraphConditionalHandle handle, int value) {
  cudaGraphSetConditional(handle, value);
}
extern "C" __global__ void add(int* word) { *word += 100; }
'''
code = Program(source, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin")
count, choose, add = (code.get_kernel(name) for name in ("count", "choose", "add"))
memory, one = LegacyPinnedMemoryResource().allocate(4), LaunchConfig(grid=1, block=1)
word = ctypes.c_int.from_address(int(memory.handle))
word.value = 0

def launched(build):
    builder = device.create_graph_builder().begin_building()
    build(builder)
    graph = builder.end_building().complete()
    graph.launch(stream)
    stream.sync()
    return word.value

def loop(builder):
    condition = builder.create_condition(default_value=1)
    body = builder.while_loop(condition).begin_building()
    launch(body, one, count, memory, condition)
    body.end_building()

def choice(value):
    def build(builder):
        condition = builder.create_condition(default_value=0)
        launch(builder, one, choose, condition, ctypes.c_int(value))
        body = builder.if_then(condition).begin_building()
        launch(body, one, add, memory)
        body.end_building()
    return build

print(launched(loop), launched(choice(1)), launched(choice(0)))
"""


def test_kernels_set_the_conditions_of_a_graph(tmp_path: Path) -> None:
    done = run(CONDITIONS, tmp_path, tmp_path / "cache")
    assert done.stdout == "10 110 110\n", done.stderr
