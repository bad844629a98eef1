"""The driver in use: opened at the first use, described and replaced by ``system``."""


cdef cpp.Runtime* active_runtime() except NULL:
    if not cpp.Runtime.is_any_open():
        choice = os.environ.get("CUDA_GCTX_DRIVER", "")
        if choice == "sim" or choice.startswith("sim:"):
            register_software_driver()
        return cpp.open_active()  # the first use initialises the driver, which can take a second
    return &cpp.Runtime.active()


def demand_not_forked():
    """Raise ForkedError in a forked child. Objects that the parent has kept are of no use there."""
    cpp.demand_not_forked()


cdef int register_software_driver() except -1:
    """Tell the core where Python finds the software driver: an editable install is not next to this package."""
    from importlib.util import find_spec

    found = find_spec("cuda_software_driver")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = os.path.join(folder, "lib", "libcuda_software_driver.so")
        if os.path.exists(path):
            cpp.register_software_driver(os.fsencode(path))
    return 0


cdef class _OpenDriver:
    """A driver that was opened in addition to the driver of CUDA_GCTX_DRIVER."""

    cdef cpp.Runtime* runtime


make_only_here(_OpenDriver, "an open driver comes from system.use_driver()")


cdef _OpenDriver open_driver(path):
    cdef _OpenDriver driver = _OpenDriver.__new__(_OpenDriver)
    driver.runtime = cpp.open_runtime(os.fsencode(path))
    return driver


# Functions that drop the objects that higher rooms keep of a driver. The argument is the address of the core's Runtime.
cdef list forgetters = []


def before_driver_closes(forget):
    """Call `forget` with the number of a driver (see driver_and_device() in resources.pyx) before it is closed."""
    forgetters.append(forget)


cdef int close_driver(_OpenDriver driver) except -1:
    """Close a driver. Its objects then raise when they are used, and do nothing when they are destroyed."""
    for forget in forgetters:
        forget(<uintptr_t>driver.runtime)
    cpp.forget_current_of(cpp.this_thread(), driver.runtime[0])
    cpp.close_driver(driver.runtime[0])
    report_failures()
    return 0


@contextmanager
def _use_driver(path, machine):
    cpp.set_aside_active()
    try:
        with machine as started:
            driver = open_driver(path)
            try:
                yield started
            finally:
                close_driver(driver)
    finally:
        cpp.resume()


cdef class Feature:
    """Whether the driver in use offers a feature, as a truth value, with the reason if it does not."""

    cdef readonly str name
    cdef readonly str title
    cdef readonly bint available
    cdef readonly str needs
    cdef readonly str reason

    def __bool__(self):
        return self.available

    def __repr__(self):
        return f"<Feature {self.name}: {'available' if self.available else self.reason}>"


make_only_here(Feature, "a Feature comes from system.features()")


cdef Feature make_feature(const cpp.Driver& driver, int number):
    cdef cpp.FeatureState state = driver.feature(<cpp.Feature>number)
    cdef Feature feature = Feature.__new__(Feature)
    feature.name = state.name_text().decode()
    feature.title = state.title_text().decode()
    feature.available = state.available
    feature.needs = cpp.version_text(state.since).decode()
    if not feature.available:
        found = cpp.version_text(driver.version()).decode()
        feature.reason = f"{feature.title}: needs CUDA driver {feature.needs} or newer, this driver is {found}"
    return feature


cdef class System:
    """Properties of the driver."""

    @property
    def driver_version(self):
        """The CUDA version of the driver, as (major, minor)."""
        cdef int version = active_runtime().driver().version()
        return (version // 1000, version % 1000 // 10)

    @property
    def driver_path(self):
        """The path of the opened library."""
        return active_runtime().driver().path().decode()

    def features(self):
        """The features in which drivers differ, by name, each with the reason if it is not available."""
        cdef cpp.Runtime* runtime = active_runtime()
        cdef int number
        features = [make_feature(runtime.driver(), number) for number in range(<int>cpp.feature_count)]
        return {feature.name: feature for feature in features}

    def use_driver(self, path, machine=None):
        """Use another driver library within a ``with`` block: ``with system.use_driver("/opt/driver/libcuda.so.1"):``.

        path: the library. machine: a context manager that prepares the library; it is entered before the library
        opens and left after it closes, and the block receives its value.
        The present driver is set aside until the end: uses of its objects raise meanwhile, and dropped objects are
        destroyed afterwards. Objects of the other driver raise after the block.
        Raises DriverNotFound if the library cannot be opened.
        """
        return _use_driver(path, nullcontext() if machine is None else machine)

    def memory(self):
        """The green contexts of this package and the device memory, as a MemoryUse for each device that has some."""
        from cuda_gctx._core.memory import MemoryUse

        cdef cpp.Runtime* runtime = active_runtime()
        cdef cpp.ContextCounts counts
        cdef int device
        uses = {}
        for device in range(runtime.device_count()):
            counts = cpp.context_pool(runtime[0]).counts(device)
            if counts.contexts:
                free, total = cpp.device_memory(runtime[0], device)
                uses[device] = MemoryUse(
                    free, total, counts.contexts, counts.open, counts.lingering, counts.idle, counts.exposed
                )
        return uses

    @property
    def idle_contexts(self):
        """The number of green contexts that nobody uses, and that later requests for the same SMs get."""
        cdef cpp.Runtime* runtime = active_runtime()
        cdef int device
        return sum([cpp.context_pool(runtime[0]).counts(device).idle for device in range(runtime.device_count())])

    def release_contexts(self, exposed=False):
        """Destroy the idle green contexts of the package that have no work to do. Never waits.

        exposed: also contexts whose raw value has left the package, by a handle of the context or of one of its
        streams. This is safe only after all code that received such a value has stopped using it.

        Returns a ReleasedContexts: how many were destroyed, and how many were left for which reason. The driver returns
        no memory for a destroyed context (seen on an H200 with driver 13.0).
        """
        from cuda_gctx._core.memory import ReleasedContexts

        cdef bint also_exposed = as_bool("exposed", exposed)
        cdef cpp.ReleasedContexts released
        if not cpp.Runtime.is_any_open():
            return ReleasedContexts(0, 0, 0, 0)
        released = cpp.release_contexts(active_runtime()[0], also_exposed)
        return ReleasedContexts(released.destroyed, released.exposed, released.at_work, released.in_use)

    def __repr__(self):
        try:
            major, minor = self.driver_version
            return f"<System: CUDA driver {major}.{minor}, {self.driver_path}>"
        except Exception:  # broken objects have a repr too
            return "<System: no CUDA driver>"


system = System()


@atexit.register
def _leave():
    cpp.begin_exit()
