from cuda_gctx._core.context import Context

class CurrentBlock:
    """Makes a context current on the calling thread for the length of a ``with`` block."""

    def __enter__(self) -> Context: ...
    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...
