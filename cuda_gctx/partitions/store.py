"""The store of unused green contexts, loans of them, and the device memory that they hold."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cuda_gctx._core.context import Context
from cuda_gctx._core.device import Device
from cuda_gctx._core.driver import before_driver_closes
from cuda_gctx._core.errors import CUDAWarning, FeatureNotSupported
from cuda_gctx._core.loan import (
    Claim,
    context_counts,
    device_memory,
    driver_key,
    is_pinned,
    keeps_capture,
    pin_context,
    pinned_counts,
)
from cuda_gctx._core.resources import SMResource, drop_split_contexts, split_context_count

__all__ = ["ContextStore", "Loan", "MemoryUse", "StoredContext", "driver_and_device", "memory_use", "store"]

# The device memory that a context takes, and that the driver does not give back when it is destroyed: measured on an
# H200 with driver 13.0, the same for 8 and 120 SMs. The driver does not report it.
CONTEXT_BYTES = 4 * 2**20

Key = tuple[object, ...]


@dataclass(eq=False)
class StoredContext:
    """A green context that is stored or on loan, and what is known of it.

    key: equal for contexts that can replace each other: driver, device, SMs and workqueue options.
    """

    key: Key
    context: Context
    sm_ids: tuple[int, ...] | None = None
    largest_cluster: int | None = None

    def close(self) -> None:
        # One that is still current on some thread stays alive there, and is destroyed after that.
        with suppress(RuntimeError):
            self.context.close()

    @property
    def is_pinned(self) -> bool:
        """Whether a framework has seen it, so that it is not destroyed before its driver is closed."""
        return is_pinned(self.context)

    def can_be_lent(self) -> bool:
        """Whether it can be lent: not after its user has closed it or left a capture open in it."""
        try:
            if self.context.is_closed:
                return False
            # During a capture, whole contexts refuse events and waits. Whoever captures has the handle of a stream.
            if keeps_capture(self.context):
                pin_context(self.context)
                return False
        except RuntimeError:  # the device has failed, or this is a forked child
            return False
        return True


class ContextStore:
    """Unused green contexts, kept for the next request for the same SMs.

    Making a context takes about a millisecond, and destroying it does not give its device memory back. Therefore the
    contexts of closed partitions come here. Beyond `limit` contexts, those that have been here longest are destroyed.
    Contexts that a framework has seen are never destroyed, and do not count: neither the limit nor drop() concerns
    them.
    """

    def __init__(self, limit: int = 256) -> None:
        # Reentrant: the garbage collector may return contexts in the middle of a call.
        self._lock = threading.RLock()
        self._stored: list[StoredContext] = []
        self._closed_drivers: set[object] = set()
        self._warned_of: set[int] = set()
        self.limit = limit

    @property
    def limit(self) -> int:
        """The largest number of contexts that are kept, without those that frameworks have seen."""
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
        return len(self._stored)

    def count(self, device: Device) -> int:
        """The number of contexts of a device in the store."""
        mine = driver_and_device(device.resources.sm, device)
        return sum(stored.key[:2] == mine for stored in list(self._stored))

    def drop(self) -> None:
        """Destroy all contexts in the store, and those that splits needed.

        Those that a framework has seen stay. The device memory that the others took stays lost (see system.memory()).
        """
        self._drop(lambda stored: not stored.is_pinned)
        drop_split_contexts()

    def _drop(self, chosen: Callable[[StoredContext], bool]) -> None:
        with self._lock:
            dropped = [stored for stored in self._stored if chosen(stored)]
            self._stored = [stored for stored in self._stored if stored not in dropped]
        for stored in reversed(dropped):
            stored.close()

    def _forget_driver(self, key: int) -> None:
        self._closed_drivers.add(key)
        self._drop(lambda stored: stored.key[0] == key)

    def _warn_of_pinned(self, driver: int, count: int) -> None:
        """Warns once for each driver when frameworks have seen more contexts than the limit."""
        if count > self._limit and driver not in self._warned_of:
            self._warned_of.add(driver)
            warnings.warn(
                f"frameworks have seen {count} green contexts, more than the limit of the store ({self._limit}). They "
                "are never destroyed, and each takes 4 MiB of device memory: use the same layouts again, in a "
                "PartitionPool for instance, instead of ever new ones",
                CUDAWarning,
                stacklevel=3,
            )

    def _take(self, keys: Sequence[Key]) -> list[StoredContext | None]:
        """For each key a context that can be lent, or None."""
        with self._lock:
            return [self._take_one(key) for key in keys]

    def _take_one(self, key: Key) -> StoredContext | None:
        for position in range(len(self._stored) - 1, -1, -1):
            if self._stored[position].key == key:
                found = self._stored.pop(position)
                # Code that has its handle may have closed it.
                if not found.context.is_closed:
                    return found
        return None

    def _identities(self, driver: int, device: Device) -> list[bytes]:
        """What the stored contexts of a device are made of (see sm_identity()), the newest first."""
        where = (driver, device.device_id)
        return [
            b"".join(part for part in stored.key[2:-1] if isinstance(part, bytes))
            for stored in reversed(list(self._stored))
            if stored.key[:2] == where
        ]

    def _put(self, contexts: Sequence[StoredContext]) -> None:
        """Takes contexts back; closes those that nobody else should get.

        One in which a capture was left open is pinned: the core serves requests with it once the capture has ended.
        """
        for stored in contexts:
            if stored.key[0] in self._closed_drivers:
                continue  # it was destroyed with its driver
            if stored.can_be_lent():
                with self._lock:
                    self._stored.append(stored)
            else:
                stored.close()
        self._trim()

    def _trim(self) -> None:
        while True:
            with self._lock:
                if len(self._stored) <= self._limit:
                    return
                ours = [stored for stored in self._stored if not stored.is_pinned]
                if len(ours) <= self._limit:
                    return
                self._stored.remove(ours[0])
            ours[0].close()

    def __repr__(self) -> str:
        return f"<ContextStore: {len(self)} contexts, {self.limit} at most>"

    def __reduce__(self) -> str:
        raise TypeError("the store holds contexts of this process and cannot be copied or pickled")


store = ContextStore()
before_driver_closes(store._forget_driver)


class Loan:
    """The use of stored contexts: they return to the store when it ends, or when nothing refers to it any more.

    contexts: those that it lends. Some of them can be on loan already, by the `sources`, which it keeps alive.
    """

    __slots__ = ("__weakref__", "contexts", "release", "sources")

    def __init__(
        self,
        contexts: Sequence[StoredContext],
        own: Sequence[StoredContext],
        claim: Claim,
        sources: Sequence[Loan] = (),
    ) -> None:
        self.contexts = contexts
        self.sources = sources
        self.release = weakref.finalize(self, _end, own, claim)
        # At exit the process ends anyway, and the driver may be gone by then.
        self.release.atexit = False


def _end(own: Sequence[StoredContext], claim: Claim) -> None:
    # In this order: the next user of the contexts claims their SMs.
    claim.release()
    store._put(own)


@dataclass(frozen=True)
class MemoryUse:
    """Device memory and the green contexts that this package made on a device.

    contexts: alive, of which `stored` are in use by nobody, `splitting` exist because a split needed them, and `pinned`
    have been seen by a framework, which keeps them alive until the process ends; destroyed: the number of destroyed
    ones.
    held_bytes, lost_bytes: the device memory that the live ones take, and that the driver did not give back for the
    destroyed ones. The driver does not report these two: they are the numbers of contexts times 4 MiB, as measured on
    an H200 with driver 13.0.
    """

    free_bytes: int
    total_bytes: int
    contexts: int
    stored: int
    destroyed: int
    splitting: int
    pinned: int

    @property
    def held_bytes(self) -> int:
        """The device memory that the live contexts take."""
        return self.contexts * CONTEXT_BYTES

    @property
    def lost_bytes(self) -> int:
        """The device memory that the driver did not give back for the destroyed contexts."""
        return self.destroyed * CONTEXT_BYTES


def memory_use() -> dict[int, MemoryUse]:
    """The memory of green contexts, for each device on which this package has made any."""
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
            pinned, waiting = pinned_counts(whole)
            stored = store.count(device) + waiting
            splitting = split_context_count(whole)
            uses[device_id] = MemoryUse(free, total, made - destroyed, stored, destroyed, splitting, pinned)
    return uses


def driver_and_device(whole: SMResource, device: Device) -> tuple[int, int]:
    return driver_key(whole), device.device_id
