"""Orders: the contexts that are opened together, each with its SMs and hardware queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cuda_gctx._core.extension import Device, SMResource, WorkqueueResourceOptions, driver_key, sm_identity
from cuda_gctx.partitions.layout import Request

__all__ = ["Key", "Order", "Wanted", "driver_and_device"]

Key = tuple[object, ...]


def driver_and_device(whole: SMResource, device: Device) -> tuple[int, int]:
    return driver_key(whole), device.device_id


@dataclass(frozen=True)
class Wanted:
    """One context to open: its name in messages, SMs (groups of one split), hardware queues, and request."""

    name: str
    groups: tuple[SMResource, ...]
    workqueue: WorkqueueResourceOptions | None = None
    requested: Request = None

    @cached_property
    def key(self) -> Key:
        """A key that is equal for interchangeable contexts: driver, device, SMs and workqueue options."""
        first = self.groups[0]
        return (*driver_and_device(first, first.device), *map(sm_identity, self.groups), self.workqueue)


@dataclass(frozen=True, eq=False)
class Order:
    """Contexts to open together. A kept order finds the contexts of its last use in one step.

    idle: the sets of contexts in the store whose last use was this order.
    """

    wanted: tuple[Wanted, ...]
    idle: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, wanted: Iterable[Wanted]) -> Order:
        return cls(tuple(wanted))

    @cached_property
    def groups(self) -> list[SMResource]:
        """The SMs of all contexts."""
        return [sms for request in self.wanted for sms in request.groups]

    @cached_property
    def names(self) -> list[str]:
        """The name of the context of each group."""
        return [request.name for request in self.wanted for _ in request.groups]
