"""Moved graphs of torch on a GPU, and what moving cannot know: a grid whose blocks wait for each other."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest

from cuda_gctx import Device, Graph, GraphSet, Stream
from cuda_gctx.interop.torch import capture_once, torch_stream

from ..common import refusal

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
    on = core_stream(stream)
    memory = core.allocate(64, stream=on)
    memory.fill(0, stream=on)
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
    assert child.stdout is not None
    at_most = threading.Timer(60, child.kill)  # for what comes before the hang
    at_most.start()
    try:
        said = [child.stdout.readline().strip() for _ in range(2)]
        assert said == ["ran on the device", "launched in the partition"]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=5)
    finally:
        at_most.cancel()
        child.kill()
        rest, _ = child.communicate()
    assert rest == ""
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


class Decoder:
    """Greedy decoding by a transformer with a cache; everything that a step changes is on the device."""

    LAYERS, BATCH, HIDDEN, HEADS, LONGEST, WORDS = 4, 8, 1024, 8, 64, 2048

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        hidden = self.HIDDEN

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device=device, dtype=torch.bfloat16) / hidden**0.5

        shapes = {"qkv": (hidden, 3 * hidden), "out": (hidden, hidden), "up": (hidden, 4 * hidden)}
        shapes["down"] = (4 * hidden, hidden)
        self.layers = [{name: random(*shape) for name, shape in shapes.items()} for _ in range(self.LAYERS)]
        cache = self.LAYERS, 2, self.BATCH, self.HEADS, self.LONGEST, hidden // self.HEADS
        self.cache = torch.zeros(cache, device=device, dtype=torch.bfloat16)
        self.embedding, self.head = random(self.WORDS, hidden) * hidden**0.5, random(hidden, self.WORDS)
        self.places = torch.arange(self.LONGEST, device=device)
        self.at = torch.zeros(1, device=device, dtype=torch.long)
        self.tokens = torch.zeros(self.BATCH, device=device, dtype=torch.long)
        self.decoded = torch.zeros(self.BATCH, self.LONGEST, device=device, dtype=torch.long)

    def reset(self) -> None:
        self.cache.zero_()
        self.at.zero_()
        self.decoded.zero_()
        self.tokens.copy_(self.torch.arange(self.BATCH))

    def step(self) -> Any:
        torch, functional = self.torch, self.torch.nn.functional
        x, size = self.embedding[self.tokens], (self.HIDDEN,)
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            qkv = (functional.rms_norm(x, size) @ layer["qkv"]).view(self.BATCH, 3, self.HEADS, 1, -1)
            query, key, value = qkv.unbind(1)
            keys.index_copy_(2, self.at, key)
            values.index_copy_(2, self.at, value)
            scores = (query @ keys.transpose(-1, -2)).float().masked_fill(self.places > self.at, float("-inf"))
            seen = torch.softmax(scores * query.shape[-1] ** -0.5, -1).to(x.dtype) @ values
            x = x + seen.reshape(self.BATCH, self.HIDDEN) @ layer["out"]
            x = x + functional.silu(functional.rms_norm(x, size) @ layer["up"]) @ layer["down"]
        logits = functional.rms_norm(x, size) @ self.head
        self.tokens.copy_(logits.argmax(-1))
        self.decoded.index_copy_(1, self.at, self.tokens[:, None])
        self.at += 1
        return logits


def unlike(torch: Any, expected: Any, found: Any) -> str:
    """The first step whose logits differ, and by how much; "" if all bits are equal."""
    for step, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        if not torch.equal(ours, theirs):
            return f"step {step} differs by {float((ours.float() - theirs.float()).abs().max()):g}"
    return ""


def test_a_transformer_decodes_the_same_bits_in_every_partition_next_to_prefills(torch: Any, dev: Device) -> None:
    torch.manual_seed(0)
    decoder, steps = Decoder(torch, "cuda:0"), 32
    prompt, weight = (torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16) for _ in range(2))
    found: dict[str, Any] = {}
    with torch.inference_mode(), dev.partition(a=16, b=48, rest=None) as parts, dev.create_stream() as whole:

        def decode(name: str, step: Any, stream: Stream | None = None, prefills: int = 0) -> None:
            """Keeps the logits of all steps, one row of them a step."""
            decoder.reset()
            torch.cuda.synchronize()
            with parts.rest.torch():
                products = [prompt @ weight for _ in range(prefills)]
            kept = torch.empty(steps, decoder.BATCH, decoder.WORDS, device="cuda:0", dtype=torch.bfloat16)
            with torch.cuda.stream(torch.cuda.current_stream() if stream is None else torch_stream(stream)):
                for row in kept:
                    row.copy_(step())
            torch.cuda.synchronize()
            assert all(torch.equal(products[0], one) for one in products)
            found[name] = kept

        decode("eager", decoder.step)
        decode("eager again", decoder.step)
        with GraphSet(framework="torch", captures="once") as graphs:
            graphs.capture(whole, "step", lambda _: decoder.step())
            places = {"the whole device": whole, "16 SMs": parts.a, "48 SMs": parts.b}
            for name, place in places.items():
                stream = place if isinstance(place, Stream) else place.stream
                for prefills in (0, 0, 8):
                    replay = partial(graphs.replay, place, "step")
                    decode(f"{name}, {prefills} prefills, {len(found)}", replay, stream, prefills)
    reference, *others = list(found)[2:]
    differences = {name: unlike(torch, found[reference], found[name]) for name in others}
    assert not any(differences.values()), differences | {"eager": unlike(torch, found["eager"], found["eager again"])}
    assert found[reference].float().argmax(-1).unique().numel() > steps
    # cuBLAS may choose other kernels for a call outside of a graph.
    assert torch.allclose(found["eager"][0], found[reference][0], atol=0.15)


def test_compiled_functions_are_moved_but_not_the_graphs_that_torch_captures_of_them(torch: Any, dev: Device) -> None:
    weight = torch.randn(512, 512, device="cuda:0")
    x = torch.randn(8, 512, device="cuda:0")

    def function(x: Any) -> Any:
        return torch.softmax(torch.relu(x @ weight).sin() + 1, -1)

    with torch.inference_mode(), dev.partition(16) as parts, dev.create_stream() as whole:
        compiled = torch.compile(function)
        expected = compiled(x).clone()
        graph, result = capture_once(whole, lambda _: compiled(x))
        with graph, graph.in_partition(parts[0]) as moved:
            result.zero_()
            torch.cuda.synchronize()
            moved.launch(parts[0].stream)
            parts.sync()
            assert torch.equal(result, expected)
            moved.verify()
        own = torch.compile(function, mode="reduce-overhead")
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            own(x)
        made = [one for one in gc.get_objects() if type(one) is torch.cuda.CUDAGraph]
        assert made
        for one in made:
            assert "keep_graph=True" in str(refusal(ValueError, lambda one=one: Graph(one)))  # type: ignore[misc]


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
