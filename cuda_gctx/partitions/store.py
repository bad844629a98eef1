"""The store of unused green contexts, their loans, and the device memory that they hold."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cuda_gctx._core.extension import (
    Claim,
    Context,
    Device,
    FeatureNotSupported,
    any_keeps_capture,
    as_bool,
    as_int,
    before_driver_closes,
    context_counts,
    device_memory,
    drop_kept,
    is_pinned,
    pin_context,
    pinned_limit,
    set_pinned_limit,
)
from cuda_gctx.partitions.order import Key, Order, Wanted, driver_and_device

__all__ = [
    "ContextStore",
    "Loan",
    "MemoryUse",
    "StoredContext",
    "identities_of_stored",
    "memory_use",
    "put_back",
    "store",
    "take_stored",
    "take_stored_set",
]

# The device memory that a context takes, and that the driver does not give back when it is destroyed: measured on an
# H200 with driver 13.0, the same for 8 and 120 SMs. The driver does not report it.
CONTEXT_BYTES = 4 * 2**20


@dataclass(eq=False)
class StoredContext:
    """A green context in the store or on loan.

    served: the request of its last use. Its key is also the key of the context.
    """

    served: Wanted
    context: Context
    sm_ids: tuple[int, ...] | None = None
    largest_cluster: int | None = None

    @property
    def key(self) -> Key:
        """Equal for contexts that can replace each other."""
        return self.served.key

    def close(self) -> None:
        # One that is still current on some thread stays alive there, and is destroyed after that.
        with suppress(RuntimeError):
            self.context.close()

    @property
    def is_pinned(self) -> bool:
        """Whether a framework has seen it. If so, it exists until its driver is closed."""
        return is_pinned(self.context)

    def can_be_lent(self) -> bool:
        """Whether it can be lent. It cannot after its user has closed it, or left a capture open in it."""
        try:
            if self.context.is_closed:
                return False
            # During a capture, whole contexts refuse events and waits. Whoever captures has the handle of a stream.
            if any_keeps_capture([self.context]):
                pin_context(self.context)
                return False
        except RuntimeError:  # the device has failed, or this is a forked child
            return False
        return True


@dataclass(eq=False)
class StoredSet:
    """Contexts in the store that were used together. order: the order that they serve unchanged."""

    contexts: list[StoredContext]
    order: Order | None


def _can_all_be_lent(contexts: Iterable[StoredContext]) -> bool:
    """Whether all can be lent, in one query of the core; `can_be_lent` of each has the details."""
    try:
        return not any_keeps_capture(stored.context for stored in contexts)
    except RuntimeError:
        return False


class ContextStore:
    """Unused green contexts, kept for the next request for the same SMs.

    Creating a context takes about a millisecond, and destroying it does not return its device memory. Contexts of
    closed partitions are therefore stored here. Beyond `limit` contexts, the oldest are destroyed. Contexts that a
    framework has seen do not count, and only ``drop(pinned=True)`` destroys them.
    """

    def __init__(self, limit: int = 256) -> None:
        # Reentrant: the garbage collector may return contexts in the middle of a call.
        self._lock = threading.RLock()
        self._sets: dict[StoredSet, object] = {}  # in the order in which they came
        self._count = 0
        self._closed_drivers: set[object] = set()
        self.limit = limit

    @property
    def limit(self) -> int:
        """The largest number of stored contexts, not counting those that frameworks have seen."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        self._limit = as_int("limit", value, 0)
        self._trim()

    def __len__(self) -> int:
        return self._count

    def count(self, device: Device) -> int:
        """The number of contexts of a device in the store."""
        of_device = driver_and_device(device.resources.sm, device)
        return sum(
            stored.key[:2] == of_device for stored_set in list(self._sets) for stored in list(stored_set.contexts)
        )

    @property
    def pinned_limit(self) -> int:
        """The largest number of contexts of a device that frameworks may see. Showing one more raises RuntimeError.

        The default is 512: about 2 GiB of device memory with driver 13.0, 4 MiB for each.
        """
        return pinned_limit()

    @pinned_limit.setter
    def pinned_limit(self, value: int) -> None:
        set_pinned_limit(min(as_int("pinned_limit", value, 0), 2**62))

    def drop(self, *, pinned: bool = False) -> None:
        """Destroy all contexts in the store, and those that splits needed.

        pinned: also destroy unused contexts that a framework has seen. This is safe only after all frameworks have
        stopped using their streams and memory: a framework that still uses a handle crashes, or operates on the wrong
        object.

        The driver does not return the device memory: on an H200 with driver 13.0, 0 of the 212 MiB of the destroyed
        contexts came back (see system.memory()). The contexts no longer count against `pinned_limit`.
        """
        pinned = as_bool("pinned", pinned)
        self._drop(lambda stored: pinned or not stored.is_pinned)
        drop_kept(pinned)

    def _drop(self, chosen: Callable[[StoredContext], bool]) -> None:
        with self._lock:
            dropped = [
                stored
                for stored_set in list(self._sets)
                for stored in list(stored_set.contexts)
                if chosen(stored) and self._take_out(stored_set, stored)
            ]
        for stored in reversed(dropped):
            stored.close()

    def _forget_driver(self, key: int) -> None:
        self._closed_drivers.add(key)
        self._drop(lambda stored: stored.key[0] == key)

    def _take_out(self, stored_set: StoredSet, stored: StoredContext) -> bool:
        """Take one context out of a set, which ends the set. False if the garbage collector has done so."""
        if stored_set.order is not None:
            with suppress(ValueError):
                stored_set.order.idle.remove(stored_set)
            stored_set.order = None
        if stored not in stored_set.contexts:
            return False
        stored_set.contexts.remove(stored)
        self._count -= 1
        if not stored_set.contexts:
            self._sets.pop(stored_set, None)
        return True

    def _take_set(self, order: Order) -> list[StoredContext] | None:
        """The contexts that served an order before, if they can serve it again unchanged."""
        with self._lock:
            while order.idle:
                stored_set: StoredSet = order.idle.pop()
                stored_set.order = None
                if self._sets.pop(stored_set, stored_set) is stored_set:
                    continue  # the garbage collector has trimmed the store in between
                self._count -= len(stored_set.contexts)
                # Code that has the handle of one may have closed it in the meantime.
                usable = [stored for stored in stored_set.contexts if not stored.context.is_closed]
                if len(usable) == len(order.wanted):
                    return usable
                self._add(StoredSet(usable, None))
        return None

    def _take(self, keys: Iterable[Key]) -> list[StoredContext | None]:
        """The context that was stored last for each key, or None."""
        with self._lock:
            return [self._take_one(key) for key in keys]

    def _take_one(self, key: Key) -> StoredContext | None:
        for stored_set in reversed(list(self._sets)):
            for stored in list(stored_set.contexts):
                if stored.key == key and not stored.context.is_closed and self._take_out(stored_set, stored):
                    return stored
        return None

    def _identities(self, driver: int, device: Device) -> list[bytes]:
        """The SM identities (see sm_identity()) of the stored contexts of a device, newest first."""
        where = (driver, device.device_id)
        return [
            b"".join(part for part in stored.key[2:-1] if isinstance(part, bytes))
            for stored_set in reversed(list(self._sets))
            for stored in stored_set.contexts
            if stored.key[:2] == where
        ]

    def _add(self, stored_set: StoredSet) -> None:
        if stored_set.contexts:
            self._sets[stored_set] = None
            self._count += len(stored_set.contexts)
            if stored_set.order is not None:
                stored_set.order.idle.append(stored_set)

    def _put(self, contexts: list[StoredContext], order: Order | None = None) -> None:
        """Take contexts back, and close those that cannot be lent again. order: the order that they serve unchanged.

        A context in which a capture was left open is pinned: the core lends it again once the capture has ended.
        """
        if _is_over or not contexts or contexts[0].key[0] in self._closed_drivers:
            return  # destroyed with their driver, or by the end of the process
        if not _can_all_be_lent(contexts):
            spoiled = [stored for stored in contexts if not stored.can_be_lent()]
            for stored in spoiled:
                stored.close()
            contexts = [stored for stored in contexts if stored not in spoiled]
            order = None
        with self._lock:
            self._add(StoredSet(contexts, order))
        if self._count > self._limit:
            self._trim()

    def _trim(self) -> None:
        while True:
            with self._lock:
                if self._count <= self._limit:
                    return
                candidates = [
                    (stored_set, stored)
                    for stored_set in list(self._sets)
                    for stored in stored_set.contexts
                    if not stored.is_pinned
                ]
                if len(candidates) <= self._limit:
                    return
                is_mine = self._take_out(*candidates[0])
            if is_mine:
                candidates[0][1].close()

    def __repr__(self) -> str:
        return f"<ContextStore: {len(self)} contexts, {self.limit} at most>"

    def __reduce__(self) -> str:
        raise TypeError("the store holds contexts of this process and cannot be copied or pickled")


store = ContextStore()
# For the modules of this room: users have no contexts to take or to return.
identities_of_stored, put_back = store._identities, store._put
take_stored, take_stored_set = store._take, store._take_set
before_driver_closes(store._forget_driver)
_is_over = False


@atexit.register
def _leave() -> None:
    # The end of the process destroys the contexts; the driver may be unloaded when the last loans end.
    global _is_over
    _is_over = True


class Loan:
    """A loan of stored contexts. They return to the store when the loan ends, or when the last reference to it is gone.

    contexts: the contexts that it lends. Some may already be on loan from the `sources`, which it keeps alive; own: the
    others.
    """

    __slots__ = ("__weakref__", "_claim", "_order", "contexts", "own", "sources")

    def __init__(
        self,
        contexts: list[StoredContext],
        taken: list[StoredContext],
        claim: Claim,
        order: Order | None,
        sources: Sequence[Loan] = (),
    ) -> None:
        """order: the order that `own` serves unchanged."""
        self.contexts = contexts
        self.sources = sources
        self.own = taken
        self._order = order
        self._claim: Claim | None = claim

    def release(self) -> None:
        """End the loan. Ending it twice does nothing."""
        claim, self._claim = self._claim, None
        if claim is not None:
            # In this order: the next user of the contexts claims their SMs.
            claim.release()
            store._put(self.own, self._order)

    def __del__(self) -> None:
        self.release()


@dataclass(frozen=True)
class MemoryUse:
    """Device memory, and the green contexts that this package created on a device.

    contexts: the number of live contexts. Of these, `stored` are unused, `splitting` exist because a split needed them,
    and `pinned` have been seen by a framework and live until the process ends. destroyed: the number of destroyed
    contexts.
    held_bytes, lost_bytes: the device memory of live contexts, and the memory of destroyed contexts that the driver did
    not return. The driver does not report these two: they are the numbers of contexts times 4 MiB, as measured on an
    H200 with driver 13.0.
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
        """The device memory of the live contexts."""
        return self.contexts * CONTEXT_BYTES

    @property
    def lost_bytes(self) -> int:
        """The device memory of destroyed contexts that the driver did not return."""
        return self.destroyed * CONTEXT_BYTES


def memory_use() -> dict[int, MemoryUse]:
    """The memory of green contexts, for each device on which this package has created green contexts."""
    uses = {}
    for device_id in range(Device.count()):
        device = Device(device_id)
        try:
            whole = device.resources.sm
        except FeatureNotSupported:
            continue
        created, destroyed, pinned, waiting, splitting = context_counts(whole)
        if created:
            free, total = device_memory(whole)
            stored = store.count(device) + waiting
            uses[device_id] = MemoryUse(free, total, created - destroyed, stored, destroyed, splitting, pinned)
    return uses
