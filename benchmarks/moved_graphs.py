"""What it costs to move a captured graph to a partition, next to capturing it there again.

    python benchmarks/moved_graphs.py [--out DIR] [--layers N] [--batches N]

Moving and instantiating by the number of kernels; decode steps of an 8B model at 35 batch sizes in six partitions, each
captured again and moved, with the device memory that both take; moved steps next to a prefill in the other SMs;
switching between two moved graphs; and graphs of torch.compile. Every moved graph of one batch size is verified.

Needs torch 2.8 or newer and a GPU with 40 GB.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import reporting

from cuda_gctx import Device, Graph
from cuda_gctx.interop.torch import capture_graph, capture_once, fork, torch_stream
from cuda_gctx.measure.machine import described

BATCHES = (*range(1, 9), *range(16, 257, 16), *range(288, 513, 32), 768, 1024, 1536)
PARTITIONS = (16, 32, 48, 64, 96, 128)
KERNELS = (1, 10, 100, 1000)
ROUNDS = 11
HIDDEN, HEADS, KV_HEADS, HEAD, FEED_FORWARD, CONTEXT = 4096, 32, 8, 128, 14336, 512
COMPILE_LIMIT_S = 100


def ms(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    made = action()
    return (time.perf_counter() - begin) * 1e3, made


def allocated(torch: Any, action: Callable[[], Any]) -> tuple[float, Any]:
    """The device memory in MiB that a call takes, and what it makes."""
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    made = action()
    torch.cuda.synchronize()
    return (before - torch.cuda.mem_get_info()[0]) / 2**20, made


class Decoder:
    """The decode step of layers of an 8B model: products, attention over a context, and what is between."""

    def __init__(self, torch: Any, layers: int, most: int) -> None:
        self.torch = torch

        def weight(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * 0.02

        self.layers = [
            {
                "qkv": weight(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD),
                "out": weight(HEADS * HEAD, HIDDEN),
                "up": weight(HIDDEN, 2 * FEED_FORWARD),
                "down": weight(FEED_FORWARD, HIDDEN),
            }
            for _ in range(layers)
        ]
        shape = (1, KV_HEADS, CONTEXT, HEAD)
        self.keys, self.values = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.inputs = torch.randn(most, HIDDEN, device="cuda", dtype=torch.bfloat16)

    def step(self, batch: int) -> Any:
        torch, functional = self.torch, self.torch.nn.functional
        x = self.inputs[:batch]
        keys, values = (one.expand(batch, -1, -1, -1) for one in (self.keys, self.values))
        for layer in self.layers:
            qkv = functional.rms_norm(x, (HIDDEN,)) @ layer["qkv"]
            queries = qkv[:, : HEADS * HEAD].view(batch, HEADS, 1, HEAD)
            seen = functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
            x = x + seen.reshape(batch, HEADS * HEAD) @ layer["out"]
            gate, up = (functional.rms_norm(x, (HIDDEN,)) @ layer["up"]).chunk(2, dim=-1)
            x = x + (functional.silu(gate) * up) @ layer["down"]
        return torch.softmax(x.float(), -1)


def by_kernels(torch: Any, dev: Device, part: Any) -> list[dict[str, float]]:
    """The time to move and instantiate graphs of so many kernels, next to the driver's own steps."""
    from cuda.bindings import driver

    def instantiated_ms(handle: Any) -> float:
        took, (code, executable) = ms(lambda: driver.cuGraphInstantiate(handle, 0))
        assert int(code) == 0, code
        driver.cuGraphExecDestroy(executable)
        return took

    rows = []
    x = torch.ones(1 << 10, device="cuda")
    for kernels in KERNELS:

        def step(_: Any, kernels: int = kernels) -> None:
            for _ in range(kernels):
                x.add_(1)

        graph, _ = capture_once(dev.create_stream(), step)
        there, _ = capture_once(part, step)
        assert graph.node_count == kernels
        handle = driver.CUgraph(graph.handle)
        times: dict[str, list[float]] = {}

        def note(name: str, took: float, times: dict[str, list[float]] = times) -> None:
            times.setdefault(name, []).append(took)

        for _ in range(ROUNDS):
            took, executable = ms(partial(graph.in_partition, part))
            executable.close()
            note("in_partition_ms", took)
            note("instantiate_ms", instantiated_ms(handle))
            took, (_, copy) = ms(lambda handle=handle: driver.cuGraphClone(handle))
            note("clone_ms", took)
            note("instantiate_clone_ms", instantiated_ms(copy))
            driver.cuGraphDestroy(copy)
            moved = moved_copy(driver, graph, part)
            note("instantiate_moved_ms", instantiated_ms(moved))
            driver.cuGraphDestroy(moved)
            note("instantiate_captured_there_ms", instantiated_ms(driver.CUgraph(there.handle)))
        row = {name: statistics.median(each) for name, each in times.items()}
        row["move_ms"] = row["in_partition_ms"] - row["instantiate_moved_ms"]
        row["instantiate_ratio"] = row["instantiate_moved_ms"] / row["instantiate_ms"]
        row["of_captured_there"] = row["instantiate_moved_ms"] / row["instantiate_captured_there_ms"]
        rows.append({"kernels": kernels} | row)
        graph.close()
        there.close()
    return rows


def moved_copy(driver: Any, graph: Graph, part: Any) -> Any:
    """A copy of a graph whose kernels were moved by single calls, to time how it is instantiated."""
    _, copy = driver.cuGraphClone(driver.CUgraph(graph.handle))
    _, nodes, count = driver.cuGraphGetNodes(copy, graph.node_count)
    for node in list(nodes)[: int(count)]:
        _, old = driver.cuGraphKernelNodeGetParams(node)
        new = driver.CUgraphNodeParams()
        new.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        for axis in "XYZ":
            setattr(new.kernel, f"gridDim{axis}", getattr(old, f"gridDim{axis}"))
            setattr(new.kernel, f"blockDim{axis}", getattr(old, f"blockDim{axis}"))
        new.kernel.sharedMemBytes, new.kernel.kernelParams, new.kernel.extra = (
            old.sharedMemBytes,
            old.kernelParams,
            old.extra,
        )
        new.kernel.kern, new.kernel.ctx = old.kern, driver.CUcontext(part.context.handle)
        (code,) = driver.cuGraphNodeSetParams(node, new)
        assert int(code) == 0, code
    return copy


def decode(torch: Any, dev: Device, decoder: Decoder, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each partition and batch size: captured again, and moved from one capture on the whole device."""
    rows = []
    stream = dev.create_stream()
    once = {}
    for batch in batches:
        capture = partial(capture_once, stream, lambda _, batch=batch: decoder.step(batch))
        memory, (took, (graph, output)) = allocated(torch, partial(ms, capture))
        once[batch] = graph, output
        rows.append({"sms": dev.sm_count, "batch": batch, "how": "once", "ms": took, "mib": memory})
    for count in PARTITIONS:
        with dev.partition(decode=count) as parts:
            part = parts.decode
            for batch in batches:
                graph, _ = once[batch]
                memory, (took, moved) = allocated(torch, partial(ms, partial(graph.in_partition, part)))
                rows.append({"sms": count, "batch": batch, "how": "moved", "ms": took, "mib": memory})
                if batch == batches[len(batches) // 2]:
                    moved.verify()
                    rows[-1]["verified"] = graph.node_count
                moved.close()
                capture = partial(capture_graph, part, lambda _, batch=batch: decoder.step(batch))
                memory, (took, again) = allocated(torch, partial(ms, capture))
                rows.append({"sms": count, "batch": batch, "how": "again", "ms": took, "mib": memory})
                again.close()
                del again, moved
                torch.cuda.empty_cache()  # so that the next capture takes all of its memory from the driver
            gc.collect()
    for graph, _ in once.values():
        graph.close()
    return rows


def results(torch: Any, dev: Device, decoder: Decoder, batch: int) -> list[dict[str, Any]]:
    """How long a moved step takes in every partition next to a prefill. Whether results are equal is for the tests."""
    graph, _ = capture_once(dev.create_stream(), lambda _: decoder.step(batch))
    rows = []
    for count in PARTITIONS:
        with dev.partition(decode=count, rest=None) as parts, graph.in_partition(parts.decode) as moved:
            prefill = torch.randn(4096, HIDDEN, device="cuda", dtype=torch.bfloat16)
            times = []
            for _ in range(ROUNDS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                with fork() as start:
                    with parts.rest.torch(after=start):
                        for layer in decoder.layers[:4]:
                            prefill @ layer["up"]
                    with parts.decode.torch(after=start):
                        begin.record()
                        moved.launch(parts.decode.stream)
                        end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end))
            rows.append({"sms": count, "batch": batch, "step_ms": statistics.median(times)})
    graph.close()
    return rows


def switching(torch: Any, dev: Device, decoder: Decoder) -> dict[str, float]:
    """What a launch costs the host, in one partition, alternating between two, and without the order."""
    graph, _ = capture_once(dev.create_stream(), lambda _: decoder.step(1))
    answer = {}
    with dev.partition(a=16, b=32) as parts:
        for name, ordered in (("ordered", True), ("not ordered", False)):
            graphs = [graph.in_partition(part, ordered=ordered) for part in parts]
            for way, places in (("one", (0, 0)), ("two", (0, 1))):
                times = []
                for _ in range(ROUNDS):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    for at in places * 4:
                        graphs[at].launch(parts[at].stream)
                    times.append((time.perf_counter() - begin) / 8 * 1e6)
                torch.cuda.synchronize()
                answer[f"{name}, {way}: us"] = statistics.median(times)
            for one in graphs:
                one.close()
    return answer


def compiled(torch: Any, dev: Device) -> dict[str, Any]:
    """Graphs of compiled functions: captured by this package, and those that torch captures itself."""
    weight = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)

    def function(x: Any) -> Any:
        return torch.nn.functional.gelu(x @ weight).float().softmax(-1) * x.sum(-1, keepdim=True)

    answer: dict[str, Any] = {}
    step = torch.compile(function, mode="max-autotune-no-cudagraphs")
    expected = step(x).clone()
    graph, output = capture_once(dev.create_stream(), lambda _: step(x))
    with dev.partition(a=16) as parts, graph.in_partition(parts.a) as moved:
        output.zero_()
        torch.cuda.synchronize()
        moved.launch(parts.a.stream)
        torch.cuda.synchronize()
        answer["captured here"] = {
            "kernels": [kernel.name for kernel in moved.verify().kernels],
            "equal": bool(torch.equal(output, expected)),
        }
    # torch's own: its class is replaced by one that keeps graphs, because no option of torch asks for it.
    made = []
    original = torch.cuda.CUDAGraph

    class Keeping(original):  # type: ignore[misc, valid-type]
        def __new__(cls) -> Any:
            made.append(super().__new__(cls, True))
            return made[-1]

        def __init__(self) -> None:
            super().__init__(True)  # of C++, which keeps the graph

    torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = Keeping
    try:
        own = torch.compile(function, mode="reduce-overhead")
        calls = []
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            calls.append(own(x).clone())
        same = all(torch.equal(calls[0], one) for one in calls)
        answer["torch's own, kept"] = [{"graphs": len(made), "calls are equal": same}]
        for one in made:
            answer["torch's own, kept"].append(described_graph(one))
    except Exception as error:  # an answer like any other
        answer["torch's own, kept"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = original
    return answer


def described_graph(captured: Any) -> dict[str, Any] | str:
    """What a graph of torch consists of, and where it runs when it is moved; or why it cannot be."""
    try:
        with Graph(captured) as graph, Device(0).partition(16) as parts, graph.in_partition(parts[0]) as moved:
            return {"nodes": graph.node_count, "kernels": [kernel.name for kernel in moved.verify().kernels]}
    except (ValueError, RuntimeError) as error:
        return f"{error}"[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    parser.add_argument("--layers", type=int, default=16, help="of the model, which has 32")
    parser.add_argument("--batches", type=int, default=len(BATCHES), help="how many batch sizes")
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    torch.manual_seed(0)
    dev = Device(0)
    with torch.inference_mode():
        if arguments.compiled:
            print(compiled(torch, dev))
            return 0
        result = described(dev, "Moved graphs, written by benchmarks/moved_graphs.py", reporting.REPOSITORY)
        result["torch"], result["layers"] = torch.__version__, arguments.layers
        with dev.partition(a=16) as parts:
            result["kernels"] = by_kernels(torch, dev, parts.a)
        reporting.write(result, "moved-graphs", arguments.out)
        batches = BATCHES[:: max(1, len(BATCHES) // arguments.batches)]
        decoder = Decoder(torch, arguments.layers, BATCHES[-1])
        torch_stream(dev.context)
        for name, measure in (
            ("results", lambda: results(torch, dev, decoder, 32)),
            ("switching", lambda: switching(torch, dev, decoder)),
            ("decode", lambda: decode(torch, dev, decoder, batches)),
        ):
            took, result[name] = ms(measure)
            print(f"{name}: {took / 1e3:.1f} s", flush=True)
            reporting.write(result, "moved-graphs", arguments.out)
    # Compiling may take long, or not work at all: it ends with its process.
    command = ["timeout", "-s", "KILL", str(COMPILE_LIMIT_S), sys.executable, __file__, "--compiled"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    result["compiled"] = done.stdout.strip()[-3000:] or f"no answer, code {done.returncode}"
    path = reporting.write(result, "moved-graphs", arguments.out)
    for key in ("kernels", "results", "switching", "compiled"):
        print(key, result[key])
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
