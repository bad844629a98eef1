"""GPUs: their properties, their resources, and what can be created on them."""


ComputeCapability = namedtuple("ComputeCapability", ("major", "minor"))


cdef Context same_object(dict given, Context found):
    """The object with which the context was made current, if there still is one and it has not been closed."""
    cdef Context known
    reference = given.get(found._number)
    if reference is not None:
        known = reference()
        if known is not None and known._slot.get() == found._slot.get():
            return known
    return found


cdef class Device:
    """A GPU, as a value: objects of the same id are equal, cheap, and usable on any thread.

    device_id: the driver's number of the device. None: the device of the current context, or device 0.

    Raises DriverNotFound without a driver, and ValueError if there is no such device.

    Example:

        from cuda_gctx import Device

        dev = Device()  # of the current context, or device 0
        with dev.partition(control=16, rest=None) as parts:
            print(parts.control.sm_count, parts.rest.sm_count)  # 16 116, on an H200
    """

    cdef cpp.Runtime* _runtime
    cdef readonly int device_id
    cdef DeviceResources _resources

    def __cinit__(self, device_id=None):
        self._runtime = active_runtime()
        if device_id is None:
            self.device_id = cpp.current_device(self._runtime[0])
        else:
            number = as_int("device_id", device_id)
            count = self._runtime.device_count()
            if not 0 <= number < count:
                numbers = "0" if count == 1 else f"0 to {count - 1}"
                raise ValueError(f"there is no device {number}: the devices of this machine are {numbers}")
            self.device_id = number

    @staticmethod
    def count():
        """The number of GPUs."""
        return active_runtime().device_count()

    @staticmethod
    def get_all_devices():
        """All GPUs."""
        return tuple(map(Device, range(Device.count())))

    cdef int attribute(self, cpp.CUdevice_attribute which) except? -1:
        self._runtime.demand_usable()
        return cpp.device_attribute(self._runtime[0], self.device_id, which)

    cdef Context primary(self):
        cdef Context context = unmade_context()
        self._runtime.demand_usable()
        cpp.primary_context(context._slot, self._runtime[0], self.device_id)
        return made_context(context)

    @property
    def name(self):
        """The name of the card."""
        self._runtime.demand_usable()
        return cpp.device_name(self._runtime[0], self.device_id).decode()

    @property
    def uuid(self):
        """The UUID, as nvidia-smi prints it."""
        self._runtime.demand_usable()
        cdef cpp.CUuuid uuid = cpp.device_uuid(self._runtime[0], self.device_id)
        digits = (<bytes>uuid.bytes[:16]).hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    @property
    def is_simulated(self):
        """Tells whether the software driver provides the device, as the opened library answers."""
        return self._runtime.driver().is_simulated()

    @property
    def pci_bus_id(self):
        """The PCI bus ID, as domain:bus:device.function."""
        self._runtime.demand_usable()
        return cpp.device_pci_bus_id(self._runtime[0], self.device_id).decode()

    @property
    def compute_capability(self):
        """The compute capability as (major, minor), with attributes of these names."""
        return ComputeCapability(
            self.attribute(cpp.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self.attribute(cpp.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )

    @property
    def arch(self):
        """The compute capability as text for compilers, such as "90"."""
        return "".join(map(str, self.compute_capability))

    @property
    def sm_count(self):
        """The number of SMs of the device."""
        return self.attribute(cpp.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)

    @property
    def locality_domains(self):
        """The number of locality domains, numbered from 0; 1 before driver 13.4."""
        if not self._runtime.driver().has(cpp.Feature.locality_domains):
            return 1
        return max(1, self.attribute(cpp.CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT))

    @property
    def priority_range(self):
        """The lowest and the highest priority of streams, such as (0, -5). Smaller numbers have a higher priority."""
        self._runtime.demand_usable()
        range = cpp.priorities(self._runtime[0], self.device_id)
        return (range.least, range.greatest)

    @property
    def resources(self):
        """The resources of the whole device."""
        self._runtime.demand_usable()
        with cython.critical_section(self):
            if self._resources is None:
                self._resources = DeviceResources.of_device(self._runtime, self.device_id)
            return self._resources

    @property
    def context(self):
        """The primary context, which the CUDA runtime uses."""
        return self.primary()

    @cython.binding(False)
    def set_current(self, Context ctx=None):
        """Make a context current on the calling thread, until the next call.

        Returns the previous one, or None: the same object, if set_current() was given one on this thread.

        ctx: a context of this device; None: its primary context.

        Raises ClosedError if it is closed, ValueError if it belongs to another device, and RuntimeError inside a block
        of ``context.current()``, whose end would undo the call.
        """
        cdef Context context = ctx
        cdef Context found = unmade_context()
        cdef shared_ptr[cpp.ContextBox] box
        if ctx is None:
            context = self.primary()
        else:
            box = cpp.live(ctx._slot)
            if box.get().device() != self.device_id or &box.get().runtime() != self._runtime:
                raise ValueError(f"the context belongs to device {box.get().device()}, not {self.device_id}")
        given = given_here()
        is_any = cpp.set_current(found._slot, cpp.this_thread(), context._slot)
        found = same_object(given, made_context(found)) if is_any else None
        if ctx is not None and ctx is not found:
            if len(given) >= 64:  # those that are gone are forgotten
                for number in [number for number, known in given.items() if known() is None]:
                    del given[number]
            given[ctx._number] = ref(ctx)
        return found

    # A mapping without fields: create_context() without options says what it takes.
    def create_context(self, options=MappingProxyType({})):
        """Create a green context. Warns (ResourceOverlapWarning) if live contexts use, or may use, its SMs.

        options: ContextOptions, or a dict of their fields.

        Returns a Context. Raises ResourceOverlapError instead of warning with `exclusive`, ValueError for resources
        that cannot be in one context, CapturingError during a capture, and FeatureNotSupported on drivers before 12.4.
        """
        if options is None or options == {}:
            raise ValueError('resources must be provided: create_context({"resources": [...], "name": ...})')
        self._runtime.demand_usable()
        return new_green_context(self.device_id, as_options(ContextOptions, options))

    def create_stream(self, obj=None, options=None):
        """Create a stream of the primary context, or adopt the stream of another library.

        obj: an object with ``__cuda_stream__``, which is adopted. options: StreamOptions or a dict of their fields,
        which may come first.

        Returns a Stream. Raises ValueError if the priority is not in `priority_range`, or for both arguments.
        """
        if obj is not None and options is not None:
            raise ValueError("options are for a new stream: a stream that is adopted has its own")
        if hasattr(obj, "__cuda_stream__"):
            return Stream(obj)
        return self.primary().create_stream(options if obj is None else obj)

    def create_event(self, options=None):
        """Create an event of the primary context.

        options: EventOptions, or a dict of their fields. Returns an Event.
        """
        return self.primary().create_event(options)

    # cuda.core implements the following members.

    cdef object _device_of_core(self):
        from cuda_gctx.interop.cuda_core import DeviceOfCore

        return DeviceOfCore(self)

    @property
    def properties(self):
        """The DeviceProperties of cuda.core, which has to be installed."""
        return self._device_of_core().properties

    @property
    def memory_resource(self):
        """The memory resource that cuda.core allocates with on the device; it can be set. Needs cuda.core."""
        return self._device_of_core().memory_resource

    @memory_resource.setter
    def memory_resource(self, resource):
        self._device_of_core().memory_resource = resource

    @property
    def default_stream(self):
        """The default stream of the device, as cuda.core chooses it: the legacy or the per-thread one."""
        return self._device_of_core().default_stream

    def allocate(self, size, *, stream):
        """Allocate `size` bytes in the order of a stream; returns a Buffer of cuda.core, which has to be installed."""
        return self._device_of_core().allocate(as_int("size", size, 0), stream)

    def can_access_peer(self, peer):
        """Whether kernels of this device can access the memory of `peer`, a device or its number. Needs cuda.core."""
        return self._device_of_core().can_access_peer(as_int("peer", getattr(peer, "device_id", peer)))

    def create_graph_builder(self):
        """A GraphBuilder of cuda.core, which has to be installed. For graphs in partitions, see Stream.capture()."""
        return self._device_of_core().create_graph_builder()

    def partition(self, *requests, exclusive=False, among="all", **named):
        """Split the device into named, disjoint partitions: ``dev.partition(control=16, rest=None)``.

        requests: by position, or one mapping or Layout. named: by name. Each is a number of SMs (rounded up), a share
        of the device below 1 (rounded down), None for all remaining SMs, SMResourceOptions or PartitionSpec.
        Without any, the layout is that of the environment variable CUDA_GCTX_LAYOUT; if it is set, requesting another
        one is a ValueError.
        exclusive: refuse SMs that a live context uses, instead of warning.
        among: "free" splits only SMs that no live context of the process is known to have.

        Returns Partitions, whose ``background`` has the SMs that no partition requests. Raises SplitError if the
        requests do not fit, ResourceOverlapError with `exclusive`, and CapturingError during a capture.
        """
        from cuda_gctx.partitions import partition

        return partition(self, *requests, exclusive=exclusive, among=among, **named)

    def partition_sizes(self):
        """The sizes that one partition can have, according to the driver, as a list of PartitionSize."""
        from cuda_gctx.partitions import partition_sizes

        return partition_sizes(self)

    def sync(self):
        """Wait on the host for all work of the primary context and of green contexts.

        An idle green context is left out, unless the raw value of the context or one of its streams has left the
        package.
        """
        cpp.synchronize_context(self.primary()._slot)

    def __reduce__(self):
        return Device, (self.device_id,)

    def __eq__(self, other):
        if not isinstance(other, Device):
            return NotImplemented
        return self.device_id == (<Device>other).device_id

    def __hash__(self):
        return hash((Device, self.device_id))

    def __repr__(self):
        try:
            return f"<Device {self.device_id}: {self.name}, {self.sm_count} SMs>"
        except Exception:  # broken objects have a repr too
            return f"<Device {self.device_id}>"
