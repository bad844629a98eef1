from cuda_gctx._core.resources import SMResourceOptions

class CUDAError(RuntimeError):
    """A call of the CUDA driver failed."""

    code: int
    name: str
    call: str
    def __init__(self, message: str, *, code: int = ..., name: str = ..., call: str = ...) -> None: ...

class DriverNotFound(CUDAError):
    """No CUDA driver library could be opened."""

class FeatureNotSupported(CUDAError, NotImplementedError):
    """The driver in use lacks a feature."""

    needs: str
    found: str
    def __init__(
        self, message: str, *, needs: str = ..., found: str = ..., code: int = ..., name: str = ..., call: str = ...
    ) -> None: ...

class SplitError(CUDAError, ValueError):
    """A split does not fit the resource.

    suggestion: the nearest request that fits, as SMResourceOptions; None if there is none. advice: what else the
    message says behind the request: why there is none, or what would make this one fit.
    """

    suggestion: SMResourceOptions | None
    advice: str

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

raise_failure: object  # a capsule, for call.hpp
