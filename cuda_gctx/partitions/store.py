"""Green contexts that are kept for their next use, and what they hold of device memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from cuda_gctx._core.context import Context
from cuda_gctx._core.device import Device
from cuda_gctx._core.driver import before_driver_closes
from cuda_gctx._core.errors import FeatureNotSupported
from cuda_gctx._core.lease import Claim, context_counts, device_memory, driver_key, keeps_capture, kept_stream
from cuda_gctx._core.resources import SMResource
from cuda_gctx._core.stream import Stream

__all__ = [
    "ContextStore",
    "KeptContexts",
    "Lease",
    "MemoryUse",
    "driver_and_device",
    "lent_streams",
    "memory_use",
    "store",
]

# What a context takes of device memory, and what the driver does not give back when it is destroyed: measured on an
# H200 with driver 13.0, the same for 8 and 120 SMs. The driver does not tell it.
CONTEXT_BYTES = 4 * 2**20


@dataclass(eq=False)
class KeptContexts:
    """The contexts of one layout on one driver and device, fence included, and what is known of them."""

    key: tuple[object, ...]
    groups: list[SMResource]
    contexts: list[Context]
    sm_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def close(self) -> None:
        for context in reversed(self.contexts):
            # One that is still current somewhere lives on there, and is destroyed after that.
            with suppress(RuntimeError):
                context.close()


class ContextStore:
    """Green contexts that nobody uses at the moment, kept for whoever asks for the same SMs again.

    Making a context takes about a millisecond, and destroying it does not give its device memory back, so that contexts
    of closed partitions come here. Beyond `limit` contexts the set that came back first is destroyed.
    """

    def __init__(self, limit: int = 256) -> None:
        # Reentrant: the collector may give contexts back in the middle of a call.
        self._lock = threading.RLock()
        self._kept: list[KeptContexts] = []
        self._closed_drivers: set[object] = set()
        self.limit = limit

    @property
    def limit(self) -> int:
        """How many contexts are kept at most."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"limit must be an int, not {type(value).__name__}")
        if value < 0:
            raise ValueError(f"limit must be 0 or more, not {value}")
        self._limit = value
        self._trim()

    def __len__(self) -> int:
        return sum(len(kept.contexts) for kept in list(self._kept))

    def count(self, device: Device) -> int:
        """How many contexts of a device are kept."""
        mine = driver_and_device(device.resources.sm, device)
        return sum(len(kept.contexts) for kept in list(self._kept) if kept.key[:2] == mine)

    def drop(self) -> None:
        """Destroys all contexts that are kept. What they lost of device memory stays lost (see system.memory())."""
        self._drop(lambda kept: True)

    def _drop(self, chosen: Callable[[KeptContexts], bool]) -> None:
        with self._lock:
            dropped = [kept for kept in self._kept if chosen(kept)]
            self._kept = [kept for kept in self._kept if kept not in dropped]
        for kept in dropped:
            kept.close()

    def _forget_driver(self, key: int) -> None:
        self._closed_drivers.add(key)
        self._drop(lambda kept: kept.key[0] == key)

    def _take(self, key: tuple[object, ...]) -> KeptContexts | None:
        with self._lock:
            for position in range(len(self._kept) - 1, -1, -1):
                if self._kept[position].key == key:
                    return self._kept.pop(position)
        return None

    def _put(self, kept: KeptContexts) -> None:
        if any(context.is_closed for context in kept.contexts):
            kept.close()
            return
        if kept.key[0] in self._closed_drivers:
            return  # its contexts went with the driver
        try:
            spoiled = any(map(keeps_capture, kept.contexts))
        except RuntimeError:  # the device has failed, or this is a forked child
            spoiled = True
        if spoiled:
            kept.close()  # during a capture, whole contexts refuse events and waits: nobody else should get them
            return
        with self._lock:
            self._kept.append(kept)
        self._trim()

    def _trim(self) -> None:
        while True:
            with self._lock:
                if len(self) <= self._limit:
                    return
                oldest = self._kept.pop(0)
            oldest.close()

    def __repr__(self) -> str:
        return f"<ContextStore: {len(self)} contexts, {self.limit} at most>"


store = ContextStore()
before_driver_closes(store._forget_driver)


@dataclass(frozen=True)
class MemoryUse:
    """Device memory and the green contexts that this package made on a device.

    contexts: alive, of which `stored` wait in the store for their next use; destroyed: how many are gone.
    held_bytes, lost_bytes: what the live ones take and what the driver did not give back for the destroyed ones. The
    driver does not tell these two: they are the counts times 4 MiB, as measured on an H200 with driver 13.0.
    """

    free_bytes: int
    total_bytes: int
    contexts: int
    stored: int
    destroyed: int

    @property
    def held_bytes(self) -> int:
        """What the live contexts take."""
        return self.contexts * CONTEXT_BYTES

    @property
    def lost_bytes(self) -> int:
        """What the driver did not give back for the destroyed ones."""
        return self.destroyed * CONTEXT_BYTES


def memory_use() -> dict[int, MemoryUse]:
    """For each device on which this package has made green contexts, what they hold and have lost."""
    uses = {}
    for device_id in range(Device.count()):
        device = Device(device_id)
        try:
            whole = device.resources.sm
        except FeatureNotSupported:
            continue
        made, destroyed = context_counts(whole)
        if made:
            free, total = device_memory(whole)
            uses[device_id] = MemoryUse(free, total, made - destroyed, store.count(device), destroyed)
    return uses


def driver_and_device(whole: SMResource, device: Device) -> tuple[int, int]:
    return driver_key(whole), device.device_id


class Lease:
    """The use of kept contexts: they go back when it ends, or when nothing refers to it any more."""

    __slots__ = ("__weakref__", "kept", "release")

    def __init__(self, kept: KeptContexts, place: Claim) -> None:
        self.kept = kept
        self.release = weakref.finalize(self, _give_back, kept, place)
        # At exit the process takes everything along; the driver may be gone by then.
        self.release.atexit = False


def lent_streams(context: Context, priority: int | None = None) -> Iterator[Stream]:
    """The streams of a priority that a context keeps, one after the other, the same ones for each of its users.

    Their handles are good as long as the context is: a framework has nothing else, and uses them as long as it likes.
    """
    # An iterator that goes on after an error.
    return map(partial(kept_stream, context, priority=priority), count())


def _give_back(kept: KeptContexts, place: Claim) -> None:
    place.release()
    store._put(kept)
