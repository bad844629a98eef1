"""What partitions need of the core: contexts that are kept while nobody uses them, and what to ask before new ones."""

from libc.stdint cimport uint64_t, uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.context cimport Context, ContextOptions, new_green_context, wrap_context
from cuda_gctx._core.cpp cimport CUdevResource, SmResourcePtr, stream_is_capturing
from cuda_gctx._core.cpp cimport kept_stream as c_kept_stream
from cuda_gctx._core.resources cimport SMResource
from cuda_gctx._core.stream cimport Stream, StreamOptions


cdef class Claim:
    """A place among the live contexts of a device, for contexts made by create_kept_context()."""

    cdef unique_ptr[CClaim] _claim

    def __init__(self, *args, **kwargs):
        raise TypeError("a Claim comes from claim()")

    def __dealloc__(self):
        with nogil:
            self._claim.reset()

    @property
    def overlap_report(self):
        """Which live contexts share its SMs or may; empty if none do."""
        return self._claim.get().overlap_report().decode() if self._claim else ""

    def release(self):
        """Gives the place up. Twice does nothing."""
        with nogil:
            self._claim.reset()


def claim(resources, names, bint exclusive, uint64_t group):
    """Claims the SMs of some resources of one device. Claims of one group (0: of none) may share SMs."""
    cdef vector[SmResourcePtr] sms
    cdef vector[string] labels
    cdef SMResource resource
    cdef Claim made = Claim.__new__(Claim)
    for resource in resources:
        sms.push_back(resource._sm)
    for name in names:
        labels.push_back(name.encode())
    resource = resources[0]
    made._claim.reset(new CClaim(resource._runtime[0], resource._sm.get().device, sms, labels, exclusive, group))
    return made


def create_kept_context(int device_id, ContextOptions options not None):
    """A green context without a place among the live ones."""
    return new_green_context(device_id, options, False)


def lend(Context context not None, owner):
    """The same context as another object, which keeps `owner` alive."""
    cdef Context lent
    context.live()
    lent = wrap_context(context._box)
    lent._owner = owner
    return lent


def retire(Context context not None):
    """Makes a lent object behave as closed; the context itself stays."""
    context._current = None
    context._resources = None
    context._owner = None
    context.close_unless_pinned()


def kept_stream(Context context not None, size_t number=0, priority=None):
    """A stream of the context itself: the same one for all who ask for this number and priority.

    The driver's stream lives as long as the context (an adopted one: as long as this package refers to it): code that
    has only its handle can go on using it.
    """
    cdef StreamOptions options = StreamOptions(priority=priority)
    cdef Stream stream = Stream.__new__(Stream)
    cdef optional[int] level
    if options.priority is not None:
        level = <int>options.priority
    context.pin()
    try:
        stream._context = context
        with nogil:
            stream._box = c_kept_stream(context._box, level, number)
    finally:
        context.unpin()
    return stream


def keeps_capture(Context context not None):
    """Whether one of the streams that it keeps is capturing a graph."""
    context.live()
    return (<LentContextBox*>context._box.get()).keeps_capture()


def demand_not_current(Context context not None):
    """Raises RuntimeError while the context is current here, or on a thread that made it so through this package."""
    context.live()
    (<LentContextBox*>context._box.get()).demand_not_current()


def driver_key(SMResource resource not None):
    """A number for the driver that a resource belongs to, never used twice in a process."""
    return <uintptr_t>resource._runtime


def sm_identity(SMResource resource not None):
    """Bytes that are equal for two resources of one driver only if they have the same SMs."""
    return (<const char*>resource._sm.get().units.data())[:resource._sm.get().units.size() * sizeof(CUdevResource)]


def capturing_stream(SMResource resource not None):
    """What is capturing on the device of a resource, as far as can be known; None if nothing is."""
    cdef string told
    resource._runtime.demand_usable()
    with nogil:
        told = c_capturing_stream(resource._runtime[0], resource._sm.get().device)
    return told.decode() or None


def is_capturing(Stream stream not None):
    """Whether a stream is recording a graph."""
    stream.live()
    return stream_is_capturing(stream._box.get()[0])


def device_memory(SMResource resource not None):
    """Of the device of a resource: bytes free, and bytes in all."""
    cdef CDeviceMemory memory
    resource._runtime.demand_usable()
    with nogil:
        memory = c_device_memory(resource._runtime[0], resource._sm.get().device)
    return memory.free, memory.total


def context_counts(SMResource resource not None):
    """Green contexts that this package made, and those that it destroyed, on the device of a resource."""
    cdef CContextCounts counts = c_context_counts(resource._runtime[0], resource._sm.get().device)
    return counts.made, counts.destroyed
