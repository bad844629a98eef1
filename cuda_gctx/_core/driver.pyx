"""The driver in use: opened at the first use, described by ``system``, and exchanged by tests."""


cdef cpp.Runtime* active_runtime() except NULL:
    if not cpp.Runtime.is_any_open():
        return cpp.open_active()  # the first use initialises the driver, which can take a second
    return &cpp.Runtime.active()


cdef class OpenDriver:
    """A driver that was opened in addition to the one of CUDA_GCTX_DRIVER."""

    cdef cpp.Runtime* runtime

    def __repr__(self):
        return f"<OpenDriver {self.runtime.driver().path().decode()}>"


make_only_here(OpenDriver, "an OpenDriver comes from open_driver()")


def set_driver_aside():
    """Set the driver in use aside until resume_driver(), so that another machine can take its place.

    Until then, uses of its objects raise; objects that are dropped are destroyed afterwards.
    """
    cpp.set_aside_active()


def resume_driver():
    """Resume the driver that was set aside last, if no other driver is in its place."""
    cpp.resume()


def open_driver(choice):
    """Open a driver, named as in CUDA_GCTX_DRIVER, and make it the active one until it is closed."""
    cdef OpenDriver token = OpenDriver.__new__(OpenDriver)
    token.runtime = cpp.open_runtime(choice.encode())
    return token


# Functions that drop the objects that higher rooms keep of a driver. The argument is the address of the core's Runtime.
cdef list forgetters = []


def before_driver_closes(forget):
    """Call `forget` with the number of a driver (see _core.resources.driver_key) before that driver is closed."""
    forgetters.append(forget)


def close_driver(OpenDriver token not None):
    """Close a driver. Its objects then raise when they are used, and do nothing when they are destroyed."""
    for forget in forgetters:
        forget(<uintptr_t>token.runtime)
    cpp.forget_current_of(cpp.this_thread(), token.runtime[0])
    release_left()  # blocks hold their contexts
    cpp.close_driver(token.runtime[0])
    report_failures()


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

    def memory(self):
        """The device memory of green contexts, by device: held by live ones, lost to destroyed ones."""
        from cuda_gctx.partitions import memory_use

        return memory_use()

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
