"""The frameworks themselves on a GPU: where their kernels ran, in which order, and what becomes of memory and graphs.

A test whose framework is not installed is skipped and says so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cuda_gctx import Context, ContextOptions, Device, Partitions, SMResourceOptions, Stream
from cuda_gctx._core.extension import run_probe
from cuda_gctx.interop._current import current_stream_of_frameworks
from cuda_gctx.interop.torch import torch_stream, use
from cuda_gctx.partitions.verification import IsolationError, verify

from ..common import on_another_thread, run_python
from ..numba_kernels import skip_unless_numba_compiles, sm_id_kernel
from ..raw import Raw

# What the frameworks warn of is not the matter here.
pytestmark = [pytest.mark.gpu_only, pytest.mark.filterwarnings("default")]

KERNEL = r"""
extern "C" __global__ void where(unsigned* sm) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  sm[blockIdx.x] = id;
}
"""
BLOCKS = 8192
LONG = 100_000_000  # cycles: tens of milliseconds
SIZE = 1 << 20


@pytest.fixture
def parts(dev: Device) -> Iterator[Partitions]:
    with dev.partition(first=16, second=32) as made:
        made.verify()
        yield made


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed here")


@pytest.fixture
def numba_cuda() -> Any:
    skip_unless_numba_compiles()
    from numba import cuda

    return cuda


@pytest.fixture
def core() -> Any:
    return pytest.importorskip("cuda.core", reason="cuda.core is not installed here")


# ---- torch


def test_torch_orders_a_block_after_what_was_before_and_before_what_follows(torch: Any, parts: Partitions) -> None:
    for _ in range(3):
        x = torch.zeros(SIZE, device="cuda:0")
        torch.cuda._sleep(LONG)
        x.fill_(1)
        with use(parts.first):
            y = x + 1
            torch.cuda._sleep(LONG)
            y.mul_(3)
        z = y + 1
        assert z.eq(7).all()


def test_torch_orders_nested_blocks(torch: Any, parts: Partitions) -> None:
    x = torch.zeros(SIZE, device="cuda:0")
    with use(parts.first):
        torch.cuda._sleep(LONG)
        x.add_(1)
        with use(parts.second):
            torch.cuda._sleep(LONG)
            x.mul_(5)
        x.add_(2)
    assert x.eq(7).all()


def test_torch_orders_what_follows_a_block_that_raised(torch: Any, parts: Partitions) -> None:
    x = torch.zeros(SIZE, device="cuda:0")
    before = torch.cuda.current_stream()
    with suppress(KeyError), use(parts.first):
        torch.cuda._sleep(LONG)
        x.add_(1)
        raise KeyError
    assert torch.cuda.current_stream() == before
    assert (x + 1).eq(2).all()


def test_torch_reuses_no_memory_that_work_still_needs(torch: Any, parts: Partitions) -> None:
    # Each tensor is freed while the work that reads it is still waiting behind a long kernel, and the next allocation
    # of the same size overwrites what it gets.
    torch.cuda.empty_cache()
    results = []
    for number in range(16):
        with use(parts.first):
            made_inside = torch.full((SIZE,), float(number), device="cuda:0")
        torch.cuda._sleep(LONG // 10)
        results.append(made_inside * 2)
        del made_inside
        with use(parts.first):
            torch.full((SIZE,), -1.0, device="cuda:0")

        made_outside = torch.full((SIZE,), float(number), device="cuda:0")
        with use(parts.second):
            torch.cuda._sleep(LONG // 10)
            results.append(made_outside * 2)
            del made_outside
        torch.full((SIZE,), -1.0, device="cuda:0")
    for position, result in enumerate(results):
        assert result.eq(2 * (position // 2)).all(), position


def test_torch_reuses_no_memory_under_pressure(torch: Any, parts: Partitions) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(700 * 2**20 / total)
    try:
        size = 2**26  # 256 MiB of floats: two tensors fit, so that what one stream keeps must be given back for another
        checks = []
        for number in range(24):
            with use(parts.first if number % 2 else parts.second):
                inside = torch.full((size,), float(number), device="cuda:0")
                torch.cuda._sleep(LONG // 20)
                inside.add_(1)
            outside = inside * 2
            del inside
            checks.append(outside[:: size // 64].clone())
            del outside
        for number, check in enumerate(checks):
            assert check.eq(2 * (number + 1)).all(), number
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_torch_frees_a_tensor_that_was_recorded_on_a_stream(torch: Any, parts: Partitions) -> None:
    stream = torch_stream(parts.first)
    x = torch.ones(SIZE, device="cuda:0")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        y = x + 1
    x.record_stream(stream)
    del x
    torch.full((SIZE,), -1.0, device="cuda:0")
    stream.synchronize()
    assert y.eq(2).all()


def test_torch_captures_a_block_in_a_graph_and_replays_it(torch: Any, parts: Partitions) -> None:
    x = torch.zeros(SIZE, device="cuda:0")
    with use(parts.first):
        (x + 1).mul_(2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = x + 1
        with use(parts.first):
            b = a * 2
        c = b + 1
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert c.eq(2 * (value + 1) + 1).all()


@pytest.mark.parametrize(
    ("form", "in_partition"), [("block in capture", True), ("stream given", True), ("capture in block", False)]
)
def test_a_graph_runs_in_the_partition_if_it_was_captured_there(
    torch: Any, cupy: Any, parts: Partitions, form: str, in_partition: bool
) -> None:
    where = cupy.RawKernel(KERNEL, "where")
    seen = cupy.zeros(BLOCKS, cupy.uint32)
    cupy.cuda.get_current_stream().synchronize()

    def launch() -> None:
        # CuPy's newer object for it would destroy torch's stream.
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream, 0):
            where((BLOCKS,), (32,), (seen,))

    with use(parts.first):
        launch()  # loads the kernel, which a capture does not allow
    torch.cuda.synchronize()
    seen.fill(0xFFFF)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if form == "block in capture":
        with torch.cuda.graph(graph), use(parts.first):
            launch()
    elif form == "stream given":
        with use(parts.first) as stream, torch.cuda.graph(graph, stream=stream):
            launch()
    else:
        with use(parts.first), torch.cuda.graph(graph):
            launch()
    graph.replay()
    torch.cuda.synchronize()
    ran = set(cupy.asnumpy(seen).tolist())
    assert 0xFFFF not in ran
    assert (ran <= set(parts.first.sm_ids)) == in_partition


def test_torch_runs_backward_on_the_stream_of_forward(torch: Any, parts: Partitions) -> None:
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            seen.append(torch.cuda.current_stream().cuda_stream)
            torch.cuda._sleep(LONG)
            return 2 * gradient

    x = torch.ones(SIZE, device="cuda:0", requires_grad=True)
    with use(parts.first) as stream:
        y = Twice.apply(x)
        inside = stream.cuda_stream
    (3 * y).sum().backward()
    assert seen == [inside]
    assert x.grad.eq(6).all()


def test_torch_works_in_two_partitions_from_two_threads(torch: Any, parts: Partitions) -> None:
    x = torch.arange(SIZE, device="cuda:0", dtype=torch.float32)
    torch.cuda.synchronize()

    def work() -> Any:
        with use(parts.second):
            return (x * 2).sum().item()

    with use(parts.first):
        mine = (x * 2).sum()
        theirs = on_another_thread(work)
    assert mine.item() == pytest.approx(theirs)


def test_torch_streams_in_foreign_green_contexts_are_adopted(torch: Any, dev: Device) -> None:
    green = pytest.importorskip("torch.cuda.green_contexts", reason="this torch has no green contexts")
    torch.cuda.init()
    torch.zeros(1, device="cuda:0")
    foreign = green.GreenContext.create(num_sms=16, device_id=0)
    with torch.cuda.stream(foreign.Stream()):
        adopted = Stream(torch.cuda.current_stream())
        assert adopted.context.is_green
        assert adopted.resources.sm.sm_count == 16
        with use(adopted) as stream:
            assert stream == torch.cuda.current_stream()
    torch.cuda.synchronize()


@pytest.fixture
def green_contexts(torch: Any) -> Any:
    """torch's own green contexts."""
    green = pytest.importorskip("torch.cuda.green_contexts", reason="this torch has no green contexts")
    torch.zeros(1, device="cuda:0")
    return green.GreenContext


def test_a_stream_of_torchs_green_context_can_keep_that_context_alive(
    torch: Any, green_contexts: Any, dev: Device
) -> None:
    green = green_contexts.create(num_sms=16, device_id=0)
    theirs = green.Stream()
    adopted = Stream.from_handle(theirs.cuda_stream, owner=(green, theirs))
    del green, theirs
    gc.collect()
    assert (adopted.context.is_green, adopted.resources.sm.sm_count) == (True, 16)
    [blocks] = run_probe([adopted], [64], 100_000, 10_000_000_000)
    assert len({sm for sm, _, _ in blocks}) == 16
    with use(adopted) as stream:
        x = torch.ones(SIZE, device="cuda:0") * 2
    assert x.eq(2).all()
    torch.cuda.synchronize()
    del stream
    adopted.close()


def test_the_context_that_torch_made_current_is_adopted(torch: Any, green_contexts: Any, dev: Device) -> None:
    green = green_contexts.create(num_sms=16, device_id=0)
    green.set_context()
    try:
        context = Context.from_handle(Raw().current(), owner=green)
    finally:
        green.pop_context()
    del green
    gc.collect()
    assert (context.is_green, context.sm_count) == (True, 16)
    with context.create_stream() as stream, use(stream) as inside:
        assert Stream(inside).context == context
        x = torch.ones(SIZE, device="cuda:0") * 2
    assert x.eq(2).all()
    torch.cuda.synchronize()
    del inside, stream
    context.close()


def test_sms_that_torchs_green_contexts_share_with_ours_are_found(torch: Any, green_contexts: Any, dev: Device) -> None:
    green = green_contexts.create(num_sms=16, device_id=0)
    theirs = Stream(green.Stream())
    with dev.partition(16) as parts:
        assert parts[0].context.resources.sm.overlaps(theirs.resources.sm) in (True, None)
        with pytest.raises(IsolationError, match="theirs and ours both ran on"):
            verify({"theirs": theirs.context, "ours": parts[0].context})
    theirs.close()


def test_a_green_context_that_torch_has_destroyed_does_no_harm(green_contexts: Any) -> None:
    done = run_python(
        "import gc, torch\n"
        "from cuda_gctx import ClosedError, CUDAError, Stream\n"
        "from torch.cuda.green_contexts import GreenContext\n"
        "torch.zeros(1, device='cuda:0')\n"
        "green = GreenContext.create(num_sms=16, device_id=0)\n"
        "adopted = Stream(green.Stream())\n"
        "assert adopted.resources.sm.sm_count == 16\n"
        "del green\n"
        "gc.collect()\n"
        "try:\n"
        "    adopted.record().sync()\n"
        "    print('still there')\n"
        "except (CUDAError, ClosedError) as error:\n"
        "    print('refused:', error)\n"
        "adopted.close()\n"
        "print((torch.ones(4, device='cuda:0') * 2).sum().item())\n"
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "8.0", done.stderr


def test_torch_works_in_a_context_of_ones_own(torch: Any, dev: Device) -> None:
    [group], _ = dev.resources.sm.split(SMResourceOptions([24]))
    with dev.create_context(ContextOptions([group])) as ctx:
        with use(ctx) as stream:
            x = torch.ones(SIZE, device="cuda:0") * 2
            assert Stream(stream).resources.sm.sm_count == 24
        assert x.eq(2).all()
        del stream
    torch.cuda.synchronize()


def test_torch_backward_outside_the_block_reuses_no_memory(torch: Any, parts: Partitions) -> None:
    # What backward makes on the partition's stream is read outside at once, and freed while more of it is made.
    total = torch.zeros((), device="cuda:0")
    for number in range(8):
        x = torch.full((SIZE,), float(number), device="cuda:0", requires_grad=True)
        with use(parts.first):
            y = (x * x).sum()
        y.backward()
        total += x.grad[0]
        del x, y
    assert total.item() == 2 * sum(range(8))


@pytest.mark.parametrize("recorded", [True, False])
def test_torch_keeps_what_a_branch_of_backward_reads_if_it_was_recorded(
    torch: Any, parts: Partitions, recorded: bool
) -> None:
    made = []

    class Sine(torch.autograd.Function):
        """Its backward reads late what it has saved."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            torch.cuda._sleep(LONG)
            return gradient * x.cos()

    class Thrice(torch.autograd.Function):
        """Its backward, which comes next, takes all memory that is free on its stream, and writes there at once."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            made.extend(torch.full_like(gradient, 3.0) for _ in range(64))
            return 3 * gradient

    torch.cuda.empty_cache()
    x = torch.full((SIZE,), 0.5, device="cuda:0", requires_grad=True)
    a, b = 2 * x, Thrice.apply(x)
    begin, size = a.data_ptr(), a.nbytes
    with use(parts.first) as stream:
        y = Sine.apply(a)
    if recorded:
        a.record_stream(stream)
    z = b.cos()
    del a, b
    (y + z).sum().backward()
    if recorded:
        expected = 2 * torch.cos(2 * x) - 3 * torch.sin(3 * x)
        assert torch.allclose(x.grad, expected)
    else:  # the memory is given away while it is still read
        assert any(abs(other.data_ptr() - begin) < size for other in made)
    torch.cuda.synchronize()


def test_a_stream_is_made_current_for_torch_and_cupy(torch: Any, cupy: Any, parts: Partitions) -> None:
    outside = torch.cuda.current_stream(), cupy.cuda.get_current_stream()
    for part in [*parts, *parts]:
        with current_stream_of_frameworks(part.stream):
            handles = torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr
            assert set(handles) == {part.stream.handle}
        assert (torch.cuda.current_stream(), cupy.cuda.get_current_stream()) == outside


# ---- CuPy


def test_cupy_kernels_run_on_the_sms_of_the_partition(cupy: Any, parts: Partitions) -> None:
    where = cupy.RawKernel(KERNEL, "where")
    for part in parts:
        with part.cupy() as stream:
            assert cupy.cuda.get_current_stream() == stream
            seen = cupy.zeros(BLOCKS, cupy.uint32)
            where((BLOCKS,), (32,), (seen,))
        assert set(cupy.asnumpy(seen).tolist()) <= set(part.sm_ids)
        assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null


def test_cupy_orders_a_block_after_what_was_before_and_before_what_follows(
    cupy: Any, wait: Any, parts: Partitions
) -> None:
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.zeros(SIZE)
        wait((1,), (1,), (LONG,))
        x += 1
        with parts.first.cupy():
            y = x + 1
            wait((1,), (1,), (LONG,))
            y *= 3
        z = y + 1
        assert (cupy.asnumpy(z) == 7).all()
        cupy.cuda.get_current_stream().synchronize()


@pytest.fixture
def wait(cupy: Any) -> Any:
    """A kernel that runs for a number of cycles."""
    return cupy.RawKernel(
        'extern "C" __global__ void wait(long long cycles) { long long start = clock64();'
        " while (clock64() - start < cycles) {} }",
        "wait",
    )


def test_blocks_of_a_cupy_fork_run_at_the_same_time_and_are_joined(cupy: Any, parts: Partitions) -> None:
    from cuda_gctx.interop.cupy import fork

    # Each sets its own flag and waits for that of the other one, for two seconds at most: one after the other, the
    # first would not find it.
    meet = cupy.RawKernel(
        r"""
        extern "C" __global__ void meet(volatile int* flags, int own, int* met) {
          unsigned long long begin, now;
          asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
          now = begin;
          flags[own] = 1;
          __threadfence();
          while (!flags[1 - own] && now - begin < 2000000000ull) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
          met[own] = flags[1 - own];
        }
        """,
        "meet",
    )
    flags, met = cupy.zeros(2, cupy.int32), cupy.zeros(2, cupy.int32)
    meet.compile()
    for _ in range(2):  # launched once in each partition first: loading may wait for kernels that run
        flags.fill(0)
        met.fill(0)
        cupy.cuda.Device(0).synchronize()
        with fork() as start:
            for number, part in enumerate(parts):
                with part.cupy(after=start):
                    meet((1,), (1,), (flags, number, met))
        # Behind the fork, on the stream outside.
        found = cupy.asnumpy(met * 2).tolist()
    assert found == [2, 2]


def test_cupy_reuses_no_memory_that_work_still_needs(cupy: Any, wait: Any, parts: Partitions) -> None:
    results = []
    for number in range(16):
        with parts.first.cupy():
            made_inside = cupy.full(SIZE, number, cupy.float32)
        wait((1,), (1,), (LONG // 10,))
        results.append(made_inside * 2)
        del made_inside
        with parts.first.cupy():
            cupy.full(SIZE, -1, cupy.float32)

        made_outside = cupy.full(SIZE, number, cupy.float32)
        with parts.second.cupy():
            wait((1,), (1,), (LONG // 10,))
            results.append(made_outside * 2)
            del made_outside
        cupy.full(SIZE, -1, cupy.float32)
    for position, result in enumerate(results):
        assert (cupy.asnumpy(result) == 2 * (position // 2)).all(), position


def test_cupy_reuses_no_memory_under_pressure(cupy: Any, wait: Any, parts: Partitions) -> None:
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=700 * 2**20)
    size = 2**26  # 256 MiB of floats: two arrays fit, so that what one stream keeps must be given back for another
    checks = []
    with cupy.cuda.using_allocator(pool.malloc):
        for number in range(24):
            with parts.first.cupy() if number % 2 else parts.second.cupy():
                inside = cupy.full(size, number, cupy.float32)
                wait((1,), (1,), (LONG // 20,))
                inside += 1
            outside = inside * 2
            del inside
            checks.append(cupy.asnumpy(outside[:: size // 64]))
            del outside
    for number, check in enumerate(checks):
        assert (check == 2 * (number + 1)).all(), number
    cupy.cuda.Device(0).synchronize()


def test_a_stream_of_cupys_does_not_destroy_ours(cupy: Any, parts: Partitions) -> None:
    from cuda_gctx.interop.cupy import cupy_stream

    stream = cupy_stream(parts.first)
    assert stream.ptr == parts.first.stream.handle
    del stream
    gc.collect()
    parts.first.stream.record().sync()
    assert parts.first.stream.is_done


def test_a_stream_of_cupys_outlives_the_partition(cupy: Any, dev: Device) -> None:
    from cuda_gctx.interop.cupy import cupy_stream

    with dev.partition(16) as parts:
        stream = cupy_stream(parts[0])
    with stream:
        assert (cupy.asnumpy(cupy.ones(16) * 2) == 2).all()
    stream.synchronize()


# ---- Numba


def test_numba_kernels_run_on_the_sms_of_the_partition(numba_cuda: Any, parts: Partitions) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed here")
    from cuda_gctx.interop.numba import numba_stream

    where = sm_id_kernel()
    for part in parts:
        stream = numba_stream(part)
        seen = numba_cuda.to_device(numpy.zeros(BLOCKS, numpy.uint32), stream=stream)
        where[BLOCKS, 32, stream](seen)
        ran = seen.copy_to_host(stream=stream)
        stream.synchronize()
        assert set(ran.tolist()) <= set(part.sm_ids)
        assert Stream(stream) == part.stream


def test_a_stream_of_numbas_outlives_the_partition(numba_cuda: Any, dev: Device) -> None:
    from cuda_gctx.interop.numba import numba_stream

    with dev.partition(16) as parts:
        stream = numba_stream(parts[0])
    stream.synchronize()
    assert Stream(stream).resources.sm.sm_count == 16


# ---- cuda.core


def test_cuda_core_kernels_run_on_the_sms_of_the_partition(core: Any, parts: Partitions) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed here")
    from cuda_gctx.interop.cuda_core import core_stream

    device = core.Device(0)
    device.set_current()
    program = core.Program(KERNEL, code_type="c++", options=core.ProgramOptions(arch=f"sm_{device.arch}"))
    kernel = program.compile("cubin").get_kernel("where")
    buffer = core.LegacyPinnedMemoryResource().allocate(4 * BLOCKS)
    seen = numpy.from_dlpack(buffer).view(numpy.uint32)
    for part in parts:
        stream = core_stream(part)
        seen[:] = 0xFFFF
        # By its own object for the stream, and by ours.
        for given in (stream, part.stream):
            core.launch(given, core.LaunchConfig(grid=BLOCKS, block=32), kernel, buffer)
            stream.sync()
            assert set(seen.tolist()) <= set(part.sm_ids)


def test_streams_of_cuda_core_are_adopted(core: Any, dev: Device) -> None:
    device = core.Device(0)
    device.set_current()
    theirs = device.create_stream()
    stream = Stream(theirs)
    assert not stream.context.is_green
    [blocks] = run_probe([stream], [dev.sm_count], 100_000, 10_000_000_000)
    assert len(blocks) == dev.sm_count
    stream.close()
    theirs.close()
