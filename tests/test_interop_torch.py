"""torch in partitions: which stream is current when, who waits for whom, and how long streams live.

On the software driver torch is played by a stand-in (see stand_in_torch.py); on a GPU it is torch itself.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import pytest

from cuda_gctx import Context, ContextOptions, Device, Partition, SMResourceOptions, Stream
from cuda_gctx._probe import run_probe
from cuda_gctx.interop._frameworks import current_stream_of_frameworks
from cuda_gctx.interop.torch import torch_stream, use
from cuda_gctx.partitions import store

from .common import on_another_thread, refusal, run_python
from .stand_in_torch import StandInTorch


def sm_ids(stream: Any) -> set[int]:
    """Where the blocks of a probe kernel run that is launched on a stream of torch's."""
    adopted = Stream(stream)
    [blocks] = run_probe([adopted], [4 * adopted.resources.sm.sm_count], 100_000, 10_000_000_000)
    return {sm for sm, _, _ in blocks}


def small_context(dev: Device) -> Context:
    [group], _ = dev.resources.sm.split(SMResourceOptions([8]))
    return dev.create_context(ContextOptions([group]))


def test_inside_the_block_the_partitions_stream_is_current(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        before = torch.cuda.current_stream()
        with use(parts[0]) as stream:
            assert torch.cuda.current_stream() == stream
            assert stream.cuda_stream == parts[0].stream.handle
            assert stream.device.index == 0
            assert isinstance(stream, torch.cuda.Stream)
        assert torch.cuda.current_stream() == before


def test_what_torch_launches_runs_on_the_sms_of_the_partition(torch: Any, dev: Device) -> None:
    with dev.partition(16, 32) as parts:
        parts.verify()
        for part in parts:
            with use(part):
                seen = sm_ids(torch.cuda.current_stream())
            assert part.sm_ids is not None
            assert seen
            assert seen <= set(part.sm_ids)
            assert len(part.sm_ids) == part.sm_count


def test_a_partition_has_the_same_as_a_method(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].torch() as stream:
        assert torch.cuda.current_stream() == stream == torch_stream(parts[0])


@pytest.mark.sim_only
def test_the_block_waits_for_what_was_before_and_what_follows_waits_for_the_block(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        outside = torch.cuda.current_stream().cuda_stream
        with use(parts[0]) as stream:
            inside = stream.cuda_stream
            assert torch.waits == [(inside, outside)]
        assert torch.waits == [(inside, outside), (outside, inside)]


@pytest.mark.sim_only
def test_nested_blocks_wait_for_the_block_around_them(torch: Any, dev: Device) -> None:
    with dev.partition(16, 16) as parts, use(parts[0]) as first:
        torch.waits.clear()
        with use(parts[1]) as second:
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
        assert torch.waits == [
            (second.cuda_stream, first.cuda_stream),
            (first.cuda_stream, second.cuda_stream),
        ]


@pytest.mark.sim_only
def test_an_exception_leaves_the_block_in_order_too(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()

    def fail(part: Partition) -> None:
        with use(part):
            raise KeyError("x")

    with dev.partition(16) as parts:
        refusal(KeyError, lambda: fail(parts[0]))
        assert torch.cuda.current_stream() == before
        assert torch.waits[-1] == (before.cuda_stream, parts[0].stream.handle)


def test_another_thread_keeps_its_own_stream(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts, use(parts[0]) as stream:
        assert on_another_thread(lambda: torch.cuda.current_stream() != stream)


def test_a_context_always_gets_the_same_stream(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx:
        with use(ctx) as first:
            assert Stream(first).context == ctx
        with use(ctx) as second:
            assert first == second
        del first, second
    del ctx


def test_the_stream_of_a_context_goes_with_it(torch: Any, dev: Device) -> None:
    ctx = small_context(dev)
    with use(ctx):
        pass
    ctx.close()
    del ctx
    gc.collect()  # the machine of the test is checked for leaks when it ends


def test_a_closed_context_is_refused_and_does_not_keep_its_stream(torch: Any, dev: Device) -> None:
    closed = small_context(dev)
    with use(closed):
        pass
    closed.close()
    assert "has been closed" in str(refusal(RuntimeError, lambda: torch_stream(closed)))
    # Its stream was the last that held the context: the SMs are free, so that this is no overlap.
    with small_context(dev) as other, use(other) as stream:
        assert Stream(stream).context == other
    del stream


def test_streams_and_what_has_a_cuda_stream_can_be_used(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.create_stream() as stream:
        with use(stream) as inside:
            assert inside.cuda_stream == stream.handle
        assert torch_stream(torch_stream(stream)) == inside
        del inside


def test_what_is_no_stream_is_refused(torch: Any) -> None:
    with pytest.raises(TypeError, match="no __cuda_stream__"):
        torch_stream(object())


def test_a_stream_of_torch_outlives_the_partition_that_lent_it(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        stream = torch_stream(parts[0])
    # Closed is the partition; a framework that still holds the handle finds a live stream on the same SMs.
    adopted = Stream(stream)
    assert adopted.resources.sm.sm_count == 16
    adopted.sync()
    del stream, adopted


def test_a_closed_partition_is_refused(torch: Any, dev: Device) -> None:
    with dev.partition(16) as parts:
        part = parts[0]
    with pytest.raises(RuntimeError, match="partition 0 has been closed"):
        torch_stream(part)


def test_partitions_that_only_a_torch_stream_refers_to_stay_in_use(torch: Any, dev: Device) -> None:
    store.drop()  # what other tests left there would be used
    stream = torch_stream(dev.partition(16)[0])
    gc.collect()
    assert len(store) == 0
    del stream
    gc.collect()
    assert len(store) == 2


@pytest.mark.sim_only
def test_the_device_of_the_partition_is_current_inside_alone(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sim("h200", devices=2)
    torch = StandInTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Device(1).partition(16) as parts:
        second = torch.cuda.current_stream(torch.device("cuda:1"))
        with use(parts[0]) as stream:
            assert (torch.cuda.current_device(), stream.device.index) == (1, 1)
            assert torch.waits == [(stream.cuda_stream, second.cuda_stream)]
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream(torch.device("cuda:1")) == second
        del stream
    torch.close()


def test_a_stream_is_made_current_without_any_order(torch: Any, dev: Device) -> None:
    before = torch.cuda.current_stream()
    with dev.partition(16) as parts:
        for _ in range(2):
            with current_stream_of_frameworks(parts[0].stream):
                assert torch.cuda.current_stream().cuda_stream == parts[0].stream.handle
            assert torch.cuda.current_stream() == before
    assert getattr(torch, "waits", []) == []


def test_a_stream_that_was_made_current_is_not_kept(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.create_stream() as stream, current_stream_of_frameworks(stream):
        pass
    del ctx, stream
    gc.collect()
    with small_context(dev) as other:  # its SMs are free: no warning
        assert not other.is_closed


def test_the_default_stream_is_torchs_own(torch: Any, dev: Device) -> None:
    with dev.context.current(), dev.create_stream() as other:
        for stream in (Stream.from_handle(1), Stream(torch.cuda.default_stream(0))):
            with use(other):
                with current_stream_of_frameworks(stream):
                    assert torch.cuda.current_stream(0).cuda_stream == 0
                with use(stream) as inner:
                    assert inner.cuda_stream == 0
                    assert torch.cuda.current_stream(0).cuda_stream == 0
                assert torch.cuda.current_stream(0).cuda_stream == other.handle


def test_the_default_stream_of_a_green_context_is_refused(torch: Any, dev: Device) -> None:
    with small_context(dev) as ctx, ctx.current():
        stream = Stream.from_handle(1)
        assert "another stream of the context" in str(refusal(ValueError, lambda: torch_stream(stream)))
        stream.close()


@pytest.mark.sim_only
def test_without_frameworks_or_their_device_a_stream_is_made_current_nowhere(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.is_available = lambda: False
    before = torch.cuda.current_stream()
    with dev.create_stream() as stream:
        with current_stream_of_frameworks(stream):
            assert torch.cuda.current_stream() == before
        monkeypatch.delitem(sys.modules, "torch")
        with current_stream_of_frameworks(stream):
            assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (None, r"needs torch 2\.4 or newer, which cannot be imported"),
        ({"__version__": "2.3.1+cu121"}, r"needs torch 2\.4 or newer, and found 2\.3\.1\+cu121"),
        (
            {"__version__": "2.11.0+cpu", "version": types.SimpleNamespace(cuda=None)},
            r"needs torch 2\.4 or newer built for CUDA, and found 2\.11\.0\+cpu without",
        ),
    ],
    ids=["missing", "too old", "without CUDA"],
)
def test_a_torch_that_does_not_do_is_named(
    attributes: dict[str, Any] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = None
    if attributes is not None:
        module = types.ModuleType("torch")
        vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, "torch", module)
    with pytest.raises(ImportError, match=said):
        torch_stream(None)


@pytest.mark.parametrize(
    "module",
    [
        *("interop.torch", "interop.cupy", "interop.numba", "interop.cuda_core", "interop.nccl", "interop.library_sms"),
        "compat.flashinfer",
    ],
)
def test_a_module_for_a_framework_does_not_import_it(module: str) -> None:
    done = run_python(
        f"import sys, cuda_gctx.{module}; print({{'torch', 'cupy', 'numba', 'numba_cuda', 'cuda'}} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.parametrize(
    ("module", "function", "needs"),
    [
        ("cupy", "cupy_stream", "cupy 14.0"),
        ("numba", "numba_stream", "numba-cuda 0.30"),
        ("cuda_core", "core_stream", "cuda-core 1.0"),
    ],
)
def test_a_framework_that_is_missing_or_too_old_is_named(module: str, function: str, needs: str) -> None:
    name = {"cuda_core": "cuda.core"}.get(module, module)
    missing = f"sys.modules[{name!r}] = sys.modules['numba_cuda'] = None"
    old = (
        f"m = types.ModuleType({name!r}); m.__version__ = '0.9'; sys.modules[{name!r}] = m\n"
        "for name, version in [('numba.cuda', '-'), ('numba_cuda', '0.9')]:\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__version__ = version"
    )
    for setup, said in [(missing, f"this needs {needs} or newer, which cannot be imported"), (old, "and found 0.9")]:
        done = run_python(
            f"import sys, types\n{setup}\nfrom cuda_gctx.interop.{module} import {function}\n"
            f"try:\n    {function}(None)\nexcept ImportError as error:\n    print(error)"
        )
        assert needs in done.stdout, done.stderr
        assert said in done.stdout
