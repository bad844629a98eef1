"""Numbers of green contexts, and the device memory that they take."""

from __future__ import annotations

from dataclasses import dataclass

# The device memory of one green context with a stream: measured on an H100 with driver 13.0, the same for 8 and 120
# SMs. The driver does not report it.
CONTEXT_BYTES = 11 * 2**19


@dataclass(frozen=True)
class MemoryUse:
    """Device memory, and the green contexts of this package on a device.

    contexts: all of them. open: in use by a Context, or by partitions. lingering: closed, but kept by a stream or an
    executable graph. idle: unused, kept for later requests for the same SMs, or for splits. exposed: their raw value
    has left the package.
    """

    free_bytes: int
    total_bytes: int
    contexts: int
    open: int
    lingering: int
    idle: int
    exposed: int

    @property
    def held_bytes(self) -> int:
        """The device memory of the contexts: 5.5 MiB for each, as measured on an H100 with driver 13.0."""
        return self.contexts * CONTEXT_BYTES


@dataclass(frozen=True)
class ReleasedContexts:
    """The result of system.release_contexts(): the destroyed contexts, and the idle ones that it left.

    exposed: left because their raw value has left the package. at_work: left because they have work to do, or an open
    capture. in_use: left because an event or a graph belongs to them.
    """

    destroyed: int
    exposed: int
    at_work: int
    in_use: int

    @property
    def left(self) -> int:
        """The number of idle contexts that were not destroyed."""
        return self.exposed + self.at_work + self.in_use

    def __str__(self) -> str:
        reasons = {
            "their raw value has left the package": self.exposed,
            "they have work to do": self.at_work,
            "an event or a graph belongs to them": self.in_use,
        }
        left = ", ".join(f"{count} because {reason}" for reason, count in reasons.items() if count)
        return f"{self.destroyed} contexts released" + (f"; left: {left}" if left else "")
