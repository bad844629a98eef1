"""Moved graphs of torch on a GPU, and what moving cannot know: a grid whose blocks wait for each other."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from cuda_gctx import Device, Graph, GraphSet

pytestmark = [pytest.mark.gpu_only, pytest.mark.filterwarnings("default")]

# All blocks of an ordinary launch wait for each other: as many as fit on the device when it was captured.
WAITING_GRID = """
import sys
import cuda.core
from cuda.core import LaunchConfig, Program, ProgramOptions, launch
from cuda_gctx import Device, Graph
from cuda_gctx.interop.cuda_core import core_stream

SOURCE = r'''
extern "C" __global__ void meet(unsigned *count) {
  if (threadIdx.x == 0) {
    atomicAdd(count, 1u);
    while (*(volatile unsigned *)count % gridDim.x != 0) {}
  }
}
'''
dev, core = Device(0), cuda.core.Device(0)
core.set_current()
arch = "sm_" + "".join(map(str, dev.compute_capability))
kernel = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin").get_kernel("meet")
with dev.partition(16) as parts, dev.create_stream() as stream:
    memory = core.allocate(64, stream=core_stream(stream))
    on = core_stream(stream)
    launch(on, LaunchConfig(grid=dev.sm_count, block=1024), kernel, memory)
    stream.sync()
    with stream.capture() as capture:
        launch(on, LaunchConfig(grid=dev.sm_count, block=1024), kernel, memory)
    with capture.graph.in_partition(dev) as whole:
        whole.launch(stream)
        stream.sync()
        print("ran on the device", flush=True)
    moved = capture.graph.in_partition(parts[0])
    moved.launch(parts[0].stream)
    print("launched in the partition", flush=True)
    parts[0].sync()
    print("ran in the partition", flush=True)
"""


def test_a_grid_whose_blocks_wait_for_each_other_hangs_in_a_smaller_partition() -> None:
    child = subprocess.Popen([sys.executable, "-c", WAITING_GRID], stdout=subprocess.PIPE, text=True)
    try:
        said, _ = child.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        child.kill()
        said, _ = child.communicate()
    assert said.splitlines() == ["ran on the device", "launched in the partition"]
    assert child.returncode == -signal.SIGKILL


def test_a_graph_of_torch_gives_the_same_bits_wherever_it_is_moved(torch: Any, dev: Device) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 512, device="cuda:0", dtype=torch.bfloat16)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True, device="cuda:0", dtype=torch.bfloat16)
    layer.eval()
    with torch.inference_mode(), dev.partition(a=16, b=32) as parts:
        expected = layer(x[None]).clone()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            result = layer(x[None])
        for place in (*parts, dev):
            with Graph(graph).in_partition(place) as moved, moved.context.create_stream() as stream:
                result.zero_()
                torch.cuda.synchronize()
                moved.launch(stream)
                stream.sync()
                assert torch.equal(result, expected)
                assert len(moved.verify().kernels) >= 5
        refusing = torch.cuda.CUDAGraph()
        with torch.cuda.graph(refusing):
            layer(x[None])
        with pytest.raises(ValueError, match="keep_graph=True"):
            Graph(refusing)


def test_a_moved_graph_draws_the_same_random_numbers_each_time(torch: Any, dev: Device) -> None:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        numbers = torch.rand(1024, device="cuda:0")
    drawn = []
    with dev.partition(16) as parts, Graph(graph).in_partition(parts[0]) as moved:
        for _ in range(2):
            moved.launch(parts[0].stream)
            parts.sync()
            drawn.append(numbers.clone())
            torch.cuda.synchronize()
    assert torch.equal(*drawn)
    assert drawn[0].unique().numel() > 900


def test_a_set_of_torch_captures_once_and_runs_next_to_other_work(torch: Any, dev: Device) -> None:
    calls: list[str] = []
    weight = torch.randn(512, 512, device="cuda:0")
    x = torch.randn(8, 512, device="cuda:0")

    def step(part: Any) -> Any:
        calls.append("step")
        return torch.softmax(torch.relu(x @ weight), -1)

    with torch.inference_mode(), dev.partition(a=16, b=32, c=None) as parts:
        expected = step(None).clone()
        with GraphSet(framework="torch", captures="once") as graphs:
            calls.clear()
            graphs.capture(parts.a, 8, step)
            assert calls == ["step", "step"]  # once before the capture
            for _ in range(3):
                for part in (parts.a, parts.b):
                    with parts.c.torch():
                        weight @ weight
                    with part.torch():
                        result = graphs.replay(part, 8)
                    assert torch.equal(result, expected)
                    result.zero_()
            assert len(calls) == 2
            assert len(graphs) == 2
