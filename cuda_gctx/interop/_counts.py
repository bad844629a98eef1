"""SM counts of libraries whose kernels are persistent or are sized by the device: how to set the count of each library.

A library gets a count only if the program has imported it. The end of the last open block restores values that a
library keeps for the whole process. Other values belong to the calling thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from cuda_gctx._core.extension import Stream

__all__ = [
    "attention_count",
    "carve_out",
    "deep_gemm_count",
    "has_flash_attention_3",
    "has_triton",
    "library_counts",
    "triton_count",
]


class _ProcessWide:
    """A value of a library that the whole process shares.

    Blocks of several threads end in any order. The latest open block determines the value, and the end of the last
    open block restores the original value.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[list[Any]] = []
        self._before: Any = None

    @contextmanager
    def hold(self, read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
        """Set the value within a block."""
        held = [value]
        with self._lock:
            if not self._open:
                self._before = read()
            write(value)
            self._open.append(held)
        try:
            yield
        finally:
            with self._lock:
                self._open = [block for block in self._open if block is not held]
                write(self._open[-1][0] if self._open else self._before)


# ---- torch: cuBLASLt, persistent GEMMs of Inductor, FlashAttention 3 where torch calls it

_carve_out = _ProcessWide()
_cache_tag = _ProcessWide()
# What follows the tag that the program has set.
_OF_CARVE_OUT = " carve-out "


@contextmanager
def carve_out(torch: Any, free: int | None) -> Iterator[None]:
    """The number of SMs that torch's kernels leave free."""
    # Private and experimental in torch, and missing in some versions.
    write = getattr(torch._C, "_set_sm_carveout_experimental", None)
    if write is None:
        yield
        return
    with _carve_out.hold(torch._C._get_sm_carveout_experimental, write, free):
        yield


@contextmanager
def _tagged_cache(free: int) -> Iterator[None]:
    """Keep the code that Inductor compiles in a block apart: its cache ignores the carve-out (torch 2.11)."""
    config: Any = sys.modules.get("torch.compiler.config")  # comes with torch
    if not hasattr(config, "cache_key_tag"):
        yield
        return
    own = config.cache_key_tag.partition(_OF_CARVE_OUT)[0]
    tag = f"{own}{_OF_CARVE_OUT}{free}" if free else own
    with _cache_tag.hold(lambda: config.cache_key_tag, lambda tag: setattr(config, "cache_key_tag", tag), tag):
        yield


class _Counts(threading.local):
    """The SM counts that a library has on this thread, by device; the innermost block last."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int]] = []

    def of(self, device: int) -> int | None:
        return next((count for number, count in reversed(self.given) if number == device), None)

    @contextmanager
    def hold(self, device: int, count: int) -> Iterator[None]:
        self.given.append((device, count))
        try:
            yield
        finally:
            self.given.pop()


# ---- DeepGEMM: set_num_sms and get_num_sms (1.0 to 2.6), one number for the process

_deep_gemm = _ProcessWide()


def deep_gemm_count() -> int | None:
    """The SM count that DeepGEMM uses; None if it is not loaded, or does not accept one."""
    library = sys.modules.get("deep_gemm")
    if not (hasattr(library, "get_num_sms") and hasattr(library, "set_num_sms")):
        return None
    count: int = library.get_num_sms()  # type: ignore[union-attr]
    return count


# ---- Triton: the count that programs take their grids from, driver.active.utils.get_device_properties (3.0 to 3.6)


_reported = _Counts()


class _Properties:
    """A `get_device_properties` for Triton's CudaUtils, which sets it on its only instance at first use.

    In a block, it reports the SM count of the partition. Other properties, threads and devices are unchanged.
    """

    name = "get_device_properties"

    def __set__(self, utils: Any, function: Any) -> None:
        vars(utils)[self.name] = function

    def __get__(self, utils: Any, owner: type) -> Any:
        if utils is None:
            return self
        function = vars(utils).get(self.name)
        if function is None:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        if not _reported.given:
            return function

        def get_device_properties(device: int) -> dict[str, Any]:
            properties: dict[str, Any] = function(device)
            count = _reported.of(device)
            return properties if count is None else {**properties, "multiprocessor_count": count}

        return get_device_properties


def _triton_utils() -> Any:
    """Triton's class for the device; None if Triton is not loaded, or keeps its properties elsewhere."""
    return getattr(sys.modules.get("triton.backends.nvidia.driver"), "CudaUtils", None)


def has_triton() -> bool:
    """Whether Triton is loaded and has the class whose function the blocks replace."""
    return _triton_utils() is not None


def triton_count(device: int) -> int | None:
    """The SM count that Triton reports on this thread in a block; None outside of blocks."""
    return _reported.of(device)


def _triton(device: int, count: int) -> AbstractContextManager[None]:
    utils = _triton_utils()
    if _Properties.name not in vars(utils):
        setattr(utils, _Properties.name, _Properties())
    return _reported.hold(device, count)


# ---- FlashAttention 3: the argument sm_margin of its operators (3.0), also in vLLM's build of it

_FLASH_ATTENTION_3 = {
    "flash_attn_3._C": "flash_attn_3",
    "vllm.vllm_flash_attn._vllm_fa3_C": "_vllm_fa3_C",
    "vllm_flash_attn._vllm_fa3_C": "_vllm_fa3_C",
}


_attending = _Counts()


def has_flash_attention_3() -> bool:
    """Whether FlashAttention 3 is loaded."""
    return any(module in sys.modules for module in _FLASH_ATTENTION_3)


def attention_count(device: int) -> int | None:
    """The SM count that FlashAttention 3 gets on this thread in a block; None outside of blocks."""
    return _attending.of(device)


@cache
def _margin_place(function: Any) -> int | None:
    """The position of the argument sm_margin of an operator of FlashAttention 3; None for all other operators."""
    if function.namespace not in _FLASH_ATTENTION_3.values():
        return None
    names = [argument.name for argument in function._schema.arguments]
    return names.index("sm_margin") if "sm_margin" in names else None


@cache
def _margin_class(torch: Any) -> Any:
    dispatch: Any = import_module("torch.utils._python_dispatch")

    class Margin(dispatch.TorchDispatchMode):  # type: ignore[misc]
        """Passes the number of SMs outside of the partition to calls of FlashAttention 3 that pass none."""

        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __init__(self, stream: Stream, margin: int) -> None:
            super().__init__()
            self._handle = stream.handle
            self._index = stream.device.device_id
            self._margin = margin

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            place = _margin_place(func)
            if place is not None and torch.cuda.current_stream(self._index).cuda_stream == self._handle:
                if place < len(args):
                    args = (*args[:place], args[place] or self._margin, *args[place + 1 :])
                else:
                    kwargs = {**kwargs, "sm_margin": kwargs.get("sm_margin") or self._margin}
            return func(*args, **kwargs)

    return Margin


@contextmanager
def _flash_attention_3(torch: Any, stream: Stream, count: int) -> Iterator[None]:
    device = stream.device
    with _attending.hold(device.device_id, count), _margin_class(torch)(stream, device.sm_count - count):
        yield


# ---- all of them


@contextmanager
def library_counts(torch: Any, stream: Stream, count: int) -> Iterator[None]:
    """Set the SM count of the loaded libraries that accept one, within a block.

    These counts size the grids of persistent kernels, so that they fit the partition without a measurement.
    """
    with ExitStack() as held:
        held.enter_context(_tagged_cache(stream.device.sm_count - count))
        if deep_gemm_count() is not None:
            deep_gemm: Any = sys.modules["deep_gemm"]
            held.enter_context(_deep_gemm.hold(deep_gemm.get_num_sms, deep_gemm.set_num_sms, count))
        if has_triton():
            held.enter_context(_triton(stream.device.device_id, count))
        if has_flash_attention_3():
            held.enter_context(_flash_attention_3(torch, stream, count))
        yield
