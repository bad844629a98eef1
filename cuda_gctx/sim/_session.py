"""A simulated machine for the length of a ``with`` block, and its control interface."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cuda_gctx.sim._library import Block, KernelCost, Library, RecordFunction

__all__ = [
    "Ledger",
    "LedgerError",
    "LiveObject",
    "Misuse",
    "Session",
    "cards",
    "driver_versions",
    "library",
    "make_spec",
    "session",
]

# A handle that no object of the machine ever had: the call returns an error to the program, and nothing is lost. It is
# listed, but does not fail a test, because programs do this on purpose when they are tested with bad input.
_HARMLESS = frozenset({"unknown handle"})

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STACK_DEPTH = 24

_lock = threading.Lock()
_library: Library | None = None
# Where the objects of traced sessions were made, by their ids, which no two sessions share; and how many trace.
_stacks: dict[int, traceback.StackSummary] = {}
_tracing = 0


def _remember(number: int | None) -> int:
    # Called by the interpreter between two instructions: below this function lies the line that called the driver.
    frame = sys._getframe().f_back
    if frame is not None:
        walk = traceback.walk_stack(frame)
        _stacks[number or 0] = traceback.StackSummary.extract(walk, limit=_STACK_DEPTH, lookup_lines=False)
    return 0


_record = RecordFunction(_remember)


def library() -> Library:
    """The software driver's control interface, loaded at first use."""
    global _library
    with _lock:
        if _library is None:
            _library = Library()
        return _library


def cards() -> list[dict[str, Any]]:
    """The cards that can be simulated: for each its ``key``, ``name``, ``sm_count`` and more."""
    found: list[dict[str, Any]] = library().answer("Profiles")
    return found


def driver_versions() -> list[str]:
    """The versions of the driver that can be simulated, the oldest first: ``"12.3"`` and so on."""
    found: list[str] = library().answer("Drivers")
    return found


class LedgerError(AssertionError):
    """Objects of the simulated driver were left alive or misused."""

    __module__ = __name__.rpartition(".")[0]  # the public name


@dataclass(frozen=True)
class LiveObject:
    """An object of the driver that was made and not destroyed."""

    kind: str
    handle: int
    id: int
    order: int
    thread: int
    device: int
    amount: int
    stack: traceback.StackSummary | None = None  # innermost call first; None where it was not traced

    @property
    def where(self) -> str | None:
        """The line outside of this package that made it, as ``file:line in function``; None if that is not known."""
        for frame in self.stack or ():
            if not frame.filename.startswith(_PACKAGE):
                return f"{frame.filename}:{frame.lineno} in {frame.name}"
        return None

    def __str__(self) -> str:
        size = f", {self.amount} bytes" if "memory" in self.kind and self.kind != "memory pool" else ""
        count = f", {self.amount} times" if self.kind == "primary context retain" else ""
        made = f", made at {self.where}" if self.where else ""
        who = f"number {self.order} by thread {self.thread}"
        return f"{self.kind} {self.handle:#x} (id {self.id}{size}{count}), {who}{made}"


@dataclass(frozen=True)
class Misuse:
    """A call that misused an object."""

    kind: str
    function: str
    handle: int
    thread: int
    order: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.function}({self.handle:#x}) by thread {self.thread}: {self.detail}"


@dataclass(frozen=True)
class Ledger:
    """The live objects and the misuse of a simulated machine."""

    live: tuple[LiveObject, ...]
    misuse: tuple[Misuse, ...]
    lost_bytes: int
    green_contexts_made: int
    green_contexts_destroyed: int
    absent: dict[str, int]  # calls of functions that are not modelled

    @property
    def faults(self) -> tuple[Misuse, ...]:
        """The misuse that fails a test."""
        return tuple(note for note in self.misuse if note.kind not in _HARMLESS)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is alive and nothing was misused."""
        return not self.live and not self.faults

    def live_of(self, kind: str) -> tuple[LiveObject, ...]:
        """The live objects of one kind, such as ``"stream"``."""
        return tuple(found for found in self.live if found.kind == kind)

    def __str__(self) -> str:
        lines = ["ledger (simulated): " + ("clean" if self.is_clean else "not clean")]
        lines += [f"  alive: {found}" for found in self.live]
        lines += [f"  {note}" for note in self.misuse]
        lines += [f"  not modelled: {name}, called {count} times" for name, count in self.absent.items()]
        if self.lost_bytes:
            lines.append(f"  device memory lost to destroyed green contexts: {self.lost_bytes} bytes")
        return "\n".join(lines)

    @classmethod
    def read(cls, data: Any) -> Ledger:
        """The ledger in `data`, the JSON answer of the driver."""
        return cls(
            live=tuple(
                LiveObject(**{**entry, "handle": int(entry["handle"], 16)}, stack=_stacks.get(entry["id"]))
                for entry in data["live"]
            ),
            misuse=tuple(Misuse(**{**entry, "handle": int(entry["handle"], 16)}) for entry in data["misuse"]),
            lost_bytes=data["lost_bytes"],
            green_contexts_made=data["green_contexts_made"],
            green_contexts_destroyed=data["green_contexts_destroyed"],
            absent=data["absent"],
        )


class Session:
    """The simulated machine that is the driver of this package during a session."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._lib = library()
        self._kept: list[object] = []
        self._final: Ledger | None = None

    def __repr__(self) -> str:
        return f"<Session {self.spec} (simulated)>"

    def ledger(self) -> Ledger:
        """The live objects and the misuse so far; after the session, those at its end."""
        return self._final or Ledger.read(self._lib.answer("Ledger"))

    def calls(self, function: str | None = None) -> Any:
        """The number of calls of each driver function, or of one."""
        counts: dict[str, int] = self._lib.answer("Calls")
        return counts if function is None else counts.get(function, 0)

    def fail(
        self,
        function: str,
        *,
        code: str | int = "CUDA_ERROR_OUT_OF_MEMORY",
        nth: int | None = None,
        probability: float | None = None,
        seed: int = 0,
    ) -> None:
        """Make calls of a function fail.

        function: the driver function, such as "cuGreenCtxCreate"; "*" for any.
        code: the CUresult, as a name or a number.
        nth: only the nth call from now. probability: each call by this chance, with `seed`. Without both, every call;
        ValueError with both.
        """
        if nth is not None and probability is not None:
            raise ValueError("give nth or probability, not both")
        self._lib.fail(function, self._lib.error_code(code), nth=nth, probability=probability, seed=seed)

    def limit_contexts(self, count: int) -> None:
        """Let creation fail with out of memory when ``count`` green contexts are alive (0: no limit)."""
        self._lib.limit_contexts(count)

    def clear_faults(self) -> None:
        """Remove all fault rules, so that every call succeeds again."""
        self._lib.clear_faults()

    def faults(self) -> Any:
        """The active fault rules, and how often each has fired."""
        return self._lib.answer("Faults")

    def memory(self, device: int = 0) -> dict[str, int]:
        """Bytes of a device: total, free, allocated, taken by live green contexts, lost to destroyed ones."""
        found: dict[str, int] = self._lib.answer("Memory")["devices"][device]
        return found

    def machine(self) -> Any:
        """The simulated machine: profile, name, driver version, number of devices."""
        return self._lib.answer("Machine")

    def time_ns(self) -> int:
        """Virtual nanoseconds since the machine started."""
        return self._lib.time_ns()

    def advance(self, ns: int) -> None:
        """Let virtual time pass.

        ns: nanoseconds, on the clock of the machine.
        """
        self._lib.advance(ns)

    def kernel(
        self,
        name: str,
        function: Callable[[Block], None] | None = None,
        *,
        block_ns: int = 5_000,
        block_bytes: int = 0,
        throughput: float | None = None,
        registers: int | None = None,
        argument_sizes: Sequence[int] | None = None,
    ) -> None:
        """Set what a block of the kernel of this name costs, and a function that is called at the end of each block.

        ``block_ns`` is the time of a block alone on an SM if it waits for no memory, ``block_bytes`` what it moves to
        and from device memory. ``throughput`` is the share of the SM's throughput that it uses: None means all of it
        from four warps on, 0 a kernel that only waits. ``registers`` is the number per thread: None means that of its
        image, or else 32. ``argument_sizes`` has the bytes of each argument, for images that do not contain them. The
        function runs on the thread that waits, and must not wait for the driver.

        Raises ValueError unless the throughput is 0 to 1.
        """
        if throughput is not None and not 0 <= throughput <= 1:
            raise ValueError(f"throughput is {throughput}; it must be 0 to 1")
        cost = KernelCost(block_ns, block_bytes, -1.0 if throughput is None else throughput, registers or 0)
        self._kept.append(self._lib.kernel(name, function, cost, argument_sizes))

    def check(self) -> None:
        """Raise LedgerError unless nothing is alive and nothing was misused."""
        __tracebackhide__ = True
        ledger = self.ledger()
        if not ledger.is_clean:
            raise LedgerError(str(ledger))


def make_spec(profile: str = "h200", driver: str | None = None, devices: int = 1, **options: int) -> str:
    """The description of a machine in one line: ``h200@13.1,devices=2``.

    profile, driver, devices, options: as for session().
    """
    spec = profile if driver is None else f"{profile}@{driver}"
    return ",".join([spec, f"devices={devices}", *(f"{key}={value}" for key, value in options.items())])


@contextmanager
def session(
    profile: str = "h200",
    driver: str | None = None,
    devices: int = 1,
    *,
    check: bool = True,
    trace: bool = False,
    **options: int,
) -> Iterator[Session]:
    """A fresh simulated machine as the driver of this package.

    profile: the card (see ``python -m cuda_gctx.sim profiles``). driver: the CUDA version, such as "13.1".
    devices: the number of cards. options: other keys of the machine's description (``connections``,
    ``max_contexts``, ``memory``).
    check: at the end, live objects and misuse raise LedgerError; an exception of the block takes precedence.
    trace: on the main thread, the ledger also reports the line that made each object; for objects of other
    threads it reports only the thread.
    """
    global _tracing
    from cuda_gctx._core.driver import close_driver, open_driver, resume_driver, set_driver_aside

    spec = make_spec(profile, driver, devices, **options)
    lib = library()
    # Objects of the outer machine are not destroyed on this one.
    set_driver_aside()
    lib.push()
    try:
        token = open_driver(f"sim:{spec}")
        current = Session(spec)
        trace = trace and threading.current_thread() is threading.main_thread()
        if trace:
            _tracing += 1
            lib.trace(_record)
        try:
            yield current
        finally:
            if any(found.kind != "primary context retain" for found in current.ledger().live):
                # Objects in reference cycles are garbage, not leaks.
                gc.collect()
            close_driver(token)
            current._final = current.ledger()
            if trace:
                lib.trace(None)
                _tracing -= 1
                if _tracing == 0:
                    _stacks.clear()
        if check:
            current.check()
    finally:
        lib.pop()
        resume_driver()
