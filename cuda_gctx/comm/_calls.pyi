from collections.abc import Callable
from collections.abc import Sequence as _Several
from typing import Any

from cuda_gctx import Stream
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp
from cuda_gctx.extending import Counter, LaunchSequence

ALIGNMENT: int
MOST_KEPT: int

class Turns:
    """The stream of the call now, which is that of the call before in most of them.

    raw: returns the handle of the current stream of a device by its index; 0 for the default stream, whose handle
    is `legacy`. A call is inside of it while it fills and launches its kernels: of one thread at a time.
    """

    @property
    def previous(self) -> Stream | None: ...
    def __init__(self, raw: Callable[[Any], int], index: int | None, legacy: int) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
    def handle(self) -> int: ...
    def forget(self) -> None: ...
    def next(self, handle: int) -> Stream: ...
    def stream(self) -> Stream: ...

class Steps:
    """What a call launches: sequences, and between them functions of libraries, which enqueue work themselves.

    numbers: counts calls. All kernels of a call have its number.
    """

    def __init__(self, numbers: Counter) -> None: ...
    def add(self, step: LaunchSequence | Callable[[], object]) -> None: ...
    def launch(self, stream: Stream, given: _Several[int]) -> None: ...

class Known: ...

class Calls:
    """The calls of a handler that were made before: by operation, mode and shape.

    dtype, device: those of its tensors. turns: of its streams; None where nothing is kept. fault: the address of a word
    of the host that is not 0 after a fault.
    """

    def __init__(self, dtype: Any, device: Any, turns: Turns | None = None, fault: int = 0) -> None: ...
    def forget(self, *, by_address: bool) -> None: ...
    def keep(
        self,
        op: MixedCommOp,
        mode: MixedCommMode | None,
        message: Any,
        steps: Steps,
        given: _Several[int],
        *,
        has_output: bool,
    ) -> None: ...
    def run(self, op: MixedCommOp, x_in: Any, x_out: Any, mode: MixedCommMode | None, is_checked: bool) -> Any: ...
