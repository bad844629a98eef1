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

from cuda_gctx import Device

from ..conftest import REPOSITORY
from .common import NUMBA

pytestmark = [pytest.mark.gpu_only, pytest.mark.alone]

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
# Sums on a stream of its own; the allocator is that of the environment.
SUM = """
import torch
parts = [torch.full((1 << 20,), i, device="cuda") for i in range(50)]
torch.cuda.synchronize()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream): total = sum(parts)
stream.synchronize()
print(torch.cuda.get_device_properties(0).multi_processor_count, int(total[0]), int(total[-1]))
"""
DATA_LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.zeros(1, device="cuda")
loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=8, num_workers=2, pin_memory=True)
print(sum(int(batch.cuda(non_blocking=True).sum()) for batch, in loader))
"""
# A worker adds to a tensor of its parent.
SENT = """
import torch
import torch.multiprocessing as mp
def work(tensor, answers):
    tensor += 1
    torch.cuda.synchronize()
    answers.put(torch.cuda.get_device_properties(0).multi_processor_count)
if __name__ == "__main__":
    context = mp.get_context("spawn")
    answers = context.Queue()
    tensor = torch.arange(1000, device="cuda")
    torch.cuda.synchronize()
    worker = context.Process(target=work, args=(tensor, answers))
    worker.start()
    sms = answers.get(timeout=120)
    worker.join()
    print(sms, bool((tensor == torch.arange(1, 1001, device="cuda")).all()))
"""
GENERATE = """
import torch, transformers
torch.manual_seed(0)
config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=1000, bos_token_id=0, eos_token_id=None)
model = transformers.GPT2LMHeadModel(config).cuda().eval()
given = torch.randint(0, 1000, (2, 16), device="cuda")
print(model.generate(given, max_new_tokens=32, do_sample=False, pad_token_id=0).tolist())
"""
PROFILE = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.ones(512, 512, device="cuda")
with profile(activities=[ProfilerActivity.CUDA]) as profiled:
    y = x @ x
    torch.cuda.synchronize()
print(sum(event.count for event in profiled.key_averages() if "gemm" in event.key.lower()), int(y[0, 0]))
"""
TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def where(sms):
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(sms + tl.program_id(0), sm)
sms = torch.zeros(8192, dtype=torch.int32, device="cuda")
where[(8192,)](sms)
print(len(set(sms.tolist())))
"""
# A stream of a green context of the program stands until the host writes to a word. The wait for the context, an event
# of the context, and the context's wait for an event cover the stream.
WAITS = """
import ctypes, threading, time
from cuda.bindings import driver as cu
def ask(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ask(cu.cuInit(0))
context = ask(cu.cuDevicePrimaryCtxRetain(0))
ask(cu.cuCtxSetCurrent(context))
whole = ask(cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
groups, count, rest = ask(cu.cuDevSmResourceSplitByCount(1, whole, 0, 8))
green = ask(cu.cuGreenCtxCreate(ask(cu.cuDevResourceGenerateDesc([groups[0]], 1)), 0, 1))
inner, outer = ask(cu.cuGreenCtxStreamCreate(green, 1, 0)), ask(cu.cuStreamCreate(1))
memory = ask(cu.cuMemAlloc(64))
word = ctypes.c_uint32.from_address(int(ask(cu.cuMemHostAlloc(4, 2))))
address = ask(cu.cuMemHostGetDevicePointer(ctypes.addressof(word), 0))
def stand(stream):
    word.value = 0
    ask(cu.cuStreamWaitValue32(stream, address, 1, 0))
def is_done(stream):
    return int(cu.cuStreamQuery(stream)[0]) == 0
def go():
    time.sleep(0.2)
    word.value = 1
event = ask(cu.cuEventCreate(2))
stand(inner)
thread = threading.Thread(target=go)
thread.start()
ask(cu.cuCtxSynchronize())
print(is_done(inner))
thread.join()
stand(inner)
ask(cu.cuCtxRecordEvent(context, event))
print(int(cu.cuEventQuery(event)[0]) == 600)
word.value = 1
ask(cu.cuEventSynchronize(event))
print(is_done(inner))
stand(outer)
ask(cu.cuEventRecord(event, outer))
ask(cu.cuCtxWaitEvent(context, event))
ask(cu.cuMemsetD8Async(memory, 1, 64, inner))
print(is_done(inner))
word.value = 1
ask(cu.cuStreamSynchronize(inner))
print(is_done(outer))
"""
PEERS = """
import torch
first = torch.arange(1 << 20, device="cuda:0")
second = first.to("cuda:1")
second += 1
back = second.to("cuda:0")
for i in range(2): torch.cuda.synchronize(i)
print(torch.cuda.can_device_access_peer(0, 1), bool((back == first + 1).all()))
"""
NCCL_IN_ONE_PROCESS = """
import torch
given = [torch.full((1 << 20,), i + 1.0, device=f"cuda:{i}") for i in range(2)]
torch.cuda.nccl.all_reduce(given)
for i in range(2): torch.cuda.synchronize(i)
print(*(float(tensor.min()) for tensor in given), *(float(tensor.max()) for tensor in given))
print(*(torch.cuda.get_device_properties(i).multi_processor_count for i in range(2)))
"""
NCCL_IN_TWO_PROCESSES = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(rank, folder):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    tensor = torch.full((1 << 20,), rank + 1.0, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    sms = torch.cuda.get_device_properties(rank).multi_processor_count
    os.write(1, f"{sms} {float(tensor.min())} {float(tensor.max())}\\n".encode())
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), 2)
"""
JAX_ON_TWO_DEVICES = """
import jax, numpy
mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("x",))
ones = jax.device_put(jax.numpy.ones((1024, 1024)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
print(len(jax.devices()), float((ones @ ones.T).sum()), *(device.core_count for device in jax.devices()))
"""
JAX_PRODUCT = (
    "import jax\nones = jax.numpy.ones((256, 256))\nprint(jax.devices()[0].core_count, int((ones @ ones).sum()))"
)


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


def shared(*words: str | Path) -> CompletedProcess[str]:
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip("there is no nvidia-cuda-mps-control here")
    share = [sys.executable, "-m", "cuda_gctx.cli", "share", *map(str, words)]
    return subprocess.run(share, capture_output=True, text=True, check=False, timeout=240)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def demand(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed here", exc_type=ImportError)


def program_of_nvcc(file: Path, source: str, *options: str) -> Path:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("there is no nvcc here")
    text = file.with_suffix(".cu")
    text.write_text(source)
    subprocess.run([compiler, "-o", file, *options, text], check=True)
    return file


def test_torch_runs_on_the_sms_of_the_part() -> None:
    demand("torch")
    done = in_part(*python(TORCH))
    assert done.stdout.split() == ["40"] * 8
    assert re.search(r"\d+ streams, 40 SMs +0$", done.stderr, re.MULTILINE), done.stderr


def test_cupy_runs_on_the_sms_of_the_part() -> None:
    demand("cupy")
    assert in_part(*python(CUPY)).stdout.split() == ["40"] * 4


def test_triton_runs_on_the_sms_of_the_part(tmp_path: Path) -> None:
    demand("torch", "triton")
    (tmp_path / "kernel.py").write_text(TRITON)  # Triton reads the source
    assert in_part(sys.executable, tmp_path / "kernel.py").stdout == "40\n"


def test_waits_for_the_part_cover_green_contexts_of_the_program() -> None:
    demand("cuda.bindings")
    assert in_part(*python(WAITS)).stdout.split() == ["True", "True", "True", "False", "True"]


@pytest.mark.parametrize("options", [["-cudart", "static"], ["-cudart", "shared"], ["--default-stream", "per-thread"]])
def test_programs_of_nvcc_run_on_the_sms_of_the_part(tmp_path: Path, options: list[str]) -> None:
    program = program_of_nvcc(tmp_path / "program", RUNTIME, *options)
    assert in_part(program).stdout.split() == ["40", "40", "40", "0", "0", "40", "0", "0"]


@pytest.mark.parametrize("sms", [40, 104])
def test_results_of_libraries_are_right_where_a_wrong_count_makes_them_wrong(sms: int) -> None:
    demand("torch")
    done = in_part(sys.executable, REPOSITORY / "tests" / "hardware" / "library_results.py", sms=sms)
    for line in done.stdout.splitlines():
        part = json.loads(line)
        assert (part["torch sees"], part["wrong"]) == (sms, [])


def test_jax_sees_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    demand("jax")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert in_part(*python(JAX_PRODUCT)).stdout.split() == ["40", str(256**3)]


def test_the_package_splits_the_part() -> None:
    code = (
        "from cuda_gctx import Device\nwith Device().partition(a=8, b=None) as parts:\n"
        "    report = parts.verify()\n    print(parts.a.sm_count, parts.b.sm_count)"
    )
    assert in_part(*python(code)).stdout.split() == ["8", "32"]


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_torch_is_right_with_each_allocator(allocator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    demand("torch")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", allocator)
    assert in_part(*python(SUM)).stdout.split() == ["40", "1225", "1225"]


def test_workers_of_a_data_loader_feed_the_program() -> None:
    demand("torch")
    assert in_part(*python(DATA_LOADER)).stdout.split() == [str(sum(range(64)))]


def test_a_tensor_is_shared_with_a_worker(tmp_path: Path) -> None:
    demand("torch")
    (tmp_path / "sent.py").write_text(SENT)
    assert in_part(sys.executable, tmp_path / "sent.py").stdout.split() == ["40", "True"]


def test_transformers_generates_what_it_generates_on_the_whole_card() -> None:
    demand("torch", "transformers")
    outside = subprocess.run(python(GENERATE), capture_output=True, text=True, check=True, timeout=240)
    assert in_part(*python(GENERATE)).stdout == outside.stdout


def test_the_profiler_of_torch_sees_kernels_in_the_part() -> None:
    demand("torch")
    kernels, result = in_part(*python(PROFILE)).stdout.split()
    assert (int(kernels) > 0, result) == (True, "512")


def test_numba_runs_in_the_part() -> None:
    demand("numba.cuda")
    outside = subprocess.run(python(NUMBA), capture_output=True, text=True, check=False, timeout=240)
    if outside.returncode:
        pytest.skip(f"the program fails on the whole card, too: {outside.stderr.strip().splitlines()[-1]}")
    assert in_part(*python(NUMBA)).stdout.split() == ["40", "1024"]


def test_compute_sanitizer_checks_a_program_in_the_part(tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("there is no compute-sanitizer here")
    program = program_of_nvcc(tmp_path / "program", RUNTIME)
    done = in_part(sanitizer, "--error-exitcode", "9", program)
    assert "ERROR SUMMARY: 0 errors" in done.stdout
    assert "40 40 40 0 0 40 0 0" in done.stdout


def demand_two_devices() -> None:
    demand("torch")
    if Device.count() < 2:
        pytest.skip("there is one GPU here")


def test_devices_copy_to_each_other_between_parts() -> None:
    demand_two_devices()
    peers, result = in_part(*python(PEERS)).stdout.split()
    assert (peers in ("True", "False"), result) == (True, "True")


def test_nccl_reduces_over_two_parts_in_one_process() -> None:
    demand_two_devices()
    assert in_part(*python(NCCL_IN_ONE_PROCESS)).stdout.split() == ["3.0"] * 4 + ["40"] * 2


def test_nccl_reduces_over_two_parts_in_two_processes(tmp_path: Path) -> None:
    demand_two_devices()
    (tmp_path / "ranks.py").write_text(NCCL_IN_TWO_PROCESSES)
    assert in_part(sys.executable, tmp_path / "ranks.py", tmp_path).stdout == "40 3.0 3.0\n" * 2


def test_jax_computes_over_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    demand("jax")
    demand_two_devices()
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert in_part(*python(JAX_ON_TWO_DEVICES)).stdout.split() == ["2", str(1024.0**3), "40", "40"]


def test_three_programs_share_the_card(tmp_path: Path) -> None:
    demand("torch", "cupy")
    program = program_of_nvcc(tmp_path / "program", RUNTIME)
    words = ("a=16", "--", *python(TORCH), ":", "b=32", "--", *python(CUPY), ":", "rest", "--", program)
    done = shared(*words)
    assert done.returncode == 0, done.stderr
    rest = str(Device().sm_count - 48)
    assert sorted(done.stdout.splitlines()) == sorted(
        [" ".join(["16"] * 8), " ".join(["32"] * 4), f"{rest} {rest} {rest} 0 0 {rest} 0 0"]
    )
    rows = re.findall(r"^\d+ \S+ +(a|b|rest) +(\d+) +\d+ +\d+ +0$", done.stderr, re.MULTILINE)
    assert sorted(rows) == [("a", "16"), ("b", "32"), ("rest", rest)], done.stderr


def test_two_programs_of_jax_share_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    demand("jax")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    done = shared("a=40", "--", *python(JAX_PRODUCT), ":", "rest", "--", *python(JAX_PRODUCT))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted([f"{n} {256**3}" for n in (40, Device().sm_count - 40)])


def test_a_fault_of_one_program_ends_the_others() -> None:
    demand("cupy")
    fault = (
        KERNEL + "import cupy, time\ntime.sleep(3)\ncupy.RawKernel(SOURCE, 'where')((1,), (1,), (cupy.uint64(8),))\n"
    )
    wait = "cupy.cuda.Device(0).synchronize()\n"
    neighbour = "import cupy\nx = cupy.ones(1000)\nwhile True: x += 1; cupy.cuda.Device(0).synchronize()"
    done = shared("a=16", "--", *python(fault + wait), ":", "rest", "--", *python(neighbour))
    assert done.returncode not in (0, 124)
    assert "cudaError" in done.stderr
