"""SM counts of libraries whose kernels are persistent or are sized by the device: how to set the count of each library.

A library gets a count only if the program has imported it. The end of the last open block restores values that a
library keeps for the whole process. Other values belong to the calling thread.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from cuda_gctx._core.extension import CUDAWarning, Stream

__all__ = [
    "attention_count",
    "carve_out",
    "deep_gemm_count",
    "has_flash_attention_3",
    "has_triton",
    "library_counts",
    "triton_count",
]


class _Held(NamedTuple):
    """An open block: the thread, the SM count, the value that stands for the count, and whether others are warned."""

    thread: int
    sms: int
    value: Any
    warns: bool


class _ProcessWide:
    """A value of a library that the whole process shares, and that stands for an SM count.

    Blocks of several threads end in any order. On one thread, the innermost block determines the value. Of several
    threads, the smallest count holds, with a warning: a persistent kernel with more blocks than SMs may not end. The
    end of the last open block restores the original value.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._open: list[_Held] = []
        self._before: Any = None

    def _smallest(self) -> _Held:
        innermost = {held.thread: held for held in self._open}
        return min(innermost.values(), key=lambda held: held.sms)

    @contextmanager
    def hold(
        self, read: Callable[[], Any], write: Callable[[Any], object], value: Any, count: int, *, warns: bool = True
    ) -> Iterator[None]:
        """Set the value within a block.

        count: the SM count for which it stands. warns: whether it is a hint, which another thread may contradict.
        """
        held = _Held(threading.get_ident(), count, value, warns)
        with self._lock:
            if not self._open:
                self._before = read()
            others = {one.thread: one.sms for one in self._open if one.thread != held.thread and one.warns}
            self._open.append(held)
            write(self._smallest().value)
        different = [other for other in others.values() if other != count]
        if warns and different:
            warnings.warn(
                f"{self._library} has one SM count for the whole process, and two threads set {different[0]} and "
                f'{count} at the same time: the smaller one holds; use library_sms="off" on one of them, or two '
                "processes",
                CUDAWarning,
                stacklevel=2,
            )
        try:
            yield
        finally:
            with self._lock:
                self._open = [block for block in self._open if block is not held]
                write(self._smallest().value if self._open else self._before)


_lost: set[str] = set()


def _warn_of_lost_hint(library: str, name: str) -> None:
    """Warn once that a library lacks the private name through which it takes its SM count."""
    if library not in _lost:
        _lost.add(library)
        warnings.warn(
            f"{library} has no {name}, so that it keeps the SM count of the device: its kernels are sized for all SMs",
            CUDAWarning,
            stacklevel=3,
        )


# ---- torch: cuBLASLt, persistent GEMMs of Inductor, FlashAttention 3 where torch calls it

_carve_out = _ProcessWide("torch (cuBLASLt and persistent kernels)")
_cache_tag = _ProcessWide("Inductor")
# What follows the tag that the program has set.
_OF_CARVE_OUT = " carve-out "


@contextmanager
def carve_out(torch: Any, free: int | None, count: int) -> Iterator[None]:
    """The number of SMs that torch's kernels leave free.

    free: None for none. count: the SMs that they use.
    """
    # Private and experimental in torch, and missing in some versions.
    write = getattr(torch._C, "_set_sm_carveout_experimental", None)
    if write is None:
        if free:
            _warn_of_lost_hint("torch", "_C._set_sm_carveout_experimental")
        yield
        return
    with _carve_out.hold(torch._C._get_sm_carveout_experimental, write, free, count, warns=bool(free)):
        yield


@contextmanager
def _tagged_cache(free: int, count: int) -> Iterator[None]:
    """Keep the code that Inductor compiles in a block apart: its cache ignores the carve-out (torch 2.11)."""
    config: Any = sys.modules.get("torch.compiler.config")  # comes with torch
    if not hasattr(config, "cache_key_tag"):
        if "torch._inductor" in sys.modules and free:
            _warn_of_lost_hint("Inductor", "torch.compiler.config.cache_key_tag")
        yield
        return
    own = config.cache_key_tag.partition(_OF_CARVE_OUT)[0]
    tag = f"{own}{_OF_CARVE_OUT}{free}" if free else own

    def write(tag: str) -> None:
        config.cache_key_tag = tag

    # The carve-out has warned already.
    with _cache_tag.hold(lambda: config.cache_key_tag, write, tag, count, warns=False):
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

_deep_gemm = _ProcessWide("DeepGEMM")


def deep_gemm_count() -> int | None:
    """The SM count that DeepGEMM uses; None if it is not loaded, or does not accept one."""
    library = sys.modules.get("deep_gemm")
    if not (hasattr(library, "get_num_sms") and hasattr(library, "set_num_sms")):
        return None
    count: int = library.get_num_sms()  # type: ignore[union-attr]
    return count


# ---- Triton: the count that programs take their grids from, driver.active.utils.get_device_properties (3.0 to 3.9)


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
    """Tells whether Triton is loaded and has the class whose function the blocks replace."""
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
    """Tells whether FlashAttention 3 is loaded."""
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
        is_smaller = count != stream.device.sm_count
        held.enter_context(_tagged_cache(stream.device.sm_count - count, count))
        if deep_gemm_count() is not None:
            deep_gemm: Any = sys.modules["deep_gemm"]
            held.enter_context(_deep_gemm.hold(deep_gemm.get_num_sms, deep_gemm.set_num_sms, count, count))
        elif "deep_gemm" in sys.modules and is_smaller:
            _warn_of_lost_hint("DeepGEMM", "set_num_sms")
        if "triton.backends.nvidia.driver" in sys.modules and not has_triton() and is_smaller:
            _warn_of_lost_hint("Triton", "backends.nvidia.driver.CudaUtils")
        if has_triton():
            held.enter_context(_triton(stream.device.device_id, count))
        if has_flash_attention_3():
            held.enter_context(_flash_attention_3(torch, stream, count))
        yield
