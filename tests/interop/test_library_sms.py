"""SM counts for matrix libraries: which hints are set, that they are reset, and what "auto" measures and keeps.

On the software driver, stand-ins replace torch, its GEMMs and cuBLAS; on a GPU, the originals run.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import ContextOptions, CUDAWarning, Device, SMResourceOptions, Stream
from cuda_gctx.interop import _counts, library_sms
from cuda_gctx.interop.cupy import use as use_cupy
from cuda_gctx.interop.library_sms import Decisions, Gemm, cublas_sms, decisions
from cuda_gctx.interop.torch import torch_stream, use
from cuda_gctx.tune import spin

from ..common import on_another_thread, refusal
from ..stand_in_torch import StandInDispatchMode, StandInTorch


class StandInCuBLAS:
    """The two functions of cuBLAS, as ctypes has them."""

    def __init__(self) -> None:
        self.targets: dict[int, int] = {}
        self.history: list[int] = []

    def cublasGetSmCountTarget(self, handle: Any, answer: Any) -> int:
        answer._obj.value = self.targets.get(handle.value, 0)
        return 0

    def cublasSetSmCountTarget(self, handle: Any, count: Any) -> int:
        if handle.value == 13:
            return 1
        self.targets[handle.value] = count.value
        self.history.append(count.value)
        return 0


@dataclass
class StandInTensor:
    """A matrix of torch's; what is done to it in place is counted."""

    shape: tuple[int, ...]
    dtype: str = "torch.bfloat16"
    is_cuda: bool = True
    device: Any = field(default_factory=lambda: SimpleNamespace(index=0))
    changes: int = 0

    def stride(self) -> tuple[int, ...]:
        return (self.shape[-1], 1)


class Form:
    """An overload: given to the dispatch modes, the last one first, and run when none is left."""

    def __init__(self, torch: Any, name: str, run: Callable[..., Any]) -> None:
        self._torch, self._name, self._run = torch, name, run

    def __str__(self) -> str:
        return self._name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._torch.modes:
            return self._run(*args, **kwargs)
        mode = self._torch.modes.pop()
        try:
            return mode.__torch_dispatch__(self, (), args, kwargs)
        finally:
            self._torch.modes.append(mode)


class Packet(SimpleNamespace):
    def overloads(self) -> list[str]:
        return [name for name in ("default", "out") if hasattr(self, name)]


class TorchWithGemms(StandInTorch):
    """A stand-in whose GEMMs take the seconds of virtual time that ``cost`` says, on the current stream."""

    class OutOfMemory(Exception):
        pass

    def __init__(self, cublas: StandInCuBLAS) -> None:
        super().__init__()
        torch = self
        self.modes: list[Any] = []
        self.calls: list[tuple[str, int]] = []  # which, and the target that it met
        self.cost: Callable[[str, int], float] = lambda name, target: 1.0
        self.capturing = False
        self.Tensor = StandInTensor

        def run(name: str) -> None:
            target = cublas.targets.get(torch.cuda.current_blas_handle(), 0)
            torch.calls.append((name, target))
            current = torch.cuda.current_stream().cuda_stream
            if current:
                spin(Stream.from_handle(current), 1, round(torch.cost(name, target) * 1e9))

        def pure(a: StandInTensor, b: StandInTensor) -> StandInTensor:
            run("pure")
            return StandInTensor((a.shape[0], b.shape[1]))

        def into(a: StandInTensor, b: StandInTensor, *, out: StandInTensor) -> StandInTensor:
            run("out")
            out.changes += 1
            return out

        def added(c: StandInTensor, a: StandInTensor, b: StandInTensor) -> StandInTensor:
            run("pure")
            return c

        def in_place(c: StandInTensor, a: StandInTensor, b: StandInTensor) -> StandInTensor:
            run("in place")
            c.changes += 1
            return c

        form = lambda name, action: Form(torch, f"aten.{name}", action)  # noqa: E731
        self.ops = SimpleNamespace(
            aten=SimpleNamespace(
                mm=Packet(default=form("mm.default", pure), out=form("mm.out", into)),
                addmm=Packet(default=form("addmm.default", added)),
                addmm_=Packet(default=form("addmm_.default", in_place)),
                relu=Packet(default=form("relu.default", lambda a: run("relu"))),
            )
        )

        self.cuda.OutOfMemoryError = self.OutOfMemory
        self.cuda.is_current_stream_capturing = lambda: self.capturing


@pytest.fixture
def cublas(dev: Device, monkeypatch: pytest.MonkeyPatch) -> StandInCuBLAS:
    stand_in = StandInCuBLAS()
    monkeypatch.setattr(library_sms, "_loaded", lambda name: stand_in)
    return stand_in


@pytest.fixture
def gemms(cublas: StandInCuBLAS, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchWithGemms]:
    torch = TorchWithGemms(cublas)
    dispatch = types.ModuleType("torch.utils._python_dispatch")
    dispatch.TorchDispatchMode = StandInDispatchMode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.utils", types.ModuleType("torch.utils"))
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", dispatch)
    monkeypatch.setattr(library_sms, "decisions", Decisions())
    yield torch
    torch.close()


def matrices(size: int = 64) -> tuple[StandInTensor, StandInTensor]:
    return StandInTensor((size, size)), StandInTensor((size, size))


def helps_at(count: int) -> Callable[[str, int], float]:
    return lambda name, target: 0.5 if target == count else 1.0


# ---- a handle


def test_a_handle_has_the_target_in_the_block_and_what_it_had_before_after_it() -> None:
    cublas: Any = StandInCuBLAS()
    cublas.targets[7] = 100
    with cublas_sms(7, 16, cublas):
        assert cublas.targets == {7: 16}
        with cublas_sms(7, 0, cublas):
            assert cublas.targets == {7: 0}
        assert cublas.targets == {7: 16}
    assert cublas.targets == {7: 100}


def test_a_handle_gets_its_target_back_after_an_exception() -> None:
    cublas: Any = StandInCuBLAS()

    def fail() -> None:
        with cublas_sms(7, 16, cublas):
            raise KeyError

    refusal(KeyError, fail)
    assert cublas.targets == {7: 0}


def test_a_cublas_that_is_too_old_is_named() -> None:
    with pytest.raises(ImportError, match=r"needs cuBLAS 11\.5 or newer.*libc\.so\.6"), cublas_sms(7, 16, "libc.so.6"):
        pass


def test_a_cublas_that_is_not_loaded_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"libcublas\.so\.0 is not loaded"), cublas_sms(7, 16, "libcublas.so.0"):
        pass


def test_what_cublas_refuses_is_reported() -> None:
    stand_in: Any = StandInCuBLAS()
    with pytest.raises(RuntimeError, match=r"cublasSetSmCountTarget of cuBLAS returned 1"), cublas_sms(13, 8, stand_in):
        pass


def test_a_negative_target_is_refused() -> None:
    stand_in: Any = StandInCuBLAS()
    with pytest.raises(ValueError, match=r"count must be an int from 0 to .*, not -1"), cublas_sms(7, -1, stand_in):
        pass


def test_a_target_that_the_int_of_cublas_does_not_hold_is_refused() -> None:
    def enter() -> None:
        with cublas_sms(1, 2**31, ctypes.CDLL(None)):
            raise AssertionError("the block is not entered")

    assert "2147483648" in str(refusal(ValueError, enter))


# ---- "on" and "off"


@pytest.mark.sim_only
def test_inside_the_block_cublas_has_the_sm_count_of_the_partition(torch: Any, cublas: Any, dev: Device) -> None:
    handle = torch.cuda.current_blas_handle()
    cublas.targets[handle] = 100
    with dev.partition(16, 32) as parts:
        with parts[0].torch(library_sms="on"):
            assert cublas.targets == {handle: 16}
            assert torch.carve_outs[-1] == 132 - 16
            with parts[1].torch(library_sms="on"):
                assert cublas.targets == {handle: 32}
                assert torch.carve_outs[-1] == 132 - 32
            assert cublas.targets == {handle: 16}
            assert torch.carve_outs[-1] == 132 - 16
        assert cublas.targets == {handle: 100}
        assert torch.carve_outs[-1] is None


@pytest.mark.sim_only
def test_inductor_caches_what_it_compiles_in_a_block_by_the_carve_out(
    torch: Any, cublas: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = types.ModuleType("torch.compiler.config")
    config.cache_key_tag = "mine"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.compiler.config", config)
    seen = []
    with dev.partition(16, 32) as parts:
        for part in (*parts, parts[0]):
            with part.torch(library_sms="on"):
                seen.append(config.cache_key_tag)
        with parts[1].torch(library_sms="on"), parts[0].torch(library_sms="on"):
            assert config.cache_key_tag == seen[0]
            with use(dev.context, library_sms="on"):
                assert config.cache_key_tag == "mine"
    assert config.cache_key_tag == "mine"
    assert seen == ["mine carve-out 116", "mine carve-out 100", "mine carve-out 116"]


@pytest.mark.sim_only
def test_an_exception_in_the_block_takes_the_sm_count_back(torch: Any, cublas: Any, dev: Device) -> None:
    torch.carve_outs[:] = [5]

    def fail() -> None:
        with dev.partition(16) as parts, parts[0].torch(library_sms="on"):
            raise KeyError

    refusal(KeyError, fail)
    assert set(cublas.targets.values()) == {0}
    assert torch.carve_outs[-1] == 5


@pytest.mark.sim_only
def test_without_being_asked_no_library_gets_a_hint(torch: Any, cublas: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].torch():
        assert (cublas.history, torch.carve_outs) == ([], [None])


@pytest.mark.sim_only
def test_a_stream_of_the_primary_context_has_no_target(torch: Any, cublas: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].torch(library_sms="on"), dev.create_stream() as plain:
        for choice in ("on", "auto"):
            with use(plain, library_sms=choice):
                assert list(cublas.targets.values()) == [0]
                assert torch.carve_outs[-1] is None
        assert list(cublas.targets.values()) == [16]


@pytest.mark.sim_only
def test_the_handle_of_another_thread_is_left_alone(torch: Any, cublas: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].torch(library_sms="on"):
        assert on_another_thread(lambda: cublas.targets.get(torch.cuda.current_blas_handle(), 0)) == 0


@pytest.mark.sim_only
def test_blocks_that_end_in_any_order_leave_the_carve_out_as_it_was(torch: Any, cublas: Any, dev: Device) -> None:
    torch.carve_outs[:] = [3]
    entered, leave = threading.Event(), threading.Event()
    with dev.partition(16, 32) as parts:

        def work() -> None:
            with parts[1].torch(library_sms="on"):
                entered.set()
                assert leave.wait(60)

        thread = threading.Thread(target=work)

        def both_open() -> None:
            thread.start()
            assert entered.wait(60)

        with parts[0].torch(library_sms="on"):
            with pytest.warns(CUDAWarning, match="two threads set 16 and 32"):
                both_open()
            assert torch.carve_outs[-1] == 132 - 16
        assert torch.carve_outs[-1] == 132 - 32
        leave.set()
        thread.join()
        assert torch.carve_outs[-1] == 3


@pytest.mark.sim_only
def test_blocks_left_in_a_wrong_order_leave_the_target_as_it_was(torch: Any, cublas: Any, dev: Device) -> None:
    handle = torch.cuda.current_blas_handle()
    cublas.targets[handle] = 100
    with dev.partition(16, 32) as parts:
        first, second = (use(part, library_sms="on") for part in parts[:2])
        first.__enter__()
        second.__enter__()
        refusal(RuntimeError, lambda: first.__exit__(None, None, None))
        assert cublas.targets == {handle: 32}
        second.__exit__(None, None, None)
        assert cublas.targets == {handle: 100}


@pytest.mark.sim_only
def test_a_torch_without_a_carve_out_has_the_target_alone_and_says_so_once(
    torch: Any, cublas: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._C = SimpleNamespace()
    monkeypatch.setattr(_counts, "_lost", set())
    with dev.partition(16) as parts:
        lost = pytest.warns(CUDAWarning, match="torch has no _C._set_sm_carveout_experimental, so that it keeps the SM")
        with lost, use(parts[0], library_sms="on"):
            assert list(cublas.targets.values()) == [16]
        with use(parts[0], library_sms="on"):
            assert list(cublas.targets.values()) == [16]


@pytest.mark.sim_only
def test_of_two_threads_with_different_counts_the_smaller_one_holds_with_a_warning(
    torch: Any, cublas: Any, dev: Device
) -> None:
    entered, done = threading.Event(), threading.Event()
    with dev.partition(decode=16, prefill=None) as parts:

        def decode() -> None:
            with use(parts.decode, library_sms="on"):
                entered.set()
                done.wait()

        thread = threading.Thread(target=decode)
        thread.start()
        try:
            entered.wait()
            said = "two threads set 16 and 116 at the same time: the smaller one holds"
            with pytest.warns(CUDAWarning, match=said), use(parts.prefill, library_sms="on"):
                assert torch.carve_outs[-1] == 132 - 16
            assert torch.carve_outs[-1] == 132 - 16
        finally:
            done.set()
            thread.join()
    assert torch.carve_outs[-1] is None


@pytest.mark.sim_only
def test_a_block_in_a_context_or_a_stream_sets_the_target_too(torch: Any, cublas: Any, dev: Device) -> None:
    [group], _ = dev.resources.sm.split(SMResourceOptions([24]))
    with dev.create_context(ContextOptions([group])) as ctx:
        with use(ctx) as stream:
            assert torch.cuda.current_stream() == stream
        with use(ctx, library_sms="on"):
            assert list(cublas.targets.values()) == [24]
        with ctx.create_stream() as own, use(own, library_sms="on") as stream:
            assert stream.cuda_stream == own.handle
            assert list(cublas.targets.values()) == [24]
        del stream


def test_what_library_sms_cannot_be_is_refused(dev: Device) -> None:
    with dev.partition(16) as parts:
        wrong: Any = "sometimes"
        of_torch: Any = "auto"
        with pytest.raises(ValueError, match="one of off, on, auto, not 'sometimes'"), parts[0].torch(wrong):
            pass
        for target in (parts[0], parts[0].context, parts[0].stream):
            with pytest.raises(ValueError, match=r'"auto" needs torch.*use "on" or "off"'):
                use_cupy(target, of_torch)


@pytest.mark.sim_only
def test_cupys_cublas_has_the_sm_count_of_the_partition(
    cublas: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            device=SimpleNamespace(get_cublas_handle=lambda: 9),
            runtime=SimpleNamespace(runtimeGetVersion=lambda: 13000),
        )
    )
    with dev.partition(16) as parts:
        with library_sms.cupy_block(cupy, parts[0].stream, "on"):
            assert cublas.targets == {9: 16}
        assert cublas.targets == {9: 0}
        with library_sms.cupy_block(cupy, parts[0].stream, "off"):
            assert cublas.history == [16, 0]


# ---- "auto"


@pytest.mark.sim_only
@pytest.mark.parametrize(("faster", "target"), [(16, 16), (99, 0)], ids=["it helps", "it does not help"])
def test_auto_keeps_what_was_faster_for_a_gemm(gemms: TorchWithGemms, dev: Device, faster: int, target: int) -> None:
    gemms.cost = helps_at(faster)
    mm = gemms.ops.aten.mm.default
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        mm(*matrices())
        assert gemms.calls[-1] == ("pure", target)
        assert {met for _, met in gemms.calls} == {0, 16}
        gemms.calls.clear()
        mm(*matrices())
        assert gemms.calls == [("pure", target)]
        [found] = library_sms.decisions
        assert found.target == (target == 16)
        assert (found.seconds_without, found.seconds_with) == pytest.approx((1.0, 0.5 if target else 1.0), rel=0.01)


@pytest.mark.sim_only
def test_auto_measures_each_shape_and_each_sm_count_for_itself(gemms: TorchWithGemms, dev: Device) -> None:
    mm = gemms.ops.aten.mm.default
    with dev.partition(16, 32) as parts:
        for part, size in [(0, 64), (0, 128), (1, 64), (1, 64)]:
            with parts[part].torch(library_sms="auto"):
                mm(*matrices(size))
    assert [(found.gemm.sm_count, found.gemm.arguments[0][1][0]) for found in library_sms.decisions] == [
        (16, 64),
        (16, 128),
        (32, 64),
    ]


@pytest.mark.sim_only
def test_auto_does_nothing_for_a_gain_that_could_be_chance(gemms: TorchWithGemms, dev: Device) -> None:
    gemms.cost = lambda name, target: 0.99 if target else 1.0
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        gemms.ops.aten.mm.default(*matrices())
    assert gemms.calls[-1] == ("pure", 0)


@pytest.mark.sim_only
def test_auto_writes_to_the_users_memory_once(gemms: TorchWithGemms, dev: Device) -> None:
    gemms.cost = helps_at(16)
    c = StandInTensor((64, 64))
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        assert gemms.ops.aten.mm.out(*matrices(), out=c) is c
        assert (c.changes, gemms.calls[-1]) == (1, ("out", 16))
        assert gemms.ops.aten.addmm_.default(c, *matrices()) is c
        assert (c.changes, gemms.calls[-1]) == (2, ("in place", 16))


@pytest.mark.sim_only
def test_auto_measures_nothing_while_a_graph_is_captured(gemms: TorchWithGemms, dev: Device) -> None:
    gemms.cost = helps_at(16)
    mm = gemms.ops.aten.mm.default
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        gemms.capturing = True
        mm(*matrices())
        assert gemms.calls == [("pure", 0)]
        gemms.capturing = False
        mm(*matrices())
        # What is known by then is used in a capture.
        gemms.capturing = True
        gemms.calls.clear()
        mm(*matrices())
        assert gemms.calls == [("pure", 16)]


@pytest.mark.sim_only
def test_auto_leaves_other_work_alone(gemms: TorchWithGemms, dev: Device) -> None:
    a, b = matrices()
    with dev.partition(16, 16) as parts:
        side = torch_stream(parts[1])
        with parts[0].torch(library_sms="auto"):
            gemms.ops.aten.relu.default(a)
            with gemms.cuda.stream(side):
                gemms.ops.aten.mm.default(a, b)
            a.is_cuda = False
            gemms.ops.aten.mm.default(a, b)
        a.is_cuda = True
        gemms.ops.aten.mm.default(a, b)
        del side
    assert gemms.calls == [("relu", 0), ("pure", 0), ("pure", 0), ("pure", 0)]
    assert len(library_sms.decisions) == 0


@pytest.mark.sim_only
def test_auto_leaves_gemms_alone_while_another_device_is_current(gemms: TorchWithGemms, dev: Device) -> None:
    # The only handle that could take the hint belongs to the other device.
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        gemms.cuda.current_device = lambda: 1
        gemms.ops.aten.mm.default(*matrices())
    assert gemms.calls == [("pure", 0)]
    assert len(library_sms.decisions) == 0


@pytest.mark.sim_only
def test_auto_compares_with_no_target_whatever_is_set_outside(
    gemms: TorchWithGemms, cublas: StandInCuBLAS, dev: Device
) -> None:
    with dev.partition(16, 32) as parts, parts[1].torch(library_sms="on"):
        with parts[0].torch(library_sms="auto"):
            gemms.ops.aten.mm.default(*matrices())
        assert list(cublas.targets.values()) == [32]
    assert {met for _, met in gemms.calls} == {0, 16}


@pytest.mark.sim_only
def test_auto_does_without_a_target_where_memory_does_not_suffice_to_measure(
    gemms: TorchWithGemms, dev: Device
) -> None:
    def cost(name: str, target: int) -> float:
        if target:
            raise gemms.OutOfMemory
        return 1.0

    gemms.cost = cost
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        gemms.ops.aten.mm.default(*matrices())
    assert gemms.calls[-1] == ("pure", 0)
    [found] = library_sms.decisions
    assert (found.target, found.seconds_without) == (False, None)


GEMM = Gemm("aten.mm.default", (("torch.bfloat16", (2, 4), (4, 1)), "1", ("beta", "2")), 16, "H200", "torch 2.11")


def test_one_thread_measures_at_a_time() -> None:
    table = Decisions()

    def measured() -> tuple[float, float]:
        assert on_another_thread(lambda: table.measure(GEMM, lambda: (1.0, 1.0))) is None
        return 2.0, 1.0

    found = table.measure(GEMM, measured)
    assert found is not None
    assert found.target
    assert table.find(GEMM) == found


@pytest.mark.sim_only
def test_pinned_decisions_are_used_and_nothing_is_measured(gemms: TorchWithGemms, dev: Device) -> None:
    known = library_sms.decisions
    gemms.cost = helps_at(16)
    a, b = matrices()
    with dev.partition(16) as parts, parts[0].torch(library_sms="auto"):
        gemms.ops.aten.mm.default(a, b)
        known.pin()
        gemms.calls.clear()
        gemms.ops.aten.mm.default(a, b)
        gemms.ops.aten.mm.default(*matrices(128))
        assert gemms.calls == [("pure", 16), ("pure", 0)]
        assert (known.is_pinned, len(known)) == (True, 1)
        known.clear()
        gemms.ops.aten.mm.default(a, b)
        assert (known.is_pinned, len(known)) == (False, 1)


def test_decisions_are_saved_and_loaded(tmp_path: Path) -> None:
    table, other = Decisions(), Decisions()
    table.measure(GEMM, lambda: (2e-3, 1e-3))
    table.measure(GEMM._replace(sm_count=24), lambda: None)
    table.save(tmp_path / "decisions.json")
    other.load(tmp_path / "decisions.json")
    assert list(other) == list(table)
    assert other.find(GEMM) is not None
    other.clear()
    assert other.find(GEMM) is None


@pytest.mark.parametrize("text", ["", "[]", '{"decisions": [{}]}', '{"decisions": [{"GEMM": {}}]}'])
def test_a_file_that_holds_no_decisions_is_refused_and_changes_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    path.write_text(text)
    table = Decisions()
    with pytest.raises(ValueError, match=r"decisions\.json was not written by"):
        table.load(path)
    assert len(table) == 0


def test_decisions_are_a_table_for_people() -> None:
    table = Decisions()
    table.measure(GEMM, lambda: (2e-3, 1e-3))
    words = " ".join(str(table).splitlines()[1].split())
    assert words == "aten.mm.default bfloat16[2, 4] by [4, 1]; 1; beta 2 16 2000.0 1000.0 on"
    assert repr(table) == "<Decisions: 1 GEMMs, a target helps 1>"


# ---- on a GPU


@pytest.fixture
def real_torch(torch: Any) -> Iterator[Any]:
    decisions.clear()
    yield torch
    decisions.clear()


def target_of(torch: Any) -> int:
    """What cuBLAS itself says of the handle of this thread."""
    library = library_sms._loaded(f"libcublas.so.{torch.version.cuda.split('.')[0]}")
    answer = ctypes.c_int(-1)
    assert library.cublasGetSmCountTarget(ctypes.c_void_p(torch.cuda.current_blas_handle()), ctypes.byref(answer)) == 0
    return answer.value


@contextmanager
def all_but(dev: Device, sms: int) -> Iterator[Any]:
    """The partition of all SMs but so many, which the driver gives whole: 124 of an H200's 132 for 8."""
    with dev.partition(sms) as parts:
        yield parts.background


def random(torch: Any, *shape: int) -> Any:
    return torch.randn(*shape, device="cuda:0", dtype=torch.bfloat16)


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_torchs_cublas_has_the_target_inside_alone(real_torch: Any, dev: Device) -> None:
    torch = real_torch
    torch.cuda.init()
    x = random(torch, 256, 256)
    carve_out = getattr(torch._C, "_get_sm_carveout_experimental", lambda: None)
    with all_but(dev, 8) as part:
        count = part.sm_count
        with part.torch(library_sms="on"):
            assert target_of(torch) == count
            assert carve_out() in (None, dev.sm_count - count)
            assert on_another_thread(lambda: target_of(torch)) == 0
            y = x @ x
        assert target_of(torch) == 0
        assert carve_out() is None
        assert torch.equal(y, x @ x) or torch.allclose(y.float(), (x @ x).float(), rtol=0.05, atol=1.0)


@pytest.mark.gpu_only
def test_the_first_block_of_a_thread_does_not_complain_of_a_missing_context(real_torch: Any, dev: Device) -> None:
    # Warnings are errors here, those of torch too.
    with dev.partition(16) as parts:

        def work() -> int:
            with parts[0].torch(library_sms="on"), dev.context.current():
                return target_of(real_torch)

        assert on_another_thread(work) == 16


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_auto_gives_the_same_results_as_no_target(real_torch: Any, dev: Device) -> None:
    torch = real_torch
    a, b, bias = random(torch, 512, 1024), random(torch, 1024, 768), random(torch, 768)
    out = torch.empty(512, 768, device="cuda:0", dtype=torch.bfloat16)
    batch = random(torch, 4, 128, 256)
    with all_but(dev, 8) as part, part.torch(library_sms="auto"):
        results = [a @ b, torch.addmm(bias, a, b), torch.bmm(batch, batch.transpose(1, 2))]
        torch.mm(a, b, out=out)
        results.append(out.clone())
        for _ in range(2):
            results.append(out.addmm_(a, b, beta=0.5).clone())
        with torch.inference_mode():
            results.append(torch.nn.functional.linear(a, b.t(), bias))
    plain = [a @ b, torch.addmm(bias, a, b), torch.bmm(batch, batch.transpose(1, 2)), a @ b]
    plain.append(plain[0] + 0.5 * plain[0])
    plain.append(plain[0] + 0.5 * plain[4])
    plain.append(plain[1])
    for number, (result, expected) in enumerate(zip(results, plain, strict=True)):
        assert torch.allclose(result.float(), expected.float(), rtol=0.02, atol=0.5), number
    print(decisions)
    seen = {found.gemm.operation for found in decisions}
    assert {"aten.mm.default", "aten.mm.out", "aten.addmm.default", "aten.addmm_.default", "aten.bmm.default"} <= seen
    assert {"aten.linear.default", "aten.addmm.default"} & seen


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_auto_sees_the_gemms_of_backward(real_torch: Any, dev: Device) -> None:
    torch = real_torch
    layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda:0", dtype=torch.bfloat16)
    x = random(torch, 512, 1024).requires_grad_()
    with all_but(dev, 8) as part, part.torch(library_sms="auto"):
        layer(x).sum().backward()
        torch.cuda.current_stream().synchronize()
    print(decisions)
    # One of forward, and two of backward, which other threads of torch's run.
    assert len(decisions) == 3
    assert x.grad is not None


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
@pytest.mark.alone
def test_auto_is_never_slower_than_the_better_of_both_by_much(real_torch: Any, dev: Device) -> None:
    torch = real_torch

    def sample(part: Any, choice: str, call: Callable[[], Any]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with part.torch(library_sms=choice):
            # The calls wait for this one, so that a host which enqueues them slowly, as with "auto", is not measured.
            torch.cuda._sleep(10_000_000)
            begin.record()
            for _ in range(3):
                call()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 3000

    def seconds(part: Any, call: Callable[[], Any]) -> list[float]:
        """The times of off, on and auto, taken in turns: the clocks of a card change with its load."""
        rounds = [[sample(part, choice, call) for choice in ("off", "on", "auto")] for _ in range(12)]
        return [statistics.median(column) for column in zip(*rounds[3:], strict=True)]

    shapes = [(2048, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192)]
    for sms in (8, 16, 64):
        with all_but(dev, sms) as part:
            for m, n, k in shapes:
                a, b, bias = random(torch, m, k), random(torch, k, n), random(torch, n)
                calls = {"mm": lambda a=a, b=b: a @ b, "addmm": lambda a=a, b=b, c=bias: torch.addmm(c, a, b)}
                for name, call in calls.items():
                    off, on, auto = seconds(part, call)
                    print(
                        f"{part.sm_count} SMs, {name} {m} x {n} x {k}: off {off * 1e6:.1f} us, on {on * 1e6:.1f}, "
                        f"auto {auto * 1e6:.1f}"
                    )
                    print(decisions)
                    # Generous: this is not a benchmark.
                    assert auto < 1.25 * min(off, on) + 20e-6, (name, m, n, k)


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_auto_in_a_captured_graph_uses_what_is_known(real_torch: Any, dev: Device) -> None:
    torch = real_torch
    a, b = random(torch, 512, 512), random(torch, 1024, 1024)
    with all_but(dev, 8) as part:
        with part.torch(library_sms="auto"):
            a @ a
            torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), part.torch(library_sms="auto"):
            y = a @ a
            z = b @ b
        graph.replay()
        torch.cuda.synchronize()
        assert len(decisions) == 1
        assert torch.allclose(y.float(), (a @ a).float(), rtol=0.02, atol=0.5)
        assert torch.allclose(z.float(), (b @ b).float(), rtol=0.02, atol=0.5)


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_code_is_compiled_inside_an_auto_block(real_torch: Any, dev: Device) -> None:
    torch = real_torch
    pytest.importorskip("triton", reason="triton, which torch.compile needs, is not installed here")
    compiled = torch.compile(lambda a: (a @ a).relu() + 1)
    a = random(torch, 512, 512)
    counters = import_module("torch._dynamo.utils").counters
    counters.clear()
    with all_but(dev, 8) as part, part.torch(library_sms="auto"):
        y = compiled(a)
    assert counters["stats"]["unique_graphs"] == 1
    assert torch.allclose(y.float(), ((a @ a).relu() + 1).float(), rtol=0.02, atol=0.5)


@pytest.mark.gpu_only
@pytest.mark.filterwarnings("default")
def test_cupy_itself_has_the_target_inside_alone(dev: Device) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")

    def target() -> int:
        handle = cupy.cuda.device.get_cublas_handle()
        library = library_sms._loaded(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
        answer = ctypes.c_int(-1)
        assert library.cublasGetSmCountTarget(ctypes.c_void_p(handle), ctypes.byref(answer)) == 0
        return answer.value

    x = cupy.ones((256, 256), cupy.float32)
    with all_but(dev, 8) as part:
        with part.cupy(library_sms="on"):
            assert target() == part.sm_count
            y = x @ x
        assert target() == 0
        assert (cupy.asnumpy(y) == 256).all()


def test_a_file_of_decisions_is_plain_json(tmp_path: Path) -> None:
    table = Decisions()
    table.measure(GEMM, lambda: (2e-3, 1e-3))
    table.save(tmp_path / "decisions.json")
    [entry] = json.loads((tmp_path / "decisions.json").read_text())["decisions"]
    assert entry["gemm"]["arguments"][0] == ["torch.bfloat16", [2, 4], [4, 1]]
    assert entry["target"] is True
