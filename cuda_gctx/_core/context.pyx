"""Contexts: the primary one of a device, green ones with a part of its resources, and adopted ones."""


cdef class ContextOptions(Options):
    """The options of a green context. Immutable.

    resources: SM resources of one split, and at most one workqueue resource.
    exclusive: refuse to share SMs with a live context instead of warning.
    name: shown in messages and tables.
    """

    cdef readonly tuple resources
    cdef readonly bint exclusive
    cdef readonly str name

    _defaults = {"resources": ..., "exclusive": False, "name": None}
    _taken_by = ("create_context",)

    def __cinit__(self, resources=None, exclusive=False, name=None):
        if resources is not None and not isinstance(resources, Sequence):
            raise TypeError(f"resources must be a sequence, not {type(resources).__name__}: put it in brackets")
        if not resources:
            raise ValueError("resources must be provided, not empty: a green context needs at least one SMResource")
        for resource in resources:
            if not isinstance(resource, (SMResource, WorkqueueResource)):
                raise TypeError(
                    f"resources must hold SMResource and WorkqueueResource objects, not {type(resource).__name__}"
                )
        if sum([isinstance(resource, WorkqueueResource) for resource in resources]) > 1:
            raise ValueError("resources has more than one WorkqueueResource: a context takes one")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        self.resources = tuple(resources)
        self.exclusive = as_bool("exclusive", exclusive)
        self.name = None if name is None else str.__str__(name)  # an exact str, also of an Enum


make_here(ContextOptions, "their resources come from a split")


cdef Context unmade_context():
    """A context whose slot is to be filled, for modules that cannot make one by __new__."""
    return Context.__new__(Context)


cdef Context made_context(Context context):
    """A context whose slot has just been filled."""
    context._number = context._slot.borrow().get().id()
    return context


def context_of(InContext child not None):
    """The context of a stream, an event or a graph."""
    cdef Context context = Context.__new__(Context)
    context._slot.put(child.slot().context())
    return made_context(context)


cdef int let_go(Context context) except -1:
    """Close the object; the context itself may stay open."""
    keep_no_block(&context._kept_block, context)
    context._slot.drop()
    with cython.critical_section(context):
        context._resources = None
        context._owner = None
    return 0


cdef int refuse_part(Context context) except -1:
    """Raise RuntimeError for the context of a partition, which ends with the partitions."""
    if context._name is not None:
        raise RuntimeError(
            f"the context belongs to partition {context._name} and cannot be closed by itself: use a block of "
            "part.context.current() to make it current, and close() of the partitions or the pool to close it"
        )
    return 0


cdef Context new_green_context(int device, ContextOptions options, bint overlap_matters):
    cdef cpp.Runtime* runtime = active_runtime()
    cdef vector[cpp.SmResourcePtr] sms
    cdef optional[cpp.CUdevResource] workqueue
    cdef WorkqueueResource queue = None
    cdef bytes name = (options.name or "").encode()
    cdef unique_ptr[cpp.NewContext] fresh
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
            workqueue = queue.given()[0]
    fresh = cpp.claim_context(runtime[0], device, sms, workqueue, name, options.exclusive, overlap_matters)
    if queue is not None and queue._shares:
        cpp.share_queues(fresh, queue._of)
    # Before anything is made: a warning that is turned into an error then leaves nothing behind.
    if fresh.get().overlap_report()[0] != 0:
        warnings.warn(fresh.get().overlap_report().decode(), ResourceOverlapWarning, stacklevel=2)
    cpp.create_context(context._slot, fresh)
    return made_context(context)


cdef class Context:
    """A primary, green or adopted CUDA context."""

    cdef cpp.Slot[cpp.ContextBox] _slot
    cdef uint64_t _number
    cdef DeviceResources _resources
    cdef object _owner
    cdef str _name  # the name of the partition that lends the context; None: no partition does
    cdef PyObject* _kept_block  # the idle block of current(); null: none
    cdef object __weakref__

    @staticmethod
    def from_handle(handle, owner=None):
        """Adopt a context of another library, which the object never destroys.

        handle: the CUcontext, as an int. owner: an object to keep alive as long as this one.

        Returns a Context. Raises ValueError for a handle that is not a live context.
        """
        cdef cpp.Runtime* runtime = active_runtime()
        cdef Context context = Context.__new__(Context)
        cdef uintptr_t address = as_handle(handle, "context")
        cpp.adopt_context(context._slot, runtime[0], <cpp.CUcontext>address)
        context._owner = owner
        return made_context(context)

    def __del__(self):
        keep_no_block(&self._kept_block, self)

    @property
    def is_green(self):
        """Whether it is a green context. For adopted contexts, this is the driver's answer."""
        return cpp.live(self._slot).get().is_green()

    @property
    def is_closed(self):
        """Whether the context has been closed. Streams created before may still use it."""
        cdef cpp.Borrowed[cpp.ContextBox] box = self._slot.borrow()
        return box.get() == NULL or box.get().is_closed()

    @property
    def is_current(self):
        """Whether the context is current on the calling thread."""
        return cpp.live(self._slot).get().is_current()

    @property
    def handle(self):
        """The CUcontext, as an int."""
        return <uintptr_t>cpp.live(self._slot).get().handle()

    @property
    def id(self):
        """The driver's id of the context, which is never reused."""
        return cpp.live(self._slot).get().id()

    @property
    def name(self):
        """The name from its ContextOptions, or that of the partition; None if there is none."""
        cdef string name = cpp.live(self._slot).get().name()
        return self._name or name.decode() or None

    @property
    def device(self):
        """The device of the context."""
        return Device(cpp.live(self._slot).get().device())

    @property
    def resources(self):
        """The resources of the context."""
        cpp.live(self._slot)
        with cython.critical_section(self):
            if self._resources is None:
                self._resources = DeviceResources.of_context(self._slot.get())
            return self._resources

    @property
    def sm_count(self):
        """The number of SMs available to the context."""
        return self.resources.sm.sm_count

    def create_stream(self, options=None):
        """Create a stream, whatever context is current on the thread.

        options: StreamOptions, or a dict of their fields.

        Returns a Stream. Raises ClosedError if the context is closed, and ValueError for a priority that is out of
        range, or for a blocking stream of a green context.
        """
        cdef Stream stream = new_stream(self._slot, as_options(StreamOptions, options))
        stream._context = self
        return stream

    def create_event(self, options=None):
        """Create an event.

        options: EventOptions, or a dict of their fields. Returns an Event.
        """
        return new_event(self._slot, as_options(EventOptions, options))

    @cython.binding(False)
    def record_event(self, Event event=None):
        """Record `event`, or a new event, after all work enqueued on all streams of the context, and return it.

        Raises CapturingError while a stream of the context is capturing.
        """
        if event is None:
            event = new_event(self._slot, None)
        cpp.record_context_event(self._slot, event._slot)
        return event

    @cython.binding(False)
    def wait_event(self, Event event not None):
        """Make all later work of all streams of the context wait for the event."""
        cpp.wait_context_event(self._slot, event._slot)

    @cython.binding(False)
    def wait_context(self, Context other not None):
        """Make all later work of all streams of the context wait for the work enqueued so far in `other`.

        Raises CapturingError while a stream of one of the two contexts is capturing.
        """
        cpp.wait_context(self._slot, other._slot)

    @cython.binding(False)
    def sync(self):
        """Wait on the host until all work of the context has finished."""
        cpp.synchronize_context(self._slot)

    def verify(self):
        """Verify with a probe kernel that the context runs on its own SMs only.

        Returns a VerifyReport. Raises IsolationError if the context runs on other SMs.
        """
        from cuda_gctx.partitions.verification import verify

        return verify({self.name or "context": self})

    @cython.binding(False)
    @cython.always_allow_keywords(False)
    def current(self):
        """A ``with`` block in which the context is current on the calling thread. It restores the previous one.

        Blocks of a thread must end in the reverse order in which they began, and must not contain an await.
        """
        if is_free(self._kept_block):  # most blocks are for one statement
            return <object>self._kept_block
        cpp.live(self._slot)
        return new_block(&self._kept_block, &self._slot, self)

    def close(self):
        """Close the context. A green context ends with the last stream and event that was made on it.

        It is then destroyed, unless a framework has seen one of its streams: such a context releases its SMs, and
        is kept for the next request for them.

        Raises ContextCurrentError if it is current on this thread, or on another one through this package, and
        RuntimeError for the primary context and for that of a partition.
        """
        cdef cpp.Borrowed[cpp.ContextBox] box = self._slot.borrow()
        if box.get() == NULL:
            return
        if box.get().kind() == cpp.ContextKind.primary:
            raise RuntimeError("the primary context belongs to the whole process and cannot be closed")
        refuse_part(self)
        if box.get().kind() == cpp.ContextKind.green:
            cpp.close_context(self._slot)
        let_go(self)
        warn_of_failures()

    def __eq__(self, other):
        if not isinstance(other, Context):
            return NotImplemented
        cdef Context that = other
        if self is that:
            return True
        cdef cpp.Borrowed[cpp.ContextBox] box = self._slot.borrow()
        cdef cpp.Borrowed[cpp.ContextBox] other_box = that._slot.borrow()
        if box.get() == NULL or other_box.get() == NULL:
            return False
        return self._number == that._number and &box.get().runtime() == &other_box.get().runtime()

    def __hash__(self):
        return hash(self._number)

    def __enter__(self):
        cpp.live(self._slot)
        refuse_part(self)
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        cdef cpp.Borrowed[cpp.ContextBox] box = self._slot.borrow()
        if box.get() == NULL or box.get().is_closed():
            return "<Context: closed>"
        kind = "green" if box.get().is_green() else "primary"
        if box.get().kind() == cpp.ContextKind.foreign:
            kind = "adopted " + ("green" if box.get().is_green() else "ordinary")
        cdef string own_name = box.get().name()
        name = self._name or own_name.decode()
        name = f" '{name}'" if name else ""
        device = box.get().device()
        try:
            size = f"{self.sm_count} SMs of "
        except Exception:  # broken objects have a repr too
            size = ""
        return f"<Context{name}: {kind}, id {self._number}, {size}device {device}>"


make_only_here(Context, "a Context comes from Device.create_context(), Device.context or Context.from_handle()")


cdef class Claim:
    """The SMs that one user has of a device, for contexts made by create_unclaimed_context()."""

    cdef unique_ptr[cpp.Claim] _claim

    @property
    def overlap_report(self):
        """The live contexts that shared its SMs or might, when it was made; empty if none did."""
        return self._claim.get().overlap_report().decode()

    def release(self):
        """Ends the claim. Ending it twice does nothing."""
        self._claim.get().release()


make_only_here(Claim, "a Claim comes from claim()")


def claim(resources, names, bint exclusive, uint64_t group, str advice, *, bint only_free=False):
    """Claim the SMs of resources of one device. Claims of one group (0: of none) may share SMs.

    only_free: ResourceOverlapError if live contexts have them or may, as with `exclusive`. advice: the end of the
    message about these.
    """
    cdef vector[cpp.SmResourcePtr] sms = sms_of(resources)
    cdef cpp.Names labels
    cdef SMResource resource = resources[0]
    cdef Claim made = Claim.__new__(Claim)
    for name in names:
        labels.emplace_back(name.encode())
    made._claim.reset(
        new cpp.Claim(
            resource._runtime[0], resource._sm.get().device, sms, labels, exclusive, only_free, group, advice.encode()
        )
    )
    return made


def are_free(resources):
    """For each of some resources of one device whether no live context is known to have its SMs, or may have them."""
    cdef vector[cpp.SmResourcePtr] sms = sms_of(resources)
    cdef SMResource resource
    if sms.empty():
        return []
    resource = resources[0]
    return [bool(answer) for answer in cpp.live_contexts(resource._runtime[0]).are_free(resource._sm.get().device, sms)]


def create_unclaimed_context(int device_id, ContextOptions options not None):
    """A green context whose SMs are not claimed: partitions claim them for as long as they use it."""
    return new_green_context(device_id, options, False)


def loaned(Context context not None, owner, name):
    """The same context as another object with a name of its own, which keeps `owner` alive."""
    cdef Context lent = Context.__new__(Context)
    cpp.live(context._slot)
    lent._slot.share(context._slot)
    made_context(lent)
    lent._owner = owner
    lent._name = name
    return lent


def rename(Context context not None, str name not None):
    """Give a context another name for messages."""
    cpp.live(context._slot).get().rename(name.encode())


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
    stream._context = context
    cpp.context_stream(stream._slot, context._slot, options._level, number)
    return made_stream(stream)


def serve_as(Context context not None, resources):
    """Record that a context has the SMs of these groups, which another split than its own can have made."""
    cpp.serve_as(context._slot, cpp.merged(sms_of(resources)))


def any_keeps_capture(contexts):
    """Whether one of the streams that this package made on these contexts is capturing a graph."""
    cdef vector[cpp.ContextHandle] boxes
    cdef Context context
    for context in contexts:
        cpp.present(context._slot)
        boxes.push_back(context._slot.get())
    return bool(cpp.any_has_capture(boxes))


def pin_context(Context context not None):
    """The same for a context of which one stream or another may be known outside."""
    cpp.present(context._slot)
    if cpp.pin_context(context._slot):
        note_pinned(cpp.present(context._slot).get())


def is_pinned(Context context not None):
    """Whether a framework has seen one of its streams, so that it is never destroyed."""
    cdef cpp.Borrowed[cpp.ContextBox] box = context._slot.borrow()
    return box.get() != NULL and box.get().is_pinned()


def demand_not_current(contexts):
    """Raise ContextCurrentError while an open one is current on this thread, or on another one through this package."""
    cdef Context context
    cdef cpp.Borrowed[cpp.ContextBox] box
    for context in contexts:
        box = context._slot.borrow()
        if box.get() != NULL and not box.get().is_closed():
            cpp.demand_not_current(context._slot)


def capturing_stream(SMResource resource not None):
    """The stream that is capturing on the device of a resource, as far as can be known; None if there is none."""
    resource._runtime.demand_usable()
    return cpp.capturing_stream(resource._runtime[0], resource._sm.get().device).decode() or None


def context_counts(SMResource resource not None):
    """The numbers of green contexts that this package has made and destroyed on the device of a resource; of those that
    frameworks have seen, and of these the ones that are closed and kept; and of those that splits needed.
    """
    cdef cpp.ContextCounts counts = cpp.context_counts(resource._runtime[0], resource._sm.get().device)
    return counts.made, counts.destroyed, counts.pinned, counts.waiting, counts.split


def pinned_limit():
    """How many contexts of a device frameworks may see."""
    return cpp.pinned_limit()


def set_pinned_limit(uint64_t limit):
    """Set that limit, for all drivers."""
    cpp.set_pinned_limit(limit)


def drop_kept(bint also_pinned):
    """Destroy the contexts of the driver in use that splits needed, and the closed ones that frameworks have seen."""
    if cpp.Runtime.is_any_open():
        cpp.drop_kept(cpp.Runtime.active(), also_pinned)
