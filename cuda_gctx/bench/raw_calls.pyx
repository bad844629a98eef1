"""Raw driver calls, timed in C++: what the calls of the package are compared with."""

from cuda_gctx._core.cpp cimport Slot, drop
from cuda_gctx._core.driver cimport active_runtime
from cuda_gctx.bench.raw_calls cimport (
    CRawCalls,
    make_raw_calls,
    raw_call_names,
    settle_raw_calls,
    time_raw_calls,
)

from cuda_gctx._core.device import Device


cdef class RawCalls:
    """Two small contexts with streams on a device, made with the driver's own calls, which can be timed by name."""

    cdef Slot[CRawCalls] _calls

    def __init__(self, device):
        if not isinstance(device, Device):
            raise TypeError(f"raw calls are made on a Device, not on {type(device).__name__}")
        make_raw_calls(self._calls, active_runtime()[0], device.device_id)

    def __dealloc__(self):
        drop(self._calls)

    @staticmethod
    def names():
        """The calls that can be timed."""
        return [name.decode() for name in raw_call_names()]

    def time(self, name, unsigned int count):
        """Makes a call so many times; nanoseconds for all of them."""
        return time_raw_calls(self._calls, (<str?>name).encode(), count)

    def settle(self):
        """Waits for all that was recorded."""
        settle_raw_calls(self._calls)

    def close(self):
        """Destroys what the calls work on. Closing twice does nothing."""
        drop(self._calls)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
