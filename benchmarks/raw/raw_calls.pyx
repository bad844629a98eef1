"""Raw driver calls, timed in C++: the baseline of the benchmarks."""

cimport cython

from libc.stdint cimport uintptr_t
from libcpp.memory cimport make_unique, unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx import Device, Stream, system


cdef extern from "raw_calls_in_c.hpp" namespace "raw":
    cdef cppclass CRawCalls "raw::RawCalls":
        CRawCalls(string, int) except +
        @staticmethod
        vector[string] names() except +
        double time(string, unsigned int) except +
        void settle() except +

    cdef struct Place "raw::RawSwitch::Place":
        uintptr_t stream
        uintptr_t context

    cdef cppclass CRawSwitch "raw::RawSwitch":
        CRawSwitch(string, vector[uintptr_t], vector[Place], vector[Place]) except +
        double time() except +


cdef class RawCalls:
    """Two small contexts with streams on a device, created by the driver's own calls, which can be timed by name."""

    cdef unique_ptr[CRawCalls] _calls

    def __init__(self, device):
        if not isinstance(device, Device):
            raise TypeError(f"device must be a Device, not {type(device).__name__}")
        self._calls = make_unique[CRawCalls](<string>system.driver_path.encode(), <int>device.device_id)

    @staticmethod
    def names():
        """The names of the calls that can be timed."""
        return [name.decode() for name in CRawCalls.names()]

    def time(self, name, unsigned int count):
        """Make the named call `count` times. Returns the nanoseconds of all calls."""
        self._demand_open()
        return self._calls.get().time((<str?>name).encode(), count)

    def settle(self):
        """Wait for the recorded events."""
        self._demand_open()
        self._calls.get().settle()

    def close(self):
        """Destroy the contexts. Closing twice does nothing."""
        self._calls.reset()

    cdef _demand_open(self):
        if not self._calls:
            raise RuntimeError("these raw calls are closed")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef Place place_of(where):
    cdef Place place
    if isinstance(where, Stream):
        place.stream, place.context = where.handle, where.context.handle
    else:
        place.stream, place.context = 0, where.handle
    return place


cdef class RawSwitch:
    """The driver calls of one switch between open contexts and streams, which can be timed."""

    cdef unique_ptr[CRawSwitch] _switch

    def __init__(self, asked, waits):
        """Create the events of the switch.

        asked: the streams whose capture state the switch reads. waits: pairs of a waiting place and the place that it
        waits for. A place is a context, or a stream on the whole device.
        """
        cdef vector[uintptr_t] streams = [stream.handle for stream in asked]
        cdef vector[Place] earlier, later
        for waiting, before in waits:
            later.push_back(place_of(waiting))
            earlier.push_back(place_of(before))
        self._switch = make_unique[CRawSwitch](<string>system.driver_path.encode(), streams, earlier, later)

    def time(self):
        """Make the calls of the switch. Returns their nanoseconds."""
        return self._switch.get().time()

    def close(self):
        """Destroy the events. Closing twice does nothing."""
        self._switch.reset()


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
      gctx_NothingType.tp_name = "raw_calls.Nothing";
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
