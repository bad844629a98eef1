"""Lets sixteen threads of one process work in one partition, and checks every result.

    python tests/hardware/threads.py [stream | current | torch] [--seconds 600] [--threads 16] [--sms 40]

Needs a GPU and torch. Each thread multiplies, allocates, copies to the host, differentiates, loads modules, and
captures graphs. `stream`: the threads have streams of the partition, and nothing of it is current. `current`: each
thread is in a block of the context. `torch`: each thread is in a block of Partition.torch(), and all of them share one
stream, so that none captures. Prints the counts of each kind of work and the errors; exits with 1 after an error.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch

from cuda_gctx import Device, Partition

KERNEL = """extern "C" __global__ void k{number}(float *x, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 2.f + {thread}.f;
}}"""
MOST_ERRORS = 40


class Program:
    def __init__(self, part: Partition, mode: str, seconds: float) -> None:
        self.part, self.mode, self.end = part, mode, time.monotonic() + seconds
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self.one_at_a_time = threading.Lock()  # captures, and what torch compiles
        self.factor = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
        self.product = self.factor @ self.factor
        self.vector = torch.randn(4096, device="cuda")
        self.changed = self.vector * 3 + 1
        self.on_host = self.changed.cpu()

    def run(self, thread: int) -> None:
        try:
            torch.cuda.set_device(0)
            with ExitStack() as blocks:
                stream = self.stream_of(blocks)
                order = random.Random(thread)
                turn = 0
                while time.monotonic() < self.end and len(self.errors) < MOST_ERRORS:
                    turn += 1
                    with torch.cuda.stream(stream):
                        self.turn(thread, turn, stream, order)
        except Exception as error:  # of a library, or of the package: a result of this program
            self.errors.append(f"{thread}: {type(error).__name__}: {str(error)[:200]}")

    def stream_of(self, blocks: ExitStack) -> Any:
        if self.mode == "torch":
            return blocks.enter_context(self.part.torch())
        if self.mode == "current":
            blocks.enter_context(self.part.context.current())
        own = blocks.enter_context(self.part.create_stream())
        return torch.cuda.ExternalStream(own.handle)

    def turn(self, thread: int, turn: int, stream: Any, order: random.Random) -> None:
        filled = torch.empty(order.randrange(1, 1 << 20), device="cuda").fill_(thread)
        self.check(thread, turn, "products", torch.equal(self.factor @ self.factor, self.product))
        self.check(thread, turn, "copies", torch.equal((self.vector * 3 + 1).cpu(), self.on_host))
        self.check(thread, turn, "fills", float(filled[-1]) == thread)
        if turn % 10 == 0:
            self.differentiate(thread, turn)
        if turn % 40 == 0:
            with self.one_at_a_time:
                self.load_module(thread, turn, stream)
        if turn % 25 == 0 and self.mode != "torch":
            with self.one_at_a_time:
                self.capture(thread, turn, stream)

    def check(self, thread: int, turn: int, what: str, is_right: bool) -> None:
        self.done[what] += 1
        if not is_right:
            self.errors.append(f"{thread}: wrong {what} at turn {turn}")

    def differentiate(self, thread: int, turn: int) -> None:
        # The numbers come from the host: torch refuses its generator of the card next to a capture of another thread.
        x = torch.randn(64, 64).cuda().requires_grad_()
        (x @ x).sum().backward()
        ones, grad = torch.ones(64, 64, device="cuda"), x.grad
        assert grad is not None
        expected = ones @ x.detach().T + x.detach().T @ ones
        self.check(thread, turn, "gradients", torch.allclose(grad, expected, atol=1e-2, rtol=1e-2))

    def load_module(self, thread: int, turn: int, stream: Any) -> None:
        number = turn * 100 + thread
        kernel = torch.cuda._compile_kernel(KERNEL.format(number=number, thread=thread), f"k{number}")
        x = torch.ones(1000, device="cuda")
        kernel((8, 1, 1), (128, 1, 1), (x, 1000))
        stream.synchronize()
        self.check(thread, turn, "modules", bool((x == 2 + thread).all()))

    def capture(self, thread: int, turn: int, stream: Any) -> None:
        out, graph = torch.empty_like(self.vector), torch.cuda.CUDAGraph()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            torch.mul(self.vector, 3, out=out)
            out.add_(1)
        graph.replay()
        stream.synchronize()
        self.check(thread, turn, "graphs", torch.equal(out, self.changed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("mode", nargs="?", choices=("stream", "current", "torch"), default="stream")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--sms", type=int, default=40, help="the SMs of the partition")
    arguments = parser.parse_args()
    with Device(0).partition(a=arguments.sms) as parts:
        program = Program(parts.a, arguments.mode, arguments.seconds)
        torch.cuda.synchronize()
        threads = [threading.Thread(target=program.run, args=(number,)) for number in range(arguments.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(
            f"{arguments.mode}: {arguments.threads} threads in {parts.a.sm_count} SMs: {dict(program.done)}, "
            f"{len(program.errors)} errors {program.errors[:5]}"
        )
    return 1 if program.errors else 0


if __name__ == "__main__":
    sys.exit(main())
