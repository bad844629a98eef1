"""Raw driver calls, timed in C++: what the calls of the package are compared with."""

cimport cython

from libcpp.vector cimport vector

cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.context cimport Context
from cuda_gctx._core.cpp cimport Slot
from cuda_gctx._core.driver cimport active_runtime
from cuda_gctx._core.stream cimport Stream
from cuda_gctx.bench.raw_calls cimport (
    CRawCalls,
    CRawSwitch,
    make_raw_calls,
    make_raw_switch,
    raw_call_names,
    settle_raw_calls,
    time_raw_calls,
    time_raw_switch,
)

from cuda_gctx._core.device import Device


cdef class RawCalls:
    """Two small contexts with streams on a device, made with the driver's own calls, which can be timed by name."""

    cdef Slot[CRawCalls] _calls

    def __init__(self, device):
        if not isinstance(device, Device):
            raise TypeError(f"device must be a Device, not {type(device).__name__}")
        make_raw_calls(self._calls, active_runtime()[0], device.device_id)

    @staticmethod
    def names():
        """The calls that can be timed."""
        return [name.decode() for name in raw_call_names()]

    def time(self, name, unsigned int count):
        """Makes a call so many times; nanoseconds for all of them."""
        cdef bytes text = (<str?>name).encode()
        return time_raw_calls(self._calls, text, count)

    def settle(self):
        """Waits for all that was recorded."""
        settle_raw_calls(self._calls)

    def close(self):
        """Destroys what the calls work on. Closing twice does nothing."""
        self._calls.drop()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef cpp.NewUse place_of(where) except *:
    cdef cpp.NewUse place
    if isinstance(where, Stream):
        place.stream = (<Stream>where)._slot.get()
    else:
        place.context = (<Context?>where)._slot.get()
    return place


cdef class RawSwitch:
    """The driver calls of one switch between open contexts and streams, which can be timed."""

    cdef Slot[CRawSwitch] _switch

    def __init__(self, asked, waits):
        """asked: the streams that the switch asks for captures. waits: what waits, and for what: contexts or streams on
        the whole device.
        """
        cdef vector[cpp.StreamHandle] streams
        cdef vector[cpp.NewUse] earlier, later
        cdef Stream stream
        for stream in asked:
            streams.push_back(stream._slot.get())
        for what, before in waits:
            later.push_back(place_of(what))
            earlier.push_back(place_of(before))
        make_raw_switch(self._switch, streams, earlier, later)

    def time(self):
        """Makes the calls; nanoseconds."""
        return time_raw_switch(self._switch)

    def close(self):
        """Destroys the events. Closing twice does nothing."""
        self._switch.drop()


cdef extern from *:
    """
    /* The least that a with statement over an object in C takes: its __enter__ and __exit__ are one object, which is
       called without a tuple of the arguments, and is no descriptor, so that no bound method is made. */
    typedef struct {
      PyObject_HEAD
      vectorcallfunc call;
    } gctx_Nothing;
    static PyObject* gctx_call_nothing(PyObject* self, PyObject* const* arguments, size_t count, PyObject* names) {
      (void)self, (void)arguments, (void)count, (void)names;
      Py_RETURN_NONE;
    }
    static PyTypeObject gctx_NothingType;
    static PyObject* gctx_make_nothing(void) {
      Py_SET_REFCNT((PyObject*)&gctx_NothingType, 1);
      Py_SET_TYPE((PyObject*)&gctx_NothingType, &PyType_Type);
      gctx_NothingType.tp_name = "cuda_gctx.bench.raw_calls.Nothing";
      gctx_NothingType.tp_basicsize = sizeof(gctx_Nothing);
      gctx_NothingType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
      gctx_NothingType.tp_vectorcall_offset = offsetof(gctx_Nothing, call);
      gctx_NothingType.tp_call = PyVectorcall_Call;
      if (PyType_Ready(&gctx_NothingType) < 0) {
        return NULL;
      }
      gctx_Nothing* const made = PyObject_New(gctx_Nothing, &gctx_NothingType);
      if (made != NULL) {
        made->call = gctx_call_nothing;
      }
      return (PyObject*)made;
    }
    """
    object gctx_make_nothing()


cdef extern from *:
    """
    /* Opaque, so that the GIL is released around it. */
    static void gctx_do_nothing(void) { __asm__ volatile("" ::: "memory"); }
    """
    void gctx_do_nothing() noexcept nogil


cdef class Nothing:
    """What Python itself takes for statements over an object in C, which do nothing."""

    __enter__ = __exit__ = gctx_make_nothing()

    @property
    def itself(self):
        return self

    @cython.binding(False)
    def block(self):
        return self

    @property
    def without_gil(self):
        """Releases the GIL, and takes it back."""
        with nogil:
            gctx_do_nothing()
        return True

    @cython.binding(False)
    def call_without_gil(self, other):
        """The same, as a method with an argument."""
        with nogil:
            gctx_do_nothing()
