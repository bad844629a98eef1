"""What loans of contexts need of the core: claims on SMs, contexts that partitions share, and what to ask first."""

from cython.operator cimport dereference
from libc.stdint cimport uint64_t, uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from cuda_gctx._core.arguments cimport make_only_here, refuse_copy
from cuda_gctx._core.context cimport Context, ContextOptions, let_go, made_context, new_green_context, unmade_context
from cuda_gctx._core.cpp cimport (
    Borrowed,
    ContextBox,
    ContextCounts,
    ContextHandle,
    CUdevResource,
    DeviceMemory,
    PinnedContexts,
    PinnedCounts,
    Runtime,
    SmResourcePtr,
    any_has_capture,
    live,
    live_contexts,
    merged,
    none_of,
    pinned_contexts,
    present,
    stream_is_capturing,
)
from cuda_gctx._core.cpp cimport capture_of as c_capture_of
from cuda_gctx._core.cpp cimport capturing_stream as c_capturing_stream
from cuda_gctx._core.cpp cimport device_memory as c_device_memory
from cuda_gctx._core.cpp cimport context_stream as c_context_stream
from cuda_gctx._core.cpp cimport demand_not_current as c_demand_not_current
from cuda_gctx._core.cpp cimport drop_pinned as c_drop_pinned
from cuda_gctx._core.cpp cimport pin_context as c_pin_context
from cuda_gctx._core.cpp cimport serve_as as c_serve_as
from cuda_gctx._core.resources cimport SMResource
from cuda_gctx._core.stream cimport Stream, StreamOptions, made_stream, note_pinned, pin_stream


cdef class Claim:
    """The SMs that one user has of a device, for contexts made by create_unclaimed_context()."""

    cdef unique_ptr[CClaim] _claim

    @property
    def overlap_report(self):
        """The live contexts that shared its SMs or might, when it was made; empty if none did."""
        return self._claim.get().overlap_report().decode()

    def release(self):
        """Ends the claim. Ending it twice does nothing."""
        self._claim.get().release()

    def __reduce__(self):
        refuse_copy(self, "claim the SMs there")


make_only_here(Claim, "a Claim comes from claim()")


def claim(resources, names, bint exclusive, uint64_t group, str advice, *, bint only_free=False):
    """Claim the SMs of resources of one device. Claims of one group (0: of none) may share SMs.

    only_free: ResourceOverlapError if live contexts have them or may, as with `exclusive`. advice: the end of the
    message about these.
    """
    cdef vector[SmResourcePtr] sms
    cdef Names labels
    cdef SMResource resource
    cdef Claim made = Claim.__new__(Claim)
    for resource in resources:
        sms.push_back(resource._sm)
    for name in names:
        labels.emplace_back(name.encode())
    resource = resources[0]
    made._claim.reset(
        new CClaim(
            resource._runtime[0], resource._sm.get().device, sms, labels, exclusive, only_free, group, advice.encode()
        )
    )
    return made


def are_free(resources):
    """For each of some resources of one device whether no live context is known to have its SMs, or may have them."""
    cdef vector[SmResourcePtr] sms
    cdef SMResource resource
    for resource in resources:
        sms.push_back(resource._sm)
    if sms.empty():
        return []
    resource = resources[0]
    return [bool(answer) for answer in live_contexts(resource._runtime[0]).are_free(resource._sm.get().device, sms)]


def together(SMResource whole not None, resources):
    """Groups of one split as one resource; of no groups, one without SMs. whole: the device's own resource."""
    cdef vector[SmResourcePtr] sms
    cdef SMResource resource
    cdef SmResourcePtr found
    for resource in resources:
        sms.push_back(resource._sm)
    found = none_of(whole._sm.get()[0]) if sms.empty() else merged(sms)
    return SMResource.taking(whole._runtime, found)


def create_unclaimed_context(int device_id, ContextOptions options not None):
    """A green context whose SMs are not claimed: partitions claim them for as long as they use it."""
    return new_green_context(device_id, options, False)


def loaned(Context context not None, owner, name):
    """The same context as another object with a name of its own, which keeps `owner` alive."""
    cdef Context lent = unmade_context()
    live(context._slot)
    lent._slot.share(context._slot)
    made_context(lent)
    lent._owner = owner
    lent._name = name
    return lent


def rename(Context context not None, str name not None):
    """Give a context another name for messages."""
    live(context._slot).get().rename(name.encode())


def close_loaned(Context context not None):
    """Close an object that loaned() made; the context itself stays open."""
    let_go(context)


def context_stream(Context context not None, size_t number=0, priority=None):
    """A stream that belongs to the context: the same one for each call with this number and priority.

    The driver's stream lives as long as the context (an adopted one: as long as this package refers to it): code that
    has only its handle can go on using it.
    """
    cdef StreamOptions options = StreamOptions(priority=priority)
    cdef Stream stream = Stream.__new__(Stream)
    cdef optional[int] level
    if options.priority is not None:
        level = <int>options.priority
    stream._context = context
    c_context_stream(stream._slot, context._slot, level, number)
    return made_stream(stream)


def lent(Stream stream not None, owner):
    """The same stream as another object, which keeps `owner` alive."""
    cdef Stream found = Stream.__new__(Stream)
    present(stream._slot)
    found._slot.share(stream._slot)
    found._owner = owner
    return made_stream(found)


def serve_as(Context context not None, resources):
    """Record that a context has the SMs of these groups, which another split than its own can have made."""
    cdef vector[SmResourcePtr] sms
    cdef SMResource resource
    for resource in resources:
        sms.push_back(resource._sm)
    c_serve_as(context._slot, dereference(merged(sms)))


def any_keeps_capture(contexts):
    """Whether one of the streams that this package made on these contexts is capturing a graph."""
    cdef vector[ContextHandle] boxes
    cdef Context context
    for context in contexts:
        present(context._slot)
        boxes.push_back(context._slot.get())
    return bool(any_has_capture(boxes))


def pin(Stream stream not None):
    """Notes that a framework gets the handle of a stream: it and its context live until the driver is closed."""
    pin_stream(stream)


def pin_context(Context context not None):
    """The same for a context of which one stream or another may be known outside."""
    present(context._slot)
    if c_pin_context(context._slot):
        note_pinned(present(context._slot).get())


def is_pinned(Context context not None):
    """Whether a framework has seen one of its streams, so that it is never destroyed."""
    cdef Borrowed[ContextBox] box = context._slot.borrow()
    return box.get() != NULL and box.get().is_pinned()


def pinned_counts(SMResource resource not None):
    """Of the device of a resource: contexts that frameworks have seen, and those of them that are closed and wait."""
    cdef PinnedCounts counts = pinned_contexts(resource._runtime[0]).counts(resource._sm.get().device)
    return counts.pinned, counts.waiting


def demand_not_current(contexts):
    """Raise ContextCurrentError while an open one is current on this thread, or on another one through this package."""
    cdef Context context
    cdef Borrowed[ContextBox] box
    for context in contexts:
        box = context._slot.borrow()
        if box.get() != NULL and not box.get().is_closed():
            c_demand_not_current(context._slot)


def driver_key(SMResource resource not None):
    """The number of the driver that a resource belongs to; no two drivers of a process have the same."""
    return <uintptr_t>resource._runtime


def sm_identity(SMResource resource not None):
    """The bytes that identify the SMs: equal for two resources of one driver only if these have the same SMs."""
    return (<const char*>resource._sm.get().units.data())[:resource._sm.get().units.size() * sizeof(CUdevResource)]


def capturing_stream(SMResource resource not None):
    """The stream that is capturing on the device of a resource, as far as can be known; None if there is none."""
    resource._runtime.demand_usable()
    return c_capturing_stream(resource._runtime[0], resource._sm.get().device).decode() or None


def capture_of(Stream stream not None):
    """A number for the capture that a stream is part of, the same for all of its streams; 0 if it is in none."""
    return c_capture_of(stream._slot)


def is_capturing(Stream stream not None):
    """Whether a stream is recording a graph."""
    return bool(stream_is_capturing(stream._slot))


def device_memory(SMResource resource not None):
    """The free and the total memory of the device of a resource, in bytes."""
    cdef DeviceMemory memory
    resource._runtime.demand_usable()
    memory = c_device_memory(resource._runtime[0], resource._sm.get().device)
    return memory.free, memory.total


def context_counts(SMResource resource not None):
    """The numbers of green contexts that this package has made and destroyed on the device of a resource."""
    cdef ContextCounts counts = live_contexts(resource._runtime[0]).counts(resource._sm.get().device)
    return counts.made, counts.destroyed


def pinned_limit():
    """How many contexts of a device frameworks may see."""
    return PinnedContexts.limit()


def set_pinned_limit(uint64_t limit):
    """Set that limit, for all drivers."""
    PinnedContexts.set_limit(limit)


def drop_pinned():
    """Destroy the contexts that frameworks have seen and that everybody here has closed, of the driver in use."""
    if Runtime.is_any_open():
        c_drop_pinned(Runtime.active())
