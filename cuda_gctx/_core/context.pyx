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
    context._number = context._slot.get().get().id()
    return context


cdef Context context_of_handle(const cpp.ContextHandle& handle, object owner):
    cdef Context context = Context.__new__(Context)
    cdef cpp.ContextHandle box = handle
    context._slot.put(box)
    context._owner = owner
    return made_context(context)


def context_of(InContext child not None):
    """The context of a stream, an event or a graph."""
    return context_of_handle(child.slot().context(), None)


cdef class LeaseGroup:
    """The leases of one pool of layouts, which are used one at a time: they share contexts, and close together."""

    cdef shared_ptr[cpp.LeaseGroup] _group

    def __cinit__(self):
        self._group = cpp.make_group()

    @property
    def is_open(self):
        """True until the group is closed."""
        return self._group.get().is_open()

    def close(self):
        """Close all leases, and refuse later ones: False, and nothing changes, while one of their contexts is current.
        """
        cpp.demand_not_forked()
        return self._group.get().close()


cdef class Lease:
    """The SMs that a context, or the partitions of a layout, have. It is closed with the last reference to it."""

    cdef shared_ptr[cpp.Lease] _lease

    def __dealloc__(self):
        if self._lease.get() != NULL:
            self._lease.get().abandon()


make_only_here(Lease, "a Lease comes from Opening.lease()")


cdef class Opening:
    """Contexts that are being opened: their SMs are claimed, and the contexts are not there yet.

    overlap_report: the leases that share SMs with them, or may, in one sentence; empty if none does.
    The claim ends with the ``with`` block of the opening, unless lease() has taken it over.
    """

    cdef unique_ptr[cpp.Opening] _opening

    @property
    def overlap_report(self):
        """The leases that share SMs with these contexts, or may, in one sentence; empty if none does."""
        return self._opening.get().overlap_report().decode()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._opening.reset()

    def lease(self):
        """Lease all contexts, or raise an error and leave nothing behind. Returns their Contexts, which have the lease.
        """
        cdef cpp.OpenedContexts opened = cpp.lease_contexts(dereference(self._opening))
        cdef Lease lease = Lease.__new__(Lease)
        cdef size_t at
        lease._lease = opened.lease
        return [context_of_handle(opened.contexts[at], lease) for at in range(opened.contexts.size())]


make_only_here(Opening, "an Opening comes from claim()")


def claim(
    int device_id,
    requests,
    *,
    bint exclusive=False,
    bint only_free=False,
    bint are_partitions=True,
    Context inside=None,
    LeaseGroup group=None,
    str advice="",
):
    """Claim the SMs of contexts of one device.

    requests: for each context its name, the SMResources, and a WorkqueueResource or None. exclusive: refuse SMs of
    other leases, and say so to later ones; only_free: refuse them. inside: the context whose SMs are split, and whose
    lease may share them; group: whose leases may. advice: the end of the message about SMs of other leases.

    Returns an Opening. Raises ResourceOverlapError for SMs that are refused, and ValueError for resources that cannot
    be in one context.
    """
    cdef cpp.Runtime* runtime = active_runtime()
    cdef vector[cpp.NewContext] contexts
    cdef cpp.NewContext context
    cdef cpp.OpeningTerms terms
    cdef Opening opening = Opening.__new__(Opening)
    cdef WorkqueueResource queue
    cdef WorkqueueResource shared = None
    for name, groups, workqueue in requests:
        context = cpp.NewContext()
        encoded = (name or "").encode()
        cpp.name_context(context, encoded)
        context.groups = sms_of(groups)
        if workqueue is not None:
            queue = workqueue
            if queue._device != device_id or queue._runtime != runtime:
                raise ValueError(
                    f"a WorkqueueResource of device {queue._device} cannot be part of a context on device {device_id}"
                )
            context.workqueue = queue.given()[0]
            shared = queue if queue._shares else None
        contexts.push_back(context)
    terms.exclusive, terms.only_free, terms.are_partitions = exclusive, only_free, are_partitions
    if group is not None:
        terms.group = group._group
    if inside is not None:
        terms.inside = cpp.live(inside._slot).get().lease_handle()
    end = advice.encode()
    cpp.advise(terms, end)
    opening._opening.reset(new cpp.Opening(runtime[0], device_id, contexts, terms))
    if shared is not None:
        cpp.share_queues(dereference(opening._opening), shared._of)
    return opening


cdef Context new_green_context(int device, ContextOptions options):
    groups = [resource for resource in options.resources if isinstance(resource, SMResource)]
    queues = [resource for resource in options.resources if isinstance(resource, WorkqueueResource)]
    cdef Opening opening = claim(
        device,
        [(options.name, groups, queues[0] if queues else None)],
        exclusive=options.exclusive,
        are_partitions=False,
        advice="close the other one first, or take all groups from one split",
    )
    with opening:
        # Before anything is made: a warning that is turned into an error then leaves nothing behind.
        if opening.overlap_report:
            warnings.warn(opening.overlap_report, ResourceOverlapWarning, stacklevel=2)
        [context] = opening.lease()
        return context


cdef class Context:
    """A primary, green or adopted CUDA context.

    Example:

        from cuda_gctx import ContextOptions, Device

        dev = Device()
        groups, remainder = dev.resources.sm.split(16)
        with dev.create_context(ContextOptions(resources=groups, name="first")) as ctx:
            with ctx.create_stream() as stream, ctx.current():  # for libraries that launch in the current context
                print(ctx.sm_count, ctx.is_green, stream.context == ctx)  # 16 True True
            ctx.sync()
    """

    cdef cpp.Slot[cpp.ContextBox] _slot
    cdef uint64_t _number
    cdef DeviceResources _resources
    cdef object _owner  # the Lease of a context of this package; of an adopted one, what it keeps alive
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

    @property
    def is_green(self):
        """Whether it is a green context. For adopted contexts, this is the driver's answer."""
        return cpp.live(self._slot).get().is_green()

    @property
    def is_closed(self):
        """Whether the context has been closed. Streams created before may still use it."""
        cdef shared_ptr[cpp.ContextBox] box = self._slot.get()
        return box.get() == NULL or box.get().is_closed()

    @property
    def is_current(self):
        """Whether the context is current on the calling thread."""
        return cpp.live(self._slot).get().is_current()

    @property
    def handle(self):
        """The CUcontext, as an int."""
        cdef shared_ptr[cpp.ContextBox] box = cpp.live(self._slot)
        box.get().in_driver().expose()
        return <uintptr_t>box.get().handle()

    @property
    def id(self):
        """The driver's id of the context, which is never reused."""
        return cpp.live(self._slot).get().id()

    @property
    def name(self):
        """The name from its ContextOptions, or that of the partition; None if there is none."""
        cdef shared_ptr[cpp.ContextBox] box = cpp.live(self._slot)
        return box.get().name_text().decode() or None

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

    def partition(self, *requests, exclusive=False, **named):
        """Split the SMs of the context into named, disjoint partitions, as Device.partition() splits a device.

        requests, named, exclusive: as for Device.partition(). Raises ClosedError if the context is closed.
        """
        from cuda_gctx.partitions.partitions import partition_context

        return partition_context(self, *requests, exclusive=exclusive, **named)

    @cython.binding(False)
    def current(self):
        """A ``with`` block in which the context is current on the calling thread. It restores the previous one.

        Blocks of a thread must end in the reverse order in which they began, and must not contain an await.
        """
        cdef CurrentBlock block = CurrentBlock.__new__(CurrentBlock)
        cpp.live(self._slot)
        block._context = self
        return block

    def close(self):
        """Close the context: its SMs are free, and a later request for them can get it again.

        Streams and executable graphs that the program keeps go on working, and keep the SMs claimed until they end.

        Raises ContextCurrentError if it is current on this thread, or on another one through this package, and
        RuntimeError for the primary context and for that of a partition.
        """
        cdef shared_ptr[cpp.ContextBox] box = self._slot.get()
        if box.get() == NULL:
            return
        self._demand_own_lease()
        if box.get().kind() == cpp.ContextKind.green:
            close_together([self])
        self._slot.drop()
        with cython.critical_section(self):
            self._resources = None
            self._owner = None
        warn_of_failures()

    cdef int _demand_own_lease(self) except -1:
        """Raise RuntimeError for contexts that their user cannot close."""
        cdef shared_ptr[cpp.ContextBox] box = self._slot.get()
        if box.get().kind() == cpp.ContextKind.primary:
            raise RuntimeError("the primary context belongs to the whole process and cannot be closed")
        if box.get().is_partition():
            raise RuntimeError(
                f"the context belongs to partition {box.get().name_text().decode()} and cannot be closed by itself: "
                "use a block of part.context.current() to make it current, and close() of the partitions or the pool "
                "to close it"
            )
        return 0

    def __eq__(self, other):
        if not isinstance(other, Context):
            return NotImplemented
        cdef Context that = other
        if self is that:
            return True
        cdef shared_ptr[cpp.ContextBox] box = self._slot.get()
        cdef shared_ptr[cpp.ContextBox] other_box = that._slot.get()
        if box.get() == NULL or other_box.get() == NULL:
            return False
        return self._number == that._number and &box.get().runtime() == &other_box.get().runtime()

    def __hash__(self):
        return hash(self._number)

    def __enter__(self):
        cpp.live(self._slot)
        self._demand_own_lease()
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        cdef shared_ptr[cpp.ContextBox] box = self._slot.get()
        if box.get() == NULL or box.get().is_closed():
            return "<Context: closed>"
        kind = "green" if box.get().is_green() else "primary"
        if box.get().kind() == cpp.ContextKind.foreign:
            kind = "adopted " + ("green" if box.get().is_green() else "ordinary")
        name = box.get().name_text().decode()
        name = f" '{name}'" if name else ""
        device = box.get().device()
        try:
            size = f"{self.sm_count} SMs of "
        except Exception:  # broken objects have a repr too
            size = ""
        return f"<Context{name}: {kind}, id {self._number}, {size}device {device}>"


make_only_here(Context, "a Context comes from Device.create_context(), Device.context or Context.from_handle()")


def granted_context(int device_id):
    """The context to which other code has limited this thread or process, and whose SMs partitions divide: one of other
    code that is current, or the primary context, if it has a part of the device. None for the whole device.
    """
    cdef Context context = unmade_context()
    if not cpp.granted_context(context._slot, active_runtime()[0], device_id):
        return None
    return made_context(context)


def close_together(contexts):
    """Close the lease that contexts share.

    Raises ContextCurrentError, and changes nothing, while one of them is current on this thread, or on another one
    through this package.
    """
    cdef vector[cpp.ContextHandle] boxes
    cdef Context context
    for context in contexts:
        if context._slot.get().get() != NULL:
            boxes.push_back(context._slot.get())
    cpp.close_together(boxes)


def are_free(resources):
    """For each of some resources of one device whether no lease is known to have its SMs, or may have them."""
    cdef vector[cpp.SmResourcePtr] sms = sms_of(resources)
    cdef SMResource resource
    if sms.empty():
        return []
    resource = resources[0]
    return [bool(answer) for answer in cpp.sm_claims(resource._runtime[0]).are_free(resource._sm.get().device, sms)]


def idle_identities(SMResource whole not None):
    """The identities (see sm_identity()) of the SMs of idle contexts of a device, newest first."""
    cdef vector[cpp.SmResourcePtr] idle = cpp.context_pool(whole._runtime[0]).idle_sms(whole._sm.get().device)
    cdef size_t at
    return [identity_of(idle[at]) for at in range(idle.size())]


def context_stream(Context context not None, size_t number=0, priority=None):
    """A stream that belongs to the context: the same one of the driver for each call with this number and priority.

    The object is of use until the lease of the context closes. The driver's stream lives as long as the context: code
    that has only its handle can go on using it.
    """
    cdef StreamOptions options = StreamOptions(priority=priority)
    cdef Stream stream = Stream.__new__(Stream)
    stream._context = context
    cpp.context_stream(stream._slot, context._slot, options._level, number)
    return made_stream(stream)


def any_has_capture(contexts):
    """Return whether a stream that this package made in these contexts is capturing a graph."""
    cdef vector[cpp.ContextHandle] boxes
    cdef Context context
    for context in contexts:
        cpp.present(context._slot)
        boxes.push_back(context._slot.get())
    return bool(cpp.any_has_capture(boxes))


def is_idle(Context context not None):
    """Return whether the work of a context has ended, and none of its streams is capturing."""
    return bool(cpp.context_is_idle(context._slot))


def seen_sm_ids(Context context not None):
    """The ids of the SMs on which verify() saw the context run; None before that."""
    return tuple(cpp.seen_sm_ids(context._slot)) or None


def note_sm_ids(Context context not None, sm_ids):
    """Record on which SMs a kernel saw the context run."""
    cdef vector[unsigned int] ids
    for sm_id in sorted(sm_ids):
        ids.push_back(sm_id)
    cpp.note_sm_ids(context._slot, ids)


def capturing_stream(SMResource resource not None):
    """The stream that is capturing on the device of a resource, as far as can be known; None if there is none."""
    resource._runtime.demand_usable()
    return cpp.capturing_stream(resource._runtime[0], resource._sm.get().device).decode() or None
