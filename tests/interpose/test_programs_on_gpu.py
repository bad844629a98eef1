"""Unmodified programs in a part of a card: the SMs on which they run, and their results."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from ..conftest import REPOSITORY

pytestmark = pytest.mark.gpu_only

# The SM ids of a kernel whose blocks fill the device; each row is a way to launch it.
KERNEL = r"""
SOURCE = r'''extern "C" __global__ void where(unsigned *sms) {
  unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  long long begin = clock64(); while (clock64() - begin < 100000);
  if (threadIdx.x == 0) sms[blockIdx.x] = sm;
}'''
"""
TORCH = (
    KERNEL
    + r"""
import threading, torch
kernel = torch.cuda._compile_kernel(SOURCE, "where")
def seen(stream=None, graph=False):
    sms = torch.zeros(2048, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    launch = lambda: kernel((2048, 1, 1), (64, 1, 1), (sms,))
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured): launch()
        captured.replay()
    else:
        with torch.cuda.stream(stream or torch.cuda.current_stream()): launch()
    torch.cuda.synchronize()
    return set(sms.tolist())
class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, given): return given * 1
    @staticmethod
    def backward(context, grown): Backward.sms = seen(); return grown
rows = [seen(), seen(torch.cuda.Stream()), seen(torch.cuda.Stream(priority=-3)), seen(graph=True)]
Backward.apply(torch.ones(1, device="cuda", requires_grad=True)).sum().backward()
rows.append(Backward.sms)
thread = threading.Thread(target=lambda: rows.append(seen()))
thread.start(); thread.join()
print(torch.cuda.get_device_properties(0).multi_processor_count, *map(len, rows), len(set().union(*rows)))
"""
)
CUPY = (
    KERNEL
    + r"""
import cupy
kernel = cupy.RawKernel(SOURCE, "where")
def seen(stream):
    sms = cupy.zeros(2048, dtype=cupy.uint32)
    cupy.cuda.Device(0).synchronize()
    with stream: kernel((2048,), (64,), (sms,))
    cupy.cuda.Device(0).synchronize()
    return len(set(sms.get().tolist()))
streams = (cupy.cuda.Stream.null, cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(ptds=True))
print(*map(seen, streams))
"""
)
# Launches on each kind of default stream, the order of the NULL stream and a blocking stream, and a reset.
RUNTIME = r"""
#include <cstdio>
#include <set>
__global__ void where(unsigned *sms) {
  unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  long long begin = clock64(); while (clock64() - begin < 100000);
  if (threadIdx.x == 0) sms[blockIdx.x] = sm;
}
__global__ void late(int *x, int value) {
  long long begin = clock64(); while (clock64() - begin < 20000000);
  *x = value;
}
__global__ void copy(const int *x, int *y) { *y = *x; }
static int seen(cudaStream_t stream) {
  unsigned *sms, found[2048];
  cudaMalloc(&sms, sizeof found);
  where<<<2048, 64, 0, stream>>>(sms);
  cudaStreamSynchronize(stream);
  cudaMemcpy(found, sms, sizeof found, cudaMemcpyDeviceToHost);
  cudaFree(sms);
  return (int)std::set<unsigned>(found, found + 2048).size();
}
int main() {
  cudaStream_t blocking;
  cudaStreamCreate(&blocking);
  std::printf("%d %d %d ", seen(0), seen(blocking), seen(cudaStreamPerThread));
  int *x, *y, found, wrong = 0;
  cudaMalloc(&x, sizeof *x);
  cudaMalloc(&y, sizeof *y);
  for (int i = 1; i <= 10; ++i) {
    late<<<1, 1, 0, blocking>>>(x, 2 * i);
    copy<<<1, 1, 0, cudaStreamLegacy>>>(x, y);
    cudaDeviceSynchronize();
    cudaMemcpy(&found, y, sizeof found, cudaMemcpyDeviceToHost);
    wrong += found != 2 * i;
    late<<<1, 1, 0, cudaStreamLegacy>>>(x, 2 * i + 1);
    copy<<<1, 1, 0, blocking>>>(x, y);
    cudaDeviceSynchronize();
    cudaMemcpy(&found, y, sizeof found, cudaMemcpyDeviceToHost);
    wrong += found != 2 * i + 1;
  }
  std::printf("%d %d ", wrong, (int)cudaDeviceReset());
  std::printf("%d %d %d\n", seen(0), (int)cudaDeviceReset(), (int)cudaGetLastError());
}
"""


def in_part(*command: str | Path, sms: int = 40) -> CompletedProcess[str]:
    run = [sys.executable, "-m", "cuda_gctx.cli", "run", "--layout", f"part={sms},rest", "--as", "part"]
    done = subprocess.run(
        [*run, "--strict", "--verify", "--", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def test_torch_runs_on_the_sms_of_the_part() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    done = in_part(sys.executable, "-c", TORCH)
    assert done.stdout.split() == ["40"] * 8
    assert re.search(r"\d+ streams, 40 SMs +0$", done.stderr, re.MULTILINE), done.stderr


def test_cupy_runs_on_the_sms_of_the_part() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed here")
    assert in_part(sys.executable, "-c", CUPY).stdout.split() == ["40"] * 4


@pytest.mark.parametrize("options", [["-cudart", "static"], ["-cudart", "shared"], ["--default-stream", "per-thread"]])
def test_programs_of_nvcc_run_on_the_sms_of_the_part(tmp_path: Path, options: list[str]) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("there is no nvcc here")
    (tmp_path / "program.cu").write_text(RUNTIME)
    subprocess.run([compiler, "-o", tmp_path / "program", *options, tmp_path / "program.cu"], check=True)
    assert in_part(tmp_path / "program").stdout.split() == ["40", "40", "40", "0", "0", "40", "0", "0"]


@pytest.mark.parametrize("sms", [40, 104])
def test_results_of_libraries_are_right_where_a_wrong_count_makes_them_wrong(sms: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    done = in_part(sys.executable, REPOSITORY / "tests" / "hardware" / "library_results.py", sms=sms)
    for line in done.stdout.splitlines():
        part = json.loads(line)
        assert (part["torch sees"], part["wrong"]) == (sms, [])


def test_jax_sees_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax", reason="JAX is not installed here")
    code = "import jax\nones = jax.numpy.ones((256, 256))\nprint(jax.devices()[0].core_count, int((ones @ ones).sum()))"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert in_part(sys.executable, "-c", code).stdout.split() == ["40", str(256**3)]


def test_the_package_splits_the_part() -> None:
    code = (
        "from cuda_gctx import Device\nwith Device().partition(a=8, b=None) as parts:\n"
        "    report = parts.verify()\n    print(parts.a.sm_count, parts.b.sm_count)"
    )
    assert in_part(sys.executable, "-c", code).stdout.split() == ["8", "32"]
