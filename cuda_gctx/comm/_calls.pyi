from collections.abc import Callable
from collections.abc import Sequence as _Several
from typing import Any

from cuda_gctx import Stream
from cuda_gctx.comm._staging import Copy, Span
from cuda_gctx.comm._structs import Packed
from cuda_gctx.comm._topology import MixedCommMode, MixedCommOp
from cuda_gctx.extending import Counter

ALIGNMENT: int
MOST_KEPT: int
MAIN: int
BEFORE: int
AFTER: int
Launches: Any

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

class Plan:
    """The steps of a call, prepared once for its sizes, and launched for each call with the addresses of its tensors.

    Steps are kernels, copies, and functions of libraries, which enqueue work on the current stream themselves, and
    depend on no address. reads, writes: the parts of the tensors of this rank that the call reads and writes. numbers:
    counts calls, so that all kernels of a call have one number. number: the number without its count. copying: the
    streams BEFORE and AFTER. is_held: the first kernel has taken the control words for the kernels that follow.
    """

    is_held: bool
    @property
    def number(self) -> int: ...
    @property
    def reads(self) -> tuple[Span, ...]: ...
    @property
    def writes(self) -> tuple[Span, ...]: ...
    def __init__(
        self,
        numbers: Counter,
        number: int,
        reads: _Several[Span] = (),
        writes: _Several[Span] = (),
        copying: _Several[Stream] = (),
    ) -> None: ...
    def kernel(
        self,
        function: int,
        packed: Packed,
        number_at: int,
        blocks: int,
        threads: int,
        shared_bytes: int = 0,
        is_programmatic: bool = False,
    ) -> None: ...
    def copy(self, copy: Copy, stream: int = ...) -> None: ...
    def wait(self, stream: int, other: int) -> None: ...
    def call(self, function: Callable[[], object]) -> None: ...
    def launch(self, stream: Stream, given: _Several[int]) -> None: ...

class Known: ...

class Plans:
    """The plans of a handler: by operation, mode, root and shape.

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
        *,
        has_output: bool,
        launched: tuple[Plan, tuple[int, ...]] | None = None,
        again: Callable[[Any, Any], object] | None = None,
    ) -> None: ...
    def run(
        self, op: MixedCommOp, x_in: Any, x_out: Any, mode: MixedCommMode | None, root: int | None, is_checked: bool
    ) -> Any: ...
