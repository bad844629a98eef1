"""The arrangements of a pool: where each part of a program runs, and the order from one arrangement to the next.

Two orders hold: the order of work on SMs that are shared, or may be, and the order of the work of one part on any SMs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from threading import RLock
from typing import TypeAlias

from cuda_gctx._core.extension import CapturingError, Numbered, Stream, Switching, capture_of
from cuda_gctx.partitions.partitions import Partition, Partitions, lent_streams, sms_of, with_background

# Arrangements that are remembered. Those of plans that a program makes anew again and again would fill the memory.
MOST_ARRANGEMENTS = 4096

# Where work runs: a partition, or a stream on the whole device.
Place: TypeAlias = Partition | Stream


def _streams_of(place: Place) -> list[Stream]:
    lent = lent_streams(place) if isinstance(place, Partition) else [place]
    return [stream for stream in lent if not stream.is_closed]


class Arrangement(Numbered):
    """Where each part runs: the partitions of a layout, each under its name, or the parts of a plan.

    places: by their numbers in the core; partitions of two layouts that share a context are one place. uses: names of
    parts, with the numbers of their places.
    """

    __slots__ = ("partitions", "places", "uses")

    def __init__(
        self,
        number: int,
        partitions: Partitions | None,
        places: Sequence[tuple[int, Place]],
        uses: frozenset[tuple[str, int]],
        streams: Mapping[str, Stream],
    ) -> None:
        super().__init__(number, streams)
        self.partitions = partitions
        self.places = places
        self.uses = uses

    def parts_at(self, place: int) -> set[str]:
        """The parts that run in a place."""
        return {part for part, at in self.uses if at == place}

    def goes_on(self, place: int, other: Arrangement) -> bool:
        """Whether all parts that run in a place here also run there in another arrangement."""
        return self.parts_at(place) <= other.parts_at(place)

    def lent(self) -> list[Stream]:
        """All open streams of its places."""
        return [stream for _, place in self.places for stream in _streams_of(place)]


class _Capture:
    """The capture of a graph during which the pool left arrangements.

    origin: the arrangement in which the capture ends. visited: all arrangements that the pool left during it. joined:
    the streams that only a switch has made a part of it.
    """

    def __init__(self, number: int, origin: Arrangement) -> None:
        self.number = number
        self.origin = origin
        self.visited: dict[Arrangement, None] = {}
        self.joined: set[Stream] = set()


class Arrangements(Switching):
    """The arrangements of one pool, under its lock."""

    current: Arrangement | None
    by_key: dict[Hashable, Arrangement]
    left_in_capture: dict[Arrangement, None]

    def __init__(self, lock: RLock, prepared: dict[object, Partitions]) -> None:
        super().__init__(lock, prepared)
        self._capture: _Capture | None = None
        self._parts: dict[str, int] = {}  # the numbers of the parts in the core
        self._part_numbers = count()
        self._replaced: list[Arrangement] = []  # which have no key any more, and may be in use

    def clear(self) -> None:
        super().clear()
        self._capture = None
        self._replaced.clear()
        self._parts.clear()

    def _number_of(self, part: str) -> int:
        if part not in self._parts:
            self._parts[part] = next(self._part_numbers)
        return self._parts[part]

    def add(
        self,
        key: Hashable,
        partitions: Partitions | None,
        uses: Iterable[tuple[str, Place]],
        streams: Mapping[str, Stream] | None = None,
    ) -> Arrangement:
        """A new arrangement, in place of the previous one with this key."""
        places = list(uses)
        number = self.add_arrangement(
            (self._number_of(part), place.context, sms_of(place), place.sm_ids)
            if isinstance(place, Partition)
            else (self._number_of(part), place, None, None)
            for part, place in places
        )
        numbers = self.places_of(number)
        arrangement = Arrangement(
            number,
            partitions,
            [(at, place) for at, (_, place) in zip(numbers, places, strict=True)],
            frozenset((part, at) for at, (part, _) in zip(numbers, places, strict=True)),
            streams or {},
        )
        if len(self.by_key) >= MOST_ARRANGEMENTS:
            self._replaced += self.by_key.values()
            self.by_key.clear()
        if key in self.by_key:
            self._replaced.append(self.by_key[key])
        self.by_key[key] = arrangement
        self._remove_replaced()
        return arrangement

    def has_in_use(self, partitions: Partitions) -> bool:
        """Whether these partitions are current, or were left in a capture after which no switch was made."""
        return any(arrangement.partitions is partitions for arrangement in self._current_and_left())

    def forget(self, partitions: Partitions) -> None:
        """Forget the arrangements of partitions that are not in use. Work in them stays ordered."""
        for key in [key for key, arrangement in self.by_key.items() if arrangement.partitions is partitions]:
            self._replaced.append(self.by_key.pop(key))
        self._remove_replaced()

    def _current_and_left(self) -> Iterator[Arrangement]:
        yield from self.left_in_capture
        if self.current is not None:
            yield self.current

    def _remove_replaced(self) -> None:
        if not self._replaced:
            return
        kept = [arrangement for arrangement in self._replaced if arrangement in self._current_and_left()]
        for arrangement in self._replaced:
            if arrangement not in kept:
                self.remove_arrangement(arrangement.number)
        self._replaced = kept
        known = self.parts()
        self._parts = {part: number for part, number in self._parts.items() if number in known}

    def note_verified(self, partitions: Partitions) -> None:
        """Record on which SMs a kernel saw the partitions run, to know which partitions share none."""
        for part in with_background(partitions):
            if part.sm_ids is not None:
                self.note_sm_ids(part.context, part.sm_ids)

    def enter(self, new: Arrangement) -> None:
        """Make an arrangement the current one, behind the work of the earlier ones."""
        if not self.enter_outside_capture(new):
            assert self.current is not None
            self._enter_around_capture(self.current, new)
            self.make_current(new)

    def _enter_around_capture(self, old: Arrangement, new: Arrangement) -> None:
        if not self._captures(old, new):
            left = dict.fromkeys((*self.left_in_capture, old))
            if not self.order_all([arrangement.number for arrangement in left], new.number):
                raise CapturingError(
                    "a stream that the pool has not lent is capturing a graph in one of its partitions: switch "
                    "before or after the capture"
                )
            self.left_in_capture.clear()
            self._capture = None
        elif old is not new:
            for _, place in new.places:
                if isinstance(place, Partition):
                    # Lent now, if it was not before: the work of the part is to be in the graph. It may be part of a
                    # capture already, where another layout has lent the same stream.
                    place.stream  # noqa: B018
            captures = self._captures(old, new)
            self._order_capture(self._capture_for(old, captures), old, new, captures)

    def _captures(self, old: Arrangement, new: Arrangement) -> dict[Stream, int]:
        """The captures of the streams that a switch may order."""
        return {
            stream: capture
            for arrangement in dict.fromkeys((old, new, *self.left_in_capture))
            for stream in arrangement.lent()
            if (capture := capture_of(stream))
        }

    def _capture_for(self, old: Arrangement, captures: Mapping[Stream, int]) -> _Capture:
        """The capture that includes the current arrangement; RuntimeError if there are others."""
        under_way = set(captures.values())
        of_current = {captures[stream] for stream in old.lent() if stream in captures}
        if self._capture is not None and self._capture.number in under_way:
            of_current.add(self._capture.number)
        if under_way != of_current or len(of_current) > 1:
            raise RuntimeError(
                f"captures of graphs that use streams of the pool: {len(under_way)}, of which the current "
                f"layout is part of {len(of_current)}. A switch orders one capture, which the current layout is part "
                "of: switch before or after the others"
            )
        [number] = of_current
        if self._capture is None or self._capture.number != number:
            self._capture = _Capture(number, old)
        return self._capture

    def _order_capture(
        self, capture: _Capture, old: Arrangement, new: Arrangement, captures: Mapping[Stream, int]
    ) -> None:
        """Add the order of a switch to the graph as edges; the streams of the new arrangement join the capture."""
        visited = list(dict.fromkeys((*capture.visited, old)))
        is_way_back = new is capture.origin
        # A stream that joins a capture has to be joined again: on the way back, no more of them join.
        inside = [stream for stream in new.lent() if stream in captures and stream not in capture.joined]
        later = [
            (at, stream)
            for at, place in new.places
            for stream in _streams_of(place)
            # What goes on waits for nothing, but has to be in the graph: where it was not used before, it is not yet.
            if not new.goes_on(at, old) or stream not in captures
            if not is_way_back or stream in inside
        ]
        parts: dict[int, set[str]] = {}
        behind: dict[int, dict[Stream, None]] = {}
        for arrangement in visited:
            for at, place in arrangement.places:
                parts.setdefault(at, set()).update(arrangement.parts_at(at))
                behind.setdefault(at, {}).update(dict.fromkeys(lent for lent in _streams_of(place) if lent in captures))

        ordered: set[Stream] = set()
        waiting: set[Stream] = set()
        for source, streams in behind.items():
            if parts[source] <= new.parts_at(source):
                continue  # it may run next to all of the new arrangement
            followers = [
                stream for at, stream in later if self.may_share(source, at) or parts[source] & new.parts_at(at)
            ]
            for stream in streams if followers else ():
                _let_wait(stream, followers)
                ordered.add(stream)
                waiting.update(followers)
        if is_way_back:
            for stream in captures.keys() - ordered - set(inside):
                _let_wait(stream, inside[:1])
        else:
            # Those with nothing to wait for are to be in the graph as well.
            _let_wait(next(iter(captures)), [stream for _, stream in later if stream not in {*captures, *waiting}])
            capture.joined.update(stream for _, stream in later if stream not in captures)
        capture.visited[old] = None
        self.left_in_capture[old] = None


def _let_wait(stream: Stream, followers: Iterable[Stream]) -> None:
    others = [follower for follower in followers if follower != stream]
    if others:
        event = stream.record()
        for follower in others:
            follower.wait(event)
