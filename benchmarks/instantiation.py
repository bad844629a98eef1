"""How long the driver takes to make a graph executable whose kernels were moved, by the way in which they were moved.

    python benchmarks/instantiation.py [--out DIR]

All ways take turns, so that what drifts affects all of them. Each graph is made executable twice: the second time is
without what the driver does once for a graph. Needs torch and a GPU; takes ten seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import tables

from cuda_gctx import Context, Device
from cuda_gctx.interop.torch import capture_once
from cuda_gctx.measure.machine import described

ROUNDS = {100: 31, 1000: 15}
FIELDS = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes", "kernelParams")


def call(answer: tuple[Any, ...]) -> Any:
    assert int(answer[0]) == 0, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def ways(driver: Any, graph: Any, there: Any, kernels: int, context: Context) -> dict[str, Callable[[], Any]]:
    """Makes a graph to be made executable, by the name of the way."""
    target = driver.CUcontext(context.handle)

    def nodes(of: Any) -> list[Any]:
        return list(call(driver.cuGraphGetNodes(of, kernels))[0])[:kernels]

    def moved(node: Any, to: Any) -> Any:
        old = call(driver.cuGraphKernelNodeGetParams(node))
        for name in (*FIELDS, "extra", "kern"):
            setattr(to, name, getattr(old, name))
        to.ctx = target
        return to

    def by_node() -> Any:
        copy = call(driver.cuGraphClone(graph))
        for node in nodes(copy):
            params = driver.CUgraphNodeParams()
            params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
            moved(node, params.kernel)
            call(driver.cuGraphNodeSetParams(node, params))
        return copy

    def by_kernel_node() -> Any:
        copy = call(driver.cuGraphClone(graph))
        for node in nodes(copy):
            call(driver.cuGraphKernelNodeSetParams(node, moved(node, driver.CUDA_KERNEL_NODE_PARAMS())))
        return copy

    def added() -> Any:
        new, last = call(driver.cuGraphCreate(0)), []
        for node in nodes(graph):
            params = moved(node, driver.CUDA_KERNEL_NODE_PARAMS())
            last = [call(driver.cuGraphAddKernelNode(new, last, len(last), params))]
        return new

    return {
        "not moved": lambda: graph,
        "copy": lambda: call(driver.cuGraphClone(graph)),
        "captured there": lambda: there,
        "cuGraphNodeSetParams": by_node,
        "cuGraphKernelNodeSetParams": by_kernel_node,
        "nodes added": added,
        "copy of a moved copy": lambda: call(driver.cuGraphClone(by_node())),
    }


def row_of(driver: Any, device: Device, place: Any, kernels: int) -> list[dict[str, Any]]:
    import torch

    one = torch.ones(1024, device="cuda")

    def step(_: object) -> None:
        for _ in range(kernels):
            one.add_(1)

    times: dict[tuple[str, str], list[float]] = {}
    with capture_once(device.create_stream(), step)[0] as graph, capture_once(place, step)[0] as there:
        handles = [driver.CUgraph(one.handle) for one in (graph, there)]
        for _ in range(ROUNDS[kernels]):
            for way, make in ways(driver, *handles, kernels, place.context).items():
                made = make()
                for which in ("first", "second"):
                    begin = time.perf_counter()
                    executable = call(driver.cuGraphInstantiate(made, 0))
                    times.setdefault((way, which), []).append((time.perf_counter() - begin) * 1e3)
                    call((driver.cuGraphExecDestroy(executable)[0], None))
                if made not in handles:
                    driver.cuGraphDestroy(made)
    return [
        {
            "kernels": kernels,
            "way": way,
            "time": which,
            "median_ms": round(median(ms), 4),
            "least_ms": round(min(ms), 4),
        }
        for (way, which), ms in times.items()
    ]


def main() -> None:
    from cuda.bindings import driver

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results)")
    options = parser.parse_args()
    device = Device(0)
    what = "How long moved graphs take to be made executable, written by benchmarks/instantiation.py"
    with device.partition(a=16) as parts:
        rows = [row for kernels in ROUNDS for row in row_of(driver, device, parts.a, kernels)]
    print(tables.write({**described(device, what, tables.REPOSITORY), "rows": rows}, "instantiation", options.out))


if __name__ == "__main__":
    main()
