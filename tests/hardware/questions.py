"""Asks a card what the documentation leaves open: streams of partitions in the CUDA runtime, and cuBLAS in partitions.

    python tests/hardware/questions.py OUTPUT.json

Each question runs in a process of its own, which is killed after eight seconds. Needs a GPU and torch, and for the
first one libcudart of CUDA 13.1 or newer (nvidia-cuda-runtime).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 8


def runtime_streams() -> dict[str, Any]:
    """What the CUDA runtime reports of a partition's stream, and whether one of an execution context can be adopted."""
    from cuda_gctx import Device, Stream

    files = importlib.metadata.files("nvidia-cuda-runtime") or []
    path = next(str(file.locate()) for file in files if file.name.startswith("libcudart.so"))
    cudart = ctypes.CDLL(path)
    cudart.cudaGetErrorName.restype = ctypes.c_char_p
    answers: dict[str, Any] = {"library": Path(path).name}

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


def alternating_streams() -> dict[str, Any]:
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
    return {"torch": torch.__version__, "calls": calls, "largest difference": wrong}


def cublas_grids() -> dict[str, Any]:
    """The grids of cuBLAS's kernels on the whole device, and in a partition without a hint for the number of SMs."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from cuda_gctx import Device

    found: dict[str, Any] = {"torch": torch.__version__}
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def grids(name: str, stream: Any) -> None:
        with torch.cuda.stream(stream):
            a @ b  # loads what it needs
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                a @ b
                torch.cuda.synchronize()
        trace = Path(f"/tmp/cublas_grids_{name}.json")
        seen.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "kernel"]
        found[name] = [[event["name"][:60], event["args"]["grid"]] for event in events]

    grids("whole", torch.cuda.current_stream())
    with Device(0).partition(small=16, rest=None) as parts:
        grids("small", torch.cuda.ExternalStream(parts.small.stream.handle))
        torch.cuda.synchronize()
    return found


QUESTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    question.__name__: question for question in (runtime_streams, alternating_streams, cublas_grids)
}


def main(output: str) -> None:
    answers: dict[str, Any] = {}
    for name in QUESTIONS:
        command = [sys.executable, __file__, "--ask", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            answers[name] = {"killed after": LIMIT_S}
            continue
        answers[name] = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-600:]}
    Path(output).write_text(json.dumps(answers, indent=1) + "\n")
    print(json.dumps(answers, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        print(json.dumps(QUESTIONS[sys.argv[2]]()))
    else:
        main(sys.argv[1])
