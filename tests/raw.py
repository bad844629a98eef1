"""The active driver library itself, through ctypes: what other programs do around the package, and probe kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import cuda_gctx

STREAM_NON_BLOCKING = 1
SM = 1
DEFAULT_STREAM = 1
RESOURCE_BYTES = 144

# Every block writes {SM id, start, end, block} and stays on its SM for `spin` nanoseconds, so that the blocks of a
# launch spread over all SMs that they may use. The software driver models a kernel of this name.
PROBE = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry cuda_gctx_probe(.param .u64 out, .param .u32 capacity, .param .u64 spin)
{
  .reg .pred %p<3>;
  .reg .b32 %r<4>;
  .reg .b64 %d<9>;
  ld.param.u64 %d1, [out];
  ld.param.u32 %r1, [capacity];
  ld.param.u64 %d2, [spin];
  mov.u32 %r2, %ctaid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra done;
  cvta.to.global.u64 %d1, %d1;
  mul.wide.u32 %d3, %r2, 32;
  add.s64 %d1, %d1, %d3;
  mov.u64 %d4, %globaltimer;
wait:
  mov.u64 %d5, %globaltimer;
  sub.s64 %d6, %d5, %d4;
  setp.lt.u64 %p2, %d6, %d2;
  @%p2 bra wait;
  mov.u32 %r3, %smid;
  cvt.u64.u32 %d7, %r3;
  cvt.u64.u32 %d8, %r2;
  st.global.u64 [%d1], %d7;
  st.global.u64 [%d1+8], %d4;
  st.global.u64 [%d1+16], %d5;
  st.global.u64 [%d1+24], %d8;
done:
  ret;
}
\0"""
RECORD_BYTES = 32
SPIN_NS = 200_000
THREADS = 1024  # at most two such blocks fit on one SM


def resource_bytes(resource: cuda_gctx.SMResource) -> bytes:
    """The driver's own words for a set of SMs: those of all units, one after the other."""
    return b"".join(ctypes.string_at(handle, RESOURCE_BYTES) for handle in resource.handles)


class RawError(Exception):
    """A raw call answered an error."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answered {code}")
        self.code = code


class Raw:
    """Calls of the driver library that the package has open, with the handles as ints."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(cuda_gctx.system.driver_path)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise RawError(name, code)

    def handle(self, name: str, *arguments: Any) -> int:
        """The handle that a call writes to its first parameter."""
        result = ctypes.c_void_p()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def current(self) -> int:
        return self.handle("cuCtxGetCurrent")

    def id_of(self, context: int) -> int:
        """The id of a context."""
        number = ctypes.c_ulonglong()
        self.call("cuCtxGetId", ctypes.c_void_p(context), ctypes.byref(number))
        return number.value

    def set_current(self, context: int) -> None:
        self.call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def push(self, context: int) -> None:
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))

    def pop(self) -> int:
        return self.handle("cuCtxPopCurrent_v2")

    def create_stream(self, context: int) -> int:
        self.push(context)
        try:
            return self.handle("cuStreamCreate", STREAM_NON_BLOCKING)
        finally:
            self.pop()

    def context_of_stream(self, stream: int) -> int:
        """The context to which a stream belongs: its green context's where it has one."""
        green, context = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamGetGreenCtx", ctypes.c_void_p(stream), ctypes.byref(green))
        if green:  # cuStreamGetCtx knows no such streams before 13.0
            return self.handle("cuCtxFromGreenCtx", green)
        self.call("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context))
        return context.value or 0

    def handle_of_capture(self, stream: int) -> int:
        """The graph of a capture that ends; an error if the capture was invalidated."""
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph.value or 0

    def destroy_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    @contextmanager
    def stream(self, context: int) -> Iterator[int]:
        """A stream that somebody else made."""
        stream = self.create_stream(context)
        try:
            yield stream
        finally:
            self.destroy_stream(stream)

    @contextmanager
    def ordinary_context(self) -> Iterator[int]:
        """A context that somebody else made with cuCtxCreate; it is current on no thread."""
        context = self.handle("cuCtxCreate_v2", 0, 0)
        self.pop()
        try:
            yield context
        finally:
            self.call("cuCtxDestroy_v2", ctypes.c_void_p(context))

    @contextmanager
    def green_context(self, count: int) -> Iterator[int]:
        """A green context of `count` SMs or a few more that somebody else made, as a CUcontext."""
        resource = (ctypes.c_byte * RESOURCE_BYTES)()
        group = (ctypes.c_byte * RESOURCE_BYTES)()
        groups = ctypes.c_uint(1)
        self.call("cuDeviceGetDevResource", 0, resource, SM)
        self.call("cuDevSmResourceSplitByCount", group, ctypes.byref(groups), resource, None, 0, count)
        description = self.handle("cuDevResourceGenerateDesc", group, 1)
        green = self.handle("cuGreenCtxCreate", ctypes.c_void_p(description), 0, DEFAULT_STREAM)
        try:
            yield self.handle("cuCtxFromGreenCtx", ctypes.c_void_p(green))
        finally:
            self.call("cuGreenCtxDestroy", ctypes.c_void_p(green))


class Probe:
    """A kernel that writes the SM ids of its blocks."""

    def __init__(self, dev: cuda_gctx.Device) -> None:
        self.raw = Raw()
        self.dev = dev
        self._blocks = 4 * dev.sm_count

    def __enter__(self) -> Probe:
        raw = self.raw
        nothing = (None, None, 0)
        with self.dev.context.current():
            self._library = raw.handle("cuLibraryLoadData", ctypes.c_char_p(PROBE), *nothing, *nothing)
            self.kernel = raw.handle("cuLibraryGetKernel", ctypes.c_void_p(self._library), b"cuda_gctx_probe")
            self.out = raw.handle("cuMemAlloc_v2", ctypes.c_size_t(self._blocks * RECORD_BYTES))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.dev.context.current():
            self.raw.call("cuMemFree_v2", ctypes.c_void_p(self.out))
            self.raw.call("cuLibraryUnload", ctypes.c_void_p(self._library))

    def launch(self, stream: cuda_gctx.Stream) -> None:
        """Starts the kernel; the context of the stream must be current."""
        values = (ctypes.c_uint64(self.out), ctypes.c_uint32(self._blocks), ctypes.c_uint64(SPIN_NS))
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        shape = (self._blocks, 1, 1, THREADS, 1, 1, 0)
        stream_handle = ctypes.c_void_p(stream.handle)
        self.raw.call("cuLaunchKernel", ctypes.c_void_p(self.kernel), *shape, stream_handle, addresses, None)

    def records(self) -> list[tuple[int, int, int, int]]:
        """SM id, start, end and number of every block of the last launch."""
        size = self._blocks * RECORD_BYTES
        host = (ctypes.c_uint64 * (size // 8))()
        self.raw.call("cuMemcpyDtoH_v2", host, ctypes.c_void_p(self.out), ctypes.c_size_t(size))
        return [tuple(host[first : first + 4]) for first in range(0, len(host), 4)]

    def sms(self, context: cuda_gctx.Context) -> set[int]:
        """The SMs on which work of a context runs."""
        with context.create_stream() as stream, context.current():
            self.launch(stream)
            stream.sync()
            return {smid for smid, _, _, _ in self.records()}
