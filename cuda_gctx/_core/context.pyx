"""Contexts: the primary one of a device, green ones with a part of its resources, and those of others."""

import warnings

from libc.stdint cimport uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from cuda_gctx._core.arguments cimport as_bool, as_handle
from cuda_gctx._core.cpp cimport (
    ContextKind,
    CUcontext,
    CUdevResource,
    Reservation,
    Runtime,
    SmResourcePtr,
    adopt_context,
    pop_current,
    push_current,
    record_context_event,
    synchronize_context,
    wait_context_event,
)
from cuda_gctx._core.driver cimport active_runtime
from cuda_gctx._core.errors cimport report_failures, warn_of_failures
from cuda_gctx._core.event cimport Event, EventOptions, new_event
from cuda_gctx._core.resources cimport SMResource, WorkqueueResource
from cuda_gctx._core.stream cimport Stream, StreamOptions, new_stream

from cuda_gctx._core.above import above
from cuda_gctx._core.errors import ResourceOverlapWarning


cdef class ContextOptions:
    """What a green context is made of. Immutable.

    resources: SM resources of one split, and at most one workqueue resource.
    exclusive: refuse to share SMs with a live context instead of warning.
    name: for messages and tables.
    """

    def __cinit__(self, resources, exclusive=False, name=None):
        if not isinstance(resources, (list, tuple)):
            raise TypeError(f"resources must be a list or tuple, not {type(resources).__name__}: put it in brackets")
        if not resources:
            raise ValueError("resources is empty: a green context needs at least one SMResource")
        for resource in resources:
            if not isinstance(resource, (SMResource, WorkqueueResource)):
                raise TypeError(
                    f"resources must hold SMResource and WorkqueueResource objects, not {type(resource).__name__}"
                )
        if sum(isinstance(resource, WorkqueueResource) for resource in resources) > 1:
            raise ValueError("resources has more than one WorkqueueResource: a context takes one")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        self.resources = tuple(resources)
        self.exclusive = as_bool("exclusive", exclusive)
        self.name = name

    def __repr__(self):
        return f"ContextOptions(resources={list(self.resources)}, exclusive={self.exclusive}, name={self.name!r})"


cdef Context wrap_context(const ContextHandle& box):
    cdef Context context = Context.__new__(Context)
    context._box = box
    return context


def context_of(child):
    """The context of a stream or event: asked for from below, where this module cannot be named."""
    if isinstance(child, Stream):
        return wrap_context((<Stream>child)._box.get().context())
    return wrap_context((<Event>child)._box.get().context())


cdef Context new_green_context(int device, ContextOptions options, bint overlap_matters):
    cdef Runtime* runtime = active_runtime()
    cdef vector[SmResourcePtr] sms
    cdef optional[CUdevResource] workqueue
    cdef WorkqueueResource queue
    cdef string name = (options.name or "").encode()
    cdef unique_ptr[Reservation] reservation
    cdef Context context = Context.__new__(Context)
    for resource in options.resources:
        if isinstance(resource, SMResource):
            sms.push_back((<SMResource>resource)._sm)
        else:
            queue = resource
            if queue._device != device or queue._runtime != runtime:
                raise ValueError(
                    f"a WorkqueueResource of device {queue._device} cannot be part of a context on device {device}"
                )
            workqueue = queue._resource
    reservation.reset(new Reservation(runtime[0], device, sms, workqueue, name, options.exclusive, overlap_matters))
    # Before anything is made: a warning that is turned into an error then leaves nothing behind.
    if not reservation.get().overlap_report().empty():
        warnings.warn(reservation.get().overlap_report().decode(), ResourceOverlapWarning, stacklevel=2)
    with nogil:
        context._box = reservation.get().create_context()
    return context


cdef class _Current:
    """Makes a context current on the calling thread for the length of a ``with`` block."""

    cdef Context _context

    def __enter__(self):
        # The pin keeps the context for as long as the thread's list names it, even if the block is never left.
        self._context.pin()
        try:
            push_current(self._context._box.get()[0])
        except BaseException:
            self._context.unpin()
            raise
        return self._context

    def __exit__(self, kind, error, traceback):
        try:
            pop_current()
        finally:
            self._context.unpin()


cdef class Context:
    """A primary, green or adopted CUDA context."""

    def __init__(self, *args, **kwargs):
        raise TypeError("a Context comes from Device.create_context(), Device.context or Context.from_handle()")

    @staticmethod
    def from_handle(handle, owner=None):
        """The context of a raw CUcontext, which `owner` (if given) is kept alive for."""
        cdef Runtime* runtime = active_runtime()
        cdef Context context = Context.__new__(Context)
        cdef uintptr_t address = as_handle(handle)
        if address == 0:
            raise ValueError("handle 0 is no address of a context")
        with nogil:
            context._box = adopt_context(runtime[0], <CUcontext>address)
        context._owner = owner
        return context

    cdef void let_go(self) noexcept:
        # Out of reach first: with the GIL away, another thread may look.
        cdef ContextHandle box
        box.swap(self._box)
        # Destroying may wait in the driver; nobody else should wait with it.
        with nogil:
            box.reset()

    def __dealloc__(self):
        if self._pins:
            # A block that makes it current was never left: lost rather than destroyed while a thread's list names it.
            new ContextHandle(self._box)
        self.let_go()
        report_failures()

    @property
    def is_green(self):
        """Whether it is a green context; the driver's answer, not ours, for adopted ones."""
        return self.live().is_green()

    @property
    def is_closed(self):
        """Whether it was closed here; streams made before may still use it."""
        return self._closing or self._box.get().is_closed()

    @property
    def is_current(self):
        """Whether it is current on the calling thread."""
        return self.live().is_current()

    @property
    def handle(self):
        """The CUcontext, as an int."""
        return <uintptr_t>self.live().handle()

    @property
    def id(self):
        """The driver's number of the context, never used twice."""
        return self.live().id()

    @property
    def name(self):
        """The name it was given, or None."""
        self.live()
        return self._box.get().name().decode() or None

    @property
    def device(self):
        """The device that it is on."""
        return above.Device(self.live().device())

    @property
    def resources(self):
        """What the context was given."""
        self.live()
        if self._resources is None:
            self._resources = DeviceResources.of_context(self._box)
        return self._resources

    @property
    def sm_count(self):
        """How many SMs its work can use."""
        return self.resources.sm.sm_count

    def create_stream(self, StreamOptions options=None):
        """A new stream; works on any thread, whatever is current there."""
        self.pin()
        try:
            return new_stream(self._box, self, options)
        finally:
            self.unpin()

    def create_event(self, EventOptions options=None):
        """A new event."""
        self.pin()
        try:
            return new_event(self._box, options)
        finally:
            self.unpin()

    def record_event(self, Event event=None):
        """Records `event`, or a new one, behind all work of all its streams; returns it."""
        self.pin()
        try:
            if event is None:
                event = new_event(self._box, None)
            event.pin()
            try:
                with nogil:
                    record_context_event(self._box, event._box)
            finally:
                event.unpin()
        finally:
            self.unpin()
        return event

    def wait_event(self, Event event not None):
        """Lets all later work of all its streams wait for the event."""
        self.pin()
        try:
            event.pin()
            try:
                with nogil:
                    wait_context_event(self._box, event._box)
            finally:
                event.unpin()
        finally:
            self.unpin()

    def sync(self):
        """Waits until all its work has finished."""
        self.pin()
        try:
            with nogil:
                synchronize_context(self._box)
        finally:
            self.unpin()

    def verify(self):
        """Proves with a probe kernel that its work runs on its SMs alone; raises IsolationError if not."""
        return above.verify({self.name or "context": self})

    def current(self):
        """A ``with`` block in which it is current on the calling thread; what was current before is restored."""
        cdef _Current block
        self.live()
        if self._current is None:
            block = _Current.__new__(_Current)
            block._context = wrap_context(self._box)
            self._current = block
        return self._current

    def torch(self, library_sms="off"):
        """A ``with`` block in which torch works on a stream of the context (see cuda_gctx.interop.torch.use)."""
        self.live()
        return above.torch_block(self, library_sms)

    def cupy(self, library_sms="off"):
        """A ``with`` block in which CuPy works on a stream of the context (see cuda_gctx.interop.cupy.use)."""
        self.live()
        return above.cupy_block(self, library_sms)

    def close(self):
        """Ends the use of the context. A green one is destroyed with the last stream and event made on it.

        RuntimeError if it is current on this thread, or on another that made it current through this package.
        """
        if self._closing:
            return
        if self._box.get().kind() == ContextKind.primary:
            raise RuntimeError("the primary context belongs to the whole process and cannot be closed here")
        if self._box.get().kind() == ContextKind.green:
            self._pins += 1
            try:
                with nogil:
                    self._box.get().close()
            finally:
                self.unpin()
        self._current = None
        self._resources = None
        self._owner = None
        self.close_unless_pinned()
        warn_of_failures()

    def __eq__(self, other):
        if not isinstance(other, Context):
            return NotImplemented
        cdef Context that = other
        if self is that:
            return True
        if self._closing or that._closing:
            return False
        return self._box.get() == that._box.get() or (
            &self._box.get().runtime() == &that._box.get().runtime() and self._box.get().id() == that._box.get().id()
        )

    def __hash__(self):
        return hash(self.live().id())

    def __enter__(self):
        self.live()
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        if self.is_closed:
            return "<Context: closed>"
        kind = "green" if self._box.get().is_green() else "primary"
        if self._box.get().kind() == ContextKind.foreign:
            kind = "adopted " + ("green" if self._box.get().is_green() else "ordinary")
        name = self._box.get().name().decode()
        name = f" '{name}'" if name else ""
        try:
            size = f"{self.sm_count} SMs of "
        except Exception:  # a repr is for looking at broken things too
            size = ""
        return f"<Context{name}: {kind}, id {self._box.get().id()}, {size}device {self._box.get().device()}>"
