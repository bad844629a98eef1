"""PyTorch for loop.py: a small policy network as a CUDA graph, and a training step."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from cuda_gctx import Stream
from cuda_gctx.interop.torch import torch_stream


class _Work:
    def __init__(self, stream: Stream | None) -> None:
        self.stream = torch_stream(stream) if stream else None

    def on_stream(self) -> torch.cuda.StreamContext | nullcontext[None]:
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record(self.stream or torch.cuda.current_stream())
        return mark

    def is_done(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()


class Control(_Work):
    """A policy of four layers. Its input and output keep their places, as a CUDA graph needs."""

    def __init__(self, stream: Stream | None) -> None:
        super().__init__(stream)
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
        self.policy = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).requires_grad_(False)
        self.observation = torch.randn(16, 256, device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        capture_on = self.stream or torch.cuda.Stream()
        with torch.cuda.stream(capture_on):
            self.policy(self.observation)  # loads kernels, and allocates
            with torch.cuda.graph(self.graph, stream=capture_on):
                self.action = self.policy(self.observation)
        torch.cuda.synchronize()

    def step(self) -> None:
        with self.on_stream():
            self.graph.replay()

    def us(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end) * 1000


class Bulk(_Work):
    """A step of training: forward, backward, and an optimizer."""

    def __init__(self, stream: Stream | None) -> None:
        super().__init__(stream)
        with self.on_stream():
            self.model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).to(
                "cuda", torch.bfloat16
            )
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
            self.batch = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()

    def step(self) -> None:
        with self.on_stream():
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
