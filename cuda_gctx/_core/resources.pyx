"""The resources of a GPU: SMs, which can be split, and hardware queues, which can be configured."""


# Beyond any GPU, and within what the driver's fields hold.
cdef object LARGEST_COUNT = 1_000_000


cdef object checked_int(name, value, smallest, multiple=1):
    """`value` as an int of at least `smallest`; None stays None."""
    if value is None:
        return None
    number = as_int(name, value)
    if number < smallest:
        raise ValueError(f"{name} must be >= {smallest}, not {number}")
    as_int(name, number, smallest, LARGEST_COUNT)
    if number % multiple:
        raise ValueError(f"{name} must be an even number, not {number}")
    return number


cdef bint is_sequence(value):
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _cluster_size(name, value):
    """A number of SMs that are in one GPC, or None."""
    return checked_int(name, value, 2, 2)


def _domain_number(name, value):
    """A locality domain: its number, "any", or None."""
    return "any" if type(value) is str and value == "any" else checked_int(name, value, 0)


cdef object checked_field(name, value, count, check):
    """A scalar, or a tuple of the same length as `count`, with each entry checked."""
    if not is_sequence(value):
        return check(name, value)
    if not isinstance(count, tuple):
        raise ValueError(f"{name} is a sequence, but count is scalar: only count sets the number of groups")
    if len(value) != len(count):
        raise ValueError(f"{name} has {len(value)} entries, expected {len(count)}: one for each group")
    return tuple([check(name, entry) for entry in value])


cdef class SMResourceOptions(Options):
    """The groups of a split. Only ``count`` sets their number; the other fields broadcast over it. Immutable.

    Equal by value. ``SMResourceOptions(8)`` and ``SMResourceOptions([8])`` request the same split and give a list of
    one group each, but they are not equal, as in cuda.core: the fields differ.

    count: SMs of each group, rounded up to the grain of the device; None or 0 for all remaining ones, at most once,
    or once in each locality domain without backfill. A 0 becomes None.
    coscheduled_sm_count: the number of SMs that must be in one GPC, which is then the grain; 2 requests none.
    preferred_coscheduled_sm_count: the number of SMs that should be in one GPC, for larger thread-block clusters.
    backfill: exactly `count` SMs (even), anywhere on the chip.
    locality_domain: the domain of the SMs (driver 13.4 and newer), see ``Device.locality_domains``; "any": SMs that are
    in a domain, whichever that is. With `backfill`, those of the domain come first.
    supplemental_sms: also the SMs of the domain beyond the number that every domain has (driver 13.5 and newer).
    """

    cdef readonly object count
    cdef readonly object coscheduled_sm_count
    cdef readonly object preferred_coscheduled_sm_count
    cdef readonly object backfill
    cdef readonly object locality_domain
    cdef readonly object supplemental_sms
    cdef vector[cpp.GroupRequest] _requests

    _defaults = {
        "count": None,
        "coscheduled_sm_count": None,
        "preferred_coscheduled_sm_count": None,
        "backfill": False,
        "locality_domain": None,
        "supplemental_sms": False,
    }

    def __cinit__(
        self,
        count=None,
        coscheduled_sm_count=None,
        preferred_coscheduled_sm_count=None,
        backfill=False,
        locality_domain=None,
        supplemental_sms=False,
    ):
        if is_sequence(count):
            if not count:
                raise ValueError("count is empty: request at least one group")
            count = tuple([as_sm_count("count", entry, LARGEST_COUNT) for entry in count])
        else:
            count = as_sm_count("count", count, LARGEST_COUNT)
        self.count = count
        self.coscheduled_sm_count = checked_field("coscheduled_sm_count", coscheduled_sm_count, count, _cluster_size)
        self.preferred_coscheduled_sm_count = checked_field(
            "preferred_coscheduled_sm_count", preferred_coscheduled_sm_count, count, _cluster_size
        )
        self.backfill = checked_field("backfill", backfill, count, as_bool)
        self.locality_domain = checked_field("locality_domain", locality_domain, count, _domain_number)
        self.supplemental_sms = checked_field("supplemental_sms", supplemental_sms, count, as_bool)
        cdef cpp.GroupRequest request
        cdef list open_domains = []  # one for each group with all remaining SMs; None: it leaves its domain
        counts = count if isinstance(count, tuple) else (count,)
        others = (
            self.coscheduled_sm_count,
            self.preferred_coscheduled_sm_count,
            self.backfill,
            self.locality_domain,
            self.supplemental_sms,
        )
        for count, coscheduled, preferred, backfill, domain, supplemental in zip(
            counts, *[field if isinstance(field, tuple) else (field,) * len(counts) for field in others]
        ):
            request = cpp.GroupRequest()
            if count is None:
                open_domains.append(None if backfill else domain)
            else:
                request.count = <unsigned int>count
            request.coscheduled = coscheduled or 0
            request.preferred = preferred or 0
            request.backfill = backfill
            request.supplemental = supplemental
            if domain is not None:
                request.locality_domain = cpp.ANY_DOMAIN if domain == "any" else <unsigned int>domain
            elif supplemental:
                raise ValueError("supplemental_sms requires locality_domain")
            self._requests.push_back(request)
        known = {domain for domain in open_domains if domain is not None and domain != "any"}
        if len(open_domains) > max(1, len(known)):
            raise ValueError(
                "count has more than one None (or 0, which means the same): only one group can have all remaining SMs, "
                "or one in each locality_domain, without backfill"
            )


cdef SMResourceOptions sm_options(value):
    """Options of a split, from SMResourceOptions, a dict of fields, or a count alone."""
    if isinstance(value, (SMResourceOptions, Mapping)):
        return as_options(SMResourceOptions, value)
    if value is not None and (is_sequence(value) or hasattr(value, "__index__")):
        return SMResourceOptions(value)
    raise TypeError(
        "options must be SMResourceOptions, a dict of their fields, or numbers of SMs as in split(8) and "
        f"split([8, 16]), not {type(value).__name__}"
    )


@cython.freelist(16)
cdef class SMResource:
    """A set of SMs: a device's, a context's, or one group of a split.

    Example:

        from cuda_gctx import Device

        sm = Device().resources.sm
        groups, remainder = sm.split([8, 40])
        print([group.sm_count for group in groups], remainder.sm_count)  # [8, 40] 84, on an H200
        print(groups[0].overlaps(groups[1]), groups[0].overlaps(sm))  # False True
        print(groups[0].descriptor() != 0)  # True: a CUdevResourceDesc, for cuGreenCtxCreate
    """

    cdef cpp.Runtime* _runtime
    cdef cpp.SmResourcePtr _sm
    cdef cpp.CUdevResourceDesc _descriptor

    @staticmethod
    cdef SMResource taking(cpp.Runtime* runtime, cpp.SmResourcePtr& sm):
        cdef SMResource self = SMResource.__new__(SMResource)
        self._runtime = runtime
        self._sm.swap(sm)
        return self

    @property
    def sm_count(self):
        """The number of SMs."""
        return self._sm.get().sm_count

    @property
    def requested(self):
        """The requested number of SMs, before rounding; None if no number was requested."""
        return optional_count(self._sm.get().requested)

    @property
    def min_partition_size(self):
        """The size of the smallest group that can be split off."""
        return self._sm.get().min_partition_size

    @property
    def coscheduled_alignment(self):
        """The number of its SMs that are guaranteed to share a GPC, which bounds thread-block clusters.

        Repeating a split with the counts and alignments that its groups report always succeeds. It is 2 where the
        driver may combine SMs of several GPCs.
        """
        return self._sm.get().promised()

    @property
    def flags(self):
        """The driver's flags of the resource; 0 before driver 13.1."""
        return self._sm.get().flags

    @property
    def locality_domain(self):
        """The locality domain that the driver reports for its SMs; None if it reports none, or any."""
        if self._sm.get().units.size() != 0 and self.flags & cpp.CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID:
            domain = self._sm.get().units.data()[0].sm.localityDomainId
            return None if domain == cpp.ANY_DOMAIN else domain
        return None

    @property
    def handle(self):
        """The address of the CUdevResource that stands for all of its SMs.

        ValueError if there is none: a group of several units has `handles` and descriptor(), a dry run and a resource
        with no SMs have neither.
        """
        units = self.handles
        if len(units) != 1:
            raise ValueError(
                f"this SMResource of {self.sm_count} SMs consists of {len(units)} driver resources, and no single "
                "handle stands for all of them: pass all of `handles` to cuDevResourceGenerateDesc, or use descriptor()"
            )
        return units[0]

    @property
    def handles(self):
        """The addresses of the CUdevResources that it consists of, as a tuple: together they are one context's.

        Each stands for a part of the SMs. They are valid as long as this object. ValueError for a dry run and a
        resource with no SMs.
        """
        cdef size_t at
        cpp.demand_sms(dereference(self._sm))
        first = <uintptr_t>self._sm.get().units.data()
        return tuple([first + at * sizeof(cpp.CUdevResource) for at in range(self._sm.get().units.size())])

    def descriptor(self):
        """The driver's descriptor of all of its SMs: a CUdevResourceDesc as an int, for cuGreenCtxCreate.

        It stays valid, can be used for any number of contexts, and is the same at each call: the driver has no call
        that frees it. ValueError for a dry run and a resource without SMs.
        """
        if self._descriptor == NULL:
            self._runtime.demand_usable()
            self._descriptor = cpp.descriptor_of(self._runtime.driver(), dereference(self._sm))
        return <uintptr_t>self._descriptor

    @property
    def unit_count(self):
        """The number of driver resources that it consists of; a context takes all of them."""
        return self._sm.get().units.size()

    @property
    def device(self):
        """The device of the resource."""
        return Device(self._sm.get().device)

    @property
    def strategy(self):
        """How the split formed it: 'structured', 'by-count', 'composed', 'fine' or 'bisected'; None if no split did."""
        cdef const char* name = cpp.strategy_name(self._sm.get().strategy)
        return name.decode() if name != NULL else None

    @property
    def is_dry_run(self):
        """Whether it is the result of a dry run, which no context accepts."""
        return self._sm.get().dry_run

    @property
    def free(self):
        """The SMs of a device that no open context of this process has, or may have: a snapshot.

        SMs are known to be free by the units that this property and ``Device.partition(among="free")`` use. Where the
        SMs of a context are unknown, all SMs that it may have count as taken.
        """
        from cuda_gctx.partitions.free import free_sms

        return free_sms(self)

    def overlaps(self, SMResource other not None):
        """Whether two resources share SMs; None if unknown.

        other: an SMResource of any device.
        """
        answer = cpp.overlaps(dereference(self._sm), dereference(other._sm))
        return answer.value() if answer.has_value() else None

    @cython.binding(False)
    def split(self, options, *, dry_run=False):
        """Split groups off. Returns ``(groups, remainder)``, which are disjoint and complete.

        options: SMResourceOptions, a dict of their fields, or their `count` alone, as in ``split(8)``.
        The driver splits only what a device or a context holds. Splitting a group or a remainder therefore needs a
        context over it, which is kept for its next split (see ``system.memory()``); a dry run creates one only where
        counting is not enough.
        dry_run: only compute the result; contexts refuse these groups.

        Raises SplitError, with a request that fits in its `suggestion`.
        """
        cdef SMResourceOptions asked = options if type(options) is SMResourceOptions else sm_options(options)
        cdef bint only_compute = dry_run is not False and as_bool("dry_run", dry_run)
        cdef cpp.SmResourcePtr sm
        cdef size_t position
        self._runtime.demand_usable()
        cdef cpp.SplitResult result = cpp.split_resource(self._runtime[0], self._sm, asked._requests, only_compute)
        cdef list groups = PyList_New(result.groups())
        for position in range(result.groups()):
            sm = result.group(position)
            group = SMResource.taking(self._runtime, sm)
            Py_INCREF(group)
            PyList_SET_ITEM(groups, position, group)
        sm = result.last()
        return groups, SMResource.taking(self._runtime, sm)

    def __eq__(self, other):
        if not isinstance(other, SMResource):
            return NotImplemented
        return cpp.same_sms(dereference(self._sm), dereference((<SMResource>other)._sm))

    def __hash__(self):
        return hash((self._sm.get().device, self._sm.get().sm_count, self._sm.get().dry_run))

    def __repr__(self):
        parts = [f"{self.sm_count} SMs of device {self._sm.get().device}"]
        if self.requested is not None:
            parts.append(f"requested {self.requested}")
        if self.sm_count:
            parts.append(f"alignment {self.coscheduled_alignment}")
        if self.strategy is not None:
            parts.append(self.strategy)
        if self.is_dry_run:
            parts.append("dry run")
        return f"<SMResource: {', '.join(parts)}>"


make_only_here(SMResource, "an SMResource comes from Device.resources, Context.resources, Stream.resources or a split")


cdef vector[cpp.SmResourcePtr] sms_of(resources) except *:
    cdef vector[cpp.SmResourcePtr] sms
    cdef SMResource resource
    for resource in resources:
        sms.push_back(resource._sm)
    return move(sms)  # a copy may throw where nothing catches it


class WorkqueueSharingScopeType(str, Enum):
    """Which contexts share hardware queues. Each value equals its string."""

    DEVICE_CTX = "device_ctx"
    GREEN_CTX_BALANCED = "green_ctx_balanced"

    __str__ = str.__str__
    __repr__ = str.__repr__
    __format__ = str.__format__


WorkqueueSharingScopeType.__module__ = "cuda_gctx"

cdef dict NUMBER_OF_SCOPE = {
    WorkqueueSharingScopeType.DEVICE_CTX: <int>cpp.CU_WORKQUEUE_SCOPE_DEVICE_CTX,
    WorkqueueSharingScopeType.GREEN_CTX_BALANCED: <int>cpp.CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED,
}
cdef dict SCOPE_OF_NUMBER = {number: scope for scope, number in NUMBER_OF_SCOPE.items()}


cdef class WorkqueueResourceOptions(Options):
    """The options of the hardware queues of a context. Immutable.

    sharing_scope: a WorkqueueSharingScopeType or its string: 'device_ctx' (all contexts share all queues) or
    'green_ctx_balanced' (separate where possible).
    concurrency_limit: the number of streams that are expected to run at once.
    """

    cdef readonly object sharing_scope
    cdef readonly object concurrency_limit

    _defaults = {"sharing_scope": None, "concurrency_limit": None}

    def __cinit__(self, sharing_scope=None, concurrency_limit=None):
        if sharing_scope is not None:
            if not isinstance(sharing_scope, str):
                raise TypeError(f"sharing_scope must be a str, not {type(sharing_scope).__name__}")
            if sharing_scope not in NUMBER_OF_SCOPE:
                raise ValueError(
                    f"sharing_scope: {sharing_scope!r} is not a valid WorkqueueSharingScopeType. Must be one of "
                    f"{', '.join(NUMBER_OF_SCOPE)}"
                )
            sharing_scope = WorkqueueSharingScopeType(sharing_scope)
        self.sharing_scope = sharing_scope
        self.concurrency_limit = checked_int("concurrency_limit", concurrency_limit, 1)


cdef class WorkqueueResource:
    """The workqueue of a device or context (driver 13.1 and newer).

    A context created with the workqueue of another context shares its queues, which the driver then keeps alive. A
    context created with the workqueue of a device, or with a configured one, gets queues by this configuration.
    """

    cdef cpp.Runtime* _runtime
    cdef int _device
    cdef cpp.CUdevResource _config
    cdef cpp.CUdevResource _existing
    cdef cpp.Slot[cpp.ContextBox] _of  # whose queues these are, until it is configured
    cdef bint _shares

    cdef cpp.CUdevResource* given(self) noexcept:
        return &self._existing if self._shares else &self._config

    @property
    def sharing_scope(self):
        """A WorkqueueSharingScopeType, which equals 'device_ctx' or 'green_ctx_balanced'."""
        return SCOPE_OF_NUMBER[<int>self._config.wqConfig.sharingScope]

    @property
    def concurrency_limit(self):
        """The number of streams that are expected to run at once."""
        return self._config.wqConfig.wqConcurrencyLimit

    @property
    def device(self):
        """The device of the resource."""
        return Device(self._device)

    @property
    def handle(self):
        """The address of the driver's CUdevResource: existing queues, or a configuration for a new context."""
        return <uintptr_t>self.given()

    def configure(self, options):
        """Change the fields that the options set (WorkqueueResourceOptions, or a dict of their fields).

        A context created with this resource gets queues by the changed configuration. If the resource is that of a
        context, the queues of that context do not change.
        """
        if options is None:
            raise TypeError("options are needed: WorkqueueResourceOptions, or a dict of their fields")
        options = as_options(WorkqueueResourceOptions, options)
        self._runtime.demand_usable()
        if options.sharing_scope is not None:
            scope = <int>NUMBER_OF_SCOPE[options.sharing_scope]
            self._config.wqConfig.sharingScope = <cpp.CUdevWorkqueueConfigScope>scope
        if options.concurrency_limit is not None:
            self._config.wqConfig.wqConcurrencyLimit = options.concurrency_limit
        if (options.sharing_scope, options.concurrency_limit) != (None, None):
            self._shares = False

    def __repr__(self):
        return (
            f"<WorkqueueResource: {self.sharing_scope}, concurrency limit {self.concurrency_limit}, "
            f"device {self._device}>"
        )


make_only_here(WorkqueueResource, "a WorkqueueResource comes from Device.resources or Context.resources")


cdef class DeviceResources:
    """The resources of a device, a context or a stream."""

    cdef cpp.Runtime* _runtime
    cdef int _device
    cdef cpp.Slot[cpp.ContextBox] _context  # empty: of the device
    cdef SMResource _sm

    @staticmethod
    cdef DeviceResources of_device(cpp.Runtime* runtime, int device):
        cdef DeviceResources self = DeviceResources.__new__(DeviceResources)
        self._runtime = runtime
        self._device = device
        return self

    @staticmethod
    cdef DeviceResources of_context(const cpp.ContextHandle& context):
        cdef DeviceResources self = DeviceResources.__new__(DeviceResources)
        cdef cpp.ContextHandle box = context
        self._context.put(box)
        self._runtime = &cpp.present(self._context).get().runtime()
        self._device = cpp.present(self._context).get().device()
        return self

    @property
    def sm(self):
        """The SMs. They do not change, and are therefore queried once."""
        cdef cpp.SmResourcePtr sm
        if self._sm is None:
            self._runtime.demand_usable()
            # Otherwise it is queried, or another thread holds the lock during a driver call.
            if self._context.was_filled():
                sm = cpp.known_sm_resource(self._context.get().get()[0])
                if not sm:
                    sm = cpp.context_sm(self._context)
            else:
                sm = self._runtime.known_device_sm(self._device)
                if not sm:
                    sm = cpp.device_sm(self._runtime, self._device)
            self._sm = SMResource.taking(self._runtime, sm)
        return self._sm

    @property
    def workqueue(self):
        """The workqueue: a copy, to configure or share, and to pass to a context (driver 13.1 and newer)."""
        cdef WorkqueueResource resource = WorkqueueResource.__new__(WorkqueueResource)
        self._runtime.demand_usable()
        if self._context.was_filled():
            resource._config = cpp.context_workqueue(self._context)
            resource._existing = cpp.existing_workqueue(self._context)
            resource._of.share(self._context)
            resource._shares = True
        else:
            resource._config = cpp.device_workqueue(self._runtime, self._device)
        resource._runtime = self._runtime
        resource._device = self._device
        return resource

    def __repr__(self):
        if self._context.was_filled():
            return f"<DeviceResources of context {self._context.get().get().id()}>"
        return f"<DeviceResources of device {self._device}>"


make_only_here(DeviceResources, "DeviceResources come from a Device, a Context or a Stream")


def together(SMResource whole not None, resources):
    """Groups of one split as one resource; of no groups, one without SMs. whole: the device's own resource."""
    cdef vector[cpp.SmResourcePtr] sms = sms_of(resources)
    cdef cpp.SmResourcePtr found
    found = cpp.none_of(whole._sm.get()[0]) if sms.empty() else cpp.merged(sms)
    return SMResource.taking(whole._runtime, found)


def driver_and_device(SMResource resource not None):
    """The number of the driver that a resource belongs to, different for each driver of a process, and its device."""
    return <uintptr_t>resource._runtime, resource._sm.get().device


def sm_identity(SMResource resource not None):
    """The bytes that identify the SMs: equal for two resources of one driver only if these have the same SMs."""
    return identity_of(resource._sm)


cdef bytes identity_of(const cpp.SmResourcePtr& sms):
    return (<const char*>sms.get().units.data())[:sms.get().units.size() * sizeof(cpp.CUdevResource)]


def device_memory(SMResource resource not None):
    """The free and the total memory of the device of a resource, in bytes."""
    resource._runtime.demand_usable()
    return cpp.device_memory(resource._runtime[0], resource._sm.get().device)
