from cuda_gctx._core.context import Context

class CurrentBlock:
    """A ``with`` block in which a context is current on the calling thread."""

    def __call__(self, *exception: object) -> Context | None: ...  # enter it, or leave it with an exception
    def __enter__(self) -> Context: ...
    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...
