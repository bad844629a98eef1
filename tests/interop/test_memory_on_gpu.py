"""Memory of torch and CuPy that outlives its partition, on a GPU: freed before it closes, after that, and long after.

Each program runs in a child: an allocator that uses a stream that is gone ends the process.
"""

from __future__ import annotations

import pytest

from ..common import run_python

pytestmark = pytest.mark.gpu_only

PROGRAM = """
import gc, itertools
import torch
from cuda_gctx import Device, system
from cuda_gctx.interop.torch import use

SIZE = 1 << 20
dev = Device(0)
torch.zeros(1, device="cuda")

def user_context():
    [group], _ = dev.resources.sm.split([8])
    return dev.create_context({"resources": [group]})

def opened(kind):
    if kind == "context":
        ctx = user_context()
        return ctx, ctx
    parts = dev.partition(p=8)
    return parts, parts.p

def work(target):
    pinned = torch.ones(SIZE).pin_memory()
    with use(target) as stream:
        copied = pinned.to("cuda", non_blocking=True)
        made = torch.full((SIZE,), 2.0, device="cuda")
        leaf = torch.ones(SIZE, device="cuda", requires_grad=True)
        loss = (leaf * made).sum()
    outside = torch.full((SIZE,), 3.0, device="cuda")
    outside.record_stream(stream)
    return {"pinned": pinned, "copied": copied, "made": made, "outside": outside, "loss": loss, "leaf": leaf}

def close(owner):
    owner.close()
    gc.collect()
    system.release_contexts()

orders = list(itertools.permutations(("pinned", "made", "outside")))[::2]
for kind in ("context", "partition"):
    for when, order in itertools.product(("before", "after", "long after"), orders):
        owner, target = opened(kind)
        kept = work(target)
        torch.cuda.synchronize()
        for name in ("copied", "made", "outside"):
            assert kept[name].eq({"copied": 1, "made": 2, "outside": 3}[name]).all(), name
        if when == "before":
            kept.clear()
            torch.cuda.empty_cache()
        close(owner)
        del owner, target
        if when == "long after":
            for size in (16, 24):
                other = dev.partition(p=size)
                with other.p.torch():
                    torch.ones(SIZE, device="cuda").add_(1)
                close(other)
        if kept:
            kept["loss"].backward()
            torch.cuda.synchronize()
            assert kept["leaf"].grad.eq(2).all()
        for name in [*order, *set(kept) - set(order)]:
            kept.pop(name, None)
            gc.collect()
        again = [torch.ones(SIZE).pin_memory() for _ in range(3)]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
print("as it should be")
"""


@pytest.mark.parametrize("setting", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_memory_of_torch_outlives_its_partition(setting: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    settings = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
    done = run_python(PROGRAM, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "as it should be"


def test_a_graph_pool_of_torch_outlives_its_partition() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    done = run_python(
        """
import gc
import torch
from cuda_gctx import Device, system
from cuda_gctx.interop.torch import torch_stream

dev = Device(0)
x = torch.ones(1 << 20, device="cuda")
parts = dev.partition(p=8)
with parts.p.torch():
    x.mul(1.0)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=torch_stream(parts.p)):
    y = x + 1
parts.close()
gc.collect()
system.release_contexts()
graph.replay()
torch.cuda.synchronize()
assert y.eq(2).all()
del graph, y
gc.collect()
torch.cuda.empty_cache()
torch.cuda.synchronize()
print("as it should be")
"""
    )
    assert done.stdout.strip() == "as it should be", done.stderr[-2000:]


def test_the_pools_of_cupy_outlive_their_partition() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed here")
    done = run_python(
        """
import gc
import cupy
from cuda_gctx import Device, system
from cuda_gctx.interop.torch import use

dev = Device(0)
for pool in (cupy.cuda.MemoryPool().malloc, cupy.cuda.MemoryAsyncPool().malloc):
    cupy.cuda.set_allocator(pool)
    for order in (1, -1):
        parts = dev.partition(a=8, b=8)
        kept = []
        for part in parts:
            with part.cupy():
                kept.append(cupy.full(1 << 20, 2.0))
        cupy.cuda.Device(0).synchronize()
        parts.close()
        del parts, part
        gc.collect()
        system.release_contexts()
        for array in kept[::order]:
            assert float(array.sum()) == 2 << 20
        kept = kept[::order]
        del array
        while kept:
            kept.pop()
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
cupy.cuda.Device(0).synchronize()
print("as it should be")
"""
    )
    assert done.stdout.strip() == "as it should be", done.stderr[-2000:]
