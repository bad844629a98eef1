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


class ResourceOverlapWarning(UserWarning):
    """A new context shares, or may share, SMs with a live context."""


class CUDAWarning(UserWarning):
    """Something failed where no exception can be raised, as in a destructor."""


def _rebuild(cls, args, state):
    error = cls(*args)
    error.__dict__.update(state)
    return error


cdef extern from "driver/process.hpp" namespace "gctx" nogil:
    bint take_failure(char* text, unsigned long size) noexcept


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
    cdef CaughtError error = caught_error()
    if error.caught == CaughtKind.out_of_memory:
        raise MemoryError()
    message = error.message.decode("utf-8", "replace")
    if error.caught == CaughtKind.other:
        raise RuntimeError(message)
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
    if error.kind == ErrorKind.split:
        refused = SplitError(message)
        if error.has_suggestion:
            refused._groups = [group_tuple(group) for group in error.suggestion]
        raise refused
    raise RuntimeError(message)


cdef int warn_of_failures() except -1:
    """Tells once what destructors could not."""
    cdef char text[320]
    if take_failure(text, sizeof(text)):
        warnings.warn(
            "a CUDA object could not be destroyed: " + text.decode("utf-8", "replace"), CUDAWarning, stacklevel=2
        )
    return 0


cdef void report_failures() noexcept:
    """The same where nothing can be raised: an error made of the warning is printed as unraisable."""
    warn_of_failures()
