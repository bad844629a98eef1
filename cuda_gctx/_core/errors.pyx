"""The exceptions of the package, and the translation of the core's errors into them."""


class CUDAError(RuntimeError):
    """A call of the CUDA driver failed."""

    def __init__(self, message, *, code=0, name="", call=""):
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call


class DriverNotFound(CUDAError):
    """No CUDA driver library could be opened."""


class FeatureNotSupported(CUDAError, NotImplementedError):
    """The driver in use lacks a feature."""

    def __init__(self, message, *, needs="", found="", code=0, name="", call=""):
        super().__init__(message, code=code, name=name, call=call)
        self.needs = needs
        self.found = found


class SplitError(CUDAError, ValueError):
    """A split does not fit the resource.

    suggestion: a smaller request that fits, as SMResourceOptions; None if there is none. advice: what else the
    message says behind the request: why there is none, or what would make this one fit.
    It has the code and the name with which drivers refuse a split, whichever of the two refused it.
    """

    suggestion = None
    advice = ""

    def __init__(self, message, *, code=915, name="CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", call=""):
        super().__init__(message, code=code, name=name, call=call)

    def __str__(self):
        return f"{self.args[0]} ({self.name})"


class ResourceOverlapError(ValueError):
    """An exclusive context was requested over SMs that a live context uses or may use."""


class ClosedError(RuntimeError):
    """An object was used after it or its driver was closed, or after its device was reset."""


class ContextCurrentError(RuntimeError):
    """A context cannot be closed, because it is current on a thread."""


class ForkedError(RuntimeError):
    """This process was forked after the driver was in use, and cannot use CUDA."""


class CapturingError(RuntimeError):
    """A stream is capturing a graph, and the call would invalidate the capture."""


class ResourceOverlapWarning(UserWarning):
    """A new context shares, or may share, SMs with a live context."""


class CUDAWarning(UserWarning):
    """A failure in a place where no exception can be raised, such as a destructor."""


# Shown, pickled and documented under their public names.
for _error in [value for value in globals().values() if isinstance(value, type) and issubclass(value, Exception)]:
    _error.__module__ = "cuda_gctx"
del _error


cdef extern from "driver/process.hpp" namespace "gctx" nogil:
    bint take_failure(char* text, unsigned long size) noexcept


cdef object optional_count(const optional[unsigned int]& value):
    return value.value() if value.has_value() else None


cdef object group_tuple(const cpp.GroupRequest& group):
    domain = optional_count(group.locality_domain)
    return (
        optional_count(group.count),
        group.coscheduled or None,
        group.preferred or None,
        bool(group.backfill),
        "any" if domain == cpp.ANY_DOMAIN else domain,
        bool(group.supplemental),
    )


cdef dict CLASS_OF_KIND = {
    <int>cpp.ErrorKind.driver: CUDAError,
    <int>cpp.ErrorKind.not_found: DriverNotFound,
    <int>cpp.ErrorKind.not_supported: FeatureNotSupported,
    <int>cpp.ErrorKind.bad_value: ValueError,
    <int>cpp.ErrorKind.closed: ClosedError,
    <int>cpp.ErrorKind.current: ContextCurrentError,
    <int>cpp.ErrorKind.forked: ForkedError,
    <int>cpp.ErrorKind.capturing: CapturingError,
    <int>cpp.ErrorKind.split: SplitError,
    <int>cpp.ErrorKind.overlap: ResourceOverlapError,
}


cdef int raise_error(const cpp.Error* error, const cpp.SplitFailure* refused) except -1:
    """Raise an exception of the core, which is a SplitFailure if `refused` is not null."""
    if error.kind == cpp.ErrorKind.out_of_memory:
        raise MemoryError()
    raised = CLASS_OF_KIND.get(<int>error.kind, RuntimeError)(error.message.decode("utf-8", "replace"))
    if refused != NULL:
        raised.advice = refused.advice.decode()
        if refused.suggestion.has_value():
            counts, *others = zip(*[group_tuple(group) for group in refused.suggestion.value()])
            # A field that is the same for all groups is given once.
            once = [field[0] if len(set(field)) == 1 else field for field in others]
            raised.suggestion = SMResourceOptions(counts, *once)
    elif isinstance(raised, CUDAError):
        raised.code, raised.name, raised.call = error.code, error.code_name.decode(), error.call.decode()
    if error.kind == cpp.ErrorKind.not_supported:
        raised.needs, raised.found = error.needs.decode(), error.found.decode()
    raise raised


cdef int warn_of_failures() except -1:
    """Warn once of failures in destructors."""
    cdef char text[320]
    if take_failure(text, sizeof(text)):
        failures = text.decode("utf-8", "replace")
        warnings.warn(f"a CUDA call failed where nothing could be raised: {failures}", CUDAWarning, stacklevel=2)
    return 0


cdef void report_failures() noexcept:
    """The same in places that cannot raise: if the warning is an error, it is printed as unraisable."""
    warn_of_failures()


raise_failure = PyCapsule_New(<void*>raise_error, "cuda_gctx._core.extension.raise_failure", NULL)
_report = PyCapsule_New(<void*>report_failures, "cuda_gctx._core.extension._report", NULL)
