from typing import final

from cuda_gctx._core.context import Context

@final
class CurrentBlock:
    """A ``with`` block in which a context is current on the calling thread."""

    def __enter__(self) -> Context: ...
    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...
