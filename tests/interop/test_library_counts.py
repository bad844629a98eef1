"""SM counts of persistent kernels: which libraries get one in a block, on which thread, and what settings() shows.

The libraries are played by modules with the functions that the real ones have: DeepGEMM 2.6.1 (set_num_sms), Triton
3.6.0 (CudaUtils), FlashAttention 3.0.0 (operators with an argument sm_margin).
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_gctx import CUDAWarning, Device
from cuda_gctx.interop import _counts, library_sms
from cuda_gctx.interop.library_sms import settings
from cuda_gctx.interop.torch import use

from ..common import on_another_thread, run_python
from ..stand_in_torch import StandInDispatchMode

pytestmark = pytest.mark.sim_only
SMS = 132


class CuBLAS:
    def __init__(self) -> None:
        self.targets: dict[int, int] = {}

    def cublasGetSmCountTarget(self, handle: Any, answer: Any) -> int:
        answer._obj.value = self.targets.get(handle.value, 0)
        return 0

    def cublasSetSmCountTarget(self, handle: Any, count: Any) -> int:
        self.targets[handle.value] = count.value
        return 0


@pytest.fixture(autouse=True)
def cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    library = CuBLAS()
    monkeypatch.setattr(library_sms, "_loaded", lambda name: library)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def deep_gemm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepGEMM: counts from 0 (that of the device) to that of the device, one for the process."""
    state = {"count": 0}

    def set_num_sms(new_num_sms: int) -> None:
        assert isinstance(new_num_sms, int)
        assert 0 <= new_num_sms <= SMS
        state["count"] = new_num_sms

    def get_num_sms() -> int:
        state["count"] = state["count"] or SMS
        return state["count"]

    return module(monkeypatch, "deep_gemm", set_num_sms=set_num_sms, get_num_sms=get_num_sms)


class CudaUtils:
    """Triton's: one instance, which gets its functions when it is made."""

    def __new__(cls) -> Any:
        if not hasattr(cls, "instance"):
            cls.instance = super().__new__(cls)
        return cls.instance

    def __init__(self) -> None:
        self.get_device_properties = lambda device: {"multiprocessor_count": SMS, "max_shared_mem": 1000 + device}


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> Any:
    fresh = type("CudaUtils", (CudaUtils,), {})
    module(monkeypatch, "triton.backends.nvidia.driver", CudaUtils=fresh)
    return fresh


class Operator:
    """An operator of torch, which its modes see first."""

    def __init__(self, torch: Any, namespace: str, *arguments: str) -> None:
        self.namespace = namespace
        self._schema = SimpleNamespace(arguments=[SimpleNamespace(name=name) for name in arguments])
        self._torch = torch
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._torch.modes:
            mode = self._torch.modes.pop()
            try:
                return mode.__torch_dispatch__(self, (), args, kwargs)
            finally:
                self._torch.modes.append(mode)
        self.calls.append((args, kwargs))
        return None


@pytest.fixture
def attention(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    torch.modes = []
    module(monkeypatch, "torch.utils")
    module(monkeypatch, "torch.utils._python_dispatch", TorchDispatchMode=StandInDispatchMode)
    module(monkeypatch, "flash_attn_3._C")
    _counts._margin_class.cache_clear()
    yield lambda namespace, *arguments: Operator(torch, namespace, *arguments)
    _counts._margin_class.cache_clear()
    _counts._margin_place.cache_clear()


@pytest.mark.parametrize("choice", ["on", "auto"])
def test_deep_gemm_has_the_count_of_the_partition_in_the_block(
    torch: Any, deep_gemm: Any, dev: Device, choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if choice == "auto":
        monkeypatch.setattr(library_sms, "_mode_class", lambda torch: lambda stream, count: StandInDispatchMode())
        torch.modes = []
    with dev.partition(16, 32) as parts:
        with parts[0].torch(library_sms=choice):
            assert deep_gemm.get_num_sms() == 16
            with parts[1].torch(library_sms=choice):
                assert deep_gemm.get_num_sms() == 32
            with dev.create_stream() as plain, use(plain, library_sms=choice):
                assert deep_gemm.get_num_sms() == SMS
            assert deep_gemm.get_num_sms() == 16
        assert deep_gemm.get_num_sms() == SMS
        with parts[0].torch():
            assert deep_gemm.get_num_sms() == SMS


def test_deep_gemm_keeps_the_count_that_its_user_set(torch: Any, deep_gemm: Any, dev: Device) -> None:
    deep_gemm.set_num_sms(100)
    with dev.partition(16) as parts:
        with pytest.raises(KeyError), parts[0].torch(library_sms="on"):
            raise KeyError
        assert deep_gemm.get_num_sms() == 100


def test_a_deep_gemm_that_takes_no_count_is_left_alone(
    torch: Any, dev: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "deep_gemm")
    lost = pytest.warns(CUDAWarning, match="DeepGEMM has no set_num_sms")
    with dev.partition(16) as parts, lost, parts[0].torch(library_sms="on"):
        assert row("DeepGEMM").loaded is False


@pytest.mark.parametrize("first_used", ["before", "inside"])
def test_triton_reports_the_count_of_the_partition_on_this_thread(
    torch: Any, utils: Any, dev: Device, first_used: str
) -> None:
    if first_used == "before":
        assert utils().get_device_properties(0)["multiprocessor_count"] == SMS
    with dev.partition(16, 32) as parts:
        with parts[0].torch(library_sms="on"):
            assert utils.instance if first_used == "before" else utils()
            properties = utils.instance.get_device_properties
            assert properties(0) == {"multiprocessor_count": 16, "max_shared_mem": 1000}
            assert properties(1) == {"multiprocessor_count": SMS, "max_shared_mem": 1001}
            assert on_another_thread(lambda: utils.instance.get_device_properties(0)["multiprocessor_count"]) == SMS
            with parts[1].torch(library_sms="on"):
                assert utils.instance.get_device_properties(0)["multiprocessor_count"] == 32
            assert properties(0)["multiprocessor_count"] == 16
        # Whoever kept the function has that of the device again.
        assert properties(0)["multiprocessor_count"] == SMS
        assert utils.instance.get_device_properties(0)["multiprocessor_count"] == SMS


def test_a_triton_that_has_no_device_yet_has_no_properties(torch: Any, utils: Any, dev: Device) -> None:
    with dev.partition(16) as parts, parts[0].torch(library_sms="on"):
        blank = object.__new__(utils)
        assert not hasattr(blank, "get_device_properties")


def test_flash_attention_3_leaves_the_sms_outside_of_the_partition_free(
    torch: Any, attention: Any, dev: Device
) -> None:
    forward = attention("flash_attn_3", "q", "k", "sm_margin")
    combine = attention("flash_attn_3", "q", "k")
    other = attention("mine", "q", "sm_margin")
    with dev.partition(16) as parts, parts[0].torch(library_sms="on"):
        forward("q", "k", 0)
        forward("q", "k")
        forward("q", k="k", sm_margin=0)
        forward("q", "k", 7)
        forward("q", "k", sm_margin=7)
        combine("q", "k")
        other("q", 0)
    forward("q", "k", 0)
    margin = SMS - 16
    assert forward.calls == [
        (("q", "k", margin), {}),
        (("q", "k"), {"sm_margin": margin}),
        (("q",), {"k": "k", "sm_margin": margin}),
        (("q", "k", 7), {}),
        (("q", "k"), {"sm_margin": 7}),
        (("q", "k", 0), {}),
    ]
    assert combine.calls == [(("q", "k"), {})]
    assert other.calls == [(("q", 0), {})]


def test_flash_attention_3_on_another_stream_is_left_alone(torch: Any, attention: Any, dev: Device) -> None:
    forward = attention("_vllm_fa3_C", "q", "sm_margin")
    with dev.partition(16) as parts, parts[0].torch(library_sms="on"):
        with dev.create_stream() as plain, use(plain):
            forward("q", 0)
        forward("q", 0)
    assert [args for args, _ in forward.calls] == [("q", 0), ("q", SMS - 16)]


def row(library: str) -> Any:
    return next(one for one in settings() if one.library == library)


def test_settings_show_what_was_set_and_what_cannot_be(
    torch: Any, deep_gemm: Any, utils: Any, attention: Any, dev: Device
) -> None:
    def counts() -> list[tuple[str, int | None]]:
        return [(one.library, one.sms) for one in settings() if one.loaded and one.sms is not None]

    def all_with(count: int) -> list[tuple[str, int | None]]:
        of_torch = [("cuBLAS of torch", count), ("carve-out of torch", count)]
        return [*of_torch, ("DeepGEMM", count), ("Triton", count), ("FlashAttention 3", count)]

    assert counts() == all_with(SMS)
    with dev.partition(16) as parts:
        with parts[0].torch(library_sms="on"):
            assert counts() == all_with(16)
            text = str(settings())
            assert "the process" in text
            assert "each communicator" in text
            assert "cannot be set" in text
        assert counts() == all_with(SMS)


def test_settings_without_any_library_load_none() -> None:
    done = run_python(
        "import sys\n"
        "from cuda_gctx.interop.library_sms import settings\n"
        "assert not any(one.loaded for one in settings())\n"
        "print({'torch', 'triton', 'cupy', 'deep_gemm'} & set(sys.modules))\n",
        CUDA_GCTX_DRIVER="sim",
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_a_count_of_the_process_is_the_smallest_of_the_threads_that_have_a_block_open(
    torch: Any, deep_gemm: Any, dev: Device
) -> None:
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
            with pytest.warns(CUDAWarning):
                both_open()
            assert deep_gemm.get_num_sms() == 16
        assert deep_gemm.get_num_sms() == 32
        leave.set()
        thread.join()
        assert deep_gemm.get_num_sms() == SMS
