"""Asks a card what several processes get: "run --as", processes in turns, CUDA IPC, and percentages of MPS.

    python tests/hardware/processes.py [--out FOLDER] [QUESTION ...]

Needs a GPU, torch, cuda.core and the command line (click, rich). mps starts a daemon in a folder of its own, and ends
it; it needs nvidia-cuda-mps-control. Nothing of the card is set.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from asking import REPOSITORY, Answer, Question, answer_of, main, say

LAYOUT = "decode=16,prefill=rest"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

# Each block notes its SM.
WHERE = r"""
extern "C" __global__ void where(unsigned long long *sms) {
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  sms[blockIdx.x] = sm;
}
"""
# Runs for a time on the card's clock. Each block notes its SM and when it began. The first one notes when it ran: where
# two readings are far apart, it was away.
SEGMENTS = r"""
extern "C" __global__ void segments(unsigned long long *sms, unsigned long long *out, long long most, long long ns) {
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  unsigned long long begin, last, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  last = begin;
  if (threadIdx.x == 0) {
    sms[2 * blockIdx.x] = sm;
    sms[2 * blockIdx.x + 1] = begin;
  }
  long long used = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) out[0] = begin;
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (blockIdx.x == 0 && threadIdx.x == 0 && now - last > 100000 && used + 2 < most) {
      out[2 * used + 1] = last;
      ++used;
      out[2 * used] = now;
    }
    last = now;
  } while (now - begin < ns);
  if (blockIdx.x == 0 && threadIdx.x == 0) out[2 * used + 1] = last;
}
"""


def compiled(source: str, name: str) -> Any:
    import cuda.core

    device = cuda.core.Device(0)
    device.set_current()
    options = cuda.core.ProgramOptions(arch=f"sm_{device.arch}")
    return cuda.core.Program(source, code_type="c++", options=options).compile("cubin").get_kernel(name)


# ---- the programs of the processes


def torch_in_a_process() -> Answer:
    """On which SMs the work of a torch program runs, by what enqueues it."""
    import threading

    import cuda.core
    import torch
    from cuda.bindings import driver

    answer: Answer = {}
    x = torch.ones(1, device="cuda", requires_grad=True)  # torch initialises CUDA
    kernel = driver.CUfunction(int(compiled(WHERE, "where").handle))
    blocks = 4096

    def ran(name: str) -> None:
        cuda.core.Device(0).set_current()  # on this thread
        sms = torch.full((blocks,), -1, dtype=torch.int64, device="cuda")
        arguments = (sms.data_ptr(),), (ctypes.c_void_p,)
        stream = torch.cuda.current_stream().cuda_stream
        (error,) = driver.cuLaunchKernel(kernel, blocks, 1, 1, 1024, 1, 1, 0, stream, arguments, 0)
        if int(error):
            raise RuntimeError(f"CUDA error {int(error)}")
        torch.cuda.synchronize()
        answer[name] = sorted(set(sms.tolist()))

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ran("backward")
            return gradient

    ran("main thread")
    y = Backward.apply(x)
    y.backward()
    other = threading.Thread(target=ran, args=("another thread",))
    other.start()
    other.join()
    with torch.cuda.stream(torch.cuda.Stream()):
        ran("a stream of its own")
    counted = {name: len(sms) for name, sms in answer.items()}
    return {"SMs": counted, "SM ids": {name: sms for name, sms in answer.items() if len(sms) < 64}}


def segments_in_a_process() -> Answer:
    """When, and on which SMs, a long kernel ran in the partition of this process, or on all that it may use."""
    import cuda.core
    import numpy

    from cuda_gctx import Device
    from cuda_gctx.interop.cuda_core import core_stream

    name = os.environ["PARTITION"]
    most, ns = 2048, 400_000_000
    dev = Device(0)
    kernel = compiled(SEGMENTS, "segments")
    pinned = cuda.core.LegacyPinnedMemoryResource()
    buffers = pinned.allocate(8 * 4096), pinned.allocate(16 * most)
    blocks_of, when = (numpy.from_dlpack(buffer).view(numpy.uint64) for buffer in buffers)

    def run(stream: Any, ns: int, blocks: int) -> None:
        blocks_of[:], when[:] = 0, 0
        config = cuda.core.LaunchConfig(grid=blocks, block=1024)
        cuda.core.launch(core_stream(stream), config, kernel, *buffers, most, ns)
        stream.sync()

    parts = dev.partition() if name else None
    stream = parts[name].stream if parts is not None else dev.create_stream()
    reported = parts[name].sm_count if parts is not None else dev.resources.sm.sm_count
    blocks = 2 * reported  # which fill so many SMs
    run(stream, 1000, blocks)  # loads what it needs
    print("ready", flush=True)
    sys.stdin.readline()
    run(stream, ns, blocks)
    ran = [(int(begin), int(end)) for begin, end in when.reshape(-1, 2) if begin]
    seen = [(int(sm), int(begin)) for sm, begin in blocks_of.reshape(-1, 2) if begin]
    first = min(begin for _, begin in seen)
    return {
        "reported": reported,
        "SM ids": sorted({sm for sm, _ in seen}),
        # Blocks that found no room at first: something else was on the SMs, or they are fewer than reported.
        "late blocks": sum(begin - first > ns // 2 for _, begin in seen),
        "segments": ran,
    }


ROWS = tuple(2**power for power in range(12))
SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))


def products_in_a_process() -> Answer:
    """GEMMs of 1 to 2048 rows in fp16 and bf16 against the same in fp32: how many elements are wrong."""
    from contextlib import nullcontext

    import torch

    from cuda_gctx import Device

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    name = os.environ["PARTITION"]
    answer: Answer = {"products": 0, "wrong": [], "largest error": 0.0, "not the same again": 0, "wrong in fp32": 0}
    parts = Device(0).partition() if name else None
    with parts[name].torch() if parts is not None else nullcontext():
        for dtype in (torch.float16, torch.bfloat16):
            for depth, columns in SHAPES:
                b = torch.randn(depth, columns, device="cuda", dtype=dtype) * depth**-0.25
                for rows in ROWS:
                    a = torch.randn(rows, depth, device="cuda", dtype=dtype) * depth**-0.25
                    expected = a.float() @ b.float()
                    if rows <= 8:  # whether fp32 itself is right
                        exact = a.double() @ b.double()
                        answer["wrong in fp32"] += int((~((expected - exact).abs() <= 1e-3)).sum())
                    results = [a @ b for _ in range(3)]
                    errors = [(result.float() - expected).abs() for result in results]
                    # NaN counts.
                    wrong = [int((~(error <= 0.02 + 0.02 * expected.abs())).sum()) for error in errors]
                    largest = max(float(error.nan_to_num(1e9, 1e9).max()) for error in errors)
                    answer["largest error"] = max(answer["largest error"], largest)
                    answer["products"] += len(results)
                    if any(wrong):
                        answer["wrong"].append([str(dtype), rows, depth, columns, wrong])
                    answer["not the same again"] += sum(not torch.equal(results[0], one) for one in results[1:])
    torch.cuda.synchronize()
    return answer


PROGRAMS = {
    "torch": torch_in_a_process,
    "segments": segments_in_a_process,
    "products": products_in_a_process,
}


# ---- the questions


def program(name: str) -> list[str]:
    return [sys.executable, __file__, "--program", name]


def run_as() -> Answer:
    """The SMs of a torch program under "cuda-gctx run --as decode"."""
    command = [sys.executable, "-m", "cuda_gctx.cli", "run", "--layout", LAYOUT, "--as", "decode", "--"]
    return answer_of([*command, *program("torch")], 35)


def start(kind: str, runs: Mapping[str, Mapping[str, str]]) -> dict[str, subprocess.Popen[str]]:
    """A process of a kind for each of the runs, in its environment."""
    return {
        name: subprocess.Popen(
            program(kind),
            env=os.environ | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, environment in runs.items()
    }


def collect(started: Mapping[str, subprocess.Popen[str]], limit_s: float) -> dict[str, Answer]:
    """What each process answers, or why it does not; none is left."""
    answers: dict[str, Answer] = {}
    end = time.monotonic() + limit_s
    for name, process in started.items():
        try:
            said, errors = process.communicate(timeout=max(0.1, end - time.monotonic()))
            answers[name] = json.loads(said) if process.returncode == 0 else {"errors": errors[-500:]}
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            answers[name] = {"killed after": limit_s}
    return answers


def at_once(runs: Mapping[str, Mapping[str, str]], limit_s: float) -> dict[str, Answer]:
    """What processes answer that begin their long kernels at the same time, by the names of the runs."""
    started = start("segments", runs)
    try:
        for process in started.values():
            assert process.stdout is not None
            process.stdout.readline()
        for process in started.values():
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.flush()
        return collect(started, limit_s)
    finally:
        for process in started.values():
            process.kill()


def together(answers: dict[str, Answer]) -> Answer:
    """How long two processes ran, and how long at the same time, in milliseconds; and on which SMs."""
    if not all(one.get("segments") for one in answers.values()):
        return answers
    one, other = (answer.pop("segments") for answer in answers.values())
    overlap = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
    first, last = min(one[0][0], other[0][0]), max(one[-1][1], other[-1][1])
    shared = set.intersection(*(set(answer["SM ids"]) for answer in answers.values()))
    for answer, ran in zip(answers.values(), (one, other), strict=True):
        answer["turns"], answer["ran, ms"] = len(ran), round(sum(b - a for a, b in ran) / 1e6, 1)
        answer["SMs"] = len(answer["SM ids"])
        if answer["SMs"] > 64:
            del answer["SM ids"]
    return {
        **answers,
        "at once, ms": round(overlap / 1e6, 1),
        "in all, ms": round((last - first) / 1e6, 1),
        "SMs of both": len(shared),
    }


def in_partitions(**more: str) -> dict[str, dict[str, str]]:
    given = {"CUDA_GCTX_LAYOUT": LAYOUT, **more}
    return {name: {"PARTITION": name, **given} for name in ("decode", "prefill")}


def turns() -> Answer:
    """Two processes without MPS, each in its partition of the same layout."""
    return together(at_once(in_partitions(), 15))


def ipc() -> Answer:
    """The example of one model in two processes."""
    command = [sys.executable, "-m", "cuda_gctx.cli", "run", "--layout", LAYOUT, "--"]
    command += [sys.executable, str(REPOSITORY / "examples" / "cluster" / "shared_weights.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    return {"code": done.returncode, "lines": done.stdout.splitlines(), "errors": done.stderr[-400:]}


@contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """A daemon of MPS with folders of its own: the environment of its clients."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in environment.values():
            Path(path).mkdir()
        everything = os.environ | environment
        process = subprocess.Popen(
            ["nvidia-cuda-mps-control", "-f"],
            env=everything,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(1)
            if process.poll() is not None:
                logs = "".join(log.read_text()[-400:] for log in Path(folder, "log").iterdir())
                raise RuntimeError(f"the daemon ended with code {process.returncode}: {logs}")
            yield environment
        finally:
            with suppress(subprocess.SubprocessError, OSError):
                subprocess.run(
                    ["nvidia-cuda-mps-control"], input="quit -t 2\n", text=True, env=everything, timeout=6, check=False
                )
            with suppress(subprocess.TimeoutExpired):
                process.wait(3)
            process.kill()
            process.wait()


def products(environments: Mapping[str, Mapping[str, str]], limit_s: float) -> Answer:
    """The answers of processes that multiply at the same time."""
    return collect(start("products", environments), limit_s)


def mps() -> Answer:
    """Two processes under MPS: partitions, percentages, and both; and their GEMMs."""
    answer: Answer = {}
    with daemon() as client:
        for what, runs in (
            ("a partition each", in_partitions(**client)),
            (
                "25 % and 75 %, no partitions",
                {share: {"PARTITION": "", PERCENTAGE: share, **client} for share in ("25", "75")},
            ),
            (
                "50 %, a partition each of what that leaves",
                {
                    name: {"PARTITION": name, "CUDA_GCTX_LAYOUT": "a=16,b=rest", PERCENTAGE: "50", **client}
                    for name in ("a", "b")
                },
            ),
            (
                "a partition of 16 SMs at 50 %, all SMs",
                {
                    "partition": {"PARTITION": "a", "CUDA_GCTX_LAYOUT": "a=16,b=rest", PERCENTAGE: "50", **client},
                    "all": {"PARTITION": "", **client},
                },
            ),
        ):
            answer[what] = together(at_once(runs, 15))
            say(answer)
        everywhere = {"PARTITION": "", **client}
        for runs in (
            {f"{share} %, next to the other": {**everywhere, PERCENTAGE: share} for share in ("25", "75")},
            *({f"{share} % alone": {**everywhere, PERCENTAGE: share}} for share in ("75", "88", "50")),
            {"no percentage": everywhere},
            {
                f"a partition of {sms}, next to the other": {
                    "PARTITION": name,
                    "CUDA_GCTX_LAYOUT": "decode=32,prefill=rest",
                    **client,
                }
                for name, sms in (("decode", 32), ("prefill", 100))
            },
        ):
            answer.setdefault("products", {}).update(products(runs, 40))
            say(answer)
    return answer


def products_in_partitions() -> Answer:
    """The GEMMs of mps() in one process, in a partition of as many SMs as its smaller percentage."""
    return products({"32 SMs": {"PARTITION": "a", "CUDA_GCTX_LAYOUT": "a=32,b=rest"}}, 40)


QUESTIONS = {
    "run_as": Question(run_as, 40),
    "turns": Question(turns, 30),
    "ipc": Question(ipc, 30),
    "products_in_partitions": Question(products_in_partitions, 45),
    "mps": Question(mps, 150),
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        say(PROGRAMS[sys.argv[2]]())
    else:
        main(__file__, __doc__ or "", "processes", QUESTIONS)
