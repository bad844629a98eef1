"""The exceptions of the package, and the one place where the core's errors become Python's."""

import warnings

from cuda_gctx._core.above import above


class CUDAError(RuntimeError):
    """A call of the CUDA driver failed."""

    def __init__(self, message, *, code=0, name="", call=""):
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call

    def __reduce__(self):
        return _rebuild, (type(self), self.args, self.__dict__)


class DriverNotFound(CUDAError):
    """No CUDA driver library could be opened."""


class FeatureNotSupported(CUDAError, NotImplementedError):
    """The driver in use lacks what was asked for."""

    def __init__(self, message, *, needs="", found="", code=0, name="", call=""):
        super().__init__(message, code=code, name=name, call=call)
        self.needs = needs
        self.found = found


class SplitError(ValueError):
    """A split that the resource cannot give. ``suggestion`` holds the nearest options that fit, or None."""

    # One tuple of (count, coscheduled, preferred, backfill, locality domain) for each group.
    _groups = None

    @property
    def suggestion(self):
        """A request that fits, as SMResourceOptions; None if there is none."""
        if self._groups is None:
            return None
        counts, *others = zip(*self._groups)
        # A field that is the same for all groups is told once.
        return above.SMResourceOptions(counts, *(field[0] if len(set(field)) == 1 else field for field in others))


class ResourceOverlapError(ValueError):
    """An exclusive context was asked for over SMs that a live context has or may have."""


class ClosedError(RuntimeError):
    """What was used has been closed, or its driver has been, or its device has been reset."""


class ContextCurrentError(RuntimeError):
    """A context cannot be closed, because it is current on a thread."""


class ForkedError(RuntimeError):
    """This process was forked after the driver was in use, and cannot use CUDA."""


class CapturingError(RuntimeError):
    """A stream is capturing a graph, and the call would invalidate the capture."""


class ResourceOverlapWarning(UserWarning):
    """A new context shares, or may share, SMs with a live context."""


class CUDAWarning(UserWarning):
    """Something failed where no exception can be raised, as in a destructor."""


# Shown, pickled and documented under the name by which users import them.
for _error in (
    CUDAError,
    DriverNotFound,
    FeatureNotSupported,
    SplitError,
    ResourceOverlapError,
    ClosedError,
    ContextCurrentError,
    ForkedError,
    CapturingError,
    ResourceOverlapWarning,
    CUDAWarning,
):
    _error.__module__ = "cuda_gctx"
del _error


def _rebuild(cls, args, state):
    error = cls(*args)
    error.__dict__.update(state)
    return error


cdef extern from "driver/process.hpp" namespace "gctx" nogil:
    bint take_failure(char* text, unsigned long size) noexcept
    void let_errors_wait_for_the_end() noexcept


cdef object optional_count(const optional[unsigned int]& value):
    return value.value() if value.has_value() else None


cdef object group_tuple(const GroupRequest& group):
    return (
        optional_count(group.count),
        group.coscheduled or None,
        group.preferred or None,
        bool(group.backfill),
        optional_count(group.locality_domain),
    )


cdef int raise_error() except *:
    cdef unique_ptr[Error] caught = caught_error()
    cdef Error* error = caught.get()
    cdef optional[vector[GroupRequest]] suggestion
    if error.kind == ErrorKind.out_of_memory:
        raise MemoryError()
    message = error.message.decode("utf-8", "replace")
    told = {"code": error.code, "name": error.code_name.decode(), "call": error.call.decode()}
    if error.kind == ErrorKind.driver:
        raise CUDAError(message, **told)
    if error.kind == ErrorKind.not_found:
        raise DriverNotFound(message, **told)
    if error.kind == ErrorKind.not_supported:
        raise FeatureNotSupported(message, needs=error.needs.decode(), found=error.found.decode(), **told)
    if error.kind == ErrorKind.bad_value:
        raise ValueError(message)
    if error.kind == ErrorKind.overlap:
        raise ResourceOverlapError(message)
    if error.kind == ErrorKind.closed:
        raise ClosedError(message)
    if error.kind == ErrorKind.current:
        raise ContextCurrentError(message)
    if error.kind == ErrorKind.forked:
        raise ForkedError(message)
    if error.kind == ErrorKind.capturing:
        raise CapturingError(message)
    if error.kind == ErrorKind.split:
        refused = SplitError(message)
        suggestion = caught_suggestion()
        if suggestion.has_value():
            refused._groups = [group_tuple(group) for group in suggestion.value()]
        raise refused
    raise RuntimeError(message)


cdef int warn_of_failures() except -1:
    """Tells once what destructors could not."""
    cdef char text[320]
    if take_failure(text, sizeof(text)):
        told = text.decode("utf-8", "replace")
        warnings.warn(f"a CUDA call failed where nothing could be raised: {told}", CUDAWarning, stacklevel=2)
    return 0


cdef void report_failures() noexcept:
    """The same where nothing can be raised: an error made of the warning is printed as unraisable."""
    warn_of_failures()


# An error that is raised after the interpreter has gone would need it: the thread waits for the end instead.
let_errors_wait_for_the_end()
