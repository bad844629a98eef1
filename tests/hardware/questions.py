"""Asks a card what the documentation leaves open: the CUDA runtime, cuBLAS, locks, NCCL and Inductor in partitions.

    python tests/hardware/questions.py [--out FOLDER] [QUESTION ...]

Needs a GPU, torch and cuda.core; runtime_streams needs libcudart of CUDA 13.1 or newer (nvidia-cuda-runtime), and
one_cta two GPUs.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from asking import Answer, Question, main, say


def runtime_streams() -> Answer:
    """What the CUDA runtime reports of a partition's stream, and whether one of an execution context can be adopted."""
    from cuda_gctx import Device, Stream

    files = importlib.metadata.files("nvidia-cuda-runtime") or []
    path = next(str(file.locate()) for file in files if file.name.startswith("libcudart.so"))
    cudart = ctypes.CDLL(path)
    cudart.cudaGetErrorName.restype = ctypes.c_char_p
    answers: Answer = {"library": Path(path).name}

    def ask(name: str, *arguments: Any) -> bool:
        code = getattr(cudart, name)(*arguments)
        answers[name] = cudart.cudaGetErrorName(code).decode()
        return bool(code == 0)

    version = ctypes.c_int()
    ask("cudaRuntimeGetVersion", ctypes.byref(version))
    answers["version"] = version.value
    with Device(0).partition(small=16, rest=None) as parts:
        stream = ctypes.c_void_p(parts.small.stream.handle)
        memory, resource = ctypes.c_void_p(), (ctypes.c_uint * 64)()
        ask("cudaMalloc", ctypes.byref(memory), 1 << 20)
        ask("cudaMemsetAsync", memory, 0, 1 << 20, stream)
        ask("cudaStreamSynchronize", stream)
        if ask("cudaStreamGetDevResource", stream, resource, 1):
            # The type, 92 bytes of padding, then the number of SMs.
            answers["reported"] = resource[24]
        ask("cudaFree", memory)
    context, theirs = ctypes.c_void_p(), ctypes.c_void_p()
    if ask("cudaDeviceGetExecutionCtx", ctypes.byref(context), 0) and ask(
        "cudaExecutionCtxStreamCreate", ctypes.byref(theirs), context, ctypes.c_uint(1), 0
    ):
        adopted = Stream.from_handle(theirs.value or 0)
        answers["adopted"] = adopted.resources.sm.sm_count
        adopted.sync()
        adopted.close()
        ask("cudaStreamDestroy", theirs)
    return answers


def alternating_streams() -> Answer:
    """GEMMs of torch on two partitions' streams in turn, on one thread: errors and wrong results."""
    import torch

    from cuda_gctx import Device

    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = a @ b
    calls = 20_000
    with Device(0).partition(first=32, second=None) as parts:
        streams = [torch.cuda.ExternalStream(part.stream.handle) for part in parts]
        results: list[Any] = [None, None]
        for call in range(calls):
            with torch.cuda.stream(streams[call % 2]):
                results[call % 2] = a @ b
        torch.cuda.synchronize()
        wrong = [float((result.float() - expected.float()).abs().max()) for result in results]
        del results
    return {"calls": calls, "largest difference": wrong}


def grids(call: Any) -> list[list[Any]]:
    """The kernels of a call of torch and their grids."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        seen.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    return [[event["name"][:60], event["args"]["grid"]] for event in events if event.get("cat") == "kernel"]


def cublas_grids() -> Answer:
    """The grids of cuBLAS's kernels on the whole device, and in a partition without a hint for the number of SMs."""
    import torch

    from cuda_gctx import Device

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    a @ b  # loads what it needs
    found: Answer = {"whole": grids(lambda: a @ b)}
    with Device(0).partition(small=16, rest=None) as parts:
        with torch.cuda.stream(torch.cuda.ExternalStream(parts.small.stream.handle)):
            a @ b
            found["small"] = grids(lambda: a @ b)
        torch.cuda.synchronize()
    return found


# A tile of a split-K product as Marlin has it: the blocks of one tile add their parts one after the other. Each waits
# until the tile's lock counts those before it; the last one sets the lock back to zero.
SPLIT_K = r"""
extern "C" __global__ void split_k(int *locks, float *sums, long long parts, long long cycles) {
  const long long tile = blockIdx.x / parts, part = blockIdx.x % parts;
  int *lock = locks + tile;
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}  // the product
  if (threadIdx.x == 0) {
    int seen;
    do {
      asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(seen) : "l"(lock) : "memory");
    } while (seen != part);
  }
  __syncthreads();
  float *sum = sums + tile * blockDim.x + threadIdx.x;
  *sum = (part == 0 ? 0.0f : *(volatile float *)sum) + 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (part == parts - 1) *(volatile int *)lock = 0;
    else atomicAdd(lock, 1);
  }
}
"""


def compiled(source: str, name: str) -> Any:
    import cuda.core

    device = cuda.core.Device(0)
    device.set_current()
    options = cuda.core.ProgramOptions(arch=f"sm_{device.arch}")
    return cuda.core.Program(source, code_type="c++", options=options).compile("cubin").get_kernel(name)


def shared_locks() -> Answer:
    """Two partitions that run one Marlin-like layer at once, with locks of their own and with the same ones."""
    import cuda.core
    import torch

    from cuda_gctx import Device
    from cuda_gctx.interop import check
    from cuda_gctx.interop.cuda_core import core_stream

    tiles, parts_of_k, threads, rounds, limit_s = 16, 4, 256, 200, 2.0

    class Layer:
        """As the layers of a quantised model: weights that may be shared, and the array of locks."""

        def __init__(self) -> None:
            self.weight = torch.zeros(1, device="cuda")
            self.workspace = torch.zeros(tiles, dtype=torch.int32, device="cuda")

    kernel = compiled(SPLIT_K, "split_k")
    config = cuda.core.LaunchConfig(grid=tiles * parts_of_k, block=threads)
    answer: Answer = {"blocks": tiles * parts_of_k, "rounds": rounds}
    with Device(0).partition(first=16, second=16) as parts:
        streams = [core_stream(part) for part in parts]
        sums = [torch.zeros(tiles * threads, device="cuda") for _ in parts]
        one, other = Layer(), Layer()

        def run(*layers: Layer) -> bool:
            """Whether all rounds end: each a launch in each partition."""
            for done in range(rounds):
                for stream, layer, sum_ in zip(streams, layers, sums, strict=True):
                    pointers = layer.workspace.data_ptr(), sum_.data_ptr()
                    cuda.core.launch(stream, config, kernel, *pointers, parts_of_k, 20_000)
                end = time.monotonic() + limit_s
                while not all(part.stream.is_done for part in parts):
                    if time.monotonic() > end:
                        answer["rounds before the hang"] = done
                        return False
            return True

        for name, layers in (("locks of their own", (one, other)), ("the same locks", (one, one))):
            torch.cuda.synchronize()
            report = check(first=layers[0], second=layers[1])
            answer[name] = {"check says before": [[one.kind, *one.places, one.advice] for one in report.shared]}
            say(answer)
            ended = run(*layers)
            answer[name]["ends"] = ended
            if not ended:
                answer["hangs"] = True
                say(answer)
                os.kill(os.getpid(), signal.SIGKILL)  # nothing else ends its kernels
            answer[name]["right"] = all(bool((sum_ == parts_of_k).all()) for sum_ in sums)
            say(answer)
    return answer


# Returns how often it has run before, by a variable of the library.
COUNT = r"""
__device__ unsigned count;
extern "C" __global__ void next(unsigned *out) { *out = count++; }
"""


def library_variables() -> Answer:
    """Whether a variable of a library is the same one in the primary context, in a partition and in a moved graph."""
    import cuda.core
    import torch
    from cuda.bindings import driver

    from cuda_gctx import Device
    from cuda_gctx.interop.cuda_core import core_stream

    dev = Device(0)
    core = cuda.core.Device(0)
    core.set_current()
    options = cuda.core.ProgramOptions(arch=f"sm_{core.arch}")
    code = cuda.core.Program(COUNT, code_type="c++", options=options).compile("cubin")
    kernel, config = code.get_kernel("next"), cuda.core.LaunchConfig(grid=1, block=1)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    answer: Answer = {}
    with dev.partition(one=16, other=16) as parts, dev.create_stream() as whole:
        places = {"whole": whole, "one": parts.one.stream, "other": parts.other.stream}

        def counted(stream: Any) -> int:
            cuda.core.launch(core_stream(stream), config, kernel, out.data_ptr())
            stream.sync()
            return int(out.item())

        answer["launched"] = [[name, counted(places[name])] for name in ("whole", "whole", "one", "other", "whole")]
        say(answer)
        with whole.capture() as capture:
            cuda.core.launch(core_stream(whole), config, kernel, out.data_ptr())
        answer["one graph"] = []
        for name, place in (("whole", dev), ("one", parts.one), ("other", parts.other), ("whole", dev)):
            with capture.graph.in_partition(place) as moved:
                moved.launch(places[name])
                places[name].sync()
                answer["one graph"].append([name, int(out.item())])
        say(answer)
        addresses = []
        for stream in places.values():
            with stream.context.current():
                error, address, _ = driver.cuLibraryGetGlobal(driver.CUlibrary(int(code.handle)), b"count")
                addresses.append(int(address) if int(error) == 0 else f"error {int(error)}")
        answer["one address"] = len(set(addresses)) == 1
    return answer


def nccl_context() -> Answer:
    """Which context is current after NCCL made a communicator under a green context, and after new_group() did."""
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}
    import torch
    import torch.distributed as dist
    from cuda.bindings import driver

    from cuda_gctx import Device
    from cuda_gctx.interop.nccl import new_group

    torch.zeros(1, device="cuda")
    dev = Device(0)
    answer: Answer = {"NCCL": ".".join(map(str, torch.cuda.nccl.version()))}
    with dev.partition(comm=16, rest=None) as parts:
        names = {dev.context.handle: "primary", parts.comm.context.handle: "green", 0: "none"}

        def after(what: str, make: Any) -> None:
            dev.set_current(parts.comm.context)
            try:
                make()
            finally:
                _, current = driver.cuCtxGetCurrent()
                answer[what] = names.get(int(current), "another one")
                dev.set_current(dev.context)
                say(answer)

        def raw() -> None:
            """One communicator of one rank, by NCCL's own calls."""

            class UniqueId(ctypes.Structure):
                _fields_ = (("bytes", ctypes.c_char * 128),)

            nccl = ctypes.CDLL("libnccl.so.2")
            nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
            unique, comm = UniqueId(), ctypes.c_void_p()
            for code in (
                nccl.ncclGetUniqueId(ctypes.byref(unique)),
                nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0),
            ):
                if code:
                    raise RuntimeError(f"NCCL error {code}")

        after("ncclCommInitRank", raw)
        after(
            "init_process_group",
            lambda: dist.init_process_group(
                "nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0)
            ),
        )
        after("new_group(part)", lambda: new_group(parts.comm))
        dist.destroy_process_group()
    return answer


# Each block notes its SM and when it began, and stays. Two blocks of 1024 threads fit on an SM, and one where any other
# block is: an SM with fewer at first is one that something else uses.
PRESENCE = r"""
extern "C" __global__ void presence(unsigned long long *out, long long ns) {
  if (threadIdx.x == 0) {
    unsigned long long begin, now;
    unsigned sm;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    out[2 * blockIdx.x] = sm;
    out[2 * blockIdx.x + 1] = begin;
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < ns);
  }
}
"""


def rank_of_one_cta() -> None:
    """A rank of two: an all-reduce by a communicator with one CTA, and the SMs that it keeps meanwhile."""
    import cuda.core
    import torch
    import torch.distributed as dist

    from cuda_gctx import Device
    from cuda_gctx.interop.cuda_core import core_stream
    from cuda_gctx.interop.nccl import new_group

    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    dev = Device(rank)
    answer: Answer = {"NCCL": ".".join(map(str, torch.cuda.nccl.version()))}
    blocks = 2 * dev.sm_count
    if rank == 0:
        kernel = compiled(PRESENCE, "presence")
        config = cuda.core.LaunchConfig(grid=blocks, block=1024)
    with dev.create_stream() as stream:
        if rank == 0:
            # The first launch loads the kernel, and waits for the device.
            out = torch.zeros(blocks, 2, dtype=torch.int64, device="cuda")
            cuda.core.launch(core_stream(stream), config, kernel, out.data_ptr(), 1000)
        for name, ctas in (("1 CTA", 1), ("4 CTAs", 4), ("not limited", None)):
            group = new_group(dev.context, ctas=ctas)
            x = torch.ones(1 << 28, device="cuda")
            dist.all_reduce(x, group=group)
            kernels = grids(lambda x=x, group=group: dist.all_reduce(x, group=group))
            torch.cuda.synchronize()
            for _ in range(16):
                dist.all_reduce(x, group=group)
            end = torch.cuda.Event()
            end.record()
            if rank == 0:
                # Some looks meet the end of a collective: the one that finds the most counts.
                looks = []
                for _ in range(5):
                    time.sleep(0.003)
                    cuda.core.launch(core_stream(stream), config, kernel, out.data_ptr(), 400_000)
                    stream.sync()
                    if end.query():
                        break
                    rows = out.tolist()
                    first = min(begin for _, begin in rows)
                    early = [sm for sm, begin in rows if begin - first < 200_000]
                    looks.append(sorted(sm for sm in range(dev.sm_count) if early.count(sm) < 2))
                kept = max(looks, key=len, default=[])
                answer[name] = {"grids": kernels, "looks": list(map(len, looks)), "SMs": len(kept), "SM ids": kept[:40]}
                say(answer)
            torch.cuda.synchronize()
    dist.destroy_process_group()


def one_cta() -> Answer:
    """How many SMs a collective uses whose communicator has one CTA: by its grid, and by the SM ids that are left."""
    from cuda_gctx import Device

    if Device.count() < 2:
        return {"needs": "two GPUs"}
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2"}
    environment |= {"NCCL_NVLS_ENABLE": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"],
            env=environment | {"RANK": str(rank)},
            stdout=sys.stdout if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes, key=abs))


def inductor_grids() -> Answer:
    """The grids of Inductor's persistent GEMM, compiled outside of a partition and inside, and called in both."""
    import torch
    import torch._inductor.config as inductor

    from cuda_gctx import Device

    inductor.max_autotune = True
    inductor.max_autotune_gemm_backends = "TRITON"
    inductor.triton.enable_persistent_tma_matmul = True
    inductor.test_configs.autotune_choice_name_regex = "mm_persistent_tma"
    if hasattr(inductor.test_configs, "autotune_choice_desc_regex"):
        inductor.test_configs.autotune_choice_desc_regex = r"BLOCK_K=64\b.*BLOCK_N=128\b.*num_stages=3\b"  # quicker
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = a @ b
    answer: Answer = {}

    def product(a: Any, b: Any) -> Any:
        return a @ b

    with Device(0).partition(small=16, rest=None) as parts:

        def note(name: str, function: Any, inside: bool) -> None:
            block = parts.small.torch(library_sms="on") if inside else torch.cuda.stream(torch.cuda.default_stream())
            with block:
                same = bool(torch.allclose(function(a, b), expected, rtol=2e-2, atol=1))
                seen = grids(lambda: function(a, b))
            answer[name] = {"grids": [[kernel, grid] for kernel, grid in seen if grid != [1, 1, 1]], "right": same}
            say(answer)

        try:
            torch.compile(product)(a, b)
        except Exception:  # this torch describes its choices in other words
            inductor.test_configs.autotune_choice_desc_regex = None
        torch._dynamo.reset()
        outside = torch.compile(product)
        note("compiled outside, called outside", outside, inside=False)
        note("compiled outside, called inside", outside, inside=True)
        torch._dynamo.reset()
        inside = torch.compile(product)
        note("compiled again inside, called inside", inside, inside=True)
        inductor.force_disable_caches = True
        torch._dynamo.reset()
        inside = torch.compile(product)
        note("the same without Inductor's cache, called inside", inside, inside=True)
        note("the same without Inductor's cache, called outside", inside, inside=False)
    return answer


QUESTIONS = {
    "runtime_streams": Question(runtime_streams, 8),
    "alternating_streams": Question(alternating_streams, 12),
    "cublas_grids": Question(cublas_grids, 15),
    "library_variables": Question(library_variables, 15),
    "nccl_context": Question(nccl_context, 20),
    "inductor_grids": Question(inductor_grids, 75),
    "one_cta": Question(one_cta, 40),
    "shared_locks": Question(shared_locks, 20),  # the last one: its kernels do not end by themselves
}


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        rank_of_one_cta()
    else:
        main(__file__, __doc__ or "", "questions", QUESTIONS)
