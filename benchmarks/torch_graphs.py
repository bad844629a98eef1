"""Graphs of torch as benchmarks and the tests on GPUs capture them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def captured(torch: Any, work: Callable[[], object]) -> Any:
    """The work of a call as a graph, captured on torch's current stream; other threads may go on meanwhile."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph
