"""Raw driver calls, timed in C++: what the calls of the package are compared with."""

from libcpp.memory cimport shared_ptr
from libcpp.string cimport string

from cuda_gctx._core.cpp cimport Runtime
from cuda_gctx._core.driver cimport active_runtime
from cuda_gctx.bench.raw_calls cimport CRawCalls, raw_call_names

from cuda_gctx._core.device import Device


cdef class RawCalls:
    """Two small contexts with streams on a device, made with the driver's own calls, which can be timed by name."""

    cdef shared_ptr[CRawCalls] _calls

    def __init__(self, device):
        cdef int ordinal
        cdef Runtime* runtime
        if not isinstance(device, Device):
            raise TypeError(f"raw calls are made on a Device, not on {type(device).__name__}")
        ordinal = device.device_id
        runtime = active_runtime()
        with nogil:
            # Not by make_shared, which would lose what kind of error it was.
            self._calls.reset(new CRawCalls(runtime[0], ordinal))

    @staticmethod
    def names():
        """The calls that can be timed."""
        return [name.decode() for name in raw_call_names()]

    cdef shared_ptr[CRawCalls] live(self) except *:
        if not self._calls:
            raise RuntimeError("the raw calls have been closed")
        return self._calls

    def time(self, name, unsigned int count):
        """Makes a call so many times; nanoseconds for all of them."""
        cdef shared_ptr[CRawCalls] calls = self.live()
        cdef string wanted = name.encode()
        cdef double taken
        with nogil:
            taken = calls.get().time(wanted, count)
        return taken

    def settle(self):
        """Waits for all that was recorded."""
        cdef shared_ptr[CRawCalls] calls = self.live()
        with nogil:
            calls.get().settle()

    def close(self):
        """Destroys what the calls work on. Closing twice does nothing."""
        with nogil:
            self._calls.reset()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
