from collections.abc import Mapping
from collections.abc import Sequence as _Several

from cuda_gctx._core.stream import Stream

_Place = tuple[int | None, int]

class Counter:
    """Counts launches."""

    def take(self, launches: int) -> int: ...

class Sequence:
    """The launches of a call. Streams have numbers: 0 is the one that `launch` is called with.

    A place is the number of a given address and what is added to it; with None as its number, it is an address that
    never changes. Not for several threads at once.
    """

    def __init__(self, streams: _Several[Stream] = ()) -> None: ...
    def kernel(
        self,
        function: int,
        blocks: int,
        threads: int,
        shared_bytes: int,
        arguments: bytes,
        places: Mapping[int, _Place],
        number_at: int,
        programmatic: bool = False,
    ) -> None: ...
    def copy(self, stream: int, to: _Place, source: _Place, size: int) -> None: ...
    def wait(self, stream: int, other: int) -> None: ...
    def launch(self, stream: Stream, given: _Several[int], count: int) -> None: ...
